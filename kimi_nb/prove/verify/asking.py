"""What a check uses to ask the front door and the engines; it remembers what was sent.

Usage::

    def chat(ask: Ask) -> str:
        return ask.everywhere(lambda place: str(ask.chat(place, said(QUESTION))))

An engine that gives no words is found by the first checks and left out of later ones. So is the
front door if the engines behind it differ. In this way each fault is reported once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb.prove.verify import fan_out, http_exchange, received
from kimi_nb.prove.verify.contract import Failed, Gone, KeyRefused, NoAPI, Skip
from kimi_nb.prove.verify.received import Answer
from kimi_nb.prove.verify.target import Place, Target
from kimi_nb.service.http_client import Reply
from kimi_nb.service.probe import QUESTION

_ENDS = (Gone, KeyRefused, NoAPI)  # after any of these, nothing more is asked
_SHOWN = 3  # places to name in a failure
_LONGEST = 300  # characters to show of a request


def said(question: str, **more: Any) -> dict[str, Any]:
    """Return the body of a chat: one question at temperature 0, and any other fields."""
    return {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "seed": 1,
        "max_tokens": 64,
        **more,
    }


@dataclass(frozen=True)
class Exchange:
    """An answer that was received.

    Attributes:
        tools: Whether tools were on offer.
        named: Whether tool_choice named a function.
    """

    place: str
    answer: Answer
    tools: bool
    named: bool


class Ask:
    """The requests of the checks; see the module.

    Attributes:
        lost: Places that give no words, each with the reason.
        unlike: Why the front door is not asked: its answer depends on the engine that it chose. ""
            if it is asked.
        absent: Why there is no API to ask; "" if there is one.
        seen: Every answer to a chat, in the order in which they came.
    """

    def __init__(self, target: Target, say: Callable[[str], None], max_context: int) -> None:
        self.target, self.say, self.max_context = target, say, max_context
        self.lost: dict[str, str] = {}
        self.unlike = ""
        self.absent = ""
        self.name = ""
        self.seen: list[Exchange] = []
        self._sent: list[str] = []
        self._lock = threading.Lock()

    def begin(self, name: str) -> None:
        """Begin a check."""
        self.name, self._sent = name, []

    @property
    def sent(self) -> str:
        """What the check has sent: its first request, and the number of further ones."""
        if not self._sent:
            return "nothing"
        more = len(self._sent) - 1
        return self._sent[0] + (f" and {more} more request{'s' * (more > 1)}" if more else "")

    # Requests ---------------------------------------------------------------------------

    def chat(self, place: Place, body: dict[str, Any], **more: Any) -> Answer:
        """Send a chat and return its completion.

        Raises:
            Failed: If there is no valid answer.
        """
        self._note(
            "POST", http_exchange.CHAT, {**body, "stream": True} if more.get("stream") else body
        )
        answer = http_exchange.chat(place, self.target, body, **more)
        named = isinstance(body.get("tool_choice"), dict)
        with self._lock:
            self.seen.append(Exchange(place.name, answer, bool(body.get("tools")), named))
        return answer

    def received(self, place: Place, *, stream: bool) -> list[Exchange]:
        """Return the whole or the streamed answers that a place gave; if there is none, ask.

        Raises:
            Failed: If there is no valid answer.
        """
        if not any(one.answer.wire.streamed is stream for one in self.of(place)):
            self.chat(place, said(QUESTION), stream=stream)
        return [one for one in self.of(place) if one.answer.wire.streamed is stream]

    def everything(self, place: Place) -> list[Exchange]:
        """Return every answer that a place gave so far, and at least a whole and a streamed one.

        What gives no valid answer is for other checks to report.

        Raises:
            Skip: If no valid answer came.
        """
        for kind in (False, True):
            try:
                self.received(place, stream=kind)
            except Failed as error:
                if isinstance(error, _ENDS):
                    raise
        if not (found := self.of(place)):
            raise Skip("no valid answer came")
        return found

    def of(self, place: Place) -> list[Exchange]:
        """Return the answers that a place gave so far."""
        with self._lock:
            return [one for one in self.seen if one.place == place.name]

    def send(self, place: Place, method: str, path: str, **more: Any) -> Reply:
        """Send any request and return the reply, whatever its status.

        Raises:
            Failed: If there is no reply.
        """
        self._note(method, path, more.get("body"))
        return http_exchange.send(place, self.target, method, path, **more)

    def budget(self, tokens: int) -> int:
        """Return how many tokens an answer may have.

        That is at most a quarter of the context length, and at most 256 if the answers mean
        nothing.
        """
        tokens = tokens if self.target.sense else min(tokens, 256)
        return min(tokens, (self.target.max_model_len or 10**9) // 4)

    @property
    def quiet(self) -> dict[str, Any]:
        """The fields that turn thinking off; {} if it cannot be turned off."""
        return {} if self.target.always_thinks else {"chat_template_kwargs": {"thinking": False}}

    def _note(self, method: str, path: str, body: Any) -> None:
        text = (
            body
            if isinstance(body, str)
            else ""
            if body is None
            else json.dumps(
                {key: value for key, value in body.items() if key not in ("temperature", "seed")},
                ensure_ascii=False,
            )
        )
        with self._lock:
            self._sent.append(received.short(f"{method} {path} {text}".strip(), _LONGEST))

    # Places -----------------------------------------------------------------------------

    @property
    def places(self) -> tuple[Place, ...]:
        """Where an answer can be judged: the front door, then the engines.

        Raises:
            Skip: If there is no such place.
        """
        door = () if self.unlike or self.target.door.name in self.lost else (self.target.door,)
        found = (*door, *(one for one in self.target.engines if one.name not in self.lost))
        if not found:
            raise Skip(f"nothing is left to ask: {next(iter(self.lost.values()), self.unlike)}")
        return found

    @property
    def few(self) -> tuple[Place, ...]:
        """The front door and the first engine of each role, for what is the same in all engines."""
        firsts: dict[str, Place] = {}
        for place in self.places:
            firsts.setdefault(place.role or place.name, place)
        return tuple(firsts.values())

    @property
    def door(self) -> Place:
        """The front door alone.

        Raises:
            Skip: If its answers cannot be judged.
        """
        if self.target.door.name in self.lost or self.unlike:
            raise Skip(self.lost.get(self.target.door.name) or self.unlike)
        return self.target.door

    def everywhere(
        self,
        look: Callable[[Place], str],
        places: Sequence[Place] | None = None,
        *,
        drop: bool = False,
        again: bool = False,
    ) -> str:
        """Call ``look`` for each place and return the results as one sentence.

        With ``again``, ``look`` is called once more for a faulty place, with no other request in
        flight; only the second result counts. With ``drop``, later checks do not ask a faulty
        place.

        Raises:
            Failed: If a place is faulty; it names the places and what each gave.
            Skip: If ``look`` raised it for every place.
        """
        places = self.places if places is None else places
        found = fan_out.each(look, places)
        retried = False
        if again:
            for at, place in enumerate(places):
                if isinstance(found[at], Failed) and not isinstance(found[at], _ENDS):
                    found[at], retried = fan_out.each(look, [place])[0], True
        for one in found:
            if isinstance(one, _ENDS) or (
                isinstance(one, Exception) and not isinstance(one, Failed | Skip)
            ):
                raise one
        bad = [
            (place, one)
            for place, one in zip(places, found, strict=True)
            if isinstance(one, Failed)
        ]
        bad.sort(key=lambda pair: pair[0].is_door)  # last: it leads to the engines that failed
        good = [one for one in found if isinstance(one, str)]
        engines = {place.name for place in places if not place.is_door}
        if engines & {place.name for place, _ in bad}:
            self._unlike(engines, {place.name for place, _ in bad})
        if drop and bad:
            self.lost |= {place.name: f"{place.name} failed in {self.name}" for place, _ in bad}
            if all(one.name in self.lost for one in self.target.engines):
                self.lost.setdefault(self.target.door.name, f"every engine failed in {self.name}")
        if bad:
            raise Failed(_told(bad, len(places)), self._cause(*bad[0]))
        if not good:
            raise next(one for one in found if isinstance(one, Skip))
        return (
            good[0]
            + (f"; {len(good)} of {len(places)} places alike" if len(places) > 1 else "")
            + ("; at the second try, alone" if retried else "")
        )

    def _cause(self, place: Place, error: Failed) -> str:
        """Return the cause of a failure; of a status that the example proxy made, that it did."""
        hidden = error.cause in ("server-error", "empty-200", "empty-stream", "cut-stream")
        if place.is_door and self.target.example_proxy and hidden:
            return "behind-example-proxy"
        return error.cause

    def _unlike(self, engines: set[str], bad: set[str]) -> None:
        """Note that engines differ: then an answer of the front door depends on chance."""
        if engines - bad and not self.unlike:
            self.unlike = (
                f"the front door leads to engines that are not alike: "
                f"{min(engines & bad)} failed in {self.name}"
            )


def _told(bad: Sequence[tuple[Place, Failed]], of: int) -> str:
    lines = [f"{place.name}: {one.got}" if of > 1 else one.got for place, one in bad[:_SHOWN]]
    rest = len(bad) - _SHOWN
    return "; ".join([*lines, *([f"and {rest} more"] if rest > 0 else [])])
