"""The plans of a sweep, before anything runs: which are measured, and which are refused and why.

made = design.of(plan, "max-num-seqs: [8, 16]; concurrency: [1, 4]", input_len=64)
made.groups      # Group(pairs=("max-num-seqs=8",), plan=..., loads=...): one start each
made.refused     # Refused(pairs, reason)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb.check import judge as check
from kimi_nb.check.findings import Finding
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params import overrides
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import identity
from kimi_nb.prove.bench.workload import PER_REQUEST, Load, Loads
from kimi_nb.prove.tune import sweep_grammar as grammar
from kimi_nb.prove.tune.sweep_grammar import Axes
from kimi_nb.show import values as show


@dataclass(frozen=True)
class Group:
    """Serve flags that differ from the first plan's (key=value pairs), the plan that they give,
    and every load that is measured while it serves. ``flags`` is the hash that results carry."""

    pairs: tuple[str, ...]
    plan: Plan
    loads: Loads
    flags: str

    @property
    def title(self) -> str:
        """max-num-seqs=8, or what the plan has already."""
        return ", ".join(self.pairs) or "as planned"


@dataclass(frozen=True)
class Refused:
    """Serve flags that are not started, and what is wrong with them."""

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
        """Loads that are measured, over all settings."""
        return sum(len(group.loads) for group in self.groups)

    def table(self) -> show.Table:
        """A row for each start of the service, and one for each that there will not be."""
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
    """The design of a sweep around a plan; the sizes hold where no axis sets them.

    Raises ParameterError for an axis that is none, at once; a combination that cannot be planned
    or that the check refuses is told as refused, and the others are measured. Raises PlanError
    where that leaves nothing.
    """
    axes = grammar.parse(text)
    for key, values in axes.serve.items():
        for value in values:  # a flag or value that no version takes stops before the first start
            try:
                _with(plan, (f"{key}={value}",))
            except ParameterError as error:
                raise ParameterError(
                    f"sweep: {error} An axis of the load is one of {', '.join(grammar.LOADS)}."
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
        found = check.plan(made)
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
    """The plan with these changes laid on its own."""
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
