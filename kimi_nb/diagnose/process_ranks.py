"""Tell the rank of what a process says from what it says of itself elsewhere in its log.

Example::

    ranks = ProcessRanks()
    ranks.take(said)  # for each line: "world_size=16 rank=11" is told once, at the start
    ranks.label(events)  # what the process says later without its rank is of rank 11

Ray's workers and libraries name their process and its host only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kimi_nb.diagnose.line_grammar import Said

if TYPE_CHECKING:
    from kimi_nb.diagnose.events import Event

_MOST = 4096  # processes of one log
_QUOTED = 20  # last lines of a rank's log that a launcher shows
# How a process tells its number among all of its group: vLLM, its parallel state, NCCL.
TOLD = (
    r"\bworld_size=(?P<world>\d+),? rank=(?P<rank>\d+)",
    r"\brank (?P<rank>\d+) in world size (?P<world>\d+)",
    r"\brank (?P<rank>\d+) nranks (?P<world>\d+)",
)
# What names a rank without a level.
_TELLS = re.compile(r"^MPI_ABORT was invoked on rank")
_TOLD = tuple(map(re.compile, TOLD))


class ProcessRanks:
    """The rank that each process of a log has told; of several groups that of the largest."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[int, int]] = {}  # world size and rank, by process

    def take(self, said: Said) -> None:
        """Note the rank that a line tells of the process that wrote it."""
        if not said.process or len(self._ranks) >= _MOST:
            return
        for pattern in _TOLD:
            found = pattern.search(said.text)
            if found is not None:
                world = int(found["world"])
                if world > self._ranks.get(said.process, (0, 0))[0]:
                    self._ranks[said.process] = world, int(found["rank"])
                return

    def of(self, process: str) -> int | None:
        """Return the rank of a process (`line_grammar.Said.process`), or None if it told none."""
        if process in self._ranks:
            return self._ranks[process][1]
        ranks = {rank for other, (_, rank) in self._ranks.items() if _same_place(process, other)}
        return ranks.pop() if len(ranks) == 1 else None

    def label(self, events: Sequence[Event]) -> None:
        """Give events whose lines name no rank the one that their process told."""
        for event in events:
            told = self.of(event.said.process) if _nameless(event) else None
            if event.remote:  # of the head's own processes Ray tells no address in their lines
                told = self.of(event.remote)
                told = self.of(f"||{event.remote.rpartition('|')[2]}") if told is None else told
            if told is not None:
                event.rank = told
                event.label = event.label or str(told)
        _label_natives(events)


def one_process(said: Said, other: Said) -> bool:
    """Return whether two lines may be of one process: not if each names a number of its own."""
    numbers = {one.process.rpartition("|")[2] for one in (said, other) if one.process}
    return len(numbers) < 2


def _nameless(event: Event) -> bool:
    """Return whether an event is known by no rank, but at most by its host or its device."""
    by_host = isinstance(event.rank, str) and event.rank.startswith("ip=")
    return event.rank is None or by_host or _by_device(event)


def _same_place(process: str, other: str) -> bool:
    """Return whether two names of processes are of one: a library names the host beside."""
    host, _, rest = process.partition("|")
    there, _, again = other.partition("|")
    return bool(rest) and rest == again and not (host and there and host != there)


def _number(event: Event) -> str:
    """Return what tells its process from others, without the host that a library names beside."""
    return event.said.process.rpartition("|")[2]


def _same(one: Event, other: Event) -> bool:
    """Return whether two events of one number are of one process: only one of them names a host."""
    hosts = {two.said.process.partition("|")[0] for two in (one, other)} - {""}
    return bool(_number(one)) and len(hosts) < 2


def _by_device(event: Event) -> bool:
    """Return whether an event is known only by the device of its process, as NCCL writes it."""
    return event.said.grammar == "nccl" and isinstance(event.rank, str) and event.rank[0] == "["


def _same_pid(one: Event, other: Event) -> bool:
    """Return whether two events name the same process, so that the device of one is the other's."""
    return _number(one) == _number(other) and _same(one, other)


def _tells(event: Event) -> bool:
    """Return whether an event is an error that its process tells, and no quoted line."""
    said = event.said
    return bool(event.raised or said.level or said.grammar == "sglang" or _TELLS.search(said.text))


def _elsewhere(device: int | str | None, rank: int | str | None) -> bool:
    """Return whether a rank cannot be on a device, "[7]": ranks are counted along those of a node.

    A process that is shown one device alone calls it 0.
    """
    number = int(str(device).strip("[]"))
    return isinstance(rank, int) and rank != number and rank - number <= number != 0


def _label_natives(events: Sequence[Event]) -> None:
    """Give native lines without a label the rank of the labelled traceback that tells of them.

    A library writes to the same log, a moment before the process that called it fails. What a
    process says of its rank once holds for all that it says. What a launcher quotes stands after
    the line in which it tells of the rank's end, and is of that rank.
    """
    named: dict[str, list[Event]] = {}
    for event in events:
        if event.rank is not None and not _by_device(event):
            named.setdefault(_number(event), []).append(event)
    for event in events:
        if event.rank is None or _by_device(event):
            known = next((one for one in named.get(_number(event), ()) if _same(one, event)), None)
            if known is not None:
                event.rank, event.label = known.rank, known.label
    for event in events:
        if event.rank is None and event.said.process:
            device = next(
                (one for one in events if _by_device(one) and _same_pid(one, event)), None
            )
            if device is not None:
                event.rank, event.label = device.rank, device.label
    ended: Event | None = None
    for at, event in enumerate(events):
        if any(one.signature.id == "rank-died" for one in event.matches):
            ended = event
        if event.rank is not None and not _by_device(event):
            continue
        if ended is not None and event.first.number - ended.first.number <= _QUOTED:
            event.rank, event.label = ended.rank, ended.label
            continue
        for later in events[at + 1 : at + 6]:
            if (
                later.rank is not None
                and later.said.grammar not in ("nccl", "cann", "slurm")
                and _tells(later)
            ):
                near = later.first.number - event.lines[-1].number <= 60
                # What the engine itself logs, with its process, is of no other one.
                # NCCL names its process too, which is one of the engine's workers.
                strict = event.said.grammar == "vllm" or (
                    event.said.grammar == "nccl" and "Worker" in later.said.speaker
                )
                own = not strict or one_process(event.said, later.said)
                own = own and not (_by_device(event) and _elsewhere(event.rank, later.rank))
                if near and own and event.said.grammar != "slurm":
                    event.rank, event.label = later.rank, later.label
                break
