"""Tell a rank or a device from the words of a program (data/diagnose/rank_words.yaml).

>>> rank_of("[Rank 3] Watchdog caught collective operation timeout"), rank_of("no rank here")
(3, None)
>>> device_of("RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB (NPU 6; 60.97 GiB)")
'NPU 6'
>>> place_of(
...     "DeepEP dispatch NVL receiver timeout, channel: 2, RDMA: 1, nvl: 3, src RDMA: 0, src nvl: 1"
... )
Place(rank=11, name='RDMA: 1, nvl: 3')

What the beginning of a line tells of its process counts more (`line_grammar`).
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from kimi_nb.core import data_files

_PART = re.compile(r"([a-z_]+)_rank ?[=:] ?(\d+)")


class Place(NamedTuple):
    """The number of a process in its group, or its numbers in several, and its place in words."""

    rank: int | str
    name: str


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
    found = next(filter(None, (_group(one, text) for one in ("ranks", "engines", "locals"))), "")
    return int(found) if found else None


def device_of(text: str) -> str | None:
    """Return the device of a process by its name ("GPU 3"), or as NCCL writes it ("[3]"), or None."""
    found = _group("devices", text)
    return f"[{int(found)}]" if found.isdecimal() else found or None


def group_of(text: str) -> Place | None:
    """Return the numbers of a process in all of its groups, as it is logged and as a name."""
    found = _group("groups", text).rstrip(" ,;")
    parts = _PART.findall(found)
    return (
        Place(found, " ".join(f"{name.upper()}{number}" for name, number in parts))
        if found
        else None
    )


def place_of(text: str) -> Place | None:
    """Return the rank of a process that tells the number of its node and its own number there."""
    match = _words("places").search(text)
    if match is None:
        return None
    peers = data_files.facts("diagnose/rank_words")["wide"]["DeepEP"]
    return Place(int(match["node"]) * peers + int(match["own"]), match["name"])


def host_of(text: str) -> str:
    """Return the host of a process of which another one says that it ended, or ""."""
    return _group("hosts", text)


def peer_of(text: str) -> str:
    """Return the address of a process that another one cannot reach, or ""; none on the same host."""
    found = _group("peers", text)
    return "" if found.startswith(("127.", "0.0.0.0")) else found


def title_of(text: str) -> str:
    """Return the place of a process in its groups by its title, or ""."""
    return _group("titles", text).strip("_")


def worker_of(text: str) -> str:
    """Return the place in its groups of a worker of which an engine tells, or ""."""
    return _group("workers", text).strip(" _")


def name_of(text: str) -> str:
    """Return the name that a launcher gives a worker before what it says, or ""."""
    return _group("names", text) if "[" in text else ""


def ended(text: str) -> str:
    """Return the worker of which another process says that it ended, or ""."""
    return _group("ended", text)
