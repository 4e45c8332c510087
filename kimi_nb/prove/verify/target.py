"""The service that is verified, and what is known about it.

>>> at("http://192.0.2.11:8000/v1", "kimi_k25").url
'http://192.0.2.11:8000'

`of` returns the target of a service that a notebook has started, `at` that of any OpenAI-compatible
endpoint. A value of None is not known yet: it is found out by asking.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load
from kimi_nb.service import http_client
from kimi_nb.service.handle import Service
from kimi_nb.service.probe import Endpoint

# Seconds to wait for an answer. Stand-ins take milliseconds, but share the machine.
SECONDS, REHEARSED = 120.0, 12.0
_ENDPOINTS = (
    "/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/health",
    "/metrics",
    "/version",
    "/tokenize",
)


@dataclass(frozen=True)
class Place:
    """Where a request goes: the front door, or one engine.

    Attributes:
        rank: The value of the header X-data-parallel-rank, or None to leave it out.
        reasoning: Whether the engine has a reasoning parser.
        tools: Whether the engine has a tool call parser.
    """

    name: str
    url: str
    rank: int | None = None
    role: str = ""
    reasoning: bool | None = None
    tools: bool | None = None

    @property
    def is_door(self) -> bool:
        """Whether it is the front door."""
        return self.name == DOOR


DOOR = "front door"


@dataclass(frozen=True)
class Target:
    """The service; see the module.

    Attributes:
        sense: Whether answers mean something; those of random weights do not.
        always_thinks: Whether thinking cannot be turned off.
        seconds: The time to wait for an answer.
        pauses: Seconds between the attempts of a request that is answered 429.
        aliases: Other names under which the same weights are served.
        identity: Tells one service from another at the same URL.
        example_proxy: Whether the front door is vllm-ascend's example proxy, which hides what its
            engines refuse.
        mark: REHEARSAL where a stand-in is known to answer before anything is checked.
        heard: The marks of all replies so far.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    endpoints: tuple[Endpoint, ...] = ()
    sense: bool = True
    always_thinks: bool = False
    vision: bool | None = None
    reasoning: bool | None = None
    tools: bool | None = None
    disaggregated: bool | None = None
    max_model_len: int | None = None
    mark: str = ""
    seconds: float = SECONDS
    pauses: tuple[float, ...] = (1.0, 2.0, 4.0)
    identity: str = ""
    example_proxy: bool = False
    aliases: tuple[str, ...] = ()
    heard: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def marked(self) -> str:
        """REHEARSAL if a stand-in has answered anything so far, else ""."""
        return self.mark or next(iter(self.heard), "")

    @property
    def names(self) -> tuple[str, ...]:
        """The name that is asked for, and the other names of the same model."""
        return (self.model, *self.aliases)

    @property
    def door(self) -> Place:
        """The front door."""
        return Place(DOOR, self.url, None, "", self.reasoning, self.tools)

    @property
    def engines(self) -> tuple[Place, ...]:
        """Every rank whose own address is known."""
        return tuple(
            Place(one.name, one.url, one.index, one.role, one.reasoning, one.tools)
            for one in self.endpoints
        )


def of(service: Service, *, random_weights: bool = False) -> Target:
    """Return the target of a service that was started, or that is as its plan describes it."""
    plan = service.plan
    flags = [table for role, table in plan.flags.items() if role != "prefill"]
    sense = not random_weights and not plan.random_weights
    mark = service.mark
    return Target(
        service.url,
        service.model,
        service.key,
        service.endpoints,
        # A stand-in's answer depends on the prompt only, whatever the weights are.
        sense=bool(mark) or sense,
        always_thinks=_always_thinks(plan.request.model.name),
        vision=plan.takes_pictures,
        reasoning=all("reasoning-parser" in table for table in flags),
        tools=all("tool-call-parser" in table for table in flags),
        disaggregated="prefill" in plan.flags,
        mark=mark,
        seconds=REHEARSED if mark else SECONDS,
        identity=hashlib.sha256(plan.as_json().encode()).hexdigest()[:16],
    )


def at(url: str, model: str, key: str = "", **more: Any) -> Target:
    """Return the target at a URL, with or without /v1.

    Raises:
        ParameterError: If it is not a URL, names a single endpoint, or contains a secret.
    """
    parts = urlsplit(url if http_client.is_address(url) else "")
    if not parts.hostname or parts.port == 0 or parts.query or parts.fragment:
        shown = url if len(url) <= 200 else f"{url[:100]}... ({len(url)} characters)"
        raise ParameterError(f"URL {shown!r}: an address such as http://192.0.2.11:8000 is wanted.")
    if "@" in parts.netloc:
        raise ParameterError(
            "URL: it holds a user or a password, which evidence would show; put "
            "the key into a variable and name that with --api-key-env."
        )
    plain = url.rstrip("/")
    for end in _ENDPOINTS:
        if plain.endswith(end) and parts.path:
            door = plain.removesuffix(end).removesuffix("/v1").rstrip("/")
            raise ParameterError(
                f"URL {url!r}: {end} is one endpoint of a service; name the "
                f"service, {door}, and each check adds its own."
            )
    plain = plain.removesuffix("/v1").rstrip("/")
    return Target(plain, model, key, always_thinks=_always_thinks(model), **more)


def _always_thinks(name: str) -> bool:
    """Return whether a model of ours of this name always thinks.

    ``name`` is ours, or what a service calls it: a hub's id, or a name with that of the model.
    """
    told = name.lower()
    for known in map(load.model, load.names("models")):
        if told == known.name or known.title.lower() in told:
            return known.thinking == "always"
    return "thinking" in told
