"""Check the requests of clients as strictly as vLLM does.

    request = chat(served, raw, headers)     # or an ApiError that says what is wrong

The order is vLLM's: JSON, fields, model, messages, length, sampling, rank. Whatever bytes a client
sends, its mistakes get status 400 or 404 with vLLM's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb.rehearse.engine.api import chat_prompts, constraints, stand_in_text
from kimi_nb.rehearse.engine.api.api_errors import ApiError, parameter
from kimi_nb.rehearse.engine.api.request_fields import (
    CHAT,
    COMPLETION,
    DETOKENIZE,
    TOKENIZE,
    ChatCompletionRequest,
    FunctionDefinition,
    Generation,
    TokenizeCompletionRequest,
    read,
)
from kimi_nb.rehearse.engine.api.served import Served

MAX_N = 16384  # vLLM's VLLM_MAX_N_SEQUENCES
MAX_LOGPROBS = 20  # vLLM's --max-logprobs
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
    _fits(served, param, limit)
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
            **_probabilities(fields, top, fields.top_logprobs),
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
    _fits(served, "max_tokens", limit)
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
            **_probabilities(fields, fields.logprobs, fields.logprobs),
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


def _probabilities(
    fields: Generation, top: int | None, of_echo: int | None
) -> dict[str, int | None]:
    """Return how many log probabilities are wanted, of the answer and of the prompt."""
    prompt = of_echo if fields.prompt_logprobs is None and fields.echo else fields.prompt_logprobs
    for kind, name, count in (
        ("sample", "logprobs", top),
        ("prompt", "prompt_logprobs", prompt),
    ):
        if count is not None and (count > MAX_LOGPROBS or count == -1):
            found = stand_in_text.VOCABULARY if count == -1 else count
            raise parameter(
                f"Requested {kind} logprobs of {found}, which is greater than max allowed: "
                f"{MAX_LOGPROBS}",
                name,
                found,
            )
    return {"top": top, "prompt_top": prompt}


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


def _fits(served: Served, param: str, limit: int | None) -> None:
    most = served.max_model_len
    if limit is not None and limit > most:
        clamped = "output_is_clamped" in served.changes
        name = "max_model_len" if clamped else "max_model_len=max_total_tokens"
        raise parameter(
            f"{param}={limit} cannot be greater than {name}={most}. "
            "Please request fewer output tokens.",
            param,
            limit,
        )


def _request(
    served: Served,
    fields: Generation,
    headers: Mapping[str, str],
    prompts: Sequence[chat_prompts.Prompt],
    limit: int | None,
    more: Mapping[str, Any],
) -> Request:
    """Check lengths, sampling and rank, and return the request."""
    prompts = tuple(_truncated(served, fields, one) for one in prompts)
    rooms = []
    for prompt in prompts:
        _room(served, prompt, limit or 0)
        room = served.max_model_len - len(prompt.tokens)
        rooms.append(room if limit is None else min(limit, room))
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    only_echo = fields.echo and limit == 0 and "messages" not in type(fields).model_fields
    rooms = [1] * len(rooms) if only_echo else rooms
    _sampling(served, fields, min(rooms), stop)
    _tokens(fields)
    return Request(
        fields=fields,
        prompts=prompts,
        rank=_rank(served, headers),
        max_tokens=tuple(rooms),
        stop=stop,
        **more,
    )


def _truncated(
    served: Served, fields: Generation, prompt: chat_prompts.Prompt
) -> chat_prompts.Prompt:
    """Return the prompt with as many tokens as the request wants to keep."""
    keep, most = fields.truncate_prompt_tokens, served.max_model_len
    if keep is None:
        return prompt
    if keep > most:
        raise parameter(
            f"truncate_prompt_tokens={keep} cannot be greater than max_model_len = {most}. "
            "Please request a smaller truncation size.",
            "truncate_prompt_tokens",
            keep,
        )
    if not keep:
        raise ApiError(400, "The decoder prompt cannot be empty")
    keep = most - 1 if keep < 0 else keep
    kept = prompt.tokens[-keep:] if fields.truncation_side == "left" else prompt.tokens[:keep]
    return replace(prompt, tokens=kept)


def _room(served: Served, prompt: chat_prompts.Prompt, limit: int) -> None:
    """Refuse a prompt that is too long; vLLM stops counting at the first excess token of a text."""
    most, length = served.max_model_len, len(prompt.tokens)
    head = f"This model's maximum context length is {most} tokens. However, "
    if "output_is_clamped" in served.changes:
        if length <= most:
            return
        found = length if prompt.numbers else most + 1
        least = "" if prompt.numbers else "at least "
        raise parameter(
            f"{head}your prompt contains {least}{found} input tokens, which exceeds this limit "
            "even without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            found,
        )
    room = most - limit
    if length > room:
        raise parameter(
            f"{head}you requested {limit} output tokens and your prompt "
            f"contains at least {room + 1} input tokens, for a total of at least "
            f"{room + 1 + limit} tokens. Please reduce the length of the input "
            "prompt or the number of requested output tokens.",
            "input_tokens",
            room + 1,
        )


def _tokens(fields: Generation) -> None:
    """Check the ids of tokens that are wanted or not."""
    biased, most = fields.logit_bias, stand_in_text.VOCABULARY
    odd = [key for key in biased if not key.lstrip("+-").isdecimal()]
    if odd:
        raise parameter(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {odd!r}",
            "logit_bias",
            odd,
        )
    beyond = [int(key) for key in biased if not 0 <= int(key) < most]
    if beyond:
        raise parameter(
            f"token_id(s) {beyond} in logit_bias contain out-of-vocab token ids. "
            f"Vocabulary size: {most}",
            "logit_bias",
            beyond,
        )
    allowed = fields.allowed_token_ids
    if allowed == []:
        raise parameter("allowed_token_ids is not None and empty!", "allowed_token_ids", allowed)
    if allowed and not all(0 <= one < most for one in allowed):
        words = "allowed_token_ids contains out-of-vocab token id!"
        raise parameter(words, "allowed_token_ids", allowed)


def _sampling(served: Served, fields: Generation, most: int, stop: list[str]) -> None:
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
        raise parameter(f"temperature must be non-negative, got {heat}.", "temperature", heat)
    if heat > 2 and "temperature_at_most_2" in served.changes:
        raise parameter(f"temperature must be in [0, 2], got {heat}.", "temperature", heat)
    if not 0 < (value := fields.top_p) <= 1:
        raise parameter(f"top_p must be in (0, 1], got {value}.", "top_p", value)
    if (value := fields.top_k) < -1:
        raise ApiError(400, f"top_k must be 0 (disable), or at least 1, got {value}.")
    if not 0 <= (value := fields.min_p) <= 1:
        raise ApiError(400, f"min_p must be in [0, 1], got {value}.")
    if most < 1:
        raise parameter(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
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
