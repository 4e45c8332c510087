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
from dataclasses import dataclass, field

from kimi_nb.diagnose import gravity, line_grammar, process_ranks
from kimi_nb.diagnose.line_grammar import Said
from kimi_nb.diagnose.matching import Line, Match

_AFTER = 12  # lines after an error in which it is explained
_CALMER = 3  # lines for which one of a calm level counts
_TRACE = 400  # lines of one traceback, its chain included
_DETAILS, _FRAMES = 12, 12  # that are kept of an event
_MOST = 200  # events of one log; after that only those that a signature knows
_NEAR = 3  # lines between an announcement and its traceback
_AMONG = 200  # and where the lines of other processes may be among them

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'\s*File "(?P<path>[^"]+)", line \d+(?:, in (?P<name>\S+))?')
_TYPE = (
    r"(?!nccl[A-Z])[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Failed|Killed|Iteration|Died"
    r"|Exhausted|Empty|Refused|Shutdown)\w*"
)
_REST = r"(?:\(\w+\))?(?:: (?P<text>.*)|:? *$)"
# Within a traceback anything that is dotted is an exception; elsewhere it may be a logger's name.
_RAISED = re.compile(rf"(?P<type>{_TYPE}|Exception|[a-z_]\w*(?:\.\w+)+){_REST}")
_NAMED = re.compile(rf"(?P<type>{_TYPE}){_REST}")
_IN_LINE = re.compile(
    r"(?<![\w.])(?P<type>[A-Za-z_][\w.]*(?:Error|Exception))(?:: |\(['\"])(?P<text>.*)"
)
_IGNORED = "Exception ignored in"
_DIED = "died unexpectedly"
# The process that Ray names where it says that a worker died.
_LOST = re.compile(r"\bWorker IP address: (?P<ip>[\w.:]+)\b.*?\bWorker PID: (?P<pid>\d+)")
# Above the frames of a thread, the innermost of which stands first, when a process aborts.
_STACK = re.compile(r"(?:(?P<mine>Current thread|Stack)|Thread)\b.*\(most recent call first\)")
_CAUSED = "direct cause of the following exception"
_HANDLED = "During handling of the above exception"
# What an exception says only of others: the next one in the chain is the one that counts.
_HOLLOW = re.compile(r"RayTaskError|ProcessRaisedException|ChildFailedError|ExceptionGroup")

# The worker in which an exception was raised that Ray passes on.
_REMOTE = re.compile(r"\bray::\S+ \(pid=(\d+), ip=([\w.:]+)")

# What Ray tells below the end of an actor of where it was.
_PLACE = re.compile(
    r"\s+(?:pid: (?P<pid>\d+)|ip: \[?(?P<ip>[\w.:]+)|(?:class_name|actor_id|name|namespace): )"
)

# How C++ and Rust report an exception: its type on one line, its words on the next.
_THROWN = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^']+)'|panicked at "
)
_WHAT = re.compile(r" *what\(\): +(?P<text>.+)")
_PANIC = re.compile(r"(?P<text>(?!note: |stack backtrace).+)")
_ELASTIC_RANK = re.compile(r"\s*rank +: (\d+)")

# A failed call of the NPU, and what CANN prints below it.
_NPU_CALL = re.compile(
    r"current working operator name is|(?:NPU|HCCL|OPS) function error|HCCL error in|"
    r"ACL \w+ \w+ failed|(?:PTA|OPS|DIST) call \w+ api failed"
)
# A warning of the NPU, below which CANN prints what it is about, without a label.
_NPU_WARNING = re.compile(r"NPU warning, error code is \d")
_BELOW = 8  # lines
# The device of the process, in a record of the engine.
_NPU_DEVICE = re.compile(r"^\[ERROR\] [\d:-]+ \(PID:\d+, Device:(\d+), RankID:")
_CANN_BLOCK = re.compile(r"\[Error\]: |E[A-Z]\d{4}\b|E[1-9]\d{4}: |\[PID: \d+\] ")


@dataclass(slots=True)
class Raised:
    """One exception of a chain: its type without the module, its message, and its line."""

    type: str
    text: str
    line: Line
    said: str
    link: str = ""  # how it came from the one before: "cause", "handling" or ""
    frames: tuple[str, ...] = ()  # the files of its own innermost frames


@dataclass(slots=True)
class Event:
    """What one process says of one failure.

    Attributes:
        lines: The lines that tell of it, the announcement first; none of source code.
        said: The first line, taken apart.
        raised: The exceptions, in the order of the log.
        frames: The files of the innermost frames, the innermost last.
        matches: What signatures know of its lines.
        harmless: Why it is no failure ("refused", "ignored", "stopped"), or "".
        stopped: Whether the program had been told to stop before.
        rank: Who speaks, as `line_grammar.Said` has it; of a native line whom it belongs to.
        remote: The process in which Ray says that its exception was raised, or "".
    """

    said: Said
    lines: list[Line]
    raised: list[Raised] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    harmless: str = ""
    stopped: bool = False
    rank: int | str | None = None
    label: str = ""
    remote: str = ""
    _traced: int = 0
    _framed: str = ""  # the level at which its frames are written
    _inside: bool = False
    _link: str = ""
    _indent: str = ""  # before its lines, as of a quotation
    _moved_on: bool = False  # whether its program has begun another record since
    _stack: bool | None = None  # whether the frames are those of the thread that aborted

    @property
    def first(self) -> Line:
        """The line with which it begins; it orders the events."""
        return self.lines[0]

    @property
    def root(self) -> Raised | None:
        """The exception that says most: the cause of a chain, or what its handling made of it."""
        real = [one for one in self.raised if not _HOLLOW.search(one.type)] or self.raised
        if not real:
            return None
        at = 0
        for number, one in enumerate(real[1:], 1):
            if one.link != "cause" and not real[at].text:
                at = number
        return real[at]

    @property
    def line(self) -> Line:
        """The line that says most."""
        if self.root is not None and (self.root.text or not self.matches):
            return self.root.line
        return self.lines[0]

    @property
    def texts(self) -> str:
        """All that it says, one line after the other."""
        return "\n".join(line_grammar.of(line.text).text for line in self.lines)


class Events:
    """The events of one log, in order."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._by_process: dict[str, Event] = {}
        self._last: Event | None = None
        self._left = 0  # lines that still belong to the last event
        self._keys: set[tuple[object, ...]] = set()
        self._warned: tuple[Said, Line] | None = None  # of an NPU
        self.ranks = process_ranks.ProcessRanks()

    @property
    def open(self) -> bool:
        """Whether the lines that follow may belong to an event."""
        return self._left > 0

    def follow(self, line: Line) -> None:
        """Take a line of which the prefilter says nothing, after one that it has chosen."""
        said = line_grammar.of(line.text)
        # A program that goes on explains nothing any more.
        self._left -= _CALMER if said.calm else 1
        self.take(line, None, chosen=False)

    def take(self, line: Line, match: Match | None, chosen: bool = True) -> Event | None:
        """Take a line; return the event to which it belongs, or None if it reports no error."""
        said = line_grammar.of(line.text)
        self.ranks.take(said)
        if _NPU_WARNING.search(said.text):
            self._warned = said, line
        if _IGNORED in said.text:
            return self._ignore(said, line)
        event = self._of_process(said)
        if gravity.PROGRESS.search(said.text):
            self._go_on(said)
        if event is not None and self._continues(event, said, line):
            if match is not None and event.lines[-1] is line:  # not of a line of source code
                event.matches.append(match)
            self._left = _TRACE if event._inside or event._link else _AFTER
            return event
        if not chosen or not (gravity.reports_error(said) or (match is not None and not said.calm)):
            return None
        return self._begin(said, line, match)

    def _ignore(self, said: Said, line: Line) -> Event:
        """Begin what a program says of an exception that it ignores."""
        event = Event(said, [line], harmless="ignored")
        self.all.append(event)
        self._last, self._left = event, _AFTER
        self._assign(said, event)
        return event

    def _assign(self, said: Said, event: Event) -> None:
        """Note to which event the next lines of a process belong, and those of its node without one."""
        for process in (said.process, _nameless(said.node)):
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
        if self._last is not None and self._left > 0 and _explains_npu(said, self._last):
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
            and last._inside
            and (said.level == last._framed or bool(_FRAME.match(said.text)))
        )

    def _begin(self, said: Said, line: Line, match: Match | None) -> Event:
        if len(self.all) >= _MOST and (match is None or match.key in self._keys):
            return Event(said, [line], harmless=gravity.why_harmless(said))
        event = Event(said, [line], rank=said.rank, label=said.label)
        event._indent = line.text[: len(line.text) - len(line.text.lstrip(" "))]
        if said.rank is None and _CANN_BLOCK.match(said.text) and (warned := self._below(line)):
            event.rank, event.label = warned.rank, warned.label
        if match is not None:
            self._keys.add(match.key)
            event.matches.append(match)
        if lost := _LOST.search(said.text):
            event.remote = f"|{lost['ip']}|{lost['pid']}"
        event.harmless = gravity.why_harmless(said)
        opened = _TRACEBACK.search(said.text)
        # Where several processes speak at once, other lines stand between.
        own = self._by_process.get(said.process) if said.process else None
        before, near = (own, _AMONG) if own is not None else (self._last, _NEAR)
        if (
            opened
            and not (opened.start() and said.grammar == "sglang")  # announced on the same line
            and before is not None
            and not before.raised
            and not before._inside
            and not _ends(before)
            and before.said.process in ("", said.process)
            and before.said.grammar not in gravity.LIBRARIES
            and line.number - before.lines[-1].number <= near
            and before.lines[-1].file == line.file
        ):
            if match is not None:
                before.matches.append(match)
            event = before  # the announcement of this traceback
            event.lines.append(line)
            if event.rank is None:
                event.rank, event.label = said.rank, said.label
        else:
            self.all.append(event)
        if opened:
            event._inside, event._traced = True, 0
            self._left = _TRACE
        else:
            found = _IN_LINE.search(said.text) or _NAMED.match(said.text)
            if found:
                event.raised.append(_raised(found, line, said.text))
            self._left = _AFTER
        self._last = event
        self._assign(said, event)
        return event

    def _below(self, line: Line) -> Said | None:
        """Return the warning of an NPU of which this line is an explanation, if there is one."""
        if self._warned is None:
            return None
        said, at = self._warned
        return said if at.file == line.file and line.number - at.number <= _BELOW else None

    def _continues(self, event: Event, said: Said, line: Line) -> bool:
        """Take a line that belongs to an event; return whether it does."""
        text = said.text.removeprefix(event._indent)
        event._traced += 1
        if event._traced > _TRACE:
            return False
        if _CAUSED in text or _HANDLED in text:
            event._link = "cause" if _CAUSED in text else "handling"
            self._left = _TRACE
            return True
        if _TRACEBACK.search(text):
            wordless = bool(event.raised) and not event.raised[-1].text and not event._moved_on
            again = event._link or event._inside or wordless
            if again and not said.calm:
                event._inside = True
                self._left = _TRACE
                return True
            return False
        if stack := _STACK.match(text):
            event._stack, event._inside = bool(stack["mine"]), True
            event.frames = [] if event._stack else event.frames
            return True
        frame = _FRAME.match(text)
        if frame:
            event._inside, event._framed = True, said.level
            event.frames = _with(event, frame["path"])
            self._left = _TRACE
            return True
        if event._inside:
            if not text.strip() or text[0] in " \t\u2502\u256d\u2570|^":
                return True
            # A program that logs what another one says has one level for all of it.
            calm = said.calm and said.level != event._framed
            found = _RAISED.match(text) if not calm else None
            if found:
                event.raised.append(_raised(found, line, text, event._link, event.frames))
                event.lines.append(line)
                if event.rank is None:
                    event.rank, event.label = said.rank, said.label
                if remote := _REMOTE.search(text):
                    event.remote = f"|{remote[2]}|{remote[1]}"
                    if event.rank is None:
                        event.rank = event.label = f"ip={remote[2]}"
                event._inside, event._link = False, ""
                event.harmless = event.harmless or gravity.why_harmless(said, event.frames)
                return True
            event._inside = False
            return False
        return self._explains(event, said, line)

    def _explains(self, event: Event, said: Said, line: Line) -> bool:
        """Take what a process prints after an exception, or below an error of many lines."""
        text = said.text
        ranked = _ELASTIC_RANK.match(text) if event.said.text.startswith("Root Cause") else None
        if ranked and event.rank is None:
            event.rank, event.label = int(ranked[1]), ranked[1]
        if ranked:
            return True
        if line.number - event.lines[-1].number > _NEAR or len(event.lines) >= _DETAILS:
            return False
        if _of_one(said, event.said) and _tells_place(event, text):
            event.lines.append(line)
            return True
        if _explains_npu(said, event):
            if event.rank is None and process_ranks.one_process(said, event.said):
                event.rank, event.label = said.rank, said.label
            event.lines.append(line)
            return True
        # A record of many lines, each of which the engine gives the same beginning.
        record = said.grammar == "vllm" and said.source == event.said.source
        if said.calm or (said.level and not said.process and not record):
            return False
        # What Ray passes on says itself, below, what it is.
        if not event.raised or _HOLLOW.search(event.raised[-1].type):
            found = _NAMED.match(text) if not _ends(event) else None
            if found and _of_one(said, event.said):
                event.raised.append(_raised(found, line, text))
                event.lines.append(line)
                event.harmless = event.harmless or gravity.why_harmless(said, event.frames)
                return True
        if said.process and not _of_one(said, event.said):
            return False
        if said.grammar == "sglang" and not _sums_up(event, text):
            event._moved_on = True
            return False
        native = gravity.native(text) and not _sums_up(event, text)
        if (said.level and not record) or native or _NAMED.match(text):
            return False
        self._says_native(event, said, line)
        if event.rank is None:
            event.rank, event.label = said.rank, said.label
        if event.rank is None and (device := _NPU_DEVICE.search(text)):
            event.rank, event.label = int(device[1]), device[1]
        event.lines.append(line)
        return True

    def _says_native(self, event: Event, said: Said, line: Line) -> None:
        """Take what programs in C++ and Rust say of an exception on its second line."""
        thrown = _THROWN.search(event.said.text)
        if thrown is None or event.raised:
            return
        what = (_WHAT if thrown["type"] else _PANIC).match(said.text)
        if what:
            kind = (thrown["type"] or "panic").rpartition("::")[2]
            event.raised.append(Raised(kind, what["text"], line, said.text))

    def _go_on(self, said: Said) -> None:
        """Note that the engine goes on: the error before was that of a request."""
        for event in self.all[-3:]:
            if not event.harmless and gravity.OF_REQUESTS.search(
                " ".join((event.said.source, event.said.text, *event.frames[-4:]))
            ):
                event.harmless = "refused"


def _ends(event: Event) -> bool:
    """Return whether an event tells how another process ended: what is raised below only follows."""
    return bool(gravity.DEATH.search(event.texts)) or _DIED in event.said.text


def _sums_up(event: Event, text: str) -> bool:
    """Return whether a line tells only how the process ended whose end an event tells already."""
    before = event.said.text
    return ("is dead" in before and text.startswith("Exit code: ")) or (
        before.startswith("*** SIG") and text.startswith("Fatal Python error: ")
    )


def _with(event: Event, path: str) -> list[str]:
    """Return the files of an event's innermost frames with one more, the innermost last."""
    if event._stack is None:
        return [*event.frames[-_FRAMES + 1 :], path]
    return [path, *event.frames] if event._stack and len(event.frames) < _FRAMES else event.frames


def _tells_place(event: Event, text: str) -> bool:
    """Note where an actor of Ray was that ended; return whether a line tells of it."""
    place = _PLACE.match(text) if event.raised and "Actor" in event.raised[-1].type else None
    if place is None:
        return False
    ip, pid = event.remote.split("|")[1:] if event.remote else ("", "")
    event.remote = f"|{place['ip'] or ip}|{place['pid'] or pid}"
    if event.rank is None and place["ip"]:
        event.rank = event.label = f"ip={place['ip']}"
    return True


def _explains_npu(said: Said, event: Event) -> bool:
    """Return whether a line is of the block that CANN prints below a failed call of the NPU."""
    block = said.grammar == "torch_npu" or _CANN_BLOCK.match(said.text)
    return bool(block) and not event._inside and bool(_NPU_CALL.search(event.texts))


def _nameless(node: str) -> str:
    """Return the process of a line of which only the node is known, as `line_grammar` has it."""
    return f"{node}||None" if node else ""


def _of_one(said: Said, before: Said) -> bool:
    """Return whether a line is of the process of one before: of a node's without a name it is."""
    return said.process in (before.process, _nameless(before.node) or before.process)


def _raised(
    found: re.Match[str], line: Line, said: str, link: str = "", frames: Sequence[str] = ()
) -> Raised:
    kind, text = found["type"].rpartition(".")[2], (found["text"] or "").strip()
    return Raised(kind, text, line, said, link, tuple(frames))
