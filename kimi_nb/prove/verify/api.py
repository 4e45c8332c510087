"""The OpenAI API: the list of models, a chat, its finish reason and its usage."""

from __future__ import annotations

from typing import Any

from kimi_nb.core import data_files
from kimi_nb.prove.verify import answer_bodies, http_exchange, raw_answers, received
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.probe import QUESTION

_IDS = list(range(10, 23))  # token ids that exist in every vocabulary
_ENDS = ("stop", "length")
_LONGEST_TOKEN = 300  # characters; no vocabulary has a longer token


@check("api/models")
def models(ask: Ask) -> str:
    """Check that the list of models has the model's name.

    It does not apply to the upstream proxy of vllm-ascend, which has no such list.
    """
    reply = ask.send(ask.target.door, "GET", http_exchange.MODELS)
    if reply.status in (404, 405):
        raise Skip(f"the front door has no {http_exchange.MODELS} ({reply.status})")
    http_exchange.asked(reply)
    if reply.body.get("object") != "list":
        kind = received.form(reply.body.get("object"))
        raise Failed(f"object is {kind}, not 'list': {received.short(reply.text)}")
    names = [one["id"] for one in http_exchange.listing(reply)]
    if not names:
        raise Failed(f"no list of models: {received.short(reply.text)}", "malformed")
    if ask.target.model not in names:
        raise Failed(f"{ask.target.model!r} is not among {received.names(names)}", "unknown-model")
    return f"{received.names(names)}; max_model_len {ask.target.max_model_len or 'not said'}"


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
        if len(cut.text) > _LONGEST_TOKEN:
            raise Failed(f"{len(cut.text)} characters after max_tokens 1: {cut}")
        return f"{whole.finish_reason}; length after one token"

    return ask.everywhere(look)


@check("api/usage")
def usage(ask: Ask) -> str:
    """Check that prompt and completion tokens add up to the total and keep max_tokens."""

    def look(place: Place) -> str:
        most = 24
        answer = ask.chat(place, said(QUESTION, max_tokens=most))
        if wrong := raw_answers.usage_fault(answer, most):
            raise Failed(wrong)
        prompt, made, total = answer.usage.values()
        return f"{prompt} + {made} = {total}"

    return ask.everywhere(look)


@check("api/form")
def form(ask: Ask) -> str:
    """Check the fields of each whole answer as it came: object, id, created, index, role."""

    def look(place: Place) -> str:
        found = ask.received(place, stream=False)
        for one in found:
            if wrong := raw_answers.form_fault(one.answer):
                raise Failed(wrong)
        return f"{len(found)} answers"

    return ask.everywhere(look)


@check("api/answered-model")
def answered_model(ask: Ask) -> str:
    """Check that each answer names the model that was asked, or another name of it."""

    def look(place: Place) -> str:
        found = ask.everything(place)
        for one in found:
            if wrong := raw_answers.model_fault(one.answer, ask.target.names):
                raise Failed(wrong)
        return f"{len(found)} answers of {ask.target.model}"

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
            given = answer_bodies.mapping(http_exchange.asked(reply).text).get("usage")
            told = given.get("prompt_tokens") if isinstance(given, dict) else None
            count, how = len(_IDS), "for a prompt of as many token ids"
        if told != count:
            raise Failed(f"prompt_tokens {told}, not {count} ({how})")
        return f"prompt_tokens {told}, {how}"

    return ask.everywhere(look)


@check("api/prompt-tokens")
def prompt_tokens(ask: Ask) -> str:
    """Check that texts count as many tokens as Kimi's vocabulary makes of them.

    What the service counts may agree with its own /tokenize and still be another vocabulary's.
    """
    facts = data_files.facts("prove/vendor_checks")["prompt_tokens"]
    if ask.target.mark or not ask.target.sense:
        raise Skip("stand-ins and tiny models have a vocabulary of their own")
    if facts["names"] not in ask.target.model.lower():
        raise Skip(f"the name {ask.target.model!r} does not say that it is a Kimi-K2")
    first, *cases = facts["cases"]

    def look(place: Place) -> str:
        def count(text: str) -> int:
            return ask.chat(place, said(text, max_tokens=1)).prompt_tokens

        least = count(first["text"])
        for case in cases:
            told, wanted = count(case["text"]) - least, case["tokens"] - first["tokens"]
            if abs(told - wanted) > facts["tolerance"]:
                raise Failed(
                    f"prompt_tokens of {case['text']!r} and {first['text']!r} differ by {told}, "
                    f"not {wanted}: another vocabulary, or texts that are changed on the way"
                )
        return f"{len(cases)} texts, as the vocabulary of Kimi-K2 has them"

    return ask.everywhere(look)
