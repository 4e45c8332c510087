"""The plans of a sweep before anything runs: which are measured, and which are refused and why.

Usage::

    made = design.of(plan, "max-num-seqs: [8, 16]; concurrency: [1, 4]", input_len=64)
    made.groups  # Group(pairs=("max-num-seqs=8",), plan=..., loads=...): one start each
    made.refused  # Refused(pairs, reason)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb import show
from kimi_nb.check import judge
from kimi_nb.check.findings import Finding
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params import overrides
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import identity
from kimi_nb.prove.bench.workload import PER_REQUEST, Load, Loads
from kimi_nb.prove.tune import sweep_grammar
from kimi_nb.prove.tune.sweep_grammar import Axes


@dataclass(frozen=True)
class Group:
    """One setting of the serve flags, and every load that is measured with it.

    Attributes:
        pairs: key=value pairs that differ from the sweep's own plan.
        plan: The plan that they give.
        loads: The loads to measure while it serves.
        flags: The hash of the settings, which the results carry.
    """

    pairs: tuple[str, ...]
    plan: Plan
    loads: Loads
    flags: str

    @property
    def title(self) -> str:
        """The pairs, such as "max-num-seqs=8", or "as planned"."""
        return ", ".join(self.pairs) or "as planned"


@dataclass(frozen=True)
class Refused:
    """A setting of the serve flags that is not started, and why."""

    pairs: tuple[str, ...]
    reason: str


@dataclass(frozen=True, repr=False)
class Design(show.Shown):
    """A sweep: its axes, what is measured and what is refused."""

    plan: Plan
    axes: Axes
    groups: tuple[Group, ...]
    refused: tuple[Refused, ...]

    def __len__(self) -> int:
        """Return the number of loads that are measured, over all settings."""
        return sum(len(group.loads) for group in self.groups)

    def table(self) -> show.Table:
        """Return a table with a row for each start of the service and for each refused setting."""
        rows = [
            (group.title, "; ".join(load.title for load in group.loads.cells))
            for group in self.groups
        ]
        rows += [(", ".join(one.pairs), f"refused: {one.reason}") for one in self.refused]
        return show.Table(
            f"{self.plan.name}: {len(self)} loads on {len(self.groups)} settings, "
            f"{len(self.refused)} refused",
            ("serve flags", "measured"),
            tuple(rows),
        )


def of(plan: Plan, text: str, *, input_len: int = 1024, output_len: int = 1024) -> Design:
    """Return the design of a sweep around a plan.

    ``input_len`` and ``output_len`` apply unless an axis sets them. A combination that cannot be
    planned, or that the check refuses, is listed as refused; the others are measured.

    Raises:
        ParameterError: If an axis or a value is not valid.
        PlanError: If no combination is left to measure.
    """
    axes = sweep_grammar.parse(text)
    for key, values in axes.serve.items():
        for value in values:  # an unknown flag or value is an error before anything starts
            try:
                _with(plan, (f"{key}={value}",))
            except ParameterError as error:
                raise ParameterError(
                    f"sweep: {error} An axis of the load is one of {', '.join(sweep_grammar.LOADS)}."
                ) from None
            except PlanError:
                continue
    loads = _loads(axes, input_len, output_len)
    groups: dict[str, Group] = {}
    refused = []
    for pairs in axes.settings():
        try:
            made = _with(plan, pairs)
        except PlanError as error:
            refused.append(Refused(pairs, " ".join(str(error).split())))
            continue
        found = judge.plan(made)
        if not found.ok:
            refused.append(Refused(pairs, _said(found.errors)))
            continue
        flags = identity.flags_hash(made)
        if flags in groups:
            refused.append(Refused(pairs, f"the same as {groups[flags].title}"))
            continue
        groups[flags] = Group(pairs, made, loads, flags)
    if not groups:
        raise PlanError(
            "sweep: nothing is left to measure.\n"
            + "\n".join(
                f"  {', '.join(one.pairs) or 'as planned'}: {one.reason}" for one in refused[:8]
            )
        )
    return Design(plan, axes, tuple(groups.values()), tuple(refused))


def _with(plan: Plan, pairs: tuple[str, ...]) -> Plan:
    """Return the plan with changes applied on top of its own."""
    if not pairs:
        return plan
    asked = plan.request
    given = (*asked.pairs, *pairs)
    return build.from_request(
        replace(asked, pairs=given, overrides=overrides.parse(given, tuple(asked.recipe.roles)))
    )


def _loads(axes: Axes, input_len: int, output_len: int) -> Loads:
    cells = []
    for fields in axes.loads():
        many: dict[str, Any] = {
            "input_len": input_len,
            "output_len": output_len,
            "concurrency": 1,
            **fields,
        }
        many.setdefault("prompts", PER_REQUEST * many["concurrency"])
        cells.append(Load(**many, warmup=many["concurrency"]))
    return Loads(tuple(cells))


def _said(errors: Sequence[Finding]) -> str:
    shown = [f"{one.message} [{one.rule}]" for one in errors[:2]]
    return "; ".join(shown) + (f"; and {len(errors) - 2} more" if len(errors) > 2 else "")
