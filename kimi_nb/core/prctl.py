"""Wrap the Linux calls for supervising processes that Python's standard library lacks."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl() -> Callable[[int, int], int]:
    """Return the function ``prctl(option, value)``, which does nothing on other systems.

    Look it up before forking: a forked child should not load a library.
    """
    try:
        function = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return lambda option, value: 0
    # An explicit unsigned long: aarch64 leaves the upper half of a plain int undefined.
    return lambda option, value: function(option, ctypes.c_ulong(value))


def wakeup() -> int:
    """Return a file descriptor that becomes readable whenever a signal arrives."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reader


def reaped() -> Iterator[tuple[int, int]]:
    """Yield (process id, exit code) of every child that has ended; negative codes are signals."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)
