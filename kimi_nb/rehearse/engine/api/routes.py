"""Serve vLLM's routes for a stand-in engine, as one ASGI application."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.engine.api import answers, counters, server_counters
from kimi_nb.rehearse.engine.api.api_errors import unsupported_media_type
from kimi_nb.rehearse.engine.api.decode_steps import Send
from kimi_nb.rehearse.engine.api.stand_in import Engine

_JSON = (b"content-type", b"application/json")
_MARK = (b"x-rehearsal", MARK.encode())
_VARY = (b"vary", b"Origin")
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), _MARK, _VARY]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class Api:
    """The ASGI application, which uvicorn calls as ``await api(scope, receive, send)``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests = server_counters.Requests()
        self._count = itertools.count(1)
        self._routes: dict[str, tuple[str, Callable[..., Awaitable[None]]]] = {
            "/health": ("GET", self._health),
            "/ping": ("GET POST", self._health),
            "/version": ("GET", self._version),
            "/v1/models": ("GET", self._models),
            "/metrics": ("GET", self._metrics),
            "/load": ("GET", self._load),
            "/tokenize": ("POST", self._simply(answers.tokenize)),
            "/detokenize": ("POST", self._simply(answers.detokenize)),
            "/v1/messages/count_tokens": ("POST", self._simply(answers.count)),
            "/invocations": ("POST", self._invocations),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completion),
        }

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request, and count it."""
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        handler = path if path in self._routes else "none"
        if not self._requests.counts(handler):
            await self._answer(scope, receive, send)
            return
        noted, begun = _Noted(send), time.monotonic()
        try:
            await self._answer(scope, receive, noted)
        finally:
            seconds = time.monotonic() - begun
            asked = _length(scope["headers"])
            self._requests.add(handler, method, noted.status, asked, noted.length, seconds)

    async def _answer(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path[-1:] == "/" and path[:-1] in self._routes:
            there = dict(scope["headers"]).get(b"host", b"")
            where = (b"location", b"http://%s%s" % (there, path[:-1].encode()))
            await _reply(send, 307, b"", (where,))
            return
        methods, route = self._routes.get(path, ("", None))
        if route is None:
            await _json(send, 404, {"detail": "Not Found"})
        elif scope["method"] not in methods.split():
            allowed = (b"allow", methods.replace(" ", ", ").encode())
            await _json(send, 405, {"detail": "Method Not Allowed"}, allowed)
        elif path.startswith("/v1") and not self._allowed(scope):
            await _json(send, 401, {"error": "Unauthorized"})
        else:
            await route(scope, receive, send)

    def _allowed(self, scope: Mapping[str, Any]) -> bool:
        key = self._engine.settings.api_key
        if not key:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return given == f"Bearer {key}"

    async def _health(self, scope: Any, receive: Receive, send: Send) -> None:
        await _reply(send, 503 if self._engine.dead else 200, b"", ())

    async def _version(self, scope: Any, receive: Receive, send: Send) -> None:
        await _json(send, 200, {"version": self._engine.served.version})

    async def _models(self, scope: Any, receive: Receive, send: Send) -> None:
        await _json(send, 200, answers.models(self._engine.served, int(time.time())))

    async def _metrics(self, scope: Any, receive: Receive, send: Send) -> None:
        settings = self._engine.settings
        origin = counters.Origin(
            settings.names[0],
            self._engine.served.version,
            settings.max_model_len,
            settings.transfer.connector if settings.transfer else "",
            settings.drafts,
        )
        lines = [
            f"# {MARK}: counts of a stand-in engine, no measurement of any hardware",
            *server_counters.process(),
            *counters.text(self._engine.metrics, origin),
            *self._requests.lines(),
        ]
        body = "\n".join(lines) + "\n"
        form = "1.0.0" if "metrics_1_0_0" in self._engine.served.changes else "0.0.4"
        await _reply(
            send,
            200,
            body.encode(),
            ((b"content-type", f"text/plain; version={form}; charset=utf-8".encode()),),
        )

    async def _load(self, scope: Any, receive: Receive, send: Send) -> None:
        running = sum(one.running + one.waiting for one in self._engine.metrics.values())
        await _json(send, 200, {"server_load": running})

    def _simply(
        self, make: Callable[[answers.Served, bytes], Mapping[str, Any]]
    ) -> Callable[..., Awaitable[None]]:
        """Return the route of an answer that no engine computes."""

        async def route(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
            try:
                raw = await self._json_body(scope, receive)
                await _json(send, 200, make(self._engine.served, raw))
            except answers.ApiError as error:
                await _json(send, error.status, error.body)

        return route

    async def _json_body(self, scope: Mapping[str, Any], receive: Receive) -> bytes:
        raw = await _body(receive)
        given = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        if given.partition(";")[0].strip().lower() != "application/json":
            raise unsupported_media_type()
        return raw

    async def _invocations(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a chat or a completion, whichever the body is (SageMaker's route)."""
        raw = await _body(receive)

        async def again() -> Mapping[str, Any]:
            return {"type": "http.request", "body": raw, "more_body": False}

        try:
            chatting = "messages" in json.loads(raw)
        except (ValueError, TypeError):
            chatting = False
        await (self._chat if chatting else self._completion)(scope, again, send)

    async def _chat(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        await self._generate(answers.chat, "chatcmpl", scope, receive, send)

    async def _completion(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        await self._generate(answers.completion, "cmpl", scope, receive, send)

    async def _generate(
        self,
        make: Callable[..., answers.Ask],
        kind: str,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        engine = self._engine
        try:
            raw = await self._json_body(scope, receive)
            number = f"{engine.settings.node}-{engine.settings.port}-{next(self._count)}"
            own = headers.get("x-request-id") or _request_id(raw) or f"{MARK}-{number}"
            name = f"{kind}-{own}"
            ask = make(engine.served, raw, headers, name, int(time.time()))
            rank = engine.rank_of(ask)
            flaw = engine.flaw(rank)
            if flaw:
                ask = make(replace(engine.served, flaw=flaw), raw, headers, name, ask.created)
            answer = await engine.admit(ask, rank)
        except answers.ApiError as error:
            await _json(send, error.status, error.body)
            return
        try:
            if ask.stream:
                await self._stream(answer, receive, send)
            else:
                await engine.generate(answer)
                await _json(send, 200, answers.whole(answer.ask, answer.kv))
                answer.finished()
        except answers.ApiError as error:
            await _json(send, error.status, error.body)
        finally:
            engine.release(answer)

    async def _stream(self, answer: Any, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_until_gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        # Frames need not be noted, and there are many of them.
        send = getattr(send, "through", send)
        try:
            if not await self._engine.stream(answer.ask, send, gone):
                return
            answer.finished()
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Noted:
    """A ``send`` that notes the status of an answer, and the length that its headers give."""

    def __init__(self, through: Send) -> None:
        self.through, self.status, self.length = through, 500, 0

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.length = message["status"], _length(message["headers"])
        await self.through(message)


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return what the header content-length says, or 0 without one."""
    found = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(found) if found.isdigit() else 0


def _request_id(raw: bytes) -> str:
    """Return the id that a body gives its request, or ""."""
    if b'"request_id"' not in raw:
        return ""
    try:
        return str(json.loads(raw).get("request_id") or "")
    except (ValueError, AttributeError):
        return ""


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _json(
    send: Send, status: int, body: Mapping[str, Any], *headers: tuple[bytes, bytes]
) -> None:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    await _reply(send, status, text.encode("utf-8", "surrogatepass"), (_JSON, *headers))


async def _reply(
    send: Send, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, _MARK, _VARY, (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})
