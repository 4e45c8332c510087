"""What a rehearsal has left running, and waiting for it to be gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

GONE_WITHIN = 5.0  # seconds


def left(folder: Path) -> list[psutil.Process]:
    """Processes of a rehearsal below a folder: whose environment or command names it."""
    us = {os.getpid(), *(one.pid for one in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join([*process.cmdline(), *process.environ().values()])
            if (
                str(folder) in words
                and process.pid not in us
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_gone(folder: Path) -> list[str]:
    """What is still there of a rehearsal after the seconds in which it must have ended."""
    end = time.monotonic() + GONE_WITHIN
    while (there := left(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return [" ".join(one.cmdline()) for one in there if one.is_running()]
