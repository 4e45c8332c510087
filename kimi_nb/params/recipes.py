"""Which deployments there are, and the one that a person means.

for row in recipes.listing(): ...
recipe = recipes.find(model, hardware, "pd")
scenario = recipes.scenario(recipe, "throughput")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kimi_nb.core.errors import NoRecipeError, choice
from kimi_nb.params import fields, schema
from kimi_nb.params import load as params

DEFAULT = "default"


def of(model: schema.Model, hardware: schema.Hardware) -> list[schema.Recipe]:
    """All recipes of a model on a hardware, in the order of the model's file; where it has none,
    those of the models that stand for it there, in the order of the hardware's file."""
    own = _own(model, hardware)
    return own or [
        recipe
        for layout in hardware.models
        for recipe in _own(served(model, hardware, layout), hardware)
        if recipe.layout == layout
    ]


def _own(model: schema.Model, hardware: schema.Hardware) -> list[schema.Recipe]:
    return [recipe for recipe in model.recipes if recipe.hardware == hardware.recipes_of]


def served(model: schema.Model, hardware: schema.Hardware, layout: str = "") -> schema.Model:
    """What is served when this model is named: itself, or what stands for it in a layout
    (without one: in the first) on a hardware that has no room for it."""
    if not hardware.models or _own(model, hardware):
        return model
    standing: Mapping[Any, str] = hardware.models
    return params.model(standing.get(layout) or next(iter(standing.values())))


def find(
    model: schema.Model,
    hardware: schema.Hardware,
    layout: str | None,
    variant: str = "",
    transport: str = "",
) -> schema.Recipe:
    """The recipe that a person means.

    ``layout`` None stands for the only one there is; without a ``variant`` the first that the
    site's ``transport`` can carry is taken. Raises NoRecipeError with what there is.
    """
    there = of(model, hardware)
    layouts = list(dict.fromkeys(recipe.layout for recipe in there))
    if layout is None and len(layouts) == 1:
        layout = layouts[0]
    if layout is not None and layout not in fields.LAYOUTS:
        raise NoRecipeError(choice("layout", layout, fields.LAYOUTS))
    matching = [recipe for recipe in there if recipe.layout == layout]
    if not matching:
        if layout is None and there:
            raise NoRecipeError(
                f"{model.title} on {hardware.name} has {len(layouts)} layouts; say "
                f"which one you mean: --layout {' or '.join(layouts)}."
            )
        asked = f" with layout {layout}" if layout else ""
        raise NoRecipeError(
            f"No document describes {model.title} on {hardware.name}{asked}.\n"
            f"{_what_there_is(model, hardware)}"
        )
    if variant:
        exact = [recipe for recipe in matching if recipe.variant == variant]
        if not exact:
            raise NoRecipeError(
                choice(
                    f"variant of {model.name} on {hardware.name}, {layout}:",
                    variant,
                    [recipe.variant for recipe in matching],
                )
            )
        return exact[0]
    carried = [recipe for recipe in matching if recipe.jobs == (transport == "slurm")]
    return (carried or matching)[0]


def scenario(recipe: schema.Recipe, name: str) -> schema.Scenario | None:
    """A scenario of a recipe by name; None for the recipe as it is."""
    if name in ("", DEFAULT):
        return None
    if name not in recipe.scenarios:
        raise NoRecipeError(
            choice(
                f"scenario of {recipe.hardware} {recipe.layout} {recipe.variant}:",
                name,
                [DEFAULT, *recipe.scenarios],
            )
        )
    return recipe.scenarios[name]


def _what_there_is(model: schema.Model, hardware: schema.Hardware) -> str:
    lines = ["There is:"]
    for other in _all_models(model):
        by_hardware: dict[str, list[str]] = {}
        for recipe in other.recipes:
            layouts = by_hardware.setdefault(recipe.hardware, [])
            if recipe.layout not in layouts:
                layouts.append(recipe.layout)
        lines += [
            f"  {other.name:<12} on {name:<7} {', '.join(layouts)}"
            for name, layouts in by_hardware.items()
        ]
    if hardware.recipes_of in model.container_versions:
        lines.append(f"  {model.name:<12} on {hardware.name:<7} the container only (notebook 02)")
    return "\n".join(lines)


def _all_models(first: schema.Model) -> Iterable[schema.Model]:
    others = [params.model(name) for name in params.names("models")]
    return [first, *(other for other in others if other.name != first.name)]


def listing() -> list[dict[str, Any]]:
    """One row for each model, hardware, layout, variant and scenario that can be planned."""
    rows = []
    for name in models():
        model = params.model(name)
        for recipe in model.recipes:
            named = [(DEFAULT, recipe.title, recipe.source, recipe.documented)]
            named += [
                (key, entry.title, entry.source, recipe.documented)
                for key, entry in recipe.scenarios.items()
            ]
            rows += [
                {
                    "model": model.name,
                    "hardware": recipe.hardware,
                    "layout": recipe.layout,
                    "scenario": key,
                    "variant": recipe.variant,
                    "documented": documented,
                    "source": str(source),
                    "title": title,
                    "engine_version": recipe.engine_version,
                }
                for key, title, source, documented in named
            ]
    return rows


def models() -> list[str]:
    """The models with the plain numbers first: k2.5, k2.6, k2-thinking."""
    return sorted(params.names("models"), key=lambda name: name.replace("-", "~"))


def missing() -> list[dict[str, str]]:
    """Every model, hardware and layout that no document describes. A hardware with models of its
    own is asked for those only, and no other hardware is."""
    there = {(row["model"], row["hardware"], row["layout"]) for row in listing()}
    own = {name: set(params.hardware(name).models.values()) for name in params.names("hardware")}
    standing = set().union(*own.values())
    return [
        {"model": model, "hardware": hardware, "layout": layout}
        for model in models()
        for hardware, mine in own.items()
        if (model in mine if mine else model not in standing)
        for layout in fields.LAYOUTS
        if (model, hardware, layout) not in there
    ]


def container_only() -> list[tuple[str, str]]:
    """(model, hardware) of which the documents give the container and nothing else."""
    return [
        (name, chip)
        for name in params.names("models")
        for chip in params.model(name).container_versions
    ]
