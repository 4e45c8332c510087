"""Write a table as plain text, as the format "simple" of tabulate has it.

Our own, as importing tabulate and asking it for the 811 rows of ``kimi-nb list`` takes a fifth of
that command; a test compares the two.

>>> print(table(("node", "rank"), [("a3-0", "0"), ("a3-1", "16")]))
node    rank
------  ------
a3-0    0
a3-1    16
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

_AIR = 2  # columns that a heading leaves free at least, and that part two columns


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows under their headings; a cell may have several lines. Lines have no end blanks."""
    parts = [[cell.strip().splitlines() or [""] for cell in row] for row in (headings, *rows)]
    widths = [
        max(_width(line) for lines in column for line in lines)
        for column in zip(*parts, strict=True)
    ]
    widths = [max(width, _width(head) + _AIR) for width, head in zip(widths, headings, strict=True)]
    head, *body = parts
    rule = (" " * _AIR).join("-" * width for width in widths)
    return "\n".join([*_lines(head, widths), rule, *_all_lines(body, widths)])


def _all_lines(rows: Iterable[Sequence[Sequence[str]]], widths: Sequence[int]) -> Iterable[str]:
    return itertools.chain.from_iterable(_lines(row, widths) for row in rows)


def _lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterable[str]:
    """Yield the lines of one row, as many as its longest cell has."""
    for cells in itertools.zip_longest(*row, fillvalue=""):
        padded = (
            cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)
        )
        yield (" " * _AIR).join(padded).rstrip()


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    import wcwidth  # start-up: only for such a text

    return max(wcwidth.wcswidth(text), 0)
