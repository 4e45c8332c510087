"""Read the logs of a deployment from the local disk while they grow."""

from __future__ import annotations

from pathlib import Path

from kimi_nb.core.tail import Tails
from kimi_nb.diagnose.first_failure import Log
from kimi_nb.plan.spec import Plan

_LAST = 3  # last lines of a program that show how it ended


class Logs:
    """The log files below a folder, each read from where the previous read ended.

    They are logs/PROGRAM.log, logs/NODE/PROGRAM.log, and rank_N.log of a node, there or in the
    node's folder of the bundle.
    """

    def __init__(self, plan: Plan, root: Path) -> None:
        self._root = root
        self._nodes = [engine.node for engine in plan.engines]
        self._door = plan.router.node if plan.router else None
        self._tails = Tails()

    @property
    def progress(self) -> int:
        """The number of lines that said something new."""
        return self._tails.progress

    @property
    def _lines(self) -> dict[Path, list[str]]:
        return self._tails.lines

    def read(self) -> None:
        """Read what is new."""
        self._tails.read(
            [
                *self._root.glob("logs/*.log"),
                *self._root.glob("logs/*/*.log"),
                *self._root.glob("bundle/*/logs/rank_*.log"),
            ]
        )

    def all(self) -> list[Log]:
        """Return everything read so far, by node and rank, in a fixed order."""
        out = []
        for path in sorted(self._lines):
            node, rank = self._where(path)
            if node is not None:
                out.append(Log(node, rank, str(path.relative_to(self._root)), self._lines[path]))
        return out

    def _where(self, path: Path) -> tuple[str | None, int | None]:
        node = path.parent.name
        if path == file_of(self._root, "router"):
            return self._door, None
        if node == "logs":  # in a bundle: NODE/logs/rank_N.log
            node = path.parent.parent.name
        rank = path.stem.removeprefix("rank_")
        return (node if node in self._nodes else None), int(rank) if rank.isdecimal() else None

    def last(self, node: str, rank: int) -> tuple[str, str]:
        """Return (file, last line) of a rank, or of its node if the rank has no log of its own."""
        logs = [
            log
            for log in self.all()
            if log.node == node
            and log.lines
            and (log.rank == rank or log.file.endswith("/engines.log"))
        ]
        # A rank's own log first: the launcher's is about other ranks too.
        logs.sort(key=lambda log: log.rank is None)
        return (logs[0].file, logs[0].lines[-1]) if logs else ("", "no log")

    def last_of(self, name: str) -> tuple[str, str]:
        """Return (file, last lines) of a program, by its name."""
        path = file_of(self._root, name)
        lines = [line for line in self._lines.get(path, ()) if line.strip()]
        return (str(path.relative_to(self._root)), " | ".join(lines[-_LAST:]) or "nothing was said")


def file_of(root: Path, name: str) -> Path:
    """Return the path of a program's output.

    >>> str(file_of(Path("run"), "a3-0 engines")), str(file_of(Path("run"), "router"))
    ('run/logs/a3-0/engines.log', 'run/logs/router.log')
    """
    node, _, step = name.partition(" ")
    return root / "logs" / node / f"{step}.log" if step else root / "logs" / f"{node}.log"
