"""Define the steps of a deployment, independently of how the site is reached.

Example::

    for step in target.steps:
        outcome = step.run()  # creates what is missing, reuses what is there

A `Target` is a site with a plan on it: nodes (`on_nodes.OnNodes`) or a SLURM cluster
(`slurm.cluster.Cluster`). Every step can be repeated: a second run changes nothing and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from kimi_nb import show
from kimi_nb.core.errors import KimiError
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan.spec import Plan
from kimi_nb.service.readiness import Logs

_CHARACTERS, _LINES = 4000, 40  # of one message


@dataclass(frozen=True)
class Change:
    """One thing that a step changed, or would change, on a node."""

    node: str
    what: str


def together(changes: Iterable[Change]) -> list[str]:
    """Return one line for each distinct change; nodes with the same change share a line.

    >>> together([Change("a3-0", "weights: copied"), Change("a3-1", "weights: copied")])
    ['a3-0, a3-1: weights: copied']
    """
    nodes: dict[str, list[str]] = {}
    for one in changes:
        nodes.setdefault(one.what, []).append(one.node)
    return [
        f"{', '.join(names[:8])}{f' and {len(names) - 8} more' * (len(names) > 8)}: {what}"
        for what, names in nodes.items()
    ]


def alike(failed: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return one diagnosis for all nodes on which the same is wrong, with all their names.

    Only what concerns a node as a whole is put together, not its ranks.
    """
    groups: dict[tuple[str, str, str, int | None], list[Diagnosis]] = {}
    for at, one in enumerate(failed):
        name = re.compile(rf"(?<![\w-]){re.escape(one.node)}(?![\w-])")
        texts = [name.sub("each node", text) for text in (one.cause, one.evidence, one.help)]
        key = (texts[0], texts[1], texts[2], None if one.rank is None else at)
        groups.setdefault(key, []).append(one)
    out = []
    for (cause, evidence, way_out, _), group in groups.items():
        first, names = group[0], [one.node for one in group]
        if len(names) > 1:
            more = f" and {len(names) - 8} more" * (len(names) > 8)
            first = replace(
                first,
                node=f"{', '.join(names[:8])}{more}",
                cause=cause,
                evidence=evidence,
                help=way_out,
            )
        out.append(first)
    return out


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step.

    Attributes:
        changes: What it changed; empty if everything was in place already.
        warnings: What the user should know.
        codes: Exit codes by node.
        facts: Facts worth recording, such as job numbers and host names.
    """

    changes: tuple[Change, ...] = ()
    warnings: tuple[Change, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


class StepFailed(KimiError):
    """A step failed on one node or more; on the others it was done."""

    def __init__(
        self, step: str, failed: Sequence[Diagnosis], outcome: Outcome | None = None
    ) -> None:
        self.step, self.failed, self.outcome = step, tuple(failed), outcome or Outcome()
        super().__init__(_screen([f"{step}: {one}" for one in alike(failed)]))


def _screen(texts: Sequence[str]) -> str:
    """Join as many texts as fit a screen, at least one, and say how many more there are."""
    out: list[str] = []
    for text in texts:
        joined = "\n".join([*out, text])
        if out and (len(joined) > _CHARACTERS or joined.count("\n") > _LINES):
            return "\n".join([*out, f"and {len(texts) - len(out)} more"])
        out.append(text)
    return "\n".join(out)


@dataclass(frozen=True)
class Step:
    """One step; ``name`` appears in the evidence, ``title`` says what it does.

    A step with ``always`` is repeated even when a failed deployment is resumed.
    """

    name: str
    title: str
    run: Callable[[], Outcome]
    always: bool = False


@dataclass(frozen=True)
class EngineState:
    """The state of one engine, or of a part of its KV store, which has no rank.

    ``state`` is "ready" (it gave a completion), "starting", "ended" or "not started", or what the
    target reports; ``error`` is the last line of its log that reports an error. ``mark`` is REHEARSAL
    where a stand-in has answered for it.
    """

    engine: str
    node: str
    rank: int | None
    port: int | None
    state: str
    error: str = ""
    mark: str = ""


class Target(Protocol):
    """A site with a plan on it."""

    plan: Plan

    @property
    def url(self) -> str:
        """The URL at which clients reach the service once this process has ended."""

    @property
    def logs(self) -> Logs:
        """The logs of its engines so far."""

    @property
    def steps(self) -> Sequence[Step]:
        """The steps from reaching the site to started engines, in order."""

    @property
    def after(self) -> Sequence[Step]:
        """The steps that follow once the service has answered."""

    def undone(self, step: str) -> bool:
        """Return whether a step that was done before has something to do again, as was seen."""

    def preview(self) -> Sequence[Change]:
        """Return what the steps would change; nothing is changed."""

    def diff(self) -> str:
        """Return the changes of the scripts on the site as ``diff -u``; call it after `preview`."""

    def ended(self) -> Mapping[str, int]:
        """Return exit codes of what has ended, as `readiness.Watch` takes them: "NODE engines"."""

    def serving(self) -> Plan:
        """Return the plan with the addresses at which it really serves."""

    def open_door(self) -> Outcome:
        """Start the front door, if the plan has one; every engine must be ready."""

    def status(self) -> Sequence[EngineState]:
        """Return the current state of every engine of the plan."""

    def queue(self) -> show.Table | None:
        """Return what the scheduler knows of the deployment, or None without one."""

    def down(self) -> Outcome:
        """Stop and clean up whatever is there, also after an incomplete start."""

    def memory_mb(self) -> float:
        """Return the memory of the service's processes in MB; 0 if it cannot be measured."""

    def follow(self, stop: Callable[[], bool]) -> Iterator[tuple[str, str]]:
        """Yield (source, line) of every log from its beginning, until ``stop`` returns true."""

    def close(self) -> None:
        """Close the connection to the site; what runs there continues."""

    @property
    def log_folder(self) -> Path:
        """The folder in which `logs` keeps what it has read."""
