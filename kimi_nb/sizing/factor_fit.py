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

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.sizing import closed_loop, steady_state, step_time
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.queues import Simulated
from kimi_nb.sizing.request_load import Workload
from kimi_nb.sizing.steady_state import Steady
from kimi_nb.sizing.step_time import Kind, Time

# What can be predicted of an engine, by the names of the results of notebook 08.
FIGURES = (
    "mean_tpot_ms",
    "mean_itl_ms",
    "per_user",
    "mean_ttft_ms",
    "median_tpot_ms",
    "median_ttft_ms",
    "mean_e2el_ms",
    "output_throughput",
    "total_token_throughput",
)
_FITTED = (
    "weights",
    "cache",
    "linear",
    "attention",
    "layer_s",
    "eager_layer_s",
    "step_s",
    "sequence_s",
    "request_s",
    "tokenize_s",
    "accepted",
)
_WAVES = 4  # requests for each one in flight, where nobody says how many there were
_MOST = 64  # requests of a simulation, where two for each one in flight are not more
_PRIOR = 0.01  # the weight of a factor's distance from its prior
_SMALL = 0.1  # an error that measurements scatter anyway
_LEAST_WIDTH = 1.15  # no fit is surer than this


@dataclass(frozen=True)
class Observation:
    """One measured figure of an engine that prefills and decodes.

    Attributes:
        concurrency: Requests at once, over all ranks of all ``groups`` groups.
        name: One of `FIGURES`.
        requests: How many there were in all; 0 where it is not known.
    """

    kind: Kind
    load: Workload
    concurrency: int
    name: str
    value: float
    groups: int = 1
    requests: int = 0


class _Behaviour(NamedTuple):
    """Requests a second, mean seconds to the first token and for each further one."""

    rate: float
    ttft: float
    tpot: float


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
    return _figure(seen, table, _behaviour(seen, table))


def _figure(seen: Observation, table: Factors, found: _Behaviour) -> float:
    """Return a figure of a behaviour."""
    if seen.name not in FIGURES:
        raise ParameterError(choice("figure", seen.name, FIGURES))
    (rate, ttft, tpot), load = found, seen.load
    return {
        "mean_tpot_ms": tpot * 1e3,
        "mean_itl_ms": tpot * 1e3 * step_time.accepted(seen.kind, table)[0],
        "per_user": 1 / tpot if tpot else math.inf,  # of answers of one token
        "mean_ttft_ms": ttft * 1e3,
        # Of requests of one length, no stall and no queue but their own: the mean.
        "median_ttft_ms": ttft * 1e3,
        "median_tpot_ms": tpot * 1e3,
        "mean_e2el_ms": (ttft + tpot * (load.output_len - 1)) * 1e3,
        "output_throughput": rate * load.output_len,
        "total_token_throughput": rate * (load.input_len + load.output_len),
    }[seen.name]


def _behaviour(seen: Observation, table: Factors) -> _Behaviour:
    shape = seen.kind.shape
    alone = shape.dp == shape.pp == shape.pcp == 1
    return (_one_rank if alone else _ranks)(seen, table)


def _ranks(seen: Observation, table: Factors) -> _Behaviour:
    """Return the behaviour where ranks step together, not in the same phase."""
    each = math.ceil(seen.concurrency / (seen.kind.shape.dp * seen.groups))
    found = steady(seen.kind, seen.load, table, each)
    # A last rank that is not full gives less than a full one.
    filled = seen.concurrency / (each * seen.kind.shape.dp * seen.groups)
    # A benchmark that keeps so many requests of one length in flight sends them in waves, of which
    # a step reads as many as fit.
    read = steady_state.prompt(seen.kind, table, seen.load)
    waves = math.ceil(each / read.most)
    spent = read.packed(min(each, read.most)) * (waves + 1) / 2 - read.packed(1)
    ttft = found.ttft + spent * read.chunks
    return _Behaviour(found.rate * seen.groups * filled, ttft, found.tpot)


def _one_rank(seen: Observation, table: Factors) -> _Behaviour:
    """Return the behaviour of engines of one rank: the benchmark is simulated."""
    each = math.ceil(seen.concurrency / seen.groups)
    found = benchmark(seen, table, each)
    rate = found.tokens_per_s / seen.load.output_len * seen.concurrency / each
    return _Behaviour(rate, found.mean("ttft"), found.mean("tpot"))


def benchmark(seen: Observation, table: Factors, each: int) -> Simulated:
    """Return what the requests of one engine of one rank meet, ``each`` of them in flight."""
    kind, load = seen.kind, seen.load
    context = load.input_len + load.output_len / 2

    @functools.cache
    def step(busy: int) -> Time:
        return step_time.decode(kind, table, seqs=busy, context=context)

    @functools.cache
    def read(tokens: int, busy: int) -> float:
        found = step_time.prefill(kind, table, tokens=tokens, prompt=load.input_len, ranks=1)
        return found.seconds + (step_time.beside(step(busy)) if busy else 0.0)

    engine = closed_loop.Engine(
        kind.shape.batched_tokens,
        max(kind.shape.seqs, 1),
        lambda tokens, busy: read(tokens, _near(busy)),
        lambda busy: step(_near(busy)).seconds,
        step_time.accepted(kind, table)[0],
        table["request_s"].value,
        table["tokenize_s"].value,
        kind.shape.chunked,
    )
    waves = min(math.ceil(seen.requests / seen.concurrency), _WAVES) if seen.requests else _WAVES
    requests = min(waves * each, max(2 * each, _MOST))
    return closed_loop.simulate(engine, load, each, requests)


def _near(busy: int) -> int:
    """Return a number of sequences of which there are few, so that few times are worked out."""
    return busy if busy <= 4 else -(-busy // 4) * 4


def errors(seen: Iterable[Observation], table: Factors) -> list[float]:
    """Return log(predicted / measured) of each observation."""
    known: dict[tuple[object, ...], _Behaviour] = {}
    out = []
    for one in seen:
        about = (id(one.kind), one.load, one.concurrency, one.groups, one.requests)
        if about not in known:  # figures and repetitions of one load
            known[about] = _behaviour(one, table)
        out.append(math.log(_figure(one, table, known[about]) / one.value))
    return out


def _loss(error: float) -> float:
    """Return the weight of a logarithmic error: its square while it is small, then its size."""
    return math.hypot(error, _SMALL) - _SMALL


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
        far = sum(map(_loss, found)) / len(found)
        return far + _PRIOR * sum(map(abs, moves.values()))

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
