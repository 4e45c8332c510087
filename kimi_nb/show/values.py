"""Define values that display themselves: as HTML in a notebook, as text elsewhere."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows under headings: an HTML table in a notebook, text when printed."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        from tabulate import tabulate  # start-up: only when printed

        # Short texts stay on one line; longer ones are wrapped so that a row fits the screen. An
        # address or a path of any length is whole, so that it can be copied.
        widths = [
            60 if any(len(str(row[i])) > 60 and " " in str(row[i]) for row in self.rows) else None
            for i in range(len(self.headings))
        ]
        if not self.rows and self.title:
            return self.title
        text = tabulate(
            [[_plain(cell) for cell in row] for row in self.rows],
            headers=self.headings,
            disable_numparse=True,
            maxcolwidths=widths if self.rows else None,
        )
        return f"{self.title}\n{text}" if self.title else text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tabulate import tabulate  # start-up: only when printed

        text = tabulate(
            [[_html(cell) for cell in row] for row in self.rows],
            headers=[html.escape(heading) for heading in self.headings],
            tablefmt="unsafehtml",
            disable_numparse=True,
        )
        style = (
            "<style scoped>.kimi td,.kimi th{text-align:left !important;vertical-align:top}</style>"
        )
        caption = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        return f'{style}<div class="kimi">{caption}{text}</div>'


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


@dataclass(frozen=True)
class Text:
    """A script or other fixed-width text with a title."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"--- {self.title}\n{self.text}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        title = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        return (
            f"{title}<pre style='overflow-x:auto;font-family:monospace'>"
            f"{html.escape(self.text)}</pre>"
        )


def _html(cell: Any) -> str:
    return cell._repr_html_() if hasattr(cell, "_repr_html_") else html.escape(_plain(cell))


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


def plain_json(value: Any) -> str:
    r"""Return JSON that is safe to print on a terminal: what `visible` escapes is escaped as JSON.

    >>> print(plain_json(["\u202ea", "\u00e9"]))
    [
      "\u202ea",
      "é"
    ]
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
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
