"""A chat service for tests: it knows the answers, and goes wrong when it is told to."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import kimi_nb

QUESTIONS = Path(kimi_nb.__file__).parent / "data" / "prove" / "accuracy" / "test.jsonl"
ANSWERS = {
    row["question"]: row["answer"]
    for row in map(json.loads, QUESTIONS.read_text(encoding="utf-8").splitlines())
}


class Chat:
    """``behave(number, text)`` is what the answer to the request of that number, 1 first, is: a
    status, and a body as bytes or as the content of a completion; None drops the connection."""

    def __init__(
        self,
        behave: Callable[[int, str], tuple[int, str | bytes | None]],
        seconds: float = 0.0,
        key: str = "",
    ) -> None:
        self.behave, self.seconds, self.key = behave, seconds, key
        self.asked: list[dict] = []
        self._lock = threading.Lock()

    def number(self, body: dict) -> int:
        with self._lock:
            self.asked.append(body)
            return len(self.asked)


def right(_: int, text: str) -> tuple[int, str]:
    """The right answer to a question of the shipped task."""
    return 200, next((answer for question, answer in ANSWERS.items() if question in text), "none")


def late(
    after: int, status: int, body: str | bytes | None
) -> Callable[[int, str], tuple[int, str | bytes | None]]:
    """Right until so many answers, then this."""
    return lambda number, text: right(number, text) if number <= after else (status, body)


@contextlib.contextmanager
def serving(chat: Chat) -> Iterator[str]:
    """Its address while it serves."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send(200, b'{"object": "list", "data": [{"id": "stub"}]}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if chat.key and self.headers.get("Authorization") != f"Bearer {chat.key}":
                return self.send(401, b'{"error": "Unauthorized"}')
            time.sleep(chat.seconds)
            status, answer = chat.behave(chat.number(body), body["messages"][-1]["content"])
            if answer is None:
                return self.connection.close()
            if isinstance(answer, str):
                answer = json.dumps(
                    {
                        "id": "1",
                        "object": "chat.completion",
                        "choices": [
                            {
                                "index": 0,
                                "finish_reason": "stop",
                                "message": {"role": "assistant", "content": answer},
                            }
                        ],
                        "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
                    }
                ).encode()
            return self.send(status, answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
