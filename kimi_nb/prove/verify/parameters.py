"""Sampling parameters: Moonshot's own values are taken, and values that mean nothing are refused."""

from __future__ import annotations

from typing import Any

from kimi_nb.core import data_files
from kimi_nb.prove.verify import http_exchange, received
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import DOOR, Failed
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.probe import QUESTION

_FACTS = "prove/vendor_checks"


@check("parameters/accepted")
def accepted(ask: Ask) -> str:
    """Check that each value that Moonshot's API fixes is taken, with thinking on and off."""
    facts = data_files.facts(_FACTS)["accepted"]
    modes: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, facts["thinking"])]
    if not ask.target.always_thinks:
        modes.append((ask.quiet, facts["instant"]))

    def look(place: Place) -> str:
        for mode, values in modes:
            answer = ask.chat(place, _asked(**mode, **values))
            if not answer.answered:
                raise Failed(f"200 without words for {values}: {answer}", "empty-200")
            if (count := len(answer.body["choices"])) != values["n"]:
                raise Failed(f"{count} choices for n {values['n']}")
        return "; ".join(str(values) for _, values in modes)

    return ask.everywhere(look, ask.few)


@check("parameters/refused")
def refused(ask: Ask) -> str:
    """Check that each value that no sampler can use gives a 4xx, and neither a 200 nor a 500."""
    cases = data_files.facts(_FACTS)["refused"]

    def look(place: Place) -> str:
        for case in cases:
            body = {"model": ask.target.model, **_asked(**case)}
            reply = ask.send(place, "POST", http_exchange.CHAT, body=body)
            said_ = received.short(" ".join(reply.text.split()))
            if reply.status in (401, 403):
                raise Failed(f"{reply.status}: {said_}", "key-refused")
            if reply.status not in (400, 422):
                hides = place.is_door and ask.target.example_proxy and reply.status == 500
                raise Failed(f"{reply.status}, not 400, for {case}: {said_}", DOOR if hides else "")
        return f"{len(cases)} values"

    return ask.everywhere(look, ask.few)


def _asked(**values: Any) -> dict[str, Any]:
    """Return a chat that has these parameters, and no seed or temperature of our own."""
    messages = said(QUESTION)["messages"]
    return {"messages": messages, "max_tokens": 16, **values}
