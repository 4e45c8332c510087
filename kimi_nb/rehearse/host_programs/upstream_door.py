"""Answer as the example proxy of vllm-ascend, load_balance_proxy_server_example.py.

Written from a recording of the real program (tests/rehearse/contract/upstream_proxy.json), whose
test replays it here, for each of its versions. What users meet behind it, and here:

- what prefill refuses is asked three times and becomes ``500 Internal Server Error``;
- what decode refuses, or fails to do, becomes a 200 with nothing in it, or that ends where it is;
- an answer that breaks off begins again within the same body;
- an engine that is gone stays in the list, and as the least loaded one it is the one most chosen.

Left out: POST /instances/add, /instances/remove and /reset_prefix_cache.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.host_programs.engine_client import EngineClient, EngineError
from kimi_nb.rehearse.host_programs.upstream_answer import Said, first_prompt
from kimi_nb.rehearse.host_programs.upstream_balance import Balance, prefill_score

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Say = Callable[[str], None]

_POSTS = ("/v1/chat/completions", "/v1/completions")
_PAGES = ("/docs", "/redoc", "/openapi.json")
_HEALTH = "/healthcheck"
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_EVENTS, _TEXT = "text/event-stream; charset=utf-8", "text/plain; charset=utf-8"
_ASK_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass
class Taken:
    """What one request holds: an engine of each role, and the load that it counts there."""

    request_id: str
    prefill: int
    prefill_score: float
    decode: int
    decode_score: float
    cached: int | None
    fetched: bool = False


class Door:
    """The ASGI application, which uvicorn calls as ``await door(scope, receive, send)``."""

    def __init__(self, given: argparse.Namespace, version: str, key: str | None, say: Say) -> None:
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        # What changed: loads given back when a client leaves; shared counts; cached tokens.
        self._frees = numbers >= (0, 19)
        self._shared = numbers >= (0, 21)
        self._cached = numbers >= (0, 25)
        self.prefill, self.decode = (
            Balance(
                [EngineClient(*pair) for pair in zip(hosts, ports, strict=True)],
                prefill,
                self._shared,
            )
            for prefill, hosts, ports in (
                (True, given.prefiller_hosts, given.prefiller_ports),
                (False, given.decoder_hosts, given.decoder_ports),
            )
        )
        self._tries, self._delay = given.max_retries, given.retry_delay
        self._key, self._say, self._open = key, say, 0
        self._aborted: dict[int, set[str]] = {}  # before v0.21.0rc1, told to prefill engines

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        method, path = scope["method"], scope["path"]
        allowed = "POST" if path in _POSTS else "GET"
        if path.rstrip("/") in _POSTS and path not in _POSTS:
            where = f"http://{dict(scope['headers']).get(b'host', b'').decode()}{path.rstrip('/')}"
            await self._answer(scope, send, 307, None, "", location=where)
        elif path not in (*_POSTS, _HEALTH, *_PAGES):
            await self._answer(scope, send, 404, _JSON, '{"detail":"Not Found"}')
        elif method != allowed:
            text = '{"detail":"Method Not Allowed"}'
            await self._answer(scope, send, 405, _JSON, text, allow=allowed)
        elif path in _POSTS:
            await self._complete(scope, receive, send)
        elif path == _HEALTH:
            await self._answer(scope, send, 200, _JSON, self._health())
        else:
            paths = json.dumps({"paths": {one: {} for one in (*_POSTS, _HEALTH)}})
            page = path != "/openapi.json"
            text = f"<!DOCTYPE html><title>{MARK}</title>" if page else paths
            await self._answer(scope, send, 200, _HTML if page else _JSON, text)

    def _health(self) -> str:
        counts = {
            "status": "ok",
            "prefill_instances": len(self.prefill.clients),
            "decode_instances": len(self.decode.clients),
            **({"request_num": self._open} if self._shared else {}),
        }
        return json.dumps(counts, separators=(",", ":"))

    async def _answer(
        self, scope: Any, send: Send, status: int, kind: str | None, text: str, **headers: str
    ) -> None:
        await self._begin(
            scope, send, status, kind, **headers, **{"content-length": str(len(text))}
        )
        await send({"type": "http.response.body", "body": text.encode()})

    async def _begin(
        self, scope: Any, send: Send, status: int, kind: str | None, **headers: str
    ) -> None:
        host, port = scope.get("client") or ("", 0)
        self._say(f"INFO: {host}:{port} - {scope['method']} {scope['path']} {status}")
        named = {**headers, **({"content-type": kind} if kind else {}), "x-rehearsal": MARK}
        packed = [(name.encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": packed})

    # One request ----------------------------------------------------------------------

    async def _complete(self, scope: Any, receive: Receive, send: Send) -> None:
        packed = b""
        more = True
        while more:
            message = await receive()
            packed += message.get("body", b"")
            more = message.get("more_body", False)
        work = asyncio.ensure_future(self._handle(scope, packed, send))
        gone = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _handle(self, scope: Any, packed: bytes, send: Send) -> None:
        path = scope["path"]
        taken = None
        try:
            asked = json.loads(packed)
            taken = await self._take(path, asked, len(packed), first=True)
            streams = bool(asked.get("stream", False))
            origin = first_prompt(asked)
        except (EngineError, ValueError, TypeError, AttributeError, LookupError) as error:
            endpoint = path.removeprefix("/v1")
            self._say(f"Error occurred in disagg prefill proxy server - {endpoint} endpoint")
            self._say(f"{type(error).__name__}: {error}")
            if taken and self._shared:
                self._finish(taken)
            await self._answer(scope, send, 500, _TEXT, "Internal Server Error")
            return
        await self._begin(scope, send, 200, _EVENTS if streams else _JSON)
        async with contextlib.aclosing(self._pieces(path, asked, taken, streams, origin)) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _take(self, path: str, asked: Any, length: int, first: bool) -> Taken:
        """Have a prefill engine compute the prompt, and choose the decode engine."""
        score, request_id = prefill_score(length), str(uuid.uuid4())
        if not isinstance(asked, dict):
            raise TypeError(f"{type(asked).__name__} is no object")
        at = self.prefill.take(score)
        self._open += first
        try:
            answer = await self._ask_prefill(at, path, asked, request_id)
        except EngineError:
            if self._shared:
                self.prefill.fetched(at, score)
                self._open -= first
            raise
        self.prefill.computed(at, score)
        found = json.loads(answer)
        if params := found.get("kv_transfer_params", {}):
            asked["kv_transfer_params"] = params
        usage = (found.get("usage") or {}) if self._cached else {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Taken(
            request_id,
            at,
            score,
            self.decode.take(length),
            length,
            cached if isinstance(cached, int) else None,
        )

    async def _ask_prefill(
        self, at: int, path: str, asked: dict[str, Any], request_id: str
    ) -> bytes:
        """Return the answer of a prefill engine, within some tries. Raises EngineError."""
        params: dict[str, Any] = dict(_ASK_PREFILL)
        if not self._shared:
            params["aborted_request"] = sorted(self._aborted.pop(at, ()))
        body = {**asked, "kv_transfer_params": params, "stream": False}
        body |= {"max_tokens": 1, "min_tokens": 1}
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = 1
        body.pop("stream_options", None)
        packed = json.dumps(body).encode()
        for attempt in range(1, self._tries + 1):
            try:
                client = self.prefill.clients[at]
                async with client.post(path, packed, self._headers(request_id)) as reply:
                    return b"".join([piece async for piece in reply.pieces()])
            except EngineError as error:
                await self._again(attempt, path.removeprefix("/v1"), error)
        raise AssertionError("the last try returns or raises")

    async def _again(self, attempt: int, where: str, error: EngineError) -> None:
        """Wait before the next try, or raise the error of the last one."""
        if attempt == self._tries:
            self._say(f"ERROR All {self._tries} attempts failed for {where}.")
            raise error
        self._say(f"WARNING Attempt {attempt} failed for {where}: {error}")
        await asyncio.sleep(self._delay * 2 ** (attempt - 1))

    def _headers(self, request_id: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}", "X-Request-Id": request_id}

    async def _decoded(self, taken: Taken, path: str, asked: Any) -> AsyncGenerator[bytes, None]:
        """Give the pieces of decode's answer; from the first one again at each further try."""
        client, packed = self.decode.clients[taken.decode], json.dumps(asked).encode()
        for attempt in range(1, self._tries + 1):
            try:
                async with client.post(path, packed, self._headers(taken.request_id)) as reply:
                    async for piece in reply.pieces():
                        yield piece
                return
            except EngineError as error:
                await self._again(attempt, f"streaming {path.removeprefix('/v1')}", error)

    async def _pieces(
        self, path: str, asked: dict[str, Any], taken: Taken, streams: bool, origin: Any
    ) -> AsyncGenerator[bytes, None]:
        """Give what the client gets; whatever fails now ends the body, not the status."""
        said = Said(asked, origin, streams, strict=not self._shared)
        try:
            again = True
            while again:
                again = False
                async with contextlib.aclosing(self._decoded(taken, path, asked)) as pieces:
                    async for piece in pieces:
                        if not taken.fetched:
                            self.prefill.fetched(taken.prefill, taken.prefill_score)
                            taken.fetched = True
                        out, again = said.read(piece, taken.cached)
                        if again:
                            break
                        if out:
                            yield out
                if again:
                    taken = await self._retake(path, asked, taken)
        except (asyncio.CancelledError, GeneratorExit):
            if self._frees:
                self._finish(taken)
            raise
        except (EngineError, ValueError, TypeError, AttributeError, LookupError) as error:
            where = self.decode.clients[taken.decode].address
            self._say(f"ERROR Error during streaming from decoder {where}: {error}")
            if not self._shared:
                self._aborted.setdefault(taken.prefill, set()).add(taken.request_id)
                if not self._frees and taken.fetched:  # given back twice
                    self.prefill.fetched(taken.prefill, taken.prefill_score)
        self._finish(taken)

    async def _retake(self, path: str, asked: dict[str, Any], taken: Taken) -> Taken:
        """Have the prompt and what was said computed again, as decode asked for."""
        if self._shared:
            self.prefill.fetched(taken.prefill, taken.prefill_score)
            self.decode.computed(taken.decode, taken.decode_score)
        length = len(json.dumps(asked).encode())
        new = await self._take(path, asked, length, first=False)
        new.fetched = taken.fetched and not self._shared
        return new

    def _finish(self, taken: Taken) -> None:
        if not taken.fetched:
            self.prefill.fetched(taken.prefill, taken.prefill_score)
            taken.fetched = True
        self.decode.computed(taken.decode, taken.decode_score)
        self._open = max(0, self._open - 1)


async def _left(receive: Receive) -> None:
    """Return once the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
