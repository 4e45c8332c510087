"""Define values that display themselves: as HTML in a notebook, as text elsewhere.

They hold what was found as it is, and show it without secrets.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from kimi_nb.i18n import translate
from kimi_nb.show import html_table, plain_table
from kimi_nb.show.parts import Quote


def _wrapped(text: str, width: int | None) -> str:
    """Return a text with each of its lines cut to a width, between words where it can be."""
    if width is None or len(text) <= width // (1 if text.isascii() else 2):
        return text
    if text.isascii():
        lines = [textwrap.wrap(line, width) or [""] for line in text.splitlines()]
    else:  # a Chinese character takes two columns
        from wcwidth import wrap  # start-up: only for such a text

        lines = [wrap(line, width) or [""] for line in text.splitlines()]
    return "\n".join(part for parts in lines for part in parts)


@dataclass(frozen=True)
class Table:
    """Rows under headings: an HTML table in a notebook, text when printed."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        from kimi_nb.core import known_secrets  # start-up: only when printed

        # Short texts stay on one line; longer ones are wrapped so that a row fits the screen. An
        # address or a path of any length is whole, so that it can be copied.
        widths = [
            60 if any(len(str(row[i])) > 60 and " " in str(row[i]) for row in self.rows) else None
            for i in range(len(self.headings))
        ]
        if not self.rows and self.title:
            return known_secrets.text(translate(self.title))
        # Before a wrapped line could part a secret in two. Long tables repeat their cells.
        plain = [[_plain(cell) for cell in row] for row in self.rows]
        quoted = {str(cell) for row in self.rows for cell in row if isinstance(cell, Quote)}
        cells = list({one for row in plain for one in row})
        told = known_secrets.value([one if one in quoted else translate(one) for one in cells])
        clean = dict(zip(cells, told, strict=True))
        rows = [
            [_wrapped(clean[cell], width) for cell, width in zip(row, widths, strict=True)]
            for row in plain
        ]
        headings = [translate(heading) for heading in self.headings]
        text = plain_table.table(headings, rows)
        title = known_secrets.text(translate(self.title))
        return f"{title}\n{text}" if title else text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from kimi_nb.core import known_secrets  # start-up: only when shown

        rows = [[cell if _draws(cell) else _plain(cell) for cell in row] for row in self.rows]
        title = known_secrets.text(translate(self.title))
        return html_table.table(title, self.headings, known_secrets.value(rows))


class Shown:
    """Base class of values that display themselves as a table."""

    def table(self) -> Table:
        """Return the facts as a table, one per row."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:  # subclasses are dataclasses with repr=False
        return str(self)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Both(Shown):
    """Base class of values that display themselves as a table with a second one below."""

    def below(self) -> Table:
        """Return the second table: what the first one is based on."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.below()}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + self.below()._repr_html_()


def seconds(value: float | None) -> str:
    """Return a duration as tables show it.

    >>> seconds(12.34), seconds(None)
    ('12.3 s', 'never')
    """
    return "never" if value is None else f"{value:.1f} s"


def _draws(cell: Any) -> bool:
    return hasattr(cell, "_repr_html_")


def _plain(cell: Any) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list | tuple | dict):
        return json.dumps(cell)
    return str(cell)


def visible(text: str, lines: bool = True) -> str:
    r"""Return a text that is safe to print on a terminal.

    Control characters and those that change the writing direction are escaped, and so are line
    breaks unless ``lines`` is true.

    >>> visible("a\x1b[31m")
    'a\\x1b[31m'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or (lines and character == "\n")
        else character.encode("unicode_escape").decode()
        for character in text
    )


def plain_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    r"""Return JSON that is safe to print on a terminal: what `visible` escapes is escaped as JSON.

    ``default`` writes what JSON does not know, as that of `json.dumps`.

    >>> print(plain_json(["\u202ea", "\u00e9"]))
    [
      "\u202ea",
      "é"
    ]
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=default)
    text = text.replace("\x7f", "\\u007f")  # the only one of ASCII that JSON leaves as it is
    if text.isascii():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
        for character in text
    )


def show(value: Any) -> None:
    """Display a value in a notebook, or print it elsewhere."""
    if in_notebook():
        from IPython.display import display  # start-up: only in a notebook

        display(value)
    else:
        print(value)


def say(*texts: str, file: TextIO | None = None) -> None:
    """Print sentences or a line of progress in the current language, its indent as it is."""
    line = texts[0].lstrip(" \n")
    told = " ".join(visible(translate(text)) for text in (line, *texts[1:]) if text)
    print(texts[0][: len(texts[0]) - len(line)] + told, file=file, flush=True)


def in_notebook() -> bool:
    """Return whether the code runs in an IPython kernel."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return bool(shell and hasattr(shell, "kernel"))


def interactive() -> bool:
    """Return whether a person can be asked for input; in a headless notebook run nobody can."""
    return in_notebook() and bool(sys.modules["IPython"].get_ipython().kernel._allow_stdin)


def spans(numbers: Sequence[int]) -> str:
    """Return whole numbers as ranges.

    >>> spans([0, 1, 2, 3, 8])
    '0-3, 8'
    """
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)
