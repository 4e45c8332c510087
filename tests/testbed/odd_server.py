"""A small OpenAI-compatible server that keeps the contract, or breaks it in one manner.

with OddServer("cut-stream") as server: server.url

"word-salad@2": only the rank of this X-data-parallel-rank breaks it.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LENGTH = 4096
_SALAD = "lantern whereof quickly the tuple of banana under seventh marble but oven so grey walks "
_SCRIPTS = "I am потому 一个 assistant สวัสดี made по 由 Moonshot และ здесь 助手 כאשר by عندما AI."


class _Server(ThreadingHTTPServer):
    # As many as come at once: beyond the five of the base class the system resets connections.
    request_queue_size = 128
    daemon_threads = True


class OddServer:
    """See the module. ``manner`` may change while it runs; "" is a good server."""

    def __init__(self, manner: str) -> None:
        self.manner = manner
        self.hung = threading.Event()
        self.count = self.completions = 0
        self._calls: list[tuple[int, object]] = []
        self.lock = threading.Lock()
        odd = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _answer(odd, self, None)

            def do_POST(self) -> None:
                _answer(odd, self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, form: str, *args: object) -> None:
                return

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def after(self, count: int, call: object) -> None:
        """Call something when so many requests have come."""
        self._calls.append((count, call))

    def shut(self) -> None:
        """Be gone."""
        self._server.socket.close()

    def counted(self) -> None:
        with self.lock:
            self.count += 1
            for at, call in self._calls:
                if at == self.count:
                    call()

    def __enter__(self) -> OddServer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        try:
            self._server.serve_forever(0.05)
        except (OSError, ValueError):  # shut in the middle
            return

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(odd: OddServer, to: BaseHTTPRequestHandler, raw: bytes | None) -> None:
    odd.counted()
    path = to.path
    if path == "/v1/models":
        names = ["kimi", "other"] if odd.manner == "two-models" else ["kimi"]
        _send(to, 200, listing(names))
        return
    try:
        body = json.loads(raw or b"")
    except ValueError:
        _send(to, 400, {"error": "no JSON"})
        return
    if path == "/tokenize":
        _send(to, 200, {"count": _tokens(body)})
    elif path != "/v1/chat/completions":
        _send(to, 404, {"error": "not found"})
    else:
        _chat(odd, to, body)


def listing(names: list[str]) -> dict:
    """What GET /v1/models answers."""
    return {"object": "list", "data": [{"id": one, "max_model_len": LENGTH} for one in names]}


def senseless(body: dict) -> bool:
    """Whether a sampling parameter has a value that no sampler can use."""
    return (
        body.get("temperature", 1) < 0
        or not 0 < body.get("top_p", 1) <= 1
        or max(abs(body.get(f"{name}_penalty", 0)) for name in ("presence", "frequency")) > 2
        or body.get("n", 1) < 1
        or body["max_tokens"] < 1
    )


def _chat(odd: OddServer, to: BaseHTTPRequestHandler, body: dict) -> None:
    manner, _, rank = odd.manner.partition("@")
    if rank and to.headers.get("X-data-parallel-rank") != rank:
        manner = ""
    with odd.lock:
        odd.completions += 1
        number = odd.completions
    if manner == "hangs":
        time.sleep(6)
    if manner == "hangs-later" and number > 2:
        odd.hung.set()
        time.sleep(60)
    if manner == "429" or (manner == "429-once" and number == 2):
        _send(to, 429, {"error": "slow down"})
    elif manner == "500" or (manner == "500-third" and number == 3):
        _send(to, 500, {"error": {"message": "", "code": 500}})
    elif manner == "html":
        _bytes(to, b"<html>Welcome to nginx</html>", "text/html")
    elif manner == "no-choices":
        _send(to, 200, {"id": "x", "choices": []})
    elif manner == "empty":
        _bytes(to, b"", "application/json")
    elif manner == "cut-body":
        to.send_response(200)
        to.send_header("Content-Length", "999")
        to.end_headers()
        to.wfile.write(b'{"id": "x"')
        to.wfile.flush()
        to.connection.shutdown(socket.SHUT_RDWR)
    elif body["model"] != "kimi" and manner != "accepts-all":
        _send(to, 404, {"error": {"message": "no such model"}})
    elif _tokens(body) > LENGTH:
        _send(to, 400, {"error": {"message": "too long"}})
    elif senseless(body):
        _send(to, 400, {"error": {"message": "a parameter is out of range"}})
    else:
        made = _message(body, manner, number)
        if body.get("stream"):
            _stream(to, made, manner)
        else:
            _send(to, 200, made)


def _tokens(body: dict) -> int:
    text = json.dumps(body["messages"])
    off = body.get("chat_template_kwargs", {}).get("thinking") is False
    # As Kimi's template has it: <think></think> where thinking is off, else <think>.
    return len(re.findall(r"\w+|[^\w\s]", text)) + (20 if "image_url" in text else 0) + off


def _message(body: dict, manner: str, number: int) -> dict:
    last = body["messages"][-1]
    said = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
    message, reason = {"role": "assistant", "content": f"You said: {said[:100]}"}, "stop"
    if body.get("chat_template_kwargs", {}).get("thinking", True):
        message["reasoning"] = "It asks me something."
    tools, choice = body.get("tools"), body.get("tool_choice", "auto")
    if tools and choice != "none" and last["role"] == "user":
        names = [one["function"]["name"] for one in tools if one["function"]["name"] in said]
        if choice == "required":
            names = names[:1] or [tools[0]["function"]["name"]]
        elif isinstance(choice, dict):
            names = [choice["function"]["name"]]
        if names:
            calls = [_call(name, at, manner, tools) for at, name in enumerate(names)]
            message["content"], message["tool_calls"], reason = None, calls, "tool_calls"
            if manner == "leaked-call":
                message = {"content": "<|tool_calls_section_begin|>functions.get_weather:0"}
                reason = "stop"
    elif manner == "garbled":
        message["content"] = "!" * 60
    elif manner == "word-salad":
        message["content"] = _SALAD
    elif manner == "mixed-scripts":
        message["content"] = f"{_SCRIPTS} {said}"
    elif manner == "leaked-thoughts" and "reasoning" in message:
        message["content"] = f"{message.pop('reasoning')}</think>{message['content']}"
    if body.get("response_format"):
        message["content"] = (
            '{"city": 7}' if manner == "bad-schema" else '{"city": "Tokyo", "warm": true}'
        )
    if body["max_tokens"] == 1:
        reason = "length"
    if manner == "wrong-reason":
        reason = None
    if manner == "mixes" and "Say this word" in said:
        message["content"] = "kw0000x"
    if manner == "loses-words" and "Say this word" in said and number % 4 == 0:
        message["content"] = "Good morning."
    prompt, made = _tokens(body), min(4, body["max_tokens"])
    message.setdefault("role", "assistant")
    usage: dict = {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made + (manner == "bad-usage"),
    }
    if manner == "text-usage":
        usage = {name: str(count) for name, count in usage.items()}
    return {
        "id": f"id-{number}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }


def fitting(schema: dict, root: dict) -> object:
    """A value that fits a schema."""
    if "$ref" in schema:
        return fitting(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return fitting(schema["anyOf"][-1], root)
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: fitting(one, root) for name, one in schema["properties"].items()}
    return [fitting(schema["items"], root)] if schema["type"] == "array" else True


def _call(name: str, at: int, manner: str, tools: list[dict]) -> dict:
    schema = next(one["function"] for one in tools if one["function"]["name"] == name)["parameters"]
    given = fitting(schema, schema)
    text: object = json.dumps(given)
    if manner == "object-arguments":
        text = given
    if manner == "bad-arguments":
        text = json.dumps(given)[:-3]
    elif manner == "wrong-arguments":
        text = '{"town": "Beijing"}'
    return {
        "id": "chatcmpl-tool-1" if manner == "bad-ids" else f"functions.{name}:{at}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def events_of(made: dict) -> list[dict]:
    """The events of a stream that says what a whole answer says."""
    choice = made["choices"][0]
    message, reason = choice["message"], choice["finish_reason"]
    deltas = [{"role": "assistant", "content": ""}]
    for name in ("reasoning", "content"):
        text = message.get(name) or ""
        deltas += [{name: text[at : at + 7]} for at in range(0, len(text), 7)]
    for at, one in enumerate(message.get("tool_calls") or ()):
        text = one["function"]["arguments"]
        text = text if isinstance(text, str) else json.dumps(text)
        deltas.append(
            {
                "tool_calls": [
                    {**one, "index": at, "function": {**one["function"], "arguments": text[:5]}}
                ]
            }
        )
        deltas.append({"tool_calls": [{"index": at, "function": {"arguments": text[5:]}}]})
    head = {name: made[name] for name in ("id", "created", "model") if name in made}
    head["object"] = "chat.completion.chunk"
    ends = [*((one, None) for one in deltas), ({}, reason)]
    return [
        *(
            {**head, "choices": [{"index": 0, "delta": one, "finish_reason": end}]}
            for one, end in ends
        ),
        {**head, "choices": [], "usage": made["usage"]},
    ]


def _stream(to: BaseHTTPRequestHandler, made: dict, manner: str) -> None:
    events = events_of(made)
    if manner == "other-stream":
        delta = {"content": " and more"}
        events.insert(-2, {**events[0], "choices": [{"index": 0, "delta": delta}]})
    if manner == "error-stream":
        events[2:] = [{"error": {"message": "EngineCore died", "code": 500}}]
    lines = [f"data: {json.dumps(one)}\n\n" for one in events] + ["data: [DONE]\n\n"]
    if manner == "empty-stream":
        lines = [": nothing\n\n"]
    elif manner in ("cut-stream", "broken-stream", "slow-stream"):
        lines = lines[:3]
    to.send_response(200)
    to.send_header("Content-Type", "text/event-stream")
    if manner == "broken-stream":
        to.send_header("Content-Length", "99999")
    to.end_headers()
    for line in lines:
        to.wfile.write(line.encode())
        to.wfile.flush()
    if manner == "slow-stream":
        time.sleep(6)
    to.close_connection = True


def _send(to: BaseHTTPRequestHandler, status: int, body: object) -> None:
    _bytes(to, json.dumps(body).encode(), "application/json", status)


def _bytes(to: BaseHTTPRequestHandler, data: bytes, kind: str, status: int = 200) -> None:
    to.send_response(status)
    to.send_header("Content-Type", kind)
    to.send_header("Content-Length", str(len(data)))
    to.end_headers()
    to.wfile.write(data)
