"""Prefill and decode engines that do as a scene says and keep what they were sent; and a client.

    with running("prefill0", "decode0", "decode1") as engines:
        engines["decode0"].turns = [{"status": 503, "text": "busy"}, {"cut": 2}]

A turn is what one POST gets: ``status`` and ``text``; ``drop``, the connection is closed without a
reply; ``cut``, after that many frames of a stream, or that many bytes of a body; ``frames``, those
chunks. After the last turn an engine answers well. ``holds`` keeps requests until `release`.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

PATIENCE = 10.0
KEPT = ("authorization", "content-type", "x-request-id", "x-of-the-client", "accept")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Engine:
    """One engine: an HTTP server in threads of this process."""

    def __init__(self, name: str, heard: list[dict[str, Any]]) -> None:
        self.name, self.heard = name, heard
        self.turns: list[dict[str, Any]] = []
        self.holds = False
        self.waiting = 0
        self.left = threading.Event()  # somebody hung up while held or streamed to
        self._go = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._server = self._listen(0)
        self.port = self._server.server_port

    def _listen(self, port: int) -> http.server.ThreadingHTTPServer:
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                engine._sockets.add(self.request)

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()
                engine._sockets.discard(self.request)

            def do_GET(self) -> None:
                engine.whole(self, 200, "{}")

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                with contextlib.suppress(OSError):
                    engine.answer(self, text)

            def log_message(self, form: str, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: object, address: object) -> None:
                pass

        server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def down(self) -> None:
        """End as a killed process does: nothing listens, and every connection is cut."""
        self._server.shutdown()
        self._server.server_close()
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def up(self) -> None:
        """Listen again at the same port."""
        self._server = self._listen(self.port)

    def release(self) -> None:
        """Answer what is held."""
        self.holds = False
        self._go.set()

    def answer(self, to: Any, text: str) -> None:
        """Keep a request, and answer it as the next turn says."""
        text = _UUID.sub("a UUID", text)
        try:
            body = json.loads(text)
        except ValueError:
            body = text
        headers = {
            key.lower(): _UUID.sub("a UUID", value)
            for key, value in to.headers.items()
            if key.lower() in KEPT
        }
        self.heard.append({"to": self.name, "path": to.path, "headers": headers, "body": body})
        turn = self.turns.pop(0) if self.turns else {}
        if self.holds:
            self._go.clear()
            self.waiting += 1
            while not self._go.wait(0.02):
                if select.select([to.connection], [], [], 0)[0] and not to.connection.recv(1):
                    self.left.set()
                    to.close_connection = True
                    break
            self.waiting -= 1
        if turn.get("drop"):
            to.close_connection = True
        elif "status" in turn:
            self.whole(to, turn["status"], turn.get("text", ""))
        elif isinstance(body, dict) and body.get("stream"):
            self._stream(to, turn.get("frames", FRAMES), turn.get("cut"), turn.get("pause", 0.03))
        else:
            whole = WHOLE if self.name.startswith("decode") else PREFILLED
            self.whole(to, 200, turn.get("text", json.dumps(whole)), turn.get("cut"))

    def whole(self, to: Any, status: int, text: str, cut: int | None = None) -> None:
        """Send a body in one piece, or only its first ``cut`` bytes."""
        packed = text.encode()
        to.send_response(status)
        to.send_header("Content-Type", "application/json")
        to.send_header("Content-Length", str(len(packed)))
        to.end_headers()
        to.wfile.write(packed[:cut])
        if cut is not None:
            to.close_connection = True

    def _stream(self, to: Any, frames: list[str], cut: int | None, pause: float) -> None:
        to.send_response(200)
        to.send_header("Content-Type", "text/event-stream; charset=utf-8")
        to.send_header("Transfer-Encoding", "chunked")
        to.end_headers()
        try:
            for frame in frames[:cut]:
                packed = frame.encode()
                to.wfile.write(b"%x\r\n%s\r\n" % (len(packed), packed))
                time.sleep(pause)  # or several frames arrive as one piece
            if cut is None:
                to.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.left.set()
        if cut is not None:
            to.close_connection = True


PREFILLED = {
    "id": "p",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "o"}}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
    "kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "e", "remote_port": 1},
}
WHOLE = {
    "id": "d",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one two"},
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
}
FRAMES = [
    "data: "
    + json.dumps({"id": "d", "choices": [{"index": 0, "delta": {"content": word}}]})
    + "\n\n"
    for word in ("one ", "two")
] + ["data: [DONE]\n\n"]


@contextlib.contextmanager
def running(*names: str) -> Iterator[dict[str, Engine]]:
    """Start engines of these names, which keep what they hear in one common list."""
    heard: list[dict[str, Any]] = []
    engines = {name: Engine(name, heard) for name in names}
    try:
        yield engines
    finally:
        for engine in engines.values():
            engine.release()
            with contextlib.suppress(OSError):
                engine.down()


def exchange(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    host: str = "127.0.0.1",
) -> dict[str, Any]:
    """Return status, content type and text of one exchange, and whether the text came whole."""
    packed = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    link = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    try:
        link.request(
            method,
            path,
            None if body is None else packed,
            ({} if body is None else {"Content-Type": "application/json"}) | (headers or {}),
        )
        reply = link.getresponse()
        whole, text = True, b""
        try:
            text = reply.read()
        except http.client.IncompleteRead as error:
            whole, text = False, error.partial
        named = {
            key: value.replace(str(port), "PORT")
            for key in ("allow", "location", "x-request-id")
            if (value := reply.getheader(key)) is not None
        }
        return {
            "status": reply.status,
            "type": reply.getheader("Content-Type"),
            **({"headers": named} if named else {}),
            "text": text.decode(),
            **({} if whole else {"whole": False}),
        }
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "text": type(error).__name__}
    finally:
        link.close()
