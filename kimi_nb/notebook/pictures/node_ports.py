"""Tell which ports each node of a plan has, by what they are for.

Example::

    node_ports.cells(plan, "a3-0")["API"].text

Numbers come from the plan, whose arithmetic is `plan.ports`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_nb.plan.spec import Plan
from kimi_nb.show import spans

# What each kind of port is for, in the order of the columns.
PURPOSES = {
    "API": "HTTP of an engine: the router, probes and Prometheus (/metrics) call it",
    "rpc": "the data parallel ranks of a group join at the node of rank 0",
    "master": "the nodes that share one rank meet at its first node",
    "KV cache": "the connector: decode asks prefill for a prompt's blocks, a port for each device",
    "side channel": "NIXL: decode shakes hands before it reads a prompt's blocks, a port for each rank",
    "KV store": "the store that all engines share: its master, and its service where it has one",
}


@dataclass(frozen=True)
class Cell:
    """What a node has of one kind of port: where it listens, or whom it connects to."""

    text: str
    listens: bool
    note: str = ""


def cells(plan: Plan, node: str) -> dict[str, Cell]:
    """Return the ports of a node by what they are for; a kind that it does not use is left out."""
    engines = plan.of(node)
    found: dict[str, Cell] = {}
    http = [one.http_port for one in engines if one.http_port is not None]
    if http:
        found["API"] = Cell(spans(http), True, counted(len(http), "process", "processes"))
    leader = next(
        one for one in plan.engines if (one.role, one.group) == (engines[0].role, engines[0].group)
    )
    for kind, port in (("rpc", leader.rpc_port), ("master", leader.master_port)):
        if port is not None and node == leader.node:
            found[kind] = Cell(str(port), True, "first of its group")
        elif port is not None:
            found[kind] = Cell(f"→ {port}", False, f"of {leader.node}")
    kv = [port for one in engines for port in one.kv_ports]
    if kv:
        found["KV cache"] = Cell(spans(kv), True, counted(len(kv), "device", "devices"))
    side = sorted({port for one in engines for port in one.side_channel_ports})
    if side:
        found["side channel"] = Cell(spans(side), True, counted(len(side), "rank", "ranks"))
    if plan.store:
        found["KV store"] = _stored(plan, node)
    return found


def counted(count: int, one: str, many: str) -> str:
    """Return a number with its noun.

    >>> counted(2, "rank", "ranks")
    '2 ranks'
    """
    return f"{count} {one if count == 1 else many}"


def _stored(plan: Plan, node: str) -> Cell:
    store = plan.store
    assert store is not None
    held = [str(store.port), str(store.metrics_port)] if node == store.node else []
    service = [] if store.service_port is None else [str(store.service_port)]
    if held or service:
        note = "master, metrics" if held else ""
        return Cell(
            ", ".join(held + service),
            True,
            ", ".join([note] * bool(note) + ["service"] * bool(service)),
        )
    return Cell(f"→ {store.port}", False, f"of {store.node}")
