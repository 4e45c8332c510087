"""Tell which of all events came first.

Example::

    event_order.ordered(candidates)  # of `event_roles.of`; the first failure first

First is the root or the death whose process reported its first error before the others (`collectives`
says whom a collective that timed out accuses).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kimi_nb.diagnose import event_echoes, event_times, gravity, line_grammar
from kimi_nb.diagnose.event_roles import Candidate, Role, words

_SOON = 60.0  # seconds after the end of a process in which its log tells why


def ordered(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events, the first failure first: by role, then by the time of their process.

    The time of an event is that of the first error of its process: what a process says last may
    only sum up what it said before.
    """
    kept = event_echoes.behind(found)
    when = event_times.timed(kept)
    begun = event_times.begun(kept, when)
    firm = any(one.role is Role.ROOT and not one.death for one in kept)

    by = [_speaker(one) for one in kept]
    own = {_said(one) for one, who in zip(kept, by, strict=True) if "Worker" in who} - {None}
    # The engine raises again what a worker has raised.
    again = [
        quoted(one) or (_said(one) in own and (not who or who.startswith("EngineCore")))
        for one, who in zip(kept, by, strict=True)
    ]
    told = {_key(one) for one, repeats in zip(kept, again, strict=True) if not repeats}

    def rank(at: int) -> tuple[bool, int]:
        one = kept[at]
        return (one.rank is None, one.rank if one.rank is not None else 0)

    seconds = [_seconds(time) for time in when]
    causes = [
        (one, time)
        for one, time in zip(kept, seconds, strict=True)
        if one.role is Role.ROOT and not one.death
    ]

    def explained(at: int) -> bool:
        # What others say long after a process died is no reason for it.
        late = seconds[at] + _SOON
        return any(time <= late and _explains(one, kept[at]) for one, time in causes)

    def weight(at: int) -> tuple[object, ...]:
        one = kept[at]
        untimed = one.death and not one.event.first.time
        return (
            one.role,
            one.event.bare and one.match is None,
            (one.vague and not _breaks(one))
            or (
                one.role is Role.WRAPPER
                and (event_echoes.died(one) or bool(words("lost").search(one.event.said.text)))
            ),
            # A death explains what happened where nothing else does; it is no rival to a cause that
            # its own log tells, unless its time says that it came before.
            one.death and firm and (untimed or explained(at)),
            again[at] and _key(one) in told,
            begun[event_times.process(one)],
            when[at],
        )

    # Among files the lower rank counts, within a file the line that stands first.
    weights = [weight(at) for at in range(len(kept))]
    places: dict[tuple[object, ...], tuple[bool, int]] = {}
    for at, one in enumerate(kept):
        key = (weights[at], one.event.first.file)
        places[key] = min(places.get(key, rank(at)), rank(at))

    def order(at: int) -> tuple[object, ...]:
        first = kept[at].event.first
        return (weights[at], places[weights[at], first.file], first.file, first.number)

    return [kept[at] for at in sorted(range(len(kept)), key=order)]


def _seconds(time: str) -> float:
    """Return a time of `matching.times` as a number, months as if they all had 31 days."""
    if len(time) < len("12-31 23:59:59"):
        return math.inf
    day, _, clock = time.partition(" ")
    month, _, of_month = day.partition("-")
    hours, minutes, seconds = clock.split(":")
    days = int(month) * 31 + int(of_month)
    return ((days * 24 + int(hours)) * 60 + int(minutes)) * 60 + float(seconds)


def _breaks(one: Candidate) -> bool:
    """Return whether a program that writes no level says what broke, and not only that it ended."""
    return gravity.native(one.event.said.text) and not one.death


def _key(one: Candidate) -> str:
    """Return what an event is of: its signature or its exception."""
    if one.match is not None:
        return one.match.signature.id
    return one.event.root.type if one.event.root is not None else ""


def _said(one: Candidate) -> tuple[str, str] | None:
    """Return the exception of an event with its words, or None."""
    root = one.event.root
    return (root.type, root.text) if root is not None and root.text else None


def _speaker(one: Candidate) -> str:
    """Return who raised the exception of an event, or who says it."""
    root = one.event.root
    return line_grammar.of(root.line.text).speaker if root is not None else one.event.said.speaker


def quoted(one: Candidate) -> bool:
    """Return whether an event only repeats what another process raised."""
    return bool(words("quoted").search(one.line.text))


def _explains(one: Candidate, death: Candidate) -> bool:
    """Return whether a cause is of the log of the process that died, so that it says itself why."""
    rank = event_echoes.ended(death)
    return one.node == death.node and (rank is None or one.rank == rank)
