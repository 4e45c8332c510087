r"""Find the comments that ignore a rule, and the lines for which each one speaks.

>>> from kimi_nb.check.reading import ignores, syntax
>>> text = "# kimi-nb: ignore[security/open-api] behind a firewall\nvllm serve m"
>>> one = ignores.of_script(syntax.tree(text).root_node, "run.sh", 1)[0]
>>> one.rules, one.reason, one.lines
(('security/open-api',), 'behind a firewall', (range(2, 3),))

Such a comment speaks for the command, or the block of YAML, that it stands behind or above.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from kimi_nb.check.reading import syntax
from kimi_nb.check.view.deployment import Ignore
from kimi_nb.check.view.engine_view import Spot

MARK = "kimi-nb:"
MOST = 1000  # comments of one text; what further ones would ignore is told
_COMMENT = re.compile(rf"(?:^|(?<=\s))#+\s*{MARK}\s*(.*)$")
_ASKED = re.compile(r"ignore\s*\[([^\]]*)\]\s*(.*)")
# What holds commands and is none itself; all other statements are one command each.
_HOLDERS = {
    "program", "ERROR", "if_statement", "elif_clause", "else_clause", "while_statement",
    "for_statement", "c_style_for_statement", "do_group", "case_statement", "case_item",
    "function_definition", "compound_statement", "subshell",
}  # fmt: skip


def of_script(root: Any, file: str, first: int) -> list[Ignore]:
    """Return the ignoring comments of a script, whose first line is line ``first`` of the file."""
    comments = [
        (node.start_point[0], match[1])
        for node in syntax.nodes(root, "comment")
        if (match := _COMMENT.match(syntax.text_of(node)))
    ][:MOST]
    spans = list(_commands(root)) if comments else []
    starts = [span.start for span in spans]
    out = []
    for row, said in comments:
        below = bisect.bisect_right(starts, row)
        behind = below
        while behind and row in spans[behind - 1]:
            behind -= 1
        rows = spans[behind:below] or spans[below : below + 1]
        out.append(_ignore(said, file, first, row, rows))
    return out


def of_lines(text: str, file: str, first: int) -> list[Ignore]:
    """Return the ignoring comments of YAML or a Dockerfile, which begins at line ``first``."""
    lines = text.splitlines()
    found = [(row, match) for row, line in enumerate(lines) if (match := _COMMENT.search(line))]
    out = []
    below = 0  # the next line that holds more than a comment
    for row, match in found[:MOST]:
        if lines[row][: match.start()].strip():
            begin = row
            while begin and lines[begin - 1].endswith("\\"):
                begin -= 1
            rows = [range(begin, _end(lines, row))]
        else:
            below = max(below, row + 1)
            while below < len(lines) and not _text(lines[below]):
                below += 1
            rows = [range(below, _end(lines, below))] if below < len(lines) else []
        out.append(_ignore(match[1], file, first, row, rows))
    return out


def merged(every: Iterable[Ignore]) -> tuple[Ignore, ...]:
    """Return each comment once: a script inside YAML is read as both."""
    out: dict[tuple[str, int], Ignore] = {}
    for one in every:
        key = (one.spot.file, one.spot.line)
        out[key] = replace(one, lines=(*one.lines, *out[key].lines)) if key in out else one
    return tuple(out.values())


def _ignore(said: str, file: str, first: int, row: int, rows: Iterable[range]) -> Ignore:
    line = first + row
    match = _ASKED.fullmatch(said.strip())
    names = [name.strip() for name in match[1].split(",")] if match else []
    return Ignore(
        Spot(f"{file}:{line}", file, line),
        tuple(dict.fromkeys(name for name in names if name)),
        match[2].strip() if match else "",
        tuple(range(first + span.start, first + span.stop) for span in rows),
    )


def _commands(root: Any) -> Iterator[range]:
    """Yield the rows of each command, in the order of the text."""
    ahead = [root]
    while ahead:
        node = ahead.pop()
        if node.type in _HOLDERS:
            ahead += reversed(node.named_children)
        elif node.type != "comment":
            row, column = node.end_point
            yield range(node.start_point[0], max(row + (column > 0), node.start_point[0] + 1))


def _end(lines: list[str], row: int) -> int:
    """Return the row behind a row, those that it continues on, and those that belong to it."""
    depth, item = _depth(lines[row]), _text(lines[row]).startswith("-")
    for at in range(row + 1, len(lines)):
        text = _text(lines[at])
        continued = lines[at - 1].endswith("\\")
        # The items of a list may stand as far left as its key.
        inside = _depth(lines[at]) > depth or (
            _depth(lines[at]) == depth and text.startswith("- ") and not item
        )
        if text and not continued and not inside:
            return at
    return len(lines)


def _text(line: str) -> str:
    """Return a line without its comment."""
    text = line.strip()
    return "" if text.startswith("#") else text


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
