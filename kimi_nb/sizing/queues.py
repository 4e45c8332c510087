"""Simulate the queues of a service: router, prefill and decode, request by request.

>>> from kimi_nb.sizing.request_load import Request
>>> writers = Writers(groups=1, ranks=1, seqs=2, step=lambda busy: 0.01, accepted=1.0)
>>> found = simulate([Request(10, 100)] * 4, writers)
>>> round(found.quantile("ttft", 0.9), 3), round(found.quantile("tpot", 0.5), 3)
(1.01, 0.01)

A discrete-event simulation, deterministic. The router hands requests round to the groups; in a
group the rank with the fewest takes the next one, and waits if it has --max-num-seqs of them. All
ranks of a group step together. A step reads as much of the waiting prompts as fits into
--max-num-batched-tokens, beside the tokens of those that decode.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kimi_nb.sizing.request_load import Request


@dataclass(frozen=True)
class Readers:
    """Ranks that prefill only: each reads the prompts that wait, up to ``budget`` tokens at once.

    Attributes:
        seconds: For so many tokens; of a prompt that is longer than the budget, too.
    """

    count: int
    seconds: Callable[[int], float]
    budget: int = 0


@dataclass(frozen=True)
class Writers:
    """Groups that decode, and prefill in the same steps where ``chunk`` is given.

    Attributes:
        step: Seconds of a step by the requests of the fullest rank.
        accepted: Tokens that a step gives each request.
        read: Seconds of a step in which a rank reads so many tokens; None: prompts are read apart.
        budget: The most tokens of a step of a rank.
    """

    groups: int
    ranks: int
    seqs: int
    step: Callable[[int], float]
    accepted: float = 1.0
    read: Callable[[int], float] | None = None
    budget: int = 1


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
        out.append(replace(sizes[number % len(sizes)], arrival=at))
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
        read = _read_apart(ordered, ready, readers)
        moved = (transfer(one.input_len) if transfer else 0.0 for one in ordered)
        ready = [at + more for at, more in zip(read, moved, strict=True)]
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


def _read_apart(ordered: list[Request], ready: list[float], readers: Readers) -> list[float]:
    """Return when each prompt is read by ranks that prefill only, in order of arrival."""
    free, out, number = [0.0] * readers.count, list(ready), 0
    while number < len(ordered):
        begun = max(heapq.heappop(free), ready[number])
        tokens, last = ordered[number].new_tokens, number + 1
        while last < len(ordered) and ready[last] <= begun:
            if tokens + ordered[last].new_tokens > readers.budget:
                break
            tokens += ordered[last].new_tokens
            last += 1
        end = begun + readers.seconds(tokens)
        heapq.heappush(free, end)
        out[number:last] = [end] * (last - number)
        number = last
    return out


@dataclass
class _Rank:
    """A rank: how many requests it has, and the prompts that it reads: (number, tokens left)."""

    busy: int = 0
    reading: deque[tuple[int, int]] = field(default_factory=deque)

    def take(self, budget: int) -> tuple[int, list[int]]:
        """Take a step's tokens off the prompts; return their number, and the prompts read to the end."""
        room = max(budget - (self.busy - len(self.reading)), 1)
        taken, done = 0, []
        while self.reading and taken < room:
            number, left = self.reading.popleft()
            now = min(left, room - taken)
            taken += now
            if now < left:
                self.reading.appendleft((number, left - now))
            else:
                done.append(number)
        return taken, done


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
            if self.writers.read and any(rank.reading for rank in self.ranks):
                self._read(sizes, self.writers.read)
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
            if self.writers.read is None:
                self._start(number, one, place)
            else:
                self.ranks[place].reading.append((number, one.new_tokens))

    def _start(self, number: int, one: Request, place: int) -> None:
        steps = math.ceil(one.output_len / self.writers.accepted)
        heapq.heappush(self.running, (self.count + max(steps, 1), number, place))
        self.fresh.append(number)

    def _read(self, sizes: dict[int, Request], read: Callable[[int], float]) -> None:
        """Take one step in which some ranks read pieces of prompts; the others go on writing."""
        budget, each = self.writers.budget, self.writers.step(self._fullest())
        taken = [rank.take(budget) for rank in self.ranks]
        self._pass(max(each, *(read(tokens) for tokens, _ in taken if tokens)), 1)
        for place, (_, done) in enumerate(taken):
            for number in done:
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
