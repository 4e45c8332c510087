"""Copy the logs of a deployment's nodes to this machine while they grow.

Example::

    logs = NodeLogs(target)
    logs.read()
    logs.codes  # {"a3-0 engines": 1}: exit codes of what has ended
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kimi_nb.core import known_secrets
from kimi_nb.deploy import log_copies, node_facts
from kimi_nb.deploy.journal import alone
from kimi_nb.deploy.node_answers import Answer, Line
from kimi_nb.diagnose.log_files import Logs, file_of
from kimi_nb.plan.spec import Plan
from kimi_nb.service import readiness

LOST = 255  # the exit code of ssh for an unreachable node
_PIECES = 4096  # polls for one reading, at the most
_BACK = 4096  # bytes before a piece that are searched for secrets again
_ROUTER_LOG = "router.log"
_LOST = 5  # polls without an answer after which a node counts as lost


class Target(Protocol):
    """The deployment to poll, as `on_nodes.OnNodes` implements it.

    ``every`` is the time between two polls, in seconds.
    """

    plan: Plan
    root: Path
    every: float

    @property
    def log_folder(self) -> Path:
        """The folder to which the nodes' logs are copied."""

    def poll(self, verbs: Sequence[str]) -> Mapping[str, Answer]:
        """Return what runs on each node, and what is new in its logs."""


class NodeLogs(Logs):
    """Copies of the nodes' logs, and the state of the programs that run there.

    A copy is as long as the part of the log that was read, so that any process knows where to
    continue.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target.plan, target.root)
        self._target = target
        self._next = 0.0
        self._misses: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        self.states: dict[str, str] = {}
        self.parts: dict[tuple[str, str], str] = {}  # of a KV store, by node and name
        self.memory: dict[str, int] = {}
        self.strange: dict[str, str] = {}  # by node, the first line that is no answer

    def lost(self) -> set[str]:
        """Return the nodes that have not answered for some time."""
        return {node for node, count in self._misses.items() if count >= _LOST}

    def seen(self, node: str) -> str:
        """Return how far each log of a node was read, as lines of "name bytes"."""
        router = self._target.plan.router
        copies = [*(self._target.log_folder / node).glob("*.log")]
        if router is not None and router.node == node:
            copies += [path for path in [self._copy(node, _ROUTER_LOG)] if path.exists()]
        return "\n".join(f"{path.name} {path.stat().st_size}" for path in copies)

    def begin(self, nodes: Iterable[str]) -> None:
        """Set the copies of earlier logs aside, because these nodes have been started anew."""
        for node in nodes:
            for path in (self._target.log_folder / node).glob("*.log"):
                if not log_copies.set_aside(path):
                    path.unlink()

    def read(self, now: bool = False) -> None:
        """Read what is new, unless the previous poll was less than ``every`` seconds ago.

        With ``now`` it polls in any case, and reads every log to its end.
        """
        if not now and time.monotonic() < self._next:
            return
        with alone(self._target.log_folder):
            more = self._read(("state", "tails"))
            for _ in range(_PIECES if now else 0):
                if not more:
                    break
                more = self._read(("tails",))
        super().read()
        self._next = time.monotonic() + self._target.every

    def _read(self, verbs: Sequence[str]) -> bool:
        """Poll every node once; return whether a log has more than one poll returns."""
        more = False
        for node, answer in self._target.poll(verbs).items():
            self._misses[node] = self._misses.get(node, 0) + 1 if answer.error else 0
            if self._misses[node] >= _LOST:
                self.codes[f"{node} engines"] = LOST
            for line in answer.lines:
                try:
                    more |= self._take(node, line)
                except ValueError as error:
                    # A stranger wrote it, or a login's banner: the others still count.
                    self.strange.setdefault(node, f"{line.thing} {line.text[:80]!r}: {error}")
        return more

    def _take(self, node: str, line: Line) -> bool:
        """Process a line of an answer; return whether the log it brings continues.

        Raises ValueError for a line that is none.
        """
        if line.thing == "log":
            piece = node_facts.log(line.text)
            if piece.name == _ROUTER_LOG:
                self._check_router(node)
            path = self._copy(node, piece.name)
            if not path.exists() and len(list(path.parent.glob("*.log"))) >= node_facts.LOGS:
                raise ValueError(f"more than {node_facts.LOGS} logs")
            path.parent.mkdir(exist_ok=True)
            anew = path.exists() and piece.begin < path.stat().st_size
            if anew and not log_copies.set_aside(path):
                raise ValueError(f"it has begun anew more than {log_copies.MOST} times")
            with path.open("ab") as file:
                file.write(piece.data)
            # The previous piece may have ended within a secret. The file keeps its length.
            known_secrets.file(path, max(0, path.stat().st_size - len(piece.data) - _BACK))
            return len(piece.data) == node_facts.PIECE
        if line.thing == "memory":
            self.memory[node] = node_facts.kilobytes(line.text)
        elif line.thing in ("engines", "router", *readiness.STORE):
            if line.thing == "router":
                self._check_router(node)
            key = readiness.ROUTER if line.thing == "router" else f"{node} {line.thing}"
            program = node_facts.program(line.text)
            if program.runs:
                self.codes.pop(key, None)
            else:
                self.codes[key] = program.code
            if line.thing in readiness.STORE:
                state = "ready" if program.runs else f"ended {program.code}"
                self.parts[node, line.thing] = state
            if line.thing == "engines":
                self.states[node] = "starting" if program.runs else f"ended {program.code}"
        return False

    def _check_router(self, node: str) -> None:
        """Refuse what a node says of the router of another one, whose log and end it could hide."""
        router = self._target.plan.router
        if router is None or router.node != node:
            raise ValueError("the router is not on this node")

    def _copy(self, node: str, name: str) -> Path:
        return (
            file_of(self._target.root, readiness.ROUTER)
            if name == _ROUTER_LOG
            else self._target.log_folder / node / name
        )
