"""What a stand-in of a rehearsal is called with, and the two ways in which it may end early."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.rehearse.simulated_site import MARK, NODE, World


class Refused(Exception):
    """What the real program would refuse: the text for stderr, the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        self.code = code
        super().__init__(text)


class Replace(Exception):
    """To become another program: its words and variables."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.argv, self.env = tuple(argv), dict(env)
        super().__init__(*argv)


@dataclass(frozen=True)
class Call:
    """One call of a stand-in. ``folder`` is where it was called, ``root`` the rehearsal's own
    folder; ``channel`` says when the caller is gone (None outside a rehearsal's spawner)."""

    tool: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    root: Path
    world: World
    channel: socket.socket | None = None

    @property
    def node(self) -> str:
        """The node on which it is called."""
        return self.env.get(NODE, "")

    @property
    def address(self) -> str:
        """The address of that node."""
        return self.world.nodes.get(self.node, "127.0.0.1")

    def state(self, *parts: str) -> Path:
        """A file of this node's pretended state; its folder is there."""
        path = self.root.joinpath("nodes", self.node or "none", *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def say(self, text: str) -> None:
        """A line on stderr that says it is a rehearsal's."""
        print(f"{MARK} {self.tool}: {text}", file=sys.stderr)

    def real(self) -> str | None:
        """The program of this name behind the stand-ins on PATH; None where there is none."""
        path = [
            part
            for part in self.env.get("PATH", "").split(":")
            if part and Path(part).resolve() != (self.root / "bin").resolve()
        ]
        return shutil.which(self.tool, path=":".join(path))
