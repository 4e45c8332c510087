"""Tell a rank or a device from the words of a program (data/diagnose/rank_words.yaml).

>>> rank_of("[Rank 3] Watchdog caught collective operation timeout"), rank_of("no rank here")
(3, None)
>>> device_of("RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB (NPU 6; 60.97 GiB)")
'[6]'

What the beginning of a line tells of its process counts more (`line_grammar`).
"""

from __future__ import annotations

import functools
import re

from kimi_nb.core import data_files


@functools.cache
def _words(what: str) -> re.Pattern[str]:
    """Return all expressions of one part of the file as one."""
    found = data_files.facts("diagnose/rank_words")[what].values()
    return re.compile(
        "|".join(one for row in found for one in ([row] if isinstance(row, str) else row))
    )


def _group(what: str, text: str) -> str:
    """Return the group that matched, or ""."""
    match = _words(what).search(text)
    return next(filter(None, match.groups()), "") if match else ""


def rank_of(text: str) -> int | None:
    """Return the number in its group that a process tells of itself, or None."""
    found = _group("ranks", text) or _group("engines", text)
    return int(found) if found else None


def device_of(text: str) -> str | None:
    """Return the device of a process as NCCL writes it, "[3]", or None."""
    found = _group("devices", text)
    return f"[{int(found)}]" if found else None


def host_of(text: str) -> str:
    """Return the host of a process of which another one says that it ended, or ""."""
    return _group("hosts", text)


def ended(text: str) -> str:
    """Return the worker of which another process says that it ended, or ""."""
    return _group("ended", text)
