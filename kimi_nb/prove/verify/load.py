"""Concurrent requests do not mix."""

from __future__ import annotations

import itertools
import re

from kimi_nb.prove.verify import canary, fan_out, received
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed
from kimi_nb.prove.verify.received import Answer
from kimi_nb.prove.verify.registry import check

_WORDS, _THINKING_WORDS = 48, 128  # tokens of an answer; of one whose thinking cannot be turned off
_EACH, _MOST = 2, 64  # requests for each engine, and at most in all
_LEAST = 16


@check("load/concurrent")
def concurrent(ask: Ask) -> str:
    """Check that each of many concurrent answers belongs to its own question.

    Each must have its own id, must say its own word and must not contain a word of another request.
    Each prompt is longer than the one before it, and so must be its prompt_tokens. Random weights
    say no word.
    """
    door = ask.door
    count = min(_MOST, max(_LEAST, _EACH * len(ask.target.engines)))
    words = [f"kw{at * 7919 % 9973:04d}x" for at in range(count)]
    most = ask.budget(_WORDS if ask.quiet else _THINKING_WORDS)
    bodies = [
        said(f"Say this word: {word}." + " and so on" * at, max_tokens=most, **ask.quiet)
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
    _apart(answers, words, judged=ask.target.sense)
    silent = [at for at, word in enumerate(words) if word not in answers[at].text]
    if silent and ask.target.sense:
        at = silent[0]
        raise Failed(
            f"{len(silent)} of {count} did not say their word: request {at} asked for {words[at]} "
            f"and was told {answers[at]}"
        )
    return f"{count} at once, each its own; {count - len(silent)} said their word"


def _apart(answers: list[Answer], words: list[str], *, judged: bool) -> None:
    for at, answer in enumerate(answers):
        if not answer.answered:
            raise Failed(f"request {at}: 200 without words: {answer}", "empty-200")
        others = set(re.findall(r"kw\d{4}x", answer.text)) & set(words) - {words[at]}
        if others:
            raise Failed(f"request {at} asked for {words[at]}, and was told {min(others)}")
        if judged and (wrong := canary.fault(answer.text)):
            raise Failed(f"request {at}: {wrong}: {received.short(answer.text, 80)!r}")
    if len({answer.id for answer in answers}) != len(answers):
        raise Failed("two answers have one id")
    counted = all(type(answer.usage.get("prompt_tokens")) is int for answer in answers)
    lengths = [answer.prompt_tokens for answer in answers] if counted else []
    for at, (one, following) in enumerate(itertools.pairwise(lengths)):
        if one >= following:
            raise Failed(
                f"prompt_tokens {one} and {following} of requests {at} and {at + 1}: the "
                "second prompt is longer"
            )
