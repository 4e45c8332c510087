"""The OpenAI API: the list of models, a chat, its finish reason and its usage."""

from __future__ import annotations

from typing import Any

from kimi_nb.prove.verify import http_exchange
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.probe import QUESTION

_IDS = list(range(10, 23))  # token ids that exist in every vocabulary
_ENDS = ("stop", "length")


@check("api/models")
def models(ask: Ask) -> str:
    """Check that the list of models has the model's name.

    It does not apply to the upstream proxy of vllm-ascend, which has no such list.
    """
    reply = ask.send(ask.target.door, "GET", http_exchange.MODELS)
    if reply.status in (404, 405):
        raise Skip(f"the front door has no {http_exchange.MODELS} ({reply.status})")
    http_exchange.asked(reply)
    names = [one["id"] for one in http_exchange.listing(reply)]
    if not names:
        raise Failed(f"no list of models: {http_exchange.short(reply.text)}", "malformed")
    if ask.target.model not in names:
        raise Failed(f"{ask.target.model!r} is not among {', '.join(names)}", "unknown-model")
    return f"{', '.join(names)}; max_model_len {ask.target.max_model_len or 'not said'}"


@check("api/chat")
def chat(ask: Ask) -> str:
    """Check that a chat through the front door gives words."""

    def look(place: Place) -> str:
        answer = ask.chat(place, said(QUESTION))
        if not answer.answered:
            raise Failed(f"200 without words: {answer}", "empty-200")
        return str(answer)

    return ask.everywhere(look, [ask.door], drop=True)


@check("api/finish-reason")
def finish_reason(ask: Ask) -> str:
    """Check that finish_reason is in choices[0], and "length" for an answer that is cut off."""

    def look(place: Place) -> str:
        whole = ask.chat(place, said(QUESTION))
        cut = ask.chat(place, said(QUESTION, max_tokens=1))
        if whole.finish_reason not in _ENDS:
            raise Failed(f"finish_reason {whole.finish_reason!r} in choices[0]")
        if cut.finish_reason != "length":
            raise Failed(f"finish_reason {cut.finish_reason!r} after max_tokens 1")
        return f"{whole.finish_reason}; length after one token"

    return ask.everywhere(look)


@check("api/usage")
def usage(ask: Ask) -> str:
    """Check that prompt and completion tokens add up to the total and keep max_tokens."""

    def look(place: Place) -> str:
        most = 24
        counts = ask.chat(place, said(QUESTION, max_tokens=most)).usage
        wrong = [http_exchange.no_count(name, value) for name, value in counts.items()]
        if len(counts) != 3 or any(wrong):
            raise Failed(f"usage: {', '.join(filter(None, wrong)) or 'the answer has none'}")
        prompt, made, total = counts.values()
        if prompt + made != total or not 0 < made <= most or prompt < 1:
            raise Failed(f"usage {counts} for max_tokens {most}")
        return f"{prompt} + {made} = {total}"

    return ask.everywhere(look)


@check("api/usage-exact")
def usage_exact(ask: Ask) -> str:
    """Check that prompt_tokens is the number of tokens that /tokenize counts.

    Without /tokenize, a prompt of known token ids is sent instead.
    """

    def look(place: Place) -> str:
        messages = said(QUESTION)["messages"]
        reply = ask.send(
            place, "POST", "/tokenize", body={"model": ask.target.model, "messages": messages}
        )
        count = reply.body.get("count") if reply.status == 200 else None
        if isinstance(count, int):
            told: Any = ask.chat(place, said(QUESTION, max_tokens=2)).prompt_tokens
            how = "as /tokenize counts"
        else:
            reply = ask.send(
                place,
                "POST",
                http_exchange.COMPLETIONS,
                body={"model": ask.target.model, "prompt": _IDS, "max_tokens": 2, "temperature": 0},
            )
            if reply.status in (404, 405):
                raise Skip(f"neither /tokenize nor {http_exchange.COMPLETIONS} is there")
            given = http_exchange.mapping(http_exchange.asked(reply).text).get("usage")
            told = given.get("prompt_tokens") if isinstance(given, dict) else None
            count, how = len(_IDS), "for a prompt of as many token ids"
        if told != count:
            raise Failed(f"prompt_tokens {told}, not {count} ({how})")
        return f"prompt_tokens {told}, {how}"

    return ask.everywhere(look)
