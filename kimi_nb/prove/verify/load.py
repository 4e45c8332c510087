"""Concurrent requests do not mix."""

from __future__ import annotations

import itertools
import re

from kimi_nb.prove.verify import fan_out
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed
from kimi_nb.prove.verify.http_exchange import Answer
from kimi_nb.prove.verify.registry import check

_EACH, _MOST = 2, 64  # requests for each engine, and at most in all
_LEAST = 16


@check("load/concurrent")
def concurrent(ask: Ask) -> str:
    """Check that each of many concurrent answers belongs to its own question.

    Each must have its own id and must not contain a word of another request. Each prompt is longer
    than the one before it, and so must be its prompt_tokens.
    """
    door = ask.door
    count = min(_MOST, max(_LEAST, _EACH * len(ask.target.engines)))
    words = [f"kw{at * 7919 % 9973:04d}x" for at in range(count)]
    bodies = [
        said(f"Say this word: {word}." + " and so on" * at, max_tokens=ask.budget(48), **ask.quiet)
        for at, word in enumerate(words)
    ]
    answers = fan_out.each(lambda body: ask.chat(door, body), bodies, width=count)
    for one in answers:
        if isinstance(one, Exception):
            bad = [other for other in answers if isinstance(other, Failed)]
            raise (
                Failed(f"{len(bad)} of {count}: {one}", getattr(one, "cause", ""))
                if type(one) is Failed
                else one
            )
    _apart(answers, words)
    own = sum(word in answer.text for word, answer in zip(words, answers, strict=True))
    return f"{count} at once, each its own; {own} said their word"


def _apart(answers: list[Answer], words: list[str]) -> None:
    for at, answer in enumerate(answers):
        if not answer.answered:
            raise Failed(f"request {at}: 200 without words: {answer}", "empty-200")
        others = set(re.findall(r"kw\d{4}x", answer.text)) & set(words) - {words[at]}
        if others:
            raise Failed(f"request {at} asked for {words[at]}, and was told {min(others)}")
    if len({answer.id for answer in answers}) != len(answers):
        raise Failed("two answers have one id")
    lengths = [answer.usage.get("prompt_tokens") or 0 for answer in answers]
    for at, (one, following) in enumerate(itertools.pairwise(lengths)):
        if one >= following:
            raise Failed(
                f"prompt_tokens {one} and {following} of requests {at} and {at + 1}: the "
                "second prompt is longer"
            )
