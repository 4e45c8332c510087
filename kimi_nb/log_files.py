"""The logs of a deployment as they grow, on this machine's disk."""

from __future__ import annotations

import re
from pathlib import Path

from kimi_nb.diagnosis import Log
from kimi_nb.plan import Plan

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LAST = 3  # lines that show how a program ended
_WAITING = "Waiting for "  # said again and again: no progress


class Logs:
    """Every log file below a folder, read where the last look ended: logs/PROGRAM.log,
    logs/NODE/PROGRAM.log, and rank_N.log of a node there or in its bundle."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self._root = root
        self._nodes = [engine.node for engine in plan.engines]
        self._lines: dict[Path, list[str]] = {}
        self._at: dict[Path, int] = {}
        self._waits: dict[Path, str] = {}
        self.progress = 0

    def read(self) -> None:
        """Take in what is new. Only whole lines: the rest is read when it is there."""
        for path in [*self._root.glob("logs/*.log"), *self._root.glob("logs/*/*.log"),
                     *self._root.glob("bundle/*/logs/rank_*.log")]:
            try:
                with path.open("rb") as file:
                    file.seek(self._at.get(path, 0))
                    data = file.read()
            except OSError:
                continue
            whole = data[:data.rfind(b"\n") + 1]
            self._at[path] = self._at.get(path, 0) + len(whole)
            lines = _COLOURS.sub("", whole.decode("utf-8", "replace")).splitlines()
            self._lines.setdefault(path, []).extend(lines)
            for line in lines:
                waits = line.partition(_WAITING)[2]
                # Who waits for the same as before has not moved.
                self.progress += not waits or waits != self._waits.get(path)
                self._waits[path] = waits

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
        if node == "logs":  # a bundle's: NODE/logs/rank_N.log
            node = path.parent.parent.name
        rank = path.stem.removeprefix("rank_")
        return (node if node in self._nodes else None), int(rank) if rank.isdecimal() else None

    def last(self, node: str, rank: int) -> tuple[str, str]:
        """(file, last line) of a rank, or of its node where it has no log of its own."""
        logs = [log for log in self.all() if log.node == node and log.lines and (
            log.rank == rank or log.file.endswith("/engines.log"))]
        # The launcher's own words, where there are both, are about other ranks too.
        logs.sort(key=lambda log: log.rank is None)
        return (logs[0].file, logs[0].lines[-1]) if logs else ("", "no log")

    def last_of(self, name: str) -> tuple[str, str]:
        """(file, last lines) of a program by its name."""
        path = file_of(self._root, name)
        lines = [line for line in self._lines.get(path, ()) if line.strip()]
        return (str(path.relative_to(self._root)),
                " | ".join(lines[-_LAST:]) or "nothing was said")


def file_of(root: Path, name: str) -> Path:
    """Where a program's output goes: "a3-0 engines" into the folder of its node."""
    node, _, step = name.partition(" ")
    return root / "logs" / node / f"{step}.log" if step else root / "logs" / f"{node}.log"
