"""The few calls of Linux that Python's library does not have, for processes that mind others."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl() -> Callable[[int, int], int]:
    """``prctl(option, value)``, looked up before any fork; elsewhere a function that does
    nothing."""
    try:
        function = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return lambda option, value: 0
    # unsigned long, said explicitly: aarch64 leaves the upper half of a plain int undefined
    return lambda option, value: function(option, ctypes.c_ulong(value))


def wakeup() -> int:
    """A handle that can be read from whenever a signal has come."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reader


def reaped() -> Iterator[tuple[int, int]]:
    """(process id, exit code) of every child that has ended since; negative for a signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)
