"""Judge a value as the configuration classes of a vLLM version do, from what the catalog holds.

>>> from kimi_nb import catalog
>>> engine = catalog.engine("vllm", "0.19.1")
>>> fault(engine, "speculative-config.num_speculative_tokens", -1)
'greater than 0 is allowed'
>>> fault(engine, "eplb-config.window_size", 1000)
''

The classes are pydantic's: a text that reads as a number is a number, a number is no text. A field
that a validator of the class judges in a way of its own is not in the catalog, and passes here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import config_classes

_TRUTH = ("0", "1", "true", "false", "t", "f", "y", "n", "yes", "no", "on", "off")
_NAMES = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "dict": "an object",
}
BOUNDS = {
    "ge": ("{} or more", lambda value, limit: value >= limit),
    "gt": ("greater than {}", lambda value, limit: value > limit),
    "le": ("at most {}", lambda value, limit: value <= limit),
    "lt": ("less than {}", lambda value, limit: value < limit),
    "multiple_of": ("a multiple of {}", lambda value, limit: not value % limit),
}
_SHOWN = 12  # choices in a message; attention backends are some forty


def fault(engine: catalog.Engine, name: str, value: Any) -> str:
    """Return what is allowed instead of ``value`` for a flag or a dotted key of a JSON flag.

    The result is "" if the version takes it, and where the catalog does not know.
    """
    top, _, rest = name.partition(".")
    if not rest:
        if place := config_classes.FIELDS.get(top):
            return _field_fault(engine, *place, value)
        row = catalog.flag(engine, top)
        return limits(row, value) if row and _is_number(value) else ""
    cls = config_classes.of_flag(top)
    if cls is None:
        return ""
    *parents, last = rest.split(".")
    for key in parents:
        inner = config_classes.INNER.get((cls, key))
        if inner is None:  # what is set is an object, of which this is one key
            last, value = key, {}
            break
        cls = inner
    if (cls, last) in config_classes.INNER and not isinstance(value, dict | None):
        return "an object is allowed"
    return _field_fault(engine, cls, last, value)


def never_taken(name: str, value: Any) -> bool:
    """Return whether no listed version takes a value for a dotted key of a JSON flag."""
    return all(
        fault(catalog.engine("vllm", version), name, value) for version in catalog.versions("vllm")
    )


def _field_fault(engine: catalog.Engine, cls: str, key: str, value: Any) -> str:
    runs: list[dict[str, Any]] = catalog.tables("vllm")["configs"][cls].get(key, [])
    accepts = (catalog.active(runs, engine.known) or {}).get("accepts")
    return judged(accepts, value) if accepts else ""


def judged(accepts: Mapping[str, Any], value: Any) -> str:
    """Return what a field with this row of the catalog allows instead of a value, "" if it fits."""
    choices, kinds = accepts.get("choices", ()), accepts.get("kinds", ())
    if _chosen(choices, value, bool(accepts.get("caseless"))):
        return ""
    fitting = [kind for kind in kinds if _is(kind, value)]
    if not choices and not kinds:
        return "nothing is allowed, the engine sets it itself"
    if not fitting:
        allowed = [*map(str, choices[:_SHOWN]), *(["..."] if len(choices) > _SHOWN else [])]
        allowed += [_NAMES[kind] for kind in kinds]
        return f"{', '.join(allowed)} {'is' if len(allowed) == 1 else 'are'} allowed"
    if "list" in fitting and "items" in accepts:
        for item in value:
            if found := judged(accepts["items"], item):
                return f"in the list, of {item!r}: {found}"
    numeric = {"int", "float"}.intersection(fitting) and not {"str", "bool"}.intersection(fitting)
    return limits(accepts, float(value) if isinstance(value, str) else value) if numeric else ""


def limits(row: Mapping[str, Any], value: float) -> str:
    """Return the limits of a row if a number is outside them, else ""."""
    if all(holds(value, row[key]) for key, (_, holds) in BOUNDS.items() if key in row):
        return ""
    said = [text.format(row[key]) for key, (text, _) in BOUNDS.items() if key in row]
    return f"{' and '.join(said)} is allowed"


def _chosen(choices: Any, value: Any, caseless: bool) -> bool:
    if caseless and isinstance(value, str):
        return value.upper() in choices
    return any(type(one) is type(value) and one == value for one in choices)


def _is(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "bool":
        return (isinstance(value, bool | int | float) and value in (0, 1)) or (
            isinstance(value, str) and value.lower() in _TRUTH
        )
    if kind in ("int", "float"):
        return _reads_as(kind, value)
    return isinstance(value, {"str": str, "list": list, "dict": dict}[kind])


def _reads_as(kind: str, value: Any) -> bool:
    if isinstance(value, str):
        if kind == "int":
            return re.fullmatch(r"\s*[+-]?[0-9]+(_[0-9]+)*(\.0+)?\s*", value) is not None
        try:
            float(value)
        except ValueError:
            return False
        return value.strip().isascii()  # Python also reads the digits of other scripts
    if not isinstance(value, int | float):
        return False
    return kind == "float" or isinstance(value, int) or value.is_integer()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
