"""Pace the answers of a stand-in engine: each step gives every running request one token.

    steps = Steps(0.02)
    await steps.run(Stream(groups, send), gone)     # a group of frames every 20 ms

The streams are spread over a step, a millisecond or more apart. If all were sent at once, each
would have to wait for a varying number of others. The times are fixed in advance, so that a late
step does not delay the next. The event loop's own timers have the resolution of epoll, a
millisecond; a timerfd has a resolution of nanoseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
import types
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

Send = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]

_PLACES, _APART = 20, 0.001  # per step: the most places, the least seconds between two
_ROUNDING = 1e-6  # seconds; the next time must not be the one just reached
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class Stream:
    """An answer that is being sent.

    Attributes:
        done: Set when the last group of frames is sent.
    """

    def __init__(self, groups: Iterable[Sequence[bytes]], send: Send) -> None:
        self._groups, self._send = iter(groups), send
        self._slow: asyncio.Task[None] | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def step(self) -> bool:
        """Send the next group of frames, and return whether there may be more.

        A client that does not read misses steps, and delays nobody else.
        """
        if self.done.done():
            return False
        if self._slow is not None:
            return True
        group = next(self._groups, None)
        if group is None:
            self.done.set_result(None)
            return False
        for at, frame in enumerate(group):
            # Sending does not block as long as the client reads. It then needs no task,
            # which would cost more than the rest of the step.
            sending = self._send({"type": "http.response.body", "body": frame, "more_body": True})
            try:
                blocker = sending.send(None)
            except StopIteration:
                continue
            except OSError as error:
                self.done.set_exception(error)
                return False
            self._slow = asyncio.ensure_future(self._finish(sending, blocker, group[at + 1 :]))
            break
        return True

    async def _finish(self, sending: Any, blocker: Any, rest: Sequence[bytes]) -> None:
        await _continued(sending, blocker)
        for frame in rest:
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._slow = None


@types.coroutine
def _continued(sending: Any, blocker: Any) -> Any:
    """Continue a coroutine that was started outside a task."""
    yield blocker
    yield from sending


class Steps:
    """The steps of an engine, every ``seconds``; with 0 there is no waiting."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._count = max(1, min(_PLACES, int(seconds / _APART)))
        self._apart = seconds / self._count
        self._places: list[list[Stream]] = [[] for _ in range(self._count)]
        self._next: int | None = None  # the next place, counted from the zero of the clock
        self._timer: _Timer | None = None

    async def run(self, stream: Stream, gone: asyncio.Future[None]) -> bool:
        """Send a stream to its end, and return whether the client was there for all of it."""
        first = int((time.monotonic() + _ROUNDING) / self._apart) + 1
        number = min(
            range(first, first + self._count), key=lambda at: len(self._places[at % self._count])
        )
        self._places[number % self._count].append(stream)
        if self._next is None or number < self._next:
            self._set(number)
        try:
            await asyncio.wait({stream.done, gone}, return_when=asyncio.FIRST_COMPLETED)
            ended = stream.done.done()
            if ended:
                stream.done.result()
            return ended
        finally:
            stream.done.cancel()

    def _set(self, number: int) -> None:
        if self._timer is None:
            self._timer = _Timer()
            asyncio.get_running_loop().add_reader(self._timer.handle, self._beat)
        self._next = number
        self._timer.start(number * self._apart)

    def _beat(self) -> None:
        assert self._timer is not None and self._next is not None
        if not self._timer.passed():
            return
        last = int((time.monotonic() + _ROUNDING) / self._apart)
        for number in range(max(self._next, last - self._count + 1), last + 1):
            place = number % self._count
            if self._places[place]:
                self._places[place] = [one for one in self._places[place] if one.step()]
        self._next = None
        for number in range(last + 1, last + self._count + 1):
            if self._places[number % self._count]:
                self._set(number)
                return


class _Timer:
    """A timer of the kernel (os.timerfd_create needs Python 3.13)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.handle = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def start(self, at: float) -> None:
        """Make the handle readable at a time of `time.monotonic`, replacing any earlier setting."""
        when = struct.pack("llll", 0, 0, *divmod(round(at * 1e9), 10**9))
        if self._libc.timerfd_settime(self.handle, _ABSOLUTE, when, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def passed(self) -> bool:
        """Return whether the timer has expired since the last look."""
        try:
            return bool(os.read(self.handle, 8))
        except BlockingIOError:
            return False
