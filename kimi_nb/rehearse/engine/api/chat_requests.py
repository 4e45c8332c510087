"""Check the requests of clients as strictly as vLLM 0.20 does.

    request = chat(served, raw, headers)     # or an ApiError that says what is wrong

The order is vLLM's: JSON, fields, model, messages, length, sampling, rank. Whatever bytes a client
sends, its mistakes get status 400 or 404 with vLLM's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.rehearse.engine.api import chat_prompts, stand_in_text
from kimi_nb.rehearse.engine.api.request_fields import (
    CHAT,
    COMPLETION,
    TOKENIZE,
    ApiError,
    ChatCompletionRequest,
    FunctionDefinition,
    Generation,
    TokenizeCompletionRequest,
    compact,
    parse,
    read,
)
from kimi_nb.rehearse.fault_names import FaultName

MAX_N = 16384  # vLLM's VLLM_MAX_N_SEQUENCES


@dataclass(frozen=True, slots=True)
class Served:
    """What a server offers.

    Attributes:
        names: The served model names; answers carry the first one.
        root: The model as named on the command line.
        max_model_len: The context length, in tokens.
        reasoning_parser: The name of the parser; "" for none.
        tool_parser: The name of the parser; "" for none.
        dp_size: The number of ranks that a client can choose from.
        flaw: The fault of its words, if any.
        thinking: Whether the model thinks unless a request says otherwise.
    """

    names: tuple[str, ...]
    root: str
    max_model_len: int
    reasoning_parser: str
    tool_parser: str
    auto_tools: bool
    multimodal: bool
    version: str
    dp_size: int = 1
    flaw: FaultName | None = None
    thinking: bool = True

    @property
    def calls_tools(self) -> bool:
        """Whether there is a tool parser; vLLM creates it only with --enable-auto-tool-choice."""
        return bool(self.auto_tools and self.tool_parser)

    @property
    def blind(self) -> str:
        """The name of a model that accepts no images, else ""."""
        return "" if self.multimodal else self.root


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request.

    Attributes:
        fields: The validated fields.
        rank: The rank that the client chose, or None.
        max_tokens: How many tokens the answer may have, given the context length.
        literal: The text that a response format demands, or None.
        shown: Whether the reasoning may be returned.
        choice: "none", "auto" or "required".
        parallel: Whether several tools may be called at once.
    """

    fields: Generation
    prompt: chat_prompts.Prompt
    rank: int | None
    max_tokens: int
    stop: list[str]
    literal: str | None
    thinking: bool = False
    shown: bool = True
    tools: tuple[FunctionDefinition, ...] = ()
    choice: str = "none"
    parallel: bool = True


def chat(served: Served, raw: bytes, headers: Mapping[str, str]) -> Request:
    """Return the request in the body of POST /v1/chat/completions.

    Raises:
        ApiError: The request is not valid.
    """
    fields = read(CHAT, raw)
    _known(served, fields.model)
    tools, choice = _chosen(fields)
    if choice != "none" and not served.calls_tools:
        auto = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'
        raise ApiError(
            400,
            f"{auto} to be set"
            if choice == "auto"
            else f'tool_choice="{choice}" requires --tool-call-parser to be set',
        )
    param = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    limit = getattr(fields, param)
    _fits(served, param, limit)
    thinking = fields.chat_template_kwargs.get("thinking", served.thinking) is not False
    prompt = chat_prompts.of_chat(fields.messages, fields.tools, thinking, served.blind)
    return _request(
        served,
        fields,
        headers,
        prompt,
        limit,
        {
            "thinking": thinking,
            "shown": fields.include_reasoning,
            "tools": tools,
            "choice": choice,
            "parallel": fields.parallel_tool_calls,
        },
    )


def completion(served: Served, raw: bytes, headers: Mapping[str, str]) -> Request:
    """Return the request in the body of POST /v1/completions.

    Raises:
        ApiError: The request is not valid.
    """
    fields = read(COMPLETION, raw)
    prompt = chat_prompts.of_completion(fields.prompt)
    _known(served, fields.model)
    limit = fields.max_tokens if "max_tokens" in fields.model_fields_set else 16
    _fits(served, "max_tokens", limit)
    return _request(served, fields, headers, prompt, limit, {})


def tokenize(served: Served, raw: bytes) -> tuple[list[str], bool]:
    """Return the tokens for the body of POST /tokenize, and whether their texts are requested.

    Raises:
        ApiError: The request is not valid.
    """
    fields = read(TOKENIZE, raw)
    _known(served, fields.model)
    tokens = (
        stand_in_text.split(fields.prompt)
        if isinstance(fields, TokenizeCompletionRequest)
        else chat_prompts.of_chat(fields.messages, fields.tools, True, served.blind).tokens
    )
    return tokens, bool(fields.return_token_strs)


def _known(served: Served, model: str | None) -> None:
    if model and model not in served.names:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


# Tools and formats ----------------------------------------------------------------------------


def _chosen(fields: ChatCompletionRequest) -> tuple[tuple[FunctionDefinition, ...], str]:
    """Return the functions on offer, and the choice among them."""
    tools = tuple(tool.function for tool in fields.tools or ())
    choice = fields.tool_choice
    if choice is None:
        choice = "auto" if tools and "tool_choice" not in fields.model_fields_set else "none"
    if isinstance(choice, str):
        return tools, choice
    # With one function left, "required" can only mean that one, even if its name is "auto".
    return tuple(tool for tool in tools if tool.name == choice["function"]["name"])[:1], "required"


def _literal(fields: Generation) -> str | None:
    """Return the text that a response format, or vLLM's own structured outputs, demand."""
    form, wish = fields.response_format, fields.structured_outputs
    if form is not None and form.json_schema is not None and form.type == "json_schema":
        return compact(stand_in_text.example(form.json_schema.get("schema")))
    if (form is not None and form.type == "json_object") or wish.get("json_object"):
        return compact({stand_in_text.MARK: True})
    schema = fields.guided_json if wish.get("json") is None else wish["json"]
    if isinstance(schema, str):
        try:
            schema = parse(schema)
        except ValueError:
            raise ApiError(400, "Invalid grammar specification.") from None
    if schema is not None:
        return compact(stand_in_text.example(schema))
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
    fields: Generation,
    headers: Mapping[str, str],
    prompt: chat_prompts.Prompt,
    limit: int | None,
    more: Mapping[str, Any],
) -> Request:
    """Check lengths, sampling and rank, and return the request."""
    room = served.max_model_len - (limit or 0)
    if len(prompt.tokens) > room:
        # vLLM stops counting at the first excess token.
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
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    _sampling(fields, most, stop)
    return Request(
        fields=fields,
        prompt=prompt,
        rank=_rank(served, headers),
        max_tokens=most,
        stop=stop,
        literal=_literal(fields),
        **more,
    )


def _sampling(fields: Generation, most: int, stop: list[str]) -> None:
    """Check what vLLM's SamplingParams check, in the same order."""
    n, least, heat = fields.n, fields.min_tokens, fields.temperature
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise ApiError(
            400,
            f"n must be at most {MAX_N}, got {n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable.",
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= (value := getattr(fields, name)) <= 2:
            raise ApiError(400, f"{name} must be in [-2, 2], got {value}.")
    if (value := fields.repetition_penalty) <= 0:
        raise ApiError(400, f"repetition_penalty must be greater than zero, got {value}.")
    if heat < 0:
        raise _parameter("temperature", heat, f"temperature must be non-negative, got {heat}.")
    if not 0 < (value := fields.top_p) <= 1:
        raise _parameter("top_p", value, f"top_p must be in (0, 1], got {value}.")
    if (value := fields.top_k) < -1:
        raise ApiError(400, f"top_k must be 0 (disable), or at least 1, got {value}.")
    if not 0 <= (value := fields.min_p) <= 1:
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
    """Return the data parallel rank that the client chose; like vLLM, ignore a non-number."""
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
