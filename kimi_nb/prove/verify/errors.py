"""A client's mistake gives a 4xx that names it, and never a 500."""

from __future__ import annotations

import json
from collections.abc import Callable

from kimi_nb.prove.verify import contract, http_exchange, received
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.http_client import Reply
from kimi_nb.service.probe import QUESTION

_LONGEST = 1_100_000  # tokens; a longer prompt is not a sensible request
_WRONG = "not-the-key"


def _refused(ask: Ask, status: int, send: Callable[[Place], Reply]) -> str:
    """Check that the front door and an engine of each role answer with a status."""

    def look(place: Place) -> str:
        reply = send(place)
        said_ = received.short(" ".join(reply.text.split()))
        if reply.status != status:
            hides = place.is_door and ask.target.example_proxy and reply.status == 500
            cause = contract.DOOR if hides else ""
            cause = "key-refused" if reply.status in (401, 403) else cause
            raise Failed(f"{reply.status}, not {status}: {said_}", cause)
        if not said_ or said_.startswith("<"):
            raise Failed(f"{status} that names no mistake: {said_ or 'no text'}")
        return f"{status}: {said_}"

    return ask.everywhere(look, ask.few)


@check("errors/unknown-model")
def unknown_model(ask: Ask) -> str:
    """Check that a model that is not served gives a 404."""
    body = {**said(QUESTION), "model": "no-such-model"}
    return _refused(ask, 404, lambda place: ask.send(place, "POST", http_exchange.CHAT, body=body))


@check("errors/too-long")
def too_long(ask: Ask) -> str:
    """Check that a prompt longer than the context gives a 400."""
    most = ask.target.max_model_len
    if most is None:
        raise Skip(f"{http_exchange.MODELS} does not say max_model_len")
    if most > _LONGEST:
        raise Skip(f"max_model_len {most}: a longer prompt is no sensible request")
    body = {"model": ask.target.model, **said("word " * (most + 8), max_tokens=1)}
    return _refused(ask, 400, lambda place: ask.send(place, "POST", http_exchange.CHAT, body=body))


@check("errors/bad-json")
def bad_json(ask: Ask) -> str:
    """Check that a body that is not JSON gives a 400."""
    text = json.dumps({"model": ask.target.model, **said(QUESTION)})[:-1]
    return _refused(ask, 400, lambda place: ask.send(place, "POST", http_exchange.CHAT, body=text))


@check("errors/wrong-key")
def wrong_key(ask: Ask) -> str:
    """Check that a wrong API key gives a 401."""
    if not ask.target.key:
        raise Skip("no key is used: whoever reaches the port is served")
    body = {"model": ask.target.model, **said(QUESTION, max_tokens=1)}
    return _refused(
        ask, 401, lambda place: ask.send(place, "POST", http_exchange.CHAT, body=body, key=_WRONG)
    )
