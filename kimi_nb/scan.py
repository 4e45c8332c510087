"""The few lines of a log that are worth a look, found at the speed of memory.

    for at, line in scan.lines(text):      # bytes of whole lines: offset, line
        ...

All patterns of data/signatures.yaml are searched at once by Hyperscan (on aarch64 Vectorscan), and
with them the words by which errors are told. What it finds is looked at again, line by line, by
`matches`: here a line too many does no harm, one too few does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kimi_nb import signatures

if TYPE_CHECKING:
    import hyperscan

_GROUP = re.compile(r"\(\?P<\w+>")
_BEGIN = re.compile(r"(?<![\[\\])\^")
ERRORS = ("ERROR", "Traceback", "(?:Error|Exception):", r"^\w*(?:Error|Exception)\b")
SERVES = "Application startup complete"
STOPS = re.compile(r"\[shutdown\]|Shutting down FastAPI HTTP server")
# Colours that stand between the start of a line and its first word.
_START = r"^(?:\x1b\[[0-9;?]*[A-Za-z])*"


def _end(number: int, begin: int, end: int, flags: int, ends: Any) -> None:
    ends.append(end)


def lines(block: bytes, brief: bool = False) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of each line of a block that may tell of something, in their order.
    ``brief`` gives for each pattern the first one only: for logs that say the same for ever."""
    ends: list[int] = []
    _database(brief).scan(block, match_event_handler=_end, context=ends)
    done = 0
    for end in sorted(ends):
        if end > done:
            begin = block.rfind(b"\n", 0, end - 1) + 1
            done = block.find(b"\n", end - 1)
            done = len(block) if done < 0 else done + 1
            yield begin, block[begin:done]


def numbers(texts: Sequence[str]) -> Iterator[int]:
    """Which of some lines may tell of something, in their order."""
    block = "\n".join(text.replace("\n", " ") for text in texts).encode(errors="replace")
    number, before = 0, 0
    for begin, _ in lines(block):
        number += block.count(b"\n", before, begin)
        before = begin
        yield number


@functools.cache
def _database(brief: bool) -> hyperscan.Database:
    import hyperscan

    known = [_GROUP.sub("(?:", entry.pattern.pattern) for entry in signatures.of_logs()
             if entry.pattern]
    words = [_BEGIN.sub(lambda _: _START, one).encode()
             for one in (*known, *ERRORS, SERVES, STOPS.pattern)]
    flag = hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_SINGLEMATCH if brief else 0)
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=words, ids=list(range(len(words))), elements=len(words),
                     flags=[flag] * len(words))
    return database
