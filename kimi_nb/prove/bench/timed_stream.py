"""One streamed chat completion, timed as ``vllm bench serve`` times it.

Usage::

    timed = await timed_stream.ask(session, url, body, headers, prompt_len, limits)
    timed.ttft, timed.itl, timed.error  # seconds; "" or "kind: detail"

The first chunk with a choice is the first token, and each further one ends an interval. Token
counts come from the usage chunk. An answer that is no stream, or a stream without its end, is an
error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from kimi_nb.core.errors import short
from kimi_nb.prove.bench import load_session, request_faults
from kimi_nb.service import reply_mark
from kimi_nb.service.http_client import Limits

_SHOWN = 200  # characters to show of an answer that is an error
_PAGE = 1 << 20  # bytes that are read of an answer that is an error
_LONGEST = 1 << 20  # bytes of one message of a stream


@dataclass
class Timed:
    """A request and its times in seconds; ``start`` is a value of `time.perf_counter`.

    ``mark`` is REHEARSAL where a stand-in has answered.
    """

    prompt_len: int
    start: float = 0.0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    output_len: int = 0
    text: str = ""
    error: str = ""
    mark: str = ""

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return not self.error


class _Faulty(Exception):
    """An answer that is not valid; the message is ``kind: detail``, its detail cut short."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {short(detail.strip(), _SHOWN)}")


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    prompt_len: int,
    limits: Limits,
) -> Timed:
    """Send a request and read its stream to the end; failures of the service are not raised."""
    out = Timed(prompt_len, time.perf_counter())
    try:
        async with session.post(url, json=body, headers=headers, **load_session.ONLY) as answer:
            out.mark = reply_mark.of(answer.headers.get(reply_mark.HEADER, ""))
            if answer.status != 200:
                page = await load_session.whole(answer, replace(limits, size=_PAGE))
                text = page.decode("utf-8", "replace")
                raise _Faulty(request_faults.of_status(answer.status), f"{answer.status} {text}")
            stream = _Stream(out)
            await load_session.read(answer, limits, stream.take)
            stream.end()
    except (_Faulty, load_session.Unbounded) as error:
        out.error = str(error)
    except aiohttp.ClientConnectorError as error:
        out.error = f"unreachable: {error}"
    except (
        aiohttp.ServerDisconnectedError,
        aiohttp.ClientPayloadError,
        aiohttp.ClientOSError,
    ) as error:
        out.error = f"cut-off: {type(error).__name__}: {error}"
    except TimeoutError:
        out.error = f"timeout: no end after {time.perf_counter() - out.start:.0f} s"
    except (aiohttp.ClientError, ValueError) as error:
        out.error = f"malformed: {type(error).__name__}: {error}"[:_SHOWN]
    return out


class _Stream:
    """The stream of a request, read as it arrives."""

    def __init__(self, out: Timed) -> None:
        self._out, self._last = out, out.start
        self._buffer, self._seen, self._finished = b"", 0, False

    def take(self, piece: bytes) -> None:
        """Read what a piece completes."""
        out = self._out
        self._buffer += piece
        *messages, self._buffer = self._buffer.replace(b"\r\n", b"\n").split(b"\n\n")
        for message in messages:
            now = time.perf_counter()
            data = _data(message)
            if data is None:
                continue
            if data == "[DONE]":
                self._finished = True
                continue
            if _take(data, out):
                if self._seen:
                    out.itl.append(now - self._last)
                else:
                    out.ttft = now - out.start
                self._seen, self._last = self._seen + 1, now
        if len(self._buffer) > _LONGEST:
            raise _Faulty("floods", f"a message of more than {_LONGEST:,} bytes")

    def end(self) -> None:
        """Judge the stream as a whole."""
        out, buffer = self._out, self._buffer
        out.latency = self._last - out.start
        done = self._finished or (_data(buffer) == "[DONE]" if buffer.strip() else False)
        if buffer.strip() and not done:
            # A last message without its blank line was cut off; anything else, such as a page of
            # HTML, is not a stream.
            kind = "cut-off" if buffer.lstrip().startswith(b"data:") else "malformed"
            raise _Faulty(kind, buffer.decode(errors="replace"))
        if not self._seen:
            raise _Faulty("empty", "200, and no token")
        if not done:
            raise _Faulty("cut-off", f"the stream ended after {self._seen} chunks, without [DONE]")
        out.output_len = out.output_len or self._seen


def _data(message: bytes) -> str | None:
    """Return the data of a message, or None if it is empty or a comment (a ping).

    >>> _data(b"data: [DONE]"), _data(b": ping")
    ('[DONE]', None)
    """
    lines = [
        line
        for line in message.decode("utf-8", "replace").split("\n")
        if line.strip() and not line.startswith((":", "event:", "id:", "retry:"))
    ]
    if not lines:
        return None
    if not all(line.startswith("data:") for line in lines):
        raise _Faulty("malformed", lines[0])
    return "\n".join(line.removeprefix("data:").strip() for line in lines)


def _take(data: str, out: Timed) -> bool:
    """Note a chunk's text and usage; return whether it holds a choice, which counts as a token."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise _Faulty("malformed", data) from None
    if not isinstance(value, dict):
        raise _Faulty("malformed", data)
    if value.get("error"):
        raise _Faulty("error-in-stream", json.dumps(value["error"]))
    choices, usage = value.get("choices"), value.get("usage")
    if isinstance(usage, dict):
        out.output_len = _count(usage.get("completion_tokens"), out.output_len)
        out.prompt_len = _count(usage.get("prompt_tokens"), out.prompt_len)
    if not choices:
        return False
    first = choices[0] if isinstance(choices, list) else None
    delta = first.get("delta") if isinstance(first, dict) else None
    if not isinstance(delta, dict):
        raise _Faulty("malformed", data)
    out.text += str(delta.get("content") or "")
    return True


def _count(value: Any, otherwise: int) -> int:
    return value if type(value) is int and value >= 0 else otherwise
