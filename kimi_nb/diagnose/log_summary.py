"""Summarise one log in bounded space, whatever its length.

Example::

    sight = Sight()
    sight.take(line)  # for each line that may indicate something, in order
    sight.end(1234)  # the number of lines in the log
    sight.matches  # what signatures match, without repetitions
    sight.events  # what went wrong, an event for each traceback or error
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kimi_nb.diagnose import event_roles, log_lines, matching, prefilter
from kimi_nb.diagnose.event_roles import Candidate
from kimi_nb.diagnose.events import Event, Events, label_natives
from kimi_nb.diagnose.matching import Line, Match

_SHOWN = 5  # error lines that are kept of one rank


class Sight:
    """The summary of a log; ``serves`` is the line at which the API began to answer."""

    def __init__(self) -> None:
        self.serves: Line | None = None
        self._events = Events()
        self._errors: dict[int | None, list[tuple[Line, Event]]] = {}
        self._waits: Match | None = None
        self._quiet = 0  # the last line after it that shows no progress
        self._stops = False
        self.brief = False  # whether only one line for each pattern is taken
        self.engine = False  # whether it looks like the log of an engine or a program around it

    @property
    def open(self) -> bool:
        """Whether the lines that follow explain an error: `follow` wants them."""
        return self._events.open

    def follow(self, line: Line) -> None:
        """Process a line that indicates nothing by itself, after one that does."""
        self._events.follow(line)

    def take(self, line: Line, among: prefilter.Known | None = None) -> None:
        """Process a line; ``among`` as in `matching.of`."""
        match = matching.of(line, among)
        self._stops |= bool(prefilter.STOPS.search(line.text))
        waits = match is not None and match.signature.waits
        event = None if waits else self._events.take(line, match)
        error = event is not None and not event.harmless
        if event is not None and event.first is line:
            event.stopped = self._stops
        if match is not None and waits:
            self._waits, self._quiet = match, line.number
        elif line.number == self._quiet + 1 and (error or self._stops):
            self._quiet = line.number
        if event is not None and match is None:
            self._unknown(line, event)
        elif event is None and prefilter.SERVES in line.text:
            self.serves = self.serves or line
            # It was started again. In brief the order of the lines is not known.
            self._stops = self._stops and self.brief

    def end(self, lines: int) -> None:
        """Finish the log, which has this many lines.

        A program that was last seen waiting counts as a failure only if nothing but errors, or a
        shutdown, followed: if it went on, it did not wait in vain.
        """
        label_natives(self._events.all)
        for event in self._events.all:
            # An engine that is told to stop logs the same words as one whose core has died.
            if event.stopped and event_roles.follows(event):
                event.harmless = "stopped"
        if self._waits is not None and self._quiet == lines:
            self._events.wait(self._waits)

    @property
    def events(self) -> list[Event]:
        """The events that are no harmless ones."""
        return [one for one in self._events.all if not one.harmless]

    @property
    def matches(self) -> list[Match]:
        """What signatures match, without repetitions."""
        found: dict[tuple[Any, ...], Match] = {}
        for event in self.events:
            for match in event.matches:
                found.setdefault(match.key, match)
        return list(found.values())

    def _unknown(self, line: Line, event: Event) -> None:
        mine = self._errors.setdefault(rank_of(line), [])
        raised = log_lines.EXCEPTION.search(line.text)
        if len(mine) < _SHOWN or (raised and not any(raises(one) for one, _ in mine)):
            mine.append((line, event))

    def unknown(self) -> dict[int | None, list[Line]]:
        """Return the first error lines of each rank for which no cause is known.

        Of a rank that failed because of others, only exceptions of its own are kept.
        """
        matches = self.matches
        caused = {rank_of(one.line) for one in matches if not one.signature.cascade}
        followed = {rank_of(one.line) for one in matches if one.signature.cascade}
        told = {
            rank: [line for line, event in mine if not event.harmless]
            for rank, mine in self._errors.items()
        }
        return {
            rank: mine
            for rank, mine in told.items()
            if mine and rank not in caused and (rank not in followed or any(map(raises, mine)))
        }


def rank_of(line: Line) -> int | None:
    """Return the data parallel rank that wrote a line, from the line or from its file's name."""
    said = log_lines.rank_of(line.text)
    return line.rank if said is None else said


def raises(line: Line) -> bool:
    """Return whether a line names an exception, and so tells more than a traceback's first line."""
    return bool(log_lines.EXCEPTION.search(line.text))


def first(seen: Iterable[Sight], ranks: Sequence[int] = ()) -> Candidate | None:
    """Return the first failure of all logs, or None; ``ranks`` are all that have a log."""
    found = [
        event_roles.of(event, event.first.node, rank_of(event.first))
        for one in seen
        for event in one.events
    ]
    order = event_roles.ordered(found)
    return event_roles.accuse(_own(order[0], order), order, ranks) if order else None


def _own(guilty: Candidate, order: Sequence[Candidate]) -> Candidate:
    """Return the same event from the log of the rank itself, if a launcher only quoted it."""
    said = log_lines.plain(guilty.line.text)
    quoted = [
        one
        for one in order
        if one.rank is not None
        and (one.node, one.role) == (guilty.node, guilty.role)
        and log_lines.plain(one.line.text) == said
    ]
    return quoted[0] if guilty.rank is None and len(quoted) == 1 else guilty
