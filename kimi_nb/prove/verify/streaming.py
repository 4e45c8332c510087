"""A streamed answer is the same as the whole one."""

from __future__ import annotations

from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed
from kimi_nb.prove.verify.http_exchange import Answer
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.probe import QUESTION


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
