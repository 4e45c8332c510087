"""What to try next, according to measurements: rules over the results of a benchmark.

Usage::

    found = advice.of(plan, result)  # Advices: flag, value now, next value, why
    found.pairs  # ("max-num-seqs=16",), as --set takes them

`advice_rules` holds the rules and `advice_registry` finds them. The docstring of a rule states the
problem that it reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.check import judge
from kimi_nb.check.rules import capacity
from kimi_nb.core.errors import ParameterError
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import identity, published_tables
from kimi_nb.prove.bench.published_tables import Published
from kimi_nb.prove.bench.results import BenchResult
from kimi_nb.prove.tune import shares
from kimi_nb.prove.tune.advice_registry import Advice, Cell, Facts, rules


@dataclass(frozen=True, repr=False)
class Advices(show.Both):
    """All advice from one set of measurements.

    Attributes:
        kind: "measured", "published" or "REHEARSAL".
        asked: The number of rules that were applied.
        shares: A table of the loads with their limits.
    """

    advices: tuple[Advice, ...]
    kind: str
    asked: int
    shares: show.Table

    @property
    def pairs(self) -> tuple[str, ...]:
        """The changes of the service as --set takes them, the first one for each flag."""
        first: dict[str, str] = {}
        for one in self.advices:
            if one.pair:
                first.setdefault(one.flag, one.pair)
        return tuple(first.values())

    def table(self) -> show.Table:
        """Return a table with a row for each piece of advice."""
        title = f"{len(self.advices)} pieces of advice from {self.asked} rules, figures {self.kind}"
        if self.kind not in ("measured", "published"):
            title += ": of stand-ins, which show the form and say nothing about hardware"
        return show.Table(
            title,
            ("rule", "flag", "now", "try next", "expect", "figures"),
            tuple(
                (one.rule, one.flag, one.now, one.try_next, one.effect, one.figures)
                for one in self.advices
            ),
        )

    def below(self) -> show.Table:
        """Return the table of the loads with their limits."""
        return self.shares

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "advices": [asdict(one) for one in self.advices]}


def advise(cells: Iterable[Cell], facts: Facts) -> tuple[Advice, ...]:
    """Apply every rule to each size of requests separately.

    If requests failed, only that is reported: the others were then measured under less load.
    """
    sizes: dict[tuple[int, int], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.concurrency):
        sizes.setdefault((cell.input_len, cell.output_len), []).append(cell)
    found: list[Advice] = []
    for same in sizes.values():
        every = {"failures": rules()["failures"]} if any(cell.failed for cell in same) else rules()
        for find in every.values():
            found += find(tuple(same), facts)
    return tuple(dict.fromkeys(found))


def of(plan: Plan, results: BenchResult | Published) -> Advices:
    """Return advice on a plan from its own measurements, or from published ones.

    Raises:
        ParameterError: If none of the results was measured with the settings of this plan.
    """
    cells, kind = cells_of(plan, results)
    known = facts(plan)
    return Advices(
        advise(cells, known),
        kind,
        len(rules()),
        shares.of(plan, cells, kind=kind, drafts=known.drafts),
    )


def under_limits(plan: Plan, results: BenchResult) -> show.Table:
    """Return the limit under each measurement of random prompts made with a plan's settings.

    Raises:
        ParameterError: If none of the results was measured with the settings of this plan.
    """
    cells, kind = cells_of(plan, results, sized=True)
    return shares.of(plan, cells, kind=kind, drafts=facts(plan).drafts)


def documented() -> tuple[Plan, Published]:
    """Return the published concurrency sweep, and the plan that it was measured with.

    What good advice on it says is known, so it serves as an example.
    """
    table = next(
        one
        for one in published_tables.tables()
        if len({row["concurrency"] for row in one.rows}) > 1
    )
    told = table.conditions
    return build.plan(told["model"], told["hardware"], told["layout"]), table


def cells_of(
    plan: Plan, results: BenchResult | Published, *, sized: bool = False
) -> tuple[list[Cell], str]:
    """Return (the cells measured with a plan's settings, their kind).

    The kind is measured, published or REHEARSAL. Loads without a limit on concurrency are left out;
    with ``sized`` also those of a data set, whose prompts have any length.

    Raises:
        ParameterError: If all results were measured with other settings.
    """
    if isinstance(results, Published):
        return [Cell.of(row) for row in results.rows if row["concurrency"]], "published"
    rows = results.summary().to_dict("records") if results.files else []
    mine = [row for row in rows if row["flags"] == identity.flags_hash(plan)]
    if rows and not mine:
        raise ParameterError(
            f"advice: none of the {len(rows)} loads in {results.folder} was "
            f"measured with the settings of this plan ({plan.name})."
        )
    kept = [row for row in mine if not sized or row["dataset"] == "random"]
    return [Cell.of(row) for row in kept if row["concurrency"]], results.mark or "measured"


def facts(plan: Plan) -> Facts:
    """Return what the rules need to know about a plan."""
    deployment = judge.of_plan(plan)
    out: dict[str, Any] = {}
    for role in plan.flags:
        server = next(one for one, _ in deployment.profiles() if one.role == role)
        shape = capacity.served_shape_of(deployment, server)
        assert shape is not None, role  # the sizes of a plan are always known
        groups = len({engine.group for engine in plan.engines if engine.role == role})
        at = f"{role}." if len(plan.flags) > 1 else ""
        if role != "prefill":
            fit = capacity.fit_of(deployment, server)
            drafts = server.table("speculative-config").get("num_speculative_tokens", 0)
            out |= {
                "seqs": shape.seqs,
                "ranks": shape.dp * groups,
                "decode": at,
                "drafts": drafts if isinstance(drafts, int) else 0,
                "cache_tokens": fit.tokens if fit else None,
                "utilization": shape.utilization,
            }
        if role != "decode":
            out |= {
                "batched_tokens": shape.batched_tokens,
                "prefill": at,
                "prefill_ranks": shape.dp * groups,
            }
    return Facts(**out)
