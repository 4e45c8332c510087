"""A streamed answer is the same as the whole one."""

from __future__ import annotations

from kimi_nb.prove.verify import raw_answers
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed
from kimi_nb.prove.verify.received import Answer
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.probe import QUESTION

_LONG = "Count from one to forty, in words."


@check("streaming/equal")
def equal(ask: Ask) -> str:
    """Check that words, thoughts, end and usage are the same, at temperature 0.

    A batch may change the last bits of a real engine's numbers, so that a difference counts only if
    no other request was in flight.
    """

    def look(place: Place) -> str:
        whole = ask.chat(place, said(QUESTION))
        told = ask.chat(place, said(QUESTION), stream=True)
        compare(whole, told)
        return str(told)

    return ask.everywhere(look, again=True)


@check("streaming/form", needs=("streaming/equal",))
def form(ask: Ask) -> str:
    """Check the events of each stream as they came: their fields, their order, their end."""

    def look(place: Place) -> str:
        found = ask.received(place, stream=True)
        for one in found:
            if wrong := raw_answers.stream_fault(one.answer):
                raise Failed(wrong)
        return f"{sum(len(one.answer.wire.events) for one in found)} events"

    return ask.everywhere(look)


@check("streaming/pieces", needs=("streaming/equal",))
def pieces(ask: Ask) -> str:
    """Check that a stream comes piece by piece, as it is made."""

    def look(place: Place) -> str:
        body = said(_LONG, max_tokens=ask.budget(128), **ask.quiet)
        answer = ask.chat(place, body, stream=True)
        if wrong := raw_answers.pieces_fault(answer):
            raise Failed(wrong)
        return raw_answers.pace(answer)

    return ask.everywhere(look, again=True)


def compare(whole: Answer, told: Answer) -> None:
    """Compare a whole and a streamed answer.

    Raises:
        Failed: If they differ; it names the first difference.
    """
    for name in ("thoughts", "content", "calls", "finish_reason", "usage"):
        one, other = getattr(whole, name), getattr(told, name)
        if one != other:
            at = (
                next(
                    (
                        place
                        for place, (left, right) in enumerate(zip(one, other, strict=False))
                        if left != right
                    ),
                    0,
                )
                if isinstance(one, str)
                else 0
            )
            start = max(0, at - 20)
            one, other = (
                value[start : start + 60] if isinstance(value, str) else value
                for value in (one, other)
            )
            raise Failed(f"{name} differs: whole {one!r}, streamed {other!r}")
