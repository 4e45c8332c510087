"""Bound what a node may send in one answer over SSH: one that prints without an end is no answer.

    channel_bounds.hold(connector.client.get_transport(), lambda: flooded.add(host.name))

paramiko and pyinfra read until the other side ends, and keep all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LARGEST = 256 << 20  # bytes of an answer: 512 logs with a piece each are some 180 MB
LINES = 100_000  # a good answer has a line for each engine, log and setting


def hold(
    connection: Any, told: Callable[[], object], largest: int = LARGEST, lines: int = LINES
) -> None:
    """End a connection, a `paramiko.Transport`, once one of its channels is beyond the bounds.

    ``told`` is called before that. It holds for the channels that are opened from now on.
    """
    opens = connection.open_channel

    def end() -> None:
        told()
        connection.close()  # a channel alone would wait for the other side

    def opened(*given: Any, **more: Any) -> Any:
        channel = opens(*given, **more)
        _bound(channel, end, largest, lines)
        return channel

    connection.open_channel = opened


def _bound(channel: Any, end: Callable[[], None], largest: int, lines: int) -> None:
    """Count what both streams of a channel receive together."""
    size = ends = 0

    def held(receive: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def recv(nbytes: int) -> bytes:
            nonlocal size, ends
            data = receive(nbytes)
            size, ends = size + len(data), ends + data.count(b"\n")
            if size <= largest and ends <= lines:
                return data
            end()
            return b""

        return recv

    channel.recv, channel.recv_stderr = held(channel.recv), held(channel.recv_stderr)
