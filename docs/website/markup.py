r"""Write Markdown in which the text of others stays text.

>>> print(text("a | b <script> *c*"))
a \| b \<script\> \*c\*
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~$&:@%^='\"-])")


def text(words: object) -> str:
    """Return words that a page shows as they are, in one line."""
    return _escaped(" ".join(str(words).split()))


def _escaped(line: str) -> str:
    return _SPECIAL.sub(r"\\\1", line)


def prose(words: str) -> str:
    """Return a docstring's paragraph: as `text`, but what stands in backquotes is code."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", " ".join(words.split()))
    return "".join(
        code(part.strip("`")) if at % 2 else _escaped(part) for at, part in enumerate(parts)
    )


def code(words: object) -> str:
    """Return words as inline code, also where they hold backquotes; "" for none."""
    line = " ".join(str(words).split())
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}"


def block(content: str, language: str = "text") -> str:
    """Return a block of code whose fence is longer than any within it."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`{2,}", content)), default=2))
    return f"{fence}{language}\n{content.rstrip()}\n{fence}\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown, in which a bar ends no cell."""
    lines = [headings, ["---"] * len(headings), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def toctree(caption: str, pages: Iterable[str]) -> str:
    """Return a hidden list of pages, which the navigation shows under a caption; "" for none."""
    listed = "\n".join(pages)
    named = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{named}\n{listed}\n```\n" if listed else ""
