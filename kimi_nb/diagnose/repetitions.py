"""Tell which events of one log only repeat another one, so that a storm of errors takes little memory.

Example::

    standing_for([first, again, other])  # [first, first, other]: the events, of candidates

An event repeats another of the same process where no order, no accusation and no report could tell
the two apart but by their place: the earlier one is always taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kimi_nb.diagnose import collectives, event_order, event_times
from kimi_nb.diagnose.event import Event
from kimi_nb.diagnose.event_roles import Candidate


def standing_for(found: Sequence[Candidate]) -> list[Event]:
    """Return for each candidate, in the order of the log, the event that is enough to keep of it."""
    firsts: dict[Hashable, Event] = {}
    out = []
    for one in found:
        key = _key(one)
        first = firsts.get(key)
        if key is None or first is None or one.event.first.time < first.first.time:
            firsts[key] = first = one.event
        out.append(first)
    return out


def _key(one: Candidate) -> Hashable:
    """Return what is equal for repetitions; None for an event that is always kept."""
    event = one.event
    # Each of these may name another rank, or another job.
    if event.said.grammar == "slurm" or collectives.tells(one):
        return None
    return (
        event_times.process(one),
        one.rank,
        event.rank,
        one.role,
        one.vague,
        one.special,
        one.death,
        event_order.quoted(one),
        event.root.type if event.root is not None else "",
        tuple(match.key for match in event.matches),
        event.stopped,
        event.outlived,
        bool(event.first.time),
    )
