"""Check the requests of clients as strictly as vLLM does.

    request = chat(served, raw, headers)     # or an ApiError that says what is wrong

The order is vLLM's: JSON, fields, model, messages, length, sampling, rank. Whatever bytes a client
sends, its mistakes get status 400 or 404 with vLLM's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb.rehearse.engine.api import (
    chat_prompts,
    constraints,
    request_limits,
    stand_in_text,
)
from kimi_nb.rehearse.engine.api.api_errors import ApiError
from kimi_nb.rehearse.engine.api.request_bodies import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, read
from kimi_nb.rehearse.engine.api.request_fields import (
    ChatCompletionRequest,
    Generation,
    TokenizeCompletionRequest,
)
from kimi_nb.rehearse.engine.api.request_parts import (
    FunctionDefinition,
)
from kimi_nb.rehearse.engine.api.served import Served

_OWN_TEMPLATE = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)
_NOT_BOTH = (
    "continue_final_message and add_generation_prompt are not compatible. Use "
    "continue_final_message when you want the model to continue the final message, and "
    "add_generation_prompt when you want to add a header that will prompt it to start a new "
    "assistant message instead."
)


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request.

    Attributes:
        fields: The validated fields.
        prompts: The prompt; several in some requests for completions.
        rank: The rank that the client chose, or None.
        max_tokens: How many tokens the answer to each prompt may have, given the context length.
        top: How many alternatives to each token are asked for; None for no log probabilities.
        prompt_top: The same for the tokens of the prompt.
        literal: The text that a response format demands, or None.
        shown: Whether the reasoning may be returned.
        choice: "none", "auto" or "required".
        named: Whether the client has chosen the tool.
        before: The text that an answer to be echoed begins with.
        parallel: Whether several tools may be called at once.
    """

    fields: Generation
    prompts: tuple[chat_prompts.Prompt, ...]
    rank: int | None
    max_tokens: tuple[int, ...]
    stop: list[str]
    literal: str | None
    top: int | None = None
    prompt_top: int | None = None
    thinking: bool = False
    shown: bool = True
    tools: tuple[FunctionDefinition, ...] = ()
    choice: str = "none"
    named: bool = False
    parallel: bool = True
    before: str = ""


def chat(served: Served, raw: bytes, headers: Mapping[str, str]) -> Request:
    """Return the request in the body of POST /v1/chat/completions.

    Raises:
        ApiError: The request is not valid.
    """
    fields = read(CHAT, raw, served.changes)
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
    if fields.chat_template is not None:
        raise ApiError(400, _OWN_TEMPLATE)
    if fields.continue_final_message and fields.add_generation_prompt:
        raise ApiError(400, _NOT_BOTH)
    param = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    limit = getattr(fields, param)
    request_limits.fits(served, param, limit)
    thinking = fields.chat_template_kwargs.get("thinking", served.thinking) is not False
    thinking = thinking and fields.reasoning_effort != "none"
    prompt = chat_prompts.of_chat(fields.messages, fields.tools, thinking, served, fields)
    last = fields.messages[-1]
    echoed = fields.echo and last.role == "assistant" and isinstance(last.content, str)
    top = fields.top_logprobs if fields.logprobs else None
    return _request(
        served,
        fields,
        headers,
        (prompt,),
        limit,
        {
            "thinking": thinking,
            "shown": fields.include_reasoning,
            "tools": tools,
            "choice": choice,
            "named": isinstance(fields.tool_choice, dict),
            "parallel": fields.parallel_tool_calls,
            "before": last.content if echoed else "",
            "literal": constraints.literal(fields, served.changes),
            **request_limits.probabilities(fields, top, fields.top_logprobs),
        },
    )


def completion(served: Served, raw: bytes, headers: Mapping[str, str]) -> Request:
    """Return the request in the body of POST /v1/completions.

    Raises:
        ApiError: The request is not valid.
    """
    fields = read(COMPLETION, raw, served.changes)
    prompts = chat_prompts.of_completion(fields.prompt)
    _known(served, fields.model)
    if fields.suffix is not None:
        fim = "suffix is only supported for models with FIM completion rendering"
        if "suffix_needs_fim" in served.changes:
            raise ApiError(400, fim, param="suffix")
        raise ApiError(400, "suffix is not currently supported")
    limit = fields.max_tokens if "max_tokens" in fields.model_fields_set else 16
    request_limits.fits(served, "max_tokens", limit)
    literal = constraints.literal(fields, served.changes)
    return _request(
        served,
        fields,
        headers,
        prompts,
        limit,
        {
            # With a reasoning parser the form is demanded after the reasoning, which never ends.
            "literal": None if served.reasoning_parser else literal,
            **request_limits.probabilities(fields, fields.logprobs, fields.logprobs),
        },
    )


def detokenize(served: Served, raw: bytes) -> str:
    """Return the text of the tokens in the body of POST /detokenize.

    Raises:
        ApiError: The request is not valid.
    """
    fields = read(DETOKENIZE, raw, served.changes)
    _known(served, fields.model)
    return "".join(map(stand_in_text.word, fields.tokens))


def tokenize(served: Served, raw: bytes) -> tuple[list[str], bool]:
    """Return the tokens for the body of POST /tokenize, and whether their texts are requested.

    Raises:
        ApiError: The request is not valid.
    """
    fields = read(TOKENIZE, raw, served.changes)
    _known(served, fields.model)
    tokens = (
        stand_in_text.split(fields.prompt)
        if isinstance(fields, TokenizeCompletionRequest)
        else chat_prompts.of_chat(fields.messages, fields.tools, True, served).tokens
    )
    return tokens, bool(fields.return_token_strs)


def _known(served: Served, model: str | None) -> None:
    if model and model not in served.names:
        known = f" Valid aliases: {', '.join(served.names)}."
        more = known if "served_names_are_listed" in served.changes else ""
        raise ApiError(404, f"The model `{model}` does not exist.{more}", "NotFoundError", "model")


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


# Lengths and sampling -------------------------------------------------------------------------


def _request(
    served: Served,
    fields: Generation,
    headers: Mapping[str, str],
    prompts: Sequence[chat_prompts.Prompt],
    limit: int | None,
    more: Mapping[str, Any],
) -> Request:
    """Check lengths, sampling and rank, and return the request."""
    prompts = tuple(request_limits.truncated(served, fields, one) for one in prompts)
    rooms = []
    for prompt in prompts:
        request_limits.room(served, prompt, limit or 0)
        room = served.max_model_len - len(prompt.tokens)
        rooms.append(room if limit is None else min(limit, room))
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    only_echo = fields.echo and limit == 0 and "messages" not in type(fields).model_fields
    rooms = [1] * len(rooms) if only_echo else rooms
    request_limits.sampling(served, fields, min(rooms), stop)
    request_limits.tokens(fields)
    return Request(
        fields=fields,
        prompts=prompts,
        rank=request_limits.rank(served, headers),
        max_tokens=tuple(rooms),
        stop=stop,
        **more,
    )
