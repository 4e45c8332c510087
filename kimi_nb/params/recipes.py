"""List the deployments that are known, and find the one the user means.

>>> recipe = find(load.model("k2.5"), load.hardware("a3"), "pd")
>>> recipe.layout, sorted(recipe.roles)
('pd', ['decode', 'prefill'])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kimi_nb.core.errors import NoRecipeError, choice
from kimi_nb.params import fields, load, schema

DEFAULT = "default"


def of(model: schema.Model, hardware: schema.Hardware) -> list[schema.Recipe]:
    """Return all recipes of a model on a hardware, in the order of the model's file.

    If there are none, return those of the models that replace it on this hardware, in the order of
    the hardware's file.
    """
    own = _own(model, hardware)
    if model.no_stand_in:
        return own
    return own or [
        recipe
        for layout in hardware.models
        for recipe in _own(served(model, hardware, layout), hardware)
        if recipe.layout == layout
    ]


def _own(model: schema.Model, hardware: schema.Hardware) -> list[schema.Recipe]:
    return [recipe for recipe in model.recipes if recipe.hardware == hardware.recipes_of]


def served(model: schema.Model, hardware: schema.Hardware, layout: str = "") -> schema.Model:
    """Return the model that is served when this one is named.

    That is the model itself, or, on a hardware too small for it, the model that replaces it in
    ``layout`` (by default the first layout that has a replacement). A model without a stand-in is
    never replaced.
    """
    if not hardware.models or _own(model, hardware) or model.no_stand_in:
        return model
    standing: Mapping[Any, str] = hardware.models
    return load.model(standing.get(layout) or next(iter(standing.values())))


def find(
    model: schema.Model,
    hardware: schema.Hardware,
    layout: str | None,
    variant: str = "",
    transport: str = "",
) -> schema.Recipe:
    """Return the recipe that the user means.

    If ``layout`` is None, the only layout there is is taken, imported recipes aside where there are
    others; without a ``variant``, the first one that the site's ``transport`` can deploy. Raises
    NoRecipeError, which lists what there is.
    """
    there = of(model, hardware)
    written = [recipe for recipe in there if not recipe.source.deployment]
    layouts = list(dict.fromkeys(recipe.layout for recipe in written or there))
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
        if hardware.models and model.no_stand_in:
            raise NoRecipeError(
                f"{hardware.name} has no room for {model.title}, and no tiny model stands for it: "
                f"{model.no_stand_in}"
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
    """Return a scenario of a recipe by name; None for the recipe without any scenario."""
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


def nodes(recipe: schema.Recipe, scenario: schema.Scenario | None = None) -> int:
    """Return how many nodes a recipe takes, or a scenario of it."""
    changes = scenario.roles if scenario else {}
    shapes = (
        role.changed(changes[name]) if name in changes else role
        for name, role in recipe.roles.items()
    )
    return sum(shape.groups * shape.nodes for shape in shapes)


def _what_there_is(model: schema.Model, hardware: schema.Hardware) -> str:
    """Say where this model is documented, and which models are on this hardware."""
    chips = dict.fromkeys(recipe.hardware for recipe in model.recipes)
    lines = ["There is:"]
    if chips:
        where = (f"{chip} ({', '.join(_layouts(model, chip))})" for chip in chips)
        lines.append(f"  {model.name} on {', '.join(where)}")
    for other in _all_models(model)[1:]:
        if layouts := _layouts(other, hardware.recipes_of):
            lines.append(f"  {other.name} on {hardware.name} ({', '.join(layouts)})")
    if hardware.recipes_of in model.container_versions:
        lines.append(f"  {model.name} on {hardware.name}: the container only (notebook 02)")
    return "\n".join([*lines, "kimi-nb list shows all."])


def _layouts(model: schema.Model, chip: str) -> list[str]:
    found = (recipe.layout for recipe in model.recipes if recipe.hardware == chip)
    return list(dict.fromkeys(found))


def _all_models(first: schema.Model) -> list[schema.Model]:
    others = [load.model(name) for name in load.names("models")]
    return [first, *(other for other in others if other.name != first.name)]


def listing() -> list[dict[str, Any]]:
    """Return one row for each model, hardware, layout, variant and scenario that can be planned.

    A hardware that is like another has the recipes of that one; no document describes them for it.
    """
    like: dict[str, list[str]] = {}
    for chip in map(load.hardware, load.names("hardware")):
        if chip.recipes_of != chip.name:
            like.setdefault(chip.recipes_of, []).append(chip.name)
    rows = []
    for name in models():
        model = load.model(name)
        for recipe in model.recipes:
            named = [(DEFAULT, recipe.title, recipe.source)]
            named += [(key, entry.title, entry.source) for key, entry in recipe.scenarios.items()]
            rows += [
                {
                    "model": model.name,
                    "hardware": chip,
                    "layout": recipe.layout,
                    "scenario": key,
                    "variant": recipe.variant,
                    "documented": recipe.documented and chip == recipe.hardware,
                    "source": str(source),
                    "title": title,
                    "engine_version": recipe.engine_version,
                    "tried": recipe.tried,
                    "deployment": source.deployment,
                }
                for chip in (recipe.hardware, *like.get(recipe.hardware, ()))
                for key, title, source in named
            ]
    return rows


def known_as(model: schema.Model) -> str:
    """Return the name under which facts of a model are kept.

    That of ours with the same checkpoint, if the model is a file of the user's own, which may have
    any name; else its own name.
    """
    ours = load.names("models")
    if model.name in ours:
        return model.name
    checkpoints = {weights.id for weights in model.weights.values()}
    for name in ours:
        if checkpoints & {weights.id for weights in load.model(name).weights.values()}:
            return name
    return model.name


def models() -> list[str]:
    """Return the model names, those with plain numbers first: k2.5, k2.6, k2-thinking."""
    return sorted(load.names("models"), key=lambda name: name.replace("-", "~"))
