"""Tell what part an event plays in a failure, and which of all events came first.

A *wrapper* only passes on what another process raised, a *general* one names no cause, a *cascade* follows from the end of another
rank, an *exit* reports the end of a process, a *death* one that nothing in its own log explains (the
kernel, a signal), and a *root* is a cause. First is the root or the death whose process reported its
first error before the others (`collectives` says whom a collective that timed out accuses).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kimi_nb.diagnose import codes, components, gravity, matching
from kimi_nb.diagnose.codes import Code
from kimi_nb.diagnose.components import Component
from kimi_nb.diagnose.events import Event
from kimi_nb.diagnose.matching import Line, Match

_WRAPPER = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError|EngineCore "
    r"(?:encountered a fatal error|failed to start|hit an exception)|AsyncLLM output_handler failed|"
    r"Worker ?Proc (?:hit an exception|failed to start)|Worker failed with error|ChildFailedError|"
    r"Received sig\w+ from a child|Child process unexpectedly failed|ShardCannotStart|Shard \d+ (?:failed to start|crashed)|Shard complete standard error|Webserver Crashed|"
    r"MPI_ABORT was invoked|Error executing method|Exception in worker|Process \w+:$|Test failure|"
    r"BackendCompilerFailed\.__init__|ProcessRaisedException|(?:^|Error: )DownloadError|"
    r"ERR\d{5} |^\[Error\]: |DIST internal error|Scheduler hit an exception|terminate called after|"
    r"ActorDiedError|RayActorError|died unexpectedly|died, exit code|"
    r"[Ww]atchdog thread terminated with exception(?!: (?:CUDA|HIP) error|: ?$)|Process received signal|with errorcode|"
    r"Aborted|\*\*\* SIGABRT received|Rank 0 scheduler is dead|Exception in ASGI application|resource_tracker|"
    r"Uncaught exception|(?:^|: )worker died$|Error getting async model runner output|"
    r"failed to load model|sample init resource failed|An error occurred while loading|"
    r"tasks? [\d,-]+: Terminated|\*\*\* STEP \S+ ON \S+ CANCELLED|execute fail|Execute Failed|loky-|commCreateFunc fail"
)
_CASCADE = re.compile(
    r"closed by peer|[Cc]onnection reset by peer|remote process exited|recvValue failed|[Bb]roken pipe|"
    # What the monitors of torch say once a watchdog hangs, or another rank has given up.
    r"[Hh]eartbeat monitor timed out|no heartbeat of its watchdog|watchdog (?:hang|got stuck)|dump.? flag|dump signal|signal dumping|to dump debug info|Timeout at NCCL work|failed collective not found|"
    r"sendBytes failed|failed to recv, got 0 bytes|communicator was aborted|monitoredBarrier|"
    r"REMOTE_DISCONNECT|collective operation timeout|Watchdog caught|lost (?:node )?rank|Session \S+ "
    r"failed|transfer failed for request|Context is not active|mark it inactive|"
    r"(?:failure|timeout)\)? detected by watchdog|Observed flight recorder dump|Some NCCL operations have failed|To avoid data inconsistency|"
    r"All connection attempts failed|attempts failed for|Notify register times out|"
    r"error sending request for url|no (?:healthy|available) (?:worker|upstream)|connection refused|"
    r"RPC call to \w+ timed out|Timed out waiting for engine core|5070(?:46|47|48)\b|"
    r"ncclRemoteError|^EOFError$|EngineGenerateError|Connection closed by|Server error '5\d\d "
)
_EXIT = re.compile(
    r"^rank \d+ failed: exit code|tasks? [\d,-]+: Exited with exit code [1-9]|exited with code [1-9]\d?\b|ended with exit code [1-9]|"
    r"\bnoticed that process rank \d+|^= +(?:RANK \d+ PID|KILLED BY SIGNAL)"
)
# Whoever stops a node may reach a rank before its launcher: the rank has ended, and not failed.
_STOPPED = re.compile(r"^rank \d+ failed: signal SIG(?:TERM|INT|HUP)\b")
# How a process tells that it aborts, and what Ray says of it afterwards.
_ABORTED = re.compile(r"^(?:Fatal Python error: |\*\*\* SIG[A-Z]+ received)", re.MULTILINE)
_DIED = re.compile(r"^A worker died or was killed")
# What one process only repeats of another.
_QUOTED = re.compile(r"Worker failed with error|RayTaskError")
# What a library says where another line of the same log tells more.
_GENERAL = re.compile(r"NIXL_ERR_BACKEND")
_SHUTDOWN = re.compile(r"SIGTERM|SIGINT|KeyboardInterrupt|shutting down", re.IGNORECASE)
REMOTE = re.compile(
    r"(?:from remote rank: ?\[?|[Rr]emote rank(?:_?id)?: ?\[?|\bRanks? (?=\d+ failed to pass)|"
    r"monitoredBarrier, but received errors while waiting for send/recv from rank )(\d+)"
)


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
            ends = [one for one in self.event.lines if gravity.DEATH.search(one.text)]
            return (ends or self.event.lines)[0]
        return self.match.line if self.match is not None else self.event.line

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
    match = _best(event.matches)
    root = event.root
    said = root.said if root is not None else event.said.text
    # The words of who only passes an exception on tell nothing of where it was raised.
    own, all_of_it = (
        _WRAPPER.sub("", text) if root is not None else text
        for text in (event.said.text, event.texts)
    )
    texts = [said, own, all_of_it]
    code = codes.of(said)
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
    death = bool(gravity.DEATH.search(said) or (root is None and gravity.DEATH.search(event.texts)))
    return Candidate(
        event, node, rank, match, _role(event, match, said, death), death, code, component
    )


def _names_more(component: Component, code: Code) -> bool:
    """Return whether the words tell more of the part than a code, which is that of any kernel."""
    return code.component == "kernel" and (
        component.id == "deepep" or (code.general and component.id == "hccl")
    )


def follows(event: Event) -> bool:
    """Return whether an event only follows from something else."""
    return of(event, "", None).role >= Role.CASCADE


def _best(matches: Sequence[Match]) -> Match | None:
    """Return the signature that says most of an event."""
    ranked = sorted(
        matches,
        key=lambda one: (one.signature.general, one.signature.cascade, one.line.number),
    )
    return ranked[0] if ranked else None


def _role(event: Event, match: Match | None, said: str, death: bool) -> Role:
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
    if _CASCADE.search(said):
        return Role.CASCADE
    if match is not None and match.signature.cascade:
        return Role.CASCADE
    if _EXIT.search(said):
        return Role.EXIT
    if _GENERAL.search(said):
        return Role.GENERAL
    # An exception without words is one all the same, where its frames are there.
    hollow = event.root is None or not (event.root.text or event.frames)
    if match is None or match.signature.id == "worker-died":
        if _WRAPPER.search(said) or (hollow and _WRAPPER.search(event.said.text)):
            return Role.WRAPPER
        if _SHUTDOWN.search(said):
            return Role.WRAPPER
    return Role.ROOT


def ordered(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events, the first failure first: by role, then by the time of their process.

    The time of an event is that of the first error of its process: what a process says last may
    only sum up what it said before.
    """
    kept = _late(_lost(_special(_hearsay(found))))
    when = _timed(kept)
    begun = _begun(kept, when)
    firm = any(one.role is Role.ROOT and not one.death for one in kept)

    again = [quoted(one) for one in kept]
    told = {_key(one) for one, repeats in zip(kept, again, strict=True) if not repeats}

    def rank(at: int) -> tuple[bool, int]:
        one = kept[at]
        return (one.rank is None, one.rank if one.rank is not None else 0)

    def weight(at: int) -> tuple[object, ...]:
        one = kept[at]
        untimed = one.death and not one.event.first.time
        return (
            one.role,
            one.vague or (one.role is Role.WRAPPER and bool(_DIED.search(one.event.said.text))),
            # A death explains what happened where nothing else does; it is no rival to a cause that
            # its own log tells, unless its time says that it came before.
            one.death and firm and (untimed or _explained(one, kept)),
            again[at] and _key(one) in told,
            begun[process(one)],
            when[at],
        )

    # Among files the lower rank counts, within a file the line that stands first.
    weights = [weight(at) for at in range(len(kept))]
    places: dict[tuple[object, ...], tuple[bool, int]] = {}
    for at, one in enumerate(kept):
        key = (weights[at], one.event.first.file)
        places[key] = min(places.get(key, rank(at)), rank(at))

    def order(at: int) -> tuple[object, ...]:
        first = kept[at].event.first
        return (weights[at], places[weights[at], first.file], first.file, first.number)

    return [kept[at] for at in sorted(range(len(kept)), key=order)]


def _key(one: Candidate) -> str:
    """Return what an event is of: its signature or its exception."""
    if one.match is not None:
        return one.match.signature.id
    return one.event.root.type if one.event.root is not None else ""


def quoted(one: Candidate) -> bool:
    """Return whether an event only repeats what another process raised."""
    return bool(_QUOTED.search(one.line.text))


def _timed(found: Sequence[Candidate]) -> list[str]:
    """Return when each event was; one above the first time of its file has that time."""
    when = matching.times([one.event.first.time for one in found])
    first: dict[str, str] = {}
    for one, time in zip(found, when, strict=True):
        file = one.event.first.file
        first[file] = min(first.get(file, time), time)
    return [
        first[one.event.first.file] if not one.event.first.time and not one.death else time
        for one, time in zip(found, when, strict=True)
    ]


def _begun(found: Sequence[Candidate], when: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Return when each process reported its first error."""
    begun: dict[tuple[str, ...], str] = {}
    for one, time in zip(found, when, strict=True):
        key = process(one)
        begun[key] = min(begun.get(key, time), time)
    return begun


def _hearsay(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with what others say of a worker's end put behind what it says itself.

    Ray's words come last where the worker tells that it aborts, and who only waits for one that has
    died tells nothing.
    """
    if any(_ABORTED.search(one.event.texts) for one in found):
        found = [
            replace(one, role=Role.WRAPPER) if _DIED.search(one.event.said.text) else one
            for one in found
        ]
    # Who waits for a process that has died waits in vain.
    dead = any(one.match is not None and one.match.signature.id == "worker-died" for one in found)
    return [one for one in found if not (dead and one.role is Role.WAITS)]


def _lost(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with the ends of processes that only lost another rank put last."""
    lost = {(one.node, one.rank) for one in found if one.role is Role.CASCADE}
    return [
        replace(one, role=Role.WRAPPER)
        if one.role is Role.EXIT
        and (one.match is None or one.match.signature.id == "rank-died")
        and (one.node, ended(one)) in lost
        else one
        for one in found
    ]


def ended(one: Candidate) -> int | None:
    """Return the rank whose end an event reports, or that of its process."""
    if one.match is not None and one.match.signature.id == "rank-died":
        return int(one.match.found["rank"])
    return one.event.rank if isinstance(one.event.rank, int) else one.rank


def _late(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with unknown ones put last that a known consequence explains.

    Those are errors of which nothing is known, and exceptions after the first consequence.
    """
    when = matching.times([one.event.first.time for one in found])
    followed = [
        time
        for one, time in zip(found, when, strict=True)
        if one.role is Role.CASCADE and one.match is not None
    ]
    out = []
    for one, time in zip(found, when, strict=True):
        late = bool(followed) and (one.vague or time > min(followed))
        unknown = one.role is Role.ROOT and one.match is None and not one.death
        out.append(replace(one, role=Role.WRAPPER) if unknown and late else one)
    return out


def process(one: Candidate) -> tuple[str, ...]:
    """Return what tells the process of an event from all others."""
    # A library names the host beside the number of the process that it is in.
    return one.node, one.event.first.file, one.event.said.process.rpartition("|")[2]


def _explained(death: Candidate, among: Sequence[Candidate]) -> bool:
    """Return whether the log of the process that died says itself why."""
    rank = ended(death)
    return any(
        one.role is Role.ROOT
        and not one.death
        and one.node == death.node
        and (rank is None or one.rank == rank)
        for one in among
    )


def _special(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events without general signatures where the same process says more."""
    special = {process(one) for one in found if one.special and one.role is Role.ROOT}
    out = []
    for one in found:
        general = one.match is not None and one.match.signature.general
        if general and one.role is Role.ROOT and not one.death and process(one) in special:
            one = replace(one, role=Role.WRAPPER)
        out.append(one)
    return out
