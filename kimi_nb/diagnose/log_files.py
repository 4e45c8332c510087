"""The logs of a deployment as they grow, on this machine's disk."""

from __future__ import annotations

from pathlib import Path

from kimi_nb.core.tail import Tails
from kimi_nb.diagnose.first_failure import Log
from kimi_nb.plan.spec import Plan

_LAST = 3  # lines that show how a program ended


class Logs:
    """Every log file below a folder, read where the last look ended: logs/PROGRAM.log,
    logs/NODE/PROGRAM.log, and rank_N.log of a node there or in its bundle."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self._root = root
        self._nodes = [engine.node for engine in plan.engines]
        self._door = plan.router.node if plan.router else None
        self._tails = Tails()

    @property
    def progress(self) -> int:
        """How many lines said something new."""
        return self._tails.progress

    @property
    def _lines(self) -> dict[Path, list[str]]:
        return self._tails.lines

    def read(self) -> None:
        """Take in what is new."""
        self._tails.read(
            [
                *self._root.glob("logs/*.log"),
                *self._root.glob("logs/*/*.log"),
                *self._root.glob("bundle/*/logs/rank_*.log"),
            ]
        )

    def all(self) -> list[Log]:
        """What was read, by node and rank, in a fixed order."""
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
        if node == "logs":  # a bundle's: NODE/logs/rank_N.log
            node = path.parent.parent.name
        rank = path.stem.removeprefix("rank_")
        return (node if node in self._nodes else None), int(rank) if rank.isdecimal() else None

    def last(self, node: str, rank: int) -> tuple[str, str]:
        """(file, last line) of a rank, or of its node where it has no log of its own."""
        logs = [
            log
            for log in self.all()
            if log.node == node
            and log.lines
            and (log.rank == rank or log.file.endswith("/engines.log"))
        ]
        # The launcher's own words, where there are both, are about other ranks too.
        logs.sort(key=lambda log: log.rank is None)
        return (logs[0].file, logs[0].lines[-1]) if logs else ("", "no log")

    def last_of(self, name: str) -> tuple[str, str]:
        """(file, last lines) of a program by its name."""
        path = file_of(self._root, name)
        lines = [line for line in self._lines.get(path, ()) if line.strip()]
        return (str(path.relative_to(self._root)), " | ".join(lines[-_LAST:]) or "nothing was said")


def file_of(root: Path, name: str) -> Path:
    """Where a program's output goes: "a3-0 engines" into the folder of its node."""
    node, _, step = name.partition(" ")
    return root / "logs" / node / f"{step}.log" if step else root / "logs" / f"{node}.log"
