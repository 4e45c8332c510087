"""Simulate a benchmark that keeps so many requests in flight: each answer sends the next request.

>>> engine = Engine(budget=512, seqs=8, read=lambda tokens, busy: 0.1, write=lambda busy: 0.01)
>>> found = simulate(engine, request_load.fixed(256, 11), concurrency=3, requests=6)
>>> [round(one, 3) for one in found.ttft[:3]], round(found.tpot[0], 3)
([0.1, 0.1, 0.2], 0.019)

One rank, step by step, as vLLM schedules: a step has at most --max-num-batched-tokens tokens, first
those of the requests that decode, then as much of the waiting prompts as there is room for. The API
server is one process, which tokenizes one prompt after the other: of prompts that come at once, the
first is read in a step of its own, and those that arrive meanwhile wait for the next one.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kimi_nb.sizing import request_load
from kimi_nb.sizing.queues import Simulated


@dataclass(frozen=True)
class Engine:
    """What one rank takes for its steps, in seconds.

    Attributes:
        budget: The most tokens of a step.
        seqs: The most requests at once.
        read: Of a step that reads so many tokens of prompts, while so many requests decode.
        write: Of a step in which so many requests decode.
        accepted: Tokens that a step gives each request that decodes.
        front: From the client to the API server, for each request.
        tokenize: In the API server, which handles one request after the other.
        chunked: Whether a prompt that does not fit is divided; otherwise it waits for the next step.
    """

    budget: int
    seqs: int
    read: Callable[[int, int], float]
    write: Callable[[int], float]
    accepted: float = 1.0
    front: float = 0.0
    tokenize: float = 0.0
    chunked: bool = True


def simulate(
    engine: Engine, load: request_load.Workload, concurrency: int, requests: int
) -> Simulated:
    """Return what ``requests`` requests of one length meet, ``concurrency`` of them in flight."""
    run = _Rank(engine, load, max(requests, 1))
    for _ in range(min(concurrency, run.total)):
        run.send(0.0)
    while run.step():
        pass
    times = [
        (run.first[number] - sent, run.end[number] - run.first[number])
        for number, sent in enumerate(run.sent)
    ]
    return Simulated(
        tuple(ttft for ttft, _ in times),
        tuple(rest / max(load.output_len - 1, 1) for _, rest in times),
        max(run.end.values()),
        run.total * load.output_len,
    )


@dataclass
class _Rank:
    """The rank while it is simulated: ``clock`` in seconds, ``count`` in steps."""

    engine: Engine
    load: request_load.Workload
    total: int
    clock: float = 0.0
    count: int = 0
    served: float = 0.0  # until when the API server is busy
    sent: list[float] = field(default_factory=list)
    first: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    coming: deque[tuple[float, int]] = field(default_factory=deque)
    reading: deque[tuple[int, int]] = field(default_factory=deque)  # (request, tokens left)
    writing: list[tuple[int, int]] = field(default_factory=list)  # (its last step, request)

    def send(self, at: float) -> None:
        """Send one more request, if there is one left."""
        if len(self.sent) < self.total:
            begun = max(at + self.engine.front, self.served)
            self.served = begun + self.engine.tokenize
            self.coming.append((self.served, len(self.sent)))
            self.sent.append(at)

    def step(self) -> bool:
        """Take a step, or several that are alike; return False where nothing is left to do."""
        while self._room() and self.coming and self.coming[0][0] <= self.clock + 1e-12:
            self.reading.append((self.coming.popleft()[1], self.load.new_tokens))
        if self.reading:
            self._read()
        elif self.writing:
            self._write()
        elif self.coming:
            self.clock = self.coming[0][0]
        else:
            return False
        while self.writing and self.writing[0][0] <= self.count:
            _, number = heapq.heappop(self.writing)
            self.end[number] = self.clock
            self.send(self.clock)
        return True

    def _room(self) -> bool:
        return len(self.reading) + len(self.writing) < self.engine.seqs

    def _read(self) -> None:
        left = max(self.engine.budget - len(self.writing), 1)
        taken, done = 0, []
        while self.reading and taken < left:
            number, tokens = self.reading[0]
            if taken and not self.engine.chunked and tokens > left - taken:
                break
            self.reading.popleft()
            now = min(tokens, left - taken)
            taken += now
            if now < tokens:
                self.reading.appendleft((number, tokens - now))
            else:
                done.append(number)
        self.clock += self.engine.read(taken, len(self.writing))
        self.count += 1
        for number in done:  # the step that reads the end gives the first token
            self.first[number] = self.clock
            steps = math.ceil((self.load.output_len - 1) / self.engine.accepted)
            heapq.heappush(self.writing, (self.count + steps, number))

    def _write(self) -> None:
        each = self.engine.write(len(self.writing))
        steps = max(self.writing[0][0] - self.count, 1)
        if self.coming and self._room():
            steps = min(steps, max(math.ceil((self.coming[0][0] - self.clock) / each), 1))
        self.clock += each * steps
        self.count += steps
