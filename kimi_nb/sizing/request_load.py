"""What a service is asked: lengths of prompts and answers, arrivals, and shared beginnings.

>>> fixed(16000, 1000).longest
17000
>>> distribution({(1000, 200): 0.9, (60000, 800): 0.1}).input_len
6900
>>> lengths("1000:200:9,60000:800:1").longest
60800

A trace has one JSON object on each line, as the public traces of Mooncake have: ``timestamp`` (ms),
``input_length``, ``output_length``, and ``hash_ids``, one for each block of 512 tokens of the
prompt, where prompts that begin alike have the same ids in front.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb.core.errors import ParameterError, short

BLOCK = 512  # tokens of a block of Mooncake's traces
_MOST = 2_000_000  # lines of a trace
_LONGEST = 10**8  # tokens
_LATEST = 10**15  # ms of a timestamp; those of clocks, in ms since 1970, have 13 digits
_MIXED = 1000  # lengths of a distribution
_FASTEST = 1e6  # requests a second; what arrives faster arrives at once
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Request:
    """One request: tokens in and out, its arrival in seconds, ids of its prompt's blocks.

    Attributes:
        cached: Tokens of the prompt that a prefix cache holds.
    """

    input_len: int
    output_len: int
    arrival: float = 0.0
    blocks: tuple[int, ...] = ()
    cached: int = 0

    @property
    def new_tokens(self) -> int:
        """The tokens of the prompt that have to be computed: the last one always has."""
        return max(self.input_len - self.cached, 1)


@dataclass(frozen=True)
class Workload:
    """The load to size for.

    Attributes:
        input_len: The mean tokens of a prompt.
        output_len: The mean tokens of an answer.
        longest: The most tokens that a request has in and out together.
        rate: Requests a second to carry; 0: as many as can be.
        hit: The share of prompt tokens that a prefix cache holds, 0 to 1.
        requests: The requests of a trace, in order of arrival; () for lengths alone.
        arrivals: Whether the trace says when they arrive.
        mix: Lengths with their weights, where they are a distribution; () otherwise.
        spread: The squared coefficient of variation of a prompt's length: 0 if all are alike.
    """

    input_len: int
    output_len: int
    longest: int
    rate: float = 0.0
    hit: float = 0.0
    requests: tuple[Request, ...] = ()
    arrivals: bool = False
    mix: tuple[tuple[Request, float], ...] = ()
    spread: float = 0.0

    @property
    def new_tokens(self) -> int:
        """The tokens of a prompt that have to be computed."""
        return max(round(self.input_len * (1 - self.hit)), 1)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without the requests of a trace."""
        return {
            "input_len": self.input_len,
            "output_len": self.output_len,
            "longest": self.longest,
            "rate": self.rate,
            "prefix_hit": round(self.hit, 4),
            "requests": len(self.requests),
            "arrivals": self.arrivals,
            "mix": [[one.input_len, one.output_len, weight] for one, weight in self.mix],
        }

    def at(self, rate: float) -> Workload:
        """Return the load with so many requests a second; a trace arrives faster or slower."""
        if not self.arrivals:
            return replace(self, rate=rate)
        slower = self.rate / rate
        moved = tuple(replace(one, arrival=one.arrival * slower) for one in self.requests)
        return replace(self, rate=rate, requests=moved)


def fixed(input_len: int, output_len: int, *, rate: float = 0.0, hit: float = 0.0) -> Workload:
    """Return a load whose requests are all of the same length.

    Raises:
        ParameterError: If a length is not a whole number of 1 or more.
    """
    for name, value in (("--input", input_len), ("--output", output_len)):
        if type(value) is not int or not 1 <= value <= _LONGEST:
            found = short(value, 40)
            raise ParameterError(f"{name}: 1 to {_LONGEST} tokens are wanted, found {found}.")
    return Workload(input_len, output_len, input_len + output_len, rate, hit)


def distribution(weights: Mapping[tuple[int, int], float], *, rate: float = 0.0) -> Workload:
    """Return a load of (tokens in, tokens out), each with its weight.

    Raises:
        ParameterError: If there is none, a length is not allowed, or a weight is not positive.
    """
    if not weights or any(not 0 < one < math.inf for one in weights.values()):
        raise ParameterError("a distribution: lengths with weights above 0 are wanted.")
    for sizes in weights:
        fixed(*sizes)
    mix = tuple((Request(*sizes), weight) for sizes, weight in weights.items())
    return replace(_mean(list(mix), rate), mix=mix)


def lengths(text: str, name: str = "--lengths") -> Workload:
    """Return the load of a distribution such as "1000:200:0.9,60000:800:0.1".

    Raises:
        ParameterError: With ``name``, if it is none; the part that is wrong is named.
    """
    weights: dict[tuple[int, int], float] = {}
    parts = text.split(",", _MIXED) if isinstance(text, str) else [text]
    if len(parts) > _MIXED:
        raise ParameterError(
            f"{name}: at most {_MIXED} lengths are wanted; of more, kimi-nb size takes a --trace."
        )
    for part in parts:
        *sizes, weight = _weighted(part)
        if not all(1 <= one <= _LONGEST for one in sizes) or not weight:
            raise ParameterError(
                f"{name}: IN:OUT:WEIGHT is wanted, 1 to {_LONGEST} tokens and a weight above 0, "
                f"such as 1000:200:0.9,60000:800:0.1; found {short(part, 40)!r}."
            )
        key = (int(sizes[0]), int(sizes[1]))
        weights[key] = weights.get(key, 0.0) + weight
    return distribution(weights)


def _weighted(part: Any) -> tuple[float, float, float]:
    """Return tokens in, tokens out and the weight of a part; zeros where it has another form."""
    number = r"\d{1,9}(?:\.\d{1,9})?"
    found = re.fullmatch(rf" *(\d{{1,9}}):(\d{{1,9}}):({number}) *", str(part), re.ASCII)
    return (int(found[1]), int(found[2]), float(found[3])) if found else (0, 0, 0.0)


def _mean(items: list[tuple[Request, float]], rate: float) -> Workload:
    whole = sum(weight for _, weight in items)
    mean_in = sum(one.input_len * weight for one, weight in items) / whole
    mean_out = sum(one.output_len * weight for one, weight in items) / whole
    square = sum((one.input_len - mean_in) ** 2 * weight for one, weight in items) / whole
    return Workload(
        max(round(mean_in), 1),
        max(round(mean_out), 1),
        max(one.input_len + one.output_len for one, _ in items),
        rate,
        spread=square / mean_in**2,
    )


def seconds(name: str, text: str) -> float | None:
    """Return a bound such as 50ms or 2s in seconds, None for no text.

    Raises:
        ParameterError: With ``name``, if it is no time above 0 with its unit (us, ms or s).
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(us|ms|s)", text)
    value = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if value <= 0:
        raise ParameterError(
            f"{name}: a time above 0 with its unit is wanted, such as 50ms or 2s; found "
            f"{short(text, 40)!r}."
        )
    return value


def trace(lines: Iterable[str], name: str = "trace") -> Workload:
    """Return the load of a trace, whose rate is that of its arrivals.

    Raises:
        ParameterError: With the line, if it is no such object; if there is none.
    """
    found: list[Request] = []
    for number, line in enumerate(lines, 1):
        if number > _MOST:
            raise ParameterError(f"{name}: more than {_MOST:,} lines; give a part of it.")
        if line.strip():
            found.append(_request(line, f"{name}, line {number}"))
    if not found:
        raise ParameterError(f"{name}: no request; one JSON object on each line is wanted.")
    found.sort(key=lambda one: one.arrival)
    spent = found[-1].arrival - found[0].arrival
    arrivals = spent * _FASTEST > len(found)
    load = _mean([(one, 1.0) for one in found], (len(found) - 1) / spent if arrivals else 0.0)
    return replace(load, requests=tuple(found), arrivals=arrivals)


def _request(line: str, where: str) -> Request:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise ParameterError(f"{where}: not JSON: {short(line, 80)}") from None
    if not isinstance(row, dict):
        raise ParameterError(f"{where}: an object is wanted, found {short(line, 80)}")
    sizes = [
        _count(row, names, where)
        for names in (("input_length", "input_len"), ("output_length", "output_len"))
    ]
    at = row.get("timestamp", 0)
    if type(at) not in (int, float) or not 0 <= at <= _LATEST:
        raise ParameterError(
            f"{where}: timestamp: milliseconds of 0 to {_LATEST} are wanted, found {short(at, 40)}."
        )
    blocks = row.get("hash_ids", [])
    if not isinstance(blocks, list) or any(type(one) is not int for one in blocks):
        raise ParameterError(f"{where}: hash_ids: a list of whole numbers is wanted.")
    most = -(-sizes[0] // BLOCK)
    if len(blocks) > most:
        raise ParameterError(
            f"{where}: hash_ids: at most one for each {BLOCK} tokens of the prompt is wanted, "
            f"{most}; found {len(blocks)}."
        )
    return Request(sizes[0], sizes[1], at / 1e3, tuple(blocks))


def _count(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> int:
    value = next((row[name] for name in names if name in row), None)
    if type(value) is not int or not 1 <= value <= _LONGEST:
        raise ParameterError(
            f"{where}: {names[0]}: a whole number of 1 or more is wanted, found {short(value, 40)}."
        )
    return value
