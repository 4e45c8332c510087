"""Answer requests as vLLM's OpenAI server does, without a model, an accelerator or a clock.

    ask = chat(served, raw, headers, "chatcmpl-1", 1795299206)   # or an ApiError
    body = whole(ask)                       # or frames(ask), one SSE frame for each token

The content of an answer follows from the prompt, and above temperature 0 from the seed and the
place among several answers, so that every engine gives the same one. Shapes and errors are those of
the engine's version (`versions`; tests/rehearse/contract).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import chain, cycle, islice
from typing import Any

from kimi_nb.rehearse.engine.api import chat_requests, stand_in_text
from kimi_nb.rehearse.engine.api.answer_forms import frames, steps, whole
from kimi_nb.rehearse.engine.api.answer_parts import Ask, Call, Choice, Token
from kimi_nb.rehearse.engine.api.api_errors import ApiError
from kimi_nb.rehearse.engine.api.chat_prompts import Prompt
from kimi_nb.rehearse.engine.api.chat_requests import Request
from kimi_nb.rehearse.engine.api.json_text import compact
from kimi_nb.rehearse.engine.api.served import Served
from kimi_nb.rehearse.fault_names import FaultName

GREEDY = 1e-5  # vLLM's: below this temperature the likeliest token is taken
_FORCED = 50  # a bias that leaves no other token a chance

__all__ = [
    "ApiError",
    "Ask",
    "Call",
    "Choice",
    "Served",
    "Token",
    "chat",
    "completion",
    "count",
    "detokenize",
    "frames",
    "internal",
    "models",
    "regenerate",
    "steps",
    "tokenize",
    "whole",
]


def chat(served: Served, raw: bytes, headers: Mapping[str, str], id: str, created: int) -> Ask:
    """Return the answer to POST /v1/chat/completions.

    Raises:
        ApiError: The client made a mistake.
    """
    return _ask(served, "chat", chat_requests.chat(served, raw, headers), id, created)


def completion(
    served: Served,
    raw: bytes,
    headers: Mapping[str, str],
    id: str,
    created: int,
) -> Ask:
    """Return the answer to POST /v1/completions.

    Raises:
        ApiError: The client made a mistake.
    """
    return _ask(served, "completion", chat_requests.completion(served, raw, headers), id, created)


def internal(message: str) -> ApiError:
    """Return the answer of an engine that failed."""
    return ApiError(500, message, "InternalServerError")


def models(served: Served, created: int) -> dict[str, Any]:
    """Return the body of GET /v1/models."""
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": served.root,
                "parent": None,
                "max_model_len": served.max_model_len,
                "permission": [
                    {
                        "id": f"modelperm-{sha256(name.encode()).hexdigest()[:16]}",
                        "object": "model_permission",
                        "created": created,
                        "allow_create_engine": False,
                        "allow_sampling": True,
                        "allow_logprobs": True,
                        "allow_search_indices": False,
                        "allow_view": True,
                        "allow_fine_tuning": False,
                        "organization": "*",
                        "group": None,
                        "is_blocking": False,
                    }
                ],
            }
            for name in served.names
        ],
    }


def tokenize(served: Served, raw: bytes) -> dict[str, Any]:
    """Return the answer to POST /tokenize.

    Raises:
        ApiError: The client made a mistake.
    """
    tokens, strings = chat_requests.tokenize(served, raw)
    return {
        "count": len(tokens),
        "max_model_len": served.max_model_len,
        "tokens": [stand_in_text.number(token) for token in tokens],
        "token_strs": tokens if strings else None,
    }


def detokenize(served: Served, raw: bytes) -> dict[str, Any]:
    """Return the answer to POST /detokenize.

    Raises:
        ApiError: The client made a mistake.
    """
    return {"prompt": chat_requests.detokenize(served, raw)}


def count(served: Served, raw: bytes) -> dict[str, Any]:
    """Return the answer to POST /v1/messages/count_tokens.

    Raises:
        ApiError: The client made a mistake.
    """
    tokens = len(chat_requests.tokenize(served, raw)[0])
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


def regenerate(ask: Ask, digest: str) -> Ask:
    """Return the answer of an engine that received the cache of the prompt with this digest.

    It is nonsense unless the digest is that of the request's own prompt.
    """
    if digest == ask.digest:
        return ask
    seed = sha256(digest.encode("utf-8", "replace")).digest()
    return replace(
        ask,
        choices=tuple(
            replace(
                choice,
                tokens=tuple(
                    replace(token, text=stand_in_text.nonsense(token.text, place, seed))
                    for place, token in enumerate(choice.tokens)
                ),
            )
            for choice in ask.choices
        ),
    )


# Content of answers ---------------------------------------------------------------------------


def _ask(served: Served, kind: str, request: Request, id: str, created: int) -> Ask:
    fields = request.fields
    digests = [prompt.digest for prompt in request.prompts]
    joined = sha256("".join(digests).encode()).hexdigest()
    return Ask(
        kind=kind,
        id=id,
        created=created,
        model=served.names[0],
        stream=fields.stream,
        include_usage=bool(fields.stream_options.get("include_usage")),
        continuous_usage=bool(
            fields.stream_options.get("include_usage")
            and fields.stream_options.get("continuous_usage_stats")
        ),
        rank=request.rank,
        digest=digests[0] if len(digests) == 1 else joined,
        choices=tuple(
            _choice(served, request, prompt, most, index)
            for prompt, most in zip(request.prompts, request.max_tokens, strict=True)
            for index in range(fields.n)
        ),
        n=fields.n,
        max_tokens=request.max_tokens[0],
        kv=fields.kv_transfer_params,
        blank="" if request.choice == "required" else None,
        parsed=kind == "chat" and served.calls_tools,
        reasons=kind == "chat" and bool(served.reasoning_parser),
        before=request.before if kind == "chat" else "",
        echo=fields.echo,
        only_echo=kind == "completion" and fields.echo and fields.max_tokens == 0,
        top=request.top,
        prompt_top=request.prompt_top,
        token_ids=fields.return_token_ids,
        ids_as_tokens=fields.return_tokens_as_token_ids,
        prompt_text=bool(getattr(fields, "return_prompt_text", False)),
        changes=served.changes,
    )


def _choice(served: Served, request: Request, prompt: Prompt, most: int, index: int) -> Choice:
    """Return one of the answers to a prompt."""
    calls, arguments = _calls(request, prompt)
    salt = _salt(request, index)
    body = _thoughts(served, request, prompt, salt) if request.thinking else []
    parsed = served.flaw != FaultName.TOOL_CALL_LEAKS
    if calls and parsed:
        for at, words in enumerate(arguments):
            body += [Token("tool", piece, at) for piece in ("", *stand_in_text.split(words))]
    elif calls:
        body += _content(stand_in_text.markup([call.id for call in calls], arguments))
    elif request.literal is not None:
        body += _content(stand_in_text.split(request.literal))
    else:
        said = stand_in_text.reply(prompt.said, prompt.digest)
        varied = stand_in_text.varied(f"{prompt.digest}{salt}", len(said)) if salt else said
        body += _content(varied)
    spoken = calls if parsed else ()
    end = Token("tool", "", len(spoken) - 1) if spoken else Token("content", "")
    tokens, reason = _measured(body, end, request, most)
    if served.flaw == FaultName.GARBLED_OUTPUT:
        tokens = [replace(token, text="!") if token.text else token for token in tokens]
    tokens, ended = _steered(tokens, request)
    found: str | int | None = ended
    if ended is None:
        tokens, found = _stopped(tokens, request)
    if found is not None:
        reason = "stop"
    if spoken and len(tokens) >= len(body) and not request.named:
        reason = "tool_calls"
    return Choice(tuple(tokens), reason, found, spoken, tuple(prompt.tokens))


def _salt(request: Request, index: int) -> str:
    """Return what makes an answer differ from others to the same prompt; "" for the plain one.

    A real engine also differs without a seed, from request to request; a rehearsal repeats itself.
    """
    fields = request.fields
    if fields.temperature < GREEDY or fields.top_k == 1:
        return ""
    if fields.seed is None:
        return f":{index}" if index else ""
    return f"{fields.seed}:{index}"


def _steered(tokens: list[Token], request: Request) -> tuple[list[Token], int | None]:
    """Return the tokens under a bias or a list of allowed ones, and the stop token that ended them.

    Only a bias that leaves no choice, or that forbids a token, has an effect.
    """
    fields = request.fields
    forced = [int(key) for key, bias in fields.logit_bias.items() if bias >= _FORCED]
    forced = forced or list(fields.allowed_token_ids or [])[:1]
    if forced:
        if forced[0] in fields.stop_token_ids and not fields.ignore_eos:
            return [Token("content", "")], forced[0]
        return [Token("content", stand_in_text.word(forced[0]))] * max(1, len(tokens)), None
    barred = {int(key) for key, bias in fields.logit_bias.items() if bias <= -_FORCED}
    if barred:
        return [
            replace(one, text=stand_in_text.FILL[0])
            if one.text and stand_in_text.number(one.text) in barred
            else one
            for one in tokens
        ], None
    return tokens, None


def _calls(request: Request, prompt: Prompt) -> tuple[tuple[Call, ...], list[str]]:
    """Return the tool calls that the model makes, and the arguments of each as JSON."""
    tools = request.tools
    chosen = stand_in_text.called([tool.name for tool in tools], prompt.said)
    if request.choice == "required":
        chosen = chosen or [0]
    elif request.choice != "auto" or not prompt.asks:
        chosen = []
    chosen = chosen if request.parallel else chosen[:1]
    calls = tuple(
        Call(f"functions.{tools[at].name}:{prompt.earlier + place}", tools[at].name)
        for place, at in enumerate(chosen)
    )
    return calls, [compact(_arguments(tools[at].parameters)) for at in chosen]


def _arguments(schema: Any) -> dict[str, Any]:
    made = stand_in_text.example(schema)
    return made if isinstance(made, dict) else {}


def _thoughts(served: Served, request: Request, prompt: Prompt, salt: str) -> list[Token]:
    words = stand_in_text.thought(prompt.said)
    if salt:
        words = stand_in_text.varied(f"{salt}{prompt.digest}", len(words))
    if not served.reasoning_parser or served.flaw == FaultName.REASONING_LEAKS:
        return _content([*words, "</think>"])
    return [Token("reasoning", word) for word in words] if request.shown else []


def _content(words: list[str]) -> list[Token]:
    return [Token("content", word) for word in words]


def _measured(
    body: list[Token], end: Token, request: Request, most: int
) -> tuple[list[Token], str]:
    """Return the tokens of an answer of the requested length, and why it ends."""
    length = max(len(body), request.fields.min_tokens)
    if request.fields.ignore_eos:
        length = most
    elif length < most:
        return [*islice(chain(body, _filler(end, request)), length), end], "stop"
    return list(islice(chain(body, _filler(end, request)), most)), "length"


def _filler(end: Token, request: Request) -> cycle[Token]:
    """Return tokens that extend an answer without spoiling it: JSON stays JSON."""
    if end.channel == "tool":
        return cycle([end])
    return cycle(_content([" ", "\n"] if request.literal is not None else list(stand_in_text.FILL)))


def _stopped(tokens: list[Token], request: Request) -> tuple[list[Token], str | None]:
    """Return the tokens up to the first stop string, and that string.

    Tokens that a tool parser reads are not searched: only the length can cut arguments.
    """
    if not request.stop:
        return tokens, None
    texts = ["" if token.channel == "tool" else token.text for token in tokens]
    said = "".join(texts)
    start = sum(map(len, texts[: request.fields.min_tokens]))
    places = [(at, word) for word in request.stop if (at := said.find(word, start)) >= 0]
    if not places:
        return tokens, None
    cut, found = min(places)
    cut += len(found) if request.fields.include_stop_str_in_output else 0
    length = 0
    for place, part in enumerate(texts):
        if length + len(part) > cut or (length + len(part) == cut and place + 1 == len(texts)):
            return [*tokens[:place], replace(tokens[place], text=part[: cut - length])], found
        length += len(part)
    return tokens, None
