"""Tell which rank a collective operation accuses that timed out.

All ranks but one say that they waited in vain. The one to look at is the rank that another names,
the rank that is behind the others, or the rank that says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kimi_nb.diagnose.event_roles import REMOTE, Candidate, Role

# How far a rank has come, by the words of torch's watchdog, the more telling first: the works that it
# has handed to NCCL, and the number of the one for which it waits.
_COUNTS = (
    re.compile(r"last enqueued (?:NCCL )?work: (\d+)"),
    re.compile(r"\bSeqNum=(\d+)"),
)
_GROUP = re.compile(r"PG GUID (\w+)|\[PG (?:ID )?(\d+)")


def accuse(first: Candidate, found: Sequence[Candidate], ranks: Sequence[int]) -> Candidate:
    """Return the first event with the rank that a collective accuses, if it is a collective's.

    ``ranks`` are all ranks that have a log. Of those that wait, the one with fewer works enqueued is
    behind; if all are alike, the rank that does not wait is the one that did not come.
    """
    if first.role is not Role.CASCADE:
        return first
    waiting = [one for one in found if one.role is Role.CASCADE]
    for one in waiting:
        named = REMOTE.search(one.event.texts)
        if named and _silent(int(named[1]), waiting):
            return replace(one, accused=int(named[1]))
    said = [_counts(waiting, words) for words in _COUNTS]
    for counts in said:
        behind = _behind(counts)
        if behind is not None:
            return replace(next(one for one in waiting if _rank(one) == behind), accused=behind)
    told = {rank for counts in said for group in counts.values() for rank in group}
    silent = sorted(set(ranks) - told)
    if len(told) > 1 and len(silent) == 1:
        return replace(first, accused=silent[0])
    return first


def tells(one: Candidate) -> bool:
    """Return whether an event names another rank, or how far its own has come."""
    return one.role is Role.CASCADE and any(
        words.search(one.event.texts) for words in (REMOTE, *_COUNTS)
    )


def _rank(one: Candidate) -> int | None:
    return one.event.rank if isinstance(one.event.rank, int) else one.rank


def _counts(waiting: Sequence[Candidate], words: re.Pattern[str]) -> dict[str, dict[int, int]]:
    """Return how far each rank has come, by process group; the groups count each for itself."""
    out: dict[str, dict[int, int]] = {}
    for one in waiting:
        rank = _rank(one)
        if rank is None:
            continue
        for line in one.event.texts.splitlines():
            count = words.search(line)
            if count:
                group = _GROUP.search(line)
                mine = out.setdefault((group[1] or group[2]) if group else "", {})
                mine[rank] = min(mine.get(rank, int(count[1])), int(count[1]))
    return out


def _behind(counts: dict[str, dict[int, int]]) -> int | None:
    """Return the only rank that is behind the others of its group, or None."""
    found = set()
    for group in counts.values():
        least = min(group.values())
        last = [rank for rank, count in group.items() if count == least]
        if len(last) == 1 and len(group) > 1:
            found.update(last)
    return found.pop() if len(found) == 1 else None


def _silent(rank: int, waiting: Sequence[Candidate]) -> bool:
    """Return whether a rank does not itself accuse another one."""
    return not any(
        rank in (one.event.rank, one.rank) and REMOTE.search(one.event.texts) for one in waiting
    )
