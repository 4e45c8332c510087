"""Copy the logs of a deployment's pods to this machine while they grow.

All pods are read by one call of kubectl, from where the last one ended. `lines` is pure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from kimi_nb.core import known_secrets
from kimi_nb.deploy import log_copies
from kimi_nb.deploy.kubernetes.kubectl import Kubectl, KubectlError
from kimi_nb.diagnose.log_files import Logs, file_of
from kimi_nb.plan.spec import Plan
from kimi_nb.service import readiness

_EVERY = 3.0  # seconds between two readings
_BYTES = 16 << 20  # of each pod and reading
_LATE = 60.0  # seconds by which the clocks of nodes may differ
_LINE = re.compile(
    r"\[pod/(?P<pod>[a-z0-9.-]{1,253})/(?P<container>[a-z0-9-]{1,63})\] "
    r"(?P<second>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(?P<part>\d{1,9}))?(?P<zone>Z|[+-]\d\d:\d\d) ?"
    r"(?P<text>.*)"
)
Moment = tuple[float, int]  # the second since 1970, and its nanoseconds


def lines(text: str) -> Iterator[tuple[str, Moment, str]]:
    """Return (pod, moment, line) of what ``kubectl logs --prefix --timestamps`` prints.

    >>> list(lines("[pod/kimi-decode-0/engine] 2026-01-02T03:04:05.25Z loaded"))
    [('kimi-decode-0', (1767323045.0, 250000000), 'loaded')]
    """
    for line in text.split("\n"):
        found = _LINE.fullmatch(line)
        if found:
            try:
                second = datetime.fromisoformat(found["second"] + found["zone"]).timestamp()
            except ValueError:
                continue
            yield found["pod"], (second, int((found["part"] or "").ljust(9, "0"))), found["text"]


class PodLogs(Logs):
    """Copies of the logs of all pods that ``selector`` selects, as `readiness.Logs`.

    ``names`` returns the name of the copy of each pod: "POD engines", "router" or "weights".
    """

    def __init__(
        self,
        plan: Plan,
        root: Path,
        kubectl: Kubectl,
        selector: str,
        most: int,
        names: Callable[[str], str],
    ) -> None:
        super().__init__(plan, root)
        self._kubectl, self._selector = kubectl, selector
        self._most, self._names = most, names
        self._next = 0.0
        self._last: dict[str, Moment] = {}
        self._at_last: dict[str, set[str]] = {}
        self._read: set[Path] = set()  # the copies that this process has written
        self.silent = ""  # why the logs could not be read
        self.strange: dict[str, str] = {}  # by pod, why the copy of its earlier log is gone

    def begin(self) -> None:
        """Set the copies of earlier pods aside."""
        for path in [*self._root.glob("logs/*.log"), *self._root.glob("logs/*/*.log")]:
            if not log_copies.set_aside(path):
                path.unlink()
        self._last.clear()
        self._at_last.clear()
        self._read.clear()

    def read(self, now: bool = False) -> None:
        """Read what is new, unless that was done a moment ago."""
        if not now and time.monotonic() < self._next:
            return
        for pod, added in self._new():
            path = file_of(self._root, self._names(pod))
            path.parent.mkdir(parents=True, exist_ok=True)
            clean = [known_secrets.text(line) for line in added]
            if path not in self._read and path.exists() and not _make_way(path, clean[0]):
                self.strange[pod] = f"it has begun anew more than {log_copies.MOST} times"
            self._read.add(path)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in clean)
        super().read()
        self._next = time.monotonic() + _EVERY

    def _new(self) -> Iterable[tuple[str, list[str]]]:
        """Return the new lines of each pod that has any."""
        words = ["logs", "-l", self._selector, "--prefix", "--timestamps", "--tail=-1"]
        words += [f"--max-log-requests={self._most}", "--ignore-errors", f"--limit-bytes={_BYTES}"]
        if self._last:
            moments = [second for second, _ in self._last.values()]
            # A pod that has been silent for long must not bring the others' lines again.
            oldest = datetime.fromtimestamp(max(min(moments), max(moments) - _LATE), UTC)
            words.append(f"--since-time={oldest:%Y-%m-%dT%H:%M:%SZ}")
        try:
            text = self._kubectl.run(*words)
        except KubectlError as error:
            self.silent = str(error)  # containers that have not begun have no log
            return []
        self.silent = ""
        out: dict[str, list[str]] = {}
        for pod, moment, line in lines(text):
            if self._names(pod) and self._is_new(pod, moment, line):
                out.setdefault(pod, []).append(line)
        return out.items()

    def _is_new(self, pod: str, moment: Moment, line: str) -> bool:
        last = self._last.get(pod)
        if last is not None and (moment < last or (moment == last and line in self._at_last[pod])):
            return False
        if moment != last:
            self._last[pod], self._at_last[pod] = moment, set()
        self._at_last[pod].add(line)
        return True


def _make_way(path: Path, first: str) -> bool:
    """Remove the copy of an earlier process if it is of the same pod; set it aside if of another.

    The first reading of a process brings the whole log. Returns False if there was no room for
    another pod's copy, which is then removed: what the pod says now is wanted more.
    """
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        same = file.readline().rstrip("\n") == first
    kept = not same and log_copies.set_aside(path)
    if not kept:
        path.unlink()
    return same or kept


def name_of(plan: Plan, door: str, weights: str) -> Callable[[str], str]:
    """Return the function that names the copy of a pod's log; "" for a pod that is not the plan's.

    ``door`` and ``weights`` are what the names of the router's and the download's pods begin with.
    """
    nodes = frozenset(plan.nodes)

    def name(pod: str) -> str:
        if pod in nodes:
            return f"{pod} engines"
        if pod.startswith(f"{door}-"):
            return readiness.ROUTER
        return "weights" if pod.startswith(f"{weights}-") else ""

    return name
