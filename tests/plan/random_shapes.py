"""Random shapes of every recipe: requests to plan, of which most can be served and some cannot.

>>> shapes(2) == shapes(2)
True
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from plan import shapes_apart
from plan.shapes_apart import Shape
from testbed import deployments

from kimi_nb import catalog
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

SEED = 20261123
MOST_NODES = 12
# Ports that others of a plan have, so that some of the random ones collide.
NEAR = (
    1999,
    5600,
    5601,
    5700,
    7100,
    7103,
    7200,
    8000,
    8088,
    12321,
    13389,
    29501,
    29550,
    36000,
    36108,
)
ROWS = deployments.own()


def shapes(count: int) -> list[Shape]:
    """Return as many shapes, the same ones each time; every row comes up before one does again."""
    dice = random.Random(SEED)
    return [_drawn(dice, ROWS[number % len(ROWS)]) for number in range(count)]


def planned(shape: Shape, nodes_file: Callable[[str, int], str]) -> Plan | str:
    """Return the plan of a shape, or the words of its refusal."""
    model, hardware, layout, variant, scenario = shape.row
    try:
        return build.plan(
            model,
            hardware,
            layout,
            variant=variant,
            scenario=scenario,
            site=nodes_file(shape.site, shape.nodes),
            pairs=shape.pairs,
            engine_version=shape.version,
        )
    except (PlanError, ParameterError) as refusal:
        return str(refusal)


def _drawn(dice: random.Random, row: tuple[str, str, str, str, str]) -> Shape:
    _, hardware, layout, _, _ = row
    recipe = shapes_apart.recipe_of(row)
    count = load.hardware(hardware).devices.count
    wild = dice.random() < 0.12  # whatever: most of these cannot be planned
    pairs: list[str] = []
    left = MOST_NODES
    needed = before = 0
    groups_in_all = doors = 0
    own = dice.random() < 0.2  # the sizes of the recipe and the scenario
    for role in shapes_apart.asked(Shape(row, "", 0, ())).roles:
        head = f"{role.name}." if layout == "pd" else ""
        largest = left // 2 if role.name == "prefill" else left
        if own:
            size = {key: getattr(role, key) for key in ("groups", "nodes", "dp", "tp", "pp")}
        else:
            size = _size(dice, recipe, largest, count, wild)
            if role.name == "decode" and dice.random() < 0.8:  # as Mooncake wants it
                size["tp"] = min(size["tp"], before)
            if role.name == "decode" and dice.random() < 0.8:  # as NIXL wants it
                size["pp"] = 1
            pairs += [
                f"{head}{key}={value}" for key, value in size.items() if (key, value) != ("pp", 1)
            ]
            if _balances(dice, recipe, size, count, wild):
                pairs.append(f"{head}{shapes_apart.HYBRID}=true")
                doors += size["nodes"]
        before = size["tp"]
        left -= size["groups"] * size["nodes"]
        needed += size["groups"] * size["nodes"]
        groups_in_all += size["groups"]
        pairs += [f"{head}{pair}" for pair in _ports(dice, recipe, role.name, size, wild)]
    if layout != "pd" and (groups_in_all > 1 or doors or wild) and dice.random() < 0.8:
        pairs.append("router=vllm-router")
    elif layout == "pd" and dice.random() < 0.3:
        pairs.append(f"router={dice.choice(('upstream', 'vllm-router'))}")
    if (layout == "pd" or "router=vllm-router" in pairs) and dice.random() < 0.3:
        pairs.append(f"router.port={_port(dice, 1024)}")
    nodes = min(MOST_NODES, needed + dice.choice((0, 0, 1, 3)))
    if dice.random() < 0.03:
        nodes = min(nodes, needed - 1)
    return Shape(row, _version(dice, row), max(1, nodes), tuple(pairs))


def _balances(
    dice: random.Random, recipe: Any, size: dict[str, int], devices: int, wild: bool
) -> bool:
    """Return whether every node shall answer for its own ranks: as a rule where it can."""
    several = size["nodes"] > 1 and size["tp"] * size["pp"] <= devices
    able = several and recipe.processes == "node"
    return dice.random() < (0.35 if able else 0.2 if wild else 0.0)


def _size(dice: random.Random, recipe: Any, most: int, devices: int, wild: bool) -> dict[str, int]:
    """Return groups, nodes and sizes: as a rule such that they fit, with some devices left over."""
    if wild:
        return {
            "groups": dice.randint(1, 3),
            "nodes": dice.randint(1, 4),
            "dp": dice.choice((1, 2, 3, 4, 6, 8, 16, 24)),
            "tp": dice.choice((1, 2, 3, 4, 8, 16, 32)),
            "pp": dice.choice((1, 1, 2, 3, 4)),
        }
    nodes = dice.choice([n for n in (1, 1, 2, 2, 3, 4, 6, 12) if n <= max(1, most)])
    groups = dice.randint(1, min(4, max(1, most // nodes)))
    if recipe.jobs and nodes > 1:
        groups = 1
    powers = [n for n in (1, 2, 4, 8, 16) if n <= devices]
    if recipe.processes == "node" and nodes > 1 and dice.random() < 0.4:  # ranks that span nodes
        whole = dice.choice([n for n in (2, 3, 4, 6) if nodes % n == 0])
        stages = dice.choice([n for n in (1, 2, 3, 4, 6, 8) if whole * devices % n == 0])
        tp = whole * devices // stages
        return {"groups": groups, "nodes": nodes, "dp": nodes // whole, "tp": tp, "pp": stages}
    tp, pp = dice.choice(powers), 1
    if recipe.processes == "node" and dice.random() < 0.4:
        pp = dice.choice([n for n in (1, 2, 3, 4) if tp * n <= devices])
    each = dice.randint(1, devices // (tp * pp))
    return {"groups": groups, "nodes": nodes, "dp": nodes * each, "tp": tp, "pp": pp}


def _ports(
    dice: random.Random, recipe: Any, role: str, size: dict[str, int], wild: bool
) -> Iterator[str]:
    if dice.random() < 0.35:
        yield f"port={_port(dice, 1024)}"
    meet = size["dp"] > 1 and (recipe.processes == "rank" or size["nodes"] > 1)
    for name, used in (
        ("rpc-port", meet),
        ("master-port", size["nodes"] > 1 and size["dp"] < size["nodes"]),
        ("kv-port", shapes_apart.connector_of(recipe, role).startswith("Mooncake")),
        ("side-channel-port", shapes_apart.connector_of(recipe, role).startswith("Nixl")),
    ):
        if (used and dice.random() < 0.3) or (wild and dice.random() < 0.1):
            # On Ascend the transport takes random ports from 20000 on.
            yield f"{name}={_port(dice, 36000)}"


def _port(dice: random.Random, first: int) -> int:
    return dice.choice(NEAR) if dice.random() < 0.3 else dice.randint(first, 65535)


def _version(dice: random.Random, row: tuple[str, str, str, str, str]) -> str:
    package = load.hardware(row[1]).engine
    known = catalog.versions(package)
    able = [version for version in known if not shapes_apart.too_old(row, version)]
    return dice.choice(known if dice.random() < 0.06 else able)
