"""Behind a prefill-decode front door: the cache is transferred and nothing is lost."""

from __future__ import annotations

import functools
from typing import Any

from kimi_nb.prove.verify import fan_out
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.received import Answer
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service import probe
from kimi_nb.service.probe import QUESTION

_QUESTIONS = (QUESTION, "Name three rivers of Asia.", "What is 17 times 23?")


def _decode(ask: Ask) -> list[Place]:
    """Return the decode engines that can be asked.

    Raises:
        Skip: If there are none.
    """
    if ask.target.disaggregated is False:
        raise Skip("prefill and decode are the same engines here")
    found = [one for one in ask.target.engines if one.role == "decode"]
    if not found:
        raise Skip("a URL alone: whether decode engines are behind it is not known")
    return [one for one in found if one.name not in ask.lost]


@check("disaggregation/moves")
def moves(ask: Ask) -> str:
    """Check that decode counts prompt tokens whose cache came from prefill."""
    decode, door = _decode(ask), ask.door
    urls = [one.url for one in decode]
    before = probe.moved(urls, ask.target.seconds)[0]
    answer = ask.chat(door, said(f"A new prompt. {QUESTION}", max_tokens=8))
    came = probe.moved(urls, ask.target.seconds)[0] - before
    if came < 1:
        raise Failed(
            f"no token of a prompt of {answer.usage.get('prompt_tokens')} came from "
            "prefill: decode computed it again"
        )
    return f"{came} tokens came from prefill"


@check("disaggregation/equal")
def equal(ask: Ask) -> str:
    """Check that an answer through the front door equals that of a decode engine alone.

    A batch may change the last bits of a real engine's numbers, so that a different answer is asked
    for once more, with no other request in flight.
    """
    decode, door = _decode(ask), ask.door
    if not ask.target.sense:
        raise Skip("random weights: two answers may part at the first token of equal chance")
    again = 0
    for question in _QUESTIONS:
        body = said(question)
        routed = ask.chat(door, body)
        others = fan_out.each(functools.partial(_asked, ask, body), decode)
        for place, other in zip(decode, others, strict=True):
            if isinstance(other, Exception):
                raise other
            if _differs(routed, other):
                again += 1
                routed, other = ask.chat(door, body), ask.chat(place, body)
            if _differs(routed, other):
                raise Failed(f"front door: {routed}; {place.name} alone: {other}")
    return (
        f"{len(_QUESTIONS)} answers through the front door, the same on {len(decode)} decode "
        f"engines" + (f"; {again} at the second try" if again else "")
    )


def _asked(ask: Ask, body: dict[str, Any], place: Place) -> Answer:
    return ask.chat(place, body)


def _differs(one: Answer, other: Answer) -> bool:
    return (one.content, one.thoughts, one.finish_reason) != (
        other.content,
        other.thoughts,
        other.finish_reason,
    )
