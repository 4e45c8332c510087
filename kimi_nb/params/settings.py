"""Merge settings in layers; every flag and variable remembers who set it and why.

>>> settings = lay(EMPTY, {"flags": {"max-num-seqs": 64}}, "recipe", "ascend-k2.5 5.1")
>>> settings = lay(settings, {"flags": {"max-num-seqs": 32}}, "override", "--set")
>>> settings.flags["max-num-seqs"]
Value(value=32, layer='override', source='--set', reason='')

A JSON flag is stored as its leaves (``speculative-config.method``), so that a later layer can
change one key and keep the others, each with its own source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.core.errors import ParameterError
from kimi_nb.params.fields import VARIABLE, safe_text, secret
from kimi_nb.params.schema import Settings

_FLAG = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Value:
    """One setting with its provenance.

    Attributes:
        value: The value itself.
        layer: Who set it: hardware, model, recipe, site or override, or plan for a derived
            value.
        source: The document, file or option that it comes from.
        reason: Why; may be empty.
    """

    value: Any
    layer: str
    source: str
    reason: str = ""


@dataclass(frozen=True)
class Layered:
    """Flags by dotted name without leading dashes, and environment variables by name."""

    flags: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, Value] = field(default_factory=dict)


EMPTY = Layered()


def flag_name(text: str) -> str:
    """Return the dotted name of a flag, without leading dashes.

    ``_`` becomes ``-`` in the flag itself, because the parser treats them as equal; the keys of a
    JSON flag are kept as they are.

    >>> flag_name("--compilation_config.cudagraph_mode")
    'compilation-config.cudagraph_mode'
    """
    top, dot, rest = text.strip().lstrip("-").partition(".")
    return f"{top.replace('_', '-')}{dot}{rest}"


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings that are laid on those below, with the layer's name and their source."""

    settings: Settings | Mapping[str, Mapping[str, Any]]
    name: str
    source: str


def fold(layers: Iterable[Layer], below: Layered = EMPTY) -> Layered:
    """Lay every layer on the ones before it, the first on ``below``."""
    for layer in layers:
        below = lay(below, layer.settings, layer.name, layer.source)
    return below


def lay(
    below: Layered, settings: Settings | Mapping[str, Mapping[str, Any]], layer: str, source: str
) -> Layered:
    """Return ``below`` overridden by ``settings``; None removes a setting or a whole JSON flag.

    Raises ParameterError for a value with shell characters or of a wrong type.
    """
    flags, env = (
        (settings.flags, settings.env)
        if isinstance(settings, Settings)
        else (settings.get("flags", {}), settings.get("env", {}))
    )
    if not flags and not env:
        return below
    return Layered(
        _lay_flags(below.flags, flags, layer, source), _lay_env(below.env, env, layer, source)
    )


def _lay_flags(
    below: Mapping[str, Value], over: Mapping[str, Any], layer: str, source: str
) -> dict[str, Value]:
    out = dict(below)
    for name, given in over.items():
        for path, value, reason in _leaves(flag_name(name), given):
            where = f"{source}: {path}"
            if not _FLAG.fullmatch(path):
                raise ParameterError(
                    f"{where}: not the name of a flag, or of a key of a JSON "
                    "flag (letters, digits, '_', '-', and '.' between keys)."
                )
            # Setting the whole replaces its parts, and setting a part replaces the whole.
            for key in [key for key in out if key.startswith(f"{path}.")]:
                del out[key]
            for i, character in enumerate(path):
                if character == ".":
                    out.pop(path[:i], None)
            if value is None:
                out.pop(path, None)
            else:
                out[path] = Value(_checked(value, where), layer, source, reason)
    return out


def _lay_env(
    below: Mapping[str, Value], over: Mapping[str, Any], layer: str, source: str
) -> dict[str, Value]:
    out = dict(below)
    for name, given in over.items():
        where = f"{source}: {name}"
        if not VARIABLE.fullmatch(name):
            raise ParameterError(f"{where}: not the name of an environment variable.")
        _, value, reason = next(iter(_leaves(name, given, nested=False)))
        if value is None:
            out.pop(name, None)
            continue
        if secret(name):
            raise ParameterError(
                f"{where}: secrets are never written down. Keep the value in the "
                "environment and name it in the site file: api_key_env: "
                f"{'MY_KEY' if name == 'VLLM_API_KEY' else name}."
            )
        if isinstance(value, bool | float) or not isinstance(value, str | int):
            raise ParameterError(
                f"{where}: found {value!r}: put the value of a variable in "
                "quotes, so that YAML keeps it as it is written."
            )
        out[name] = Value(_checked(str(value), where), layer, source, reason)
    return out


def _leaves(
    path: str, given: Any, nested: bool = True, depth: int = 0
) -> list[tuple[str, Any, str]]:
    """Return (dotted name, value, reason) of each leaf; an empty mapping is a leaf."""
    if depth > 16:
        raise ParameterError(f"{path[:60]}...: more than 16 keys deep.")
    if isinstance(given, Mapping):
        if "value" in given and set(given) <= {"value", "reason"}:
            return [(path, given["value"], str(given.get("reason", "")))]
        if nested and given:
            return [
                leaf
                for key, value in given.items()
                for leaf in _leaves(f"{path}.{key}", value, depth=depth + 1)
            ]
    return [(path, given, "")]


def _checked(value: Any, where: str) -> Any:
    """Return ``value`` if it is JSON and every text in it is safe in a script.

    Raises ParameterError otherwise.
    """
    if isinstance(value, str):
        try:
            safe_text(value)
        except ValueError as error:
            raise ParameterError(f"{where}: found {value[:80]!r}: {error}.") from None
        if value.startswith("-"):
            raise ParameterError(
                f"{where}: found {value[:80]!r}: a value that starts with '-' "
                "would be read as a flag."
            )
    elif isinstance(value, list | tuple):
        for part in value:
            _checked(part, where)
    elif isinstance(value, Mapping):
        for pair in value.items():
            for part in pair:
                _checked(part, where)
    elif not (
        (isinstance(value, int) and abs(value) < 2**63)
        or value is None
        or (isinstance(value, float) and math.isfinite(value))
    ):
        raise ParameterError(
            f"{where}: found {str(value)[:40]} ({type(value).__name__}): a text, "
            "a finite number, true, false, a list or a mapping is wanted."
        )
    return value


def nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted leaves as one value per flag: a scalar, a list, or a mapping for a JSON flag.

    >>> nested({"seed": 1, "eplb-config.step_interval": 1000})
    {'seed': 1, 'eplb-config': {'step_interval': 1000}}
    """
    out: dict[str, Any] = {}
    for path, value in flags.items():
        *parents, last = path.split(".")
        table = out
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
    return out


def flattened(name: str, value: Any) -> dict[str, Any]:
    """Return the leaves of one JSON value by dotted name; the inverse of `nested` for one flag.

    >>> flattened("eplb-config", {"step_interval": 1000})
    {'eplb-config.step_interval': 1000}
    """
    if isinstance(value, Mapping) and value:
        return {
            path: leaf
            for key, inner in value.items()
            for path, leaf in flattened(f"{name}.{key}", inner).items()
        }
    return {name: value}
