"""The beat of a stand-in engine: each step gives every running request one token.

    steps = Steps(0.02)
    await steps.run(Stream(frames, send), gone)     # a group of frames every 20 ms

The streams have places of their own within a step, a millisecond or more apart: sent all at
once, each would wait for those before it, now longer and now shorter. Times are fixed, so that a
late step does not push the next. The event loop's own timers count in milliseconds, as epoll
does; a timerfd counts in nanoseconds.
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

_PLACES, _APART = 20, 0.001  # of a step: how many at most, seconds between them at least
_ROUNDING = 1e-6  # seconds; a time that was just kept is not the next one
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class Stream:
    """An answer on its way: ``groups`` are the frames of each step, ``send`` is ASGI's. ``done``
    is set when the last one is sent."""

    def __init__(self, groups: Iterable[Sequence[bytes]], send: Send) -> None:
        self._groups, self._send = iter(groups), send
        self._slow: asyncio.Task[None] | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def step(self) -> bool:
        """Send the next group; whether there may be more. A client that does not read misses
        steps, and keeps nobody else waiting."""
        if self.done.done():
            return False
        if self._slow is not None:
            return True
        group = next(self._groups, None)
        if group is None:
            self.done.set_result(None)
            return False
        for at, frame in enumerate(group):
            # Sending waits for nothing as long as the client reads: no task is needed for it,
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
    """What is left of a coroutine that was begun outside a task."""
    yield blocker
    yield from sending


class Steps:
    """See the module. ``seconds`` is the time of a step; 0 is no waiting at all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._count = max(1, min(_PLACES, int(seconds / _APART)))
        self._apart = seconds / self._count
        self._places: list[list[Stream]] = [[] for _ in range(self._count)]
        self._next: int | None = None  # the number of a place in time, since the clock's zero
        self._timer: _Timer | None = None

    async def run(self, stream: Stream, gone: asyncio.Future[None]) -> bool:
        """Send a stream to its end; whether the client was there for it."""
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
    """A timer of the kernel (os.timerfd_create is Python 3.13's)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.handle = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def start(self, at: float) -> None:
        """Have the handle readable at a time of `time.monotonic`, and at no other."""
        when = struct.pack("llll", 0, 0, *divmod(round(at * 1e9), 10**9))
        if self._libc.timerfd_settime(self.handle, _ABSOLUTE, when, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def passed(self) -> bool:
        """Whether its time has come since the last look."""
        try:
            return bool(os.read(self.handle, 8))
        except BlockingIOError:
            return False
