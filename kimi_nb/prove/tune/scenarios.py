"""The configurations that the documents recommend, side by side, and how to use one.

Usage::

    scenarios.listing(model, hardware)  # what there is to choose from
    scenarios.compare({"default": plan, "throughput": other})  # what differs, and what it costs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.check import judge
from kimi_nb.core import data_files
from kimi_nb.core.errors import NoRecipeError
from kimi_nb.params import load, overrides, recipes, schema
from kimi_nb.plan import build, derivation
from kimi_nb.plan.memory import GIB
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.tune import limits

# Derived by the plan: addresses, and the shape, which has a row of its own.
_PLACED = (*overrides.DERIVED, "kv-transfer-config.kv_connector_extra_config")


def listing(
    model: schema.Model, hardware: schema.Hardware, layout: str = "", *, derive: bool = False
) -> show.Table:
    """Return a table of all scenarios of a model on a hardware, or of one layout.

    It names the notebook that takes the scenario as its parameter ``scenario``.
    """
    books = {
        entry["layout"]: name for name, entry in data_files.facts("notebook/notebooks").items()
    }
    rows = []
    for recipe in _recipes(model, hardware, layout, derive):
        named = [
            (
                recipes.DEFAULT,
                recipe.title,
                recipe.cited,
                "DERIVED" if recipe.derivation else "published",
            ),
            *((name, one.title, one.source, one.figures) for name, one in recipe.scenarios.items()),
        ]
        rows += [
            (
                recipe.layout,
                recipe.variant,
                name,
                title,
                f"{figures} ({source})",
                books.get(recipe.layout, ""),
            )
            for name, title, source, figures in named
        ]
    return show.Table(
        f"{len(rows)} scenarios of {model.title} on {hardware.name}",
        ("layout", "variant", "scenario", "about", "figures", "notebook"),
        tuple(rows),
    )


def names(
    model: schema.Model,
    hardware: schema.Hardware,
    layout: str,
    variant: str = "",
    *,
    derive: bool = False,
) -> tuple[str, ...]:
    """Return the scenarios of one recipe.

    Raises:
        NoRecipeError: If there is no such recipe.
    """
    return (
        recipes.DEFAULT,
        *derivation.find(model, hardware, layout, variant, derive=derive).scenarios,
    )


@dataclass(frozen=True, repr=False)
class SideBySide(show.Both):
    """All scenarios of a model on a hardware, and those of one layout side by side."""

    listed: show.Table
    compared: show.Table

    def __len__(self) -> int:
        return len(self.listed)

    def table(self) -> show.Table:
        """Return the table of all scenarios, with the notebook that takes each."""
        return self.listed

    def below(self) -> show.Table:
        """Return what differs between the scenarios of the layout."""
        return self.compared


def side_by_side(
    model: str,
    hardware: str,
    layout: str,
    variant: str = "",
    site: str = "",
    only: Iterable[str] = (),
    *,
    derive: bool = False,
) -> SideBySide:
    """Plan and compare the scenarios of a layout: those in ``only``, or all.

    Raises:
        NoRecipeError: If the layout or a scenario does not exist.
    """
    named, chip = load.model(model), load.hardware(hardware)
    chosen = wanted(only, names(named, chip, layout, variant, derive=derive))
    plans = {
        name: build.plan(
            model, hardware, layout, scenario=name, variant=variant, site=site, derive=derive
        )
        for name in chosen
    }
    return SideBySide(listing(named, chip, derive=derive), compare(plans))


def _recipes(
    model: schema.Model, hardware: schema.Hardware, layout: str, derive: bool
) -> list[schema.Recipe]:
    all_of = derivation.all_of(model, hardware, derive=derive)
    there = [one for one in all_of if layout in ("", one.layout)]
    if not there:
        derivation.find(model, hardware, layout or None)  # raises with what there is
        raise NoRecipeError(f"No document describes {model.title} on {hardware.name}.")
    return there


def compare(
    plans: Mapping[str, Plan], *, input_len: int = 1024, output_len: int = 1024
) -> show.Table:
    """Return a table of plans side by side, by name.

    It shows the shape, the flags and variables that differ, the memory of a rank, its cache, and
    the limits (estimated) under full batches of requests of these sizes.
    """
    columns = {name: _facts(plan, input_len, output_len) for name, plan in plans.items()}
    keys = dict.fromkeys(key for facts in columns.values() for key in facts)
    rows = []
    for kind, key in keys:
        values = [facts.get((kind, key)) for facts in columns.values()]
        if kind in ("setting", "note") and all(value == values[0] for value in values):
            continue
        rows.append((key, *("-" if value is None else value for value in values)))
    return show.Table(
        "Side by side: what differs, and what it comes to (estimated)", ("", *columns), tuple(rows)
    )


def _facts(plan: Plan, input_len: int, output_len: int) -> dict[tuple[str, str], Any]:
    """Return the facts of one plan by (kind, name)."""
    several = len(plan.flags) > 1
    out: dict[tuple[str, str], Any] = {("shape", "nodes"): len(plan.nodes)}
    for role in plan.flags:
        at = f"{role}: " if several else ""
        mine = [engine for engine in plan.engines if engine.role == role]
        groups = len({engine.group for engine in mine})
        out["shape", f"{at}shape"] = (
            f"{groups} x " if groups > 1 else ""
        ) + f"dp{mine[0].dp_size} tp{mine[0].sizes}"
        for table, dashes in ((plan.flags[role], "--"), (plan.env[role], "")):
            for name, value in table.items():
                if not name.startswith(_PLACED):
                    out["setting", f"{at}{dashes}{name}"] = value.value
    found = limits.of_plan(plan, input_len=input_len, output_len=output_len)
    out |= _memory(plan, several)
    size = f"({input_len} in, {output_len} out)"
    out["limit", f"prefill tokens/s at most {size}"] = _number(found.tokens_per_s("prefill"))
    out["limit", f"output tokens/s at most {size}"] = _number(found.tokens_per_s())
    out["limit", "TPOT at least"] = _milliseconds(found.tpot_ms())
    out["limit", "TTFT at least"] = _milliseconds(found.ttft_ms())
    for note in found.notes:
        out["note", "note"] = note
    return out


def _memory(plan: Plan, several: bool) -> dict[tuple[str, str], Any]:
    out: dict[tuple[str, str], Any] = {}
    for bar in judge.memory_of(judge.of_plan(plan)):
        at, fit, shape = f"{bar.role}: " if several else "", bar.fit, bar.fit.shape
        groups = len({engine.group for engine in plan.engines if engine.role == bar.role})
        out["memory", f"{at}memory of a device, used"] = (
            f"{fit.used / GIB:.1f} of {fit.budget / GIB:.1f} GiB"
        )
        out["memory", f"{at}cache tokens of a rank"] = f"{fit.tokens:,}"
        out["memory", f"{at}requests at once"] = shape.seqs * shape.dp * groups
        if shape.model_len:
            out["memory", f"{at}of these with the longest context"] = (
                min(shape.seqs, fit.requests(shape.model_len)) * shape.dp * groups
            )
        out["memory", f"{at}context of each in a full batch"] = f"{fit.longest:,}"
    return out


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.0f}"


def _milliseconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g} ms"


def wanted(given: Iterable[str], there: Iterable[str]) -> tuple[str, ...]:
    """Return the scenarios to compare: those given, or all.

    Raises:
        NoRecipeError: If a scenario does not exist.
    """
    known, asked = tuple(there), tuple(given)
    for name in asked:
        if name not in known:
            raise NoRecipeError(
                f"scenario '{name}' is not known here. Allowed: {', '.join(known)}."
            )
    return asked or known
