"""Settings in layers: every flag and variable remembers who set it and why.

    settings = lay(EMPTY, {"flags": {"max-num-seqs": 64}}, "recipe", "ascend-k2.5 5.1")
    settings = lay(settings, {"flags": {"max-num-seqs": 32}}, "override", "--set")
    settings.flags["max-num-seqs"]     # Value(32, layer='override', ...)

A JSON flag is kept by its leaves (``speculative-config.method``), so that a later layer
changes one key and the rest stays, each leaf with its own source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.errors import ParameterError
from kimi_nb.fields import VARIABLE, safe_text
from kimi_nb.schema import Settings

LAYERS = ("hardware", "model", "recipe", "site", "override", "plan")
# Lists of folders or libraries, which a script puts in front of what is there already.
LISTS = ("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Value:
    """One setting: its value, the layer that set it, its source, its reason (may be empty)."""

    value: Any
    layer: str
    source: str
    reason: str = ""


@dataclass(frozen=True)
class Layered:
    """Flags by dotted name without dashes, variables by name."""

    flags: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, Value] = field(default_factory=dict)


EMPTY = Layered()


def flag_name(text: str) -> str:
    """The dotted name of a flag: no dashes in front, ``_`` as ``-`` in the flag itself (the
    parser holds them equal), keys of a JSON flag as they are."""
    top, dot, rest = text.strip().lstrip("-").partition(".")
    return f"{top.replace('_', '-')}{dot}{rest}"


def lay(below: Layered, settings: Settings | Mapping[str, Mapping[str, Any]], layer: str,
        source: str) -> Layered:
    """``settings`` laid on ``below``; ``None`` takes a setting (or a whole JSON flag) away.

    Raises ParameterError for a value with shell characters or of a wrong type.
    """
    flags, env = ((settings.flags, settings.env) if isinstance(settings, Settings)
                  else (settings.get("flags", {}), settings.get("env", {})))
    if not flags and not env:
        return below
    return Layered(_lay_flags(below.flags, flags, layer, source),
                   _lay_env(below.env, env, layer, source))


def _lay_flags(below: Mapping[str, Value], over: Mapping[str, Any], layer: str,
               source: str) -> dict[str, Value]:
    out = dict(below)
    for name, given in over.items():
        for path, value, reason in _leaves(flag_name(name), given):
            where = f"{source}: {path}"
            if value is None or "." not in path:
                for key in [key for key in out if key.startswith(f"{path}.")]:
                    del out[key]
            if value is None:
                out.pop(path, None)
                continue
            # A leaf below a flag that a lower layer gave as a whole: the whole gives way.
            out.pop(path.partition(".")[0] if "." in path else "", None)
            out[path] = Value(_checked(value, where), layer, source, reason)
    return out


def _lay_env(below: Mapping[str, Value], over: Mapping[str, Any], layer: str,
             source: str) -> dict[str, Value]:
    out = dict(below)
    for name, given in over.items():
        where = f"{source}: {name}"
        if not VARIABLE.fullmatch(name):
            raise ParameterError(f"{where}: not the name of an environment variable.")
        _, value, reason = next(iter(_leaves(name, given, nested=False)))
        if value is None:
            out.pop(name, None)
            continue
        if isinstance(value, bool | float) or not isinstance(value, str | int):
            raise ParameterError(f"{where}: found {value!r}: put the value of a variable in "
                                 "quotes, so that YAML keeps it as it is written.")
        out[name] = Value(_checked(str(value), where), layer, source, reason)
    return out


def _leaves(path: str, given: Any, nested: bool = True) -> list[tuple[str, Any, str]]:
    """(dotted name, value, reason) of each leaf; an empty mapping is a leaf."""
    if isinstance(given, Mapping):
        if "value" in given and set(given) <= {"value", "reason"}:
            return [(path, given["value"], str(given.get("reason", "")))]
        if nested and given:
            return [leaf for key, value in given.items()
                    for leaf in _leaves(f"{path}.{key}", value)]
    return [(path, given, "")]


def _checked(value: Any, where: str) -> Any:
    """``value`` itself, when every text in it may stand in a script."""
    for text in _texts(value):
        try:
            safe_text(text)
        except ValueError as error:
            raise ParameterError(f"{where}: found {text!r}: {error}.") from None
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    return []


def nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted leaves as one value a flag: a scalar, a list, or a mapping for a JSON flag.

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
    """The leaves of one JSON value by dotted name; the inverse of `nested` for one flag."""
    if isinstance(value, Mapping) and value:
        return {path: leaf for key, inner in value.items()
                for path, leaf in flattened(f"{name}.{key}", inner).items()}
    return {name: value}
