"""Tell which of our recipes differ from what checkouts publish now, and propose what to change.

For example::

    found = upstream.read([Path("recipes")])
    print(watch.compare(found))  # same, changed, new or gone, with the differences
    watch.compare(found).patches()  # {"k2.5.yaml": text}: a model file with what is published now

A patch is a model file that extends ours: ``kimi-nb plan --model PATCH`` plans it as it stands.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from kimi_nb import show
from kimi_nb.core import data_files
from kimi_nb.core.errors import KimiError
from kimi_nb.params import load, recipes, schema
from kimi_nb.plan import build
from kimi_nb.upstream import as_recipe, group_shapes
from kimi_nb.upstream.counted import Deployment
from kimi_nb.upstream.overview import Found
from kimi_nb.upstream.plan_differences import Difference, differences

SAME, CHANGED, NEW, GONE, LEFT_OUT = "same", "changed", "new", "gone", "left out"
_MOST_SHOWN = 40


@dataclass(frozen=True)
class Ours:
    """One of our recipes or scenarios that stands for a published deployment."""

    model: str
    recipe: schema.Recipe
    scenario: str


@dataclass(frozen=True)
class Entry:
    """What became of one deployment; ``said`` are the differences, or the reason."""

    deployment: str
    state: str
    model: str
    hardware: str
    said: tuple[str, ...] = ()
    now: Deployment | None = None
    ours: Ours | None = None
    url: str = ""


@dataclass(frozen=True)
class Watch(show.Shown):
    """What became of every deployment, with the checkouts that were read."""

    entries: tuple[Entry, ...]
    read_from: tuple[str, ...]

    def table(self) -> show.Table:
        """List what differs; what is the same is only counted."""
        rows = [
            (one.state, one.deployment, one.model, one.hardware, "; ".join(one.said[:3]))
            for one in self.entries
            if one.state in (CHANGED, NEW, GONE)
        ]
        headings = ("state", "deployment", "model", "hardware", "what")
        return show.Table("Against our recipes", headings, tuple(rows[:_MOST_SHOWN]))

    def notes(self) -> list[str]:
        """Count the deployments by what became of them."""
        states = [one.state for one in self.entries]
        counts = ", ".join(
            f"{states.count(state)} {state}" for state in (SAME, CHANGED, NEW, GONE, LEFT_OUT)
        )
        hidden = sum(map(states.count, (CHANGED, NEW, GONE))) - _MOST_SHOWN
        rest = [f"... and {hidden} more; --json lists all."] if hidden > 0 else []
        return [*rest, f"{counts}.", *self.read_from]

    def as_dict(self) -> dict[str, Any]:
        """Return every entry as JSON knows it."""
        return {
            "entries": [
                {
                    "deployment": one.deployment,
                    "state": one.state,
                    "model": one.model,
                    "hardware": one.hardware,
                    "said": list(one.said),
                    "source": one.url,
                }
                for one in self.entries
            ]
        }

    def patches(self) -> dict[str, str]:
        """Return a model file for each model that has changed or new deployments, by its name."""
        by_model: dict[str, list[Entry]] = {}
        for one in self.entries:
            if one.state in (CHANGED, NEW) and one.now is not None:
                by_model.setdefault(one.model, []).append(one)
        return {
            f"{model}.yaml": _patch(model, found, self.read_from)
            for model, found in by_model.items()
        }


def compare(found: Found) -> Watch:
    """Return what became of every deployment of a hardware and model that we know."""
    ours = dict(_imported())
    weights = {
        item.id.lower(): (name, key)
        for name in recipes.models()
        for key, item in load.model(name).weights.items()
    }
    there = {one.id for one in found.deployments}
    entries = []
    for one in found.deployments:
        if one.hardware not in load.names("hardware") or one.model.lower() not in weights:
            continue
        devices = load.hardware(one.hardware).devices.count
        now = group_shapes.counted(one, devices)
        model, _ = weights[one.model.lower()]
        key = one.id if one.id in ours else _moved(now, ours, there)
        mine = ours.pop(key, None)
        # Errata go by the name under which we know the deployment.
        state, said = _became(replace(now, id=key) if mine else now, mine)
        entries.append(Entry(one.id, state, model, one.hardware, said, now, mine, one.source.url))
    kinds = {name.partition(":")[0] for name in there}
    wanted = found.model.lower()
    for key, mine in ours.items():
        served = load.model(mine.model).weights[mine.recipe.weights].id.lower()
        if (
            key not in there
            and key.partition(":")[0] in kinds
            and wanted in f"{key} {served}".lower()
        ):
            entries.append(Entry(key, GONE, mine.model, mine.recipe.hardware, ours=mine))
    read_from = tuple(f"{one.repo} at {one.commit}." for one in found.checkouts)
    return Watch(tuple(entries), read_from)


def _imported() -> Iterator[tuple[str, Ours]]:
    for name in recipes.models():
        for recipe in load.model(name).recipes:
            if recipe.source.deployment:
                yield recipe.source.deployment, Ours(name, recipe, recipes.DEFAULT)
            for key, row in recipe.scenarios.items():
                if row.source.deployment:
                    yield row.source.deployment, Ours(name, recipe, key)


def _moved(now: Deployment, ours: Mapping[str, Ours], there: Container[str]) -> str:
    """Return our name of a document's command that stands at another line by now, "" without one.

    It is of the same document, for the same hardware, has the same roles and sizes, and its own
    line has no command any more. Of several, it is the one that differs least.
    """
    page, _, line = now.id.rpartition(":")
    if not line.isdigit():
        return ""
    shape = {one.name: (one.nodes, one.dp, one.tp) for one in now.roles if "worker" not in one.name}
    alike = [
        key
        for key, mine in ours.items()
        if key not in there
        and key.rpartition(":")[0] == page
        and mine.recipe.hardware == now.hardware
        and shape == {name: (one.nodes, one.dp, one.tp) for name, one in mine.recipe.roles.items()}
    ]

    def apart(key: str) -> int:
        return len(_became(replace(now, id=key), ours[key])[1])

    return min(alike, key=apart, default="")


def _became(now: Deployment, mine: Ours | None) -> tuple[str, tuple[str, ...]]:
    """Return the state of a deployment, and in what it differs or why it is left out."""
    if mine is None:
        for entry in data_files.facts("upstream/left_out")["left_out"]:
            if any(fnmatch.fnmatchcase(now.id, glob) for glob in entry["deployments"]):
                return LEFT_OUT, (entry["why"],)
        return NEW, ("no recipe of ours stands for it",)
    try:
        plan = build.plan(
            mine.model,
            mine.recipe.hardware,
            mine.recipe.layout,
            variant=mine.recipe.variant,
            scenario=mine.scenario,
        )
    except KimiError as error:
        return CHANGED, (str(error).splitlines()[0],)
    found: list[Difference] = [one for one in differences(plan, now) if not one.erratum]
    return (CHANGED, tuple(map(str, found))) if found else (SAME, ())


def _patch(model: str, entries: list[Entry], read_from: tuple[str, ...]) -> str:
    """Return a model file that extends ours by what is published now."""
    named = load.model(model)
    ids = {item.id.lower(): key for key, item in named.weights.items()}
    comments = [f"Proposed by kimi-nb upstream for {named.title}, from {' '.join(read_from)}"]
    made = []
    for at, one in enumerate(entries):
        assert one.now is not None
        comments += [f"{one.deployment} ({one.url}): {said}" for said in one.said]
        recipe = as_recipe.recipe(
            one.now, named, load.hardware(one.hardware), ids[one.now.model.lower()]
        )
        ours = one.ours.recipe if one.ours else None
        front = {"router": "vllm-router"} if recipe["layout"] == "pd" else {}
        made.append(
            {
                **recipe,
                **front,
                "variant": ours.variant if ours else f"upstream-{at}",
                "title": f"As published now: {one.deployment}",
                "source": {
                    "document": ours.source.document if ours else "vllm-recipes",
                    "section": one.deployment,
                },
                "engine_version": ours.engine_version if ours else _version(one.now, named),
                "install": ours.install if ours else "docker",
                "bind": ours.bind if ours else "all",
            }
        )
    file = {"extends": model, "families": None, "recipes": made}
    # A line break in a value that a publisher gives would end the comment.
    lines = [f"# {show.visible(comment, lines=False)}" for comment in comments]
    return "\n".join([*lines, yaml.safe_dump(file, sort_keys=False, width=110)])


def _version(now: Deployment, model: schema.Model) -> str:
    """Return a version for a new deployment: the one that most of the model's recipes take."""
    chips = {one.hardware: one.engine_version for one in model.recipes}
    return chips.get(now.hardware) or next(iter(chips.values()), "0.19.1")
