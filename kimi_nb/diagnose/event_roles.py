"""Tell what part an event plays in a failure, and which of all events came first.

A *wrapper* only passes on what another process raised, a *cascade* follows from the end of another
rank, an *exit* reports the end of a process, a *death* one that nothing in its own log explains (the
kernel, a signal), and a *root* is a cause. First is the root or the death whose process reported its
first error before the others; a collective that timed out accuses the rank that is silent.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kimi_nb.diagnose import codes, components, matching
from kimi_nb.diagnose.codes import Code
from kimi_nb.diagnose.components import Component
from kimi_nb.diagnose.events import Event
from kimi_nb.diagnose.matching import Line, Match

_WRAPPER = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError|EngineCore "
    r"(?:encountered a fatal error|failed to start|hit an exception)|AsyncLLM output_handler failed|"
    r"Worker ?Proc (?:hit an exception|failed to start)|Worker failed with error|ChildFailedError|"
    r"Received sig\w+ from a child|ShardCannotStart|Shard \d+ failed to start|Webserver Crashed|"
    r"MPI_ABORT was invoked|Error executing method|Exception in worker|Process \w+:$|Test failure|"
    r"BackendCompilerFailed\.__init__|ProcessRaisedException|(?:^|Error: )DownloadError|"
    r"ERR\d{5} |^\[Error\]: |DIST internal error|Scheduler hit an exception|terminate called after|"
    r"ActorDiedError|RayActorError|died unexpectedly|died, exit code|"
    r"[Ww]atchdog thread terminated with exception|Process received signal|with errorcode|"
    r"Aborted|Rank 0 scheduler is dead|Exception in ASGI application|resource_tracker|"
    r"nixlBackendError|NIXL_ERR_BACKEND|Uncaught exception|Error getting async model runner output|"
    r"failed to load model|sample init resource failed|An error occurred while loading|"
    r"execute fail|Execute Failed|loky-|commCreateFunc fail"
)
_CASCADE = re.compile(
    r"closed by peer|[Cc]onnection reset by peer|remote process exited|recvValue failed|[Bb]roken pipe|"
    r"REMOTE_DISCONNECT|collective operation timeout|Watchdog caught|lost (?:node )?rank|Session \S+ "
    r"failed|transfer failed for request|Context is not active|mark it inactive|"
    r"(?:failure|timeout) detected by watchdog|Observed flight recorder dump|"
    r"All connection attempts failed|attempts failed for|Notify register times out|"
    r"error sending request for url|no (?:healthy|available) (?:worker|upstream)|connection refused|"
    r"RPC call to \w+ timed out|Timed out waiting for engine core|5070(?:46|47|48)\b|"
    r"ncclRemoteError|EngineGenerateError|Connection closed by"
)
_EXIT = re.compile(
    r"^rank \d+ failed: exit code|exited with code [1-9]\d?\b|ended with exit code [1-9]"
)
_DEATH = re.compile(
    r"[Oo]ut of memory: Kill|oom[-_]kill|OOMKilled|CrashLoopBackOff|Killed process|^Killed$|task \d+: Out "
    r"Of Memory|exit ?code:? *(?:-9|-11|137|139|-7|135|-4|132)\b|failed: signal|[Ss]ignal (?:4|7|9|11)\b|"
    r"killed due to memory pressure|running low on memory|A worker died or was killed|NODE_FAIL|"
    r"Segmentation fault|exitCode: 137"
)
_SHUTDOWN = re.compile(r"SIGTERM|SIGINT|KeyboardInterrupt|shutting down", re.IGNORECASE)
_WORKS = re.compile(r"last enqueued work: (\d+)")
_SEQUENCE = re.compile(r"\bSeqNum=(\d+)")
_REMOTE = re.compile(r"from remote rank: ?\[?(\d+)|[Rr]emote rank(?:_?id)?: ?\[?(\d+)")


class Role(enum.IntEnum):
    """What an event is to a failure; the lower comes first."""

    ROOT = 0
    EXIT = 1
    WAITS = 2
    CASCADE = 3
    WRAPPER = 4


@dataclass(frozen=True)
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
            named = [one for one in self.event.lines if _REMOTE.search(one.text)]
            return named[0] if named else self.event.lines[0]
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
        return self.role is Role.ROOT and not self.death


def of(event: Event, node: str, rank: int | None) -> Candidate:
    """Return an event with its role, its code and its part of the system."""
    match = _best(event.matches)
    root = event.root
    said = root.said if root is not None else event.said.text
    own = _WRAPPER.sub("", event.said.text) if root is not None else event.said.text
    texts = [said, own, event.texts]
    code = codes.of(said) or codes.of(event.texts)
    component = components.of(texts, root.type if root else "", event.frames, event.said.speaker)
    if code is not None and (
        component is None
        or component.id in ("device", "network", "kernel", "library", "model")
        or code.table in ("aclError", "cudaError", "CANN")
    ):
        component = components.by_id(code.component)
    death = bool(_DEATH.search(said) or (root is None and _DEATH.search(event.texts)))
    return Candidate(
        event, node, rank, match, _role(event, match, said, death), death, code, component
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
        return Role.ROOT if death else Role.EXIT
    if match is not None and match.signature.id == "worker-failed":
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
    hollow = event.root is None or not event.root.text
    if match is None or match.signature.id in ("worker-died", "nixl-backend"):
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
    kept = _late(_lost(_special(found)))
    when = matching.times([one.event.first.time for one in kept])
    begun = _begun(kept, when)
    firm = any(one.role is Role.ROOT and not one.death for one in kept)

    def order(at: int) -> tuple[object, ...]:
        one = kept[at]
        untimed = one.death and not one.event.first.time
        return (
            one.role,
            one.vague,
            # A death explains what happened where nothing else does; it is no rival to a cause that
            # its own log tells, unless its time says that it came before.
            one.death and firm and (untimed or _explained(one, kept)),
            begun[_process(one)],
            when[at],
            one.rank is None,
            one.rank if one.rank is not None else 0,
            one.event.first.number,
        )

    return [kept[at] for at in sorted(range(len(kept)), key=order)]


def _begun(found: Sequence[Candidate], when: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Return when each process reported its first error."""
    begun: dict[tuple[str, ...], str] = {}
    for one, time in zip(found, when, strict=True):
        key = _process(one)
        begun[key] = min(begun.get(key, time), time)
    return begun


def _lost(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with the ends of processes that only lost another rank put last."""
    lost = {(one.node, one.rank) for one in found if one.role is Role.CASCADE}
    return [
        replace(one, role=Role.WRAPPER)
        if one.role is Role.EXIT
        and (one.match is None or one.match.signature.id == "rank-died")
        and (one.node, _ended(one)) in lost
        else one
        for one in found
    ]


def _ended(one: Candidate) -> int | None:
    """Return the rank whose end an event reports."""
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


def _process(one: Candidate) -> tuple[str, ...]:
    return one.node, one.event.first.file, one.event.said.process


def _explained(death: Candidate, among: Sequence[Candidate]) -> bool:
    """Return whether the log of the process that died says itself why."""
    rank = _ended(death)
    return any(
        one.role is Role.ROOT
        and not one.death
        and one.node == death.node
        and (rank is None or one.rank == rank)
        for one in among
    )


def _special(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events without general signatures where the same process says more."""
    special = {_process(one) for one in found if one.special and one.role is Role.ROOT}
    out = []
    for one in found:
        general = one.match is not None and one.match.signature.general
        if general and one.role is Role.ROOT and not one.death and _process(one) in special:
            one = replace(one, role=Role.WRAPPER)
        out.append(one)
    return out


def accuse(first: Candidate, found: Sequence[Candidate], ranks: Sequence[int]) -> Candidate:
    """Return the first event with the rank that a collective accuses, if it is a collective's.

    ``ranks`` are all ranks that have a log. Of those that wait, the one with fewer works enqueued is
    behind; if all are alike, the rank that does not wait is the one that did not come.
    """
    if first.role is not Role.CASCADE:
        return first
    waiting = [one for one in found if one.role is Role.CASCADE]
    for one in waiting:
        named = _REMOTE.search(one.event.texts)
        if named and _silent(int(named[1] or named[2]), waiting):
            return replace(one, accused=int(named[1] or named[2]))
    works: dict[int, int] = {}
    for one in waiting:
        rank = one.event.rank if isinstance(one.event.rank, int) else one.rank
        count = _WORKS.search(one.event.texts) or _SEQUENCE.search(one.event.texts)
        if rank is not None and count:
            works[rank] = min(works.get(rank, int(count[1])), int(count[1]))
    if len(works) > 1:
        least = min(works.values())
        behind = [rank for rank, count in works.items() if count == least]
        if len(behind) == 1 and least < max(works.values()):
            mine = next((one for one in waiting if behind[0] in (one.event.rank, one.rank)), first)
            return replace(mine, accused=behind[0])
        silent = sorted(set(ranks) - set(works))
        if len(silent) == 1 and len(works) >= len(ranks) - 1:
            return replace(first, accused=silent[0])
    return first


def _silent(rank: int, waiting: Sequence[Candidate]) -> bool:
    """Return whether a rank does not itself accuse another one."""
    return not any(
        rank in (one.event.rank, one.rank) and _REMOTE.search(one.event.texts) for one in waiting
    )
