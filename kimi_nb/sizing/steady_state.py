"""Latency and throughput of engines that are steadily loaded, from the times of their steps.

Two kinds of deployment: engines that prefill and decode in the same steps (`mixed`), and prefill
apart from decode (`prefill_side` and `decode_side`). All values are means; `queues` simulates
their percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kimi_nb.sizing import step_time
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.request_load import Workload
from kimi_nb.sizing.step_time import Kind, Time

Pick = Callable[[Time], float]
_SETTLED = 3  # rounds in which the prompts of a step and its time settle


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
class Pack:
    """A step that reads so many prompts on a rank: its time with one rank at it, and with all."""

    prompts: int
    alone: Time
    all_ranks: Time


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prefill of a mean prompt.

    Attributes:
        chunks: The steps that it takes.
        packs: Steps of rising numbers of prompts: one first, the most that fit in a step last.
    """

    chunks: int
    packs: tuple[Pack, ...]

    @property
    def alone(self) -> Time:
        """The time of a step of one prompt, with one rank at it."""
        return self.packs[0].alone

    @property
    def all_ranks(self) -> Time:
        """The time of a step of one prompt on each rank."""
        return self.packs[0].all_ranks

    @property
    def most(self) -> int:
        """The most prompts of a step."""
        return self.packs[-1].prompts

    @property
    def each(self) -> float:
        """Expected seconds of a rank for each of many prompts, all ranks at it."""
        last = self.packs[-1]
        return last.all_ranks.seconds * self.chunks / last.prompts

    def packed(self, prompts: float) -> float:
        """Return the expected seconds of a step of so many prompts, with one rank at it."""
        return _between([(one.prompts, one.alone.seconds) for one in self.packs], prompts)


def prompt(kind: Kind, table: Factors, load: Workload) -> Prompt:
    """Return what the prefill of a mean prompt takes, and of several in one step."""
    size, stages = kind.shape.batched_tokens, kind.shape.pp
    tokens = min(load.new_tokens, size)

    def pack(prompts: int) -> Pack:
        # The stages of a pipeline read pieces that follow each other at the same time.
        each = tokens * math.ceil(prompts / stages)
        alone, full = (
            step_time.prefill(kind, table, tokens=each, prompt=load.input_len, ranks=ranks)
            for ranks in (1, kind.shape.dp)
        )
        return Pack(prompts, alone, full)

    most = size // tokens * stages if load.new_tokens <= size else 1
    counts = [2**power for power in range(most.bit_length()) if 2**power < most]
    chunks = math.ceil(math.ceil(load.new_tokens / size) / stages)
    return Prompt(chunks, tuple(pack(count) for count in (*counts, most)))


def _between(points: Sequence[tuple[int, float]], count: float) -> float:
    """Return the seconds of a step of so many prompts, between those that are known."""
    least, value = points[0]
    for most, more in points[1:]:
        if count <= most:
            return value + (more - value) * max(count - least, 0.0) / (most - least)
        least, value = most, more
    return value


def _together(share: float) -> float:
    """Return the mean number of random arrivals in steps that have any, ``share`` in each step."""
    return share / -math.expm1(-share) if share > 1e-9 else 1.0


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

    A step that reads a chunk of a prompt also gives the others their next token, and reads all short
    prompts that have arrived meanwhile, as far as they fit. The ranks wait for each other in every
    step, so that the prompt of one delays all of them.
    """
    plain = pick(step)
    steps = (load.output_len - 1) / accepted
    ones = [(one.prompts, max(pick(one.alone), plain)) for one in read.packs]
    alls = [(one.prompts, max(pick(one.all_ranks), plain)) for one in read.packs]

    def cycle(whole: float, mean: float) -> tuple[float, float, float, float]:
        """Return the seconds of all steps, of a reading step and of the mean one, prompts of a step.

        ``mean`` is what the mean step was taken to be: it and the prompts of a step settle together.
        """
        packed = min(_together(seqs / whole * mean), read.most) if read.most > 1 else 1.0
        chunk, most = _between(ones, packed), _between(alls, packed)
        busy = min(seqs / packed * read.chunks * chunk / whole, 1.0)
        once = chunk + (max(most, chunk) - chunk) * busy  # more ranks read at the same time
        busy = min(seqs / packed * read.chunks * once / whole, 1.0)
        reading = 1 - (1 - busy) ** dp
        union = whole * reading
        spent = union + max(steps - union / once, 0.0) * plain
        return spent, once, once * reading + plain * (1 - reading), packed

    low, mean = steps * plain, plain
    high = low + seqs * dp * read.chunks * max(ones[0][1], alls[0][1]) + 1.0
    for _ in range(24):
        whole = (low + high) / 2
        spent, _, mean, _ = cycle(whole, mean)
        low, high = (whole, high) if spent > whole else (low, whole)
    for _ in range(_SETTLED):
        spent, once, mean, packed = cycle(high, mean)
    own = read.chunks * once
    spent = max(spent, seqs / packed * own)
    busy = min(seqs / packed * own / (spent + own), 0.98)
    front = pick(step_time.router(table))
    # Who comes waits for the end of a step; longer only where more come than a step can read.
    used = busy * packed / read.most * ones[-1][1] / _between(ones, packed)
    waits = own * busy / (2 * (1 - used)) * (1 + load.spread) if seqs > 1 else 0.0
    ttft = own + min(waits, seqs / packed * own) + plain / 2 + front
    reading = min(seqs / packed * dp * own, spent) > spent / 2
    limit = f"prefill: {read.alone.largest.name}" if reading else step.largest.name
    if load.output_len == 1:  # it is gone with its first token
        ttft = max(ttft, spent)
        return Steady(dp * seqs / ttft, ttft, 0.0, limit)
    return Steady(dp * seqs / (spent + ttft), ttft, spent / (load.output_len - 1), limit)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a disaggregated deployment: what one group of it can do.

    Attributes:
        rate: The most requests a second of one group, at full load.
        servers: Requests that it works on one by one (prefill), or at once (decode).
        seconds: Of one prompt alone (prefill), of one token (decode).
        extra: What the cache takes to arrive (decode).
        limit: The term of time that takes longest.
        packed: The most prompts that a rank reads in one step (prefill); ``packed_s``: its seconds.
    """

    rate: float
    servers: int
    seconds: float
    limit: str
    extra: float = 0.0
    packed: int = 1
    packed_s: float = 0.0

    def step(self, busy: float) -> float:
        """Return the seconds of a step of a prefill rank that is busy for a share of its capacity.

        It reads as many prompts as have arrived during the step before.
        """
        if self.packed == 1:
            return self.seconds
        more = (self.packed_s - self.seconds) / (self.packed - 1)  # for each further prompt
        arrived = busy * self.packed / self.packed_s
        count = arrived * (self.seconds - more) / max(1 - arrived * more, 1e-9)
        return self.seconds + more * (min(max(count, 1.0), self.packed) - 1)


def prefill_side(read: Prompt, dp: int, pick: Pick) -> Side:
    """Return what a prefill group can do: each rank reads the prompts that wait, in turn."""
    each, full = (pick(one.all_ranks) * read.chunks for one in (read.packs[0], read.packs[-1]))
    limit = f"prefill: {read.all_ranks.largest.name}"
    return Side(dp * read.most / full, dp, each, limit, packed=read.most, packed_s=full)


def decode_side(
    kind: Kind, table: Factors, load: Workload, seqs: int, step: Time, accepted: float, pick: Pick
) -> Side:
    """Return what a decode group can do with ``seqs`` requests on each rank."""
    each = pick(step) / accepted
    moved = step_time.transfer(kind, table, load.input_len)
    spent = each * max(load.output_len - 1, 1) + pick(step)
    count = seqs * kind.shape.dp
    each = each if load.output_len > 1 else 0.0  # no token follows the first one
    return Side(count / spent, count, each, step.largest.name, pick(moved) + pick(step))


def waiting(busy: float, servers: int, seconds: float, spread: float) -> float:
    """Return the mean wait before ``servers`` servers, busy a share of the time (0 to below 1).

    Sakasegawa's approximation of M/G/c; ``spread`` is the squared variation of the service time.
    """
    if busy >= 1:
        return math.inf
    grown = busy ** (math.sqrt(2 * (servers + 1)) - 1)
    return float((1 + spread) / 2 * grown / (servers * (1 - busy)) * seconds)


def read_in(side: Side, count: int, busy: float, spread: float) -> float:
    """Return the mean seconds of a prompt in ``count`` groups of a prefill side, its wait included."""
    seconds = side.step(busy)
    return seconds + waiting(busy, side.servers * count, seconds, spread)


def busiest(bound: float, side: Side, count: int, spread: float, most: float) -> float:
    """Return the largest share of its capacity at which a prefill side reads within ``bound``.

    0 where even an empty queue does not keep it; never more than ``most``.
    """
    if bound < side.seconds:
        return 0.0
    if read_in(side, count, most, spread) <= bound:
        return most
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        keeps = read_in(side, count, middle, spread) <= bound
        low, high = (middle, high) if keeps else (low, middle)
    return low
