"""Tell which failures only followed from the first one.

Example::

    order = event_order.ordered(candidates)
    followers.of(order)  # the lines, each with its signature, that are no causes of their own

The end of a rank follows from what its own log says; the failure of a collective, or of a transfer,
follows from the end of the rank at the other end.
"""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb.diagnose import event_echoes, matching
from kimi_nb.diagnose.event_roles import Candidate, Role
from kimi_nb.diagnose.matching import Line, Match

Key = tuple[Line, str]
_ENDS = ("rank-died", "engine-killed")  # the signatures of the end of a process


def key(match: Match) -> Key:
    """Return what tells a match apart from all others."""
    return match.line, match.signature.id


def of(order: Sequence[Candidate]) -> set[Key]:
    """Return the keys of the matches that only follow; ``order`` begins with the first failure."""
    if not order:
        return set()
    first = order[0]
    explained = {who(one) for one in order if one is first or not ends(one)}
    files = {one.event.first.file for one in order if not ends(one)}
    when = matching.times([one.event.first.time for one in order])
    out = set()
    for one, time in zip(order, when, strict=True):
        nameless = event_echoes.ended(one) is None and one.event.first.file in files
        ended = one is not first and ends(one) and (who(one) in explained or nameless)
        waited = not _peer(first) and time >= when[0] and who(one) != who(first)
        out |= {
            key(match)
            for match in one.event.matches
            if ended
            or one.role >= Role.WAITS
            or (waited and match.signature.peer)
            # The end that a shell tells right below the error of the same process.
            or (match is not one.match and match.signature.id in _ENDS)
        }
    return out


def who(one: Candidate) -> tuple[str, int | None]:
    """Return the node and the rank that an event is about."""
    return one.node, event_echoes.ended(one)


def ends(one: Candidate) -> bool:
    """Return whether an event only reports that a rank ended."""
    return one.match is not None and one.match.signature.id in _ENDS


def _peer(one: Candidate) -> bool:
    return one.match is not None and one.match.signature.peer
