"""A server on 127.0.0.1 that answers as no service should: it drips, floods, lies and sends away.

with HostileServer(drips) as server: server.url, server.asked

A manner is a function that gets a connection, whose request has been read, and writes to it.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import socket
import threading
import time
from collections.abc import Callable

Manner = Callable[[socket.socket], None]
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
PAUSE = 0.1  # seconds between two bytes of what drips


class HostileServer:
    """See the module; ``asked`` are the requests that came, whole."""

    def __init__(self, manner: Manner, host: str = "127.0.0.1") -> None:
        self.manner, self.asked = manner, []
        self._socket = socket.create_server((host, 0))
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"

    def __enter__(self) -> HostileServer:
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(one)
            self._start(self._answer, one)

    def _answer(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            self.asked.append(_request(one))
            self.manner(one)


def _request(one: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got and (piece := one.recv(65536)):
        got += piece
        if got.startswith(b"\x16"):
            return got  # TLS
    head, _, body = got.partition(b"\r\n\r\n")
    sizes = [
        int(line[15:])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < sum(sizes) and (piece := one.recv(65536)):
        body += piece
    return head + b"\r\n\r\n" + body


def _drip(one: socket.socket, data: bytes = b"x") -> None:
    for at in itertools.count():
        one.sendall(data[at % len(data) :][:1])
        time.sleep(PAUSE)


def _pour(one: socket.socket, data: bytes) -> None:
    while True:
        one.sendall(data)


def drips_head(one: socket.socket) -> None:
    """The head of the answer, a byte at a time, without an end."""
    one.sendall(b"HTTP/1.1 200 OK\r\nX-Name: ")
    _drip(one)


def drips_body(one: socket.socket) -> None:
    """A body without a length, a byte at a time."""
    one.sendall(HEAD + b"\r\n")
    _drip(one, b" ")


def drips_chunks(one: socket.socket) -> None:
    """Chunks of one byte."""
    one.sendall(CHUNKED)
    while True:
        one.sendall(b"1\r\n \r\n")
        time.sleep(PAUSE)


def drips_size(one: socket.socket) -> None:
    """The size of a chunk, a digit at a time."""
    one.sendall(CHUNKED)
    _drip(one, b"0")


def drips_trailer(one: socket.socket) -> None:
    """What comes after the last chunk, a byte at a time."""
    one.sendall(CHUNKED + b"2\r\n{}\r\n0\r\n")
    _drip(one, b"X-More: y\r\n")


def says_nothing(one: socket.socket) -> None:
    """A connection, and no byte."""
    one.recv(1)


def falls_silent(one: socket.socket) -> None:
    """The beginning of a stream, and nothing more."""
    one.sendall(CHUNKED + b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
    one.recv(1)


def floods_body(one: socket.socket) -> None:
    """A body that never ends."""
    one.sendall(HEAD + b"\r\n")
    _pour(one, b" " * 65536)


def floods_length(one: socket.socket) -> None:
    """6.5 GB, and says so."""
    one.sendall(HEAD + b"Content-Length: 6500000000\r\n\r\n")
    _pour(one, b" " * 65536)


def floods_headers(one: socket.socket) -> None:
    """Headers without an end."""
    one.sendall(HEAD)
    _pour(one, b"X-Header: value\r\n" * 100)


def floods_line(one: socket.socket) -> None:
    """One header that is longer than any."""
    one.sendall(HEAD + b"X-Header: ")
    _pour(one, b"x" * 65536)


def floods_continue(one: socket.socket) -> None:
    """One answer after the other that says to go on."""
    _pour(one, b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


def floods_stream(one: socket.socket) -> None:
    """Events without an end."""
    one.sendall(CHUNKED)
    _pour(one, b"%x\r\n%b\r\n" % (len(EVENT) * 999, EVENT * 999))


def floods_chunk(one: socket.socket) -> None:
    """A chunk that is said to be larger than all memory."""
    one.sendall(CHUNKED + b"f" * 15 + b"\r\n")
    _pour(one, b" " * 65536)


def floods_trailer(one: socket.socket) -> None:
    """Lines without an end after the last chunk."""
    one.sendall(CHUNKED + b"2\r\n{}\r\n0\r\n")
    _pour(one, b"X-More: y\r\n" * 1000)


def bomb(one: socket.socket) -> None:
    """A few kilobytes that unpack to 64 MB."""
    data = _packed_spaces()
    one.sendall(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(data) + data)


@functools.cache
def _packed_spaces() -> bytes:
    return gzip.compress(b" " * (64 << 20))


def packed(one: socket.socket) -> None:
    """An answer that is packed although nobody asked for that, and good."""
    data = gzip.compress(b'{"data": []}')
    one.sendall(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(data) + data)


def packed_badly(one: socket.socket) -> None:
    """What says it is packed and is not."""
    one.sendall(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope")


def packed_strangely(one: socket.socket) -> None:
    """A form of packing that nobody asked for."""
    one.sendall(HEAD + b"Content-Encoding: br\r\nContent-Length: 4\r\n\r\nnope")


def chunk_sizes_lie(one: socket.socket) -> None:
    """A chunk that is shorter than it says."""
    one.sendall(CHUNKED + b"ffff\r\n{}")


def chunk_sizes_are_none(one: socket.socket) -> None:
    """A size that is no number."""
    one.sendall(CHUNKED + b"many\r\n{}\r\n0\r\n\r\n")


def chunk_sizes_are_negative(one: socket.socket) -> None:
    """A size below 0."""
    one.sendall(CHUNKED + b"-5\r\n{}\r\n0\r\n\r\n")


def length_lies(one: socket.socket) -> None:
    """A body that is shorter than it says."""
    one.sendall(HEAD + b"Content-Length: 999\r\n\r\n{}")


def is_no_http(one: socket.socket) -> None:
    """The greeting of another protocol."""
    one.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def hangs_up(one: socket.socket) -> None:
    """The end of the connection, and no byte."""


def well(one: socket.socket) -> None:
    """A good answer."""
    one.sendall(HEAD + b'Content-Length: 12\r\n\r\n{"data": []}')


def redirects(to: str, status: int = 302) -> Manner:
    """Sends the client to another address."""

    def manner(one: socket.socket) -> None:
        one.sendall(
            b"HTTP/1.1 %d Found\r\nLocation: %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            % (status, to.encode())
        )

    return manner
