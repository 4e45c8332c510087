"""A service that keeps the contract, with a switch for each of many faults.

with FaultyService() as service:
    service.fault = FAULTS["usage-as-text"]

`FAULTS` says of each fault which checks must name it, one of them at least. A fault changes what is
sent and nothing else, so that the service is a good one without it.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from testbed import odd_server
from testbed.odd_server import OddServer

from kimi_nb.core import data_files

MODEL = "kimi-k2.5"
RANKS = 4
_PAUSE = 0.05  # seconds between the events of a stream that is held back
Body = dict
Change = Callable[[Body, Body], None]


@dataclass(frozen=True)
class Fault:
    """A fault; each field that is set is one thing that goes wrong.

    Attributes:
        checks: The checks of which one must name it.
        made: Changes the answer (answer, request), before it is sent whole or as a stream.
        whole: Changes an answer that is sent whole.
        events: Changes the events of a stream.
        raw: Changes the bytes of an answer that is sent whole.
        lines: Changes the lines of a stream.
        kind, stream_kind: The Content-Type.
        sized: A stream has a Content-Length.
        held: The events of a stream are held back and come at once.
        refuses: Tells of a request what it is refused with: status and text.
        takes: Tells whether a request is taken that should be refused.
        models: What GET /v1/models answers.
        counts: The tokens of the prompt.
        rank: Only this rank has the fault; the front door leads to rank 0.
    """

    checks: tuple[str, ...]
    made: Change | None = None
    whole: Change | None = None
    events: Callable[[list[Body]], list[Body]] | None = None
    raw: Callable[[bytes], bytes] | None = None
    lines: Callable[[list[str]], list[str]] | None = None
    kind: str = "application/json"
    stream_kind: str = "text/event-stream; charset=utf-8"
    sized: bool = False
    held: bool = False
    refuses: Callable[[Body], tuple[int, str] | None] | None = None
    takes: Callable[[Body], bool] = lambda body: False
    models: Body | None = None
    counts: Callable[[Body, int], int] = lambda body, count: count
    rank: int | None = None


GOOD = Fault(())


class FaultyService(OddServer):
    """See the module. ``fault`` may change while it runs."""

    def __init__(self) -> None:
        super().__init__("")
        self.fault = GOOD
        self._server.RequestHandlerClass = self._handler()

    def _handler(self) -> type:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                found = service.fault.models or odd_server.listing([MODEL])
                _send(self, 200, json.dumps(found).encode(), "application/json")

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                _answer(service, self, raw)

            def log_message(self, form: str, *args: object) -> None:
                return

        return Handler


def _answer(service: FaultyService, to: BaseHTTPRequestHandler, raw: bytes) -> None:
    fault, rank = service.fault, to.headers.get("X-data-parallel-rank", "0")
    if fault.rank is not None and int(rank) != fault.rank:
        fault = GOOD
    with service.lock:
        service.completions += 1
        number = service.completions
    try:
        body = json.loads(raw)
    except ValueError:
        body = {}
    if fault.refuses and (refusal := fault.refuses(body)):
        _send(to, refusal[0], refusal[1].encode(), "text/plain")
    elif wrong := _mistake(body) if not fault.takes(body) else None:
        _send(to, wrong[0], json.dumps({"error": {"message": wrong[1]}}).encode(), fault.kind)
    elif to.path == "/tokenize":
        told = json.dumps({"count": _tokens(body)}).encode()
        _send(to, 200, told, "application/json")
    elif to.path != "/v1/chat/completions":
        _send(to, 404, b'{"error": {"message": "not found"}}', "application/json")
    else:
        _chat(to, {"max_tokens": 64, "model": MODEL, **body}, fault, number)


def _mistake(body: Body) -> tuple[int, str] | None:
    """Status and message for a request that a service must refuse."""
    if not body:
        return 400, "no JSON"
    if body["model"] != MODEL:
        return 404, "no such model"
    if _tokens(body) > odd_server.LENGTH:
        return 400, "too long"
    return (400, "out of range") if odd_server.senseless({"max_tokens": 1, **body}) else None


def _tokens(body: Body) -> int:
    """Tokens of a prompt; as Kimi's vocabulary has them, where that is known."""
    text = body["messages"][-1]["content"]
    known = data_files.facts("prove/vendor_checks")["prompt_tokens"]["cases"]
    counts = {one["text"]: one["tokens"] for one in known}
    known_text = isinstance(text, str) and text in counts
    return 20 + counts[text] if known_text else odd_server._tokens(body)


def _chat(to: BaseHTTPRequestHandler, body: Body, fault: Fault, number: int) -> None:
    made = _good(body, number)
    usage = made["usage"]
    usage["prompt_tokens"] = fault.counts(body, _tokens(body))
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    if fault.made:
        fault.made(made, body)
    if body.get("stream"):
        _stream(to, made, fault)
        return
    if fault.whole:
        fault.whole(made, body)
    data = json.dumps(made, ensure_ascii=False).encode()
    _send(to, 200, fault.raw(data) if fault.raw else data, fault.kind)


def _good(body: Body, number: int) -> Body:
    made = odd_server._message(body, "", number)
    message = made["choices"][0]["message"]
    if str(body["messages"][-1]["content"]).startswith("Count") and message["content"]:
        message["content"] = " ".join(f"number {at}," for at in range(1, 33))
        tokens = min(64, body["max_tokens"])
        made["usage"] |= {"completion_tokens": tokens}
    elif len(message["content"] or "") > 200:
        message["content"] = message["content"][:100]
    if "reasoning" in message:
        message["reasoning"] = "It asks me something, and I am to answer in a few words."
    return made


def _stream(to: BaseHTTPRequestHandler, made: Body, fault: Fault) -> None:
    events = odd_server.events_of(made)
    events = fault.events(copy.deepcopy(events)) if fault.events else events
    lines = [f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in events]
    lines.append("data: [DONE]\n\n")
    lines = fault.lines(lines) if fault.lines else lines
    to.send_response(200)
    if fault.stream_kind:
        to.send_header("Content-Type", fault.stream_kind)
    if fault.sized:
        to.send_header("Content-Length", str(len("".join(lines).encode())))
        to.end_headers()
        to.wfile.write("".join(lines).encode())
        return
    to.send_header("Transfer-Encoding", "chunked")
    to.end_headers()
    if fault.held:
        time.sleep(min(20, len(lines)) * _PAUSE)
    for data in (line.encode() for line in lines):
        to.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    to.wfile.write(b"0\r\n\r\n")


def _send(to: BaseHTTPRequestHandler, status: int, data: bytes, kind: str) -> None:
    to.send_response(status)
    if kind:
        to.send_header("Content-Type", kind)
    to.send_header("Content-Length", str(len(data)))
    to.end_headers()
    to.wfile.write(data)


# What faults change ---------------------------------------------------------------------


def _message(made: Body) -> Body:
    return made["choices"][0]["message"]


def _content(change: Callable[[str], str]) -> Change:
    """Change the content, where there is any."""

    def apply(made: Body, body: Body) -> None:
        if _message(made).get("content"):
            _message(made)["content"] = change(_message(made)["content"])

    return apply


def _thoughts(change: Callable[[str], str]) -> Change:
    def apply(made: Body, body: Body) -> None:
        if "reasoning" in _message(made):
            _message(made)["reasoning"] = change(_message(made)["reasoning"])

    return apply


def _said(text: str, when: str = "") -> Change:
    """Say this in place of the content; with ``when``, only to such a question."""

    def apply(made: Body, body: Body) -> None:
        if _message(made).get("content") and when in str(body["messages"][-1]["content"]):
            _message(made)["content"] = text

    return apply


def _field(name: str, *value: object) -> Change:
    """Set a field of the answer, or take it away."""
    return lambda made, body: _put(made, name, value)


def _choice(name: str, *value: object) -> Change:
    return lambda made, body: _put(made["choices"][0], name, value)


def _in_message(name: str, *value: object) -> Change:
    return lambda made, body: _put(_message(made), name, value)


def _put(where: Body, name: str, value: tuple[object, ...]) -> None:
    if value:
        where[name] = value[0]
    else:
        where.pop(name, None)


def _usage(change: Callable[[Body], Body]) -> Change:
    return lambda made, body: made.update(usage=change(made["usage"]))


def _calls(change: Callable[[list[Body]], object]) -> Change:
    """Change the tool calls, where there are any."""

    def apply(made: Body, body: Body) -> None:
        if found := _message(made).get("tool_calls"):
            _message(made)["tool_calls"] = change(found)

    return apply


def _each_call(change: Callable[[Body], Body]) -> Change:
    return _calls(lambda calls: [change(one) for one in calls])


def _arguments(change: Callable[[str], object]) -> Change:
    return _each_call(
        lambda one: {
            **one,
            "function": {**one["function"], "arguments": change(one["function"]["arguments"])},
        }
    )


def _end(reason: object, *, calls: bool) -> Change:
    """Change the finish_reason of answers with calls, or to tools without any."""

    def apply(made: Body, body: Body) -> None:
        has = bool(_message(made).get("tool_calls"))
        if has is calls and (calls or body.get("tools")):
            made["choices"][0]["finish_reason"] = reason

    return apply


def _untagged(tag: str, *, keep: bool = False) -> Change:
    """Put the thoughts in front of the content, with a tag between them."""

    def apply(made: Body, body: Body) -> None:
        message = _message(made)
        if "reasoning" in message and message.get("content"):
            message["content"] = f"{message['reasoning']}{tag}{message['content']}"
            if not keep:
                message.pop("reasoning")

    return apply


def _without_calls(made: Body, body: Body) -> None:
    """End as if there were calls, and leave them out."""
    if _message(made).pop("tool_calls", None):
        _message(made)["content"] = "I call the tool."


def _as_text(made: Body, body: Body) -> None:
    if calls := _message(made).pop("tool_calls", None):
        name = calls[0]["function"]["name"]
        _message(made)["content"] = f"<|tool_call_begin|>functions.{name}:0"
        made["choices"][0]["finish_reason"] = "stop"


def _old_call(made: Body, body: Body) -> None:
    if calls := _message(made).get("tool_calls"):
        _message(made)["function_call"] = calls[0]["function"]


def _deltas(change: Callable[[Body], None]) -> Callable[[list[Body]], list[Body]]:
    """Change the delta of each event that has one."""

    def apply(events: list[Body]) -> list[Body]:
        for one in events:
            for choice in one["choices"]:
                change(choice["delta"])
        return events

    return apply


def _every(**fields: object) -> Callable[[list[Body]], list[Body]]:
    """Set fields of each event."""
    return lambda events: [{**one, **fields} for one in events]


def _in_one(events: list[Body]) -> list[Body]:
    """Join the words of a stream to one event."""
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in events[:-2])
    thoughts = "".join(one["choices"][0]["delta"].get("reasoning") or "" for one in events[:-2])
    if any("tool_calls" in one["choices"][0]["delta"] for one in events[:-2]):
        return events
    delta = {"role": "assistant", "content": text} | ({"reasoning": thoughts} if thoughts else {})
    events[0]["choices"][0]["delta"] = delta
    return [events[0], *events[-2:]]


def _twice_called(events: list[Body]) -> list[Body]:
    """Send the pieces of tool calls twice."""
    return [
        again
        for one in events
        for again in [one] * (1 + bool(one["choices"] and "tool_calls" in _delta(one)))
    ]


def _delta(event: Body) -> Body:
    return event["choices"][0]["delta"]


def _no_index(delta: Body) -> None:
    for one in delta.get("tool_calls") or ():
        one.pop("index")


def _only(body: Body, **fields: object) -> bool:
    return all(body.get(name) == value for name, value in fields.items())


def _silent(made: Body, body: Body) -> None:
    made["choices"][0]["message"] = {"role": "assistant", "content": ""}


def _tools_of(body: Body) -> str:
    return json.dumps(body.get("tools") or "")


def _words(body: Body) -> str:
    """The words that are to be repeated, as an answer in any language can."""
    _, repeats, words = str(body["messages"][-1]["content"]).partition(f"{_REPEATED}: ")
    return words if repeats else ""


_SPANISH = "Soy Kimi, un asistente de inteligencia artificial creado por la empresa Moonshot AI."
_CHINESE = "我是月之暗面开发的人工智能助手，可以回答问题、阅读文件并帮助你完成各种任务。"
_REPEATED = "Repeat these words"
_WORD = "Say this word"
_CANARY = ("canary/words",)
_FORM = ("api/form",)
_STREAM = ("streaming/form",)
_USAGE = ("api/usage",)
_CHARACTERS = ("content/characters",)
_TOOL_FORM = ("tool-calls/form",)
_ARGUMENTS = ("tool-calls/arguments",)
_CHAT = ("api/chat",)


def awkward(made: Body, body: Body) -> None:
    """Go wrong in the way that the question names, as an endpoint does now and then."""
    for name in str(body["messages"][-1]["content"]).split():
        if name in FAULTS:
            fault = FAULTS[name]
            for change in filter(None, (fault.made, None if body.get("stream") else fault.whole)):
                change(made, body)


FAULTS: dict[str, Fault] = {
    # Characters: in each place where a text stands
    "im-end-after-content": Fault(_CHARACTERS, _content(lambda text: text + "<|im_end|>")),
    "im-assistant-before-content": Fault(
        _CHARACTERS, _content(lambda text: "<|im_assistant|>" + text)
    ),
    "eos-after-content": Fault(_CHARACTERS, _content(lambda text: text + "[EOS]")),
    "reserved-token-in-content": Fault(
        _CHARACTERS, _content(lambda text: text + "<|reserved_token_163600|>")
    ),
    "im-end-in-thoughts": Fault(_CHARACTERS, _thoughts(lambda text: text + "<|im_end|>")),
    "im-end-after-json": Fault(
        _CHARACTERS,
        lambda made, body: (
            _content(lambda text: text + "<|im_end|>")(made, body)
            if body.get("response_format")
            else None
        ),
    ),
    "im-end-in-next-turn": Fault(
        ("tool-calls/next-turn",),
        lambda made, body: (
            _content(lambda text: text + "<|im_end|>")(made, body)
            if body["messages"][-1]["role"] == "tool"
            else None
        ),
    ),
    "fffd-in-content": Fault(_CHARACTERS, _content(lambda text: text[:4] + "\ufffd" + text[4:])),
    "fffd-after-json": Fault(
        _CHARACTERS,
        lambda made, body: (
            _content(lambda text: text + "\ufffd")(made, body)
            if body.get("response_format")
            else None
        ),
    ),
    "fffd-in-thoughts": Fault(_CHARACTERS, _thoughts(lambda text: text[:4] + "\ufffd")),
    "fffd-in-a-stream": Fault(
        (*_CHARACTERS, "streaming/equal"),
        events=_deltas(
            lambda delta: delta.update(content="\ufffd") if "content" in delta else None
        ),
    ),
    "fffd-in-arguments": Fault(
        _ARGUMENTS, _arguments(lambda text: text.replace("Beijing", "Bei\ufffding"))
    ),
    "fffd-after-arguments-as-space": Fault(
        ("tool-calls/arguments",), _arguments(lambda text: text + "\ufffd")
    ),
    "bytes-that-are-no-utf-8": Fault(
        _CHARACTERS, raw=lambda data: data.replace(b"You said", b"You \xe6\x9csaid")
    ),
    "escape-in-content": Fault(_CHARACTERS, _content(lambda text: text + "\x1b[0m")),
    "nul-in-content": Fault(_CHARACTERS, _content(lambda text: text + "\0")),
    # Thoughts
    "thoughts-without-a-tag": Fault(("reasoning/apart",), _untagged("\n")),
    "thoughts-after-a-closing-tag": Fault(("reasoning/apart",), _untagged("</think>")),
    "thoughts-with-old-tags": Fault(("reasoning/apart",), _untagged("◁/think▷")),
    "thoughts-twice": Fault(("reasoning/apart",), _untagged("\n", keep=True)),
    "thoughts-of-two-kinds": Fault(
        ("reasoning/apart",),
        whole=lambda made, body: (
            _message(made).update(reasoning_content="Something else.")
            if "reasoning" in _message(made)
            else None
        ),
    ),
    "no-thoughts": Fault(("reasoning/apart",), _in_message("reasoning")),
    "thinking-that-stays-on": Fault(
        ("reasoning/off",), _in_message("reasoning", "It asks me something.")
    ),
    "thoughts-where-thinking-is-off": Fault(
        ("reasoning/off",),
        lambda made, body: (
            _content(lambda text: f"Hm.</think>{text}")(made, body)
            if "reasoning" not in _message(made)
            else None
        ),
    ),
    "thoughts-that-are-no-text": Fault(
        (*_CHAT, "reasoning/apart"), whole=_in_message("reasoning", {"text": "hm"})
    ),
    # The model's name
    "another-model": Fault(("api/answered-model",), _field("model", "gpt-4o")),
    "no-model": Fault(("api/answered-model",), _field("model")),
    "model-is-null": Fault(("api/answered-model",), whole=_field("model", None)),
    "another-model-in-streams": Fault(("api/answered-model",), events=_every(model="kimi-k2")),
    "path-of-the-weights-as-model": Fault(
        ("api/answered-model",), _field("model", "/models/Kimi-K2.5")
    ),
    # The form of a whole answer
    "object-is-missing": Fault(_FORM, whole=_field("object")),
    "object-of-completions": Fault(_FORM, whole=_field("object", "text_completion")),
    "object-of-streams": Fault(_FORM, whole=_field("object", "chat.completion.chunk")),
    "id-is-missing": Fault(_FORM, whole=_field("id")),
    "id-is-a-number": Fault(_FORM, whole=_field("id", 7)),
    "id-is-empty": Fault(_FORM, whole=_field("id", "")),
    "created-is-missing": Fault(_FORM, whole=_field("created")),
    "created-in-milliseconds": Fault(_FORM, whole=_field("created", 1_790_000_000_000)),
    "created-as-text": Fault(_FORM, whole=_field("created", "2026-09-21T00:00:00Z")),
    "role-is-missing": Fault(_FORM, whole=_in_message("role")),
    "role-is-model": Fault(_FORM, whole=_in_message("role", "model")),
    "index-is-missing": Fault(_FORM, whole=_choice("index")),
    "index-is-one": Fault(_FORM, whole=_choice("index", 1)),
    "index-is-text": Fault(_FORM, whole=_choice("index", "0")),
    "two-choices": Fault(_FORM, whole=lambda made, body: made.update(choices=made["choices"] * 2)),
    "json-as-html": Fault(_FORM, kind="text/html"),
    "json-as-text": Fault(_FORM, kind="text/plain; charset=utf-8"),
    "no-content-type": Fault(_FORM, kind=""),
    "content-in-parts": Fault(
        _CHAT, whole=_in_message("content", [{"type": "text", "text": "I am Kimi."}])
    ),
    "choices-as-object": Fault(
        _CHAT, whole=lambda made, body: made.update(choices={"0": made["choices"][0]})
    ),
    "message-is-missing": Fault(_CHAT, whole=_choice("message")),
    "text-in-place-of-a-message": Fault(_CHAT, whole=_choice("message", "I am Kimi.")),
    "not-a-number": Fault(
        _CHAT, raw=lambda data: data.replace(b'"index": 0', b'"index": 0, "logprobs": NaN')
    ),
    "garbage-after-the-body": Fault(_CHAT, raw=lambda data: data + b"}"),
    "byte-order-mark": Fault(_CHAT, raw=lambda data: b"\xef\xbb\xbf" + data),
    "json-inside-of-json": Fault(_CHAT, raw=lambda data: json.dumps(data.decode()).encode()),
    "body-in-a-list": Fault(_CHAT, raw=lambda data: b"[" + data + b"]"),
    "empty-body": Fault(_CHAT, raw=lambda data: b""),
    "spaces-only": Fault(_CHAT, raw=lambda data: b"  \n"),
    "no-words": Fault(_CHAT, _silent),
    "error-with-200": Fault(_CHAT, raw=lambda data: b'{"error": {"message": "EngineDeadError"}}'),
    # Usage
    "usage-as-text": Fault(
        _USAGE, _usage(lambda usage: {name: str(count) for name, count in usage.items()})
    ),
    "usage-as-floats": Fault(
        _USAGE, _usage(lambda usage: {name: float(count) for name, count in usage.items()})
    ),
    "usage-is-missing": Fault(_USAGE, whole=_field("usage")),
    "usage-is-null": Fault(_USAGE, whole=_field("usage", None)),
    "usage-is-a-list": Fault(_USAGE, whole=_field("usage", [1, 2, 3])),
    "usage-in-other-words": Fault(
        _USAGE,
        _usage(lambda usage: {"input_tokens": usage["prompt_tokens"], "output_tokens": 4}),
    ),
    "usage-that-does-not-add-up": Fault(
        _USAGE, _usage(lambda usage: usage | {"total_tokens": usage["total_tokens"] + 1})
    ),
    "usage-without-completion": Fault(
        _USAGE,
        _usage(
            lambda usage: usage | {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        ),
    ),
    "usage-below-zero": Fault(
        _USAGE, _usage(lambda usage: usage | {"prompt_tokens": -1, "total_tokens": 3})
    ),
    "usage-above-max-tokens": Fault(
        _USAGE,
        _usage(
            lambda usage: (
                usage | {"completion_tokens": 999, "total_tokens": usage["prompt_tokens"] + 999}
            )
        ),
    ),
    "more-cached-than-sent": Fault(
        _USAGE, _usage(lambda usage: usage | {"prompt_tokens_details": {"cached_tokens": 10**6}})
    ),
    "more-thought-than-said": Fault(
        _USAGE,
        _usage(lambda usage: usage | {"completion_tokens_details": {"reasoning_tokens": 10**6}}),
    ),
    "cut-off-without-reason": Fault(_USAGE, _choice("finish_reason", "length")),
    "prompt-tokens-of-another-template": Fault(
        ("api/usage-exact",), counts=lambda body, count: count + 7
    ),
    "another-vocabulary": Fault(
        ("api/prompt-tokens",),
        counts=lambda body, count: len(str(body["messages"][-1]["content"]).encode()) // 2 + 9,
    ),
    "spaces-are-lost": Fault(
        ("api/prompt-tokens",),
        counts=lambda body, count: count - 5 * ("def area" in str(body["messages"])),
    ),
    # The end of an answer
    "finish-reason-is-null": Fault(("api/finish-reason",), whole=_choice("finish_reason", None)),
    "finish-reason-eos": Fault(("api/finish-reason",), whole=_choice("finish_reason", "eos")),
    "finish-reason-in-the-message": Fault(
        ("api/finish-reason",),
        whole=lambda made, body: _message(made).update(
            finish_reason=made["choices"][0].pop("finish_reason")
        ),
    ),
    "stop-where-it-was-cut": Fault(("api/finish-reason",), whole=_choice("finish_reason", "stop")),
    "calls-where-none-were-offered": Fault(
        ("api/finish-reason",), whole=_choice("finish_reason", "tool_calls")
    ),
    "max-tokens-is-ignored": Fault(
        ("api/finish-reason",),
        lambda made, body: (
            _said("and so it went on and on, " * 20)(made, body)
            if body["max_tokens"] == 1
            else None
        ),
    ),
    # Tool calls
    "arguments-as-object": Fault(_ARGUMENTS, whole=_arguments(json.loads)),
    "arguments-are-null": Fault(_ARGUMENTS, whole=_arguments(lambda text: None)),
    "arguments-as-list": Fault(_ARGUMENTS, whole=_arguments(lambda text: [text])),
    "arguments-encoded-twice": Fault(_ARGUMENTS, _arguments(json.dumps)),
    "arguments-in-single-quotes": Fault(
        _ARGUMENTS, _arguments(lambda text: text.replace('"', "'"))
    ),
    "arguments-cut-off": Fault(_ARGUMENTS, _arguments(lambda text: text[:-2])),
    "arguments-in-a-fence": Fault(_ARGUMENTS, _arguments(lambda text: f"```json\n{text}\n```")),
    "arguments-too-many": Fault(
        _ARGUMENTS, _arguments(lambda text: text.replace("{", '{"extra": 1, ', 1))
    ),
    "arguments-too-few": Fault(_ARGUMENTS, _arguments(lambda text: "{}")),
    "arguments-of-no-enum": Fault(
        _ARGUMENTS, _arguments(lambda text: text.replace("Beijing", "Atlantis"))
    ),
    "special-token-in-arguments": Fault(
        _ARGUMENTS, _arguments(lambda text: text.replace("Beijing", "Beijing<|im_end|>"))
    ),
    "stop-beside-calls": Fault(("tool-calls/end", "tool-calls/auto"), _end("stop", calls=True)),
    "stop-beside-streamed-calls": Fault(
        ("tool-calls/end", "tool-calls/streaming"),
        events=lambda events: [
            {**one, "choices": [{**choice, "finish_reason": "stop"} for choice in one["choices"]]}
            if any(choice.get("finish_reason") for choice in one["choices"])
            else one
            for one in events
        ],
    ),
    "tool-calls-without-calls": Fault(("tool-calls/end", "tool-calls/auto"), _without_calls),
    "tool-calls-after-words": Fault(("tool-calls/end",), _end("tool_calls", calls=False)),
    "ids-of-openai": Fault(("tool-calls/ids",), _each_call(lambda one: {**one, "id": "call_8aF2"})),
    "ids-without-functions": Fault(
        ("tool-calls/ids",), _each_call(lambda one: {**one, "id": one["function"]["name"] + ":0"})
    ),
    "ids-all-alike": Fault(
        ("tool-calls/several", "tool-calls/form"),
        _each_call(lambda one: {**one, "id": "functions.get_weather:0"}),
    ),
    "id-of-a-call-is-missing": Fault(
        ("tool-calls/ids", "tool-calls/form"),
        _each_call(lambda one: {name: one[name] for name in ("type", "function")}),
    ),
    "type-of-a-call-is-missing": Fault(
        _TOOL_FORM, _each_call(lambda one: {name: one[name] for name in ("id", "function")})
    ),
    "type-of-a-call-is-tool": Fault(_TOOL_FORM, _each_call(lambda one: {**one, "type": "tool"})),
    "old-function-call-too": Fault(_TOOL_FORM, whole=_old_call),
    "name-with-functions": Fault(
        ("tool-calls/auto",),
        _each_call(
            lambda one: {
                **one,
                "function": {**one["function"], "name": "functions." + one["function"]["name"]},
            }
        ),
    ),
    "calls-as-text": Fault(("tool-calls/auto",), _as_text),
    "calls-as-object": Fault(("tool-calls/auto",), whole=_calls(lambda calls: calls[0])),
    "calls-without-function": Fault(
        ("tool-calls/auto",), whole=_each_call(lambda one: {"id": one["id"]})
    ),
    "one-call-of-two": Fault(("tool-calls/several",), _calls(lambda calls: calls[:1])),
    "call-twice": Fault(("tool-calls/auto",), _calls(lambda calls: calls + calls)),
    "none-is-ignored": Fault(
        ("tool-calls/none",),
        lambda made, body: (
            _message(made).update(
                tool_calls=[
                    {
                        "id": "functions.get_weather:0",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": "{}"},
                    }
                ]
            )
            if body.get("tool_choice") == "none"
            else None
        ),
    ),
    "required-is-ignored": Fault(
        ("tool-calls/required",),
        lambda made, body: (
            _without_calls(made, body) if body.get("tool_choice") == "required" else None
        ),
    ),
    "named-calls-another": Fault(
        ("tool-calls/named",),
        lambda made, body: (
            _each_call(lambda one: {**one, "function": {"name": "get_weather", "arguments": "{}"}})(
                made, body
            )
            if isinstance(body.get("tool_choice"), dict)
            else None
        ),
    ),
    "streamed-calls-without-index": Fault(("tool-calls/streaming",), events=_deltas(_no_index)),
    "streamed-calls-twice": Fault(("tool-calls/streaming",), events=_twice_called),
    "no-references-in-schemas": Fault(
        ("tool-calls/schemas",),
        refuses=lambda body: (400, "$ref") if "$ref" in _tools_of(body) else None,
    ),
    "any-of-crashes": Fault(
        ("tool-calls/schemas",),
        refuses=lambda body: (500, "grammar") if "anyOf" in _tools_of(body) else None,
    ),
    "keys-are-made-plain": Fault(
        ("tool-calls/schemas",), _arguments(lambda text: text.replace("first name", "first_name"))
    ),
    "empty-lists": Fault(
        ("tool-calls/schemas",), _arguments(lambda text: text.replace('["Beijing"]', "[]"))
    ),
    "nothing-after-a-result": Fault(
        ("tool-calls/next-turn",),
        lambda made, body: _silent(made, body) if body["messages"][-1]["role"] == "tool" else None,
    ),
    # Streams
    "no-done": Fault(("streaming/equal",), lines=lambda lines: lines[:-1]),
    "done-twice": Fault(_STREAM, lines=lambda lines: [*lines, lines[-1]]),
    "an-event-after-done": Fault(_STREAM, lines=lambda lines: [*lines, lines[0]]),
    "ids-change-in-a-stream": Fault(
        _STREAM, events=lambda events: [{**one, "id": f"c-{at}"} for at, one in enumerate(events)]
    ),
    "no-id-in-a-stream": Fault(_STREAM, events=_every(id=None)),
    "chunks-called-completions": Fault(_STREAM, events=_every(object="chat.completion")),
    "chunks-without-object": Fault(_STREAM, events=_every(object=None)),
    "chunks-without-created": Fault(_STREAM, events=_every(created=None)),
    "no-role-in-a-stream": Fault(_STREAM, events=_deltas(lambda delta: delta.pop("role", None))),
    "another-role-in-a-stream": Fault(
        _STREAM,
        events=_deltas(lambda delta: delta.update(role="user") if "role" in delta else None),
    ),
    "no-end-in-a-stream": Fault(
        ("streaming/equal",),
        events=lambda events: [*events[:-2], events[-1]],
    ),
    "words-after-the-end": Fault(
        (*_STREAM, "streaming/equal"), events=lambda events: [events[-2], *events[:-2], events[-1]]
    ),
    "index-of-a-chunk": Fault(
        _STREAM,
        events=lambda events: [
            {**one, "choices": [{**choice, "index": 1} for choice in one["choices"]]}
            for one in events
        ],
    ),
    "no-usage-in-a-stream": Fault(("streaming/equal",), events=lambda events: events[:-1]),
    "usage-before-the-words": Fault(_STREAM, events=lambda events: [events[-1], *events[:-1]]),
    "usage-twice": Fault(_STREAM, events=lambda events: [*events, events[-1]]),
    "other-usage-in-a-stream": Fault(
        ("streaming/equal",),
        events=lambda events: [
            *events[:-1],
            {**events[-1], "usage": events[-1]["usage"] | {"completion_tokens": 1}},
        ],
    ),
    "all-in-one-event": Fault(("streaming/pieces",), events=_in_one),
    "stream-with-a-length": Fault(("streaming/pieces",), sized=True),
    "stream-held-back": Fault(("streaming/pieces",), held=True),
    "stream-as-json": Fault(_STREAM, stream_kind="application/json"),
    "stream-as-text": Fault(_STREAM, stream_kind="text/plain"),
    "stream-without-a-type": Fault(_STREAM, stream_kind=""),
    "lines-without-data": Fault(
        ("streaming/equal",), lines=lambda lines: [line.removeprefix("data: ") for line in lines]
    ),
    "a-line-of-another-kind": Fault(_STREAM, lines=lambda lines: ["warning: slow\n\n", *lines]),
    "stream-of-nothing": Fault(("streaming/equal",), lines=lambda lines: [": ping\n\n"]),
    "first-words-are-lost": Fault(
        ("streaming/equal",), events=lambda events: [events[0], *events[2:]]
    ),
    "last-words-are-lost": Fault(
        ("streaming/equal",), events=lambda events: [*events[:-3], *events[-2:]]
    ),
    "words-come-twice": Fault(
        ("streaming/equal",), events=lambda events: [*events[:3], events[2], *events[3:]]
    ),
    "error-in-a-stream": Fault(
        ("streaming/equal",),
        events=lambda events: [
            *events[:2],
            {"error": {"message": "EngineDeadError"}, "choices": []},
        ],
    ),
    "half-an-event": Fault(
        ("streaming/equal",), lines=lambda lines: [lines[0], lines[1][:30] + "\n\n", *lines[2:]]
    ),
    # One rank of four
    "word-salad-on-a-rank": Fault(_CANARY, _said(odd_server._SALAD), rank=1),
    "mixed-scripts-on-a-rank": Fault(_CANARY, _said(odd_server._SCRIPTS), rank=2),
    "chinese-on-a-rank": Fault(_CANARY, _content(lambda text: _CHINESE + text[9:]), rank=3),
    "spanish-on-a-rank": Fault(
        _CANARY, lambda made, body: _said(f"{_SPANISH} {_words(body)}")(made, body), rank=1
    ),
    "exclamation-marks-on-a-rank": Fault(_CANARY, _content(lambda text: "!" * 60), rank=2),
    "one-phrase-on-a-rank": Fault(_CANARY, _said("and so it is, " * 40), rank=3),
    "another-answer-on-a-rank": Fault(_CANARY, _said("Good morning.", _REPEATED), rank=1),
    "silence-on-a-rank": Fault(("engines/completion",), _silent, rank=2),
    "errors-on-a-rank": Fault(
        ("engines/completion",), refuses=lambda body: (500, "EngineDeadError"), rank=3
    ),
    # Many at once, and long prompts
    "wrong-words-under-load": Fault(("load/concurrent",), _said("Good morning.", _WORD)),
    "words-of-others-under-load": Fault(("load/concurrent",), _said("kw0000x", _WORD)),
    "one-id-under-load": Fault(("load/concurrent",), _field("id", "chatcmpl-1")),
    "garbled-under-load": Fault(
        ("load/concurrent",),
        lambda made, body: (
            _content(lambda text: text + "!" * 40)(made, body)
            if _WORD in str(body["messages"])
            else None
        ),
    ),
    "prompts-mixed-under-load": Fault(
        ("load/concurrent",),
        counts=lambda body, count: 30 if _WORD in str(body["messages"]) else count,
    ),
    "garbled-behind-long-prompts": Fault(
        ("canary/contexts",),
        lambda made, body: (
            _said("!" * 60)(made, body) if made["usage"]["prompt_tokens"] > 1500 else None
        ),
    ),
    # What goes in, and mistakes
    "json-in-a-fence": Fault(
        ("content/json-schema",),
        lambda made, body: (
            _content(lambda text: f"```json\n{text}\n```")(made, body)
            if body.get("response_format")
            else None
        ),
    ),
    "json-of-another-form": Fault(
        ("content/json-schema",),
        lambda made, body: (
            _said('{"city": "Tokyo", "warm": "yes"}')(made, body)
            if body.get("response_format")
            else None
        ),
    ),
    "picture-is-ignored": Fault(
        ("content/image",),
        counts=lambda body, count: 10 if "image_url" in str(body["messages"]) else count,
    ),
    "any-model-is-served": Fault(
        ("errors/unknown-model",), takes=lambda body: body.get("model") == "no-such-model"
    ),
    "bad-json-is-an-error-of-the-server": Fault(
        ("errors/bad-json",), refuses=lambda body: None if body else (500, "Internal Server Error")
    ),
    "mistakes-as-html": Fault(
        ("errors/bad-json",), refuses=lambda body: None if body else (400, "<html>Bad Request")
    ),
    "mistakes-without-words": Fault(
        ("errors/bad-json",), refuses=lambda body: None if body else (400, "")
    ),
    "long-prompts-are-cut": Fault(
        ("errors/too-long",), takes=lambda body: "word word word" in str(body.get("messages"))
    ),
    "cold-below-zero-is-taken": Fault(
        ("parameters/refused",), takes=lambda body: body.get("temperature", 1) < 0
    ),
    "no-tokens-are-taken": Fault(
        ("parameters/refused",), takes=lambda body: body.get("max_tokens") == 0
    ),
    "no-choice-is-an-error-of-the-server": Fault(
        ("parameters/refused",), refuses=lambda body: (500, "0") if body.get("n") == 0 else None
    ),
    "top-p-is-refused": Fault(
        ("parameters/accepted",),
        refuses=lambda body: (400, "top_p") if body.get("top_p") == 0.95 else None,
    ),
    "penalties-are-refused": Fault(
        ("parameters/accepted",),
        refuses=lambda body: (422, "penalty") if "presence_penalty" in body else None,
    ),
    # The list of models
    "list-without-object": Fault(("api/models",), models={"data": [{"id": MODEL}]}),
    "list-is-empty": Fault(("api/models",), models={"object": "list", "data": []}),
    "list-of-another-model": Fault(
        ("api/models",), models={"object": "list", "data": [{"id": "kimi-k2"}]}
    ),
}
