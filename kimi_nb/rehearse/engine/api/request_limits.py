"""Check lengths, token ids, sampling and rank of a request, in vLLM's order and with its texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kimi_nb.rehearse.engine.api import chat_prompts, stand_in_text
from kimi_nb.rehearse.engine.api.api_errors import ApiError, parameter
from kimi_nb.rehearse.engine.api.request_fields import Generation
from kimi_nb.rehearse.engine.api.served import Served

MAX_N = 16384  # vLLM's VLLM_MAX_N_SEQUENCES
MAX_LOGPROBS = 20  # vLLM's --max-logprobs


def fits(served: Served, param: str, limit: int | None) -> None:
    """Refuse an answer that is longer than the context."""
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


def truncated(
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


def room(served: Served, prompt: chat_prompts.Prompt, limit: int) -> None:
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


def tokens(fields: Generation) -> None:
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


def sampling(served: Served, fields: Generation, most: int, stop: list[str]) -> None:
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


def rank(served: Served, headers: Mapping[str, str]) -> int | None:
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


def probabilities(
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
