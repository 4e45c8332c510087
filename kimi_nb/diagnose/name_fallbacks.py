"""Name the process of a failure where its lines, and those of its process, name no rank.

Example::

    name_fallbacks.name(events)  # what is last known: a task of srun, a number, a peer

An engine, or an actor, is known by the number of its process, one of Ray by its host too, and one of
whom nothing is known by the only host that a log names, or the address that it cannot reach.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kimi_nb.diagnose import gravity, rank_words
from kimi_nb.diagnose.event import Event

# Of whom there is one in a deployment.
_SINGLE = ("APIServer", "ApiServer", "DPCoordinator", "router")
# How srun tells of the end of one task by itself; who is "Killed" may be one that srun ended.
_TASK = re.compile(
    r"(?P<node>[\w.-]+): task (?P<task>\d+): (?:Exited with|Out Of Memory|Segmentation fault|Aborted|Bus error)"
)


def name(events: Sequence[Event]) -> None:
    """Give the events, which stand in the order of the log, these names."""
    _take_task(events)
    _take_dead(events)
    hosts = {event.said.node for event in events} - {""}
    for event in events:
        number = event.said.process.rpartition("|")[2]
        if event.rank is None and _own_name(event) and number.isdecimal():
            event.rank = f"pid={number}"
            event.label = f"{event.said.speaker} {event.rank}"
        _number_actor(event)
        if event.rank is None and not event.said.node and len(hosts) == 1:
            event.said = replace(event.said, node=next(iter(hosts)))
        elif event.rank is None and (peer := rank_words.peer_of(event.texts)):
            event.rank = event.label = f"ip={peer}"


def _take_task(events: Sequence[Event]) -> None:
    """Give events of which nobody is known the first task that srun says has ended, and its node."""
    ended = ((at, _TASK.match(one.said.text)) for at, one in enumerate(events))
    at, task = next(((at, task) for at, task in ended if task is not None), (0, None))
    for event in events[:at]:
        if task is not None and event.rank is None and not (event.remote or event.said.node):
            event.rank, event.label = int(task["task"]), f"task {task['task']}"
            event.said = replace(event.said, node=task["node"])


def _take_dead(events: Sequence[Event]) -> None:
    """Give who crashed without a name that of the only worker of which an engine says that it ended."""
    told = {found for event in events if (found := rank_words.ended(event.said.text))}
    for event in events:
        crashed = gravity.dies(event.said.text) and event.said.unnamed and not event.remote
        if crashed and event.rank is None and len(told) == 1:
            event.rank = event.label = next(iter(told))


def _own_name(event: Event) -> bool:
    """Return whether the number of its process tells it from others of its name."""
    speaker = event.said.speaker
    only = speaker in _SINGLE or event.said.grammar in gravity.LIBRARIES
    return bool(speaker) and not only


def _number_actor(event: Event) -> None:
    """Name an actor of Ray by its number, where only its host is known, which is its node."""
    _, ip, pid = event.remote.split("|") if event.remote else ("", "", "")
    if pid and event.rank == f"ip={ip}":
        event.rank = f"pid={pid}"
        event.label = f"{event.rank}, ip={ip}"
