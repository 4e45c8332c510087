"""The winner of a sweep as a model file of its own, which every notebook and command accepts.

Usage::

    path = winner.write(best, folder / "tuned.yaml", title="...", figures="measured")
    # kimi-nb plan --model .../tuned.yaml --hw a3 --layout single --scenario tuned

The file extends the model's own. It holds the one recipe with a scenario ``tuned`` added, which is
what a document's tuning table could have said.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from kimi_nb.core import evidence, scratch
from kimi_nb.core.errors import PlanError, WriteError
from kimi_nb.params import load, overrides, recipes
from kimi_nb.plan import build
from kimi_nb.plan.roles import Request
from kimi_nb.plan.spec import EngineSpec, Plan

SCENARIO = "tuned"


def write(plan: Plan, path: Path, *, title: str, figures: str) -> Path:
    """Write the file, completely or not at all, after planning from it once.

    ``title`` is a line for people, ``figures`` is measured or rehearsal.

    Raises:
        PlanError: If the file does not give the plan that won.
        WriteError: If the file cannot be written.
    """
    text = (
        f"# {title}.\n# Made by a sweep. To take it: model = this file, scenario = {SCENARIO}."
        "\n"
        + yaml.safe_dump(
            content(plan, title, figures), sort_keys=False, width=100, allow_unicode=True
        )
    )
    new = scratch.beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write(new, text)
        _prove(plan, new)
        os.replace(new, path)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written ({error.strerror}).") from None
    finally:
        scratch.remove(new)
    return path


def content(plan: Plan, title: str, figures: str) -> dict[str, Any]:
    """Return the content of the file as plain values."""
    asked: Request = plan.request
    recipe = asked.recipe.model_dump(mode="json", exclude_unset=True)
    recipe["engine_version"] = asked.engine.version
    changes = asked.overrides
    for role, ports in changes.ports.items():
        recipe["roles"][role]["ports"] = {**(recipe["roles"][role].get("ports") or {}), **ports}
    if changes.router and asked.recipe.layout == "pd":
        recipe["router"] = changes.router
    if changes.router_port:
        recipe["router_port"] = changes.router_port
    recipe["scenarios"] = {
        **recipe.get("scenarios", {}),
        SCENARIO: _scenario(asked, title, figures),
    }
    name = asked.model.name
    if name in load.names("models") and load.model(name) == asked.model:
        return {"extends": name, "recipes": [recipe]}
    whole = asked.model.model_dump(mode="json", exclude_unset=True)
    return {**whole, "recipes": [recipe]}


def _scenario(asked: Request, title: str, figures: str) -> dict[str, Any]:
    """Return the plan's scenario with the user's and the sweep's changes applied to it."""
    before = asked.scenario.model_dump(mode="json", exclude_unset=True) if asked.scenario else {}
    roles = before.get("roles", {})
    for role in asked.recipe.roles:
        change = dict(roles.get(role, {}))
        change |= asked.overrides.shape.get(role, {})
        settings = change.get("settings", {})
        for _, given in asked.overrides.of(role):
            # The last one wins: a key that is given again replaces the earlier one, and comes last.
            settings = {
                kind: _laid(settings.get(kind, {}), given.get(kind, {}))
                for kind in ("flags", "env")
            }
        if any(settings.values()):
            change["settings"] = {kind: value for kind, value in settings.items() if value}
        if change:
            roles = {**roles, role: change}
    kept = [name for name in before.get("features", []) if name not in asked.dropped]
    out = {
        **before,
        "title": title,
        "figures": figures,
        "source": {"document": "sweep", "section": evidence.now()},
        "features": [*kept, *(name for name in asked.chosen if name not in kept)],
        "without": [
            *(name for name in before.get("without", []) if name not in asked.chosen),
            *asked.dropped,
        ],
        "roles": roles,
    }
    if asked.overrides.router and asked.recipe.layout != "pd":  # there the recipe has it
        out["router"] = asked.overrides.router
    return {key: value for key, value in out.items() if value}


def _laid(below: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in below.items() if key not in over} | over


def _prove(plan: Plan, path: Path) -> None:
    """Check that the file gives the engines that won; only the order of their flags may differ.

    Raises:
        PlanError: If it does not.
    """
    asked: Request = plan.request
    model = load.model(str(path.absolute()))  # a path, whatever it ends with
    recipe = recipes.find(model, asked.hardware, plan.layout, plan.variant)
    made = build.from_request(
        Request(
            model,
            asked.hardware,
            recipe,
            recipes.scenario(recipe, SCENARIO),
            asked.site,
            asked.engine,
            overrides.parse((), tuple(recipe.roles)),
            named=asked.named,
            errata=asked.errata,  # no part of a model's file: whoever plans from it names them
            errata_off=asked.errata_off,
        )
    )
    same = [_unordered(one) for one in made.engines] == [_unordered(one) for one in plan.engines]
    if not same or made.router != plan.router:
        raise PlanError(
            f"{path}: what is planned from it differs from what was measured; take "
            f"the changes by --set instead: {' '.join(asked.pairs)}"
        )


def _unordered(engine: EngineSpec) -> EngineSpec:
    """Return the engine with its flags sorted: a plan keeps a flag that is given again in place.

    In a file it stands last, where it comes after all that it replaces. The engine's parser takes
    flags in any order; no plan gives one twice.
    """
    flags: list[tuple[str, ...]] = [()]
    for word in engine.argv:
        if word.startswith("--"):
            flags.append(())
        flags[-1] += (word,)
    return replace(
        engine, argv=tuple(word for flag in (flags[0], *sorted(flags[1:])) for word in flag)
    )
