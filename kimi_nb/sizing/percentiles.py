"""Percentiles of a point's latencies, by simulating its queues with its own step times."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kimi_nb.sizing import queues, step_time
from kimi_nb.sizing.points import Point
from kimi_nb.sizing.queues import Readers, Simulated, Writers
from kimi_nb.sizing.request_load import Request, Workload
from kimi_nb.sizing.units import Unit

_REQUESTS = 200  # of a simulation
_TRACED = 2000  # of a trace, its first
_LOADED = 0.8  # of the most that a point carries, where no rate is asked for
_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds by name, such as ``ttft_p99``, at ``rate`` requests a second."""

    rate: float
    values: dict[str, float]


def of(point: Point, load: Workload) -> Percentiles:
    """Return the percentiles of a point at the asked rate, or at 80 % of what it carries."""
    rate = load.rate or _LOADED * point.rate
    if load.arrivals:
        requests = list(load.requests[:_TRACED])
    else:
        requests = queues.poisson(_sizes(load), rate, _count(point, load))
    found = simulated(point, load, requests)
    values = {
        f"{name}_p{share * 100:.0f}": found.quantile(name, share)
        for name in ("ttft", "tpot")
        for share in _QUANTILES
    }
    return Percentiles(rate, values)


def _sizes(load: Workload) -> Sequence[Request]:
    """Return requests to send in turn: a trace's, drawn from a distribution, or the only one."""
    if load.mix:
        sizes, weights = zip(*load.mix, strict=True)
        return random.Random(0).choices(sizes, weights, k=_TRACED)
    return load.requests or [Request(load.input_len, load.output_len)]


def _count(point: Point, load: Workload) -> int:
    """Return how many requests to simulate: twice what runs at once, more where lengths differ."""
    least = 5 * _REQUESTS if load.mix or load.requests else _REQUESTS
    return min(max(least, 2 * sum(one.count * one.seqs for one in point.groups[-1:])), _TRACED)


def simulated(point: Point, load: Workload, requests: list[Request]) -> Simulated:
    """Return what ``requests`` meet at a point, with the expected step times."""
    if load.hit:
        requests = [one if one.cached else _hit(one, load.hit) for one in requests]
    writing = point.groups[-1]
    unit = writing.unit
    front = step_time.router(unit.table).seconds
    apart = len(point.groups) == 2
    writers = Writers(
        writing.count,
        unit.kind.shape.dp,
        writing.seqs,
        lambda busy: unit.step(_near(busy, writing.seqs)).seconds,
        unit.accepted[0],
        None if apart else _reading(unit, load, ranks=1),
        unit.batched(writing.seqs) * unit.kind.shape.pp,
    )
    if not apart:
        return queues.simulate(requests, writers, front=front)
    reading = point.groups[0]
    ranks, budget = reading.unit.kind.shape.dp, _budget(reading.unit)
    read = _reading(reading.unit, load, ranks=ranks)

    def seconds(tokens: int) -> float:
        whole, rest = divmod(tokens, budget)
        return whole * read(budget) + (read(rest) if rest else 0.0)

    moved = step_time.transfer(unit.kind, unit.table, load.input_len).seconds / load.input_len
    return queues.simulate(
        requests,
        writers,
        Readers(reading.count * ranks, seconds, budget),
        front=front,
        transfer=lambda tokens: moved * tokens,
    )


def _hit(one: Request, share: float) -> Request:
    return replace(one, cached=round(one.input_len * share))


def _budget(unit: Unit) -> int:
    """Return the tokens of a step; the stages of a pipeline read pieces at the same time."""
    return unit.kind.shape.batched_tokens * unit.kind.shape.pp


def _near(busy: int, most: int) -> int:
    """Return a number of sequences of which there are few, so that few times are worked out."""
    return min(busy if busy <= 4 else -(-busy // 4) * 4, most)


def _reading(unit: Unit, load: Workload, *, ranks: int) -> Callable[[int], float]:
    """Return the seconds of a step by the tokens that each of ``ranks`` ranks reads."""

    @functools.cache
    def near(tokens: int) -> float:
        return step_time.prefill(
            unit.kind, unit.table, tokens=tokens, prompt=load.input_len, ranks=ranks
        ).seconds

    def read(tokens: int) -> float:
        tokens = min(tokens, unit.kind.shape.batched_tokens)
        digit = 1 << max(tokens.bit_length() - 5, 0)  # so that few times are worked out
        return near(round(tokens / digit) * digit)

    return read
