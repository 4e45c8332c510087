"""What one log tells, kept small whatever its length.

sight = Sight()
sight.take(line)         # each line that may tell of something, in their order
sight.end(1234)          # how many lines there were
sight.matches            # what signatures know, each thing once
sight.errors             # rank: the first lines of errors that none knows
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kimi_nb.diagnose import log_lines
from kimi_nb.diagnose import matching as matches
from kimi_nb.diagnose import prefilter as scan
from kimi_nb.diagnose.matching import Line, Match

_MOST = 500  # matches of one log
_SHOWN = 5  # error lines of one rank


class Sight:
    """See the module. ``serves`` is the line at which the API began to answer."""

    def __init__(self) -> None:
        self.matches: list[Match] = []
        self.errors: dict[int | None, list[Line]] = {}
        self.serves: Line | None = None
        self._known: set[Any] = set()
        self._followed: set[int | None] = set()  # ranks in which something followed from others
        self._waits: Match | None = None
        self._quiet = 0  # the last of the lines after it that tell no progress
        self._stops = False

    def take(self, line: Line, among: scan.Known | None = None) -> None:
        """Take in a line; ``among`` as `matches.of`."""
        match = matches.of(line, among)
        error = match is not None or log_lines.tells_error(line.text)
        self._stops |= bool(scan.STOPS.search(line.text))
        if match is not None and match.signature.waits:
            self._waits, self._quiet = match, line.number
        elif line.number == self._quiet + 1 and (error or self._stops):
            self._quiet = line.number
        if match is not None:
            self._match(match)
        elif error:
            self._unknown(line)
        elif self.serves is None and scan.SERVES in line.text:
            self.serves = line

    def end(self, lines: int) -> None:
        """The log ends. Who waited counts where only errors, or a stop, came after: who went on
        since did not wait in vain."""
        if self._waits is not None and self._quiet == lines:
            self.matches.append(self._waits)

    def _match(self, match: Match) -> None:
        if match.signature.cascade:
            self._followed.add(self._rank(match.line))
        # An engine that was told to stop takes leave with the words of one whose core has died.
        stopped = self._stops and match.signature.cascade
        if (
            not (stopped or match.signature.waits or match.key in self._known)
            and len(self.matches) < _MOST
        ):
            self._known.add(match.key)
            self.matches.append(match)

    def _unknown(self, line: Line) -> None:
        mine = self.errors.setdefault(self._rank(line), [])
        raised = log_lines.EXCEPTION.search(line.text)
        if len(mine) < _SHOWN or (raised and not any(map(raises, mine))):
            mine.append(line)

    def _rank(self, line: Line) -> int | None:
        said = log_lines.rank_of(line.text)
        return line.rank if said is None else said

    def unknown(self) -> dict[int | None, list[Line]]:
        """rank: its first error lines, of ranks with no known cause. Where something followed
        from others, only what tells of an exception of its own."""
        caused = {self._rank(one.line) for one in self.matches if not one.signature.cascade}
        return {
            rank: mine
            for rank, mine in self.errors.items()
            if rank not in caused and (rank not in self._followed or any(map(raises, mine)))
        }


def raises(line: Line) -> bool:
    """Whether a line names an exception: it says more than the head of its traceback."""
    return bool(log_lines.EXCEPTION.search(line.text))


def first_unknown(seen: Iterable[Sight], first: Match | None) -> Line | None:
    """The error line to show where nothing is known, or where all that is known (``first`` of
    it) follows from others and does not come before that error; None otherwise."""
    events = [mine for one in seen for mine in one.unknown().values()]
    if first is not None:
        if not first.signature.cascade:
            return None
        events = [mine for mine in events if any(map(raises, mine))]
    if not events:
        return None
    when = matches.times([mine[0].time for mine in events] + ([first.line.time] if first else []))
    at = min(
        range(len(events)),
        key=lambda at: (when[at], events[at][0].rank is None, events[at][0].rank or 0),
    )
    return telling(events[at]) if first is None or when[at] <= when[-1] else None


def telling(lines: Sequence[Line]) -> Line:
    """The line of an event that says most: the exception, else the first."""
    return next(filter(raises, lines), lines[0])
