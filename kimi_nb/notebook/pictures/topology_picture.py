"""Draw the placement of engines: nodes, their devices coloured by role, ports, and traffic.

Example::

    topology_picture.picture(plan)

Requests come in at the front door and go to every API; in a prefill-decode plan the KV cache goes
from prefill to decode. Only the first nodes of a role are drawn; the others are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb.notebook.pictures import topology_words
from kimi_nb.notebook.pictures.diagram import INK, Diagram, width_of
from kimi_nb.notebook.pictures.topology_words import SHOWN
from kimi_nb.plan.spec import EngineSpec, Plan
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_WIDE, _CELL, _ROW = 340, 38, 8  # width of a node and of a device, devices in a row
_GAP, _TOP, _LINE = 110, 86, 16
_STORE = 110  # the width of a KV store beside its nodes
_THICK = 1.8  # of the arrows
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
    headings = [topology_words.heading(role, column, plan) for role, column in columns.items()]
    lefts = [10 + at * (_WIDE + _GAP) for at in range(len(columns))]
    width = len(columns) * _WIDE + (len(columns) - 1) * _GAP + 20 + (_STORE if plan.store else 0)
    wide = lefts[-1] + width_of(headings[-1], 11, bold=True)
    drawing = Diagram(max(width, wide, 20 + _door(plan)[1]))
    for left, heading, column in zip(lefts, headings, columns.values(), strict=True):
        top, tops = float(_TOP), []
        room = None if left == lefts[-1] else _WIDE + _GAP - 10
        drawing.text(left, top - 8, heading, bold=True, room=room)
        for node, engines in column[:SHOWN]:
            _node(drawing, plan, node, engines, left, top, boxes[node])
            tops.append((top, boxes[node]))
            top += boxes[node] + 28
        if len(column) > SHOWN:
            more = f"and {len(column) - SHOWN} more nodes like these"
            drawing.text(left, top - 8, more, italic=True)
        _shares(drawing, plan, left, tops)
    _flows(drawing, plan, lefts)
    return Picture(
        "topology",
        f"{plan.heading}: where every engine stands",
        drawing.finish(_TOP + max(tall) - 20),
        topology_words.words(plan),
        tuple(topology_words.row(plan, engine) for engine in plan.engines),
    )


def _height(engines: Sequence[EngineSpec], plan: Plan) -> float:
    rows = -(-plan.devices_per_node // _ROW)
    return 26 + rows * (_CELL + 3) + 3 + len(topology_words.ports(engines, plan)) * _LINE + 4


def _node(
    drawing: Diagram,
    plan: Plan,
    node: str,
    engines: Sequence[EngineSpec],
    left: float,
    top: float,
    height: float,
) -> None:
    """Draw the box of a node: its name, a square with the rank for each device, the ports."""
    drawing.box(left, top, _WIDE, height, edge="none", fill=INK, shade=0.05, round_by=6)
    drawing.box(left, top, _WIDE, height, line=0.8, round_by=6)
    address = engines[0].address
    beside = width_of(address, 10, mono=True)
    drawing.text(left + _WIDE - 10, top + 17, address, anchor="end", mono=True, size=10)
    groups = {engine.group for engine in plan.engines if engine.role == engines[0].role}
    group = f" (group {engines[0].group})" if len(groups) > 1 else ""
    drawing.text(left + 10, top + 17, node + group, bold=True, room=_WIDE - 30 - beside)
    holder = _holders(engines)
    for device in range(plan.devices_per_node):
        x = left + 8 + (device % _ROW) * (_CELL + 3)
        y = top + 26 + (device // _ROW) * (_CELL + 3)
        _device(drawing, device, holder.get(device), engines[0], x, y)
    lines = topology_words.ports(engines, plan)
    for at, line in enumerate(lines):
        y = top + height - 8 - (len(lines) - 1 - at) * _LINE
        drawing.text(left + 10, y, line, size=10, mono=True, room=_WIDE - 20)


def _device(
    drawing: Diagram,
    device: int,
    held: tuple[int, int] | None,
    engine: EngineSpec,
    x: float,
    y: float,
) -> None:
    """Draw a device in the colour of its role, in the tone of its turn; dashed if nobody has it."""
    rank, stage = held or (None, 0)
    stages = engine.pp_size
    turn = (rank or 0) * stages + stage
    colour = "none" if rank is None else _TONES[engine.role][turn % 2]
    ink = INK if rank is None else style.on(colour)
    drawing.box(x, y, _CELL, _CELL, fill=colour, line=0.8, dashed=rank is None, round_by=0)
    said = "-" if rank is None else f"r{rank} s{stage}" if stages > 1 else f"r{rank}"
    middle, size = x + _CELL / 2, 9.5 if stages > 1 else 12
    drawing.text(middle, y + 20, said, anchor="middle", colour=ink, size=size, bold=True)
    drawing.text(middle, y + 33, f"dev {device}", anchor="middle", colour=ink, size=8)


def _holders(engines: Sequence[EngineSpec]) -> dict[int, tuple[int, int]]:
    """Return (data parallel rank, pipeline stage) of each device in use."""
    out = {}
    for engine in engines:
        each = max(len(engine.devices) // engine.ranks, 1)
        for at, (device, stage) in enumerate(zip(engine.devices, engine.stages, strict=True)):
            out[device] = engine.rank + min(at // each, engine.ranks - 1), stage
    return out


def _flows(drawing: Diagram, plan: Plan, lefts: Sequence[float]) -> None:
    """Draw arrows: requests from the front door to each column, the cache between columns."""
    said, wide = _door(plan)
    middle = max((lefts[0] + lefts[-1] + _WIDE) / 2, 10 + wide / 2)
    drawing.box(middle - wide / 2, 4, wide, 24, edge=style.BLUE, line=_THICK)
    drawing.text(middle, 20, said, anchor="middle", bold=True)
    one = len(lefts) == 1
    for at, left in enumerate(lefts):
        x = left + _WIDE * (0.5 if one else 0.8 if at == 0 else 0.2)
        start = x if one else middle + (-60 if at == 0 else 60)
        drawing.line([(start, 30), (x, _TOP - 22)], colour=style.BLUE, wide=_THICK, arrow=True)
        if not one:
            beside, anchor = (-110, "end") if at == 0 else (110, "start")
            step = ("1. prompt", "2. answer")[at]
            drawing.text(middle + beside, 44, step, anchor=anchor, size=10)
    if not one and plan.router:
        start, end, y = lefts[0] + _WIDE, lefts[1], _TOP + 60
        way = [(start + 3, y), (end - 3, y)]
        drawing.line(way, colour=style.VERMILLION, wide=_THICK, dashed=True, arrow=True)
        drawing.text((start + end) / 2, y - 8, "KV cache", anchor="middle", size=10)


def _door(plan: Plan) -> tuple[str, float]:
    """Return what stands in the box of the front door, and how wide the box is."""
    name = f"router ({plan.router.kind}) on {plan.router.node}" if plan.router else "front door"
    said = f"requests → {name}, {plan.url.split('//')[-1]}"
    return said, width_of(said, 11, bold=True) + 20


def _shares(drawing: Diagram, plan: Plan, left: float, tops: Sequence[tuple[float, float]]) -> None:
    """Draw the KV store beside its nodes: a bar that each of them reads and writes."""
    if plan.store is None or not tops:
        return
    x, first, last = left + _WIDE + 44, tops[0][0], tops[-1][0] + tops[-1][1]
    drawing.line([(x, first), (x, last)], colour=style.VERMILLION, wide=6)
    drawing.text(x + 8, first + 12, "KV store", size=10)
    for top, height in tops:
        ends = [(left + _WIDE + 3, top + height / 2), (x - 5, top + height / 2)]
        for way in (ends, ends[::-1]):
            drawing.line(way, colour=style.VERMILLION, wide=_THICK, arrow=True)
