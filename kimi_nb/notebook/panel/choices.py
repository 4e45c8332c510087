"""Compute which choices are possible, and plan, check and write the one that is made.

Everything is pure: no widget, no thread, no file is involved.

>>> given = Choice(model="k2.5", hw="a3", layout="pd")
>>> "h200" in allowed(given)["hw"]
True
>>> given, notes = choose(given, hw="h200")
>>> given.hw
'h200'
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kimi_nb import catalog, show
from kimi_nb.bundle import scripts
from kimi_nb.check import judge
from kimi_nb.check.findings import Findings
from kimi_nb.core import data_files
from kimi_nb.core.errors import KimiError, ParameterError, choice
from kimi_nb.notebook.choice import Choice
from kimi_nb.params import fields, load, recipes, schema
from kimi_nb.plan import derivation
from kimi_nb.plan.spec import Plan

# What "" means, in words.
_DEFAULTS = {
    "derive": "off",
    "variant": "the first one",
    "scenario": "the recipe itself",
    "engine_version": "the recipe's",
}


def notebook(layout: str) -> str:
    """Return the notebook that serves a layout, the first of several; "" for none."""
    known = data_files.facts("notebook/notebooks").items()
    return next((name for name, entry in known if layout and entry["layout"] == layout), "")


def allowed(given: Choice) -> Mapping[str, tuple[str, ...]]:
    """Return the values of every choice that has a list, with the others kept; "" is a default.

    Raises KimiErrors for an unknown model or hardware.
    """
    return {name: values(given) for name, values in _VALUES.items()}


def _models(given: Choice) -> tuple[str, ...]:
    return _with(given.model, dict.fromkeys(row["model"] for row in recipes.listing()))


def _hardware(given: Choice) -> tuple[str, ...]:
    names = load.names("hardware")
    able = [name for name in names if described(dataclasses.replace(given, hw=name))]
    return _with(given.hw, able)


def _layouts(given: Choice) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.layout for one in described(given)))


def _variants(given: Choice) -> tuple[str, ...]:
    return ("", *dict.fromkeys(one.variant for one in _of_layout(given)))


def _scenarios(given: Choice) -> tuple[str, ...]:
    named = [one for one in _of_layout(given) if given.variant in ("", one.variant)]
    return ("", *dict.fromkeys(name for one in named[:1] for name in one.scenarios))


def _versions(given: Choice) -> tuple[str, ...]:
    return ("", *reversed(catalog.versions(load.hardware(given.hw).engine)))


def _of_layout(given: Choice) -> list[schema.Recipe]:
    return [one for one in described(given) if one.layout == given.layout]


_VALUES: Mapping[str, Callable[[Choice], tuple[str, ...]]] = {
    "model": _models,
    "hw": _hardware,
    "layout": _layouts,
    "variant": _variants,
    "scenario": _scenarios,
    "engine_version": _versions,
    "derive": lambda _: ("", "yes"),
}


def described(given: Choice) -> list[schema.Recipe]:
    """Return the recipes of a choice's model on its hardware, of every layout."""
    model, chip = load.model(given.model), load.hardware(given.hw)
    return derivation.all_of(model, chip, derive=bool(given.derive))


def recipe(given: Choice) -> schema.Recipe | None:
    """Return the recipe that a choice means, also where its site cannot be read; None for none.

    Raises KimiErrors for an unknown model or hardware.
    """
    model, chip = load.model(given.model), load.hardware(given.hw)
    transport = ""
    with contextlib.suppress(KimiError):
        transport = load.site(given.site).transport if given.site else ""
    with contextlib.suppress(KimiError):
        return derivation.find(
            model,
            chip,
            given.layout or None,
            given.variant,
            transport,
            derive=bool(given.derive),
        )
    return None


def _with(mine: str, names: Mapping[str, None] | list[str]) -> tuple[str, ...]:
    """Return the names and ``mine``, which may be the path of a user's own file."""
    return tuple(dict.fromkeys([*names, mine]))


def choose(given: Choice, **changes: str) -> tuple[Choice, tuple[str, ...]]:
    """Return the choices after a change, and a sentence for each other choice that had to follow.

    Raises ParameterError for an unknown choice, KimiErrors for a wrong value.
    """
    known = [one.name for one in dataclasses.fields(Choice)]
    for name in changes:
        if name not in known:
            raise ParameterError(choice("choice of the panel", name, known))
    made, notes = dataclasses.replace(given, **changes), []
    if made.hw != given.hw and made.site and "site" not in changes:
        made, notes = dataclasses.replace(made, site=""), ["site is the example of the hardware"]
    engine = load.hardware(made.hw).engine
    if (
        made.engine_version
        and "engine_version" not in changes
        and (engine != load.hardware(given.hw).engine)
    ):
        made = dataclasses.replace(made, engine_version="")
        notes.append(f"engine_version is the recipe's: {made.hw} has {engine}")
    # In this order: which values of each are allowed depends on those before it.
    for name in ("derive", "hw", "layout", "variant", "scenario", "engine_version"):
        values, value = _VALUES[name](made), getattr(made, name)
        if name == "hw" and "hw" not in changes and not described(made):
            values = tuple(one for one in values if one != made.hw)
        if value in values or not values:
            continue
        if name in changes:
            raise ParameterError(choice(name, value, filter(None, values)))
        made = dataclasses.replace(made, **{name: values[0]})
        if value:
            notes.append(_followed(made, name, value, values))
    return made, tuple(notes)


def _followed(made: Choice, name: str, value: str, values: tuple[str, ...]) -> str:
    """Say which value a choice has now, why not the one before, and what else there is."""
    there = ", ".join(filter(None, values)) or "none"
    return (
        f"{name} is {values[0] or _DEFAULTS[name]}: {value} is not there for {made.model} on "
        f"{made.hw}; there is: {there}"
    )


@dataclass(frozen=True)
class Look:
    """The consequences of choices: a plan with its findings and scripts, or the ``error``."""

    choices: Choice
    plan: Plan | None
    findings: Findings | None
    files: Mapping[str, str]
    error: str

    @property
    def parts(self) -> Mapping[str, Mapping[str, str]]:
        """The scripts by folder, then by path: one folder for each node, then the others."""
        out: dict[str, dict[str, str]] = {}
        for name, text in self.files.items():
            if "/" in name and name.endswith((".sh", ".sbatch", ".py")):
                out.setdefault(name.partition("/")[0], {})[name] = text
        return dict(
            sorted(
                out.items(), key=lambda item: self.plan is None or item[0] not in self.plan.nodes
            )
        )

    def table(self) -> show.Table:
        """Return the facts that the widgets show, one a line."""
        rows = [*self.choices.table().rows, ("this is", _verdict(self.choices))]
        if self.plan is None or self.findings is None:
            rows.append(("plan", self.error))
        else:
            engines, nodes = len(self.plan.engines), len(self.plan.nodes)
            rows += [
                (
                    "plan",
                    f"{self.plan.title}: {engines} engine{'s' * (engines > 1)} on "
                    f"{nodes} node{'s' * (nodes > 1)}, {self.plan.engine} "
                    f"{self.plan.engine_version}",
                ),
                ("front door", self.plan.url),
                ("findings", self.findings.verdict),
                *(("error", one.message) for one in self.findings.errors),
                ("scripts", f"{len(self.files)} files: {', '.join(self.parts)}"),
            ]
        return show.Table("Panel", ("what", "is"), tuple(rows))


def _verdict(given: Choice) -> str:
    """Return whether a choice is documented, derived or impossible, and why."""
    chip, layout = load.hardware(given.hw), given.layout
    found = [
        derivation.judge(load.model(given.model), chip, one)
        for one in fields.LAYOUTS
        if layout in ("", one)
    ]
    return "; ".join(f"{'' if layout else f'{one.layout} '}{one.word} ({one.why})" for one in found)


def look(given: Choice) -> Look:
    """Return a choice's plan, findings and scripts, or the error that a wrong choice gives."""
    try:
        plan = given.plan()
        return Look(given, plan, judge.plan(plan), scripts.files(plan), "")
    except KimiError as error:
        return Look(given, None, None, {}, str(error))
