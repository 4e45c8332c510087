"""Check the pages as they were built: no link leads nowhere, and nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that name what a browser loads by itself; of <link> only some kinds are loaded.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
_LOADED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "shortcut icon"}


@dataclass
class Page(HTMLParser):
    """What a page names: its anchors, where its links lead, what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        source = given.get(_LOADED.get(tag, ""), "")
        if tag == "link" and given.get("rel", "").lower() in _LOADED_LINKS:
            source = given.get("href", "")
        if source:
            self.loaded.append(source)


def faults(folder: Path) -> list[str]:
    """Return what is wrong with the links of the pages in a folder; [] is good."""
    pages = sorted(folder.rglob("*.html"))
    return [
        f"{path.relative_to(folder)}: {fault}"
        for path in pages
        for fault in _faults(path, folder.resolve())
    ]


def _faults(path: Path, folder: Path) -> Iterator[str]:
    page = _read(path.resolve())
    for source in page.loaded:
        address = urlsplit(source)
        if address.scheme == "data":
            continue
        if address.scheme or address.netloc:
            yield f"loads {source[:200]} from elsewhere"
        elif fault := _leads(source, path, folder):
            yield fault
    for link in page.links:
        address = urlsplit(link)
        if address.scheme in ("http", "https", "mailto"):
            continue
        if address.scheme or address.netloc:
            yield f"{link[:200]}: no link for a page"
        elif fault := _leads(link, path, folder):
            yield fault


def _leads(link: str, path: Path, folder: Path) -> str:
    """Return why a relative link leads nowhere, "" where it does not."""
    address = urlsplit(link)
    named = unquote(address.path)
    target = (path.parent / named).resolve() if named else path.resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(folder) or not target.exists():
        return f"{link[:200]}: is not there"
    anchor = unquote(address.fragment)
    if anchor and target.suffix == ".html" and anchor not in _read(target).anchors:
        return f"{link[:200]}: has no #{anchor}"
    return ""


@cache
def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8", errors="replace"))
    return page
