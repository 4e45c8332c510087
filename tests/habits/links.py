"""Links in markdown and notebooks that lead nowhere. Nothing is fetched.

    # exit code 1 where one is wrong
    python tests/habits/links.py *.md docs/*.md docs/rules/*/*.md notebooks/*.ipynb
    # the web addresses, with the first place of each, for a person to open
    python tests/habits/links.py --outer notebooks/*.ipynb

A relative link must be there, with its heading; so must a path of this project that stands in
backquotes. Of a web address only the form is looked at.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARKDOWN = MarkdownIt("commonmark").enable("table")
# A link that a page would not show as one (file:) is a fault, and not just words.
_MARKDOWN.validateLink = lambda url: True  # type: ignore[method-assign]
_PATH = re.compile(r"(docs|notebooks|kimi_nb|params|tests|benchmarks|\.ci|\.github)/[\w./*-]*")
# Where packages come from is a setting of a machine, not of this project.
_REGISTRIES = re.compile(r"(^|\.)(py" r"pi\.org|python" r"hosted\.org|registry\.npm" r"js\.org)$")


def faults(path: Path) -> list[str]:
    """What is wrong with the links of a markdown file or a notebook; [] is good."""
    return [
        f"{where}: {fault}"
        for where, text in _texts(path)
        for token in _inline(text)
        for fault in _fault(token, path)
    ]


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """(where, markdown)"""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        yield str(path), text
        return
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        if cell["cell_type"] == "markdown":
            yield f"{path}, cell {number}", "".join(cell["source"])


def _inline(text: str) -> Iterator[Token]:
    for token in _MARKDOWN.parse(text):
        yield from token.children or ()


def _fault(token: Token, path: Path) -> Iterator[str]:
    if token.type == "code_inline" and _PATH.fullmatch(token.content):
        if not any(_root(path).glob(token.content.rstrip("/"))):
            yield f"`{token.content}` is not there. Name a file or folder of this project"
        return
    target = token.attrGet({"link_open": "href", "image": "src"}.get(token.type, ""))
    if target is None:
        return
    link = unquote(str(target))
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        host = parts.hostname or ""
        if "." not in host or parts.username or re.search(r"\s", link):
            yield f"{link}: no web address. https://host.name/path is wanted"
        elif _REGISTRIES.search(host):
            yield f"{link}: a registry of packages. Name the package, not the place"
    elif parts.scheme or link.startswith("/"):
        yield f"{link}: neither https nor relative to this file"
    else:
        other = path.parent / parts.path if parts.path else path
        if not other.exists():
            yield f"{link}: {other} is not there"
        elif parts.fragment and parts.fragment not in anchors(other):
            yield (
                f"{link}: {other} has no heading #{parts.fragment}; it has "
                f"{', '.join(anchors(other)) or 'none'}"
            )


def _root(path: Path) -> Path:
    """The project that a file belongs to."""
    folders = path.resolve().parents
    return next((folder for folder in folders if (folder / "pyproject.toml").exists()), folders[0])


def anchors(path: Path) -> list[str]:
    """The headings of a file as the addresses that GitHub, or in a notebook Jupyter, gives them."""
    if path.suffix not in (".md", ".ipynb"):
        return []
    out: list[str] = []
    for _, text in _texts(path):
        tokens = _MARKDOWN.parse(text)
        for opened, inner in itertools.pairwise(tokens):
            if opened.type == "heading_open":
                words = "".join(child.content for child in inner.children or ())
                if path.suffix == ".md":
                    words = re.sub(r"[^\w\- ]", "", words.lower())
                name = words.replace(" ", "-")
                again = sum(
                    re.fullmatch(re.escape(name) + r"(-\d+)?", one) is not None for one in out
                )
                out.append(f"{name}-{again}" if again else name)
    return out


def outer(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (web address, where it stands) of each link that leaves this project."""
    for where, text in _texts(path):
        for token in _inline(text):
            target = str(token.attrGet("href") or "")
            if token.type == "link_open" and target.startswith("http"):
                yield target, where


def main(paths: Sequence[str]) -> int:
    """Print what is wrong in each file, or the web addresses; 0 where nothing is wrong."""
    if paths[:1] == ["--outer"]:
        told = dict(reversed([one for path in paths[1:] for one in outer(Path(path))]))
        for address in sorted(told):
            print(f"{address}  ({told[address]})")
        return 0
    found = [fault for path in paths for fault in faults(Path(path))]
    for fault in found:
        print(f"{fault}.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
