"""What can be chosen, and what a choice leads to. Pure: no widget, no thread, no file.

given = choices.Choices(model="k2.5", hw="a3", layout="pd")
choices.allowed(given)["hw"]             # ("a2", "a3", ...)
given, notes = choices.choose(given, hw="h200")
choices.look(given).plan
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from kimi_nb.bundle import scripts
from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.check import judge as check
from kimi_nb.check.findings import Findings
from kimi_nb.core.errors import KimiError, ParameterError, choice
from kimi_nb.params import load as params
from kimi_nb.params import recipes
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.show import values as show

# Layout and notebook: the layout is no parameter, each has a notebook of its own.
NOTEBOOKS = {"single": "03_single_node", "dp": "04_multi_node_dp", "pd": "05_pd"}


@dataclass(frozen=True)
class Choices:
    """What is chosen; "" is the default of whatever it is. ``features``, ``without`` and
    ``overrides`` are texts as in the parameters cell."""

    model: str
    hw: str
    layout: str = ""
    scenario: str = ""
    variant: str = ""
    site: str = ""
    engine_version: str = ""
    features: str = ""
    without: str = ""
    overrides: str = ""

    def lines(self) -> str:
        """The lines that say the same in the parameters cell."""
        values = dataclasses.asdict(self)
        del values["layout"]
        always = {name: values.pop(name) for name in ("hw", "model", "site")}
        chosen = {name: value for name, value in values.items() if value}
        return "\n".join(
            f"{name}: str = {json.dumps(value, ensure_ascii=False)}"
            for name, value in (always | chosen).items()
        )


def allowed(given: Choices) -> Mapping[str, tuple[str, ...]]:
    """The values of every choice that has a list, for the others as they are; "" is a default.
    Raises KimiErrors for a model or hardware that is not known."""
    model, chip = params.model(given.model), params.hardware(given.hw)
    models = dict.fromkeys(row["model"] for row in recipes.listing())
    chips = [name for name in params.names("hardware") if recipes.of(model, params.hardware(name))]
    there = recipes.of(model, chip)
    of_layout = [recipe for recipe in there if recipe.layout == given.layout]
    named = [recipe for recipe in of_layout if given.variant in ("", recipe.variant)]
    return {
        "model": _with(given.model, models),
        "hw": _with(given.hw, chips),
        "layout": tuple(dict.fromkeys(recipe.layout for recipe in there)),
        "variant": ("", *dict.fromkeys(recipe.variant for recipe in of_layout)),
        "scenario": ("", *dict.fromkeys(name for recipe in named[:1] for name in recipe.scenarios)),
        "engine_version": ("", *reversed(catalog.versions(chip.engine))),
    }


def _with(mine: str, names: Mapping[str, None] | list[str]) -> tuple[str, ...]:
    """The names, and a file of one's own."""
    return tuple(dict.fromkeys([*names, mine]))


def choose(given: Choices, **changes: str) -> tuple[Choices, tuple[str, ...]]:
    """The choices after a change, and a sentence for each that had to follow.

    Raises ParameterError for a choice that there is not, KimiErrors for its value.
    """
    known = [one.name for one in dataclasses.fields(Choices)]
    for name in changes:
        if name not in known:
            raise ParameterError(choice("choice of the panel", name, known))
    made, notes = dataclasses.replace(given, **changes), []
    if made.hw != given.hw and made.site and "site" not in changes:
        made, notes = dataclasses.replace(made, site=""), ["site is the example of the hardware"]
    engine = params.hardware(made.hw).engine
    if (
        made.engine_version
        and "engine_version" not in changes
        and (engine != params.hardware(given.hw).engine)
    ):
        made = dataclasses.replace(made, engine_version="")
        notes.append(f"engine_version is the default: {made.hw} has {engine}")
    # In this order: what is allowed of each depends on those before it.
    for name in ("hw", "layout", "variant", "scenario", "engine_version"):
        values, value = allowed(made)[name], getattr(made, name)
        if (
            name == "hw"
            and not recipes.of(params.model(made.model), params.hardware(made.hw))
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
    """What choices lead to: a plan with its findings and scripts, or the ``error``."""

    choices: Choices
    plan: Plan | None
    findings: Findings | None
    files: Mapping[str, str]
    error: str

    @property
    def parts(self) -> Mapping[str, str]:
        """The scripts by folder: one for each node, then what stands beside them."""
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
        """The same facts as the widgets show, one a line."""
        given = self.choices
        rows = [
            ("model", given.model),
            ("hardware", given.hw),
            ("layout", given.layout),
            ("scenario", given.scenario or "default"),
            ("variant", given.variant or "default"),
            ("site", given.site or "the example of the hardware"),
            ("engine version", given.engine_version or "the recipe's"),
        ]
        rows += [
            (name, getattr(given, name))
            for name in ("features", "without", "overrides")
            if getattr(given, name)
        ]
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


def look(given: Choices) -> Look:
    """Plan, ask the rules, write the scripts as text; a person's mistake is the error."""
    try:
        plan = build.plan(
            given.model,
            given.hw,
            given.layout or None,
            scenario=given.scenario,
            variant=given.variant,
            site=given.site,
            chosen=_split(given.features, ","),
            dropped=_split(given.without, ","),
            pairs=_split(given.overrides, ";"),
            engine_version=given.engine_version,
        )
        return Look(given, plan, check.plan(plan), scripts.files(plan), "")
    except KimiError as error:
        return Look(given, None, None, {}, str(error))


def _split(text: str, sign: str) -> list[str]:
    return [word.strip() for word in text.split(sign) if word.strip()]
