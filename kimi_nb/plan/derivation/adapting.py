"""Adapt the parts of a base recipe: weights, features, version, and which settings are kept."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import companions
from kimi_nb.core import data_files
from kimi_nb.params import load, schema
from kimi_nb.plan import memory
from kimi_nb.plan.derivation.bases import (
    Base,
    generation,
    peaks_of,
    same_architecture,
    shipped_hardware,
    shipped_models,
)

_Steps = dict[str, tuple[str, str]]


class Impossible(Exception):
    """No recipe can be derived; the text is the reason, with the sum where there is one."""


@dataclass(frozen=True)
class Subject:
    """What a recipe is derived for, from what, and with which weights and engine."""

    model: schema.Model
    hardware: schema.Hardware
    layout: str
    base: Base
    weights: str = ""
    engine: catalog.Engine | None = None

    @property
    def precision(self) -> str:
        """The format of the weights."""
        return self.model.weights[self.weights].precision

    @property
    def base_precision(self) -> str:
        """The format of the base's weights."""
        return self.base.model.weights[self.base.recipe.weights].precision


def facts() -> Mapping[str, Any]:
    """Return the rules of data/plan/derivation.yaml."""
    return data_files.facts("plan/derivation")


# Weights -----------------------------------------------------------------------------------


def weights(subject: Subject) -> list[str]:
    """Return the checkpoints that the hardware computes, the preferred first.

    That of the base's format comes first, then those that documents serve on devices of the vendor,
    then formats that they serve on this hardware, then the smallest. Raises Impossible if there is none.
    """
    model, hardware = subject.model, subject.hardware
    served = _served(hardware.recipes_of)
    able, why = [], []
    for key, item in model.weights.items():
        refusal = "" if _proven(subject, key) else not_computed(hardware, item.precision)
        if refusal:
            why.append(refusal)
        else:
            able.append(key)
    if not able:
        raise Impossible(
            f"{hardware.name} computes no weights of {model.title}: "
            f"{'; '.join(dict.fromkeys(why)) or 'none are known'}"
        )

    def order(key: str) -> tuple[bool, bool, bool, float]:
        kind = model.weights[key].precision
        other = kind != subject.base_precision
        return other, not _of_vendor(subject, key), kind not in served, _size(model, key)

    return sorted(able, key=order)


def _size(model: schema.Model, key: str) -> float:
    item = model.weights[key]
    return float(item.size_gb or memory.PRECISIONS.get(item.precision, (9.0,))[0] * 1e3)


@functools.cache
def _served(chip: str) -> frozenset[str]:
    """Return the formats that documents serve on a hardware."""
    return frozenset(
        model.weights[recipe.weights].precision
        for model in shipped_models().values()
        for recipe in model.recipes
        if recipe.hardware == chip and recipe.documented
    )


def _of_vendor(subject: Subject, key: str) -> bool:
    """Return whether a document serves this checkpoint on devices of the vendor."""
    vendor = subject.hardware.vendor
    return any(chip.vendor == vendor for chip in _chips(subject, key))


def _proven(subject: Subject, key: str) -> bool:
    """Return whether a document serves this checkpoint on devices of the same generation."""
    mine = generation(subject.hardware)
    return any(generation(chip) == mine for chip in _chips(subject, key))


def _chips(subject: Subject, key: str) -> list[schema.Hardware]:
    """Return the hardware on which documents serve a checkpoint, but for files of the user's own."""
    there = shipped_hardware()
    return [
        there[recipe.hardware]
        for recipe in subject.model.recipes
        if recipe.weights == key and recipe.documented and recipe.hardware in there
    ]


def not_computed(hardware: schema.Hardware, precision: str) -> str:
    """Return why a hardware does not compute weights of a format, "" if it does.

    >>> not_computed(shipped_hardware()["gb200"], "NVFP4")
    ''
    """
    rows = facts()["formats"].get(precision)
    if rows is None:
        return f"what computes {precision} is not known"
    rows = rows if isinstance(rows, list) else [rows]
    mine = [row for row in rows if hardware.vendor in row["vendors"]]
    peaks = peaks_of(hardware)
    for row in mine:
        peak, base = getattr(peaks, row.get("peak", "bf16_tflops")), peaks.bf16_tflops
        if "peak" not in row or (
            peak and (base is None or peak.value >= row["least_of_bf16"] * base.value)
        ):
            return ""
    unknown = "; what it computes is not published" if mine and not peaks.bf16_tflops else ""
    return f"{(mine[0] if mine else rows[-1])['why']}{unknown}"


# Version -----------------------------------------------------------------------------------


def version(subject: Subject) -> tuple[str, str]:
    """Return the engine's version and the rule that gave it.

    It is the newest that a document serves this model with, else that of the base; and never older
    than the oldest that a document serves this hardware with.
    """
    package = subject.hardware.engine
    tested = _versions(subject.model, package)
    found, rule = subject.base.recipe.engine_version, "that of the nearest recipe"
    if tested:
        found = _newest(tested)
        rule = f"the newest that a document serves {subject.model.title} with"
    floor = _floor(subject.hardware.recipes_of)
    if floor and catalog.earlier(found, floor):
        found = floor
        rule = f"the oldest that a document serves {subject.hardware.name} with"
    if _too_old(subject, found):
        later = [one for one in catalog.versions(package) if not catalog.earlier(one, found)]
        able = [one for one in later if not _too_old(subject, one)]
        why = _too_old(subject, found)
        if not able:
            raise Impossible(f"{why}; no listed version of {package} is")
        return able[0], f"the oldest from {found} on that is enough: {why}"
    return found, rule


_engine = functools.cache(catalog.engine)
_cuda = functools.cache(companions.cuda_major)


@functools.cache
def _satisfies(engine: catalog.Engine, needed: str) -> bool:
    return catalog.satisfies(engine, needed)


@functools.cache
def _serves(engine: catalog.Engine, needed: str) -> bool:
    return catalog.serves(engine, {engine.package: needed})


def _too_old(subject: Subject, number: str) -> str:
    """Return what a version lacks for the model or the hardware, "" if nothing is known."""
    model, hardware = subject.model, subject.hardware
    engine = _engine(hardware.engine, number)
    wanted = model.engines.get(hardware.engine, "")
    if not _serves(engine, wanted):
        return f"{model.title} needs {engine.package} {wanted}"
    image = subject.base.recipe.install == "docker"
    if hardware.least_cuda and _cuda(engine, image) < hardware.least_cuda:
        return f"{hardware.name} needs a build for CUDA {hardware.least_cuda}"
    return ""


def _newest(versions: Iterable[str]) -> str:
    return functools.reduce(lambda a, b: b if catalog.earlier(a, b) else a, versions)


def _versions(model: schema.Model, package: str) -> list[str]:
    able = {name for name, chip in shipped_hardware().items() if chip.engine == package}
    return [
        recipe.engine_version
        for recipe in model.recipes
        if recipe.documented and recipe.hardware in able
    ]


@functools.cache
def _floor(chip: str) -> str:
    """Return the oldest version that documents serve a hardware with; "" without documents."""
    there = [
        recipe.engine_version
        for model in shipped_models().values()
        for recipe in model.recipes
        if recipe.hardware == chip and recipe.documented
    ]
    return functools.reduce(lambda a, b: a if catalog.earlier(a, b) else b, there) if there else ""


# Features ----------------------------------------------------------------------------------


def features(subject: Subject, names: Iterable[str], steps: _Steps) -> list[str]:
    """Return the features that take the place of a recipe's; ``steps`` is told of each change."""
    kept: list[str] = []
    for name in names:
        other, why = _feature(subject, name)
        if other != name:
            steps[f"feature {name}"] = (other or "left out", why)
        if other and other not in kept:
            kept.append(other)
    known = load.features()
    for name in list(kept):
        lacking = [one for one in known[name].requires if one not in kept]
        if lacking:
            kept.remove(name)
            steps[f"feature {name}"] = ("left out", f"it requires {', '.join(lacking)}")
    return kept


def _feature(subject: Subject, name: str) -> tuple[str, str]:
    """Return (the feature that takes the place of one, why); "" for none."""
    known = load.features()
    feature = known[name]
    assert subject.engine is not None
    if feature.draft:
        return _draft(subject, name)
    same = [
        other
        for other, one in known.items()
        if subject.model.name in one.models
        and set(one.on.flags) == set(feature.on.flags)
        and not one.draft
        and feature.on.flags
    ]
    if feature.on.flags and set(feature.on.flags) <= set(subject.model.settings.flags):
        return "", f"{subject.model.title} has its own settings for it"
    if subject.model.name not in feature.models and same:
        return same[0], f"that of {subject.model.title}"
    if feature.models and subject.model.name not in feature.models:
        return "", f"it is not for {subject.model.title}"
    if subject.layout not in feature.layouts:
        return "", f"it is not for layout {subject.layout}"
    if not _satisfies(subject.engine, feature.vllm):
        return "", f"it needs vLLM {feature.vllm}"
    settings = [*feature.on.flags, *feature.on.env]
    whys = [barred(subject, one) for one in settings]
    if settings and all(whys):
        return "", whys[0]
    return name, ""


def _draft(subject: Subject, name: str) -> tuple[str, str]:
    """Return the feature of a draft of the model itself, of the same method and for the vendor."""
    known, model, base = load.features(), subject.model, subject.base.model
    assert subject.engine is not None
    before = base.drafts.get(known[name].draft)
    fits = {
        other: model.drafts[one.draft]
        for other, one in known.items()
        if one.draft in model.drafts
        and subject.hardware.vendor in one.vendors
        and subject.hardware.vendor in model.drafts[one.draft].vendors
        and subject.layout in one.layouts
        and _satisfies(subject.engine, model.drafts[one.draft].vllm)
        and (not one.models or model.name in one.models)
    }
    if name in fits:
        return name, ""
    for other, draft in fits.items():
        if before is not None and draft.method == before.method:
            return other, f"the draft of {model.title} by the same method"
    method = before.method if before else "such"
    return "", f"{model.title} has no {method} draft for {subject.hardware.vendor} at this version"


# Settings ----------------------------------------------------------------------------------


def of_the_model(subject: Subject, settings: schema.Settings, steps: _Steps) -> schema.Settings:
    """Return the settings with the parsers of this model where they name others."""
    parsers = subject.model.parsers
    flags = dict(settings.flags)
    for name, value in (
        ("tool-call-parser", parsers.tool),
        ("reasoning-parser", parsers.reasoning),
    ):
        if flags.get(name) not in (None, value):
            flags[name] = value
            steps[name] = (value, f"that of {subject.model.title}")
    return schema.Settings(flags=flags, env=settings.env)


@functools.cache
def _rules() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    return tuple(
        (re.compile(row["names"]), row["needs"], row["why"]) for row in facts()["settings"]
    )


@functools.cache
def _rules_of(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((needs, why) for pattern, needs, why in _rules() if pattern.fullmatch(name))


def barred(subject: Subject, name: str) -> str:
    """Return why a setting of the base is left out, "" if it is kept."""
    return next((why for needs, why in _rules_of(name) if not _holds(subject, needs)), "")


def _holds(subject: Subject, needs: str) -> bool:
    model, hardware, base = subject.model, subject.hardware, subject.base
    if needs == "vision":
        return "vision_parameters" in model.architecture
    if needs == "same-hardware":
        return base.recipe.hardware in (hardware.name, hardware.recipes_of)
    if needs == "same-memory":
        return hardware.devices.memory_gb == base.hardware.devices.memory_gb
    if needs == "same-generation":
        return generation(hardware) == generation(base.hardware)
    if needs == "same-precision":
        return subject.precision == subject.base_precision
    if needs == "same-architecture":
        return same_architecture(model, base.model)
    if needs == "rack":
        link, network = hardware.peaks.node_link_gb_s, hardware.peaks.network_gb_s
        return bool(link and network and network.value >= link.value)
    assert needs == "several-nodes", needs
    return subject.layout != "single"


def kept(subject: Subject, settings: schema.Settings, steps: _Steps) -> schema.Settings:
    """Return the settings without those that do not hold here; ``steps`` is told of each."""
    return schema.Settings(
        flags=_kept(subject, settings.flags, "", steps), env=_kept(subject, settings.env, "", steps)
    )


def _kept(subject: Subject, table: Mapping[str, Any], before: str, steps: _Steps) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{before}{key}"
        if why := barred(subject, name):
            steps[name] = ("left out", why)
            continue
        if isinstance(value, Mapping) and not (
            "value" in value and set(value) <= {"value", "reason"}
        ):
            inner = _kept(subject, value, f"{name}.", steps)
            if inner or not value:
                out[key] = inner
        else:
            out[key] = value
    return out
