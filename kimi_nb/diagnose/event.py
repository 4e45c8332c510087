"""What one process says of one failure: an announcement, frames, exceptions, details, signatures.

`events` makes them of the lines of a log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kimi_nb.diagnose import line_grammar
from kimi_nb.diagnose.line_grammar import Said
from kimi_nb.diagnose.matching import Line, Match

# A line of which only those below tell what it is about.
HEADS = re.compile(r"(?:Traceback \(most recent call last\)|terminated with exception): *$")
# A part of a traceback whose head is gone.
_FRAGMENT = re.compile(r'\s*File "[^"]+", line \d|\s{4,}\S|[\s~^]+$')
_NPU_SAYS = re.compile(r"\[Error\]: |E[A-Z]\d{4}\b|E\d{5}\[PID: \d+\]|\[PID: \d+\] ")
# What a device tells, above the calls that met it.
_NPU_DEVICE = re.compile(r"E[A-Z\d]\d{4}: \[PID: \d+\] .*\berror from device\b")
# What CANN and torch_npu write above what they have to say.
NPU_HEADS = re.compile(
    r"(?:ERR\d{5} \w+ call .*failed\.?|\bE[A-Z\d]\d{4}: Inner Error!?|\bHCCL error: [a-z ]+)$",
    re.MULTILINE,
)
# A code of HCCL, of which CANN's own one below, if it is no inner error, tells more.
_HCCL_CODE = re.compile(r"\bHCCL function error: .*, error code is \d{1,2}$")
_NPU_TELLS = re.compile(r"\bE[A-Z](?!9999)\d{4}\b")
_NPU_ABOVE = re.compile(r"The [Ii]nner error is reported as above")
# Why an actor of Ray died, which stands below its names.
_WHY_DEAD = re.compile(r"\s*The actor is dead because (?:its worker process|its node|the )")
# What Python says of a package that is not there, with its name.
_MISSING = re.compile(r"No module named '([\w.]+)'")
# An error of the system that names nothing.
_ERRNO = re.compile(r"\[Errno -?\d+\] ([A-Z][\w ]+)")
# What an exception says only of others: the next one in the chain is the one that counts.
HOLLOW = re.compile(
    r"RayTaskError|ProcessRaisedException|ChildFailedError|CalledProcessError|ExceptionGroup|CancelledError"
)
# What the client of a hub makes of an answer, of which HTTP tells only the number.
_HUB_TELLS = re.compile(r"(?:GatedRepo|DisabledRepo|RepositoryNotFound|RevisionNotFound)Error")


@dataclass(slots=True)
class Raised:
    """One exception of a chain: its type without the module, its message, and its line."""

    type: str
    text: str
    line: Line
    said: str
    link: str = ""  # how it came from the one before: "cause", "handling" or ""
    frames: tuple[str, ...] = ()  # its own innermost frames, as an event has them


def _tells_more(one: Raised, before: Raised) -> bool:
    """Return whether an exception says where, or why, of which the one before says only what.

    A package that a program can do without is none: what it calls instead fails by itself.
    """
    if one.link == "handling" and (missing := _MISSING.fullmatch(before.text)) is not None:
        elsewhere = bool(one.frames) and one.frames[-1] not in before.frames
        return elsewhere and missing[1].partition(".")[0] not in one.text
    if one.link == "cause":
        return bool(_HUB_TELLS.fullmatch(one.type)) and before.type in (
            "HTTPError",
            "HTTPStatusError",
        )
    errno = _ERRNO.fullmatch(before.text)
    return errno is not None and one.link == "handling" and errno[1] in one.text


@dataclass(slots=True)
class Event:
    """What one process says of one failure.

    Attributes:
        lines: The lines that tell of it, the announcement first; none of source code.
        said: The first line, taken apart.
        raised: The exceptions, in the order of the log.
        frames: The innermost frames, "file:function", the innermost last.
        matches: What signatures know of its lines.
        harmless: Why it is no failure ("refused", "ignored", "stopped"), or "".
        stopped: Whether the program had been told to stop before.
        rank: Who speaks, as `line_grammar.Said` has it; of a native line whom it belongs to.
        outlived: Whether its process went on right after it.
        remote: The process in which Ray says that its exception was raised, or that it lost, or "".

    The others are for `events`, while lines are added: how many lines were, the level at which its
    frames are written, whether the next line is of a traceback, how the next exception is linked to
    the last, the innermost frame that was shown, what stands before its lines, the form of what a
    program that is not known writes before each of them, whether its program has begun another
    record since, and whether the frames are those of the thread that aborted (None: of a
    traceback).
    """

    said: Said
    lines: list[Line]
    raised: list[Raised] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    harmless: str = ""
    stopped: bool = False
    outlived: bool = False
    rank: int | str | None = None
    label: str = ""
    remote: str = ""
    traced: int = 0
    framed_at: str = ""
    inside: bool = False
    link: str = ""
    shown: Line | None = None
    indent: str = ""
    before: re.Pattern[str] | None = None
    moved_on: bool = False
    stack: bool | None = None

    @property
    def first(self) -> Line:
        """The line with which it begins; it orders the events."""
        return self.lines[0]

    @property
    def root(self) -> Raised | None:
        """The exception that says most: the cause of a chain, or what its handling made of it."""
        real = [one for one in self.raised if not HOLLOW.search(one.type)] or self.raised
        if not real:
            return None
        at = 0
        for number, one in enumerate(real[1:], 1):
            hollow = one.link == "handling" and not real[at].text
            quotes = not one.link and real[at].text.endswith(":")  # what stands below
            if hollow or quotes or _tells_more(one, real[at]):
                at = number
        return real[at]

    @property
    def line(self) -> Line:
        """The line that says most."""
        if self.root is not None and (dead := self._dead(self.root)) is not None:
            return dead
        if self.root is not None and (self.root.text or not self.matches):
            if _NPU_ABOVE.match(self.root.text) and self.said.grammar in ("atb", "cann"):
                return self.lines[0]
            hollow = NPU_HEADS.match(self.root.text) or _NPU_ABOVE.match(self.root.text)
            coded = _HCCL_CODE.search(self.root.text)
            below = self._below(self.root.line) if hollow or coded else None
            telling = below is not None and (hollow or _NPU_TELLS.search(below.text))
            return below if below is not None and telling else self.root.line
        if not (HEADS.search(self.said.text) or NPU_HEADS.match(self.said.text)):
            return self.lines[0]
        return self._below(self.lines[0]) or self.shown or self.lines[0]

    def _dead(self, root: Raised) -> Line | None:
        """Return why Ray says that an actor died, below where it says that it did."""
        if "Actor" not in root.type:
            return None
        return next((line for line in self.lines if _WHY_DEAD.match(line.text)), None)

    def _below(self, head: Line) -> Line | None:
        """Return what CANN says below a line that says nothing."""
        below = (line for line in self.lines if line.number >= head.number)
        said = ((line, line_grammar.of(line.text).text) for line in below)
        return next(
            (line for line, text in said if _NPU_SAYS.match(text) and not NPU_HEADS.match(text)),
            None,
        )

    @property
    def key(self) -> str:
        """What its line is about: the message of its exception, or the exception."""
        return (self.root.text or self.root.type) if self.root is not None else ""

    def told_at(self, known: Line) -> Line:
        """Return the line that says most, where a signature knows one.

        It may know no more than what announces the exception, or a call that met what a device tells.
        """
        root = self.root
        if root is None:
            return self.lines[0] if _NPU_DEVICE.match(self.said.text) else known
        repeats = known is self.lines[0] and root.text and root.text in known.text
        return root.line if repeats else known

    @property
    def bare(self) -> bool:
        """Whether it is no more than the head, or a part, of what would have told of it."""
        said = self.said.text
        return (
            self.root is None
            and (self.line is self.lines[0] or self.line is self.shown)
            and bool(HEADS.search(said) or _FRAGMENT.match(said))
        )

    @property
    def texts(self) -> str:
        """All that it says, one line after the other."""
        return "\n".join(line_grammar.of(line.text).text for line in self.lines)
