"""Read one log from beginning to end, once."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_nb.diagnose import log_lines, log_sources, prefilter
from kimi_nb.diagnose.log_sources import Source
from kimi_nb.diagnose.log_summary import Sight
from kimi_nb.diagnose.matching import Line

try:
    import numpy
except ModuleNotFoundError:  # an installation without extras
    numpy = None  # type: ignore[assignment]

_ENOUGH = 50  # lines examined in a log; after that one line per pattern and block is enough
_HEAD = 400  # bytes at the start of a line that contain its time, colours included
_FAR = 400  # lines to go back in search of a time


@dataclass(frozen=True)
class Read:
    """What a log tells.

    Attributes:
        source: The log.
        sight: What it tells.
        size: How many bytes were read.
        no_log: Why it is not a log, or "" if it is one.
    """

    source: Source
    sight: Sight
    size: int
    no_log: str = ""


def read(source: Source) -> Read:
    """Read a log to its end, or only the first block of a file that is not a log.

    Raises ParameterError if the file cannot be read.
    """
    sight = Sight()
    size = number = looked = 0
    time, block = "", b""
    for block in log_sources.blocks(source):
        if not size and (why := log_sources.no_log(block)):
            return Read(source, sight, len(block), why)
        size += len(block)
        number, looked, time = _take(sight, source, block, number, looked, time)
    sight.end(number + (bool(block) and not block.endswith(b"\n")))
    return Read(source, sight, size, "" if size else log_sources.no_log(b""))


def _take(
    sight: Sight, source: Source, block: bytes, number: int, looked: int, time: str
) -> tuple[int, int, str]:
    """Process a block; return (lines so far, lines examined so far, time at its end)."""
    done = 0
    for begin, line, among in prefilter.lines(block, looked > _ENOUGH):
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
    """Return how many lines end between two offsets.

    bytes.count would take five times as long, as long as the search for all signatures.
    """
    if numpy is None:
        return block.count(b"\n", begin, end)
    return int(
        numpy.count_nonzero(numpy.frombuffer(block, numpy.uint8, end - begin, begin) == ord("\n"))
    )


def _time(block: bytes, begin: int, before: str) -> str:
    """Return the time of the line that begins here, or of the nearest line before that has one."""
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
