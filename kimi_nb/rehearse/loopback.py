"""Addresses of this machine for the nodes of a rehearsal: a block of 127.0.0.0/8 for each.

block = loopback.claim()
block.address(0)             # 127.77.0.1, or 127.78.0.1 while another rehearsal goes on
"""

from __future__ import annotations

import errno
import shutil
import socket
import sys
from dataclasses import dataclass

from kimi_nb.core.errors import KimiError, PlanError

_BLOCKS = (*range(77, 255), *range(2, 77))  # second bytes, in the order in which they are tried
_GUARD = 47077  # the port at a block's last address that says it is taken
_NODES = 250 * 250


class RehearsalError(KimiError):
    """A rehearsal that cannot take place on this machine."""


@dataclass(frozen=True)
class Block:
    """The addresses 127.N.0.1 and on. ``guard`` is the socket that claims them: the block is free
    when every process that holds it has ended."""

    second: int
    guard: socket.socket

    def address(self, index: int) -> str:
        """The address of the node at a place of the site. Raises PlanError past the last one."""
        if index >= _NODES:
            raise PlanError(f"A rehearsal has addresses for {_NODES} nodes.")
        return f"127.{self.second}.{index // 250}.{index % 250 + 1}"


def claim() -> Block:
    """A block that nobody uses. Raises RehearsalError where this machine has none: at once, and
    before anything is made."""
    if not sys.platform.startswith("linux"):
        raise RehearsalError(
            f"A rehearsal needs Linux (/proc, process groups, 127.0.0.2); this "
            f"is {sys.platform}. Use a Linux machine, container or virtual "
            "machine; plans and checks work here."
        )
    if shutil.which("bash") is None:
        raise RehearsalError("A rehearsal runs bash scripts, and there is no bash on PATH.")
    for second in _BLOCKS:
        guard = socket.socket()
        try:
            guard.bind((f"127.{second}.255.254", _GUARD))
            # Bound alone would not do: two sockets may be bound to a port where none listens.
            guard.listen(1)
        except OSError as error:
            guard.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise RehearsalError(
                f"A rehearsal gives each node an address of its own, such as 127.{second}.0.1; "
                f"this machine has only 127.0.0.1 ({error.strerror}), as macOS does. Use a Linux "
                "machine, container or virtual machine; plans and checks work here."
            ) from None
        return Block(second, guard)
    raise RehearsalError(f"{len(_BLOCKS)} rehearsals are going on here: wait until one ends.")
