"""The HTTP session of a load: asynchronous, with the limits of `kimi_nb.service.http_client`.

Usage::

    async with load_session.opened(places, Limits(300.0)) as session:
        async with session.post(url, json=body, **load_session.ONLY) as answer:
            await load_session.read(answer, limits, take)

Proxies of the environment are not used, because aiohttp asks for that by ``trust_env``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from kimi_nb.service.http_client import SLOW, Limits

# Of each request: what a redirect leads to has not been asked for.
ONLY: dict[str, Any] = {"allow_redirects": False}
_EVERY = 0.25  # seconds between two settings of the timer of a silence


class Unbounded(Exception):
    """An answer that is not read to its end; the message is ``kind: detail``."""


def opened(places: int, limits: Limits) -> aiohttp.ClientSession:
    """Return a session for ``places`` requests at a time; 0 for any number."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=places, limit_per_host=places, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(
            total=limits.total, sock_connect=min(limits.total, limits.connect)
        ),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


async def read(
    answer: aiohttp.ClientResponse, limits: Limits, take: Callable[[bytes], object]
) -> None:
    """Give each piece of a body to ``take`` as it arrives.

    Raises:
        Unbounded: If the body is too long, falls silent, drips until the time is up, or is packed.
        TimeoutError: If it has no end in time.
    """
    packing = answer.headers.get("Content-Encoding", "identity")
    if packing != "identity":
        raise Unbounded(f"malformed: packed as {packing[:40]!r}, unasked")
    announced = answer.content_length or 0
    if announced > limits.size:
        raise Unbounded(f"floods: it announces {announced:,} bytes, {limits.size:,} are read")
    loop, begun, came, last = asyncio.get_running_loop(), time.monotonic(), 0, 0.0
    silence = asyncio.timeout(None)  # the first token may take as long as all before it
    try:
        async with silence:
            async for piece in answer.content.iter_any():
                came += len(piece)
                if came > limits.size:
                    raise Unbounded(f"floods: more than {limits.size:,} bytes")
                now = time.monotonic()
                if now - last > _EVERY:
                    silence.reschedule(loop.time() + limits.idle)
                last = now
                take(piece)
    except TimeoutError:
        if silence.expired():
            raise Unbounded(
                f"timeout: nothing came for {limits.idle:g} s after {came:,} bytes"
            ) from None
        now = time.monotonic()
        lasted = max(now - begun, 1e-3)
        if came and now - last < lasted / 2 and came / lasted < SLOW:
            raise Unbounded(f"drips: {came:,} bytes in {limits.total:g} s") from None
        raise


async def whole(answer: aiohttp.ClientResponse, limits: Limits) -> bytes:
    """Return a body. Raises as `read` does."""
    found = bytearray()
    await read(answer, limits, found.extend)
    return bytes(found)
