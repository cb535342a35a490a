"""A real browser without a window, where one is installed, and what a page looks like in it."""

import contextlib
import functools
import shutil
import tempfile

import pytest
from selenium import webdriver

# As root in a container, and without a word to the network.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
WIDTHS = {"desktop": 1280, "phone": 390}


@contextlib.contextmanager
def browser():
    """Chromium under its driver; the test is skipped where either is missing."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no chromium with chromedriver here; apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        found = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            yield Browser(found)
        finally:
            found.quit()


class Browser:
    """``see`` opens a page; ``run`` is an expression of its script's."""

    def __init__(self, driver):
        self.driver = driver
        self.run = functools.partial(driver.execute_script)

    def see(self, address, *, width="desktop", dark=False):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": WIDTHS[width], "height": 900, "deviceScaleFactor": 1, "mobile": width == "phone"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(address)

    @property
    def text(self):
        return self.run("return document.body.innerText")

    @property
    def said(self):
        """What the browser has to complain about."""
        return self.driver.get_log("browser")

    def figures(self):
        """The title of every picture, the number of points that are drawn in it, and its box."""
        return self.run("""
            return [...document.querySelectorAll("figure")].map((figure) => {
              const drawn = [...figure.querySelectorAll("svg g path.line, svg g circle, svg g path.answer")];
              const box = figure.querySelector("svg").getBoundingClientRect();
              const points = drawn.map((one) => (one.getAttribute("d") || "M").split(/[ML]/).length - 1);
              return {title: figure.querySelector("h3").textContent, points: points.reduce((a, b) => a + b, 0),
                      right: box.right, width: box.width, height: box.height,
                      bounds: figure.querySelectorAll(".bound").length};
            });
        """)
