"""Values that show themselves: a table in a notebook, the same table as text elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows under headings. In a notebook it is an HTML table, printed it is text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        from tabulate import tabulate

        # Short texts stay on a line; a sentence is folded so that a row fits a screen.
        widths = [
            60 if any(len(str(row[i])) > 60 for row in self.rows) else None
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
        from tabulate import tabulate

        text = tabulate(
            [[_plain(cell) for cell in row] for row in self.rows],
            headers=self.headings,
            tablefmt="html",
            disable_numparse=True,
        )
        style = (
            "<style scoped>.kimi td,.kimi th{text-align:left !important;vertical-align:top}</style>"
        )
        caption = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        return f'{style}<div class="kimi">{caption}{text}</div>'


class Shown:
    """What shows itself as its table."""

    def table(self) -> Table:
        """The facts, one a line."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:  # of a dataclass with repr=False
        return str(self)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Both(Shown):
    """What shows itself as its table and another one below."""

    def below(self) -> Table:
        """What the table rests on."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.below()}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + self.below()._repr_html_()


def seconds(value: float | None) -> str:
    """How long it took, in a table."""
    return "never" if value is None else f"{value:.1f} s"


@dataclass(frozen=True)
class Text:
    """A script or another text of fixed width, with a title."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"--- {self.title}\n{self.text}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return (
            f"<b>{html.escape(self.title)}</b><pre style='overflow-x:auto;"
            f"font-family:monospace'>"
            f"{html.escape(self.text)}</pre>"
        )


def _plain(cell: Any) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list | tuple | dict):
        return json.dumps(cell)
    return str(cell)


def visible(text: str, lines: bool = True) -> str:
    """A text that a terminal shows and does not obey: control and direction characters escaped,
    line ends too unless ``lines``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or (lines and character == "\n")
        else character.encode("unicode_escape").decode()
        for character in text
    )


def show(value: Any) -> None:
    """Display in a notebook, print elsewhere."""
    if in_notebook():
        from IPython.display import display

        display(value)
    else:
        print(value)


def in_notebook() -> bool:
    """Whether an IPython kernel runs this."""
    import sys

    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return bool(shell and hasattr(shell, "kernel"))


def interactive() -> bool:
    """Whether a person sits before the notebook: who runs one headless lets no kernel ask."""
    import sys

    return in_notebook() and bool(sys.modules["IPython"].get_ipython().kernel._allow_stdin)


def spans(numbers: Sequence[int]) -> str:
    """Whole numbers as ranges: 0-3, 8."""
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)
