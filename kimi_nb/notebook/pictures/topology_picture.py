"""Draw the placement of engines: nodes, their devices coloured by role, ports, and traffic.

Example::

    topology_picture.picture(plan)

Requests come in at the front door and go to every API; in a prefill-decode plan the KV cache goes
from prefill to decode. Only the first nodes of a role are drawn; the others are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kimi_nb.notebook.pictures import topology_words
from kimi_nb.notebook.pictures.topology_words import SHOWN
from kimi_nb.plan.spec import EngineSpec, Plan
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_WIDE, _CELL, _ROW = 340, 38, 8  # width of a node and of a device in points, devices in a row
_GAP, _TOP, _LINE = 110, 86, 16
_ARROW: dict[str, Any] = {
    "arrowstyle": "-|>",
    "linewidth": 1.8,
    "mutation_scale": 14,
    "shrinkA": 0,
    "shrinkB": 0,
}
_STORE = 70  # the width of a KV store beside its nodes
# The colour is that of the role; two tones in turn part one rank (or stage) from the next.
_TONES = {
    "mixed": (style.BLUE, style.SKY),
    "prefill": (style.BLUE, style.SKY),
    "decode": (style.ORANGE, style.YELLOW),
}


def picture(plan: Plan) -> Picture:
    """Draw a plan."""
    columns = topology_words.columns(plan)
    boxes = {
        node: _height(engines, plan)
        for column in columns.values()
        for node, engines in column[:SHOWN]
    }
    tall = [
        sum(boxes[node] + 28 for node, _ in column[:SHOWN]) + (_LINE if len(column) > SHOWN else 0)
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
            axes.text(
                left,
                top - 7,
                topology_words.heading(role, column, plan),
                weight="bold",
                va="bottom",
            )
            for node, engines in column[:SHOWN]:
                _node(axes, plan, node, engines, left, top, boxes[node])
                tops.append((top, boxes[node]))
                top += boxes[node] + 28
            if len(column) > SHOWN:
                axes.text(
                    left,
                    top - 8,
                    f"and {len(column) - SHOWN} more nodes like these",
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
        topology_words.words(plan),
        tuple(topology_words.row(plan, engine) for engine in plan.engines),
    )


def _height(engines: Sequence[EngineSpec], plan: Plan) -> float:
    rows = -(-plan.devices_per_node // _ROW)
    return 26 + rows * (_CELL + 3) + 3 + len(topology_words.ports(engines, plan)) * _LINE + 4


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
    from matplotlib.patches import FancyBboxPatch  # start-up: only when drawn

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
        _device(axes, device, holder.get(device), engines[0], x, y)
    lines = topology_words.ports(engines, plan)
    for at, line in enumerate(lines):
        y = top + height - 8 - (len(lines) - 1 - at) * _LINE
        axes.text(left + 10, y, line, size=9, family="monospace")


def _device(
    axes: Any, device: int, held: tuple[int, int] | None, engine: EngineSpec, x: float, y: float
) -> None:
    """Draw a device in the colour of its role, in the tone of its turn; dotted if nobody has it."""
    from matplotlib.patches import Rectangle  # start-up: only when drawn

    rank, stage = held or (None, 0)
    stages = engine.pp_size
    turn = (rank or 0) * stages + stage
    colour = "none" if rank is None else _TONES[engine.role][turn % 2]
    ink = style.INK if rank is None else style.on(colour)
    line = ":" if rank is None else "-"
    look: dict[str, Any] = {
        "facecolor": colour,
        "edgecolor": style.INK,
        "linewidth": 0.8,
        "linestyle": line,
    }
    axes.add_patch(Rectangle((x, y), _CELL, _CELL, **look))
    said = "-" if rank is None else f"r{rank} s{stage}" if stages > 1 else f"r{rank}"
    size = 9 if stages > 1 else 11
    middle = x + _CELL / 2
    axes.text(middle, y + 21, said, ha="center", color=ink, size=size, weight="bold")
    axes.text(middle, y + 33, f"dev {device}", ha="center", color=ink, size=7)


def _holders(engines: Sequence[EngineSpec]) -> dict[int, tuple[int, int]]:
    """Return (data parallel rank, pipeline stage) of each device in use."""
    out = {}
    for engine in engines:
        each = max(len(engine.devices) // engine.ranks, 1)
        for at, (device, stage) in enumerate(zip(engine.devices, engine.stages, strict=True)):
            out[device] = engine.rank + min(at // each, engine.ranks - 1), stage
    return out


def _flows(axes: Any, plan: Plan, middles: Sequence[tuple[float, float]]) -> None:
    """Draw arrows: requests from the front door to each column, the cache between columns."""
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
            arrowprops=_ARROW | {"color": style.BLUE},
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
        _hand_over(axes, middles[0][0] + _WIDE, middles[1][0])


def _hand_over(axes: Any, start: float, end: float) -> None:
    """Draw the way of the KV cache between two columns."""
    y = _TOP + 60
    look = _ARROW | {"color": style.VERMILLION, "linestyle": "--"}
    axes.annotate("", (end - 3, y), (start + 3, y), arrowprops=look)
    axes.text((start + end) / 2, y - 8, "KV cache", ha="center", size=9)


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
            arrowprops=_ARROW | {"arrowstyle": "<|-|>", "color": style.VERMILLION},
        )
