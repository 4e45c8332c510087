"""Put the placement of engines into words and rows: what a picture of it says.

Example::

    topology_words.words(plan)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kimi_nb.plan.spec import EngineSpec, Plan, Store
from kimi_nb.show import spans

SHOWN = 4  # the most nodes of a role that are drawn and named


def columns(plan: Plan) -> dict[str, list[tuple[str, list[EngineSpec]]]]:
    """Return [(node, its engines)] by role, in the plan's order."""
    out: dict[str, dict[str, list[EngineSpec]]] = {}
    for engine in plan.engines:
        out.setdefault(engine.role, {}).setdefault(engine.node, []).append(engine)
    return {role: list(nodes.items()) for role, nodes in out.items()}


def heading(role: str, column: Sequence[Any], plan: Plan) -> str:
    """Return what stands above the nodes of a role: how many there are, of which ranks."""
    count, first = ranks(column), plan.first(role)
    title = {"mixed": "prefill and decode together"}.get(role, role)
    nodes = f"{len(column)} node{'s' * (len(column) > 1)}"
    stages = f", {first.pp_size} stages" if first.pp_size > 1 else ""
    wide = first.world
    if first.spans:
        copies = "one copy" if count == 1 else f"{count} copies, each"
        return f"{title}: {nodes}, {copies} over {wide} devices{stages}"
    devices = f"{wide} device{'s' * (wide > 1)}{stages}"
    return f"{title}: {nodes}, {count} rank{'s' * (count > 1)} of {devices}"


def ranks(column: Sequence[Any]) -> int:
    """Return how many data parallel ranks a column has; a further node of a rank adds none."""
    return sum(engine.ranks for _, engines in column for engine in engines if not engine.part)


def ports(engines: Sequence[EngineSpec], plan: Plan) -> list[str]:
    """Return the ports at a node, a line for each kind: of its engines, and of a KV store."""
    first, last = engines[0], engines[-1]
    http = [engine.http_port for engine in engines if engine.http_port is not None]
    lines = [f"HTTP {spans(http)}" if http else "no API: headless"]
    if first.rpc_port is not None:
        lines[0] += f", rpc {first.rpc_port}"
    if first.kv_ports and last.kv_ports:
        lines.append(f"KV cache {spans(range(first.kv_ports.start, last.kv_ports.stop))}")
    elif first.side_channel_ports:
        channels = sorted({port for engine in engines for port in engine.side_channel_ports})
        lines.append(f"side channel {spans(channels)}")
    if plan.store:
        lines.append(store_part(plan.store, first.node))
    return lines


def store_part(store: Store, node: str) -> str:
    """Return what a node holds of the KV store, and where its master and its service listen."""
    master = f", master {store.port}" if store.node == node else ""
    if store.service_port:
        return f"store: {store.segment_gb} GB, service {store.service_port}{master}"
    return f"store: {store.segment_gb} GB a device{master}"


def words(plan: Plan) -> str:
    """Return a description of the picture for those who cannot see it."""
    parts = []
    for role, column in columns(plan).items():
        count, stages = ranks(column), plan.first(role).pp_size
        parts.append(
            f"{role} on {', '.join(node for node, _ in column[:SHOWN])}"
            + (f" and {len(column) - SHOWN} more" if len(column) > SHOWN else "")
            + f" with {count} rank{'s' * (count > 1)}"
            + (f" of {stages} pipeline stages" if stages > 1 else "")
        )
    flow = "requests reach " + plan.url
    if plan.router:
        does = (
            "asks prefill, then decode; the KV cache goes from prefill to decode"
            if "prefill" in plan.flags
            else f"hands them to {len(plan.router.workers)} engines in turn"
        )
        flow = f"requests reach the router at {plan.url}, which {does}"
    if plan.store:
        flow += f"; they share a KV store ({plan.store.mode}), whose master is on {plan.store.node}"
    return (
        f"{plan.title}: {len(plan.engines)} engine{'s' * (len(plan.engines) > 1)}, "
        f"{'; '.join(parts)}; {flow}."
    )


def row(plan: Plan, engine: EngineSpec) -> dict[str, Any]:
    """Return the numbers of an engine: where it stands, its ranks, devices and ports."""
    return {
        "engine": engine.name,
        "node": engine.node,
        "address": engine.address,
        "role": engine.role,
        "rank": engine.rank,
        "ranks": engine.ranks,
        "devices": spans(engine.devices),
        **({"stages": spans(sorted({*engine.stages}))} if engine.pp_size > 1 else {}),
        "http_port": engine.http_port,
        "rpc_port": engine.rpc_port,
        "kv_port": engine.kv_port,
        "side_channel_port": engine.side_channel_port,
        **({"store": store_part(plan.store, engine.node)} if plan.store else {}),
    }
