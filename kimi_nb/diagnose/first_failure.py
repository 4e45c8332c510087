"""Find out from the logs of all ranks which one failed first, and why.

Example::

    first_failure.of_logs(logs, plan, when="at start")  # Diagnosis(node="a3-3", rank=31, ...)

The patterns are data (data/diagnose/signatures.yaml). A line that follows from the failure of
another rank is a cascade, and is never reported as the cause if another cause is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb.core import errors
from kimi_nb.diagnose import (
    attribution,
    explanation,
    log_lines,
    log_summary,
    matching,
    prefilter,
)
from kimi_nb.diagnose.event_roles import Candidate
from kimi_nb.diagnose.log_summary import Sight
from kimi_nb.diagnose.matching import Line, Match
from kimi_nb.plan.spec import Plan

_LONGEST = 500  # characters of a line that are shown
_END = 100  # of which so many at its end, where an exception says what it is
_KEY = 40  # characters by which that is found
_SAID = 1000  # characters of what a node or a service said


@dataclass(frozen=True)
class Log:
    """The lines of one file, written by a node's script (rank None) or by one of its ranks."""

    node: str
    rank: int | None
    file: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Diagnosis:
    """The first failure of a deployment.

    Attributes:
        kind: The name of the cause.
        node: The node at fault.
        rank: The rank at fault, or None for the node, or the front door, as a whole.
        cause: The cause, as a sentence.
        evidence: The file and the line that show it.
        help: What to do about it.
    """

    kind: str
    node: str
    rank: int | None
    cause: str
    evidence: str
    help: str

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain values."""
        return asdict(self)

    @property
    def short(self) -> str:
        """Where and why, on one line."""
        where = self.node + ("" if self.rank is None else f", rank {self.rank}")
        return f"{where}: {errors.short(self.cause, _SAID)}"

    def __str__(self) -> str:
        seen, way_out = errors.short(self.evidence, _SAID), errors.short(self.help, 2 * _SAID)
        return f"{self.short}.\n  seen: {seen}\n  next: {way_out}"


@dataclass(frozen=True)
class Event:
    """One sign of failure on one rank.

    Attributes:
        time: The log's own time, "MM-DD HH:MM:SS", or "" if it has none.
        cascade: Whether it follows from the failure of another rank.
    """

    time: str
    node: str
    rank: int | None
    kind: str
    cause: str
    cascade: bool
    line: str


def of_logs(logs: Sequence[Log], plan: Plan, when: str) -> Diagnosis | None:
    """Return the first cause in the logs of a deployment, or None if they show none.

    ``when`` is the phase of the deployment: "at start", "at load", "under load" or "while serving".
    """
    ranks = [log.rank for log in logs if log.rank is not None]
    guilty = log_summary.first(log_summary.ordered(_look(logs)), ranks)
    if guilty is None:
        return None
    if guilty.known is None or guilty.accused is not None:
        return _unknown(guilty, logs, plan)
    return _known(guilty.known, plan, when)


def causes(logs: Sequence[Log], plan: Plan, when: str) -> tuple[Diagnosis, ...]:
    """Return the cause of every rank that shows one of its own, the first failure first.

    Consequences of other ranks' failures are left out.
    """
    out: dict[tuple[str, int | None], Diagnosis] = {}
    for match in matching.ordered(one for each in _look(logs) for one in each.matches):
        if not (
            match.signature.cascade or match.signature.waits or match.signature.id == "rank-died"
        ):
            one = _known(match, plan, when)
            out.setdefault((one.node, one.rank), one)
    return tuple(out.values())


def timeline(logs: Sequence[Log], plan: Plan, when: str) -> tuple[Event, ...]:
    """Return the signs of failure of every rank.

    The first cause comes first, then causes and consequences in the order of their times.
    """
    out: dict[tuple[str, int | None, str], Event] = {}
    for match in matching.ordered(one for each in _look(logs) for one in each.matches):
        one = _known(match, plan, when)
        out.setdefault(
            (one.node, one.rank, match.signature.id),
            Event(
                match.line.time,
                one.node,
                one.rank,
                one.kind,
                one.cause,
                match.signature.cascade,
                one.evidence,
            ),
        )
    events = list(out.values())
    order = matching.times([event.time for event in events[1:]])
    later = sorted(zip(order, range(len(order)), events[1:], strict=True))
    return (*events[:1], *(event for _, _, event in later))


def error_line(line: str) -> bool:
    """Return whether a line of a log reports an error."""
    return log_lines.tells_error(line)


def _look(logs: Sequence[Log]) -> list[Sight]:
    return [_sight(log) for log in logs]


def _sight(log: Log) -> Sight:
    sight = Sight()
    told = 0
    for at, among in prefilter.numbers(log.lines):
        _follow(sight, log, range(told, at))
        sight.take(_line(log, at), among)
        told = at + 1
    _follow(sight, log, range(told, len(log.lines)))
    sight.end(len(log.lines))
    return sight


def _follow(sight: Sight, log: Log, numbers: range) -> None:
    for at in numbers:
        if not sight.open:
            return
        sight.follow(_line(log, at))


def _line(log: Log, at: int) -> Line:
    text = log_lines.plain(log.lines[at])
    return Line(log.node, log.rank, log.file, at + 1, text, _time(log.lines, at))


def _time(lines: Sequence[str], at: int) -> str:
    """Return the time of a line, or of the nearest line before it that has one."""
    return next(filter(None, (log_lines.stamp(lines[one]) for one in range(at, -1, -1))), "")


def _known(match: Match, plan: Plan, when: str) -> Diagnosis:
    found = attribution.of(match, plan.engines, when)
    return Diagnosis(
        found.kind,
        found.node,
        found.rank,
        found.cause,
        f"{match.line.file}: {short(match.line.text)}",
        match.signature.help,
    )


def _unknown(guilty: Candidate, logs: Sequence[Log], plan: Plan) -> Diagnosis:
    line = guilty.line
    node, rank = line.node, guilty.rank
    told = explanation.of(guilty, node)
    cause = told.cause
    if isinstance(guilty.accused, int):
        rank, cause = guilty.accused, explanation.accused(guilty)
        node = next((log.node for log in logs if log.rank == rank), node)
    if rank is None and isinstance(guilty.event.rank, int):
        rank = guilty.event.rank
    return Diagnosis(
        "unknown",
        node,
        rank if rank is not None else attribution.only(plan.engines, node, ""),
        cause,
        f"{line.file}: {short(line.text, guilty.event.key)}",
        told.help,
    )


def short(line: str, about: str = "") -> str:
    """Return a line, shortened to the length that is shown: its beginning, its end, what it is about."""
    text = line.strip()
    if len(text) <= _LONGEST:
        return text
    begin, end = text[: _LONGEST - _END], text[-_END:]
    at = text.find(about[:_KEY]) if about else -1
    if at < 0 or about[:_KEY] in begin or about[:_KEY] in end:
        return f"{begin} ... {end}"
    return f"{text[:_END]} ... {text[max(0, at - _KEY) : at + _LONGEST - _END - _KEY]} ..."
