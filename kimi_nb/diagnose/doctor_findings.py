"""Find in what the logs tell the first failure, its consequences, and unknown errors.

Example::

    doctor_findings.of([(source, sight)], placed, size)  # a `doctor_report.Report`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kimi_nb.diagnose import (
    attribution,
    explanation,
    first_failure,
    followers,
    line_grammar,
    log_lines,
    log_summary,
    matching,
    stopping,
)
from kimi_nb.diagnose.doctor_report import Finding, Report, Unknown
from kimi_nb.diagnose.event_roles import Candidate
from kimi_nb.diagnose.log_sources import Source
from kimi_nb.diagnose.log_summary import Sight
from kimi_nb.diagnose.matching import Line, Match
from kimi_nb.diagnose.rank_places import Placed


def of(
    seen: Sequence[tuple[Source, Sight]], placed: Placed, size: int, notes: tuple[str, ...] = ()
) -> Report:
    """Return the report on what each log tells."""
    serves = _Serves([sight for _, sight in seen], placed)
    ranks = [source.rank for source, _ in seen if source.rank is not None]
    order = log_summary.ordered((sight for _, sight in seen), deployed=bool(placed.engines))
    guilty = log_summary.first(order, ranks)
    found = _told_once(matching.ordered(one for _, sight in seen for one in sight.matches))
    first = None
    if guilty is not None:
        first = _first(guilty, placed, serves, seen)
        if guilty.match is not None:
            found = [one for one in found if one.key != guilty.match.key]
    known = [_known(one, placed, serves.when(one)) for one in found]
    after = followers.of(order)
    own = [
        not (one.signature.cascade or one.signature.waits or followers.key(one) in after)
        for one in found
    ]
    taken = {(first.node, first.rank, first.signature)} if first else set()
    also = _once([one for one, mine in zip(known, own, strict=True) if mine], taken)
    if first is not None and guilty is not None and len(seen) == 1 and not placed.engines:
        first = _of_its_host(first, guilty)
    return Report(
        first,
        also,
        _once([one for one, mine in zip(known, own, strict=True) if not mine], taken),
        _all_unknown([sight for _, sight in seen], placed),
        len(seen),
        size,
        (*notes, *stopping.notes([sight for _, sight in seen])),
        any(sight.engine for _, sight in seen),
    )


def _of_its_host(first: Finding, guilty: Candidate) -> Finding:
    """Return a finding in the only log there is with the pod or host that its lines name as its node.

    The name of the file is that of none.
    """
    said, remote = guilty.event.said, guilty.event.remote
    named = said.node if not said.process.startswith("|") else ""
    named = named or (remote.split("|")[1] if remote else "")
    return replace(first, node=named) if named and first.node == guilty.node else first


def _told_once(found: Sequence[Match]) -> list[Match]:
    """Return the matches without those that a launcher quotes from the log of a rank."""

    def quote(one: Match) -> tuple[str, str, str]:
        return one.line.node, one.signature.id, one.line.text

    own = {quote(one) for one in found if one.line.rank is not None}
    return [one for one in found if one.line.rank is not None or quote(one) not in own]


class _Serves:
    """Where each log's engine began to answer; later failures are "while serving"."""

    def __init__(self, seen: Sequence[Sight], placed: Placed) -> None:
        self._lines = {one.serves.file: one.serves for one in seen if one.serves}
        answer = {one.node for one in placed.engines if one.http_port is not None}
        # Nodes of which every engine has failed to answer, whatever those of others did.
        self._silent = answer - {one.node for one in self._lines.values()}

    def when(self, match: Match) -> str:
        """Return whether a failure came before or after the engine began to answer.

        If a launcher reports the end of a rank, it counts whether that rank ever answered.
        """
        line = match.line
        mine = self._lines.get(line.file)
        if match.signature.id == "rank-died":
            later = any(
                one.node == line.node and log_summary.rank_of(one) == int(match.found["rank"])
                for one in self._lines.values()
            )
        elif mine is not None:
            later = line.number > mine.number
        elif line.rank is not None and any(one.rank is not None for one in self._lines.values()):
            later = False  # other ranks answered, this one never did
        elif line.node in self._silent:
            later = False
        else:
            times = [one.time for one in self._lines.values() if one.time]
            if line.time and times:
                *times, mine_at = matching.times([*times, line.time])
                later = mine_at >= max(times)
            else:  # nothing tells the order; what SLURM says of a job often has no time
                later = bool(self._lines)
        return "while serving" if later else "at start"


def _once(found: Sequence[Finding], taken: set[tuple[Any, ...]]) -> tuple[Finding, ...]:
    """Return the first of each signature per rank, without those in ``taken``."""
    out = []
    for one in found:
        key = (one.node, one.rank, one.signature)
        if key not in taken:
            taken.add(key)
            out.append(one)
    return tuple(out)


def _known(match: Match, placed: Placed, when: str) -> Finding:
    guilty, signature, line = (
        attribution.of(match, placed.engines, when),
        match.signature,
        match.line,
    )
    own = guilty.node == line.node
    worker = log_lines.parts_of(line.text).get("TP") if own else None
    found = Finding(
        signature.id,
        guilty.kind,
        guilty.cause,
        guilty.node,
        guilty.rank,
        placed.devices(guilty.node, guilty.rank, worker),
        line.file,
        line.number,
        line.time,
        first_failure.short(line.whole),
        signature.help,
        signature.refs,
        signature.see,
    )
    return _named(found, line, placed)


def _who(line: Line, placed: Placed) -> tuple[int | None, tuple[int, ...]]:
    said = log_lines.parts_of(line.text)
    rank = said.get("DP", line.rank)
    if rank is None:
        rank = attribution.only(placed.engines, line.node, "")
    return rank, placed.devices(line.node, rank, said.get("TP"))


def _first(
    guilty: Candidate, placed: Placed, serves: _Serves, seen: Sequence[tuple[Source, Sight]]
) -> Finding:
    """Return the first failure: what its signature knows, and what its own words tell."""
    told = explanation.of(guilty, guilty.node)
    if guilty.known is not None:
        found = _known(guilty.known, placed, serves.when(guilty.known))
    else:
        found = _unknown(guilty, told, placed)
    named = guilty.event.rank if guilty.event.rank is not None else guilty.rank
    # SLURM tells of a whole node, but where srun names the task.
    task = guilty.event.said.grammar == "slurm" and guilty.event.rank is not None
    of_node = found.node != guilty.node or (attribution.of_node(found.kind) and not task)
    if found.rank is not None or not of_node:
        found = replace(found, rank=_name(found.rank, named, guilty.line, placed))
    if guilty.accused is not None:
        node = next(
            (source.node for source, _ in seen if source.rank == guilty.accused), found.node
        )
        line = guilty.line
        found = replace(
            found,
            rank=guilty.accused,
            node=node,
            devices=(),
            cause=explanation.accused(guilty),
            file=line.file,
            line=line.number,
            text=first_failure.short(line.whole),
        )
    return replace(
        found,
        component=told.component,
        confidence=told.confidence,
        exception=told.exception,
        code=told.code,
        means=told.means,
        page=told.page,
        label=guilty.event.label,
    )


def _name(
    rank: int | str | None, named: int | str | None, line: Line, placed: Placed
) -> int | str | None:
    """Return the name of a worker for a rank that is not known, or of which the worker is a part."""
    if named is not None and (rank is None or _may_be_named(rank, line, placed)):
        return named
    return rank


def _may_be_named(rank: int | str | None, line: Line, placed: Placed) -> bool:
    """Return whether a rank is only the data parallel one of the line, of which a worker is a part.

    A plan, and the file of a rank, count data parallel ranks.
    """
    number = log_lines.rank_of(line.text)
    own = (number, line_grammar.of(line.text).rank)
    return not placed.engines and line.rank is None and number is not None and rank in own


def _named(found: Finding, line: Line, placed: Placed) -> Finding:
    """Return a finding with the name of the worker that wrote its line as its rank."""
    said = line_grammar.of(line.text).rank
    if isinstance(said, str) and _may_be_named(found.rank, line, placed):
        return replace(found, rank=said)
    return found


def _unknown(guilty: Candidate, told: explanation.Explanation, placed: Placed) -> Finding:
    line = guilty.line
    return Finding(
        explanation.UNKNOWN,
        explanation.UNKNOWN,
        told.cause,
        line.node,
        *_who(line, placed),
        line.file,
        line.number,
        line.time,
        first_failure.short(line.whole, guilty.event.key),
        told.help,
        (),
        told.see,
    )


def _all_unknown(seen: Sequence[Sight], placed: Placed) -> tuple[Unknown, ...]:
    untold = [mine for one in seen for mine in one.unknown()]
    when = matching.times([mine.lines[0].time for mine in untold])
    order = sorted(range(len(untold)), key=lambda at: (when[at], untold[at].lines[0].rank or 0))
    return tuple(_untold(untold[at], placed) for at in order)


def _untold(mine: log_summary.Untold, placed: Placed) -> Unknown:
    line = mine.lines[0]
    rank, devices = _who(line, placed)
    return Unknown(
        line.node,
        _name(rank, mine.rank, line, placed),
        devices,
        line.file,
        line.number,
        line.time,
        tuple(first_failure.short(one.whole) for one in mine.lines),
    )
