"""Attribute a log line that matches a signature to the node and rank at fault.

Without engines (if the plan is not known) the line is attributed to whoever wrote it. Example::

    attribution.of(match, engines, when="at start")  # Blame(node="a3-3", rank=31, ...)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kimi_nb.diagnose import log_lines
from kimi_nb.diagnose.matching import Line, Match
from kimi_nb.plan.spec import EngineSpec

Engines = Sequence[EngineSpec]
_POD = "pod-"  # signatures of what Kubernetes says of a pod as a whole
SERVING = ("under load", "while serving")
_OF_NODE = (
    "wrong-image-tag",
    "host-tuning-refused",
    "node-unreachable",
    "store-master-dies",
    "job-time-limit",
    "job-node-failure",
    "job-preempted",
    "job-out-of-memory",
    "job-cancelled",
)


@dataclass(frozen=True)
class Blame:
    """The node and rank at fault.

    Attributes:
        kind: The kind of failure.
        node: The node at fault.
        rank: The rank at fault, or None for the node as a whole.
        cause: The cause, as a sentence.
    """

    kind: str
    node: str
    rank: int | None
    cause: str


def of(match: Match, engines: Engines, when: str) -> Blame:
    """Return who is at fault for a line.

    ``when`` is the phase of the deployment: "at start", "at load", "under load" or "while serving".
    """
    signature, found, line = match.signature, dict(match.found), match.line
    node, rank = line.node, _rank_of(match)
    kind = signature.kind
    if kind == "rank-died":
        kind = f"rank-dies-{'while-serving' if when in SERVING else 'at-start'}"
    elif kind == "out-of-memory":
        kind = f"out-of-memory-{'under' if when in SERVING else 'at'}-load"
    elif kind == "tensor-shapes" and when in SERVING:
        kind = "first-chat-500"  # it came up, and it is a request that it cannot compute
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
    node = found.get("pod", node)
    if any(engine.node == found.get("node") for engine in engines):
        node = found["node"]
    if rank is None:
        rank = only(engines, node, kind)
    inside = [one for one in engines if one.node == node] if signature.id.startswith(_POD) else []
    if rank is None and inside:
        rank = inside[0].rank
    if kind.startswith("out-of-memory"):
        when = "under load" if when in SERVING else "at load"
    cause = signature.cause.format_map(_Words(when=when, **found))
    cause = " ".join(cause.split()).rstrip(" :")
    if len(inside) > 1:
        first, last = inside[0].rank, inside[-1].rank + inside[-1].ranks - 1
        cause = f"{cause}; ranks {first} to {last} run in this pod"
    return Blame(kind, node, rank, cause)


class _Words(dict[str, object]):
    """Fill in a sentence; names that the pattern did not capture are left out."""

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
    """Return the first rank of a node that runs a single engine.

    The result is None if there are several engines or the node itself is at fault.
    """
    mine = [engine for engine in engines if engine.node == node]
    return mine[0].rank if len(mine) == 1 and kind not in _OF_NODE else None


def of_node(kind: str) -> bool:
    """Return whether a kind of failure is that of a node as a whole, and of none of its ranks."""
    return kind in _OF_NODE


def _engine(engines: Engines, node: str, rank: int | None) -> EngineSpec | None:
    mine = [engine for engine in engines if engine.node == node]
    for engine in mine:
        if rank is not None and engine.rank <= rank < engine.rank + engine.ranks:
            return engine
    return mine[0] if mine else None


def _of_group(engines: Engines, line: Line, rank: int) -> EngineSpec | None:
    """Return the engine that holds ``rank``, in the group of the engine that wrote the line."""
    mine = _engine(engines, line.node, line.rank)
    if mine is None:
        return None
    group = [engine for engine in engines if (engine.role, engine.group) == (mine.role, mine.group)]
    one_rank = len({engine.rank for engine in group}) == 1
    if len(group) > 1 and (one_rank or any(engine.spans for engine in group)):
        return group[rank] if rank < len(group) else None  # the nodes of ranks that span several
    return next(
        (engine for engine in group if engine.rank <= rank < engine.rank + engine.ranks), None
    )


def _whole_rank(engine: EngineSpec, rank: int) -> int:
    """Return the data parallel rank of an engine for a number within its group.

    A node of a rank that spans nodes is not a rank of its own.
    """
    return engine.rank if engine.spans else rank


def _absent(engines: Engines, line: Line, rank: int) -> tuple[EngineSpec | None, int]:
    engine = _of_group(engines, line, rank)
    return engine, rank if engine is None else _whole_rank(engine, rank)


def _at_kv_port(engines: Engines, host: str, port: int) -> EngineSpec | None:
    """Return the engine whose KV cache connector listens on an address and port."""
    for engine in engines:
        first = engine.kv_port if engine.kv_port is not None else engine.side_channel_port
        wide = engine.ranks * (engine.kv_width if engine.kv_port is not None else 1)
        if engine.address == host and first is not None and first <= port < first + wide:
            return engine
    return None


def _offset(engine: EngineSpec, port: int) -> int:
    first = engine.kv_port if engine.kv_port is not None else engine.side_channel_port
    step = engine.kv_width if engine.kv_port is not None else 1
    return (port - (first or 0)) // step


def _intruder(engines: Engines, match: Match, rank: int | None) -> int | None:
    """Return which of two ranks on one device is there against the plan.

    The second to start finds the device full, whichever of the two that is.
    """
    device = int(match.found["device"])
    mine = _engine(engines, match.line.node, rank)
    holder = re.search(r"held by rank (\d+)", match.line.text)
    if mine is not None and device in mine.devices and holder:
        return int(holder[1])
    return rank
