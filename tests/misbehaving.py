"""A chat server on 127.0.0.1 that does what a test asks: streams, breaks off, refuses, babbles.

with misbehaving.server("cut-off", after=2) as url: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

from aiohttp import web

KEY = "a-key"
TOKEN_S = 0.002  # seconds between tokens


class _Chat:
    """``how`` it answers, from the request with number ``after`` on; before it all is well."""

    def __init__(self, how: str, after: int) -> None:
        self.how, self.after, self.seen, self.bodies = how, after, 0, []

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen += 1
        self.bodies.append(body)
        how = self.how if self.seen > self.after else "well"
        if how == "401" and request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if how in ("404", "429", "500", "503", "400"):
            return web.json_response({"error": {"message": "no"}}, status=int(how))
        if how == "html":
            return web.Response(text="<html>Sign in</html>", content_type="text/html")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        tokens = body["max_completion_tokens"]
        if how != "empty":
            await self._tokens(request, answer, how, tokens)
        if how not in ("no-done", "cut-off"):
            usage = {"prompt_tokens": 7, "completion_tokens": 0 if how == "empty" else tokens}
            await self._send(answer, {"choices": [], "usage": usage})
            await answer.write(b"data: [DONE]\n\n")
        return answer

    async def _tokens(
        self, request: web.Request, answer: web.StreamResponse, how: str, tokens: int
    ) -> None:
        await answer.write(b": ping\n\n")
        for at in range(tokens):
            await self._send(answer, {"choices": [{"index": 0, "delta": {"content": "a "}}]})
            await asyncio.sleep(TOKEN_S)
            if at == 0 and how == "malformed":
                await answer.write(b'data: {"choices": [{"del\n\n')
            if at == 0 and how == "shape":
                await answer.write(b'data: {"choices": "none"}\n\n')
            if at == 0 and how == "error-in-stream":
                await self._send(answer, {"error": {"message": "EngineCore died"}})
            if at == 0 and how == "cut-off":
                request.transport.abort()
                return
            if at == 0 and how == "hang":
                await asyncio.sleep(30)

    @staticmethod
    async def _send(answer: web.StreamResponse, value: object) -> None:
        # In two pieces: a chunk of the network is no message of the stream.
        data = f"data: {json.dumps(value)}\n\n".encode()
        await answer.write(data[:9])
        await answer.write(data[9:])

    async def tokenize(self, request: web.Request) -> web.Response:
        text = (await request.json())["prompt"]
        return web.json_response({"count": 2 * len(text.split())})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text=f"""# HELP vllm:num_requests_running running
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} 3.0
vllm:num_requests_running{{engine="1"}} 2.0
vllm:kv_cache_usage_perc{{engine="0"}} 0.25
vllm:kv_cache_usage_perc{{engine="1"}} 0.5
vllm:num_preemptions_total{{engine="0"}} {self.seen}.0
vllm:prefix_cache_queries_total{{engine="0"}} {10 * self.seen}.0
vllm:prefix_cache_hits_total{{engine="0"}} {4 * self.seen}.0
"""
        )

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": []})


class Served(str):
    """The URL, with the chat behind it."""

    chat: _Chat


@contextlib.contextmanager
def server(how: str = "well", after: int = 0) -> Iterator[Served]:
    """The URL of a server that ends with the ``with``."""
    chat, loop, ready = _Chat(how, after), asyncio.new_event_loop(), threading.Event()
    found: list[str] = []

    async def start() -> web.AppRunner:
        app = web.Application()
        app.add_routes(
            [
                web.post("/v1/chat/completions", chat.chat),
                web.post("/tokenize", chat.tokenize),
                web.get("/metrics", chat.metrics),
                web.get("/v1/models", chat.models),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")
        ready.set()
        return runner

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    url = Served(found[0])
    url.chat = chat
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
