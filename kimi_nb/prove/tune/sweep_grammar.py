"""What a sweep varies, parsed from one text.

>>> axes = parse("max-num-seqs: [8, 16]; concurrency: [1, 4]")
>>> axes.serve  # values for --set: a restart of the service for each
{'max-num-seqs': ('8', '16')}
>>> axes.load  # what is asked of the service
{'concurrency': (1, 4)}
>>> list(axes.settings())
[('max-num-seqs=8',), ('max-num-seqs=16',)]

An axis is ``name: value`` or ``name: [value, value]``, and axes are separated by ``;`` or a line
break. Values are written as in YAML. Those of a flag reach the plan as --set takes them, so
whatever `kimi_nb.params.overrides` and the engine's catalog refuse is refused here too.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError

# Axes of the load, and the field of `kimi_nb.prove.bench.workload.Load` that each sets.
LOADS = {
    "concurrency": "concurrency",
    "input-len": "input_len",
    "output-len": "output_len",
    "prompts": "prompts",
}
MOST = 200  # points of a sweep, checked before anything is planned


@dataclass(frozen=True)
class Axes:
    """The axes of a sweep, in the order given.

    Attributes:
        serve: The values, as texts, by --set key.
        load: The values, as whole numbers, by field of `kimi_nb.prove.bench.workload.Load`.
    """

    serve: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    load: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def settings(self) -> Iterator[tuple[str, ...]]:
        """Yield every combination of serve flags as key=value pairs; without any, ()."""
        for values in itertools.product(*self.serve.values()):
            yield tuple(f"{key}={value}" for key, value in zip(self.serve, values, strict=True))

    def loads(self) -> Iterator[dict[str, int]]:
        """Yield every combination of load fields."""
        for values in itertools.product(*self.load.values()):
            yield dict(zip(self.load, values, strict=True))

    def __len__(self) -> int:
        size = 1
        for values in (*self.serve.values(), *self.load.values()):
            size *= len(values)
        return size


def parse(text: str) -> Axes:
    """Parse the axes of a sweep.

    Raises:
        ParameterError: If the text is not valid. The message names the axis, what was found and
            what is wanted.
    """
    if not isinstance(text, str):
        raise ParameterError(
            f"sweep: a text is wanted, such as 'max-num-seqs: [8, 16]; "
            f"concurrency: [1, 4]'; found {text!r}."
        )
    serve: dict[str, tuple[str, ...]] = {}
    load: dict[str, tuple[int, ...]] = {}
    seen: set[str] = set()
    for entry in _entries(text):
        key, values = _axis(entry)
        if key.replace("_", "-") in seen:
            raise ParameterError(
                f"sweep: the axis {key} is given twice; put its values into one list."
            )
        seen.add(key.replace("_", "-"))
        if key in LOADS:
            load[LOADS[key]] = tuple(_count(key, value) for value in values)
        else:
            serve[key] = tuple(_text(key, value) for value in values)
        found = serve.get(key) or load[LOADS[key]]
        if len(set(found)) < len(found):
            raise ParameterError(f"sweep: {key} has a value twice: {', '.join(map(str, found))}.")
    axes = Axes(serve, load)
    if len(axes) > MOST:
        raise ParameterError(
            f"sweep: {len(axes)} points are more than {MOST}; take fewer values, or several sweeps."
        )
    return axes


def _entries(text: str) -> list[str]:
    """Split a text at each ``;`` and line break outside of brackets and quotation marks.

    >>> _entries("env.A: 'x;y'; concurrency: [1, 4]")
    ["env.A: 'x;y'", 'concurrency: [1, 4]']
    """
    if fault := data_files.too_deep(text):
        raise ParameterError(f"sweep: {fault}.")
    out, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        if sign in ";\n" and depth <= 0 and not quote:
            out.append("")
        else:
            out[-1] += sign
    return [entry.strip() for entry in out if entry.strip()]


def _axis(entry: str) -> tuple[str, list[Any]]:
    shown = entry if len(entry) <= 60 else f"{entry[:57]}..."
    try:
        # Keep scalars as written: to an engine, 0123 is not a number and yes is not a switch.
        found = yaml.load(entry, yaml.BaseLoader)
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(entry)):
            raise ParameterError(f"sweep: {shown!r}: write values out; *names are not taken.")
    except yaml.YAMLError as error:
        raise ParameterError(
            f"sweep: {shown!r}: {getattr(error, 'problem', '') or 'not YAML'}. "
            "name: [value, value] is wanted."
        ) from None
    if not isinstance(found, dict) or len(found) != 1:
        raise ParameterError(
            f"sweep: {shown!r}: name: [value, value] is wanted, with ';' between two of them."
        )
    ((key, value),) = found.items()
    if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", key):
        raise ParameterError(
            f"sweep: {shown!r}: the name of a flag (max-num-seqs, "
            "decode.max-num-seqs, env.NAME) or one of "
            f"{', '.join(LOADS)} is wanted in front of ':'."
        )
    values = value if isinstance(value, list) else [value]
    if not values or value == "":
        raise ParameterError(f"sweep: {key} has no value.")
    known = key.replace("_", "-")
    return (known if known in LOADS else key), values


def _count(key: str, value: Any) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"[1-9][0-9]{0,8}", value):
        raise ParameterError(
            f"sweep: {key}: whole numbers of 1 or more are wanted, found {value!r}."
        )
    return int(value)


def _text(key: str, value: Any) -> str:
    """Return a value as --set takes it: a scalar as written, a list or mapping as JSON."""
    if isinstance(value, str):
        if not value.strip():
            raise ParameterError(f"sweep: {key} has an empty value.")
        return value.strip()
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    try:
        return json.loads(value)
    except ValueError:
        return value
