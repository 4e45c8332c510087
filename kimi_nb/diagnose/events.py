"""Join the lines of one log to events: what a process announced, where it was, what it raised.

Example::

    events = Events()
    events.take(line, match)  # a line that the prefilter has chosen, in order
    while events.open:
        events.follow(line)  # the lines after it, until the event is over
    events.all  # each with announcement, frames, exceptions, details, signatures

A traceback's lines of source code are never evidence, nor is what a program says of an exception that
it ignores. A request that was refused is no failure of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kimi_nb.diagnose import event_details, event_lines, gravity, line_grammar, process_ranks
from kimi_nb.diagnose.event import Event
from kimi_nb.diagnose.line_grammar import Said
from kimi_nb.diagnose.matching import Line, Match

_AFTER = 12  # lines after an error in which it is explained
_CALMER = 3  # lines for which one of a calm level counts
_MOST = 200  # events of one log; after that only those that a signature knows
_AMONG = 200  # lines between an announcement and its traceback, where several processes speak

# What Python says of an exception that ends nobody: of a destructor, or of a line that it could not log.
_IGNORED = ("Exception ignored in", "--- Logging error ---")
# The process that Ray, the kernel or an engine names where it says that one ended.
_LOST = re.compile(
    r"\bWorker IP address: (?P<ip>[\w.:]+)\b.*?\bWorker PID: (?P<pid>\d+)|"
    r"\bKilled process (?P<killed>\d+)\b|\bXid \([^)]*\): \d+, pid=(?P<lost>\d+)|"
    r"\[(?P<fault>\d+)\]: segfault at |"
    r"(?:\bpid[ =:]|Controller )(?P<died>\d+)\)? (?:died|crashed|exited|terminated with -?[1-9])\b"
)
# A warning of the NPU, below which CANN prints what it is about, without a label.
_NPU_WARNING = re.compile(r"NPU warning, error code is |Warning: E[A-Z]\d{4}: Inner Error!")
_BELOW = 8  # lines
_FAR = 40  # lines of frames between an actor of Ray and the exception that it raised
# What the scheduler of Kubernetes says once it has a node for a pod, and before.
_ASSIGNED = re.compile(r"Successfully assigned [^\s/]+/(?P<pod>\S+) to ")
_WAITED = "FailedScheduling"


class Events:
    """The events of one log, in order."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._by_process: dict[str, Event] = {}
        self._last: Event | None = None
        self._left = 0  # lines that still belong to the last event
        self._keys: set[tuple[object, ...]] = set()
        self._short = False  # whether a warning told of a limit that was reached
        self._titled: tuple[str, int] | None = None  # the name of a process above its traceback
        self._actor: tuple[str, int] | None = None  # of Ray, above its traceback
        self._warned: tuple[Said, Line] | None = None  # of an NPU
        self.ranks = process_ranks.ProcessRanks()

    @property
    def open(self) -> bool:
        """Whether the lines that follow may belong to an event."""
        return self._left > 0

    def follow(self, line: Line) -> None:
        """Take a line of which the prefilter says nothing, after one that it has chosen."""
        said = line_grammar.of(line.text)
        last = self._by_process.get(said.process, self._last) if said.process else self._last
        if said.calm and last is not None and said.process == last.said.process:
            last.outlived = True
        # A program that goes on explains nothing any more.
        self._left -= _CALMER if said.calm else 1
        self.take(line, None, chosen=False)

    def take(self, line: Line, match: Match | None, chosen: bool = True) -> Event | None:
        """Take a line; return the event to which it belongs, or None if it reports no error."""
        said = self._bared(line_grammar.of(line.text))
        self.ranks.take(said)
        match = None if event_lines.source_code(said) else match
        if titled := process_ranks.TITLED.match(said.text):
            self._titled = titled[1], line.number
        if process_ranks.ACTOR.search(said.text):
            self._actor = said.text, line.number
        if _NPU_WARNING.search(said.text):
            self._warned = said, line
        if any(word in said.text for word in _IGNORED):
            return self._ignore(said, line)
        if said.speaker == "NVSHMEM" and said.calm and "failed" in said.text:
            self._name(said, line)
        event = self._of_process(said)
        if self.all and gravity.PROGRESS.search(said.text):
            self._go_on(said)
        if self.all and (assigned := _ASSIGNED.search(said.text)):
            self._schedule(assigned["pod"])
        if event is not None and event_lines.goes_on(event, said, line):
            if match is not None and event.lines[-1] is line:  # not of a line of source code
                event.matches.append(match)
            self._left = event_lines.MOST if event.inside or event.link else _AFTER
            if event.rank is None and event_lines.TRACEBACK.search(said.text):
                self._take_title(event, said, line)
            return event
        if not chosen or not (
            gravity.reports_error(said)
            or (match is not None and not said.calm)
            or self._again(said)
        ):
            return None
        return self._begin(said, line, match)

    def _bared(self, said: Said) -> Said:
        """Return a line without what the same program wrote before the traceback that it goes on with."""
        last = self._last
        if last is None or last.before is None:
            return said
        if not (last.inside or last.link or last.before is event_lines.GROUP):
            return said
        before = last.before.match(said.text)
        if before is None:
            return said
        return replace(said, text=said.text[before.end() :], level="", process=last.said.process)

    def _name(self, said: Said, line: Line) -> None:
        """Name the process of the errors above, which only this line of the same library tells."""
        for event in self.all:
            near = line.number - event.first.number <= _BELOW
            if near and "nvshmem" in event.texts and event.rank is None and event.said.unnamed:
                event.rank, event.label = said.rank, said.label
                event.said = replace(event.said, process=said.process, node=said.node)

    def _again(self, said: Said) -> bool:
        """Return whether a warning tells, not for the first time, of a limit that was reached."""
        if said.level != "WARNING" or not gravity.LIMIT.search(said.text):
            return False
        if gravity.MAY.search(said.text):
            return False
        before, self._short = self._short, True
        return before

    def _ignore(self, said: Said, line: Line) -> Event:
        """Begin what a program says of an exception that it ignores."""
        event = Event(said, [line], harmless="ignored")
        self.all.append(event)
        self._last, self._left = event, _AFTER
        self._assign(said, event)
        return event

    def _assign(self, said: Said, event: Event) -> None:
        """Note to which event the next lines of a process belong, and those of its node without one."""
        for process in (said.process, event_details.nameless(said.node)):
            if process:
                self._by_process[process] = event

    def close(self, kept: Sequence[Event]) -> None:
        """Keep only these events; no line is taken any more."""
        self.all = list(kept)
        self._by_process, self._last, self._left = {}, None, 0
        self._keys = set()

    def wait(self, match: Match) -> None:
        """Add a program that was last seen waiting for something."""
        said = line_grammar.of(match.line.text)
        event = Event(said, [match.line], matches=[match], rank=said.rank, label=said.label)
        self.all.append(event)

    def _of_process(self, said: Said) -> Event | None:
        """Return the event that this line may continue."""
        if (
            self._last is not None
            and self._left > 0
            and event_details.explains_npu(said, self._last)
        ):
            return self._last
        if said.process and said.process in self._by_process:
            return self._by_process[said.process]
        if not said.process and (
            not said.level or self._records(said) or self._traces_at_level(said)
        ):
            return self._last if self._last is None or self._left > 0 else None
        return None

    def _records(self, said: Said) -> bool:
        """Return whether a line is of a record of many lines of a process without a name."""
        return said.grammar == "vllm" and (self._last is None or not self._last.said.process)

    def _traces_at_level(self, said: Said) -> bool:
        """Return whether a line goes on with a traceback that another program logs at some level."""
        last = self._last
        return (
            last is not None
            and last.inside
            and (said.level == last.framed_at or bool(event_lines.FRAME.match(said.text)))
        )

    def _begin(self, said: Said, line: Line, match: Match | None) -> Event:
        if len(self.all) >= _MOST and (match is None or match.key in self._keys):
            return Event(said, [line], harmless=gravity.why_harmless(said))
        event = Event(said, [line], rank=said.rank, label=said.label)
        event.indent = line.text[: len(line.text) - len(line.text.lstrip(" "))]
        if (
            said.rank is None
            and event_details.CANN_BLOCK.match(said.text)
            and (warned := self._below(line))
        ):
            event.rank, event.label = warned.rank, warned.label
        if match is not None:
            self._keys.add(match.key)
            event.matches.append(match)
        if lost := _LOST.search(said.text):
            pid = lost["pid"] or lost["killed"] or lost["lost"] or lost["fault"] or lost["died"]
            event.remote = f"|{lost['ip'] or ''}|{pid}"
        event_details.place_actor(event, said.text)
        if self._actor is not None and line.number - self._actor[1] <= _FAR and said.unnamed:
            event_details.place_actor(event, self._actor[0])
        event.harmless = gravity.why_harmless(said)
        opened = event_lines.TRACEBACK.search(said.text) if "\n" not in said.text else None
        # Where several processes speak at once, other lines stand between.
        own = self._by_process.get(said.process) if said.process else None
        before, near = (own, _AMONG) if own is not None else (self._last, event_lines.NEAR)
        if (
            opened
            and not (opened.start() and said.grammar == "sglang")  # announced on the same line
            and before is not None
            and not before.raised
            and not before.inside
            and not event_details.ends(before)
            and not event_details.of_compiler(before)
            and not gravity.of_probe(before.said)
            and (
                before.said.process in ("", said.process)
                or event_details.announces(before.said, said)
            )
            and before.said.grammar not in gravity.LIBRARIES
            and line.number - before.lines[-1].number <= near
            and before.lines[-1].file == line.file
        ):
            if match is not None:
                before.matches.append(match)
            before.indent = event.indent
            event = before  # the announcement of this traceback
            event.lines.append(line)
            if event.rank is None:
                event.rank, event.label = said.rank, said.label
            if event.said.unnamed:  # announced by who only waits for it
                event.said = replace(event.said, process=said.process, speaker=said.speaker)
        else:
            self.all.append(event)
        if opened:
            event.inside, event.traced = True, 0
            self._take_title(event, said, line)
            event.before = event_lines.form_of(said.text[: opened.start()])
            self._left = event_lines.MOST
        elif event_lines.FRAME.match(said.text):  # of a traceback whose head is gone
            event_lines.goes_on(event, said, line)
            self._left = event_lines.MOST
        else:
            found = event_lines.raises(said)
            if found:
                event.raised.append(event_details.raised(found, line, said.text))
            self._left = _AFTER
        self._last = event
        self._assign(said, event)
        return event

    def _take_title(self, event: Event, said: Said, line: Line) -> None:
        """Give a traceback the name of the process that stands above it.

        What its program logs may stand between. What tells how another process ended is not that
        one's own, and who has a number beside the same name is known by it.
        """
        if self._titled is None:
            return
        name, at = self._titled
        logged = self._last is not None and self._last.first.number > at
        near = event_lines.MOST if logged and said.unnamed and not said.level else 1
        if line.number - at > near:
            return
        self._titled = None
        if not event.remote and name != said.speaker:
            event.label = event.label or name

    def _below(self, line: Line) -> Said | None:
        """Return the warning of an NPU of which this line is an explanation, if there is one."""
        if self._warned is None:
            return None
        said, at = self._warned
        return said if at.file == line.file and line.number - at.number <= _BELOW else None

    def _schedule(self, pod: str) -> None:
        """Note that a pod has a node: that it waited for one is over."""
        for event in self.all:
            mine = event.said.node == pod or f"/{pod} " in event.said.text
            if _WAITED in event.said.text and mine:
                event.harmless = "served"

    def _go_on(self, said: Said) -> None:
        """Note that the engine goes on: the error before was that of a request."""
        for event in self.all[-3:]:
            if not event.harmless and gravity.OF_REQUESTS.search(
                " ".join((event.said.source, event.said.text, *event.frames[-4:]))
            ):
                event.harmless = "refused"
