"""Draw ranks and groups over nodes, and which port of each node is for what.

Example::

    rank_ports.picture(plan)

A filled cell is a port at which the node listens; an arrow is one that it connects to. Nodes that
only repeat the others are counted. `node_ports` tells the ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kimi_nb.notebook.pictures import diagram
from kimi_nb.notebook.pictures.node_ports import PURPOSES, Cell, cells, counted
from kimi_nb.plan import ports
from kimi_nb.plan.spec import EngineSpec, Plan, authority
from kimi_nb.show import spans, style
from kimi_nb.show.picture import Picture

_COLOURS = dict(
    zip(
        PURPOSES,
        (style.BLUE, style.GREEN, style.PURPLE, style.VERMILLION, style.ORANGE, style.SKY),
        strict=True,
    )
)
_NODES = 3  # the most nodes of a role that are drawn
_CHIPS, _CHIP = 8, 15  # ranks in a row of a node, and the size of each
_LEFT, _WIDTH, _ROW = 262, 810, 58
_CELL = 196  # the most that a cell takes in width
_ROUTER_METRICS = "127.0.0.1:29000"  # vllm-router --help: --prometheus-host, --prometheus-port


def picture(plan: Plan) -> Picture:
    """Draw a row for each node, under the role that its engines have."""
    by_node = {node: cells(plan, node) for node in plan.nodes}
    kinds = [kind for kind in PURPOSES if any(kind in row for row in by_node.values())]
    wide = min((_WIDTH - _LEFT - 10) / max(len(kinds), 1), _CELL)
    drawing = diagram.Diagram(_WIDTH)
    y = 16.0
    for at, kind in enumerate(kinds):
        drawing.text(_LEFT + at * wide + 4, y, kind, bold=True, room=wide - 8)
    y += 12
    if plan.router:
        y = _router(drawing, plan, y, wide)
    for role in dict.fromkeys(one.role for one in plan.engines):
        nodes = list(dict.fromkeys(one.node for one in plan.engines if one.role == role))
        y += 16
        drawing.text(8, y, _role(plan, role, nodes), bold=True, size=10.5, room=_WIDTH - 16)
        y += 8
        shown, others = _shown(nodes)
        for node in shown:
            _node(drawing, plan, node, by_node[node], kinds, y, wide)
            y += _ROW
        if others:
            _others(drawing, [by_node[node] for node in others], kinds, y, wide)
            y += 30
    y = _legend(drawing, plan, kinds, y + 14)
    title = f"{plan.heading}: ranks, groups and ports"
    return Picture("ranks", title, drawing.finish(y), _words(plan, by_node, kinds), _rows(plan))


def _shown(nodes: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the nodes of a role that are drawn, and those that are counted; never only one."""
    most = _NODES + 1 if len(nodes) == _NODES + 1 else _NODES
    return nodes[:most], nodes[most:]


def _role(plan: Plan, role: str, nodes: Sequence[str]) -> str:
    engines = [one for one in plan.engines if one.role == role]
    groups = len({one.group for one in engines})
    ranks = sum(one.ranks for one in engines if not one.part)
    name = "prefill and decode together" if role == "mixed" else role
    return ", ".join(
        (
            f"{name}: {counted(len(nodes), 'node', 'nodes')}",
            counted(groups, "group", "groups"),
            f"{counted(ranks, 'rank', 'ranks')} of {counted(engines[0].world, 'device', 'devices')}",
            counted(len(engines), "process", "processes"),
        )
    )


def _router(drawing: diagram.Diagram, plan: Plan, y: float, wide: float) -> float:
    """Draw the front door: the address that clients call, and what it calls."""
    assert plan.router is not None
    drawing.box(4, y, _WIDTH - 8, 34, edge=style.BLUE, line=1.6)
    drawing.text(12, y + 15, f"router on {plan.router.node}", bold=True, room=_LEFT - 16)
    kind = "vllm-ascend's proxy" if plan.router.kind == "upstream" else plan.router.kind
    drawing.text(12, y + 28, kind, size=9.5, room=_LEFT - 16)
    _cell(drawing, Cell(str(plan.router.port), True), "API", _LEFT, y + 5, wide)
    drawing.text(
        _LEFT + wide + 8,
        y + 21,
        f"clients call {plan.url}; it calls {counted(len(plan.router.workers), 'API', 'APIs')}",
        size=9.5,
        room=_WIDTH - _LEFT - wide - 16,
    )
    return y + 34


def _node(
    drawing: diagram.Diagram,
    plan: Plan,
    node: str,
    row: dict[str, Cell],
    kinds: Sequence[str],
    y: float,
    wide: float,
) -> None:
    engines = plan.of(node)
    drawing.box(4, y, _WIDTH - 8, _ROW - 6, shade=0.04, fill=diagram.INK, line=0.7)
    drawing.text(12, y + 16, node, bold=True, room=116)
    drawing.text(12, y + 30, engines[0].address, mono=True, size=9.5, room=116)
    drawing.text(12, y + 44, f"group {engines[0].group}", size=9.5, room=116)
    _chips(drawing, engines, 130, y + 5)
    for at, kind in enumerate(kinds):
        if kind in row:
            _cell(drawing, row[kind], kind, _LEFT + at * wide, y + 5, wide)


def _chips(drawing: diagram.Diagram, engines: Sequence[EngineSpec], x: float, y: float) -> None:
    """Draw a square for each data parallel rank, in its colour, and say which ranks they are."""
    first, last = engines[0], engines[-1]
    ranks = range(first.rank, last.rank + last.ranks)
    shown = ranks[: 2 * _CHIPS]
    for at, rank in enumerate(shown):
        colour = style.cycle(rank)
        drawing.box(
            x + at % _CHIPS * (_CHIP + 1),
            y + at // _CHIPS * (_CHIP + 1),
            _CHIP,
            _CHIP,
            fill=colour,
            line=0.6,
            round_by=2,
        )
    text = f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"
    if first.spans:
        text += f", part {first.part + 1} of {first.world // len(first.devices)}"
    if len(ranks) > len(shown):
        text += f", × {len(ranks) - len(shown)} more"
    drawing.text(x, y + 42, text, size=9.5, room=_LEFT - x - 6)


def _cell(drawing: diagram.Diagram, cell: Cell, kind: str, x: float, y: float, wide: float) -> None:
    colour = _COLOURS[kind]
    drawing.box(
        x + 2,
        y,
        wide - 8,
        24,
        edge=colour,
        fill=colour if cell.listens else "none",
        shade=0.18,
        line=1.3,
        dashed=not cell.listens,
        round_by=3,
    )
    drawing.text(x + 8, y + 16, cell.text, mono=True, size=10, room=wide - 18)
    if cell.note:
        drawing.text(x + 8, y + 38, cell.note, size=9, room=wide - 12)


def _others(
    drawing: diagram.Diagram,
    rows: Sequence[dict[str, Cell]],
    kinds: Sequence[str],
    y: float,
    wide: float,
) -> None:
    """Say how many nodes more there are, and between which ports they listen."""
    drawing.text(12, y + 16, f"× {len(rows)} more nodes", bold=True, italic=True, room=_LEFT - 20)
    for at, kind in enumerate(kinds):
        texts = list(dict.fromkeys(row[kind].text for row in rows if kind in row))
        if texts:
            text = texts[0] if len(texts) == 1 else f"{texts[0]} … {texts[-1]}"
            drawing.text(_LEFT + at * wide + 8, y + 16, text, mono=True, size=9, room=wide - 12)


def _legend(drawing: diagram.Diagram, plan: Plan, kinds: Sequence[str], y: float) -> float:
    """Say what each kind of port is for; a dashed cell is one that the node connects to."""
    lines = [(kind, f"{kind}: {PURPOSES[kind]}") for kind in kinds]
    for kind, text in lines:
        drawing.box(
            8, y - 9, 12, 12, edge=_COLOURS[kind], fill=_COLOURS[kind], shade=0.18, round_by=2
        )
        y = drawing.paragraph(28, y + 1, text, _WIDTH - 40, size=10)
    for text in _notes(plan, kinds):
        y = drawing.paragraph(28, y + 1, text, _WIDTH - 40, size=10, italic=True)
    return y


def _notes(plan: Plan, kinds: Sequence[str]) -> list[str]:
    notes = []
    if {"rpc", "master"} & set(kinds):
        notes.append("→ in a dashed cell: the node connects to that port of the other node.")
    if plan.router and plan.router.kind == "vllm-router":
        notes.append(f"vllm-router has metrics of its own at {_ROUTER_METRICS}, its default.")
    if "KV cache" in kinds and plan.request.hardware.vendor == "ascend":
        taken = ports.ascend_random(plan.devices_per_node)
        notes.append(
            f"The Ascend transport takes random ports from {taken.start} to {taken.stop - 1} "
            "as well (vllm-ascend issues 6455, 4725)."
        )
    return notes


def _words(plan: Plan, by_node: dict[str, dict[str, Cell]], kinds: Sequence[str]) -> str:
    """Return the picture in words: the roles, the ports of each node that is drawn, the purposes."""
    out = []
    if plan.router:
        out.append(f"router {plan.router.kind} on {plan.router.node} at port {plan.router.port}")
    for role in dict.fromkeys(one.role for one in plan.engines):
        nodes = list(dict.fromkeys(one.node for one in plan.engines if one.role == role))
        out.append(_role(plan, role, nodes))
        shown, others = _shown(nodes)
        for node in shown:
            said = ", ".join(
                f"{kind} {cell.text} {cell.note}".rstrip() for kind, cell in by_node[node].items()
            )
            out.append(f"{node} ({plan.of(node)[0].address}): {said or 'no port'}")
        if others:
            out.append(f"and {len(others)} more nodes")
    out += [f"{kind}: {PURPOSES[kind]}" for kind in kinds] + _notes(plan, kinds)
    return f"{plan.heading}: ranks, groups and ports. {'; '.join(out).rstrip('.')}."


def _rows(plan: Plan) -> tuple[dict[str, Any], ...]:
    rows = []
    for one in plan.engines:
        rows.append(
            {
                "engine": one.name,
                "node": one.node,
                "role": one.role,
                "group": one.group,
                "ranks": spans(range(one.rank, one.rank + one.ranks)),
                "api": authority(one.address, one.http_port) if one.http_port else None,
                "rpc_port": one.rpc_port,
                "master_port": one.master_port,
                "kv_ports": spans(list(one.kv_ports)),
                "side_channel_ports": spans(list(one.side_channel_ports)),
            }
        )
    return tuple(rows)
