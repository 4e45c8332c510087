"""Latency and throughput of engines that are steadily loaded, from the times of their steps.

Two kinds of deployment: engines that prefill and decode in the same steps (`mixed`), and prefill
apart from decode (`prefill_side` and `decode_side`). All values are means; `queues` simulates
their percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kimi_nb.sizing import step_time
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.request_load import Workload
from kimi_nb.sizing.step_time import Kind, Time

Pick = Callable[[Time], float]


@dataclass(frozen=True, slots=True)
class Steady:
    """A group of engines under a steady load; times in seconds.

    Attributes:
        rate: Requests a second of one group.
        ttft: From the arrival of a request to its first token.
        tpot: For each further token.
        limit: The term of time that takes longest.
    """

    rate: float
    ttft: float
    tpot: float
    limit: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prefill of one prompt: seconds with one rank at it and with all, number of its steps."""

    alone: Time
    all_ranks: Time
    chunks: int


def prompt(kind: Kind, table: Factors, load: Workload) -> Prompt:
    """Return what the prefill of a mean prompt takes."""
    tokens = min(load.new_tokens, kind.shape.batched_tokens)
    # The stages of a pipeline read pieces that follow each other at the same time.
    pieces = math.ceil(load.new_tokens / kind.shape.batched_tokens)
    chunks = math.ceil(pieces / kind.shape.pp)
    alone, full = (
        step_time.prefill(kind, table, tokens=tokens, prompt=load.input_len, ranks=ranks)
        for ranks in (1, kind.shape.dp)
    )
    return Prompt(alone, full, chunks)


def mixed(
    load: Workload,
    table: Factors,
    seqs: int,
    step: Time,
    read: Prompt,
    dp: int,
    accepted: float,
    pick: Pick,
) -> Steady:
    """Return a group in which every one of ``dp`` ranks has ``seqs`` requests at all times.

    A step that reads a chunk of a prompt also gives the others their next token. The ranks wait for
    each other in every step, so that the prompt of one delays all of them.
    """
    plain, chunk = pick(step), max(pick(read.alone), pick(step))
    steps = max((load.output_len - 1) / accepted, 1.0)
    most = pick(read.all_ranks)

    def cycle(whole: float) -> tuple[float, float]:
        busy = min(seqs * read.chunks * chunk / whole, 1.0)
        once = chunk + (max(most, chunk) - chunk) * busy  # more ranks read at the same time
        busy = min(seqs * read.chunks * once / whole, 1.0)
        union = whole * (1 - (1 - busy) ** dp)
        return union + max(steps - union / once, 0.0) * plain, once

    low, high = steps * plain, steps * plain + seqs * dp * read.chunks * max(most, chunk) + 1.0
    for _ in range(24):
        whole = (low + high) / 2
        low, high = (whole, high) if cycle(whole)[0] > whole else (low, whole)
    spent, once = cycle(high)
    spent = max(spent, seqs * read.chunks * once)
    own = read.chunks * once
    busy = min(seqs * own / (spent + own), 0.98)
    front = pick(step_time.router(table))
    waits = own * busy / (2 * (1 - busy)) * (1 + load.spread) if seqs > 1 else 0.0
    ttft = own + min(waits, seqs * own) + plain / 2 + front
    tpot = spent / max(load.output_len - 1, 1)
    reading = min(seqs * dp * own, spent) > spent / 2
    limit = f"prefill: {read.alone.largest.name}" if reading else step.largest.name
    return Steady(dp * seqs / (spent + ttft), ttft, tpot, limit)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a disaggregated deployment: what one group of it can do.

    Attributes:
        rate: The most requests a second of one group, at full load.
        servers: Requests that it works on one by one (prefill), or at once (decode).
        seconds: Of one prompt (prefill), of one token (decode).
        extra: What the cache takes to arrive (decode).
        limit: The term of time that takes longest.
    """

    rate: float
    servers: int
    seconds: float
    limit: str
    extra: float = 0.0


def prefill_side(read: Prompt, dp: int, pick: Pick) -> Side:
    """Return what a prefill group can do: each rank reads one prompt after the other."""
    each = pick(read.all_ranks) * read.chunks
    return Side(dp / each, dp, each, f"prefill: {read.all_ranks.largest.name}")


def decode_side(
    kind: Kind, table: Factors, load: Workload, seqs: int, step: Time, accepted: float, pick: Pick
) -> Side:
    """Return what a decode group can do with ``seqs`` requests on each rank."""
    each = pick(step) / accepted
    moved = step_time.transfer(kind, table, load.input_len)
    spent = each * max(load.output_len - 1, 1) + pick(step)
    count = seqs * kind.shape.dp
    return Side(count / spent, count, each, step.largest.name, pick(moved) + pick(step))


def waiting(busy: float, servers: int, seconds: float, spread: float) -> float:
    """Return the mean wait before ``servers`` servers, busy a share of the time (0 to below 1).

    Sakasegawa's approximation of M/G/c; ``spread`` is the squared variation of the service time.
    """
    if busy >= 1:
        return math.inf
    grown = busy ** (math.sqrt(2 * (servers + 1)) - 1)
    return float((1 + spread) / 2 * grown / (servers * (1 - busy)) * seconds)


def busiest(bound: float, servers: int, seconds: float, spread: float, most: float) -> float:
    """Return the largest share of time that servers may be busy so that the wait keeps ``bound``.

    0 where even an empty queue does not keep it; never more than ``most``.
    """
    if bound < 0:
        return 0.0
    if waiting(most, servers, seconds, spread) <= bound:
        return most
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        keeps = waiting(middle, servers, seconds, spread) <= bound
        low, high = (middle, high) if keeps else (low, middle)
    return low
