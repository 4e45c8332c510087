"""The beat of a stand-in engine: each step gives every running request one token.

    steps = Steps(0.02)
    place = steps.enter()
    await steps.next(place)      # at the next of its times, 20 ms after the last one
    steps.leave(place)

The requests have places of their own within a step, a millisecond or more apart: sent all at
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

_PLACES, _APART = 20, 0.001  # of a step: how many at most, seconds between them at least
_ROUNDING = 1e-6  # seconds; a time that was just kept is not the next one
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class Steps:
    """See the module. ``seconds`` is the time of a step; 0 is no waiting at all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._count = max(1, min(_PLACES, int(seconds / _APART)))
        self._apart = seconds / self._count
        self._taken = [0] * self._count
        self._waiting: list[list[asyncio.Future[None]]] = [[] for _ in range(self._count)]
        self._next: int | None = None  # the number of a place in time, since the clock's zero
        self._timer: _Timer | None = None

    def enter(self) -> int:
        """A place that few others have."""
        place = min(range(self._count), key=lambda at: self._taken[at])
        self._taken[place] += 1
        return place

    def leave(self, place: int) -> None:
        """Give a place back."""
        self._taken[place] -= 1

    async def next(self, place: int) -> None:
        """Wait for the next time of a place."""
        if not self.seconds:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place].append(future)
        first = int((time.monotonic() + _ROUNDING) / self._apart) + 1
        number = first + (place - first) % self._count
        if self._next is None or number < self._next:
            self._set(number)
        await future

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
            waiting, self._waiting[place] = self._waiting[place], []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self._next = None
        for number in range(last + 1, last + self._count + 1):
            if self._waiting[number % self._count]:
                self._set(number)
                return


class _Timer:
    """A timer of the kernel (os.timerfd_create is Python 3.13's)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.handle = self._libc.timerfd_create(time.CLOCK_MONOTONIC,
                                                os.O_NONBLOCK | os.O_CLOEXEC)
        if self.handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def start(self, at: float) -> None:
        """Have the handle readable at a time of `time.monotonic`, and at no other."""
        when = struct.pack("llll", 0, 0, *divmod(round(at * 1e9), 10 ** 9))
        if self._libc.timerfd_settime(self.handle, _ABSOLUTE, when, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def passed(self) -> bool:
        """Whether its time has come since the last look."""
        try:
            return bool(os.read(self.handle, 8))
        except BlockingIOError:
            return False
