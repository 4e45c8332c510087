"""Track the containers that run on a node, and their names.

A container ends with its process, so that nothing has to be cleaned up.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kimi_nb.rehearse.host_programs.docker_options import daemon
from kimi_nb.rehearse.stand_in_call import Call


@dataclass(frozen=True)
class Container:
    """A container.

    Attributes:
        pid: Its process.
        began: When the process started; it tells apart processes with the same id.
        folder: This machine's path for its working directory, in which ``docker exec`` begins too.
        mounts: The paths inside at which folders of the node are.
        command: The command line that it runs.
        limits: What stands for its limits in the environment of its programs.
    """

    id: str
    name: str
    image: str
    pid: int
    began: str
    folder: str
    mounts: tuple[str, ...] = ()
    command: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the container, or its short id if it has none."""
        return self.name or self.id[:12]

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return bool(self.began) and _began(self.pid) == self.began

    def of(self, pid: int, argv: Sequence[str]) -> Container:
        """Return the same container with the process that runs in it."""
        return replace(self, pid=pid, began=_began(pid), command=" ".join(argv))

    def text(self) -> str:
        """Return the container as JSON, for its file."""
        return json.dumps(asdict(self))


def _began(pid: int) -> str:
    """Return when a process started, in ticks of the kernel's clock; "" if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def caller(call: Call) -> int:
    """Return the process that called the stand-in, at the other end of its channel."""
    if call.channel is None:
        return os.getpid()
    size = struct.calcsize("3i")
    return struct.unpack(
        "3i", call.channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )[0]


def _file(call: Call, label: str) -> Path:
    return call.state("containers", f"{label}.json")


def hold(call: Call, container: Container) -> None:
    """Take a container's name on this node.

    Raises:
        Refused: A running container has the name.
    """
    with _file(call, container.label).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two that start at once, one waits
        file.seek(0)
        other = _read(file.read())
        if other is not None and other.alive:
            raise daemon(
                f'Conflict. The container name "/{container.name}" is already in use '
                f'by container "{other.id}". You have to remove (or rename) that '
                "container to be able to reuse that name."
            )
        file.truncate(0)
        file.write(container.text())


def keep(call: Call, container: Container) -> None:
    """Record the process of a container whose name is taken."""
    _file(call, container.label).write_text(container.text())


def _read(text: str) -> Container | None:
    try:
        return Container(**json.loads(text))
    except (ValueError, TypeError):
        return None


def running(call: Call) -> Iterator[Container]:
    """Yield the containers that run on this node."""
    for path in sorted(_file(call, "none").parent.glob("*.json")):
        one = _read(path.read_text())
        if one is not None and one.alive:
            yield one


def find(call: Call, name: str) -> Container | None:
    """Return the running container with this name, or with an id that begins like this, or None."""
    return next(
        (one for one in running(call) if one.name == name or one.id.startswith(name or "-")), None
    )
