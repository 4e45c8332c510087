"""One log, read once from its first block to its last.

log = reader.read(source)     # what it tells (log.sight), its bytes (log.size)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from kimi_nb.diagnose import log_lines
from kimi_nb.diagnose import log_sources as files
from kimi_nb.diagnose import prefilter as scan
from kimi_nb.diagnose.log_sources import Source
from kimi_nb.diagnose.log_summary import Sight
from kimi_nb.diagnose.matching import Line

_ENOUGH = 50  # lines looked at in one log, after which one of a kind a block will do
_HEAD = 400  # bytes of a line in which its time stands, colours too
_FAR = 400  # lines in which the time before a line is looked for


@dataclass(frozen=True)
class Read:
    """What a log tells, how many bytes were read, and why it is no log; "" where it is one."""

    source: Source
    sight: Sight
    size: int
    no_log: str = ""


def read(source: Source) -> Read:
    """Read a log to its end; what is none only to its first block. Raises ParameterError."""
    sight = Sight()
    size = number = looked = 0
    time, block = "", b""
    for block in files.blocks(source):
        if not size and (why := files.no_log(block)):
            return Read(source, sight, len(block), why)
        size += len(block)
        number, looked, time = _take(sight, source, block, number, looked, time)
    sight.end(number + (bool(block) and not block.endswith(b"\n")))
    return Read(source, sight, size, "" if size else files.no_log(b""))


def _take(
    sight: Sight, source: Source, block: bytes, number: int, looked: int, time: str
) -> tuple[int, int, str]:
    """Take in a block; (lines so far, lines looked at, time at its end)."""
    done = 0
    for begin, line, among in scan.lines(block, looked > _ENOUGH):
        looked += 1
        number += _ends(block, done, begin)
        done = begin
        text = log_lines.plain(line.decode("utf-8", "replace"))
        sight.take(
            Line(
                source.node, source.rank, source.name, number + 1, text, _time(block, begin, time)
            ),
            among,
        )
    return number + _ends(block, done, len(block)), looked, _time(block, len(block), time)


def _ends(block: bytes, begin: int, end: int) -> int:
    """How many lines end between two offsets. (bytes.count takes five times as long, which is as
    long as the search for all signatures.)"""
    return int(
        numpy.count_nonzero(numpy.frombuffer(block, numpy.uint8, end - begin, begin) == ord("\n"))
    )


def _time(block: bytes, begin: int, before: str) -> str:
    """The time of the line that begins here, or of the nearest before it that has one."""
    end = block.find(b"\n", begin)
    end = len(block) if end < 0 else end
    for _ in range(_FAR):
        if begin < end:
            head = block[begin : min(end, begin + _HEAD)].decode("utf-8", "replace")
            found = log_lines.stamp(log_lines.plain(head))
            if found:
                return found
        if begin <= 0:
            break
        end = begin - 1
        begin = block.rfind(b"\n", 0, end) + 1
    return before
