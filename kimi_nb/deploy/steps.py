"""The steps of a deployment, whatever carries them out.

    for step in target.steps:
        outcome = step.run()          # creates what is missing, reuses what is there

A `Target` is a site with a plan on it: nodes (`nodes.Nodes`) or a SLURM cluster
(`cluster.Cluster`). Each step can be run again: a second run changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kimi_nb.core.errors import KimiError
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan.spec import Plan
from kimi_nb.service.readiness import Logs
from kimi_nb.show import values as show


@dataclass(frozen=True)
class Change:
    """One thing that a step changed, or would change, on a node."""

    node: str
    what: str


def together(changes: Iterable[Change]) -> list[str]:
    """A line for each change: the same one on several nodes shares a line."""
    nodes: dict[str, list[str]] = {}
    for one in changes:
        nodes.setdefault(one.what, []).append(one.node)
    return [
        f"{', '.join(names[:8])}{f' and {len(names) - 8} more' * (len(names) > 8)}: {what}"
        for what, names in nodes.items()
    ]


@dataclass(frozen=True)
class Outcome:
    """What came of a step: what it changed (nothing: all was there), what a person should know,
    exit codes by node, and facts worth keeping (job numbers, host names)."""

    changes: tuple[Change, ...] = ()
    warnings: tuple[Change, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


class StepFailed(KimiError):
    """A step that could not be done, on one node or more; the others were done."""

    def __init__(
        self, step: str, failed: Sequence[Diagnosis], outcome: Outcome | None = None
    ) -> None:
        self.step, self.failed, self.outcome = step, tuple(failed), outcome or Outcome()
        super().__init__("\n".join(f"{step}: {one}" for one in failed))


@dataclass(frozen=True)
class Step:
    """``name`` stands in the evidence, ``title`` says what it does. ``always``: it is run again
    also by a deployment that goes on where the last one failed."""

    name: str
    title: str
    run: Callable[[], Outcome]
    always: bool = False


@dataclass(frozen=True)
class EngineState:
    """What is known of one engine: ``state`` is "ready" (it gave a completion), "starting",
    "ended" or "not started"; ``error`` the last line of its log that tells of one."""

    engine: str
    node: str
    rank: int
    port: int | None
    state: str
    error: str = ""


class Target(Protocol):
    """A site with a plan on it."""

    plan: Plan

    @property
    def logs(self) -> Logs:
        """What its engines have said so far."""

    @property
    def steps(self) -> Sequence[Step]:
        """From reaching the site to started engines, in order."""

    @property
    def after(self) -> Sequence[Step]:
        """What follows once the service has answered."""

    def preview(self) -> Sequence[Change]:
        """What the steps would change; changes nothing."""

    def diff(self) -> str:
        """The scripts that are there and the new ones as ``diff -u`` shows them, after
        `preview`."""

    def ended(self) -> Mapping[str, int]:
        """Exit codes of what has ended, as `readiness.Watch` takes them: "NODE engines"."""

    def serving(self) -> Plan:
        """The plan with the addresses at which it really serves."""

    def open_door(self) -> Outcome:
        """Start the front door, where the plan has one; every engine is ready."""

    def status(self) -> Sequence[EngineState]:
        """Every engine of the plan, as it is now."""

    def queue(self) -> show.Table | None:
        """What a scheduler knows of it, where there is one."""

    def down(self) -> Outcome:
        """Stop and clean up whatever is there, also after half a start."""

    def memory_mb(self) -> float:
        """Of the service's processes; 0 where that cannot be seen."""

    def follow(self, stop: Callable[[], bool]) -> Iterator[tuple[str, str]]:
        """(who says it, line) of every log from its begin, and on until ``stop``."""

    def close(self) -> None:
        """Let go of the site; what runs there goes on."""

    @property
    def log_folder(self) -> Path:
        """Where `logs` keeps what it has read."""
