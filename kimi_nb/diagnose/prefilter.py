"""Select the few lines of a log that are worth examining, at the speed of memory.

Hyperscan (on aarch64 Vectorscan) searches for all patterns of data/diagnose/signatures.yaml at
once, and for the words that announce errors. `matching` then examines each selected line, so one
line too many does no harm, but a missed line does. Example::

    for offset, line, known in prefilter.lines(block):  # bytes of whole lines
        ...
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kimi_nb.diagnose import gravity, log_sections, process_ranks, signatures

if TYPE_CHECKING:
    import hyperscan

Known = Collection[int]  # indices of signatures
_GROUP = re.compile(r"\(\?P<\w+>")
# What may stand at the start of a line: where a pattern is only looked for it is not needed, and slow.
_OPTIONAL = re.compile(r"^\^(?:\(\?:[^()]*\)\?)+")
_BEGIN = re.compile(r"(?<![\[\\])\^")
# Repeated characters at the start: of a pattern that is looked for anywhere one is enough.
_REPEATED = re.compile(r"^(\\[SwW]|\[[^]]+\])\+")
ERRORS: tuple[str, ...] = (
    "ERROR",
    "Traceback",
    "(?:Error|Exception):",
    r"^\w*(?:Error|Exception)\b",
    # Programs that are not written in Python: glog and torch, CANN, NCCL, UCX, Go, Rust, C++.
    r"\b[EF](?:20\d\d)?[01]\d[0-3]\d \d\d:",
    r"\[[EF](?:\d{3,4} \d\d:| \w+\.cpp:)",
    r"\[error\]|\[err\]|\[E\] |level=(?:error|fatal)|error: Detected|panicked at|^panic: |FATAL|CRITICAL",
    r"\"(?:log\.)?(?:level(?:name)?|severity|lvl)\": ?\"(?:[Ee]rror|[Ff]atal|[Cc]rit(?:ical)?|d?panic)\"",
    r"\d C \d+ \d+\] ",  # Ray's daemons, as they end
    # and where they find no head, or an agent of theirs ends
    r"\d E \d+ \d+\] .*(?:[Ff]ailed to connect|exited immediately)",
    # SGLang writes no level.
    r"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[^]]*\] [A-Z].*(?:failed|[Ee]rror|timed out)",
    r"Exception (?:ignored in|raised in creation task|in [A-Z]\w+:)|--- Logging error ---|Received context async event|Root Cause \(first observed",
    r"\bE[A-Z]\d{4}\b|E[1-9]\d{4}: ",
    "(?:NCCL|RCCL) WARN|UCX Fatal|Too many open files",
    r"^(?:slurmstepd|srun|sbatch|salloc)(?:-[\w.-]{1,80})?: (?:error|fatal): ",
    r"[Ee]rror code(?: is|:)|errorCode|DeepEP [a-z]+ |[Ww]atchdog timeout",
    # How processes end.
    r"[Oo]ut [Oo]f [Mm]emory|oom[-_]kill|memory pressure|[Ss]egmentation fault",
    r"terminate called|A worker died|Xid|Resource temporarily unavailable",
    r"[Ee]xit ?[cC]ode:? *-?[1-9]|is dead|marked dead|\bsignal (?:[1-9]|SIG)",
)
# What programs without levels say, wherever it stands: what comes before is not known here.
ERRORS += tuple(
    _REPEATED.sub(r"\1", one.replace("|^", "|").removeprefix("^")).removesuffix(".*: ")
    for part in ("broken", "complaints")
    for one in gravity.words(part)
)
RANKS = (
    *process_ranks.TOLD,
    process_ranks.TITLED.pattern,
    process_ranks.ACTOR.pattern,
    *log_sections.HEADS,
)
SERVES = "Application startup complete"
STOPS = re.compile(
    r"\[shutdown\]|Shutting down Ray distributed executor|Shutting down FastAPI HTTP server|received: stopping all ranks|"
    r"kimi-nb down: job \d+|\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*"
)
# Colours between the start of a line and its first word.
_START = r"^(?:\x1b\[[0-9;?]*[A-Za-z])*"


def lines(block: bytes, brief: bool = False) -> Iterator[tuple[int, bytes, Known]]:
    """Yield each line of a block that may indicate something, in order.

    The results are (offset, line, indices into `signatures.of_logs` that may match). With ``brief``
    only the first line for each pattern is returned, for logs that repeat themselves endlessly.
    """
    ends = _found(block, brief)
    at = 0
    while at < len(ends):
        last = ends[at][0] - 1  # the last byte of the match, which may be the line break
        begin = block.rfind(b"\n", 0, last) + 1
        after = block.find(b"\n", last) + 1 or len(block)
        known = set()
        while at < len(ends) and ends[at][0] <= after:
            known.add(ends[at][1])
            at += 1
        line = block[begin:after]
        yield begin, line, {number for _, number in _found(line)} if brief else known


def _found(block: bytes, brief: bool = False) -> list[tuple[int, int]]:
    """Return (end, pattern) of all matches, in order."""
    ends: list[tuple[int, int]] = []
    _database(brief).scan(block, match_event_handler=_note, context=ends, scratch=_scratch(brief))
    return sorted(ends)


_mine = threading.local()


def _scratch(brief: bool) -> hyperscan.Scratch:
    """Return Hyperscan's working memory, of which each thread needs its own."""
    import hyperscan  # start-up: only when logs are read

    name = f"brief_{brief}"
    if not hasattr(_mine, name):
        setattr(_mine, name, hyperscan.Scratch(_database(brief)))
    return getattr(_mine, name)


def _note(number: int, begin: int, end: int, flags: int, ends: Any) -> None:
    ends.append((end, number))


def numbers(texts: Sequence[str]) -> Iterator[tuple[int, Known]]:
    """Yield (index, signatures that may match) of the lines that may indicate something."""
    block = "\n".join(text.replace("\n", " ") for text in texts).encode(errors="replace")
    number, before = 0, 0
    for begin, _, known in lines(block):
        number += block.count(b"\n", before, begin)
        before = begin
        yield number, known


def only_ranks(known: Known) -> bool:
    """Return whether a line tells at most the rank of its process."""
    return min(known, default=0) >= _first_of_ranks()


def only_stops(known: Known) -> bool:
    """Return whether a line tells at most that a program was told to stop."""
    return min(known, default=0) == _first_of_ranks() - 1 == max(known)


@functools.cache
def _first_of_ranks() -> int:
    others = sum(1 for entry in signatures.of_logs() if entry.pattern)
    return others + len((*ERRORS, SERVES, STOPS.pattern))


def _unnamed(pattern: str) -> str:
    return _OPTIONAL.sub("", _GROUP.sub("(?:", pattern))


def prepare() -> None:
    """Begin to compile the patterns, beside whatever else a program has to load."""
    threading.Thread(target=_prepared, name="patterns").start()


def _prepared() -> None:
    with contextlib.suppress(ModuleNotFoundError):  # whoever reads a log says so
        _database(False)


_compiling = threading.Lock()


def _database(brief: bool) -> hyperscan.Database:
    with _compiling:  # all threads that read a log ask for it at once
        return _compiled(brief)


@functools.cache
def _compiled(brief: bool) -> hyperscan.Database:
    import hyperscan  # start-up: only when logs are read

    known = [_unnamed(entry.pattern.pattern) for entry in signatures.of_logs() if entry.pattern]
    words = [
        _BEGIN.sub(lambda _: _START, one).encode()
        for one in (*known, *ERRORS, SERVES, STOPS.pattern, *map(_unnamed, RANKS))
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
