"""One request of a check and its answer, in the same form whether streamed or not.

Usage::

    answer = http_exchange.chat(place, target, {"messages": [...]}, stream=True)
    answer.content, answer.thoughts, answer.calls, answer.finish_reason, answer.usage

If there is no valid answer, Failed is raised with a cause of `kimi_nb/data/prove/checks.yaml`:
empty-200, cut-stream, ...
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kimi_nb.prove.verify.contract import Failed, Gone, KeyRefused, NoAPI, Skip
from kimi_nb.prove.verify.target import Place, Target
from kimi_nb.service import http_client, probe
from kimi_nb.service.http_client import Fault, Limits

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
THOUGHTS = ("reasoning", "reasoning_content")  # vLLM's name since 0.12, and its name before
DONE = "[DONE]"  # the last event of a stream
_SSE = ("data:", ":", "event:", "id:", "retry:")  # how the lines of an event stream begin
_LISTENS = 3.0  # seconds within which a running server accepts a connection
# The cause of a fault, where it has another name (`kimi_nb/data/prove/checks.yaml`).
_CAUSES = {Fault.LATE: "no-answer", Fault.CUT_OFF: "unreachable"}
_LONGEST = 160  # characters to show of an answer


@dataclass(frozen=True)
class ToolCall:
    """One tool call.

    Attributes:
        arguments: The text as received, or the JSON of what was received in its place.
        form: What was received in place of a text, such as "an object"; "" for a text.
    """

    id: str
    name: str
    arguments: str
    form: str = field(default="", compare=False)


@dataclass(frozen=True)
class Wire:
    """How an answer came, before anything of it was read.

    Attributes:
        streamed: Whether it came as server-sent events.
        kind: Its Content-Type.
        sized: Whether it had a Content-Length.
        events: The JSON of each event of a stream.
        ends: How often the stream said [DONE].
        strange: Lines of the stream that are no event, and events after [DONE].
        arrivals: Seconds from the request to each chunk, () if they are not known.
        seconds: Seconds from the request to the end.
    """

    streamed: bool = False
    kind: str = ""
    sized: bool = False
    events: tuple[Mapping[str, Any], ...] = ()
    ends: int = 0
    strange: tuple[str, ...] = ()
    arrivals: tuple[float, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    """One completion. Two are equal if all fields except ``id``, ``body`` and ``wire`` are.

    Attributes:
        thoughts: The reasoning, which comes in a field of its own.
        named: The fields of the message in which thoughts came.
    """

    content: str
    thoughts: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    usage: Mapping[str, Any]
    named: tuple[str, ...] = ()
    id: str = field(default="", compare=False)
    body: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    wire: Wire = field(default_factory=Wire, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The thoughts and the content."""
        return self.thoughts + self.content

    @property
    def prompt_tokens(self) -> int:
        """The counted tokens of the prompt.

        Raises:
            Skip: If the usage has no such count, which is for api/usage to report.
        """
        told = self.usage.get("prompt_tokens")
        if wrong := no_count("prompt_tokens", told):
            raise Skip(f"usage: {wrong}; api/usage says more")
        return int(told)  # type: ignore[arg-type] # no_count has looked

    @property
    def answered(self) -> bool:
        """Whether there is any text or tool call."""
        return bool(self.text or self.calls)

    def __str__(self) -> str:
        parts = [f"thoughts {short(self.thoughts)!r}"] if self.thoughts else []
        parts += [f"content {short(self.content)!r}"] if self.content else []
        parts += [f"calls {one.id} {one.name}({short(one.arguments)})" for one in self.calls]
        return ", ".join([*(parts or ["no words"]), f"finish_reason {self.finish_reason}"])


def short(text: str, most: int = _LONGEST) -> str:
    """Shorten a text to what fits into a table.

    >>> short("garbled", 4)
    'garb ... (7 characters)'
    """
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"


def no_count(name: str, value: object) -> str:
    """Return why a value of usage is no count of tokens, or "" if it is one.

    >>> no_count("prompt_tokens", "15")
    "prompt_tokens is the text '15', not a whole number"
    """
    if type(value) is int:  # True is an int as well
        return ""
    return f"{name} is {form(value)}, not a whole number"


def form(value: object) -> str:
    """Say what kind of JSON a value is.

    >>> form({"city": "Beijing"}), form(None), form(1.5)
    ('an object', 'null', 'the number 1.5')
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the text {short(value, 40)!r}"
    return (
        "null" if value is None else f"the number {value}" if type(value) is float else f"{value}"
    )


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


def parsed(text: str, *, strict: bool = True) -> Answer:
    """Return the answer in a JSON body; unless ``strict``, its content may be no text.

    Raises:
        Failed: If the body is not a chat completion (malformed).
    """
    body = mapping(text)
    choice = _choice(body, text)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Failed(f"choices[0] has no message: {short(text)}", "malformed")
    if strict:
        _texts(message, text)
    return Answer(
        _text(message.get("content")),
        _thoughts(message),
        tuple(_call(one, text) for one in _list(message, "tool_calls", text)),
        _text(choice.get("finish_reason")),
        _usage(body),
        tuple(name for name in THOUGHTS if message.get(name)),
        _text(body.get("id")),
        body,
    )


def streamed(text: str, *, strict: bool = True) -> Answer:
    """Return the answer that a stream of server-sent events adds up to.

    Unless ``strict``, it may end without [DONE] and without a finish_reason, which then is "stop".

    Raises:
        Failed: If the stream is not valid (empty-stream, cut-stream, malformed, server-error).

    >>> events = [
    ...     'data: {"choices": [{"delta": {"content": "Hel"}}]}',
    ...     'data: {"choices": [{"delta": {"content": "lo"}, "finish_reason": "stop"}]}',
    ...     "data: [DONE]",
    ... ]
    >>> str(streamed(chr(10).join(events)))
    "content 'Hello', finish_reason stop"
    """
    # Not splitlines: a text may contain U+2028, which does not end a line of the stream.
    raw = re.split("\r?\n|\r", text)
    lines = [line[5:].strip() for line in raw if line.startswith("data:")]
    if strict and not any(lines):
        raise Failed(f"no event in the stream: {short(text)!r}", "empty-stream")
    usage: dict[str, Any] = {}
    made, reason, name = _Parts(), "", ""
    events: list[Mapping[str, Any]] = []
    for line in lines:
        if line == DONE:
            break
        event = mapping(line)
        events.append(event)
        if "error" in event:
            raise Failed(f"an error in the stream: {short(line)}", "server-error")
        usage, name = _usage(event) or usage, _text(event.get("id")) or name
        if not event.get("choices"):
            continue  # the event with the usage
        choice = _choice(event, line)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            raise Failed(f"an event without delta: {short(line)}", "malformed")
        _texts(delta, line)
        made.add(delta, line)
        reason = _text(choice.get("finish_reason")) or reason
    else:
        if strict:
            raise Failed(f"the stream ends without [DONE], after {short(lines[-1])}", "cut-stream")
    if not reason and strict:
        raise Failed(f"no finish_reason in {len(lines)} events", "cut-stream")
    return Answer(
        "".join(made.content),
        "".join(made.thoughts),
        made.whole(),
        reason or "stop",
        usage,
        tuple(made.named),
        name,
        wire=Wire(
            streamed=True,
            events=tuple(events),
            ends=lines.count(DONE),
            strange=(
                *(line for line in raw if line and not line.startswith(_SSE)),
                *(line for line in lines[len(events) + 1 :] if line != DONE),
            ),
        ),
    )


class _Parts:
    """A message that is received in pieces."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.thoughts: list[str] = []
        self.named: dict[str, None] = {}
        self.calls: dict[int, list[str]] = {}

    def add(self, delta: Mapping[str, Any], line: str) -> None:
        self.content.append(_text(delta.get("content")))
        self.thoughts.append(_thoughts(delta))
        self.named |= dict.fromkeys(name for name in THOUGHTS if delta.get(name))
        for one in _list(delta, "tool_calls", line):
            if not isinstance(one, dict) or not isinstance(one.get("index"), int):
                raise Failed(f"a piece of a tool call without index: {short(line)}", "malformed")
            function = one.get("function")
            if not isinstance(function, dict):
                function = {}
            call = self.calls.setdefault(one["index"], ["", "", ""])
            for at, piece in enumerate(
                (one.get("id"), function.get("name"), function.get("arguments"))
            ):
                call[at] += _text(piece)

    def whole(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(*self.calls[at]) for at in sorted(self.calls))


def mapping(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        Failed: If the text is not one (malformed).
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = f" ({error})" if "no number of JSON" in str(error) else ""
        raise Failed(f"no JSON object{why}: {short(text)!r}", "malformed") from None
    if not isinstance(value, dict):
        raise Failed(f"no JSON object: {short(text)!r}", "malformed")
    return value


def _no_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and other clients do not."""
    raise ValueError(f"{name} is no number of JSON")


def _choice(body: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Failed(f"no choices: {short(text)}", "malformed")
    return choices[0]


def _call(one: Any, text: str) -> ToolCall:
    function = one.get("function") if isinstance(one, dict) else None
    if not isinstance(function, dict):
        raise Failed(f"a tool call without function: {short(text)}", "malformed")
    arguments = function.get("arguments")
    name = _text(one.get("id")), _text(function.get("name"))
    if isinstance(arguments, str):
        return ToolCall(*name, arguments)
    return ToolCall(*name, json.dumps(arguments), form(arguments))


def _thoughts(message: Mapping[str, Any]) -> str:
    return next((_text(message[name]) for name in THOUGHTS if message.get(name)), "")


def _usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token counts that streamed and whole answers have in common."""
    given = body.get("usage")
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: given.get(name) for name in names} if isinstance(given, dict) else {}


def _texts(message: Mapping[str, Any], text: str) -> None:
    """Check that content and thoughts are texts, or absent.

    Raises:
        Failed: If one is not (malformed): a client would show something else than was said.
    """
    for name in ("content", *THOUGHTS):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise Failed(f"{name} is {form(value)}, not a text: {short(text)}", "malformed")


def _list(message: Mapping[str, Any], name: str, text: str) -> list[Any]:
    value = message.get(name)
    if value is None or isinstance(value, list):
        return value or []
    raise Failed(f"{name} is {form(value)}, not a list: {short(text)}", "malformed")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
