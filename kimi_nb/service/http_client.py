"""Send HTTP requests to strangers: within deadlines, in bounded memory, and nowhere else.

Example::

    reply = http_client.send("GET", "http://192.0.2.11:8000/v1/models", Limits(30.0))
    reply.good, reply.fault, reply.error  # False, Fault.DRIPS, "drips: 61 bytes in 30 s"

A service may never end its answer, or answer with more than the memory holds. Whatever it does, a
request ends within `Limits`, and what was wrong is named by a `Fault`. Redirects are not followed,
proxies of the environment are not used, and every request has a connection of its own.
"""

from __future__ import annotations

import enum
import functools
import http.client
import io
import json as jsons
import re
import socket
import ssl
import textwrap
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

import socks

from kimi_nb.core.errors import ParameterError, short
from kimi_nb.service import reply_mark

HEAD = 64 << 10  # bytes of the status line and the headers
SIZE = 64 << 20  # bytes of a body: some 200,000 streamed tokens
CONNECT = 30.0  # seconds
IDLE = 120.0  # seconds: an engine under load pauses a stream for seconds, not for minutes
_PIECE = 64 << 10
_SAID = 400  # characters of what is wrong
_FRAMES = 4  # a chunk of one byte takes six on the wire; an event of a stream takes more
SLOW = 100  # bytes a second: what comes slower drips, as no engine does
_LONGEST_HOST = 253  # characters, as DNS has it
NO_TLS = "no TLS is spoken there"
_PLAIN = re.compile(r"WRONG_VERSION_NUMBER|record layer failure")  # how OpenSSL says so
# The local port of the SOCKS5 proxy to the nodes; None where they are reached directly. A process
# watches one deployment at a time.
_way: int | None = None


def go_through(port: int | None) -> None:
    """Reach the nodes through a SOCKS5 proxy at 127.0.0.1 (`ssh -D`), or directly with None."""
    global _way
    _way = port


class Fault(enum.StrEnum):
    """Why there is no whole answer."""

    NONE = ""
    UNREACHABLE = "unreachable"  # no connection
    NO_TLS = "no-tls"  # https:// to a port that speaks http://
    UNTRUSTED = "untrusted"  # a certificate of an authority that this machine does not know
    LATE = "late"  # nothing came, or not all of it
    DRIPS = "drips"  # bytes come, slower than any engine writes
    FLOODS = "floods"  # more comes than is read
    ELSEWHERE = "elsewhere"  # a redirect
    CUT_OFF = "cut-off"  # the connection ended within the answer
    NO_HTTP = "no-http"  # what came is no answer of HTTP


# What no engine does that is starting, computing or gone.
PLAIN = (Fault.DRIPS, Fault.FLOODS, Fault.ELSEWHERE, Fault.NO_HTTP)


@dataclass(frozen=True)
class Limits:
    """The limits of one request.

    Attributes:
        total: Seconds from the request to the last byte of the answer.
        connect: Seconds until a connection is there.
        idle: Seconds between two pieces of the body, from the first on.
        size: Bytes of the body, also when it is unpacked.
    """

    total: float
    connect: float = CONNECT
    idle: float = IDLE
    size: int = SIZE


@dataclass(frozen=True)
class Reply:
    """An HTTP answer.

    Attributes:
        status: The status; 0 where no answer came, and where one was asked for as a whole and
            is not whole.
        error: What is wrong with the answer, in words; ``fault`` is its kind.
        mark: REHEARSAL in the answer of a stand-in, also where a gateway has dropped the header.
        kind: The Content-Type.
        sized: Whether there is a Content-Length.
        arrivals: For each piece of a stream, the seconds from the request to its arrival; () where
            the length of the whole was announced.
    """

    status: int
    text: str
    seconds: float
    error: str = ""
    mark: str = ""
    kind: str = ""
    sized: bool = False
    arrivals: tuple[float, ...] = ()
    fault: Fault = Fault.NONE

    @property
    def good(self) -> bool:
        """Whether this is a whole answer with status 200."""
        return self.status == 200 and not self.fault

    @property
    def body(self) -> Mapping[str, Any]:
        """The JSON object; empty where the answer is none."""
        try:
            value = jsons.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> Mapping[str, Any]:
        """The message of the first choice; empty where there is none."""
        choices = self.body.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else {}
        found = first.get("message") if isinstance(first, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def content(self) -> str:
        """The content of the message, without reasoning."""
        return str(self.message.get("content") or "")

    @property
    def thoughts(self) -> str:
        """The reasoning, under either of the names that vLLM versions give it."""
        return str(self.message.get("reasoning") or self.message.get("reasoning_content") or "")

    @property
    def answered(self) -> bool:
        """Whether this is a completion: status 200 with content, reasoning or tool calls."""
        return self.good and bool(self.content or self.thoughts or self.message.get("tool_calls"))


class _Wrong(Exception):
    """What ends a request early."""

    def __init__(self, fault: Fault, words: str) -> None:
        self.fault, self.words = fault, words
        super().__init__(words)


class _Wire(io.RawIOBase):
    """A connection whose reads and writes end with the limits of its request."""

    def __init__(self, wire: socket.socket, limits: Limits, begun: float) -> None:
        self._wire, self._limits, self._begun = wire, limits, begun
        self._end = begun + limits.total
        self._most = HEAD
        self._idle = False
        self._first = self._last = begun
        self._head = 0  # bytes
        self.came = 0  # bytes

    def expect_body(self) -> None:
        """Read as much as a body may have, with the framing of its chunks, and no long silence."""
        self._most, self._idle = HEAD + _FRAMES * self._limits.size, True
        self._first, self._head = time.monotonic(), self.came

    def readable(self) -> bool:
        """Return True: `io.BufferedReader` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there, or wait for it."""
        left = self._end - time.monotonic()
        # A head may take as long as the engine computes.
        wait = min(left, self._limits.idle) if self._idle else left
        if left <= 0:
            raise self._late()
        self._wire.settimeout(wait)
        try:
            got = self._wire.recv_into(buffer)
        except TimeoutError:
            if wait < left:
                raise _Wrong(
                    Fault.LATE,
                    f"no end: nothing came for {wait:g} s after {self.came:,} bytes",
                ) from None
            raise self._late() from None
        now = time.monotonic()
        self._first, self._last = (self._first if self.came else now), now
        self.came += got
        if self.came > self._most:
            what = "its body" if self._idle else "its head"
            raise _Wrong(
                Fault.FLOODS,
                f"floods: {what} has no end after {self.came:,} bytes, "
                f"{now - self._begun:.1f} s from the request",
            )
        return got

    def _late(self) -> _Wrong:
        total = self._limits.total
        if not self.came:
            return _Wrong(Fault.LATE, f"no answer in {total:g} s")
        now = time.monotonic()
        lasted = max(now - self._first, 1e-3)
        if now - self._last < lasted / 2 and (self.came - self._head) / lasted < SLOW:
            return _Wrong(Fault.DRIPS, f"drips: {self.came:,} bytes in {total:g} s, and no end")
        return _Wrong(Fault.LATE, f"no end in {total:g} s: {self.came:,} bytes came")

    # What http.client asks of a socket.

    def sendall(self, data: bytes) -> None:
        """Send a part of the request."""
        rest = memoryview(data)
        while rest:
            left = self._end - time.monotonic()
            if left <= 0:
                raise _Wrong(
                    Fault.LATE, f"it does not read the request in {self._limits.total:g} s"
                )
            self._wire.settimeout(left)
            try:
                rest = rest[self._wire.send(rest[: 1 << 20]) :]
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                return  # it may have answered before it has read all

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the reader of the answer."""
        return io.BufferedReader(self, _PIECE)


@dataclass
class _Answer:
    """The beginning of an answer, whose body is still to be read."""

    response: http.client.HTTPResponse
    wire: _Wire
    limits: Limits

    def head(self, begun: float) -> Reply:
        """Return what the head says."""
        headers = self.response.headers
        return Reply(
            self.response.status,
            "",
            time.monotonic() - begun,
            mark=reply_mark.of(headers.get(reply_mark.HEADER, "")),
            kind=headers.get("content-type", ""),
            sized="content-length" in headers,
        )

    def check(self) -> None:
        """Raise _Wrong for an answer whose body is not read."""
        response = self.response
        to = response.headers.get("location")
        if response.status in (301, 302, 303, 307, 308) and to is not None:
            shown = textwrap.shorten(_printable(to.partition("?")[0]), 200, placeholder="...")
            raise _Wrong(Fault.ELSEWHERE, f"it sends to {shown}, where nobody asked to go")
        if (response.length or 0) > self.limits.size:
            raise _Wrong(
                Fault.FLOODS,
                f"floods: it announces {response.length:,} bytes, at most "
                f"{self.limits.size:,} are read",
            )

    def read(self, take: Callable[[bytes], None]) -> None:
        """Read the body, and give each piece to ``take``."""
        self.wire.expect_body()
        unpack = _unpacker(self.response.headers.get("content-encoding", ""), self.limits.size)
        came, announced = 0, self.response.length
        while piece := self.response.read1(_PIECE):
            piece = unpack(piece)
            came += len(piece)
            if came > self.limits.size:
                raise _Wrong(
                    Fault.FLOODS,
                    f"floods: more than the {self.limits.size:,} bytes that are read "
                    f"({self.wire.came:,} came over the network)",
                )
            if piece:
                take(piece)
        if self.response.length:
            raise _Wrong(Fault.CUT_OFF, f"broke off after {came:,} of {announced:,} bytes")


def _unpacker(packing: str, size: int) -> Callable[[bytes], bytes]:
    """Return what unpacks a body, one piece after the other, and no more than ``size`` bytes."""
    packing = packing.strip().lower()
    if packing in ("", "identity"):
        return lambda piece: piece
    if packing not in ("gzip", "x-gzip", "deflate"):
        raise _Wrong(Fault.NO_HTTP, f"it is packed as {_printable(packing)[:40]!r}, unasked")
    machine = zlib.decompressobj(zlib.MAX_WBITS | 32 if "gzip" in packing else zlib.MAX_WBITS)

    def unpack(piece: bytes) -> bytes:
        try:
            return machine.decompress(piece, size + 1)
        except zlib.error as error:
            raise _Wrong(Fault.NO_HTTP, f"it cannot be unpacked: {error}") from None

    return unpack


def send(
    method: str,
    url: str,
    limits: Limits | float,
    *,
    json: Any = None,
    data: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send a request and return the whole answer; what goes wrong is returned, not raised.

    ``limits`` may be the seconds of the whole; ``json`` is sent as JSON, ``data`` as it is.

    Raises:
        ParameterError: If a header, such as a key, holds what no header can.
    """
    pieces: list[bytes] = []
    reply = _asked(method, url, limits, json, data, headers, pieces.append)
    if reply.fault and reply.fault is not Fault.ELSEWHERE:
        return replace(reply, status=0)
    return _read(reply, pieces)


def stream(
    url: str,
    limits: Limits | float,
    *,
    json: Any = None,
    data: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send a POST request and return what was streamed, also where it has no end."""
    pieces: list[bytes] = []
    arrivals: list[float] = []
    begun = time.monotonic()

    def take(piece: bytes) -> None:
        pieces.append(piece)
        arrivals.append(time.monotonic() - begun)

    reply = _asked("POST", url, limits, json, data, headers, take)
    return replace(_read(reply, pieces), arrivals=() if reply.sized else tuple(arrivals))


def _read(reply: Reply, pieces: list[bytes]) -> Reply:
    """Return a reply with its text, and marked if a stand-in wrote that."""
    # JSON is UTF-8: no guess of another encoding may hide bytes that are none.
    text = b"".join(pieces).decode("utf-8", "replace")
    return replace(reply, text=text, mark=reply.mark or reply_mark.of("", text))


def _asked(
    method: str,
    url: str,
    limits: Limits | float,
    json: Any,
    data: str | bytes | None,
    headers: Mapping[str, str] | None,
    take: Callable[[bytes], None],
) -> Reply:
    """Send a request, give the body to ``take`` and return the rest of the reply."""
    limits = limits if isinstance(limits, Limits) else Limits(limits)
    for name, value in (headers or {}).items():
        if not re.fullmatch(r"[\t\x20-\x7e\xa1-\xff]*", value):  # never shown: it may be a key
            raise ParameterError(
                f"{name}: it holds a character that no header of HTTP can; is a line end or a "
                "quotation mark in the key that was exported?"
            )
    begun = time.monotonic()
    reply, wire = Reply(0, "", 0.0), None
    try:
        connection, wire = _connected(url, limits, begun)
        try:
            answer = _answer(connection, wire, limits, method, url, json, data, headers)
            reply = answer.head(begun)
            answer.check()
            answer.read(take)
        finally:
            connection.wire.close()
        wrong = None
    except _Wrong as error:
        wrong = error
    except (http.client.HTTPException, OSError, ValueError) as error:
        wrong = _named(error, wire)
    if wrong is not None:
        reply = replace(reply, error=short(wrong.words, _SAID), fault=wrong.fault)
    return replace(reply, seconds=time.monotonic() - begun)


class _Connection(http.client.HTTPConnection):
    """Writes the request; what it would connect to is connected already."""

    def __init__(self, host: str, port: int, wire: socket.socket, guarded: _Wire) -> None:
        super().__init__(host, port)
        self.wire = wire
        self.sock = guarded

    def close(self) -> None:
        """Leave the connection to `_asked`, which closes it."""


def _answer(
    connection: _Connection,
    wire: _Wire,
    limits: Limits,
    method: str,
    url: str,
    json: Any,
    data: str | bytes | None,
    headers: Mapping[str, str] | None,
) -> _Answer:
    """Send the request, and read the head of its answer."""
    sent = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "kimi-nb"}
    if json is not None:
        data, sent["Content-Type"] = jsons.dumps(json), "application/json"
    body = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request(method, path, body, {**sent, **(headers or {})})
    return _Answer(connection.getresponse(), wire, limits)


def _address(url: str) -> tuple[SplitResult, str, int]:
    """Return the parts of a URL, its host and its port. Raises _Wrong if it is none."""
    try:
        parts = urlsplit(url)
        port = (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port
        host = parts.hostname or ""
        named = port > 0 and 0 < len(host) <= _LONGEST_HOST and not re.search(r"[\s\0]", url)
        if parts.scheme in ("http", "https") and named:
            return parts, host, port
    except ValueError:
        pass
    raise _Wrong(Fault.UNREACHABLE, f"{_printable(url)[:100]!r} is no address of a service")


def is_address(url: str) -> bool:
    """Return whether a request can be sent to a URL: http or https, a host, and a port or none."""
    try:
        _address(url)
    except _Wrong:
        return False
    return True


def _connected(url: str, limits: Limits, begun: float) -> tuple[_Connection, _Wire]:
    parts, host, port = _address(url)
    wire = _dialled(host, port, min(limits.connect, limits.total))
    if parts.scheme == "https":
        try:
            # A handshake has all of its time at once, not for each of its messages.
            wire.settimeout(max(begun + limits.total - time.monotonic(), 1e-3))
            wire = _tls().wrap_socket(wire, server_hostname=host)
        except BaseException:
            wire.close()
            raise
    guarded = _Wire(wire, limits, begun)
    return _Connection(host, port, wire, guarded), guarded


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _dialled(host: str, port: int, seconds: float) -> socket.socket:
    """Return a connection to the first address of a host that takes one. Raises _Wrong."""
    if _way is not None:
        try:
            return socks.create_connection(
                (host, port),
                seconds,  # type: ignore[arg-type] # the stubs allow int only
                proxy_type=socks.SOCKS5,
                proxy_addr="127.0.0.1",
                proxy_port=_way,
            )
        except OSError as error:
            raise _Wrong(Fault.UNREACHABLE, _words(error)) from None
        except (UnicodeError, ValueError):
            raise _no_host(host) from None
    end = time.monotonic() + seconds
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        raise _Wrong(
            Fault.UNREACHABLE, f"the name {_short(host)!r} is not known to this machine"
        ) from None
    except (UnicodeError, ValueError, OSError):
        raise _no_host(host) from None
    why = ""
    for family, kind, protocol, _, address in found:
        left = end - time.monotonic()
        if left <= 0:
            break
        wire = socket.socket(family, kind, protocol)
        try:
            wire.settimeout(left)
            wire.connect(address)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return wire
        except TimeoutError:
            wire.close()
        except OSError as error:
            why = _words(error)
            wire.close()
    raise _Wrong(Fault.UNREACHABLE, why or f"no connection in {seconds:g} s")


def _no_host(host: str) -> _Wrong:
    return _Wrong(Fault.UNREACHABLE, f"{_short(host)!r} is no name of a host")


def listens(url: str, seconds: float) -> bool:
    """Return whether something accepts TCP connections there; much cheaper than GET /health."""
    try:
        _, host, port = _address(url)
        _dialled(host, port, seconds).close()
    except _Wrong:
        return False
    return True


def _named(error: Exception, wire: _Wire | None) -> _Wrong:
    """Return what an exception of the standard library comes to."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _Wrong(Fault.UNTRUSTED, f"its certificate is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError) and _PLAIN.search(str(error)):
        return _Wrong(Fault.NO_TLS, NO_TLS)
    if isinstance(error, TimeoutError):
        return _Wrong(Fault.LATE, "no answer: TLS was not agreed upon in time")
    if isinstance(error, http.client.LineTooLong) or "headers" in str(error):
        return _Wrong(Fault.FLOODS, f"floods: {error}")
    if isinstance(error, http.client.InvalidURL):
        return _Wrong(Fault.UNREACHABLE, "what is asked for is no address of a service")
    if isinstance(error, http.client.IncompleteRead | OSError | http.client.RemoteDisconnected):
        came = wire.came if wire else 0
        after = f"broke off after {came:,} bytes" if came else "no answer: the connection ended"
        return _Wrong(Fault.CUT_OFF, f"{after} ({_words(error)})")
    return _Wrong(Fault.NO_HTTP, f"what came is no HTTP: {_words(error)}")


def _words(error: Exception) -> str:
    """Return what an exception says, on one line."""
    if isinstance(error, OSError) and error.errno and error.strerror:
        return f"[Errno {error.errno}] {error.strerror}"
    said = _printable(str(error)) or type(error).__name__
    return textwrap.shorten(said, 200, placeholder=" ...")


def _short(host: str) -> str:
    return host if len(host) <= 80 else f"{host[:60]}... ({len(host)} characters)"


def _printable(text: str) -> str:
    """Return a stranger's text without what a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)
