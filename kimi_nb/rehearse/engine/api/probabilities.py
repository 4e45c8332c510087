"""Make up log probabilities for the tokens of a stand-in, in the shapes of vLLM.

They follow from the token alone and mean nothing; the token that was taken is always the likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kimi_nb.rehearse.engine.api import stand_in_text

END = "<|im_end|>"  # the text of the token that ends an answer


def of(token: str) -> float:
    """Return the log probability of a token, between -1 and 0."""
    return -((stand_in_text.number(token) % 997) + 1) / 1000


def ranked(token: str, top: int) -> list[tuple[str, float]]:
    """Return the token and the next likely ones, ``top`` in all but at least the token."""
    others = [word for word in stand_in_text.FILL if word != token]
    first = of(token)
    rest = [(word, first - 1 - place / 8) for place, word in enumerate(others)]
    return [(token, first), *rest][: max(1, top)]


def chat(tokens: Sequence[str], top: int, ids: bool) -> dict[str, Any]:
    """Return ``logprobs`` of a chat: one entry for each token."""
    return {
        "content": [
            {
                **_entry(token, of(token), ids),
                "top_logprobs": [
                    _entry(word, value, ids) for word, value in ranked(token, top)[:top]
                ],
            }
            for token in tokens
        ]
    }


def completion(
    tokens: Sequence[str], top: int, start: int, first: bool, ids: bool
) -> dict[str, Any]:
    """Return ``logprobs`` of a completion, whose texts begin at ``start``.

    ``first`` says that the first token begins a prompt, of which nothing is known.
    """
    offsets, at = [], start
    for token in tokens:
        offsets.append(at)
        at += len(token)
    known = [not (first and place == 0) for place in range(len(tokens))]
    pairs = list(zip(tokens, known, strict=True))
    return {
        "text_offset": offsets,
        "token_logprobs": [of(token) if told else None for token, told in pairs],
        "tokens": [_name(token, ids) for token in tokens],
        "top_logprobs": [
            {_name(word, ids): value for word, value in ranked(token, top)} if told else None
            for token, told in pairs
        ],
    }


def prompt(tokens: Sequence[str], top: int) -> list[dict[str, Any] | None]:
    """Return ``prompt_logprobs``: for each token those of it and of likelier ones."""
    return [
        None
        if place == 0
        else {
            str(stand_in_text.number(word)): {
                "logprob": value,
                "rank": rank,
                "decoded_token": word,
            }
            for rank, (word, value) in enumerate(ranked(token, top), 1)
        }
        for place, token in enumerate(tokens)
    ]


def _entry(token: str, value: float, ids: bool) -> dict[str, Any]:
    return {"token": _name(token, ids), "logprob": value, "bytes": list(token.encode())}


def _name(token: str, ids: bool) -> str:
    return f"token_id:{stand_in_text.number(token)}" if ids else token
