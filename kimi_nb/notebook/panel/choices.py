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

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from kimi_nb import catalog, show
from kimi_nb.bundle import scripts
from kimi_nb.check import judge
from kimi_nb.check.findings import Findings
from kimi_nb.core import data_files
from kimi_nb.core.errors import KimiError, ParameterError, choice
from kimi_nb.notebook.choice import Choice
from kimi_nb.params import fields, load, recipes
from kimi_nb.plan import derivation
from kimi_nb.plan.spec import Plan


def notebook(layout: str) -> str:
    """Return the notebook that serves a layout, the first of several; "" for none."""
    known = data_files.facts("notebook/notebooks").items()
    return next((name for name, entry in known if layout and entry["layout"] == layout), "")


def allowed(given: Choice) -> Mapping[str, tuple[str, ...]]:
    """Return the values of every choice that has a list, with the others kept; "" is a default.

    Raises KimiErrors for an unknown model or hardware.
    """
    model, chip = load.model(given.model), load.hardware(given.hw)
    models = dict.fromkeys(row["model"] for row in recipes.listing())
    derive = bool(given.derive)
    chips = [
        name
        for name in load.names("hardware")
        if derivation.all_of(model, load.hardware(name), derive=derive)
    ]
    there = derivation.all_of(model, chip, derive=derive)
    of_layout = [recipe for recipe in there if recipe.layout == given.layout]
    named = [recipe for recipe in of_layout if given.variant in ("", recipe.variant)]
    return {
        "model": _with(given.model, models),
        "hw": _with(given.hw, chips),
        "layout": tuple(dict.fromkeys(recipe.layout for recipe in there)),
        "variant": ("", *dict.fromkeys(recipe.variant for recipe in of_layout)),
        "scenario": ("", *dict.fromkeys(name for recipe in named[:1] for name in recipe.scenarios)),
        "engine_version": ("", *reversed(catalog.versions(chip.engine))),
        "derive": ("", "yes"),
    }


def titles(given: Choice) -> Mapping[str, str]:
    """Return the title of each variant of the chosen layout, by its name; the default has none."""
    there = derivation.all_of(
        load.model(given.model), load.hardware(given.hw), derive=bool(given.derive)
    )
    return {one.variant: one.title for one in there if one.layout == given.layout}


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
        notes.append(f"engine_version is the default: {made.hw} has {engine}")
    # In this order: which values of each are allowed depends on those before it.
    for name in ("derive", "hw", "layout", "variant", "scenario", "engine_version"):
        values, value = allowed(made)[name], getattr(made, name)
        if (
            name == "hw"
            and not derivation.all_of(
                load.model(made.model), load.hardware(made.hw), derive=bool(made.derive)
            )
            and "hw" not in changes
        ):
            values = tuple(one for one in values if one != made.hw)
        if value in values or not values:
            continue
        if name in changes:
            raise ParameterError(choice(name, value, values))
        made = dataclasses.replace(made, **{name: values[0]})
        if value:
            notes.append(
                f"{name} is {values[0] or 'the default'}: {value} is not there for "
                f"{made.model} on {made.hw}"
            )
    return made, tuple(notes)


@dataclass(frozen=True)
class Look:
    """The consequences of choices: a plan with its findings and scripts, or the ``error``."""

    choices: Choice
    plan: Plan | None
    findings: Findings | None
    files: Mapping[str, str]
    error: str

    @property
    def parts(self) -> Mapping[str, str]:
        """The scripts by folder: one for each node, then the other files."""
        out: dict[str, list[str]] = {}
        for name, text in self.files.items():
            if "/" in name and name.endswith((".sh", ".sbatch", ".py")):
                out.setdefault(name.partition("/")[0], []).append(f"##### {name}\n{text}")
        return {
            folder: "\n".join(texts)
            for folder, texts in sorted(
                out.items(), key=lambda item: self.plan is None or item[0] not in self.plan.nodes
            )
        }

    def table(self) -> show.Table:
        """Return the facts that the widgets show, one a line."""
        rows = [*self.choices.table().rows, ("this is", _verdict(self.choices))]
        if self.plan is None or self.findings is None:
            rows.append(("plan", self.error))
        else:
            rows += [
                (
                    "plan",
                    f"{self.plan.title}: {len(self.plan.engines)} engines on "
                    f"{len(self.plan.nodes)} nodes, {self.plan.engine} "
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
