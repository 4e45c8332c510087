"""What is wrong with an answer as it came over the wire, before a client mends it.

Usage::

    raw_answers.form_fault(
        answer
    )  # "object is null, not 'chat.completion'"; "" if nothing is wrong

Clients fill in what is missing and turn what they get into what they expect, each in its own way;
what passes with one of them breaks another. A check of each kind of fault calls a function of this
module for every answer that was received.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from kimi_nb.prove.verify.received import Answer, form, no_count, short
from kimi_nb.service.chat_markers import TOOL_CALL

SPECIAL = re.compile(r"<\|[a-z0-9_]+\|>|\[(?:EOS|BOS|EOT|UNK|PAD)\]")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_PLAUSIBLE = range(1_500_000_000, 10_000_000_000)  # seconds since 1970: 2017 to 2286
_LEAST = 16  # tokens from which on a stream has several pieces
_PER_EVENT = 32  # tokens in an event, which no speculative decoding reaches
_JUDGED = 0.5  # seconds a stream must last before its pace can be judged
_SPREAD = 0.02  # of these seconds, between the first and the last chunk


def form_fault(answer: Answer) -> str:
    """Return what is wrong with the fields of a whole answer, or ""."""
    body = answer.body
    if not answer.wire.kind.startswith("application/json"):
        return f"Content-Type {answer.wire.kind or 'is missing'!r}, not application/json"
    choices = body["choices"]
    if len(choices) != 1:
        return f"{len(choices)} choices, where one was asked for"
    return _envelope(body, "chat.completion") or _choice(choices[0], choices[0]["message"])


def stream_fault(answer: Answer) -> str:
    """Return what is wrong with the events of a stream, or ""."""
    wire = answer.wire
    if not wire.kind.startswith("text/event-stream"):
        return f"Content-Type {wire.kind or 'is missing'!r}, not text/event-stream"
    if wire.ends != 1:
        return f"{wire.ends} events [DONE]"
    if wire.strange:
        return f"{short(wire.strange[0], 60)!r} is no event, or comes after [DONE]"
    for event in wire.events:
        if wrong := _envelope(event, "chat.completion.chunk"):
            return wrong
    names = {str(event.get("id")) for event in wire.events}
    if len(names) != 1:
        return f"{len(names)} ids in one stream: {', '.join(sorted(names)[:3])}"
    return _order(wire.events)


def _order(events: tuple[Mapping[str, Any], ...]) -> str:
    """Return what is wrong with the order of roles, ends and usage."""
    roles, ended, counted = 0, False, 0
    for event in events:
        choices = event.get("choices")
        if not choices:
            counted += bool(event.get("usage"))
            continue
        choice = choices[0]
        delta = choice.get("delta") or {}
        if counted:
            return "an event with choices after the usage"
        if choice.get("index") != 0:
            return f"choices[0].index is {form(choice.get('index'))}, not 0"
        if ended:
            return "an event with choices after the finish_reason"
        if (role := delta.get("role")) is not None:
            if role != "assistant":
                return f"role is {form(role)}, not 'assistant'"
            roles += 1
        ended = choice.get("finish_reason") is not None
    if not roles:
        return "no delta has the role 'assistant'"
    return "" if counted == 1 else f"{counted} events have the usage, where one was asked for"


def _envelope(body: Mapping[str, Any], kind: str) -> str:
    """Return what is wrong with the fields that each answer and each event has."""
    if body.get("object") != kind:
        return f"object is {form(body.get('object'))}, not {kind!r}"
    if not isinstance(body.get("id"), str) or not body["id"]:
        return f"id is {form(body.get('id'))}, not a text"
    made = body.get("created")
    if type(made) is not int or made not in _PLAUSIBLE:
        return f"created is {form(made)}, not a time in seconds"
    return ""


def _choice(choice: Mapping[str, Any], message: Mapping[str, Any]) -> str:
    if type(choice.get("index")) is not int or choice["index"] != 0:
        return f"choices[0].index is {form(choice.get('index'))}, not 0"
    if message.get("role") != "assistant":
        return f"role is {form(message.get('role'))}, not 'assistant'"
    return "" if "content" in message else "message has no content, not even null"


def model_fault(answer: Answer, names: tuple[str, ...]) -> str:
    """Return which name of a model stands in an answer in place of ours, or ""."""
    bodies = answer.wire.events if answer.wire.streamed else (answer.body,)
    for body in bodies:
        if body.get("model") not in names:
            return f"model is {form(body.get('model'))}, not {names[0]!r}"
    return ""


def pieces_fault(answer: Answer) -> str:
    """Return how a stream came in one piece, or "".

    The pace can be judged only if the stream lasts for a while.
    """
    wire = answer.wire
    tokens = answer.usage.get("completion_tokens")
    tokens = tokens if type(tokens) is int else 0
    told = sum(map(_speaks, wire.events))
    if wire.sized:
        return "a Content-Length: the answer was whole before the first event was sent"
    if tokens >= _LEAST and told <= max(1, tokens // _PER_EVENT):
        return f"{tokens} tokens in {told} event{'s' * (told != 1)}"
    if wire.arrivals and tokens >= _LEAST and wire.seconds >= _JUDGED:
        spread = wire.arrivals[-1] - wire.arrivals[0]
        if spread < _SPREAD * wire.seconds:
            return (
                f"{told} events in {spread * 1000:.0f} ms, after {wire.arrivals[0]:.1f} s of "
                "silence: they were held back"
            )
    return ""


def pace(answer: Answer) -> str:
    """Say how a stream came, and whether its pace could be judged."""
    told = sum(map(_speaks, answer.wire.events))
    if not answer.wire.arrivals or answer.wire.seconds < _JUDGED:
        return f"{told} events; too quick to tell whether they were held back"
    return f"{told} events over {answer.wire.seconds:.1f} s"


def _speaks(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    delta = (choices[0].get("delta") or {}) if choices else {}
    return any(delta.get(name) for name in ("content", "reasoning", "reasoning_content")) or bool(
        delta.get("tool_calls")
    )


def character_fault(answer: Answer, *, tools: bool) -> str:
    """Return which text of an answer holds what no model says, or "".

    That is a special token, U+FFFD, or a control character. With ``tools``, the markers of tool
    calls are left to the checks of those. An answer that was cut off may end within a character.
    """
    for name, text in _texts(answer):
        plain = TOOL_CALL.sub("", text) if tools else text
        if found := SPECIAL.search(plain):
            return f"the special token {found[0]!r} in {name}: {_around(plain, found.start())!r}"
        cut = answer.finish_reason == "length"
        whole = plain.rstrip(_REPLACED) if cut else plain
        if (at := whole.find(_REPLACED)) >= 0:
            return f"U+FFFD in {name}: {_around(plain, at)!r}"
        for at, letter in enumerate(plain):
            if letter not in "\n\r\t" and unicodedata.category(letter) in ("Cc", "Cs"):
                return f"U+{ord(letter):04X} in {name}: {_around(plain, at)!r}"
    return ""


def _texts(answer: Answer) -> Iterator[tuple[str, str]]:
    yield "content", answer.content
    yield "reasoning", answer.thoughts
    for call in answer.calls:
        yield f"the arguments of {call.name}", call.arguments
        yield "the name of a tool call", call.name
        yield "the id of a tool call", call.id


def _around(text: str, at: int) -> str:
    return text[max(0, at - 20) : at + 20]


def end_fault(answer: Answer, *, named: bool) -> str:
    """Return how finish_reason and the tool calls of an answer contradict each other, or "".

    With ``named``, a function was named by tool_choice: OpenAI's API and vLLM then say stop.
    """
    ends = {"tool_calls", "length"} | ({"stop"} if named else set())
    if answer.calls and answer.finish_reason not in ends:
        return f"finish_reason {answer.finish_reason!r} beside {len(answer.calls)} tool calls"
    if answer.finish_reason == "tool_calls" and not answer.calls:
        return "finish_reason 'tool_calls' without a tool call"
    return ""


def calls_fault(answer: Answer) -> str:
    """Return what is wrong with the fields of the tool calls, their arguments apart, or ""."""
    for at, one in enumerate(_raw_calls(answer)):
        if one.get("type") != "function":
            return f"type of call {at} is {form(one.get('type'))}, not 'function'"
        if not one.get("id") or not isinstance(one["id"], str):
            return f"id of call {at} is {form(one.get('id'))}, not a text"
        if answer.wire.streamed and one.get("index") != at:
            return f"index of call {at} is {form(one.get('index'))}"
    names = [one.id for one in answer.calls]
    if len(set(names)) != len(names):
        return f"two tool calls have the id {names[0]!r}"
    for message in _messages(answer):
        if message.get("function_call"):
            return "function_call, which tool_calls replaced in 2023"
    return ""


def _messages(answer: Answer) -> Iterator[Mapping[str, Any]]:
    if not answer.wire.streamed:
        yield answer.body["choices"][0]["message"]
    for event in answer.wire.events:
        if event.get("choices"):
            yield event["choices"][0]["delta"]


def _raw_calls(answer: Answer) -> list[Mapping[str, Any]]:
    """Return the tool calls as they came; of a streamed one, its first piece."""
    if not answer.wire.streamed:
        return list(answer.body["choices"][0]["message"].get("tool_calls") or ())
    first: dict[int, Mapping[str, Any]] = {}
    for message in _messages(answer):
        for one in message.get("tool_calls") or ():
            first.setdefault(one["index"], one)
    return list(first.values())


def usage_fault(answer: Answer, most: int) -> str:
    """Return what is wrong with the usage of an answer of at most ``most`` tokens, or ""."""
    counts = answer.usage
    wrong = [no_count(name, value) for name, value in counts.items()]
    if len(counts) != 3 or any(wrong):
        return f"usage: {', '.join(filter(None, wrong)) or 'the answer has none'}"
    prompt, made, total = counts.values()
    if prompt + made != total or not 0 < made <= most or prompt < 1:
        return f"usage {dict(counts)} for max_tokens {most}"
    if answer.finish_reason == "length" and made != most:
        return f"completion_tokens {made} of an answer that was cut off after {most}"
    return _details_fault(answer.body.get("usage") or {}, prompt, made)


def _details_fault(usage: Mapping[str, Any], prompt: int, made: int) -> str:
    for group, name, most in (
        ("prompt_tokens_details", "cached_tokens", prompt),
        ("completion_tokens_details", "reasoning_tokens", made),
    ):
        told = usage.get(group)
        count = told.get(name) if isinstance(told, dict) else None
        if count is not None and (type(count) is not int or not 0 <= count <= most):
            return f"usage: {group}.{name} is {form(count)} of {most}"
    return ""
