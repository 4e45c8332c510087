"""Whose fault it is: the node and the rank behind a line that a signature knows.

    blame.of(match, engines, when="at start")     # Blame(node="a3-3", rank=31, ...)

Without engines (nothing is known of the plan) it is who says the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kimi_nb.diagnose import log_lines
from kimi_nb.diagnose.matching import Line, Match
from kimi_nb.plan.spec import Engine

Engines = Sequence[Engine]
SERVING = ("under load", "while serving")
_OF_NODE = (
    "wrong-image-tag",
    "host-tuning-refused",
    "node-unreachable",
    "job-time-limit",
    "job-node-failure",
    "job-preempted",
    "job-out-of-memory",
    "job-cancelled",
)


@dataclass(frozen=True)
class Blame:
    """The guilty node and rank (None: the node as a whole), the kind of fault, the cause in a
    sentence."""

    kind: str
    node: str
    rank: int | None
    cause: str


def of(match: Match, engines: Engines, when: str) -> Blame:
    """Who is to blame for a line. ``when`` says what went on: "at start", "at load",
    "under load", "while serving"."""
    signature, found, line = match.signature, dict(match.found), match.line
    node, rank = line.node, _rank_of(match)
    kind = signature.kind
    if kind == "rank-died":
        kind = f"rank-dies-{'while-serving' if when in SERVING else 'at-start'}"
    elif kind == "out-of-memory":
        kind = f"out-of-memory-{'under' if when in SERVING else 'at'}-load"
    if signature.remote:
        engine = _at_kv_port(engines, found["host"], int(found["port"]))
        if engine is not None:
            node, rank = engine.node, engine.rank + _offset(engine, int(found["port"]))
    elif "missing" in found:
        found["missing"] = found["missing"].strip(" ,")
        engine, rank = _absent(engines, line, int(found["missing"].split(",")[0]))
        node = engine.node if engine else node
    elif kind == "device-twice":
        rank = _intruder(engines, match, rank)
    elif "rank" in found and signature.id != "rank-died":
        engine = _of_group(engines, line, int(found["rank"]))
        if engine is not None:
            node, rank = engine.node, _whole_rank(engine, int(found["rank"]))
    if rank is None:
        rank = only(engines, node, kind)
    if kind.startswith("out-of-memory"):
        when = "under load" if when in SERVING else "at load"
    cause = signature.cause.format_map(_Words(when=when, **found))
    return Blame(kind, node, rank, " ".join(cause.split()).rstrip(" :"))


class _Words(dict[str, object]):
    """What a sentence names and a pattern has not found is left out."""

    def __missing__(self, name: str) -> str:
        return ""


def _rank_of(match: Match) -> int | None:
    said = log_lines.rank_of(match.line.text)
    if said is not None:
        return said
    if match.line.rank is not None:
        return match.line.rank
    rank = match.found.get("rank")
    return int(rank) if rank is not None and match.signature.id == "rank-died" else None


def only(engines: Engines, node: str, kind: str) -> int | None:
    """The first rank of a node that runs one engine; None where the node itself is to blame."""
    mine = [engine for engine in engines if engine.node == node]
    return mine[0].rank if len(mine) == 1 and kind not in _OF_NODE else None


def _engine(engines: Engines, node: str, rank: int | None) -> Engine | None:
    mine = [engine for engine in engines if engine.node == node]
    for engine in mine:
        if rank is not None and engine.rank <= rank < engine.rank + engine.ranks:
            return engine
    return mine[0] if mine else None


def _of_group(engines: Engines, line: Line, rank: int) -> Engine | None:
    """The engine that holds a rank of the group of a log's engine."""
    mine = _engine(engines, line.node, line.rank)
    if mine is None:
        return None
    group = [engine for engine in engines if (engine.role, engine.group) == (mine.role, mine.group)]
    if len(group) > 1 and len({engine.rank for engine in group}) == 1:
        return group[rank] if rank < len(group) else None  # nodes of one tensor parallel engine
    return next(
        (engine for engine in group if engine.rank <= rank < engine.rank + engine.ranks), None
    )


def _whole_rank(engine: Engine, rank: int) -> int:
    """The data parallel rank of an engine for a number in its group: a node of a tensor parallel
    engine over nodes is no rank of its own."""
    return engine.rank if engine.ranks == 1 and engine.tp_size > len(engine.devices) else rank


def _absent(engines: Engines, line: Line, rank: int) -> tuple[Engine | None, int]:
    engine = _of_group(engines, line, rank)
    return engine, rank if engine is None else _whole_rank(engine, rank)


def _at_kv_port(engines: Engines, host: str, port: int) -> Engine | None:
    """The engine whose KV cache connector listens at an address and port."""
    for engine in engines:
        first = engine.kv_port if engine.kv_port is not None else engine.side_channel_port
        wide = engine.ranks * (engine.tp_size if engine.kv_port is not None else 1)
        if engine.address == host and first is not None and first <= port < first + wide:
            return engine
    return None


def _offset(engine: Engine, port: int) -> int:
    first = engine.kv_port if engine.kv_port is not None else engine.side_channel_port
    step = engine.tp_size if engine.kv_port is not None else 1
    return (port - (first or 0)) // step


def _intruder(engines: Engines, match: Match, rank: int | None) -> int | None:
    """Of two ranks at one device the one that the plan gave another: the second to come finds
    it full, whichever that is."""
    device = int(match.found["device"])
    mine = _engine(engines, match.line.node, rank)
    holder = re.search(r"held by rank (\d+)", match.line.text)
    if mine is not None and device in mine.devices and holder:
        return int(holder[1])
    return rank
