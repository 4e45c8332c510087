"""Fit efficiency factors to what was measured: of a site's own results, or of published figures.

Usage::

    seen = [Observation(kind, request_load.fixed(8192, 1024), 16, "mean_tpot_ms", 21.5)]
    table = fitted(
        seen, factors.of("nvidia"), "calibrated", "results of 2026-11-23, site my-cluster"
    )
    search.answer("k2.5", "h200", 2, load, bounds, table=table)

A fit moves as few factors as it must: every step away from the prior costs, and the interval of a
factor becomes what the measurements scatter. What no measurement depends on stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.sizing import steady_state, step_time
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.request_load import Workload
from kimi_nb.sizing.steady_state import Steady
from kimi_nb.sizing.step_time import Kind

# What can be predicted of an engine, by the names of the results of notebook 08.
FIGURES = (
    "mean_tpot_ms",
    "mean_itl_ms",
    "per_user",
    "mean_ttft_ms",
    "mean_e2el_ms",
    "output_throughput",
    "total_token_throughput",
)
_FITTED = ("weights", "cache", "linear", "attention", "layer_s", "eager_layer_s", "accepted")
_PRIOR = 0.05  # the weight of a factor's distance from its prior
_LEAST_WIDTH = 1.15  # no fit is surer than this


@dataclass(frozen=True)
class Observation:
    """One measured figure of an engine that prefills and decodes.

    Attributes:
        concurrency: Requests at once, over all ranks of all ``groups`` groups.
        name: One of `FIGURES`.
    """

    kind: Kind
    load: Workload
    concurrency: int
    name: str
    value: float
    groups: int = 1


def steady(kind: Kind, load: Workload, table: Factors, seqs: int) -> Steady:
    """Return an engine with ``seqs`` requests on each rank at all times."""
    context = load.input_len + load.output_len / 2
    return steady_state.mixed(
        load,
        table,
        seqs,
        step_time.decode(kind, table, seqs=seqs, context=context),
        steady_state.prompt(kind, table, load),
        kind.shape.dp,
        step_time.accepted(kind, table)[0],
        lambda time: time.seconds,
    )


def predicted(seen: Observation, table: Factors) -> float:
    """Return what the model says of a figure.

    Raises:
        ParameterError: If the figure is none of `FIGURES`.
    """
    if seen.name not in FIGURES:
        raise ParameterError(choice("figure", seen.name, FIGURES))
    each = math.ceil(seen.concurrency / (seen.kind.shape.dp * seen.groups))
    found = steady(seen.kind, seen.load, table, max(each, 1))
    load = seen.load
    # A last rank that is not full gives less than a full one.
    filled = seen.concurrency / (max(each, 1) * seen.kind.shape.dp * seen.groups)
    rate = found.rate * seen.groups * filled
    # A benchmark that keeps so many requests of one length in flight sends them in waves.
    read = steady_state.prompt(seen.kind, table, load)
    ttft = found.ttft + (max(each, 1) - 1) / 2 * read.alone.seconds * read.chunks
    return {
        "mean_tpot_ms": found.tpot * 1e3,
        "mean_itl_ms": found.tpot * 1e3 * step_time.accepted(seen.kind, table)[0],
        "per_user": 1 / found.tpot,
        "mean_ttft_ms": ttft * 1e3,
        "mean_e2el_ms": (ttft + found.tpot * (load.output_len - 1)) * 1e3,
        "output_throughput": rate * load.output_len,
        "total_token_throughput": rate * (load.input_len + load.output_len),
    }[seen.name]


def errors(seen: Iterable[Observation], table: Factors) -> list[float]:
    """Return log(predicted / measured) of each observation."""
    return [math.log(predicted(one, table) / one.value) for one in seen]


def fitted(seen: Sequence[Observation], table: Factors, mark: str, source: str) -> Factors:
    """Return the factors that explain the observations best, those that moved with ``mark``.

    Deterministic: a pattern search over the logarithms, each within the interval of its prior.

    Raises:
        ParameterError: If there is no observation, or one of no such figure.
    """
    if not seen:
        raise ParameterError("calibration: no measurement to calibrate by.")
    moved = dict.fromkeys(_FITTED, 0.0)

    def with_moves(moves: dict[str, float]) -> Factors:
        return {
            **table,
            **{
                name: table[name].scaled(math.exp(move), mark, source, 1.0)
                for name, move in moves.items()
                if move
            },
        }

    def loss(moves: dict[str, float]) -> float:
        found = errors(seen, with_moves(moves))
        return sum(map(abs, found)) / len(found) + _PRIOR * sum(map(abs, moves.values()))

    best, step = loss(moved), 0.4
    while step > 0.02:
        better = False
        for name in _FITTED:
            for move in (step, -step):
                tried = {**moved, name: moved[name] + move}
                value = table[name].value * math.exp(tried[name])
                if not table[name].low <= value <= table[name].high:
                    continue
                now = loss(tried)
                if now < best - 1e-9:
                    best, moved, better = now, tried, True
                    break
        if not better:
            step /= 2
    scatter = sorted(map(abs, errors(seen, with_moves(moved))))
    width = max(math.exp(scatter[-(-len(scatter) * 9 // 10) - 1]), _LEAST_WIDTH)
    out = dict(table)
    for name, move in moved.items():
        if move:
            out[name] = table[name].scaled(math.exp(move), mark, source, width)
    return out
