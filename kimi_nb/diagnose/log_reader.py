"""Read one log from beginning to end, once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kimi_nb.core.errors import ParameterError
from kimi_nb.diagnose import (
    kubernetes_objects,
    line_grammar,
    line_wrappers,
    log_lines,
    log_sources,
    memory_note,
    prefilter,
    progress,
)
from kimi_nb.diagnose.log_sources import Source
from kimi_nb.diagnose.log_summary import Sight
from kimi_nb.diagnose.matching import Line

try:
    import numpy
except ModuleNotFoundError:  # an installation without extras
    numpy = None  # type: ignore[assignment]

_ENOUGH = 500  # lines examined in a log; after that one line per pattern and block is enough
_HEAD = 400  # bytes at the start of a line that contain its time, colours included
_POD = re.compile(r"\[pod/([\w.-]{1,253})/[\w.-]{1,63}\] ")
_SAMPLE = 1 << 16  # bytes that show whose log it is
_LINES = 400  # and lines
_FAR = 400  # lines to go back in search of a time
# By which words engines and programs around them tell that they serve.
_SERVES = (
    *(b'" 200', b"status=200", b"throughput", b"ready to roll", b"Started HTTPService"),
    *(b"health check ok", b"Router ready", b"Uvicorn running on", b"shutdown complete"),
)


@dataclass(frozen=True)
class Read:
    """What a log tells.

    Attributes:
        source: The log.
        sight: What it tells.
        size: How many bytes were read.
        no_log: Why it is not a log, or "" if it is one.
        cut: Why only its beginning was read, or "".
        memory: The lines that tell what memory an engine took.
    """

    source: Source
    sight: Sight
    size: int
    no_log: str = ""
    cut: str = ""
    memory: tuple[str, ...] = ()


def read(source: Source) -> Read:
    """Read a log to its end, or only the first block of a file that is not a log.

    One that cannot be read to its end does not hide the others.
    """
    sight = Sight()
    size = number = looked = 0
    time, last, why = "", b"", ""
    memory: tuple[str, ...] = ()
    try:
        blocks = log_sources.blocks(source)
        begins = next(blocks, b"")
        if begins and (no := log_sources.no_log(begins, source.name)):
            return Read(source, sight, len(begins), no)
        for block in _in_lines(begins, blocks):
            if not size:
                begun = _beginning(block)
                sight.wrapper = line_wrappers.of(
                    [log_lines.plain(one) for one in begun[: line_wrappers.LINES]]
                )
                sight.engine, sight.program = _whose(begun)
                memory = memory_note.lines_of(block)
            size += len(block)
            if last:
                number, looked, time = _take(sight, source, last, number, looked, time)
                sight.name((begins, last, block))
            last = block
    except ParameterError as error:
        why = str(error).removeprefix(f"{source.name}: ").removesuffix(".")
    # The end of a log tells how it ended: it is read whole, however much was seen before.
    if last:
        number, _, _ = _take(sight, source, last, number, 0, time)
        sight.name((begins, last))
    sight.end(number + (bool(last) and not last.endswith(b"\n")))
    if not size:
        return Read(source, sight, size, why or log_sources.no_log(b""))
    cut = f"{why}; what came before it was judged" if why else ""
    return Read(source, sight, size, cut=cut, memory=memory)


def _in_lines(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a log; what kubectl tells of objects becomes lines."""
    if not kubernetes_objects.holds(first[:_SAMPLE].decode("utf-8", "replace")):
        yield from itertools.chain([first] if first else [], blocks)
        return
    held = [first]
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) > kubernetes_objects.LARGEST:
            yield from held
            yield from blocks
            return
    yield kubernetes_objects.lines(b"".join(held).decode("utf-8", "replace")).encode()


def _beginning(block: bytes) -> list[str]:
    """Return the first lines of a log."""
    return block[:_SAMPLE].decode("utf-8", "replace").splitlines()[:_LINES]


def _whose(lines: Sequence[str]) -> tuple[bool, str]:
    """Return whether a file begins as those of engines and of the programs around them do, and whose.

    The second is "router" where the first program that names itself is one, else "".
    """
    engine = False
    for line in lines:
        said = line_grammar.of(log_lines.plain(line))
        engine = engine or bool(said.grammar or said.speaker)
        if said.speaker:
            return engine, "router" if said.speaker == "router" else ""
    return engine, ""


def _take(
    sight: Sight, source: Source, block: bytes, number: int, looked: int, time: str
) -> tuple[int, int, str]:
    """Process a block; return (lines so far, lines examined so far, time at its end)."""
    first = number
    done = told = 0  # offsets to which lines are counted, and to which they were examined
    brief = sight.brief = looked > _ENOUGH
    for begin, line, among in prefilter.lines(block, brief):
        if sight.stopping and prefilter.only_stops(among):
            continue  # an engine says so dozens of times
        ranked = prefilter.only_ranks(among)
        looked += not ranked
        if not brief:
            done, number = _explain(sight, source, block, (told, begin), (done, number), time)
        if not brief:
            sight.works(block, told, begin)
        number += _ends(block, done, begin)
        done, told = begin, begin + len(line)
        # Where no line has a time, all those before are looked at in vain.
        at_time = "" if ranked else _time(block, begin, time)
        sight.take(_line(sight, source, number + 1, line, at_time), among)
    done, number = _explain(sight, source, block, (told, len(block)), (done, number), time)
    if not brief:
        sight.works(block, told, len(block))
    if sight.serves is None and (at := progress.reply(block)) >= 0:
        raw = block[at:].partition(b"\n")[0]
        at_line = first + _ends(block, 0, at) + 1
        sight.serves = _line(sight, source, at_line, raw, _time(block, at, time))
    if not sight.goes_on and sight.unsure:
        sight.goes_on = any(words in block for words in _SERVES)
    return number + _ends(block, done, len(block)), looked, _time(block, len(block), time)


def _line(sight: Sight, source: Source, number: int, raw: bytes, time: str) -> Line:
    """Return a line; its node is the pod that kubectl logs --prefix, or a command above, names.

    Else it is that of the file.
    """
    text = log_lines.plain(raw.decode("utf-8", "replace"))
    bare = line_wrappers.bare(text, sight.wrapper)
    own = line_grammar.own(bare)
    named = _POD.match(own) if own.startswith("[pod/") else None
    before = text.removesuffix(bare) if own is bare else ""
    # Where not all lines are examined, not all commands are seen.
    section = "" if sight.brief else sight.section
    node = named[1] if named else section or source.node
    return Line(node, source.rank, source.name, number, own, time, before)


def _explain(
    sight: Sight,
    source: Source,
    block: bytes,
    between: tuple[int, int],
    counted: tuple[int, int],
    time: str,
) -> tuple[int, int]:
    """Process the lines that follow an error; return (offset, lines up to it)."""
    at, end = between
    done, number = counted
    while at < end and sight.open:
        after = block.find(b"\n", at) + 1 or len(block)
        number += _ends(block, done, at)
        done = at
        sight.follow(_line(sight, source, number + 1, block[at:after], _time(block, at, time)))
        at = after
    return done, number


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
