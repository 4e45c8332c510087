"""Read and change the sizes of each role (groups, nodes, dp, tp, pp) as overrides.

>>> given = Choice("k2.5", "a3", "pd")
>>> sizes(given)["decode"]
{'groups': 1, 'nodes': 2, 'dp': 32, 'tp': 1, 'pp': 1}
>>> overridden(given, "decode", "dp", 16)
'decode.dp=16'
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kimi_nb.core.errors import ParameterError
from kimi_nb.notebook import inputs
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import choices
from kimi_nb.params import overrides
from kimi_nb.plan.spec import Plan

KEYS = ("groups", "nodes", "dp", "tp", "pp")


def of_recipe(given: Choice) -> Mapping[str, Mapping[str, int]]:
    """Return the sizes of each role without any override; {} where there is no recipe."""
    recipe = choices.recipe(given)
    if recipe is None:
        return {}
    scenario = recipe.scenarios.get(given.scenario)
    roles = {
        name: role.changed(scenario.roles[name]) if scenario and name in scenario.roles else role
        for name, role in recipe.roles.items()
    }
    return {name: {key: getattr(role, key) for key in KEYS} for name, role in roles.items()}


def sizes(given: Choice) -> Mapping[str, Mapping[str, int]]:
    """Return the sizes of each role as chosen, also those that are not allowed, such as 0."""
    out = {role: dict(found) for role, found in of_recipe(given).items()}
    for pair in inputs.words(given.overrides, ";"):
        place, text = of_pair(pair, tuple(out)), pair.partition("=")[2].strip()
        if place and re.fullmatch(r"-?\d{1,9}", text):
            out[place[0]][place[1]] = int(text)
    return out


def of_pair(pair: str, roles: tuple[str, ...]) -> tuple[str, str] | None:
    """Return (role, key) of an override that sets a size; None for any other."""
    key, sign, _ = pair.partition("=")
    try:
        shape = overrides.parse([f"{key}=1"] if sign else [], roles).shape
    except ParameterError:
        return None
    return next(((role, key) for role, keys in shape.items() for key in keys if key in KEYS), None)


def overridden(given: Choice, role: str, key: str, value: int) -> str:
    """Return the overrides after a size was changed; the recipe's own needs none."""
    known = of_recipe(given)
    roles = tuple(known)
    pairs = [
        pair for pair in inputs.words(given.overrides, ";") if of_pair(pair, roles) != (role, key)
    ]
    if known.get(role, {}).get(key) != value:
        pairs.append(f"{role}.{key}={value}" if len(roles) > 1 else f"{key}={value}")
    return "; ".join(pairs)


def uses(plan: Plan | None, role: str) -> str:
    """Return how many devices of its nodes a role uses, in words; "" without a plan."""
    if plan is None:
        return ""
    engines = [engine for engine in plan.engines if engine.role == role]
    nodes = len({engine.node for engine in engines})
    used = sum(len(engine.devices) for engine in engines)
    return f"{used} of {nodes * plan.devices_per_node} devices on {nodes} node{'s' * (nodes > 1)}"
