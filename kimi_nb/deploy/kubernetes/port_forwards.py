"""Reach the API of each pod from this machine, by a port-forward of kubectl.

Example::

    forwards = Forwards(kubectl, folder / "forwards", "run-1")
    address = forwards.to("pod/kimi-decode-0", [8000, 8001])  # "127.101.0.1"
    forwards.close()

Each pod has a loopback address of its own, so that its ports stay those of the plan. The forwards end
with this process at the latest.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from kimi_nb.core.processes import Programs
from kimi_nb.deploy.kubernetes import cluster_looks
from kimi_nb.deploy.kubernetes.kubectl import Kubectl
from kimi_nb.diagnose.first_failure import Diagnosis

_IN_A_BLOCK = 250
_SHORT = 3.0  # seconds: a forward that ends within them has never worked
_TRIES = 5  # starts in a row that end so
_PAUSE = 1.0  # seconds before the next start, times those that have ended so
_LAST = 300  # characters of its log that are shown


class Forwards:
    """The port-forwards of one deployment; ``folder`` gets their logs."""

    def __init__(self, kubectl: Kubectl, folder: Path, run: str) -> None:
        self._kubectl, self._folder = kubectl, folder
        self._block = 64 + hashlib.sha256(run.encode()).digest()[0] % 60
        self._programs: Programs | None = None
        self._ports: dict[str, Sequence[int]] = {}
        self._addresses: dict[str, str] = {}
        self._begun: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._due: dict[str, float] = {}  # when what has ended is started again

    def to(self, target: str, ports: Sequence[int]) -> str:
        """Return the address at which a pod or service is reached; a second call starts nothing."""
        if target not in self._addresses:
            high, low = divmod(len(self._addresses), _IN_A_BLOCK)
            self._addresses[target] = f"127.{self._block}.{high}.{low + 1}"
            self._ports[target] = ports
            self._start(target)
        return self._addresses[target]

    def keep(self) -> Diagnosis | None:
        """Start again what has ended; return why one cannot be started at all."""
        if self._programs is None:
            return None
        for target, code in self._programs.ended().items():
            now = time.monotonic()
            if target not in self._due:  # it has ended since the last look
                short = now - self._begun[target] < _SHORT
                self._tries[target] = self._tries.get(target, 0) + 1 if short else 0
                self._due[target] = now + _PAUSE * self._tries[target]
            if self._tries[target] >= _TRIES:
                text = self._log(target).read_text(encoding="utf-8", errors="replace")
                said = text.strip()[-_LAST:]
                return cluster_looks.diagnosis(
                    "no-forward",
                    target.partition("/")[2],
                    f"{target} cannot be reached from here: kubectl port-forward ends with {code}",
                    f"{self._log(target).name}: {said or 'nothing was said'}",
                )
            if now >= self._due[target]:
                self._start(target)
        return None

    def _start(self, target: str) -> None:
        if self._programs is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._programs = Programs(self._folder / "supervisor.log")
        self._begun[target] = time.monotonic()
        self._due.pop(target, None)
        pairs = [f"{port}:{port}" for port in self._ports[target]]
        self._programs.start(
            target,
            self._kubectl.argv(
                "port-forward", "--address", self._addresses[target], target, *pairs
            ),
            self._folder,
            os.environ,
            self._log(target),
        )

    def _log(self, target: str) -> Path:
        return self._folder / f"{target.replace('/', '-')}.log"

    def close(self) -> None:
        """End all of them."""
        if self._programs is not None:
            self._programs.close()
            self._programs = None
