"""What a node sends over SSH has a bound, also where it prints without an end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from paramiko.channel import ChannelFile, ChannelStderrFile

from kimi_nb.deploy.ssh import channel_bounds


class Channel:
    """A channel that receives some pieces, until its connection is ended."""

    def __init__(self, connection: Connection, pieces: Iterator[bytes]) -> None:
        self._connection, self._pieces = connection, pieces

    def recv(self, nbytes: int) -> bytes:
        assert nbytes > 0
        return b"" if self._connection.ended else next(self._pieces, b"")

    recv_stderr = recv


class Connection:
    """A connection that opens such channels, as `paramiko.Transport` has them."""

    ended = False

    def open_channel(self, pieces: Iterator[bytes], window_size: int = 0) -> Channel:
        self.window_size = window_size
        return Channel(self, pieces)

    def close(self) -> None:
        self.ended = True


def held(largest: int, lines: int) -> tuple[Connection, list[str]]:
    """A connection with bounds, and what was told."""
    connection, told = Connection(), []
    channel_bounds.hold(connection, lambda: told.append("flooded"), largest, lines)
    return connection, told


@pytest.mark.parametrize("reader", [ChannelFile, ChannelStderrFile])
@pytest.mark.parametrize("piece", [b"x" * 100, b"\n" * 100])
def test_what_prints_without_an_end_is_ended(reader, piece):
    connection, told = held(10_000, 500)
    channel = connection.open_channel(itertools.repeat(piece))
    read = reader(channel, "rb").read()
    assert len(read) == (10_000 if piece[:1] == b"x" else 500)
    assert told == ["flooded"] and connection.ended


def test_a_channel_is_opened_as_the_caller_says():
    connection, _ = held(10, 500)
    assert connection.open_channel(iter([b"a"]), window_size=7).recv(1) == b"a"
    assert connection.window_size == 7


def test_both_streams_of_an_answer_count_together():
    connection, told = held(10, 500)
    one = connection.open_channel(itertools.repeat(b"x"))
    assert [one.recv(1) for _ in range(6)] + [one.recv_stderr(1) for _ in range(4)] == [b"x"] * 10
    assert not told and one.recv(1) == b"" and told


def test_each_answer_is_counted_by_itself():
    connection, told = held(4, 2)
    for _ in range(3):
        channel = connection.open_channel(iter([b"a\n", b"b\n"]))
        assert ChannelFile(channel, "rb").readlines() == [b"a\n", b"b\n"]
    assert not told


def test_the_longest_answer_of_a_good_node_is_within_the_bounds():
    """512 logs, each with a piece of 256 KB in base64."""
    assert channel_bounds.LARGEST * 0.75 > 512 * (256 << 10) * 4 // 3
