"""Check a built site: every link within it leads somewhere, and no page asks another site for anything to be seen.

    python docs/check_links.py FOLDER

Links to other sites are only looked at for their form: whether they answer cannot be told without a network.
"""

import re
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """A page's anchors, what it links to and what it shows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.shown = {""}, set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) == ("a", "href"):
                self.links.add(value)
            elif (tag, name) in FETCHED and ("rel", "canonical") not in attrs:
                self.shown.add(value)


def wrong(site: Path) -> list[str]:
    """What is wrong with a site, in a line each."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name}: fetches {url}" for url in page.shown if re.match(r"(https?:)?//", url)]
        for link in page.links | {url for url in page.shown if not re.match(r"(https?:)?//|data:", url)}:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("http", "https", "mailto") or (
                    parts.scheme != "mailto" and "." not in parts.netloc
                ):
                    found.append(f"{name}: {link} is no address")
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{name}: {link} leads nowhere")
            elif target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link} names a place that is not there")
    return found


if __name__ == "__main__":
    errors = wrong(Path(sys.argv[1]))
    print("\n".join(errors) or "every link within the site leads somewhere, and nothing is fetched from elsewhere")
    sys.exit(bool(errors))
