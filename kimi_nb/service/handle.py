"""Hold a service that a notebook has started or attached to, until it is stopped."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from kimi_nb import show
from kimi_nb.core.errors import ServiceError
from kimi_nb.core.marks import MARK, RANDOM
from kimi_nb.plan.spec import Plan
from kimi_nb.service import http_client, probe
from kimi_nb.service.session import Session

if TYPE_CHECKING:
    from kimi_nb.diagnose.first_failure import Diagnosis, Event

_WAIT = 5.0  # seconds for the first sign of a service that already runs
_ENGINE_WAIT, _AT_ONCE = 1.0, 64  # the same for its engines, and how many are tried at a time


class Started(Protocol):
    """The result of starting a service: of a rehearsal, or of a deployment."""

    @property
    def ok(self) -> bool:
        """Whether the service has answered."""

    @property
    def plan(self) -> str:
        """The name of the plan."""

    @property
    def mark(self) -> str:
        """REHEARSAL, or measured."""

    @property
    def engines(self) -> int:
        """How many engines were started."""

    @property
    def ready(self) -> int:
        """How many engines returned a completion."""

    @property
    def answer(self) -> str:
        """The first answer through the front door."""

    @property
    def moved_tokens(self) -> int:
        """How many prompt tokens had their KV cache transferred from prefill to decode."""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The first failure, with its cause; None where nothing failed."""

    @property
    def times(self) -> Mapping[str, float]:
        """Seconds from the start to the first completion of each rank, by the rank's name."""

    @property
    def events(self) -> tuple[Event, ...]:
        """Every sign of a failure in the logs, the first cause first."""

    @property
    def folder(self) -> Path:
        """The folder of the logs."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""

    def table(self) -> show.Table:
        """Return the facts of the start as a table."""


class Running(Protocol):
    """A service that was started and can be stopped: rehearsed here, or deployed on the site."""

    @property
    def plan(self) -> Plan:
        """The plan, with the addresses at which its engines really listen."""

    @property
    def result(self) -> Started:
        """The result of the start."""

    @property
    def key(self) -> str:
        """The API key; "" without one."""

    @property
    def up(self) -> bool:
        """Whether the service still runs."""

    @property
    def url(self) -> str:
        """The URL of the front door."""

    def stop(self) -> object:
        """Stop the service; a second call changes nothing."""


@dataclass(frozen=True, repr=False)
class Service(show.Shown):
    """The service that `Run.serve` returns: up until `stop`; with action plan nothing runs.

    ``elsewhere`` is the URL of a service that already ran: it gets requests, and is never stopped.
    ``reached`` says whether an engine takes connections where the plan has it. ``shared`` says that
    the run has started ``live`` for several notebooks, and will stop it.
    """

    run: Session
    plan: Plan
    live: Running | None
    elsewhere: str = ""
    reached: bool = False
    shared: bool = False

    @property
    def up(self) -> bool:
        """Whether there is a service to send requests to."""
        return bool(self.elsewhere or (self.live and self.live.up))

    @property
    def engines(self) -> int:
        """How many engines were started."""
        return self.live.result.engines if self.live else 0

    @property
    def ready(self) -> int:
        """How many engines returned a completion."""
        return self.live.result.ready if self.live else 0

    @property
    def url(self) -> str:
        """The URL of the front door while the service is up; "" without a service."""
        return self.elsewhere or (self.live.url if self.live else "")

    @property
    def model(self) -> str:
        """The model name that requests must give."""
        return self.plan.served_name

    @property
    def key(self) -> str:
        """The API key, "" without one; use it in requests only and never store it."""
        if self.live is not None:
            return self.live.key
        return os.environ.get(self.plan.secrets.get("VLLM_API_KEY", ""), "")

    @property
    def serving(self) -> Plan:
        """The plan with the addresses in use; those of a rehearsal are on this machine."""
        return self.live.plan if self.live else self.plan

    @property
    def endpoints(self) -> tuple[probe.Endpoint, ...]:
        """Every rank and how to reach it; empty where the plan does not know that.

        A service that already ran is asked at each address of the plan if ``elsewhere`` is the
        plan's front door, or if an engine takes connections there; and through ``elsewhere`` if one
        API serves all ranks.
        """
        if not self.up:
            return ()
        found = probe.endpoints(self.serving)
        if self.live is not None or _same_address(self.elsewhere, self.plan.url):
            return found
        if self.plan.router is None and {one.url for one in found} == {self.plan.url}:
            return tuple(replace(one, url=self.elsewhere) for one in found)
        return found if self.reached else ()

    @functools.cached_property
    def mark(self) -> str:
        """REHEARSAL where a stand-in answers, at the front door or as an engine; "" elsewhere.

        Asked once: a service that has gone since was what it was.
        """
        if self.live is not None:
            found = self.live.result.mark  # "measured" for a deployment
            return found if found == MARK else ""
        if not self.elsewhere:
            return ""
        return probe.mark((self.elsewhere, *(one.url for one in self.endpoints)), _WAIT)

    @property
    def answer(self) -> str:
        """The first answer through the front door."""
        return self.live.result.answer if self.live else ""

    @property
    def moved_tokens(self) -> int:
        """How many prompt tokens of the first answer had their KV cache transferred to decode."""
        return self.live.result.moved_tokens if self.live else 0

    def table(self) -> show.Table:
        """Return the facts of the start as a table."""
        if self.elsewhere:
            return show.Table(
                f"{self.plan.name} at {self.elsewhere}",
                ("what", "is"),
                (
                    ("started", "nothing: it was there already, and is left as it is"),
                    ("model", self.model),
                    ("mark", self.mark or self._no_mark),
                    ("ranks", self._reached),
                ),
            )
        if self.live is None:
            return show.Table(
                f"{self.plan.name}",
                ("what", "is"),
                (("started", "nothing: action plan writes and checks only"),),
            )
        found = self.live.result.table()
        if not self.shared:
            return found
        row = ("started", "by the run, for several notebooks; it is stopped when the run ends")
        return replace(found, rows=(row, *found.rows))

    @property
    def _no_mark(self) -> str:
        return RANDOM if self.plan.random_weights else "none: it is no rehearsal"

    @property
    def _reached(self) -> str:
        """How the ranks of a service that already ran are asked."""
        if found := self.endpoints:
            return f"{len(found)}, each is asked by itself, as the plan has them"
        return (
            f"not asked by themselves: the plan's front door is {self.plan.url}, and no engine "
            "takes connections where the plan has it"
        )

    def stop(self, *, keep: bool = False) -> show.Table:
        """Stop what was started and say so; a second call changes nothing.

        ``keep`` leaves a deployed service up: stop it later with `kimi-nb down`.
        """
        if self.live is None or self.shared or not self.live.up:
            return self.table()
        result = self.live.result
        if keep and self.run.action == "deploy":
            self.run.record("kept", plan=result.plan, url=self.url)
            return show.Table(
                f"{result.plan} stays up",
                ("what", "is"),
                (
                    ("front door", self.url),
                    ("look at it", "kimi-nb status, kimi-nb logs"),
                    ("end it", f"kimi-nb down {self.run.folder}"),
                ),
            )
        self.live.stop()
        self.run.record("stop", mark=result.mark, plan=result.plan)
        rows = (
            ("stopped", f"{result.ready} of {result.engines} engines were ready"),
            ("logs", str(result.folder)),
        )
        return replace(result.table(), rows=rows)


def _any_listens(plan: Plan) -> bool:
    """Return whether an engine behind a router takes connections where the plan has it."""
    urls = list(dict.fromkeys(one.url for one in probe.endpoints(plan))) if plan.router else []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return any(pool.map(lambda url: http_client.listens(url, _ENGINE_WAIT), urls))


def _same_address(url: str, other: str) -> bool:
    """Return whether two URLs lead to the same host and port."""
    one, two = urlsplit(url), urlsplit(other)
    return (one.hostname, one.port) == (two.hostname, two.port)


def attach(run: Session, plan: Plan, url: str) -> Service:
    """Return a service that already runs and that the plan describes.

    Raises ServiceError where nothing listens at the URL.
    """
    url = url.rstrip("/").removesuffix("/v1")
    if not http_client.is_address(url):
        raise ServiceError(
            f"url {url[:200]!r}: an address such as http://192.0.2.11:8000 is wanted."
        )
    if not http_client.listens(url, _WAIT):
        raise ServiceError(
            f"url {url}: nobody takes connections there. Is the service up, and is "
            "this its front door (kimi-nb status)?"
        )
    service = Service(run, plan, None, url, _any_listens(plan))
    run.record("attach", plan=plan.name, url=url, mark=service.mark)
    return service
