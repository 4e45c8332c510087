"""Translate the settings of a plan for one engine version.

Recipes are written once, for all versions. Call ``settings, notes = language.speak(settings,
engine, role)``: a variable that moved to ``--additional-config`` at this version becomes such a
key unless a layer as high sets that key, a variable, flag or key that this version no longer has in
this role is dropped, and a flag that it does not have yet is an error. ``notes`` reports every change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import setting_values
from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params.settings import Layered, Value

_LAYERS = ("hardware", "model", "recipe", "site", "override")  # from low to high
_BOOLEANS = {"1": True, "0": False, "true": True, "false": False}


def speak(settings: Layered, engine: catalog.Engine, role: str) -> tuple[Layered, tuple[str, ...]]:
    """Return ``settings`` for ``engine`` in a role, and notes on what had to change.

    Raises PlanError for a flag that needs a newer version, and ParameterError for a flag that the
    user set and that no version has.
    """
    notes: list[str] = []
    env, moved = _speak_env(settings, engine, notes)
    flags = _speak_flags({**settings.flags, **moved}, engine, role, notes)
    return Layered(flags, env), tuple(notes)


def _speak_env(
    settings: Layered, engine: catalog.Engine, notes: list[str]
) -> tuple[dict[str, Value], dict[str, Value]]:
    kept: dict[str, Value] = {}
    moved: dict[str, Value] = {}
    never = data_files.facts("catalog/versions")["never_read"]
    for name, value in settings.env.items():
        key = catalog.moved(engine, name)
        if key is not None:
            if _set_as_key(settings.flags, key, value.layer):
                continue
            new = f"additional-config.{key}"
            text = plain(value.value, catalog.takes_number(name))
            moved[new] = Value(text, value.layer, value.source, value.reason)
            notes.append(f"{name} is written as --additional-config {key} in {engine}")
        elif name in never and value.layer != "override":
            notes.append(f"{name} is left out: {never[name]}")
        elif catalog.variable(engine, name) is None and (gone := _gone(engine, name)):
            if value.layer == "override":
                raise PlanError(f"{value.source}: {name}: {gone}.")
            notes.append(f"{name} is left out: {gone}")
        else:
            kept[name] = value
    return kept, moved


def _set_as_key(flags: Mapping[str, Value], key: str, layer: str) -> bool:
    """Return whether a layer as high as that of a variable sets the key that the variable became.

    The key may stand under the table that absorbed it, or where it was before.
    """
    found = (flags.get(f"additional-config.{name}") for name in (key, key.rpartition(".")[2]))
    return any(one and _LAYERS.index(one.layer) >= _LAYERS.index(layer) for one in found)


def _gone(engine: catalog.Engine, name: str) -> str:
    """Return why a variable has no effect at this version, or "".

    Variables of other software (HCCL, NCCL, the allocator) are not in the catalog and give "".
    """
    runs = catalog.history(name, "env")
    if not runs:
        return ""
    newest = runs[-1]["last"].removeprefix("v")
    return f"{engine} does not read it (the listed versions that do end with {newest})"


def plain(text: str, number: bool = False) -> Any:
    """Return the JSON value of a variable's text.

    1 becomes true where the key replaces a switch, and stays 1 where it replaces a ``number``.

    >>> plain("1"), plain("1", number=True), plain("text")
    (True, 1, 'text')
    """
    if text in _BOOLEANS and not (number and text.isdigit()):
        return _BOOLEANS[text]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def _speak_flags(
    flags: dict[str, Value], engine: catalog.Engine, role: str, notes: list[str]
) -> dict[str, Value]:
    out: dict[str, Value] = {}
    for name, value in flags.items():
        top, _, rest = name.partition(".")
        if top == "additional-config" and rest:
            since = catalog.ignored(role, rest)
            if since and not catalog.earlier(engine.vllm, since) and value.layer != "override":
                notes.append(f"--additional-config {rest} is left out: {role} ignores it")
                continue
            key = catalog.additional_key(engine, rest)
            if key != rest:
                if _outranks(flags.get(f"{top}.{key}"), value, equal=True):
                    continue
                notes.append(f"--additional-config {rest} is written as {key} in {engine}")
            name = f"{top}.{key}"
        runs = catalog.history(top, "serve")
        is_old = runs and catalog.older(runs[-1]["last"], engine)
        if is_old and value.layer in ("hardware", "model", "recipe"):
            notes.append(f"--{top} is left out: vLLM {runs[-1]['last']} was the last with it")
            continue
        catalog.check_flag(engine, name, value.value, value.source)
        if allowed := setting_values.fault(engine, name, value.value):
            raise ParameterError(
                f"{value.source}: --{name} {json.dumps(value.value)[:60]}: {allowed} in {engine}."
            )
        if not _outranks(out.get(name), value):
            out[name] = value
    return out


def _outranks(other: Value | None, value: Value, equal: bool = False) -> bool:
    """Return whether the other value of the same key comes from a higher layer."""
    if other is None:
        return False
    above = _LAYERS.index(other.layer) - _LAYERS.index(value.layer)
    return above > 0 or (equal and above == 0)
