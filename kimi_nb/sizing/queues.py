"""Simulate the queues of a service: router, prefill and decode, request by request.

>>> from kimi_nb.sizing.request_load import Request
>>> writers = Writers(groups=1, ranks=1, seqs=2, step=lambda busy: 0.01, accepted=1.0)
>>> found = simulate([Request(10, 100)] * 4, writers)
>>> round(found.quantile("ttft", 0.9), 3), round(found.quantile("tpot", 0.5), 3)
(1.01, 0.01)

A discrete-event simulation, deterministic. The router hands requests round to the groups; in a
group the rank with the fewest takes the next one, and waits if it has --max-num-seqs of them. All
ranks of a group step together.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kimi_nb.sizing.request_load import Request


@dataclass(frozen=True)
class Readers:
    """Ranks that prefill only: each reads one prompt after the other, in ``seconds(tokens)``."""

    count: int
    seconds: Callable[[int], float]


@dataclass(frozen=True)
class Writers:
    """Groups that decode, and prefill in the same steps where ``chunk`` is given.

    Attributes:
        step: Seconds of a step by the requests of the fullest rank.
        accepted: Tokens that a step gives each request.
        chunk: (steps, seconds of each) that a prompt of so many tokens takes.
    """

    groups: int
    ranks: int
    seqs: int
    step: Callable[[int], float]
    accepted: float = 1.0
    chunk: Callable[[int], tuple[int, float]] | None = None


@dataclass(frozen=True)
class Simulated:
    """What a simulation saw: seconds of each request, and from the first arrival to the last token."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    seconds: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second of the whole service."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def mean(self, name: str) -> float:
        """Return the mean of ``ttft`` or ``tpot``."""
        values: tuple[float, ...] = getattr(self, name)
        return sum(values) / len(values)

    def quantile(self, name: str, share: float) -> float:
        """Return the value of ``ttft`` or ``tpot`` that so many of the requests do not exceed."""
        values = sorted(getattr(self, name))
        return float(values[min(math.ceil(share * len(values)), len(values)) - 1])


def poisson(sizes: Sequence[Request], rate: float, count: int, seed: int = 0) -> list[Request]:
    """Return ``count`` requests that arrive at random, ``rate`` a second, their sizes in turn."""
    draw, at, out = random.Random(seed), 0.0, []
    for number in range(count):
        at += draw.expovariate(rate)
        size = sizes[number % len(sizes)]
        out.append(Request(size.input_len, size.output_len, at, size.blocks))
    return out


def simulate(
    requests: Sequence[Request],
    writers: Writers,
    readers: Readers | None = None,
    *,
    front: float = 0.0,
    transfer: Callable[[int], float] | None = None,
) -> Simulated:
    """Return what so many requests meet; ``front`` and ``transfer`` are seconds before the engine."""
    ordered = sorted(requests, key=lambda one: one.arrival)
    ready = [one.arrival + front for one in ordered]
    if readers:
        free = [0.0] * readers.count
        for number, one in enumerate(ordered):
            begun = max(heapq.heappop(free), ready[number])
            read = begun + readers.seconds(one.input_len)
            heapq.heappush(free, read)
            ready[number] = read + (transfer(one.input_len) if transfer else 0.0)
    ttft, tpot, last = [0.0] * len(ordered), [0.0] * len(ordered), 0.0
    for group in range(writers.groups):
        mine = sorted(range(group, len(ordered), writers.groups), key=ready.__getitem__)
        run = _Group(writers)
        for number, first, end in run.serve([(ready[at], at, ordered[at]) for at in mine]):
            one = ordered[number]
            ttft[number] = first - one.arrival
            tpot[number] = (end - first) / max(one.output_len - 1, 1)
            last = max(last, end)
    began = ordered[0].arrival if ordered else 0.0
    return Simulated(tuple(ttft), tuple(tpot), last - began, sum(one.output_len for one in ordered))


@dataclass
class _Rank:
    """A rank: how many requests it has, and the prompts that it reads: [number, steps left, ...]."""

    busy: int = 0
    reading: deque[tuple[int, int, float]] = field(default_factory=deque)


class _Group:
    """One group while it is simulated; `clock` in seconds, `count` in steps."""

    def __init__(self, writers: Writers) -> None:
        self.writers = writers
        self.ranks = [_Rank() for _ in range(writers.ranks)]
        self.running: list[tuple[int, int, int]] = []  # (step of the last token, number, rank)
        self.fresh: list[int] = []  # running, without a token yet
        self.first: dict[int, float] = {}
        self.clock, self.count = 0.0, 0

    def serve(self, arrivals: list[tuple[float, int, Request]]) -> list[tuple[int, float, float]]:
        """Return (number, time of the first token, of the last) of each request."""
        waiting = deque(arrivals)
        sizes = {number: one for _, number, one in arrivals}
        done: list[tuple[int, float, float]] = []
        while waiting or self.running or any(rank.reading for rank in self.ranks):
            self._admit(waiting)
            if any(rank.reading for rank in self.ranks):
                self._read(sizes)
            elif self.running:
                self._write(waiting)
            else:
                self.clock = max(self.clock, waiting[0][0])
                continue
            while self.running and self.running[0][0] <= self.count:
                _, number, rank = heapq.heappop(self.running)
                self.ranks[rank].busy -= 1
                done.append((number, self.first[number], self.clock))
        return done

    def _admit(self, waiting: deque[tuple[float, int, Request]]) -> None:
        while waiting and waiting[0][0] <= self.clock + 1e-12:
            place = min(range(len(self.ranks)), key=lambda at: self.ranks[at].busy)
            if self.ranks[place].busy >= self.writers.seqs:
                return
            _, number, one = waiting.popleft()
            self.ranks[place].busy += 1
            if self.writers.chunk is None:
                self._start(number, one, place)
            else:
                steps, seconds = self.writers.chunk(one.input_len)
                self.ranks[place].reading.append((number, steps, seconds))

    def _start(self, number: int, one: Request, place: int) -> None:
        steps = math.ceil(one.output_len / self.writers.accepted)
        heapq.heappush(self.running, (self.count + max(steps, 1), number, place))
        self.fresh.append(number)

    def _read(self, sizes: dict[int, Request]) -> None:
        """Take one step in which some ranks read a piece of a prompt; the others go on writing."""
        longest = max(rank.reading[0][2] for rank in self.ranks if rank.reading)
        self._pass(max(longest, self.writers.step(self._fullest())), 1)
        for place, rank in enumerate(self.ranks):
            if not rank.reading:
                continue
            number, left, seconds = rank.reading[0]
            if left > 1:
                rank.reading[0] = (number, left - 1, seconds)
                continue
            rank.reading.popleft()
            self.first[number] = self.clock  # the step that reads the end gives the first token
            steps = math.ceil((sizes[number].output_len - 1) / self.writers.accepted)
            heapq.heappush(self.running, (self.count + steps, number, place))

    def _write(self, waiting: deque[tuple[float, int, Request]]) -> None:
        """Take steps until something changes: an end, or an arrival for which there is room."""
        each = self.writers.step(self._fullest())
        steps = max(self.running[0][0] - self.count, 1)
        if self.fresh:
            steps = 1
        elif waiting and min(rank.busy for rank in self.ranks) < self.writers.seqs:
            steps = min(steps, max(math.ceil((waiting[0][0] - self.clock) / each), 1))
        self._pass(each, steps)

    def _fullest(self) -> int:
        return max(max(rank.busy for rank in self.ranks), 1)

    def _pass(self, seconds: float, steps: int) -> None:
        self.clock += seconds * steps
        self.count += steps
        for number in self.fresh:
            self.first[number] = self.clock
        self.fresh.clear()
