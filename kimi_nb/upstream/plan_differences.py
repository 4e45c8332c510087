"""Compare a plan with what others publish for the same deployment: flag by flag, as sets.

What the publisher leaves to the reader (``$HEAD_IP``) agrees with whatever the plan has there. What a plan does otherwise on purpose is an erratum of
``data/params/upstream_errata.yaml``, which names the difference and the evidence.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.catalog import fill_ins
from kimi_nb.core import data_files
from kimi_nb.params import overrides
from kimi_nb.plan.spec import EngineSpec, Plan
from kimi_nb.upstream import as_recipe
from kimi_nb.upstream.counted import Deployment, Role

# Of one rank, one stage or one replica vLLM needs no word, and a plan writes some of them all the same.
_ONE = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


@dataclass(frozen=True)
class Difference:
    """One setting in which a plan and a publisher differ; None means that it is not there."""

    role: str
    where: str  # argv or env
    name: str
    theirs: Any
    ours: Any
    erratum: str = ""

    def __str__(self) -> str:
        return (
            f"{self.role} {self.where} {self.name}: upstream {_shown(self.theirs)}, "
            f"ours {_shown(self.ours)}"
        )


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


def differences(plan: Plan, deployment: Deployment) -> list[Difference]:
    """Return every difference, those of an erratum with its id."""
    known = [entry for entry in errata() if _concerns(entry, deployment.id)]
    out = []
    for role in deployment.roles:
        engine = engine_of(plan, role)
        if engine is None:
            out.append(Difference(role.name, "argv", "command", role.name, None))
            continue
        for found in _of_role(role, engine):
            entry = next((one for one in known if _explains(one, found)), None)
            out.append(_with(found, entry["id"]) if entry else found)
    return out


def errata() -> list[dict[str, Any]]:
    """Return what the plans do otherwise than upstream, in the order of the file."""
    return data_files.facts("params/upstream_errata")["errata"]


def engine_of(plan: Plan, role: Role) -> EngineSpec | None:
    """Return the engine of a plan that a publisher's role is: ``worker1`` is the second node's."""
    name = role.name if role.name in ("prefill", "decode") else "mixed"
    at = int("".join(filter(str.isdigit, role.name)) or 0) if "worker" in role.name else 0
    nodes: dict[str, EngineSpec] = {}
    for engine in plan.engines:
        if engine.role == name and engine.group == 0:
            nodes.setdefault(engine.node, engine)
    return list(nodes.values())[at] if at < len(nodes) else None


def _of_role(role: Role, engine: EngineSpec) -> Iterator[Difference]:
    theirs, ours = as_recipe.leaves(role), as_recipe.leaves(_role(engine))
    for where, left, right in (("argv", theirs, ours), ("env", role.env, engine.env)):
        for name in dict.fromkeys([*left, *right]):
            one, other = _value(left.get(name)), _value(right.get(name))
            if one == other:
                continue
            if _open(one) and (other is not None or not overrides.is_derived(name)):
                continue  # left to the reader, who may leave it to the engine
            if name in _ONE and {one, other} == {None, 1.0}:
                continue
            yield Difference(role.name, where, name, left.get(name), right.get(name))


def _role(engine: EngineSpec) -> Role:
    """Return an engine of a plan in the form of a publisher's role."""
    argv: list[tuple[str, Any]] = []
    words = list(engine.argv[3:])
    while words:
        flag = words.pop(0)
        bare = not words or words[0].startswith("--")
        argv.append((flag, True if bare else _parsed(words.pop(0))))
    return Role(name=engine.role, nodes=1, argv=tuple(argv), env=engine.env)


def _parsed(text: str) -> Any:
    return json.loads(text) if text[:1] in ("{", "[") else text


def _value(value: Any) -> Any:
    """Return a value in the form in which two spellings of it are equal."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    try:
        return float(value)
    except (TypeError, ValueError):
        return {"true": True, "false": False}.get(str(value).lower(), str(value))


def _open(value: Any) -> bool:
    return isinstance(value, str) and ("$" in value or fill_ins.holds(value))


def _concerns(entry: Mapping[str, Any], deployment: str) -> bool:
    return any(fnmatch.fnmatchcase(deployment, glob) for glob in entry["deployments"])


def _explains(entry: Mapping[str, Any], found: Difference) -> bool:
    return any(
        change["where"] == found.where
        and fnmatch.fnmatchcase(found.name, change["name"])
        and _same(change.get("says"), found.theirs)
        and _same(change.get("uses"), found.ours)
        for change in entry["changes"]
    )


def _same(pattern: Any, value: Any) -> bool:
    """``null`` is absent, ``any`` is whatever stands there, a list is one of these."""
    if isinstance(pattern, list):
        return any(_same(one, value) for one in pattern)
    if pattern is None or value is None:
        return pattern is value
    return pattern == "any" or _value(pattern) == _value(value)


def _with(found: Difference, erratum: str) -> Difference:
    return Difference(found.role, found.where, found.name, found.theirs, found.ours, erratum)
