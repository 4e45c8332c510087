"""Published figures beside the physical limits: what was measured, and what cannot be exceeded.

>>> one = next(row for row in of("k2.5", "h200") if row.figure.name == "mean_tpot_ms")
>>> one.limit is not None and one.limit < one.figure.value
True

A published figure beyond a limit of ours shows that the limit is wrong, or that it is of another load;
a test holds every figure against it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.check import public_engines
from kimi_nb.plan import build
from kimi_nb.prove.bench import published_figures
from kimi_nb.prove.bench.published_figures import Figure
from kimi_nb.prove.tune import limits
from kimi_nb.prove.tune.limits import Limits

# Times have a least, throughputs a most.
_TIMES = ("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms", "load_s")


@dataclass(frozen=True)
class Bounded:
    """A published figure and its limit.

    Attributes:
        limit: The least time or the most throughput, in the unit of the figure (estimated); None
            where there is none.
        why: Why there is none.
    """

    figure: Figure
    limit: float | None
    why: str = ""

    @property
    def beyond(self) -> bool:
        """Whether the figure lies beyond its limit."""
        if self.limit is None:
            return False
        if self.figure.name in _TIMES:
            return self.figure.value < self.limit
        return self.figure.value > self.limit

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        one = self.figure
        return {
            "id": one.id,
            "model": one.model,
            "precision": one.precision,
            "hardware": one.hardware,
            "devices": one.devices,
            "engine": one.engine,
            "flags": list(one.words),
            "load": {
                name: "inf" if value == math.inf else value for name, value in one.load.items()
            },
            "figure": one.name,
            "value": one.value,
            "unit": one.unit,
            "evidence": "published",
            "source": one.source,
            "date": one.date,
            "note": one.note,
            "limit": self.limit,
            "limit_evidence": "estimated" if self.limit is not None else "",
            "no_limit": self.why,
        }


def of(model: str = "", hardware: str = "") -> tuple[Bounded, ...]:
    """Return the published figures of a model and hardware, each with its limit."""
    return tuple(_bounded(one) for one in published_figures.figures(model, hardware))


def table(rows: tuple[Bounded, ...]) -> show.Table:
    """Return the figures and their limits as a table."""
    return show.Table(
        f"{len(rows)} published figures beside our limits ({limits.ASSUMED})",
        ("model", "hardware", "engine", "load", "figure", "published", "limit", "source", "note"),
        tuple(
            (
                f"{one.figure.model} {one.figure.precision}".strip(),
                f"{one.figure.devices} x {one.figure.hardware}",
                one.figure.engine,
                _load(one.figure.load),
                one.figure.name,
                f"{one.figure.value:g} {one.figure.unit}",
                f"none: {one.why}" if one.limit is None else _limit(one),
                ", ".join(filter(None, (one.figure.source, one.figure.date))),
                one.figure.note,
            )
            for one in rows
        ),
    )


def _limit(one: Bounded) -> str:
    side = "at least" if one.figure.name in _TIMES else "at most"
    return f"{side} {one.limit:.4g}"


def _load(load: Mapping[str, Any]) -> str:
    """Return a load in few words, such as 8192/1024 tokens, 8 at once."""
    sizes = f"{load.get('input_len', '?')}/{load.get('output_len', '?')} tokens"
    many = load.get("concurrency")
    parts = [
        sizes if "input_len" in load else str(load.get("dataset", "lengths not said")),
        f"{many} at once" if many else "",
        f"{float(rate):g}/s" if (rate := load.get("rate")) not in (None, math.inf, "inf") else "",
        f"at {load['per_user']} tokens/s a user" if "per_user" in load else "",
        str(load.get("tool", "")),
    ]
    return ", ".join(filter(None, parts))


def _bounded(figure: Figure) -> Bounded:
    if figure.entry.get("no_limit"):
        return Bounded(figure, None, figure.entry["no_limit"])
    sizes = figure.entry.get("mean", figure.load)
    # Without a bound, a time is at least that of a single request, and a throughput at most that of
    # all requests at once.
    unbounded = 1 if figure.name in (*_TIMES, "per_user") else sizes.get("prompts")
    found = _limits(figure, sizes, sizes.get("concurrency") or unbounded or 0)
    value = _value(figure, found, sizes)
    return Bounded(figure, value, "; ".join(found.notes) if value is None else "")


def _value(figure: Figure, found: Limits, sizes: Mapping[str, Any]) -> float | None:
    """Return the limit of a figure, in its unit; None if a peak is not known."""
    most, tpot, ttft = found.tokens_per_s(), found.tpot_ms(), found.ttft_ms()
    if most is None or tpot is None or ttft is None:
        return None
    whole = most * (1 + sizes["input_len"] / sizes["output_len"])
    each = tpot * found.accepted  # a step, which gives all its accepted tokens at once
    return {
        "output_throughput": most,
        "total_token_throughput": whole,
        "total_per_device": whole / figure.devices,
        "per_user": 1000 / tpot,
        "mean_ttft_ms": ttft,
        "mean_tpot_ms": tpot,
        "mean_itl_ms": each,
        "mean_e2el_ms": ttft + tpot * (sizes["output_len"] - 1),
    }[figure.name]


def _limits(figure: Figure, sizes: Mapping[str, Any], many: int) -> Limits:
    lengths = {name: int(sizes[name]) for name in ("input_len", "output_len")}
    if not figure.entry:
        about = figure.conditions
        plan = _plan(about["model"], about["hardware"], about["layout"])
        return limits.of_plan(plan, **lengths, concurrency=many)
    return limits.of_engine(
        public_engines.of(figure.entry),
        groups=figure.entry.get("groups", 1),
        **lengths,
        concurrency=many,
    )


_plan = functools.cache(build.plan)
