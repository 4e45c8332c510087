"""A load client of our own for machines without vLLM: same requests, same result keys.

Usage::

    result = load_client.run(load, url, model, key="", tick=print)

Requests arrive as with ``vllm bench serve`` (all at once, or as a Poisson process stretched to the
expected duration), wait for one of ``concurrency`` slots, and are streamed. Failures are counted
by kind and never raised.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from kimi_nb.core.errors import BenchError
from kimi_nb.prove.bench import load_session, random_prompts, summary, timed_stream
from kimi_nb.prove.bench.workload import Load
from kimi_nb.service.http_client import Limits

_DAY = 6 * 3600.0  # seconds for one request, as in vLLM's client
_IDLE = 600.0  # seconds between two tokens, at an engine that is as full as it can be


def run(
    load: Load,
    url: str,
    model: str,
    *,
    key: str = "",
    seconds: float = _DAY,
    tick: Callable[[int, int], None] = lambda done, failed: None,
) -> dict[str, Any]:
    """Send a load and return the result under the keys of vLLM's JSON, and a key ``mark``.

    ``mark`` is REHEARSAL if a stand-in has answered any of the requests, else "".
    ``seconds`` limits the time of one request. After each request, ``tick`` is called with the
    number of requests that are done and the number of those that failed.

    Raises:
        BenchError: If this client does not support the dataset of the load.
    """
    if load.dataset != "random":
        raise BenchError(
            f"The data set {load.path} needs vllm bench (tool vllm); kimi_nb's own "
            "client makes random prompts only."
        )
    # A notebook's kernel already runs an event loop, so the load gets its own thread. It ends with
    # the cell.
    return _in_thread(_run(load, url, model, key, seconds, tick))


def probe(url: str, model: str, key: str = "", seconds: float = 120.0) -> str:
    """Send one small streamed request; return its error, or "" if it was answered."""

    async def once() -> str:
        limits = Limits(seconds, idle=_IDLE)
        async with load_session.opened(1, limits) as session:
            one = await timed_stream.ask(
                session,
                f"{url}/v1/chat/completions",
                _body(model, "Say a word.", 2),
                _headers(key),
                3,
                limits,
            )
            return one.error

    return _in_thread(once())


def _in_thread(work: Any) -> Any:
    import concurrent.futures  # start-up: only for a load

    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(_until_done, loop, task)
        try:
            return future.result()
        except BaseException:  # Ctrl-C: leave nothing running in the background
            if not future.done():
                loop.call_soon_threadsafe(task.cancel)
            raise


def _until_done(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Any:
    try:
        return loop.run_until_complete(task)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _run(
    load: Load, url: str, model: str, key: str, seconds: float, tick: Callable[[int, int], None]
) -> dict[str, Any]:
    headers, limits = _headers(key), Limits(seconds, idle=_IDLE)
    async with load_session.opened(load.concurrency, limits) as session:
        texts, how = await random_prompts.make(session, url, model, load, headers)
        await _warm_up(load, session, url, model, headers, texts[0], limits)
        places = asyncio.Semaphore(load.concurrency or load.prompts)
        done = failed = 0

        async def one(text: str) -> timed_stream.Timed:
            nonlocal done, failed
            async with places:
                timed = await timed_stream.ask(
                    session,
                    f"{url}/v1/chat/completions",
                    _body(model, text, load.output_len),
                    headers,
                    load.input_len,
                    limits,
                )
            done, failed = done + 1, failed + bool(timed.error)
            tick(done, failed)
            return timed

        begun = time.perf_counter()
        tasks = []
        for text, at in zip(texts, arrivals(load), strict=True):
            late = begun + at - time.perf_counter()
            if late > 0:
                await asyncio.sleep(late)
            tasks.append(asyncio.create_task(one(text)))
        timed = await asyncio.gather(*tasks)
        duration = time.perf_counter() - begun
    mark = next((one.mark for one in timed if one.mark), "")
    return {**_head(load, model, how), **summary.of(timed, duration), "mark": mark}


async def _warm_up(
    load: Load,
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    headers: dict[str, str],
    text: str,
    limits: Limits,
) -> None:
    """Send requests that are not counted: the first one after a pause is slower than others."""
    places = asyncio.Semaphore(load.concurrency or load.prompts)

    async def one() -> None:
        async with places:
            await timed_stream.ask(
                session,
                f"{url}/v1/chat/completions",
                _body(model, text, load.output_len),
                headers,
                load.input_len,
                limits,
            )

    await asyncio.gather(*(one() for _ in range(load.warmup)))


def arrivals(load: Load) -> Sequence[float]:
    """Return when each request is sent, in seconds from the start.

    Without a rate all are sent at once. With one, the times follow a Poisson process with the
    load's seed, stretched so that the last request is sent after ``prompts / rate`` seconds.

    >>> arrivals(Load(8, prompts=3))
    [0.0, 0.0, 0.0]
    >>> round(arrivals(Load(8, prompts=20, rate=4.0))[-1], 6)
    5.0
    """
    if math.isinf(load.rate):
        return [0.0] * load.prompts
    dice, at, out = random.Random(load.seed), 0.0, []
    for _ in range(load.prompts):
        at += dice.expovariate(load.rate)
        out.append(at)
    return [one * (load.prompts / load.rate) / at for one in out]


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _body(model: str, text: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "max_completion_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        "stream_options": {"include_usage": True},
    }


def _head(load: Load, model: str, how: str) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": None,
        "model_id": model,
        "tokenizer_id": how,
        "num_prompts": load.prompts,
        "request_rate": load.as_dict()["rate"],
        "burstiness": 1.0,
        "max_concurrency": load.concurrency or None,
    }
