"""Draw the placement of engines: nodes, their devices coloured by rank, ports, and traffic.

Example::

    topology_picture.picture(plan)

Requests come in at the front door and go to every API; in a prefill-decode plan the KV cache goes
from prefill to decode. Only the first nodes of a role are drawn; the others are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kimi_nb.plan.spec import EngineSpec, Plan, Store
from kimi_nb.show import spans, style
from kimi_nb.show.picture import Picture

_NODES = 4  # the most nodes of a role that are drawn
_WIDE, _CELL, _ROW = 340, 38, 8  # width of a node and of a device in points, devices in a row
_GAP, _TOP, _LINE = 110, 86, 16
_STORE = 70  # the width of a KV store beside its nodes


def picture(plan: Plan) -> Picture:
    """Draw a plan."""
    columns = _columns(plan)
    boxes = {
        node: _height(engines, plan)
        for column in columns.values()
        for node, engines in column[:_NODES]
    }
    tall = [
        sum(boxes[node] + 28 for node, _ in column[:_NODES])
        + (_LINE if len(column) > _NODES else 0)
        for column in columns.values()
    ]
    width = len(columns) * _WIDE + (len(columns) - 1) * _GAP + 20 + (_STORE if plan.store else 0)
    height = _TOP + max(tall) - 20
    with style.figure(width / 72, height / 72) as canvas:
        axes = canvas.plain(width, height)
        middles = []
        for at, (role, column) in enumerate(columns.items()):
            left = 10 + at * (_WIDE + _GAP)
            top, tops = float(_TOP), []
            axes.text(left, top - 7, _role(role, column, plan), weight="bold", va="bottom")
            for node, engines in column[:_NODES]:
                _node(axes, plan, node, engines, left, top, boxes[node])
                tops.append((top, boxes[node]))
                top += boxes[node] + 28
            if len(column) > _NODES:
                axes.text(
                    left,
                    top - 8,
                    f"and {len(column) - _NODES} more nodes like these",
                    style="italic",
                )
            _shares(axes, plan, left, tops)
            middles.append((left, _TOP + tall[at] / 2 - 14))
        _flows(axes, plan, middles)
        svg = canvas.finish(f"topology-{plan.name}")
    return Picture(
        "topology",
        f"{plan.heading}: where every engine stands",
        svg,
        _words(plan),
        tuple(_row(plan, engine) for engine in plan.engines),
    )


def _columns(plan: Plan) -> dict[str, list[tuple[str, list[EngineSpec]]]]:
    """Return [(node, its engines)] by role, in the plan's order."""
    out: dict[str, dict[str, list[EngineSpec]]] = {}
    for engine in plan.engines:
        out.setdefault(engine.role, {}).setdefault(engine.node, []).append(engine)
    return {role: list(nodes.items()) for role, nodes in out.items()}


def _role(role: str, column: Sequence[Any], plan: Plan) -> str:
    ranks, first = _ranks(column), plan.first(role)
    title = {"mixed": "prefill and decode together"}.get(role, role)
    nodes = f"{len(column)} node{'s' * (len(column) > 1)}"
    stages = f", {first.pp_size} stages" if first.pp_size > 1 else ""
    wide = first.world
    if first.spans:
        copies = "one copy" if ranks == 1 else f"{ranks} copies, each"
        return f"{title}: {nodes}, {copies} over {wide} devices{stages}"
    return (
        f"{title}: {nodes}, {ranks} rank{'s' * (ranks > 1)} of {wide} device{'s' * (wide > 1)}"
        f"{stages}"
    )


def _ranks(column: Sequence[Any]) -> int:
    """Return how many data parallel ranks a column has; a further node of a rank adds none."""
    return sum(engine.ranks for _, engines in column for engine in engines if not engine.part)


def _height(engines: Sequence[EngineSpec], plan: Plan) -> float:
    rows = -(-plan.devices_per_node // _ROW)
    return 26 + rows * (_CELL + 3) + 3 + len(_ports(engines, plan)) * _LINE + 4


def _node(
    axes: Any,
    plan: Plan,
    node: str,
    engines: Sequence[EngineSpec],
    left: float,
    top: float,
    height: float,
) -> None:
    """Draw the box of a node: its name, a square with the rank for each device, the ports."""
    from matplotlib.patches import FancyBboxPatch, Rectangle  # start-up: only when drawn

    looks: tuple[dict[str, Any], ...] = (
        {"facecolor": style.INK, "alpha": 0.05, "linewidth": 0},
        {"facecolor": "none", "edgecolor": style.INK, "linewidth": 0.8},
    )
    for look in looks:
        axes.add_patch(
            FancyBboxPatch(
                (left, top), _WIDE, height, boxstyle="round,pad=0,rounding_size=6", **look
            )
        )
    groups = {engine.group for engine in plan.engines if engine.role == engines[0].role}
    group = f" (group {engines[0].group})" if len(groups) > 1 else ""
    axes.text(left + 10, top + 17, node + group, weight="bold")
    axes.text(
        left + _WIDE - 10, top + 17, engines[0].address, ha="right", family="monospace", size=9
    )
    holder = _holders(engines)
    for device in range(plan.devices_per_node):
        x = left + 8 + (device % _ROW) * (_CELL + 3)
        y = top + 26 + (device // _ROW) * (_CELL + 3)
        rank, stage = holder.get(device, (None, 0))
        staged = engines[0].pp_size > 1
        colour = "none" if rank is None else style.cycle(rank * engines[0].pp_size + stage)
        text = style.INK if rank is None else style.on(colour)
        axes.add_patch(
            Rectangle(
                (x, y),
                _CELL,
                _CELL,
                facecolor=colour,
                linewidth=0.8,
                edgecolor=style.INK,
                linestyle=":" if rank is None else "-",
            )
        )
        axes.text(
            x + _CELL / 2,
            y + 21,
            "-" if rank is None else f"r{rank} s{stage}" if staged else f"r{rank}",
            ha="center",
            color=text,
            size=9 if staged else 11,
            weight="bold",
        )
        axes.text(x + _CELL / 2, y + 33, f"dev {device}", ha="center", color=text, size=7)
    for at, line in enumerate(_ports(engines, plan)):
        axes.text(
            left + 10,
            top + height - 8 - (len(_ports(engines, plan)) - 1 - at) * _LINE,
            line,
            size=9,
            family="monospace",
        )


def _holders(engines: Sequence[EngineSpec]) -> dict[int, tuple[int, int]]:
    """Return (data parallel rank, pipeline stage) of each device in use."""
    out = {}
    for engine in engines:
        each = max(len(engine.devices) // engine.ranks, 1)
        for at, (device, stage) in enumerate(zip(engine.devices, engine.stages, strict=True)):
            out[device] = engine.rank + min(at // each, engine.ranks - 1), stage
    return out


def _ports(engines: Sequence[EngineSpec], plan: Plan) -> list[str]:
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
        lines.append(_part(plan.store, first.node))
    return lines


def _part(store: Store, node: str) -> str:
    """Return what a node holds of the KV store, and where its master and its service listen."""
    master = f", master {store.port}" if store.node == node else ""
    if store.service_port:
        return f"store: {store.segment_gb} GB, service {store.service_port}{master}"
    return f"store: {store.segment_gb} GB a device{master}"


def _flows(axes: Any, plan: Plan, middles: Sequence[tuple[float, float]]) -> None:
    """Draw arrows: requests from the front door to each column, the cache between columns."""
    arrow = {"arrowstyle": "-|>", "linewidth": 1.8, "mutation_scale": 14}
    door = plan.url.split("//")[-1]
    name = f"router ({plan.router.kind}) on {plan.router.node}" if plan.router else "front door"
    middle = (middles[0][0] + middles[-1][0] + _WIDE) / 2
    axes.text(
        middle,
        17,
        f"requests → {name}, {door}",
        ha="center",
        weight="bold",
        bbox={
            "boxstyle": "round,pad=0.35",
            "facecolor": "none",
            "edgecolor": style.BLUE,
            "linewidth": 1.8,
        },
    )
    for at, (left, _) in enumerate(middles):
        x = left + _WIDE * (0.5 if len(middles) == 1 else 0.8 if at == 0 else 0.2)
        start = x if len(middles) == 1 else middle + (-60 if at == 0 else 60)
        axes.annotate(
            "",
            (x, _TOP - 22),
            (start, 26),
            arrowprops=arrow | {"color": style.BLUE, "shrinkA": 0, "shrinkB": 0},
        )
        if len(middles) > 1:
            axes.text(
                middle + (-110 if at == 0 else 110),
                44,
                ("1. prompt", "2. answer")[at],
                ha="right" if at == 0 else "left",
                size=9,
            )
    if len(middles) > 1 and plan.router:
        y = _TOP + 60
        axes.annotate(
            "",
            (middles[1][0] - 3, y),
            (middles[0][0] + _WIDE + 3, y),
            arrowprops=arrow
            | {"color": style.VERMILLION, "linestyle": "--", "shrinkA": 0, "shrinkB": 0},
        )
        axes.text(
            (middles[0][0] + _WIDE + middles[1][0]) / 2, y - 8, "KV cache", ha="center", size=9
        )


def _shares(axes: Any, plan: Plan, left: float, tops: Sequence[tuple[float, float]]) -> None:
    """Draw the KV store beside its nodes: a bar that each of them reads and writes."""
    if plan.store is None or not tops:
        return
    x, first, last = left + _WIDE + 44, tops[0][0], tops[-1][0] + tops[-1][1]
    axes.plot([x, x], [first, last], color=style.VERMILLION, linewidth=6, solid_capstyle="round")
    axes.text(x + 8, first + 4, "KV store", size=9, rotation=270, va="top")
    for top, height in tops:
        axes.annotate(
            "",
            (x - 5, top + height / 2),
            (left + _WIDE + 3, top + height / 2),
            arrowprops={
                "arrowstyle": "<|-|>",
                "linewidth": 1.8,
                "mutation_scale": 14,
                "color": style.VERMILLION,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )


def _words(plan: Plan) -> str:
    """Return a description of the picture for those who cannot see it."""
    parts = []
    for role, column in _columns(plan).items():
        ranks, stages = _ranks(column), plan.first(role).pp_size
        parts.append(
            f"{role} on {', '.join(node for node, _ in column[:_NODES])}"
            + (f" and {len(column) - _NODES} more" if len(column) > _NODES else "")
            + f" with {ranks} rank{'s' * (ranks > 1)}"
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


def _row(plan: Plan, engine: EngineSpec) -> dict[str, Any]:
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
        **({"store": _part(plan.store, engine.node)} if plan.store else {}),
    }
