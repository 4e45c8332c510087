"""Summarise one log in bounded space, whatever its length.

Example::

    sight = Sight()
    sight.take(line)  # for each line that may indicate something, in order
    sight.end(1234)  # the number of lines in the log
    sight.matches  # what signatures match, without repetitions
    sight.events  # what went wrong, an event for each traceback or error
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kimi_nb.diagnose import (
    collectives,
    event_order,
    event_ranks,
    event_roles,
    gravity,
    log_lines,
    log_sections,
    matching,
    prefilter,
    progress,
    repetitions,
    stopping,
)
from kimi_nb.diagnose.event import Event
from kimi_nb.diagnose.event_roles import Candidate, Role
from kimi_nb.diagnose.events import Events
from kimi_nb.diagnose.matching import Line, Match

# How srun tells of what it ends by force, whoever cancelled the step.
_ENDED = re.compile(r"^[\w.-]+: tasks? [\d,-]+: Killed$")
_MISSING = "program-missing"  # the signature of what a shell did not find
_SHOWN = 5  # error lines that are kept of one rank
_SOON = 60  # lines after which a program has ended
_GOES_ON = 3  # answers, or batches, after which an engine has outlived an error
_FAR = 8 << 20  # bytes after an error in which they are looked for


class Untold(NamedTuple):
    """The first errors of a rank for which no cause is known; ``rank`` is its name as `Event` has it."""

    rank: int | str | None
    lines: tuple[Line, ...]


class Sight:
    """The summary of a log.

    ``serves`` is the line at which the API began to answer, ``stop`` the one at which it, or a
    launcher, was told to stop.
    """

    def __init__(self) -> None:
        self.serves: Line | None = None
        self.stop: Line | None = None
        self._events = Events()
        self._errors: dict[int | None, list[tuple[Line, Event]]] = {}
        self._waits: Match | None = None
        self._quiet = 0  # the last line after it that shows no progress
        self._past = False  # whether another line has followed that one
        # Signs of work that would show that the engine has outlived the last error, and the bytes in
        # which they are looked for.
        self._doubts = self._patience = 0
        self._stops = False
        self._named = 0  # events whose process was looked for
        self.brief = False  # whether only one line for each pattern is taken
        self.program = ""  # whose log it is, where that is no engine
        self.goes_on = False  # whether something was served, though no line says that it begins
        self.wrapper: re.Pattern[str] | None = None  # what stands before each of its lines
        self.section = ""  # whose lines these are, where a command above them tells
        self.engine = False  # whether it looks like the log of an engine or a program around it

    @property
    def open(self) -> bool:
        """Whether the lines that follow explain an error: `follow` wants them."""
        return self._events.open

    @property
    def unsure(self) -> bool:
        """Whether something was complained of that may be no failure."""
        return any(map(_complains, self._events.all))

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, and another line that says so would add nothing."""
        waits = self._waits is not None and not self._past
        return self._stops and self.stop is not None and not (waits or self.open)

    def follow(self, line: Line) -> None:
        """Process a line that indicates nothing by itself, after one that does."""
        self._events.follow(line)

    def take(self, line: Line, among: prefilter.Known | None = None) -> None:
        """Process a line; ``among`` as in `matching.of`."""
        if (section := log_sections.whose(line.text)) is not None:
            self.section = section
        match = matching.of(line, among)
        stops = prefilter.STOPS.search(line.text)
        # Before an engine serves, nobody ends its step who does not mean that it has failed.
        if stops and (self.serves or "STEP" not in stops[0]):
            self._stops, self.stop = True, self.stop or line
        waits = match is not None and match.signature.waits
        event = None if waits else self._events.take(line, match)
        error = event is not None and not event.harmless
        if event is not None and event.first is line:
            event.stopped = self._stops
        if match is not None and waits:
            self._waits, self._quiet, self._past = match, line.number, False
        elif line.number == self._quiet + 1 and (error or self._stops):
            self._quiet = line.number
        else:
            self._past = True
        if error and not self._stops:
            self._doubts, self._patience = _GOES_ON, _FAR
        if event is not None and match is None:
            self._unknown(line, event)
        elif event is None and prefilter.SERVES in line.text:
            self.serves = self.serves or line
            # It was started again. In brief the order of the lines is not known.
            if not self.brief:
                self._stops, self.stop = False, None

    def name(self, blocks: Sequence[bytes]) -> None:
        """Look in parts of the log for the names of processes that told an error without one."""
        nameless = filter(event_ranks.nameless, self._events.all[self._named :])
        processes = (
            one.remote or (f"||{one.said.thread}" if one.said.unnamed else one.said.process)
            for one in nameless
        )
        for process in dict.fromkeys(processes):
            self._events.ranks.search(process, blocks)
        self._named = len(self._events.all)

    def works(self, block: bytes, begin: int, end: int) -> None:
        """Note signs of work, such as answered requests, between two lines that were examined."""
        if self._doubts and self._patience > 0:
            end = min(end, begin + self._patience)
            self._patience -= end - begin
            self._doubts -= progress.signs(block, begin, end, self._doubts)

    def end(self, lines: int) -> None:
        """Finish the log, which has this many lines.

        A program that was last seen waiting counts as a failure only if nothing but errors, or a
        shutdown, followed: if it went on, it did not wait in vain.
        """
        event_ranks.label(self._events.all, self._events.ranks)
        for event in self._events.all:
            # An engine that is told to stop logs the same words as one whose core has died.
            if event.stopped and (event_roles.follows(event) or _ENDED.search(event.said.text)):
                event.harmless = "stopped"
            # A complaint is why a program ended only where it ended soon after, and never served.
            late = lines - event.first.number > _SOON
            served = self.serves is not None or self.goes_on
            if (_complains(event) and (served or late)) or (_misses(event) and served):
                event.harmless = "served"
        self._served()
        if self._waits is not None and self._quiet == lines:
            self._events.wait(self._waits)
        self._forget()

    def _forget(self) -> None:
        """Forget the events that only repeat others, and those that are no failures."""
        mine = self.events
        kept = repetitions.standing_for([_candidate(one, self.program) for one in mine])
        instead = {id(one): other for one, other in zip(mine, kept, strict=True)}
        self._errors = {
            rank: [
                (line, instead.get(id(event), event)) for line, event in told if not event.harmless
            ]
            for rank, told in self._errors.items()
        }
        self._events.close([one for one in mine if instead[id(one)] is one])

    def _served(self) -> None:
        """Drop what was said before the engine began to answer, by a library or by no rank.

        An engine that came up all the same, and of which nothing else is told, is well. So is one that
        goes on working for long after what did not end it.
        """
        if self.serves is None:
            return
        outlived = not (self._doubts or self.brief)
        if any(
            not (_by_the_way(one, self.serves) or (outlived and _may_be_outlived(one)))
            for one in self.events
        ):
            return
        for event in self.events:
            event.harmless = "served"

    @property
    def events(self) -> list[Event]:
        """The events that are no harmless ones."""
        return [one for one in self._events.all if not one.harmless]

    @property
    def stopped(self) -> list[Event]:
        """The events that only followed from an order to stop."""
        return [one for one in self._events.all if one.harmless == "stopped"]

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

    def unknown(self) -> list[Untold]:
        """Return the first error lines of each rank for which no cause is known.

        Of a rank that failed because of others, only exceptions of its own are kept.
        """
        matches = self.matches
        caused = {rank_of(one.line) for one in matches if not one.signature.cascade}
        followed = {rank_of(one.line) for one in matches if one.signature.cascade}
        out = []
        for rank, told in self._errors.items():
            mine = [(line, event) for line, event in told if not event.harmless]
            lines = tuple(line for line, _ in mine)
            if lines and rank not in caused and (rank not in followed or any(map(raises, lines))):
                out.append(Untold(mine[0][1].rank, lines))
        return out


def _complains(event: Event) -> bool:
    """Return whether an event is no more than a complaint."""
    return (
        gravity.complains(event.said)
        and not gravity.native(event.said.text)
        and not (event.matches or event.raised)
    )


def _misses(event: Event) -> bool:
    """Return whether a shell did not find a program, which tells nothing once an engine serves."""
    return bool(event.matches) and all(one.signature.id == _MISSING for one in event.matches)


def _by_the_way(event: Event, serves: Line) -> bool:
    """Return whether an event before a line tells of no rank's failure.

    A library or daemon may tell of a rank's with no more than a line, and a rank that came up all the
    same of an error that ended nobody. Who ended does not answer.
    """
    if event.matches or event.lines[-1].number > serves.number:
        return False
    if event.said.grammar in gravity.LIBRARIES:
        return not event.frames
    if event.rank is not None:
        return _may_be_outlived(event)
    return not gravity.dies(event.texts)


def _may_be_outlived(event: Event) -> bool:
    """Return whether an event is an error that ended nobody, as far as it tells.

    An exception ends a process, but that of a task of the API server, and one behind which its process
    went on. What tells of a request that is lost, or of another rank's end, is none.
    """
    ended = gravity.native(event.texts) or gravity.dies(event.texts)
    if event.matches or ended or event.said.level == "FATAL":
        return False
    goes_on = event.outlived and not event.said.unnamed
    if (event.raised or event.frames) and not (gravity.of_task(event.said) or goes_on):
        return False
    told = event_roles.of(event, "", None)
    moves = event.said.grammar in gravity.LIBRARIES or (
        told.component is not None and told.component.transport
    )
    return told.role < Role.CASCADE and not (moves and gravity.loses(event.texts))


def rank_of(line: Line) -> int | None:
    """Return the data parallel rank that wrote a line, from the line or from its file's name."""
    said = log_lines.rank_of(line.text)
    return line.rank if said is None else said


def raises(line: Line) -> bool:
    """Return whether a line names an exception, and so tells more than a traceback's first line."""
    return bool(log_lines.EXCEPTION.search(line.text))


def ordered(seen: Iterable[Sight], deployed: bool = True) -> list[Candidate]:
    """Return what went wrong in all logs, the first failure first.

    What only followed from an order to stop counts from now on as harmless; ``deployed`` as in
    `stopping.forgiven`.
    """
    seen = list(seen)
    order = _ordered(seen)
    stopped = stopping.forgiven(order, seen, deployed)
    for one in stopped:
        one.event.harmless = "stopped"
    return _ordered(seen) if stopped else order


def _ordered(seen: Sequence[Sight]) -> list[Candidate]:
    return event_order.ordered(
        [_candidate(event, one.program) for one in seen for event in one.events]
    )


def _candidate(event: Event, program: str) -> Candidate:
    return event_roles.of(event, event.first.node, rank_of(event.first), program)


def first(order: Sequence[Candidate], ranks: Sequence[int] = ()) -> Candidate | None:
    """Return the first failure of ``ordered``, or None; ``ranks`` are all that have a log.

    It is that of the rank which the others accuse, if they do, from the log of the rank itself.
    """
    return collectives.accuse(_own(order[0], order), order, ranks) if order else None


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
