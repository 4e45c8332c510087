r"""Learn what some program puts before every line of a log, whatever program it is.

>>> lines = [
...     f"12:00:0{at} |vllm| (EngineCore pid=7) INFO 11-22 05:49:0{at} [a.py:7] up"
...     for at in range(3)
... ]
>>> bare("12:00:09 |vllm| ValueError: no", of(lines))
'ValueError: no'

`line_forms` knows what is known of containers, pods and launchers; here the lines themselves tell it:
all begin in the same way, whatever their times, and behind it some line begins as those of engines do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from kimi_nb.diagnose.line_forms import BEHIND, NATIVE, SPEAKERS, WRAPPERS

LINES = 60  # at the beginning of a log that are looked at
_FEW, _SHARE = 3, 0.9  # lines that there must be, and the part of them that begins so
_REACH = 120  # characters within which it ends
_NODES = tuple(one for one in WRAPPERS if "node" in one.groupindex or "task" in one.groupindex)
# What differs from line to line: times, and levels.
_TIME = (
    r"(?:(?:[A-Z][a-z]{2} +\d{1,2}|\d{4}[-/]\d\d[-/]\d\d|\d\d[-/]\d\d(?:/\d{4})?)[T -]?)?"
    r"\d\d:\d\d:\d\d(?:[.,:]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b1[5-9]\d{8}(?:\d{3}){0,3}\b"  # seconds of the epoch, or parts of them
)
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_VARIES = re.compile(rf"(?P<time>{_TIME})|(?P<level>\b{_LEVEL}\b)|(?P<number>\d+)|(?P<space>\s+)")
_FORMS = {"time": f"(?:{_TIME})", "level": _LEVEL, "number": r"(\d+)", "space": r"\s+"}
_END = re.compile(r"(?<=[\s:|>\])])(?=\S)|(?<=[\s|>\]])")  # where it may end
# Programs whose lines begin as no others do.
_STRICT = (
    *("cann", "torch_npu", "mindie", "nccl", "torch", "glog", "ucx", "mpi", "ray", "tensorrt"),
    "rust",
)
_NATIVE = tuple(pattern for name, pattern in NATIVE if name in _STRICT)
_PASTED = re.compile(r"[ \t]+|(?:> ?)+")
# How a traceback begins and goes on, where no line of an engine is seen.
_TRACED = re.compile(r"Traceback \(most recent call last\)|  File \"[^\"]+\", line \d")


def of(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Return the form of what stands before the lines of a log, or None if nothing does."""
    told = [line for line in lines[:LINES] if line.strip()]
    known = any(one.match(line) for one in (BEHIND, *SPEAKERS, *_NATIVE) for line in told[:_FEW])
    for begins in (BEHIND, *_NATIVE, _TRACED) if not known and len(told) >= _FEW else ():
        for line in told:
            # What names a node is known, and is no part of what all lines share.
            if not any(one.match(line) for one in _NODES) and (
                found := _before(line, begins, told)
            ):
                return found
    return _pasted(told) if len(told) > 1 else None


def bare(line: str, wrapper: re.Pattern[str] | None) -> str:
    """Return a line without what stands before it."""
    found = wrapper.match(line) if wrapper is not None else None
    return line[found.end() :] if found is not None else line


def _pasted(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Return what stands before all lines of a text that was pasted as code, or as a quotation."""
    ends = zip(min(lines), max(lines), strict=False)
    shared = "".join(one for one, _ in itertools.takewhile(lambda two: two[0] == two[1], ends))
    found = _PASTED.match(shared)
    return re.compile(re.escape(found[0])) if found is not None else None


def _before(line: str, begins: re.Pattern[str], lines: Sequence[str]) -> re.Pattern[str] | None:
    """Return the form of what stands before the known beginning of a line, if others have it too."""
    for end in _ends(line):
        if begins.match(line, end):
            form = re.compile("".join(_parts(line[:end])))
            found = [one for other in lines if (one := form.match(other))]
            alike = len(found) >= _SHARE * len(lines)
            return form if alike and _of_one(found) and _balanced(line[:end]) else None
    return None


def _ends(line: str) -> Iterator[int]:
    return (found.start() for found in _END.finditer(line, 1, _REACH))


def _parts(before: str) -> Iterator[str]:
    """Yield what stands before a line as regular expressions."""
    at = 0
    for found in _VARIES.finditer(before):
        yield re.escape(before[at : found.start()])
        # The indent of what is said begins behind the last space.
        last = found["space"] and found.end() == len(before)
        yield re.escape(found[0]) if last else _FORMS[str(found.lastgroup)]
        at = found.end()
    yield re.escape(before[at:])


def _of_one(found: Sequence[re.Match[str]]) -> bool:
    """Return whether all numbers but times are the same, or count the lines: others name a process."""
    columns = zip(*(one.groups() for one in found), strict=True)
    return all(_counts([int(one) for one in column]) for column in columns)


def _counts(numbers: Sequence[int]) -> bool:
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    return steps == {0} or min(steps) > 0


def _balanced(text: str) -> bool:
    return all(text.count(opens) == text.count(ends) for opens, ends in ("()", "[]"))
