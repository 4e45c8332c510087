"""A service that a notebook has started, or was pointed at: what is known of it, and its end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_nb.core.errors import ServiceError
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse.simulated_site import MARK
from kimi_nb.service import probe as service
from kimi_nb.show import values as show

if TYPE_CHECKING:
    from kimi_nb.deploy.lifecycle import Up
    from kimi_nb.notebook.run import Run
    from kimi_nb.rehearse.rehearsal import Live

_WAIT = 5.0  # seconds for a first sign of a service that somebody else has started


@dataclass(frozen=True, repr=False)
class Service(show.Shown):
    """What `Run.serve` returns: a service that is up until `stop`, or none with action plan.
    ``elsewhere`` is the URL of one that was there already; it is asked, never stopped."""

    run: Run
    plan: Plan
    live: Live | Up | None
    elsewhere: str = ""

    @property
    def up(self) -> bool:
        """Whether there is anything to ask."""
        return bool(self.elsewhere or (self.live and self.live.up))

    @property
    def engines(self) -> int:
        """Engines that were started."""
        return self.live.result.engines if self.live else 0

    @property
    def ready(self) -> int:
        """Engines that gave a completion."""
        return self.live.result.ready if self.live else 0

    @property
    def url(self) -> str:
        """The front door, while it is open."""
        return self.elsewhere or (self.live.url if self.live else "")

    @property
    def model(self) -> str:
        """The name under which it serves."""
        return self.plan.served_name

    @property
    def key(self) -> str:
        """The API key, "" without one; a value, for requests only and never to be kept."""
        if self.live is not None:
            return self.live.key
        return os.environ.get(self.plan.secrets.get("VLLM_API_KEY", ""), "")

    @property
    def serving(self) -> Plan:
        """The plan at the addresses where it serves: a rehearsal's are of this machine."""
        return self.live.plan if self.live else self.plan

    @property
    def endpoints(self) -> tuple[service.Endpoint, ...]:
        """Every rank, and the way to it; none of a service that was there already."""
        return service.endpoints(self.serving) if self.live else ()

    @property
    def mark(self) -> str:
        """REHEARSAL where no engine runs, "" where one does."""
        if self.live is not None:
            found = self.live.result.mark  # a deployment says of itself that it measures
            return found if found == MARK else ""
        return service.mark(self.elsewhere, _WAIT) if self.elsewhere else ""

    @property
    def answer(self) -> str:
        """What came through the front door."""
        return self.live.result.answer if self.live else ""

    @property
    def moved_tokens(self) -> int:
        """Prompt tokens of the first answer whose KV cache came from prefill to decode."""
        return self.live.result.moved_tokens if self.live else 0

    def table(self) -> show.Table:
        """The facts of the start."""
        if self.elsewhere:
            return show.Table(
                f"{self.plan.name} at {self.elsewhere}",
                ("what", "is"),
                (
                    ("started", "nothing: it was there already, and is left as it is"),
                    ("model", self.model),
                    ("mark", self.mark or "none: it is no rehearsal"),
                ),
            )
        if self.live is None:
            return show.Table(
                f"{self.plan.name}",
                ("what", "is"),
                (("started", "nothing: action plan writes and checks only"),),
            )
        return self.live.result.table()

    def stop(self, *, keep: bool = False) -> show.Table:
        """Stop what was started and tell what came of it; a second call changes nothing.
        ``keep`` leaves a service on a site up: `kimi-nb down` ends it later."""
        if self.live is None or not self.live.up:
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
        return self.table()


def attach(run: Run, plan: Plan, url: str) -> Service:
    """A service that was there already, as the plan describes it. Raises ServiceError where
    nobody listens."""
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise ServiceError(f"url {url!r}: an address such as http://192.0.2.11:8000 is wanted.")
    if not service.listens(url, _WAIT):
        raise ServiceError(
            f"url {url}: nobody takes connections there. Is the service up, and is "
            "this its front door (kimi-nb status)?"
        )
    run.record("attach", plan=plan.name, url=url)
    return Service(run, plan, None, url)
