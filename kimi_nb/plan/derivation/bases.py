"""Find the documented recipe that is nearest to a model, hardware and layout.

The order: the same layout, then the same model on hardware of the same vendor, then another model of
the same architecture on the same hardware, then on others of the vendor, then other architectures. A
vendor's settings are never taken for another vendor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from kimi_nb.core.errors import NoRecipeError, choice
from kimi_nb.params import load, schema
from kimi_nb.params.fields import Layout

# From which layouts one is derived, the nearest first.
_FROM: dict[Layout, tuple[Layout, ...]] = {
    "single": ("single", "dp"),
    "dp": ("dp", "single"),
    "pd": ("pd",),
}


@dataclass(frozen=True)
class Base:
    """A documented recipe with its model and hardware."""

    model: schema.Model
    hardware: schema.Hardware
    recipe: schema.Recipe

    def __str__(self) -> str:
        one = self.recipe
        return f"{self.model.name} {one.hardware} {one.layout} {one.variant} ({one.source})"


def nearest(
    model: schema.Model, hardware: schema.Hardware, layout: Layout, variant: str = ""
) -> Base | None:
    """Return the nearest documented recipe, None if its vendor has none for the layout.

    ``variant`` is that of the recipe, or its way to install. Raises NoRecipeError for one that no
    candidate has.
    """
    others: list[str] = []
    for one in _ordered(model, hardware, layout):
        if variant in ("", one.recipe.variant, one.recipe.install):
            return one
        others += [one.recipe.variant]
    if others:
        raise NoRecipeError(choice(f"variant to derive {layout} from:", variant, others))
    return None


def _ordered(model: schema.Model, hardware: schema.Hardware, layout: Layout) -> Iterator[Base]:
    ours = shipped_models().get(model.name) is model
    for near in _FROM[layout]:
        pairs = _pairs(hardware.vendor, near)
        if not ours:  # a file of the user's own stands for ours of that name
            pairs = [one for one in pairs if one[0].model.name != model.name]
            pairs += _of_model(model, hardware.vendor, near)
        for found in sorted(pairs, key=lambda pair: _distance(model, hardware, pair[0])):
            yield from found


@functools.cache
def _pairs(vendor: str, layout: Layout) -> list[list[Base]]:
    """Return the recipes to derive from, in a list for each model and hardware."""
    return [
        pair for model in shipped_models().values() for pair in _of_model(model, vendor, layout)
    ]


def _of_model(model: schema.Model, vendor: str, layout: Layout) -> list[list[Base]]:
    out: dict[str, list[Base]] = {}
    for recipe in model.recipes:
        chip = shipped_hardware().get(recipe.hardware)
        if chip is None or chip.vendor != vendor or recipe.layout != layout:
            continue
        if recipe.documented and recipe.tried and not recipe.jobs:
            out.setdefault(chip.name, []).append(Base(model, chip, recipe))
    return list(out.values())


@functools.cache
def shipped_models() -> dict[str, schema.Model]:
    """Return the models that ship with the project, which do not change while a process runs."""
    return {name: load.model(name) for name in load.names("models")}


@functools.cache
def shipped_hardware() -> dict[str, schema.Hardware]:
    """Return the hardware that ships with the project."""
    return {name: load.hardware(name) for name in load.names("hardware")}


def _distance(model: schema.Model, hardware: schema.Hardware, base: Base) -> tuple[int, float, int]:
    same_chip = base.hardware.name in (hardware.name, hardware.recipes_of)
    far = 0.0 if same_chip else between_hardware(hardware, base.hardware)
    if base.model.name == model.name:
        return 0, far, 0
    apart = between_models(model, base.model)
    if same_architecture(model, base.model):
        return 1 if same_chip else 2, far, apart
    return 3 if same_chip else 4, far, apart


def same_architecture(one: schema.Model, other: schema.Model) -> bool:
    """Return whether two language models have the same sizes, with eyes or without."""
    mine, others = one.architecture, other.architecture
    return all(
        mine.get(name) == others.get(name)
        for name in mine.keys() | others.keys()
        if name != "vision_parameters"
    )


def between_models(one: schema.Model, other: schema.Model) -> int:
    """Return how many numbers of the architecture differ."""
    mine, others = one.architecture, other.architecture
    return sum(mine.get(name) != others.get(name) for name in mine.keys() | others.keys())


def between_hardware(one: schema.Hardware, other: schema.Hardware) -> float:
    """Return how far apart two kinds of node are: generation first, then devices and memory."""
    mine, others = one.devices, other.devices
    return (
        10.0 * (generation(one) != generation(other))
        + abs(math.log2(mine.count / others.count))
        + abs(math.log2(mine.memory_gb / others.memory_gb))
    )


_seen: dict[str, tuple[schema.Hardware, tuple[str, bool, bool, bool]]] = {}


def generation(hardware: schema.Hardware) -> tuple[str, bool, bool, bool]:
    """Return what tells generations of devices apart: the vendor, and what they compute natively.

    Devices without figures are a generation of their own, by name. It is kept for each hardware:
    every cell of the table asks for all of them.
    """
    found = _seen.get(hardware.name)
    if found is None or found[0] is not hardware:
        found = _seen[hardware.name] = (hardware, _computed(hardware))
    return found[1]


def peaks_of(hardware: schema.Hardware) -> schema.Peaks:
    """Return the peaks of a hardware, or of the one that it is like where it has none."""
    like = shipped_hardware().get(hardware.recipes_of, hardware)
    return hardware.peaks if hardware.peaks.bf16_tflops else like.peaks


def _computed(hardware: schema.Hardware) -> tuple[str, bool, bool, bool]:
    peaks = peaks_of(hardware)
    if peaks.bf16_tflops is None:
        return hardware.name, False, False, False
    few = peaks.int8_tops and peaks.int8_tops.value < peaks.bf16_tflops.value
    return hardware.vendor, bool(peaks.fp8_tflops), bool(peaks.fp4_tflops), bool(few)
