"""Summarise one log in bounded space, whatever its length.

Example::

    sight = Sight()
    sight.take(line)  # for each line that may indicate something, in order
    sight.end(1234)  # the number of lines in the log
    sight.matches  # what signatures match, without repetitions
    sight.errors  # the first error lines that match none, by rank
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kimi_nb.diagnose import log_lines, matching, prefilter
from kimi_nb.diagnose.matching import Line, Match

_MOST = 500  # matches that are kept of one log
_SHOWN = 5  # error lines that are kept of one rank


class Sight:
    """The summary of a log; ``serves`` is the line at which the API began to answer."""

    def __init__(self) -> None:
        self.matches: list[Match] = []
        self.errors: dict[int | None, list[Line]] = {}
        self.serves: Line | None = None
        self._known: set[Any] = set()
        self._followed: set[int | None] = set()  # ranks that failed because of others
        self._waits: Match | None = None
        self._quiet = 0  # the last line after it that shows no progress
        self._stops = False

    def take(self, line: Line, among: prefilter.Known | None = None) -> None:
        """Process a line; ``among`` as in `matching.of`."""
        match = matching.of(line, among)
        error = match is not None or log_lines.tells_error(line.text)
        self._stops |= bool(prefilter.STOPS.search(line.text))
        if match is not None and match.signature.waits:
            self._waits, self._quiet = match, line.number
        elif line.number == self._quiet + 1 and (error or self._stops):
            self._quiet = line.number
        if match is not None:
            self._match(match)
        elif error:
            self._unknown(line)
        elif self.serves is None and prefilter.SERVES in line.text:
            self.serves = line

    def end(self, lines: int) -> None:
        """Finish the log, which has this many lines.

        A program that was last seen waiting counts as a failure only if nothing but errors, or a
        shutdown, followed: if it went on, it did not wait in vain.
        """
        if self._waits is not None and self._quiet == lines:
            self.matches.append(self._waits)

    def _match(self, match: Match) -> None:
        if match.signature.cascade:
            self._followed.add(self._rank(match.line))
        # An engine that is told to stop logs the same words as one whose core has died.
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
        """Return the first error lines of each rank for which no cause is known.

        Of a rank that failed because of others, only exceptions of its own are kept.
        """
        caused = {self._rank(one.line) for one in self.matches if not one.signature.cascade}
        return {
            rank: mine
            for rank, mine in self.errors.items()
            if rank not in caused and (rank not in self._followed or any(map(raises, mine)))
        }


def raises(line: Line) -> bool:
    """Return whether a line names an exception, and so tells more than a traceback's first line."""
    return bool(log_lines.EXCEPTION.search(line.text))


def first_unknown(seen: Iterable[Sight], first: Match | None) -> Line | None:
    """Return the error line to report if no known cause explains the failure, else None.

    ``first`` is the first known match. An unknown error is reported if there is no match, or if
    every match follows from other failures and none precedes the error.
    """
    events = [mine for one in seen for mine in one.unknown().values()]
    if first is not None:
        if not first.signature.cascade:
            return None
        events = [mine for mine in events if any(map(raises, mine))]
    if not events:
        return None
    when = matching.times([mine[0].time for mine in events] + ([first.line.time] if first else []))
    at = min(
        range(len(events)),
        key=lambda at: (when[at], events[at][0].rank is None, events[at][0].rank or 0),
    )
    return telling(events[at]) if first is None or when[at] <= when[-1] else None


def telling(lines: Sequence[Line]) -> Line:
    """Return the most informative line of an event: the exception, else the first."""
    return next(filter(raises, lines), lines[0])
