"""The site has every page and every public name; what building it finds, ``make docs`` says."""

import importlib.util
import re
from pathlib import Path

import pytest

import fedsgm as fs

DOCS = Path(__file__).parents[1] / "docs"


def test_every_page_is_in_one_table_of_contents():
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```$", (DOCS / "index.md").read_text(), re.S | re.M)
    listed = [line for table in tables for line in table.splitlines() if line and not line.startswith(":")]
    assert sorted(listed) == sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")


def test_the_reference_has_every_public_name():
    text = (DOCS / "api.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: fedsgm\.(?:\w+\.)*(\w+)$", text, re.M))
    assert set(fs.__all__) - named == {"torch"}, "which has a page of its own"


def test_links_between_pages_name_headings_that_are_there():
    """As GitHub and MyST name them both."""
    pages = {page.name: page.read_text() for page in DOCS.glob("*.md")}
    headings = {
        name: {
            re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.M)
        }
        for name, text in pages.items()
    }
    for name, text in pages.items():
        for page, place in re.findall(r"\]\(([\w-]+\.md)?#([^)]+)\)", text):
            assert place in headings[page or name], f"{name} points at {page}#{place}"


@pytest.fixture
def checker():
    spec = importlib.util.spec_from_file_location("check_links", DOCS / "check_links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("<a href='b.html#there'>x</a><a href='#me' id='me'></a><img src='p.png'><a href='https://a.org/b'></a>", ""),
        ("<a href='c.html'>x</a>", "leads nowhere"),
        ("<a href='b.html#gone'>x</a>", "a place that is not there"),
        ("<script src='https://cdn.example.org/x.js'></script>", "fetches https://cdn"),
        ("<img src='gone.png'>", "leads nowhere"),
        ("<a href='https://nowhere'>x</a>", "is no address"),
    ],
)
def test_the_checker_of_links_finds(checker, body, told, tmp_path):
    (tmp_path / "a.html").write_text(f"<html><body>{body}</body></html>")
    (tmp_path / "b.html").write_text("<h1 id='there'>b</h1>")
    (tmp_path / "p.png").write_bytes(b"")
    found = checker.wrong(tmp_path)
    assert len(found) == bool(told)
    assert told in "".join(found)
