"""Send requests to an engine over HTTP and read replies piece by piece, on asyncio.

    async with client.post("/v1/chat/completions", body, headers) as reply:
        async for piece in reply.pieces(): ...

Each piece is one chunk of the reply as the engine sent it, however the network has cut it: a client
that reads at an engine's pace, a token at a time, sees whole chunks. Connections are kept for five seconds,
as httpx keeps them. Errors are `EngineError`, with the words that httpx has for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping

import httptools

_KEPT = 5.0  # seconds


class EngineError(Exception):
    """The engine cannot be reached, broke off, or answered with an error status."""


class Reply:
    """One reply: its status, and its body while it arrives."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: deque[bytes] = deque()
        self._parts: list[bytes] = []  # of a chunk that is not complete
        self._chunked = False
        self._headed = False
        self.status = 0
        self.whole = False

    def on_headers_complete(self) -> None:
        """Note the status (called by the parser)."""
        self._headed, self.status = True, self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body (called by the parser)."""
        (self._parts if self._chunked else self._pieces).append(piece)

    def on_chunk_header(self) -> None:
        """Begin a chunk (called by the parser)."""
        self._chunked = True

    def on_chunk_complete(self) -> None:
        """End a chunk (called by the parser); the last one is empty."""
        if self._parts:
            self._pieces.append(b"".join(self._parts))
            self._parts.clear()

    def on_message_complete(self) -> None:
        """Note the end of the body (called by the parser)."""
        self.whole = True

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self.whole and self._parser.should_keep_alive()

    async def begin(self) -> None:
        """Read until the headers are complete. Raises EngineError."""
        while not self._headed:
            await self._more("Server disconnected without sending a response.")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Give the body piece by piece. Raises EngineError if it breaks off."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self.whole:
                return
            await self._more("peer closed connection without sending complete message body")

    async def _more(self, at_end: str) -> None:
        try:
            data = await self._reader.read(65536)
        except OSError as error:
            raise EngineError(str(error)) from None
        if not data:
            raise EngineError(at_end)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise EngineError(str(error)) from None


class EngineClient:
    """The connections to one engine."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{port}"
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    @contextlib.asynccontextmanager
    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """Send a JSON body, and give the reply once its headers are there.

        Raises:
            EngineError: No connection, no reply, or a status that is no success.
        """
        reader, writer = await self._connection()
        reply = Reply(reader)
        try:
            head = {
                "Host": self.address,
                "Accept": "*/*",
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                **headers,
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            with contextlib.suppress(OSError):  # then reading tells what happened
                writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)
                await writer.drain()
            await reply.begin()
            if not 200 <= reply.status < 300:
                async for _ in reply.pieces():
                    pass
                kind = "Client" if reply.status < 500 else "Server"
                name = _phrase(reply.status)
                raise EngineError(
                    f"{kind} error '{reply.status} {name}' for url 'http://{self.address}{path}'"
                )
            yield reply
        finally:
            if reply.reusable:
                self._idle.append((time.monotonic(), reader, writer))
            else:
                writer.close()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            since, reader, writer = self._idle.pop()
            if time.monotonic() - since < _KEPT and not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.close()
        try:
            return await asyncio.open_connection(self.host, self.port)
        except OSError:
            raise EngineError("All connection attempts failed") from None


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""
