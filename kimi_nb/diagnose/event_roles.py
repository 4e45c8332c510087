"""Tell what part an event plays in a failure (data/diagnose/role_words.yaml).

A *wrapper* only passes on what another process raised, a *general* one names no cause, a *cascade*
follows from the end of another rank, an *exit* reports the end of a process, a *death* one that
nothing in its own log explains (the kernel, a signal), and a *root* is a cause. `event_order` says
which of all events came first.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kimi_nb.core import data_files
from kimi_nb.diagnose import codes, components, gravity, line_grammar
from kimi_nb.diagnose.codes import Code
from kimi_nb.diagnose.components import Component
from kimi_nb.diagnose.event import HOLLOW, Event
from kimi_nb.diagnose.matching import Line, Match

# Whoever stops a node may reach a rank before its launcher: the rank has ended, and not failed.
_STOPPED = re.compile(r"^rank \d+ failed: signal SIG(?:TERM|INT|HUP)\b")
_SHUTDOWN = re.compile(r"SIGTERM|SIGINT|KeyboardInterrupt|shutting down", re.IGNORECASE)
REMOTE = re.compile(
    r"(?:from remote rank: ?\[?|[Rr]emote rank(?:_?id)?: ?\[?|\bRanks? (?=\d+ failed to pass)|"
    r"monitoredBarrier, but received errors while waiting for send/recv from rank )(\d+)"
)


@functools.cache
def words(role: str) -> re.Pattern[str]:
    """Return the words of a role (data/diagnose/role_words.yaml)."""
    return re.compile("|".join(data_files.facts("diagnose/role_words")[role]))


class Role(enum.IntEnum):
    """What an event is to a failure; the lower comes first."""

    ROOT = 0
    GENERAL = 1
    EXIT = 2
    WAITS = 3
    CASCADE = 4
    WRAPPER = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """An event with what is known of it.

    Attributes:
        match: The signature that explains it, or None.
        role: Its part in the failure.
        death: Whether it tells only that a process was killed.
        accused: The rank that a collective accuses, instead of the one that waited.
    """

    event: Event
    node: str
    rank: int | None
    match: Match | None
    role: Role
    death: bool
    code: Code | None
    component: Component | None
    accused: int | str | None = None

    @property
    def line(self) -> Line:
        """The line that says most; of a signature the line that it knows."""
        if self.accused is not None:
            named = [one for one in self.event.lines if REMOTE.search(one.text)]
            return named[0] if named else self.event.lines[0]
        if self.match is None and self.death and self.event.root is None:
            ends = [one for one in self.event.lines if gravity.dies(one.text)]
            return (ends or self.event.lines)[0]
        if self.match is None:
            return self.event.line
        return self.event.told_at(self.match.line)

    @property
    def known(self) -> Match | None:
        """What a signature knows, at the line that says most."""
        return replace(self.match, line=self.line) if self.match is not None else None

    @property
    def vague(self) -> bool:
        """Whether nothing is known of it but that it is an error."""
        return (
            self.match is None
            and self.event.root is None
            and self.code is None
            and self.component is None
        )

    @property
    def special(self) -> bool:
        """Whether it says more than a general signature."""
        if self.match is not None:
            return not self.match.signature.general
        return self.role is Role.ROOT and not (self.death or self.vague)


def of(event: Event, node: str, rank: int | None, program: str = "") -> Candidate:
    """Return an event with its role, its code and its part of the system.

    ``program`` is whose log it is, for what is written without a name.
    """
    match, root, said = _best(event.matches), event.root, _says(event)
    # The words of who only passes an exception on tell nothing of where it was raised.
    own, all_of_it = (
        words("wrapper").sub("", text) if root is not None else text
        for text in (event.said.text, event.texts)
    )
    texts = [said, own, all_of_it]
    # What a signature knows says more than what else is told.
    if match is not None and not match.signature.general:
        texts.insert(0, line_grammar.of(match.line.text).text)
    code = codes.of(texts[0]) or codes.of(said)
    if code is None or code.general:
        code = codes.of(event.texts) or code
    component = components.of(
        texts,
        root.type if root else "",
        [event.said.source, *((root and root.frames) or event.frames)],
        event.said.speaker or program or event.said.grammar,
    )
    if code is not None and (
        component is None
        or component.id in ("device", "network", "kernel", "library", "model")
        or (code.table in ("aclError", "cudaError", "CANN") and not _names_more(component, code))
    ):
        component = components.by_id(code.component)
    if component is None and match is not None:
        component = components.of([match.signature.cause], "", [], "")
    death = _dies(event)
    return Candidate(event, node, rank, match, _role(event, match, death), death, code, component)


def _says(event: Event) -> str:
    """Return what an event says: its exception, or else its first line."""
    return event.root.said if event.root is not None else event.said.text


def _dies(event: Event) -> bool:
    dies = gravity.dies(_says(event)) or (event.root is None and gravity.dies(event.texts))
    return bool(dies)


def _names_more(component: Component, code: Code) -> bool:
    """Return whether the words tell more of the part than a code, which is that of any kernel."""
    return (code.component == "kernel" and component.id == "deepep") or (
        code.general and component.id == "hccl"
    )


def follows(event: Event) -> bool:
    """Return whether an event only follows from something else."""
    return _role(event, _best(event.matches), _dies(event)) >= Role.CASCADE


def _best(matches: Sequence[Match]) -> Match | None:
    """Return the signature that says most of an event."""
    ranked = sorted(
        matches,
        key=lambda one: (one.signature.general, one.signature.cascade, one.line.number),
    )
    return ranked[0] if ranked else None


def _role(event: Event, match: Match | None, death: bool) -> Role:
    said = _says(event)
    if match is not None and match.signature.waits:
        return Role.WAITS
    if match is not None and match.signature.id == "rank-died":
        if _STOPPED.search(said):
            return Role.CASCADE
        return Role.ROOT if death else Role.EXIT
    if match is not None and match.signature.id in ("worker-failed", "pod-group-recreated"):
        return Role.EXIT
    if match is not None and not match.signature.general:
        return Role.CASCADE if match.signature.cascade else Role.ROOT
    if death:
        return Role.ROOT
    if words("cascade").search(said):
        return Role.CASCADE
    if match is not None and match.signature.cascade:
        return Role.CASCADE
    if words("exit").search(said):
        return Role.EXIT
    root = event.root
    if root is not None and root.type == "ChildFailedError":
        return Role.WRAPPER
    if root is not None and (HOLLOW.search(root.type) or root.text.endswith(":")):
        return Role.GENERAL  # what was raised elsewhere, or stands below, is not seen
    if words("general").search(said) or (
        match is None and event.root is None and gravity.complains(event.said)
    ):
        return Role.GENERAL
    # An exception without words is one all the same, where its frames are there.
    hollow = event.root is None or not (event.root.text or event.frames)
    if match is None or match.signature.id == "worker-died":
        if words("wrapper").search(said) or (hollow and words("wrapper").search(event.said.text)):
            return Role.WRAPPER
        if _SHUTDOWN.search(said):
            return Role.WRAPPER
    return Role.ROOT
