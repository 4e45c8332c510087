"""A service of several engines behind one door, some of them stand-ins.

with MixedService("engine", "stand-in") as service: service.url

Each request for a completion goes to the next engine. The door keeps no header of theirs, and lists
the models itself, as gateways do; with ``kept`` it hands the mark of a stand-in on.
"""

from __future__ import annotations

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "kimi"
TEXTS = {
    "engine": "I am Kimi, a model that answers questions.",
    "stand-in": "REHEARSAL: Say in one sentence (the echo of a stand-in: no model ran)",
}


class MixedService:
    """See the module; ``asked`` counts the completions."""

    def __init__(self, *engines: str, kept: bool = False) -> None:
        self.asked = 0
        turn, lock, service = itertools.cycle(engines), threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/v1/models":
                    return self.reply(404, b"{}")
                models = {"object": "list", "data": [{"id": MODEL, "max_model_len": 4096}]}
                return self.reply(200, json.dumps(models).encode())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/chat/completions":
                    return self.reply(404, b"{}")
                with lock:
                    engine = next(turn)
                    service.asked += 1
                mark = kept and engine == "stand-in"
                if asked.get("stream"):
                    return self.reply(200, stream(TEXTS[engine]), "text/event-stream", mark)
                return self.reply(200, whole(TEXTS[engine]), mark=mark)

            def reply(
                self, status: int, body: bytes, kind: str = "application/json", mark: bool = False
            ) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if mark:
                    self.send_header("X-Rehearsal", "REHEARSAL")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, form: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MixedService:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def whole(text: str) -> bytes:
    """Return a chat completion."""
    message = {"role": "assistant", "content": text, "tool_calls": []}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({**_head("chat.completion"), "choices": [choice], "usage": _USAGE}).encode()


def stream(text: str) -> bytes:
    """Return a chat completion as events, four characters in each."""
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    choices = [{"index": 0, "delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    head = _head("chat.completion.chunk")
    events = [{**head, "choices": [one]} for one in choices]
    events.append({**head, "choices": [], "usage": _USAGE})
    said = [json.dumps(one) for one in events]
    return "".join(f"data: {one}\n\n" for one in (*said, "[DONE]")).encode()


_USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


def _head(kind: str) -> dict:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": MODEL}
