"""Write a table as HTML that can be read at any width.

Numbers stand at the right; words of a status are marks; a short cell keeps to its line, and a long
address breaks at its slashes. A long table shows its first rows and all that are loud, the others
at a click; where the style is not applied, it is whole.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from kimi_nb.i18n import translate
from kimi_nb.show.frame import framed
from kimi_nb.show.parts import MARKED, Line, Mark

SHOWN, SPARED = 10, 4  # rows that are shown; as many more are not worth a click
_LOUD = {"error", "fail", "failed", "regression", "warning"}
_STATUS = {"severity", "status", "verdict", "result"}
_SHORT, _LONG, _TOKEN = 24, 60, 40  # characters
_TIGHT = 16  # from this length on a word breaks at its joints where its table has little room
_EMPTY = ("", "-")
# Chinese sentences have no blanks: what is written in other letters in them is a word by itself.
_WORDS = re.compile(r"[^\s\u2e80-\u9fff\uff00-\uffef]+|[\u2e80-\u9fff\uff00-\uffef]+")
# Where a long word may break, and a shorter one, which keeps 192.0.2.11 and k2.5 whole.
_ANY_JOINT = re.compile(r"(?<=.[/._:=,])(?<!//)(?=[^/])")
_JOINT = re.compile(rf"{_ANY_JOINT.pattern}(?<!\d\.)")
# A number, its unit and how it is known: 12, 1,024, 4.8 GiB, 93 %, x2, 560 GB (estimated).
_NUMBER = re.compile(
    r"[-+~<>≤≥x]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[-+]?\d+)?( ?[%A-Za-zµ/]{1,12})?( \([a-z]+\))?"
)


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return the table; a cell is a text, or a value of one line that shows itself."""
    caption = f'<div class="title">{html.escape(title)}</div>' if title else ""
    rows = [[_marked(cell, at, headings, row) for at, cell in enumerate(row)] for row in rows]
    numeric = [_numeric([row[at] for row in rows]) for at in range(len(headings))]
    heads = "".join(
        f"<th{_class('num' * right)}>{_heading(translate(head))}</th>"
        for head, right in zip(headings, numeric, strict=True)
    )
    lines = [
        "<tr>"
        + "".join(_cell(cell, right) for cell, right in zip(row, numeric, strict=True))
        + "</tr>"
        for row in rows
    ]
    first = _first(rows)
    body = f"<tbody>{''.join(lines[:first])}</tbody>"
    more = ""
    if lines[first:]:
        body += f'<tbody class="rest">{"".join(lines[first:])}</tbody>'
        words = html.escape(translate(f"{len(lines) - first} more rows"))
        more = f'<details class="more"><summary>{words}</summary></details>'
    drawn = f"<table><thead><tr>{heads}</tr></thead>{body}</table>"
    return framed(f'{caption}<div class="scroll">{drawn}</div>{more}')


def _heading(text: str) -> str:
    """Return a heading, which may break after its slash: requests/s."""
    return html.escape(text).replace("/", "/<wbr>")


def _first(rows: Sequence[Sequence[Any]]) -> int:
    """Return how many rows are shown at once: no loud one may stand behind a click."""
    loud = [at for at, row in enumerate(rows, 1) if any(_loud(cell) for cell in row)]
    first = max(SHOWN, *loud[-1:], 0)
    return first if len(rows) > first + SPARED else len(rows)


def _loud(cell: Any) -> bool:
    if isinstance(cell, Line):
        return any(_loud(value) for value in cell.values)
    return isinstance(cell, Mark) and cell.text.lower() in _LOUD


def _marked(cell: Any, at: int, headings: Sequence[str], row: Sequence[Any]) -> Any:
    """Return a mark for a word of a status, under or beside a heading that says that it is one."""
    if not isinstance(cell, str) or cell.lower() not in MARKED:
        return cell
    beside = at == 1 and isinstance(row[0], str) and row[0].lower() in _STATUS
    return Mark(cell) if beside or headings[at].lower() in _STATUS else cell


def _numeric(cells: Sequence[Any]) -> bool:
    texts = [str(cell) for cell in cells if str(cell) not in _EMPTY]
    return bool(texts) and all(_NUMBER.fullmatch(text) for text in texts)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _cell(cell: Any, right: bool) -> str:
    cell = translate(cell) if isinstance(cell, str) else cell
    size = len(str(cell))
    text = "short" if size <= _SHORT else "mid" if size <= _LONG else "long"
    name = "num" if right else text
    if not isinstance(cell, str):
        drawn = cell._repr_html_()
    elif right:
        drawn = html.escape(cell)
    else:
        drawn = _WORDS.sub(lambda one: _word(one[0]), cell)
    return f"<td{_class(name)}>{drawn}</td>"


def _word(word: str) -> str:
    """Return a word that breaks nowhere, or, if it is long, after its slashes and the like.

    >>> _word("all-reduce"), _word("plain")
    ('<span class="whole">all-reduce</span>', 'plain')
    >>> _word("HCCL_OP_EXPANSION")
    'HCCL_<wbr class="tight">OP_<wbr class="tight">EXPANSION'
    """
    if len(word) <= _TIGHT:
        return _whole(word)
    roomy = len(word) <= (_SHORT if "/" in word else _TOKEN)
    joint = '<wbr class="tight">' if roomy else "<wbr>"
    return joint.join(map(_whole, (_JOINT if roomy else _ANY_JOINT).split(word)))


def _whole(part: str) -> str:
    """Return a text that does not break at its hyphens, unless it is long; an option never does."""
    text, name = html.escape(part), "whole option" if part.startswith("--") else "whole"
    return (
        f'<span class="{name}">{text}</span>' if "-" in part[1:] and len(part) <= _TOKEN else text
    )
