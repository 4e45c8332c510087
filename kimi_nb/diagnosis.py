"""Who failed first, and why: from the logs of all ranks, before what followed from it.

    diagnosis.of_logs(logs, plan, when="at start")     # Diagnosis(node="a3-3", rank=31, ...)

What to look for is data (data/signatures.yaml). A line that follows from another rank's failure
is a cascade, and never the cause while another one is known.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb import params
from kimi_nb.plan import Engine, Plan

_CORE = re.compile(r"\(EngineCore_DP(\d+) ")
_ERROR = re.compile(r"\bERROR\b|^\w*(?:Error|Exception)\b|Traceback|: [\w.]*(?:Error|Exception): ")
_EXCEPTION = re.compile(r"\b\w+(?:Error|Exception): ")
_STAMP = re.compile(r" (\d\d-\d\d \d\d:\d\d:\d\d) ")
_NO_TIME = "99"  # after every time
_LONGEST = 300  # characters of a line that is shown


@dataclass(frozen=True)
class Log:
    """The lines of one file: of a node's script (rank None) or of one rank on it."""

    node: str
    rank: int | None
    file: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Diagnosis:
    """The guilty node and rank (None: the node, or the front door, as a whole), the cause in a
    sentence, the line that shows it, the way out. ``kind`` names the cause."""

    kind: str
    node: str
    rank: int | None
    cause: str
    evidence: str
    help: str

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @property
    def short(self) -> str:
        """Who and why, on one line."""
        where = self.node + ("" if self.rank is None else f", rank {self.rank}")
        return f"{where}: {self.cause}"

    def __str__(self) -> str:
        return f"{self.short}.\n  seen: {self.evidence}\n  next: {self.help}"


@dataclass(frozen=True)
class Event:
    """One sign of failure on one rank. ``time`` is the log's own, "MM-DD HH:MM:SS", "" where it
    tells none; ``cascade`` is whether it follows from another rank's failure."""

    time: str
    node: str
    rank: int | None
    kind: str
    cause: str
    cascade: bool
    line: str


@dataclass(frozen=True)
class Signature:
    """One entry of data/signatures.yaml."""

    id: str
    kind: str
    pattern: re.Pattern[str]
    cause: str
    help: str
    cascade: bool
    waits: bool
    remote: bool
    example: str


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """All of them, in the order of the file: of two that match a line the first counts."""
    return tuple(Signature(
        name, item["kind"], re.compile(item["pattern"]), item["cause"], item["help"],
        item.get("cascade", False), item.get("waits", False), item.get("blames") == "remote",
        item["example"]) for name, item in params.data("signatures").items())


@dataclass(frozen=True)
class _Match:
    signature: Signature
    found: dict[str, str]
    log: Log
    number: int
    line: str

    @property
    def order(self) -> tuple[Any, ...]:
        """Causes before cascades, then by time, then where two have the same second: the more
        telling one, and the lower rank."""
        stamp = _STAMP.search(self.line)
        general = self.signature.kind == "rank-died"
        return (self.signature.cascade, self.signature.waits, general,
                stamp[1] if stamp else _before(self.log, self.number),
                self.log.rank is None, self.log.rank or 0, self.number)


def of_logs(logs: Sequence[Log], plan: Plan, when: str) -> Diagnosis | None:
    """The first cause in the logs of a deployment; None where they show none. ``when`` says
    what went on: "at start", "at load", "under load", "while serving"."""
    found = _sorted(logs)
    if found:
        return _diagnosis(found[0], plan, when)
    return _unknown(logs, plan, when)


def causes(logs: Sequence[Log], plan: Plan, when: str) -> tuple[Diagnosis, ...]:
    """The cause of every rank that shows one of its own, first first; what follows from others
    is left out."""
    out: dict[tuple[str, int | None], Diagnosis] = {}
    for match in _sorted(logs):
        if not (match.signature.cascade or match.signature.waits
                or match.signature.id == "rank-died"):
            one = _diagnosis(match, plan, when)
            out.setdefault((one.node, one.rank), one)
    return tuple(out.values())


def timeline(logs: Sequence[Log], plan: Plan, when: str) -> tuple[Event, ...]:
    """What each rank shows of a failure: the first cause first, then causes and what followed in
    the order of their times."""
    out: dict[tuple[str, int | None, str], Event] = {}
    for match in _sorted(logs):
        one, stamp = _diagnosis(match, plan, when), _STAMP.search(match.line)
        time = stamp[1] if stamp else _before(match.log, match.number)
        event = Event("" if time == _NO_TIME else time, one.node, one.rank, one.kind, one.cause,
                      match.signature.cascade, one.evidence)
        out.setdefault((one.node, one.rank, match.signature.id), event)
    events = list(out.values())
    return (*events[:1], *sorted(events[1:], key=lambda event: event.time or _NO_TIME))


def _sorted(logs: Sequence[Log]) -> list[_Match]:
    found = list(_matches(logs))
    # A launcher tells of every rank that ended, also of those that lost another one.
    lost = {(one.log.node, one.log.rank) for one in found if one.signature.cascade}
    return sorted(found, key=lambda match: (
        match.signature.id == "rank-died" and (match.log.node, int(match.found["rank"])) in lost,
        *match.order))


def _matches(logs: Sequence[Log]) -> Iterator[_Match]:
    for log in logs:
        for number, line in enumerate(log.lines):
            for signature in signatures():
                match = signature.pattern.search(line)
                if match:
                    # Who waited once may have gone on since.
                    if not signature.waits or number == len(log.lines) - 1:
                        groups = {name.rstrip("2"): value for name, value in
                                  match.groupdict().items() if value is not None}
                        yield _Match(signature, groups, log, number, line)
                    break


def _before(log: Log, number: int) -> str:
    """The time of the nearest line before one that has none."""
    for line in reversed(log.lines[:number]):
        stamp = _STAMP.search(line)
        if stamp:
            return stamp[1]
    return _NO_TIME


def _diagnosis(match: _Match, plan: Plan, when: str) -> Diagnosis:
    signature, found, log = match.signature, dict(match.found), match.log
    node, rank = log.node, _rank_of(match)
    kind = signature.kind
    if kind == "rank-died":
        kind = f"rank-dies-{'while-serving' if when in _SERVING else 'at-start'}"
    elif kind == "out-of-memory":
        kind = f"out-of-memory-{'under' if when in _SERVING else 'at'}-load"
    if signature.remote:
        engine = _at_kv_port(plan, found["host"], int(found["port"]))
        if engine is not None:
            node, rank = engine.node, engine.rank + _offset(engine, int(found["port"]))
    elif "missing" in found:
        found["missing"] = found["missing"].strip(" ,")
        engine, rank = _absent(plan, log, int(found["missing"].split(",")[0]))
        node = engine.node if engine else node
    elif kind == "device-twice":
        rank = _intruder(plan, match, rank)
    elif "rank" in found and signature.id != "rank-died":
        engine = _of_group(plan, log, int(found["rank"]))
        if engine is not None:
            node, rank = engine.node, _whole_rank(engine, int(found["rank"]))
    if rank is None:
        rank = _only(plan, node, kind)
    if kind.startswith("out-of-memory"):
        when = "under load" if when in _SERVING else "at load"
    words = {"when": when, "key": "", "given": "", **found}
    return Diagnosis(kind, node, rank, signature.cause.format(**words),
                     f"{log.file}: {_short(match.line)}", signature.help)


_SERVING = ("under load", "while serving")
_OF_NODE = ("wrong-image-tag", "host-tuning-refused", "node-unreachable", "job-time-limit",
            "job-node-failure", "job-preempted", "job-out-of-memory", "job-cancelled")


def _rank_of(match: _Match) -> int | None:
    core = _CORE.search(match.line)
    if core:
        return int(core[1])
    if match.log.rank is not None:
        return match.log.rank
    rank = match.found.get("rank")
    return int(rank) if rank is not None and match.signature.id == "rank-died" else None


def _only(plan: Plan, node: str, kind: str) -> int | None:
    """The first rank of a node that runs one engine; None where the node itself is to blame."""
    mine = [engine for engine in plan.engines if engine.node == node]
    return mine[0].rank if len(mine) == 1 and kind not in _OF_NODE else None


def _engine(plan: Plan, node: str, rank: int | None) -> Engine | None:
    mine = [engine for engine in plan.engines if engine.node == node]
    for engine in mine:
        if rank is not None and engine.rank <= rank < engine.rank + engine.ranks:
            return engine
    return mine[0] if mine else None


def _of_group(plan: Plan, log: Log, rank: int) -> Engine | None:
    """The engine that holds a rank of the group of a log's engine."""
    mine = _engine(plan, log.node, log.rank)
    if mine is None:
        return None
    group = [engine for engine in plan.engines
             if (engine.role, engine.group) == (mine.role, mine.group)]
    if len(group) > 1 and len({engine.rank for engine in group}) == 1:
        return group[rank] if rank < len(group) else None  # nodes of one tensor parallel engine
    return next((engine for engine in group
                 if engine.rank <= rank < engine.rank + engine.ranks), None)


def _whole_rank(engine: Engine, rank: int) -> int:
    """The data parallel rank of an engine for a number in its group: a node of a tensor parallel
    engine over nodes is no rank of its own."""
    return engine.rank if engine.ranks == 1 and engine.tp_size > len(engine.devices) else rank


def _absent(plan: Plan, log: Log, rank: int) -> tuple[Engine | None, int]:
    engine = _of_group(plan, log, rank)
    return engine, rank if engine is None else _whole_rank(engine, rank)


def _at_kv_port(plan: Plan, host: str, port: int) -> Engine | None:
    """The engine whose KV cache connector listens at an address and port."""
    for engine in plan.engines:
        first = engine.kv_port if engine.kv_port is not None else engine.side_channel_port
        wide = engine.ranks * (engine.tp_size if engine.kv_port is not None else 1)
        if engine.address == host and first is not None and first <= port < first + wide:
            return engine
    return None


def _offset(engine: Engine, port: int) -> int:
    first = engine.kv_port if engine.kv_port is not None else engine.side_channel_port
    step = engine.tp_size if engine.kv_port is not None else 1
    return (port - (first or 0)) // step


def _intruder(plan: Plan, match: _Match, rank: int | None) -> int | None:
    """Of two ranks at one device the one that the plan gave another: the second to come finds
    it full, whichever that is."""
    device = int(match.found["device"])
    mine = _engine(plan, match.log.node, rank)
    holder = re.search(r"held by rank (\d+)", match.line)
    if mine is not None and device in mine.devices and holder:
        return int(holder[1])
    return rank


def error_line(line: str) -> bool:
    """Whether a line of a log tells of an error."""
    return bool(_ERROR.search(line))


def _unknown(logs: Sequence[Log], plan: Plan, when: str) -> Diagnosis | None:
    """The first error line of the first rank that has one, for what no signature knows."""
    for log in sorted(logs, key=lambda log: (log.rank is None, log.rank or 0)):
        shown = list(filter(error_line, log.lines))
        # The exception says more than the head of its traceback.
        line = next(filter(_EXCEPTION.search, shown), shown[0] if shown else "")
        if line:
            core = _CORE.search(line)
            rank = int(core[1]) if core else log.rank
            return Diagnosis(
                "unknown", log.node, rank if rank is not None else _only(plan, log.node, ""),
                f"failed {when}, in words that no signature knows",
                f"{log.file}: {_short(line)}", f"Read {log.file} from there.")
    return None


def _short(line: str) -> str:
    text = line.strip()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
