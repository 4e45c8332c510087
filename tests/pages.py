"""What must hold of every HTML page that the project writes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Links(HTMLParser):
    """What a page would load, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.hrefs: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster", "action", "background") or (
                tag == "link" and name == "href"
            ):
                self.loads.append(value or "")
            elif name == "href":
                self.hrefs.append(value or "")
            assert not name.startswith("on"), (tag, name)


def check_page(path: Path) -> str:
    """The text of a page that loads nothing, runs nothing, and leads to files that are there."""
    text = path.read_text()
    found = Links(text)
    assert "script" not in found.tags and "iframe" not in found.tags
    assert all(url.startswith("data:image/") for url in found.loads)
    assert not re.search(r"@import|url\((?!['\"]?data:)", text)
    for href in found.hrefs:
        parts = urlsplit(href)
        assert not parts.scheme and not parts.netloc, href
        if parts.path:
            assert (path.parent / unquote(parts.path)).exists(), href
    return text
