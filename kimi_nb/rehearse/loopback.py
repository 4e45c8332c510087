"""Give the nodes of a rehearsal addresses on this machine: one block of 127.0.0.0/8 for each.

    block = loopback.claim()
    block.address(0)             # 127.77.0.1, or 127.78.0.1 while another rehearsal is running
    loopback.own("127.77.0.1")   # 127.77.125.1: what 127.0.0.1 is for a program of that node

A block stays claimed until the last process that holds its guard has ended. The nodes share the
loopback interface of this machine, so that 127.0.0.1 would be one place for all of them; each
stand-in takes the address of `own` in its stead, and nodes with default addresses do not meet.
"""

from __future__ import annotations

import errno
import shutil
import socket
import sys
from dataclasses import dataclass

from kimi_nb.core.errors import KimiError, PlanError

_BLOCKS = (*range(77, 255), *range(2, 77))  # second bytes, in the order of trying them
_GUARD = 47077  # a listener on this port of a block's last address marks the block as taken
_OWN = 125  # added to the third byte of a node's address, for the node's own loopback address
_NODES = _OWN * 250


class RehearsalError(KimiError):
    """A rehearsal is not possible on this machine."""


@dataclass(frozen=True)
class Addresses:
    """The addresses from 127.N.0.1 on; ``second`` is N, the second byte."""

    second: int

    def address(self, index: int) -> str:
        """Return the address of the node with this index in the site.

        Raises:
            PlanError: The block has no more addresses.
        """
        if index >= _NODES:
            raise PlanError(f"A rehearsal has addresses for {_NODES} nodes.")
        return f"127.{self.second}.{index // 250}.{index % 250 + 1}"


@dataclass(frozen=True)
class Block(Addresses):
    """Addresses that are claimed.

    The block becomes free when every process that holds the socket ``guard`` has ended.
    """

    guard: socket.socket

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *raised: object) -> None:
        self.guard.close()


def own(address: str) -> str:
    """Return what 127.0.0.1 is on the node with this address: an address that no other node has.

    A node that is a host or a network namespace has a loopback interface already.

    >>> own("127.77.0.1"), own("10.77.0.1")
    ('127.77.125.1', '127.0.0.1')
    """
    first, second, third, fourth = ([*address.split("."), "", "", ""])[:4]
    if first != "127" or second == "0" or is_own(address):
        return "127.0.0.1"
    return f"127.{second}.{int(third) + _OWN}.{fourth}"


def is_own(address: str) -> bool:
    """Return whether this is the loopback address of one node of a rehearsal.

    >>> is_own("127.77.125.1"), is_own("127.77.0.1")
    (True, False)
    """
    parts = address.split(".")
    return (
        len(parts) == 4
        and parts[0] == "127"
        and parts[1] != "0"
        and parts[2].isdecimal()
        and _OWN <= int(parts[2]) < 2 * _OWN
    )


def shown(address: str) -> str:
    """Return an address as the program sees it.

    >>> shown("127.77.125.1"), shown("127.77.0.1")
    ('127.0.0.1', '127.77.0.1')
    """
    return "127.0.0.1" if is_own(address) else address


def claim() -> Block:
    """Claim a block of addresses that no other rehearsal uses, before anything is written.

    Raises:
        RehearsalError: This machine cannot run a rehearsal, or all blocks are in use.
    """
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
            # Binding is not enough: two sockets can be bound to one port while neither listens.
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
    raise RehearsalError(
        f"{len(_BLOCKS)} rehearsals are going on here, or another program listens at port {_GUARD} of "
        f"all addresses (ss -Hltnp sport = :{_GUARD} names it): wait until one ends, or stop it."
    )
