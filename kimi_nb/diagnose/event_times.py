"""Tell when each process first said that something went wrong.

Example::

    when = event_times.timed(candidates)  # comparable texts, one for each
    event_times.begun(candidates, when)[event_times.process(candidates[0])]
"""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb.diagnose import log_lines, matching
from kimi_nb.diagnose.event_roles import Candidate


def timed(found: Sequence[Candidate]) -> list[str]:
    """Return when each event was; one above the first time of its file has that time."""
    when = _later(found, matching.times([one.event.first.time for one in found]))
    first: dict[str, str] = {}
    for one, time in zip(found, when, strict=True):
        file = one.event.first.file
        first[file] = min(first.get(file, time), time)
    return [
        first[one.event.first.file] if not one.event.first.time and not one.death else time
        for one, time in zip(found, when, strict=True)
    ]


def _later(found: Sequence[Candidate], when: Sequence[str]) -> list[str]:
    """Return the times, none of a line without one before that of what stands above it.

    The line before it may have come late: Ray collects what workers repeat.
    """
    out, last = list(when), dict[str, str]()
    for at in sorted(range(len(found)), key=lambda at: found[at].event.first.number):
        line = found[at].event.first
        before = last.get(line.file, "")
        if line.time and not log_lines.stamp(line.whole):
            out[at] = max(when[at], before)
        if line.time:
            last[line.file] = max(out[at], before)
    return out


def begun(found: Sequence[Candidate], when: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Return when each process reported its first error."""
    begun: dict[tuple[str, ...], str] = {}
    for one, time in zip(found, when, strict=True):
        key = process(one)
        begun[key] = min(begun.get(key, time), time)
    return begun


def process(one: Candidate) -> tuple[str, ...]:
    """Return what tells the process of an event from all others."""
    # A library names the host beside the number of the process that it is in.
    said = one.event.said
    number = "" if said.unnamed else said.process.rpartition("|")[2]
    return one.node, one.event.first.file, number
