"""A service that a notebook has started: what is known of it, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_nb import show
from kimi_nb.plan import Plan

if TYPE_CHECKING:
    from kimi_nb.deploy.deploy import Up
    from kimi_nb.rehearsal.rehearse import Live
    from kimi_nb.run import Run


@dataclass(frozen=True)
class Service(show.Shown):
    """What `Run.serve` returns: a service that is up until `stop`, or none with action plan."""

    run: Run
    plan: Plan
    live: Live | Up | None

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
        return self.live.url if self.live else ""

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
        if self.live is None:
            return show.Table(f"{self.plan.name}", ("what", "is"), (
                ("started", "nothing: action plan writes and checks only"),))
        return self.live.result.table()

    def stop(self, *, keep: bool = False) -> show.Table:
        """Stop what was started and tell what came of it; a second call changes nothing.
        ``keep`` leaves a service on a site up: `kimi-nb down` ends it later."""
        if self.live is None or not self.live.up:
            return self.table()
        result = self.live.result
        if keep and self.run.action == "deploy":
            self.run.record("kept", plan=result.plan, url=self.url)
            return show.Table(f"{result.plan} stays up", ("what", "is"), (
                ("front door", self.url), ("look at it", "kimi-nb status, kimi-nb logs"),
                ("end it", f"kimi-nb down {self.run.folder}")))
        self.live.stop()
        self.run.record("stop", mark=result.mark, plan=result.plan)
        return self.table()
