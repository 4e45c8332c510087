"""Send one request of a check and return its answer, in the same form whether streamed or not.

Usage::

    answer = http_exchange.chat(place, target, {"messages": [...]}, stream=True)
    answer.content, answer.thoughts, answer.calls, answer.finish_reason, answer.usage

If there is no valid answer, Failed is raised with a cause of `kimi_nb/data/prove/checks.yaml`:
empty-200, cut-stream, ...
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kimi_nb.prove.verify.answer_bodies import parsed, streamed
from kimi_nb.prove.verify.contract import Failed, Gone, KeyRefused, NoAPI
from kimi_nb.prove.verify.received import Answer, short
from kimi_nb.prove.verify.target import Place, Target
from kimi_nb.service import http_client, probe
from kimi_nb.service.http_client import Fault, Limits

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
_LISTENS = 3.0  # seconds within which a running server accepts a connection
# The cause of a fault, where it has another name (`kimi_nb/data/prove/checks.yaml`).
_CAUSES = {Fault.LATE: "no-answer", Fault.CUT_OFF: "unreachable"}


def send(
    place: Place,
    target: Target,
    method: str,
    path: str,
    *,
    body: Any = None,
    key: str | None = None,
    seconds: float | None = None,
    stream: bool = False,
) -> http_client.Reply:
    """Send a request and return the reply, whatever its status.

    ``body`` is sent as JSON, or unchanged if it is a text. A 429 is asked again after each of the
    target's pauses.

    Raises:
        Failed: If there is no reply (no-answer, unreachable, drips, floods, ...).
        Gone: If the front door does not accept connections.
        NoAPI: If the front door does not speak TLS (no-tls).
    """
    limits = Limits(seconds or target.seconds)
    data = body if body is None or isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    key = target.key if key is None else key
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if place.rank is not None:
        headers["X-data-parallel-rank"] = str(place.rank)
    for pause in (*target.pauses, None):
        if stream:
            reply = http_client.stream(place.url + path, limits, headers=headers, data=data)
        else:
            reply = http_client.send(method, place.url + path, limits, headers=headers, data=data)
        if reply.mark:
            target.heard.add(reply.mark)
        if reply.status != 429 or pause is None:
            break
        time.sleep(pause)
    if reply.status == 0 or reply.fault is Fault.ELSEWHERE:
        if place.is_door and reply.fault is Fault.NO_TLS:
            plain = place.url.replace("https://", "http://", 1)
            raise NoAPI(f"{place.url}: {reply.error}; use {plain}", "no-tls")
        gone = place.is_door and reply.fault in (Fault.UNREACHABLE, Fault.CUT_OFF)
        if gone and not http_client.listens(place.url, _LISTENS):
            raise Gone(f"gone: {place.url} takes no connections ({reply.error})")
        raise Failed(reply.error, _CAUSES.get(reply.fault, reply.fault.value))
    return reply


def asked(reply: http_client.Reply) -> http_client.Reply:
    """Return a reply if it is a 200 with a body.

    Raises:
        Failed: If it is not, with the cause.
        KeyRefused: If it is a 401 or 403.
    """
    said = short(" ".join(reply.text.split()))
    if reply.status in (401, 403):
        raise KeyRefused(f"{reply.status}: {said}")
    if reply.status == 429:
        raise Failed(f"429 after several tries: {said}", "too-many-requests")
    if reply.status >= 500:
        raise Failed(f"{reply.status}: {said or 'no text'}", "server-error")
    if reply.status != 200:
        raise Failed(f"{reply.status}: {said}", "refused")
    if reply.error:
        # The body broke off, or never ended.
        raise Failed(
            f"{reply.error}, after {said!r}" if said else reply.error,
            "cut-stream"
            if reply.fault is Fault.CUT_OFF
            else _CAUSES.get(reply.fault, reply.fault.value),
        )
    if not reply.text.strip():
        raise Failed("empty 200: a status and no body", "empty-200")
    return reply


def models(target: Target) -> list[str]:
    """Return the names that the front door lists; [] if it gives no list."""
    try:
        return [one["id"] for one in listing(send(target.door, target, "GET", MODELS))]
    except Failed:
        return []


def is_example_proxy(target: Target) -> bool:
    """Return whether the front door is vllm-ascend's example proxy, by what only that one tells.

    It counts its engines at GET /healthcheck, in all versions from v0.17.0rc1 to v0.25.1rc1.
    """
    try:
        reply = send(target.door, target, "GET", "/healthcheck")
    except Failed:  # the checks will report it
        return False
    return {"prefill_instances", "decode_instances"} <= set(reply.body)


def no_api(target: Target, listed: http_client.Reply) -> str:
    """Return why there is no OpenAI API at the front door, or "" if there may be one.

    This is judged by the reply to GET /v1/models and by one chat: the upstream proxy of vllm-ascend
    has chats but no list of models.
    """
    if not (first := _foreign(listed)):
        return ""
    try:
        reply = send(
            target.door,
            target,
            "POST",
            CHAT,
            body={
                "model": target.model,
                "messages": [{"role": "user", "content": probe.QUESTION}],
                "max_tokens": 1,
            },
        )
    except Failed:  # the checks will report it
        return ""
    second = _foreign(reply)
    return f"no OpenAI API is there: {first} at {MODELS}, {second} at {CHAT}" if second else ""


def _foreign(reply: http_client.Reply) -> str:
    """Return status and form of a reply that no OpenAI API gives, or "" if one may give it.

    An API's own 404 for an unknown model has an error in JSON. An HTML page with a 502 is a
    gateway's, about the server behind it.
    """
    page = reply.text.lstrip()[:9].lower().startswith(("<!doctype", "<html"))
    absent = reply.status in (404, 405, 501) and "error" not in (
        *reply.body,
        reply.body.get("object"),
    )
    if not absent and not (page and reply.status in (200, 400, 404, 405, 501)):
        return ""
    return f"{reply.status}{' with HTML' if page else ''}"


def listing(reply: http_client.Reply) -> list[dict[str, Any]]:
    """Return the models in a reply to GET /v1/models; [] if it is not such a list."""
    data = reply.body.get("data") if reply.status == 200 else None
    return (
        [one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
        if isinstance(data, list)
        else []
    )


def chat(
    place: Place,
    target: Target,
    body: Mapping[str, Any],
    *,
    stream: bool = False,
    path: str = CHAT,
    seconds: float | None = None,
) -> Answer:
    """Send a chat and return its completion.

    Raises:
        Failed: If there is no valid answer.
    """
    whole = {"model": target.model, **body}
    if stream:
        whole |= {"stream": True, "stream_options": {"include_usage": True}}
    reply = asked(send(place, target, "POST", path, body=whole, stream=stream, seconds=seconds))
    answer = streamed(reply.text) if stream else parsed(reply.text)
    came = replace(
        answer.wire,
        kind=reply.kind,
        sized=reply.sized,
        arrivals=reply.arrivals,
        seconds=reply.seconds,
    )
    return replace(answer, wire=came)
