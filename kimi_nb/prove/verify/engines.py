"""Every engine gives a completion: only an answer means ready, /health never does."""

from __future__ import annotations

from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.probe import QUESTION


@check("engines/completion")
def completion(ask: Ask) -> str:
    """Check that every rank completes, at its own port or by X-data-parallel-rank."""
    if not ask.target.engines:
        raise Skip("a URL alone: the addresses of the engines behind it are not known")

    def look(place: Place) -> str:
        answer = ask.chat(place, said(QUESTION, max_tokens=16))
        if not answer.answered:
            raise Failed(f"200 without words: {answer}", "empty-200")
        return str(answer)

    return ask.everywhere(look, ask.target.engines, drop=True)
