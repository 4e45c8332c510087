"""What a client asks a stand-in engine for, read as strictly as vLLM 0.20 reads it.

    request = chat(served, raw, headers)     # a Request, or an ApiError that says what is wrong

The order is vLLM's own: JSON, fields, model, messages, length, sampling, rank. A client's mistake
is a 400 or a 404 with vLLM's text, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.rehearse.engine.api import chat_prompts as prompts
from kimi_nb.rehearse.engine.api import stand_in_text as text
from kimi_nb.rehearse.engine.api.request_fields import (
    CHAT,
    COMPLETION,
    TOKENIZE,
    ApiError,
    Route,
    compact,
    fault,
    invalid,
    missing,
    parse,
    read,
    refused,
    take,
    typed,
)

MAX_N = 16384  # vLLM's VLLM_MAX_N_SEQUENCES
_FIELDS = {
    "model": "string",
    "stream": "bool",
    "stream_options": "dict",
    "n": "int",
    "seed": "int",
    "temperature": "float",
    "top_p": "float",
    "min_p": "float",
    "top_k": "int",
    "presence_penalty": "float",
    "frequency_penalty": "float",
    "repetition_penalty": "float",
    "max_tokens": "int",
    "min_tokens": "int",
    "ignore_eos": "bool",
    "response_format": "dict",
    "structured_outputs": "dict",
    "kv_transfer_params": "dict",
    "stop_token_ids": "list",
    "user": "string",
}
_CHAT_FIELDS = {
    **_FIELDS,
    "max_completion_tokens": "int",
    "include_reasoning": "bool",
    "tools": "list",
    "parallel_tool_calls": "bool",
    "chat_template_kwargs": "dict",
    "messages": "list",
}


@dataclass(frozen=True, slots=True)
class Served:
    """What a server offers. ``names``: the model's served names, the first one is its own;
    ``root``: the model as given; ``max_model_len`` in tokens; parsers by name, "" for none;
    ``flaw``: "", "garbled-output", "reasoning-leaks" or "tool-call-leaks"."""

    names: tuple[str, ...]
    root: str
    max_model_len: int
    reasoning_parser: str
    tool_parser: str
    auto_tools: bool
    multimodal: bool
    version: str
    dp_size: int = 1
    flaw: str = ""
    thinking: bool = True

    @property
    def calls_tools(self) -> bool:
        """vLLM makes its tool parser only together with --enable-auto-tool-choice."""
        return bool(self.auto_tools and self.tool_parser)

    @property
    def blind(self) -> str:
        """The model's name where it sees no pictures, else ""."""
        return "" if self.multimodal else self.root


@dataclass(frozen=True, slots=True)
class Tool:
    """A function on offer, with the JSON schema of its arguments."""

    name: str
    schema: Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is in order. ``choice``: "none", "auto" or "required"; ``literal``: the text
    that a response format asks for; ``shown``: reasoning may be returned; counts in tokens."""

    prompt: prompts.Prompt
    stream: bool
    include_usage: bool
    n: int
    rank: int | None
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    kv: dict[str, Any] | None
    literal: str | None
    thinking: bool = False
    shown: bool = True
    tools: tuple[Tool, ...] = ()
    choice: str = "none"
    parallel: bool = True


def chat(served: Served, raw: bytes, headers: Mapping[str, str]) -> Request:
    """A body of POST /v1/chat/completions; ``ApiError`` if it is not in order."""
    body = read(raw, CHAT)
    fields = take(body, _CHAT_FIELDS, CHAT)
    if "messages" not in fields:
        raise missing(CHAT, body, "messages")
    tools, choice = _tools(body, fields)
    literal = _literal(fields, body, CHAT)
    _known(served, fields)
    if choice != "none" and not served.calls_tools:
        auto = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'
        raise ApiError(
            400,
            f"{auto} to be set"
            if choice == "auto"
            else f'tool_choice="{choice}" requires --tool-call-parser to be set',
        )
    param = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    _fits(served, param, fields.get(param))
    thinking = fields.get("chat_template_kwargs", {}).get("thinking", served.thinking) is not False
    prompt = prompts.of_chat(fields["messages"], body.get("tools"), thinking, served.blind)
    return _request(
        served,
        fields,
        body,
        CHAT,
        headers,
        prompt,
        fields.get(param),
        {
            "literal": literal,
            "thinking": thinking,
            "shown": fields.get("include_reasoning", True),
            "tools": tools,
            "choice": choice,
            "parallel": fields.get("parallel_tool_calls", True),
        },
    )


def completion(served: Served, raw: bytes, headers: Mapping[str, str]) -> Request:
    """A body of POST /v1/completions; ``ApiError`` if it is not in order."""
    body = read(raw, COMPLETION)
    fields = take(body, _FIELDS, COMPLETION)
    if body.get("prompt") in (None, ""):
        raise refused(
            COMPLETION, body, "Either prompt or prompt_embeds must be provided and non-empty."
        )
    prompt = prompts.of_completion(body["prompt"], COMPLETION)
    literal = _literal(fields, body, COMPLETION)
    _known(served, fields)
    limit = fields.get("max_tokens", None if body.get("max_tokens", 0) is None else 16)
    _fits(served, "max_tokens", limit)
    return _request(served, fields, body, COMPLETION, headers, prompt, limit, {"literal": literal})


def tokenize(served: Served, raw: bytes) -> tuple[list[str], bool]:
    """A body of POST /tokenize: its tokens, and whether their texts are asked for."""
    body = read(raw, TOKENIZE)
    fields = take(
        body,
        {"model": "string", "prompt": "string", "messages": "list", "return_token_strs": "bool"},
        TOKENIZE,
    )
    if "prompt" not in fields and "messages" not in fields:
        raise invalid(
            TOKENIZE,
            *(
                fault("missing", ("body", union, name), body)
                for union, name in (
                    ("TokenizeCompletionRequest", "prompt"),
                    ("TokenizeChatRequest", "messages"),
                )
            ),
        )
    _known(served, fields)
    tokens = (
        text.split(fields["prompt"])
        if "prompt" in fields
        else prompts.of_chat(fields["messages"], body.get("tools"), True, served.blind).tokens
    )
    return tokens, fields.get("return_token_strs", False)


def _known(served: Served, fields: Mapping[str, Any]) -> None:
    model = fields.get("model")
    if model and model not in served.names:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


# Tools and formats ----------------------------------------------------------------------------


def _tools(body: dict[str, Any], fields: Mapping[str, Any]) -> tuple[tuple[Tool, ...], str]:
    """(the functions on offer, the choice among them)."""
    given, choice = fields.get("tools"), body.get("tool_choice")
    if given == []:
        raise refused(
            CHAT,
            body,
            "`tools` must not be an empty array. "
            "Either provide at least one tool or omit the field entirely.",
        )
    tools = []
    for at, tool in enumerate(given or ()):
        place = ("body", "tools", at)
        if not isinstance(tool, dict):
            raise invalid(CHAT, fault("dict_type", place, tool))
        function = tool.get("function")
        if not isinstance(function, dict):
            raise invalid(
                CHAT,
                fault(
                    "missing" if function is None else "dict_type", (*place, "function"), function
                ),
            )
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(name, str):
            raise invalid(
                CHAT,
                fault(
                    "missing" if name is None else "string_type", (*place, "function", "name"), name
                ),
            )
        if not isinstance(schema, dict | None):
            raise invalid(CHAT, fault("dict_type", (*place, "function", "parameters"), schema))
        tools.append(Tool(name, schema))
    if choice == "none":
        return tuple(tools), "none"
    if choice is None:
        return tuple(tools), "auto" if tools and "tool_choice" not in body else "none"
    if not tools:
        raise refused(CHAT, body, "When using `tool_choice`, `tools` must be set.")
    if choice in ("auto", "required"):
        return tuple(tools), choice
    if not isinstance(choice, dict):
        raise refused(
            CHAT,
            body,
            f"Invalid value for `tool_choice`: {choice}! Only named tools, "
            '"none", "auto" or "required" are supported.',
        )
    usage = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
    function = choice.get("function")
    if not isinstance(function, dict):
        raise refused(
            CHAT, body, f"Invalid value for `function`: `{function}` in `tool_choice`! {usage}"
        )
    if not isinstance(name := function.get("name"), str) or not name:
        raise refused(
            CHAT, body, f"Invalid `name` in `function`: `{name}` in `tool_choice`! {usage}"
        )
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        raise refused(
            CHAT,
            body,
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
        )
    # A function may be called "auto": with one left, "required" means it and nothing else.
    return named[:1], "required"


def _literal(
    fields: Mapping[str, Any],
    body: dict[str, Any],
    route: Route,
) -> str | None:
    """The text that a response format or vLLM's own structured outputs ask for."""
    form: Any = fields.get("response_format")
    wish = fields.get("structured_outputs", {})
    kind = "text" if form is None else form.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid(route, fault("literal_error", ("body", "response_format", "type"), kind))
    if kind == "json_schema":
        if not isinstance(schema := form.get("json_schema"), dict):
            raise refused(
                route,
                body,
                "When response_format type is 'json_schema', the "
                "'json_schema' field must be provided.",
                "response_format",
            )
        return compact(text.example(schema.get("schema")))
    if kind == "json_object" or wish.get("json_object"):
        return compact({text.MARK: True})
    schema = body.get("guided_json") if wish.get("json") is None else wish["json"]
    if isinstance(schema, str):
        try:
            schema = parse(schema)
        except ValueError:
            raise ApiError(400, "Invalid grammar specification.") from None
    if schema is not None:
        return compact(text.example(schema))
    words = wish.get("choice")
    return words[0] if isinstance(words, list) and words and isinstance(words[0], str) else None


# Lengths and sampling -------------------------------------------------------------------------


def _fits(served: Served, param: str, limit: int | None) -> None:
    most = served.max_model_len
    if limit is not None and limit > most:
        raise ApiError(
            400,
            f"{param}={limit} cannot be greater than "
            f"max_model_len=max_total_tokens={most}. Please request fewer output "
            f"tokens. (parameter={param}, value={limit})",
            param=param,
        )


def _request(
    served: Served,
    fields: Mapping[str, Any],
    body: Mapping[str, Any],
    route: Route,
    headers: Mapping[str, str],
    prompt: prompts.Prompt,
    limit: int | None,
    more: Mapping[str, Any],
) -> Request:
    """The request, once its lengths, its sampling and its rank are in order."""
    room = served.max_model_len - (limit or 0)
    if len(prompt.tokens) > room:
        # vLLM stops counting at the first token too many.
        raise ApiError(
            400,
            f"This model's maximum context length is {served.max_model_len} "
            f"tokens. However, you requested {limit or 0} output tokens and your prompt "
            f"contains at least {room + 1} input tokens, for a total of at least "
            f"{room + 1 + (limit or 0)} tokens. Please reduce the length of the input "
            "prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={room + 1})",
            param="input_tokens",
        )
    most = served.max_model_len - len(prompt.tokens)
    most = most if limit is None else min(limit, most)
    stop = body.get("stop")
    stop = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stop, list) or not all(isinstance(word, str) for word in stop):
        raise invalid(route, fault("string_type", ("body", "stop", "str"), stop))
    n, least = fields.get("n", 1), fields.get("min_tokens", 0)
    _sampling(fields, n, most, least, stop)
    return Request(
        prompt=prompt,
        stream=fields.get("stream", False),
        n=n,
        rank=_rank(served, headers),
        include_usage=_usage(fields, body, route),
        max_tokens=most,
        min_tokens=least,
        ignore_eos=fields.get("ignore_eos", False),
        stop=tuple(stop),
        kv=fields.get("kv_transfer_params"),
        **more,
    )


def _usage(fields: Mapping[str, Any], body: Any, route: Route) -> bool:
    """Whether the stream is to end with its usage."""
    options = fields.get("stream_options")
    if not options:
        return False
    if not fields.get("stream"):
        raise refused(
            route, body, "Stream options can only be defined when `stream=True`.", "stream_options"
        )
    value, wrong = typed("bool", options.get("include_usage") or False)
    if wrong:
        raise invalid(
            route,
            fault(wrong, ("body", "stream_options", "include_usage"), options["include_usage"]),
        )
    return value


def _sampling(fields: Mapping[str, Any], n: int, most: int, least: int, stop: list[str]) -> None:
    """vLLM's SamplingParams, in its order."""
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise ApiError(
            400,
            f"n must be at most {MAX_N}, got {n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable.",
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= (value := fields.get(name, 0.0)) <= 2:
            raise ApiError(400, f"{name} must be in [-2, 2], got {value}.")
    if (value := fields.get("repetition_penalty", 1.0)) <= 0:
        raise ApiError(400, f"repetition_penalty must be greater than zero, got {value}.")
    heat, top = fields.get("temperature", 1.0), fields.get("top_p", 1.0)
    if heat < 0:
        raise _parameter("temperature", heat, f"temperature must be non-negative, got {heat}.")
    if not 0 < top <= 1:
        raise _parameter("top_p", top, f"top_p must be in (0, 1], got {top}.")
    if (value := fields.get("top_k", 0)) < -1:
        raise ApiError(400, f"top_k must be 0 (disable), or at least 1, got {value}.")
    if not 0 <= (value := fields.get("min_p", 0.0)) <= 1:
        raise ApiError(400, f"min_p must be in [0, 1], got {value}.")
    if most < 1:
        raise _parameter("max_tokens", most, f"max_tokens must be at least 1, got {most}.")
    if least < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {least}.")
    if least > most:
        raise ApiError(
            400, f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
        )
    if "" in stop:
        raise ApiError(400, "stop cannot contain an empty string.")
    if heat < 1e-5 and n > 1:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")


def _parameter(name: str, value: Any, why: str) -> ApiError:
    return ApiError(400, f"{why} (parameter={name}, value={value})", param=name)


def _rank(served: Served, headers: Mapping[str, str]) -> int | None:
    """The data parallel rank that the client chose; vLLM passes over what is no number."""
    given = next(
        (value for name, value in headers.items() if name.lower() == "x-data-parallel-rank"), ""
    )
    try:
        rank = int(given)
    except ValueError:
        return None
    if not 0 <= rank < served.dp_size:
        raise ApiError(400, f"data_parallel_rank {rank} is out of range [0, {served.dp_size}).")
    return rank
