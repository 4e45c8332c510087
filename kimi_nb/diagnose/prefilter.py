"""The few lines of a log that are worth a look, found at the speed of memory.

    for at, line, known in scan.lines(text):      # bytes of whole lines
        ...

All patterns of data/signatures.yaml are searched at once by Hyperscan (on aarch64 Vectorscan), and
with them the words by which errors are told. What it finds is looked at again, line by line, by
`matches`: here a line too many does no harm, one too few does.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kimi_nb.diagnose import signatures

if TYPE_CHECKING:
    import hyperscan

Known = Collection[int]  # indices
_GROUP = re.compile(r"\(\?P<\w+>")
_BEGIN = re.compile(r"(?<![\[\\])\^")
ERRORS = ("ERROR", "Traceback", "(?:Error|Exception):", r"^\w*(?:Error|Exception)\b")
SERVES = "Application startup complete"
STOPS = re.compile(r"\[shutdown\]|Shutting down FastAPI HTTP server")
# Colours that stand between the start of a line and its first word.
_START = r"^(?:\x1b\[[0-9;?]*[A-Za-z])*"


def lines(block: bytes, brief: bool = False) -> Iterator[tuple[int, bytes, Known]]:
    """(offset, line, which of `signatures.of_logs` may know it) of each line of a block that may
    tell of something, in their order. ``brief`` gives for each pattern the first line only, for
    logs that say the same for ever."""
    ends = _found(block, brief)
    at = 0
    while at < len(ends):
        last = ends[at][0] - 1  # of the match; it may be the line's end
        begin = block.rfind(b"\n", 0, last) + 1
        after = block.find(b"\n", last) + 1 or len(block)
        known = set()
        while at < len(ends) and ends[at][0] <= after:
            known.add(ends[at][1])
            at += 1
        line = block[begin:after]
        yield begin, line, {number for _, number in _found(line)} if brief else known


def _found(block: bytes, brief: bool = False) -> list[tuple[int, int]]:
    """(end, pattern) of all matches, in their order."""
    ends: list[tuple[int, int]] = []
    _database(brief).scan(block, match_event_handler=_note, context=ends, scratch=_scratch(brief))
    return sorted(ends)


_mine = threading.local()


def _scratch(brief: bool) -> hyperscan.Scratch:
    """What a search needs to work in: one for each thread."""
    import hyperscan

    name = f"brief_{brief}"
    if not hasattr(_mine, name):
        setattr(_mine, name, hyperscan.Scratch(_database(brief)))
    return getattr(_mine, name)


def _note(number: int, begin: int, end: int, flags: int, ends: Any) -> None:
    ends.append((end, number))


def numbers(texts: Sequence[str]) -> Iterator[tuple[int, Known]]:
    """(index, which signatures may know it) of those of some lines that may tell of something."""
    block = "\n".join(text.replace("\n", " ") for text in texts).encode(errors="replace")
    number, before = 0, 0
    for begin, _, known in lines(block):
        number += block.count(b"\n", before, begin)
        before = begin
        yield number, known


@functools.cache
def _database(brief: bool) -> hyperscan.Database:
    import hyperscan

    known = [
        _GROUP.sub("(?:", entry.pattern.pattern) for entry in signatures.of_logs() if entry.pattern
    ]
    words = [
        _BEGIN.sub(lambda _: _START, one).encode()
        for one in (*known, *ERRORS, SERVES, STOPS.pattern)
    ]
    flag = hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_SINGLEMATCH if brief else 0)
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=words,
        ids=list(range(len(words))),
        elements=len(words),
        flags=[flag] * len(words),
    )
    return database
