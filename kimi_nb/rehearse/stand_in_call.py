"""Define the call of a stand-in, and the two exceptions with which it can end early."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.check.view.engine_view import LOOPBACK
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.simulated_site import NODE, SimulatedSite


class Refused(Exception):
    """The real program would refuse this: the text for stderr and the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        self.code = code
        super().__init__(text)


class Replace(Exception):
    """The stand-in becomes another program: its arguments and environment.

    ``folder`` is the program's working directory; "" is that of the caller.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: str = "") -> None:
        self.argv, self.env, self.folder = tuple(argv), dict(env), folder
        super().__init__(*argv)


@dataclass(frozen=True)
class Call:
    """One call of a stand-in.

    Attributes:
        tool: The name under which it was called.
        words: Its arguments.
        env: Its environment.
        folder: The working directory of the caller.
        root: The folder of the rehearsal.
        site: What the rehearsal simulates.
        channel: The socket that closes when the caller is gone; None outside a spawner.
    """

    tool: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    root: Path
    site: SimulatedSite
    channel: socket.socket | None = None

    @property
    def node(self) -> str:
        """The node on which the stand-in is called."""
        return self.env.get(NODE, "")

    @property
    def address(self) -> str:
        """The address of that node."""
        return self.site.nodes.get(self.node, "127.0.0.1")

    def at(self, host: str) -> str:
        """Return this machine's address for a host that a program of the node names.

        A loopback address is the node's own: no program of another node is there.
        """
        return loopback.own(self.address) if host in LOOPBACK else host

    def state(self, *parts: str) -> Path:
        """Return the path of a file with simulated state of this node, and create its folder."""
        path = self.root.joinpath("nodes", self.node or "none", *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def say(self, text: str) -> None:
        """Print a line on stderr, marked as coming from a rehearsal."""
        print(f"{MARK} {self.tool}: {text}", file=sys.stderr)

    def real(self) -> str | None:
        """Return the real program of this name, found on PATH behind the stand-ins, or None."""
        path = [
            part
            for part in self.env.get("PATH", "").split(":")
            if part and not Path(part).resolve().is_relative_to(self.root.resolve())
        ]
        return shutil.which(self.tool, path=":".join(path))
