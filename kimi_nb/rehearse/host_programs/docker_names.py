"""The containers that run on a node, and who holds which name.

A container ends when its process ends: nothing has to be cleared away behind it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kimi_nb.rehearse.host_programs.docker_options import daemon
from kimi_nb.rehearse.stand_in_call import Call


@dataclass(frozen=True)
class Container:
    """One container: ``pid`` is its process, ``began`` when that began (a number that is used
    again belongs to another process)."""

    id: str
    name: str
    image: str
    pid: int
    began: str
    command: str = ""

    @property
    def label(self) -> str:
        """Its name; the short id of one without."""
        return self.name or self.id[:12]

    @property
    def alive(self) -> bool:
        """Whether its process is still there."""
        return bool(self.began) and _began(self.pid) == self.began

    def of(self, pid: int, argv: Sequence[str]) -> Container:
        """The same container with the process that runs in it."""
        return Container(self.id, self.name, self.image, pid, _began(pid), " ".join(argv))

    def text(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self))


def _began(pid: int) -> str:
    """When a process began, in the kernel's clock; "" for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def caller(call: Call) -> int:
    """The process that called the stand-in: at the other end of its channel."""
    if call.channel is None:
        return os.getpid()
    size = struct.calcsize("3i")
    return struct.unpack(
        "3i", call.channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )[0]


def _file(call: Call, label: str) -> Path:
    return call.state("containers", f"{label}.json")


def hold(call: Call, container: Container) -> None:
    """Take a container's name on this node; Refused while another one has it."""
    with _file(call, container.label).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two that start at once: one of them waits
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
    """Write down the process of a container whose name is held."""
    _file(call, container.label).write_text(container.text())


def _read(text: str) -> Container | None:
    try:
        return Container(**json.loads(text))
    except (ValueError, TypeError):
        return None


def running(call: Call) -> Iterator[Container]:
    """The containers of this node that run."""
    for path in sorted(_file(call, "none").parent.glob("*.json")):
        one = _read(path.read_text())
        if one is not None and one.alive:
            yield one


def find(call: Call, name: str) -> Container | None:
    """The container that runs under a name, or an id that begins so."""
    return next(
        (one for one in running(call) if one.name == name or one.id.startswith(name or "-")), None
    )
