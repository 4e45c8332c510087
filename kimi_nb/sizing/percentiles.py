"""Percentiles of a point's latencies, by simulating its queues with its own step times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kimi_nb.sizing import queues, step_time
from kimi_nb.sizing.points import Group, Point
from kimi_nb.sizing.queues import Readers, Simulated, Writers
from kimi_nb.sizing.request_load import Request, Workload

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
    if load.requests:
        requests = list(load.requests[:_TRACED])
        rate = load.rate
    else:
        rate = load.rate or _LOADED * point.rate
        count = max(_REQUESTS, 2 * sum(one.count * one.seqs for one in point.groups[-1:]))
        size = Request(load.input_len, load.output_len)
        requests = queues.poisson([size], rate, min(count, _TRACED))
    found = simulated(point, load, requests)
    values = {
        f"{name}_p{share * 100:.0f}": found.quantile(name, share)
        for name in ("ttft", "tpot")
        for share in _QUANTILES
    }
    return Percentiles(rate, values)


def simulated(point: Point, load: Workload, requests: list[Request]) -> Simulated:
    """Return what ``requests`` meet at a point, with the expected step times."""
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
        None if apart else _chunks(writing, load),
    )
    if not apart:
        return queues.simulate(requests, writers, front=front)
    reading = point.groups[0]
    chunk = _chunks(reading, load)

    def seconds(tokens: int) -> float:
        steps, each = chunk(tokens)
        return steps * each

    moved = step_time.transfer(unit.kind, unit.table, load.input_len).seconds / load.input_len
    return queues.simulate(
        requests,
        writers,
        Readers(reading.count * reading.unit.kind.shape.dp, seconds),
        front=front,
        transfer=lambda tokens: moved * tokens,
    )


def _near(busy: int, most: int) -> int:
    """Return a number of sequences of which there are few, so that few times are worked out."""
    return min(busy if busy <= 4 else -(-busy // 4) * 4, most)


def _chunks(group: Group, load: Workload) -> Callable[[int], tuple[int, float]]:
    """Return the steps of a prompt by its tokens; a prompt of half the length takes half as long."""
    read = group.unit.prompt
    time = read.all_ranks if group.unit.part.role == "prefill" else read.alone
    size = group.unit.kind.shape.batched_tokens * group.unit.kind.shape.pp
    whole = min(load.new_tokens, size)

    def steps(tokens: int) -> tuple[int, float]:
        new = max(round(tokens * (1 - load.hit)), 1)
        count = math.ceil(new / size)
        return count, time.seconds * max(new / count / whole, 0.1)

    return steps
