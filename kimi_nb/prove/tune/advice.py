"""What measurements say to try next: rules over the cells of a benchmark and what was seen in it.

    found = advice.of(plan, result)     # Advices: flag, value now, next value, why
    found.pairs                         # ("max-num-seqs=16",), as --set takes them

A rule is a small pure function in advice_rules.py; its docstring says what is going on. It looks
at cells (one for each load, medians over repetitions) and at what the plan says of its engines.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb.check import judge as check
from kimi_nb.check.rules import capacity
from kimi_nb.core.errors import ParameterError
from kimi_nb.plan import build, memory
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import identity
from kimi_nb.prove.bench import published_tables as published
from kimi_nb.prove.bench.published_tables import Published
from kimi_nb.prove.bench.results import BenchResult
from kimi_nb.prove.tune import shares
from kimi_nb.show import values as show


@dataclass(frozen=True)
class Cell:
    """What was measured under one load. Throughput in output tokens a second, times in ms; None
    where nobody looked. ``spread`` is (largest - least) / median over the repetitions."""

    concurrency: int
    input_len: int
    output_len: int
    throughput: float
    ttft_ms: float
    tpot_ms: float
    failed: int = 0
    spread: float = 0.0
    waiting: float | None = None
    running: float | None = None
    cache: float | None = None
    preemptions: float | None = None
    acceptance: float | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """From a row of a benchmark's summary, or of a published table."""

        def seen(name: str) -> float | None:
            value = row.get(name)
            return None if value is None or math.isnan(value) else float(value)

        return cls(
            int(row["concurrency"]),
            int(row["input_len"]),
            int(row["output_len"]),
            float(row["output_throughput"]),
            float(row["mean_ttft_ms"]),
            float(row["mean_tpot_ms"]),
            int(row.get("failed", 0)),
            seen("output_throughput_spread") or 0.0,
            seen("seen_waiting_max"),
            seen("seen_running_max"),
            seen("seen_kv_cache_max"),
            seen("seen_preemptions"),
            seen("seen_spec_acceptance"),
        )


@dataclass(frozen=True)
class Facts:
    """What the rules need of a plan. ``seqs``, ``drafts``, ``cache_tokens`` and ``utilization``
    are of a rank that decodes, ``batched_tokens`` of one that prefills; ranks are those of all
    groups. The prefixes name a role where the layout has several ("decode.")."""

    seqs: int
    ranks: int
    batched_tokens: int
    prefill_ranks: int
    drafts: int = 0
    cache_tokens: int | None = None
    utilization: float | None = None
    decode: str = ""
    prefill: str = ""

    @property
    def places(self) -> int:
        """Requests that are worked on at once: max-num-seqs on every rank."""
        return self.seqs * self.ranks


@dataclass(frozen=True)
class Advice:
    """One piece: the flag, its value, the next one to try, what to expect, and the figures that it
    came from. The flag ``concurrency`` is the client's."""

    rule: str
    flag: str
    now: Any
    try_next: Any
    effect: str
    figures: str

    @property
    def pair(self) -> str:
        """The change as --set takes it; "" where it is not the service's."""
        return "" if self.flag == "concurrency" else f"{self.flag}={self.try_next}"


Find = Callable[[tuple[Cell, ...], Facts], Iterator[Advice]]
_RULES: dict[str, Find] = {}


def rule(name: str) -> Callable[[Find], Find]:
    """Make a function a rule."""
    assert name not in _RULES, name

    def register(find: Find) -> Find:
        _RULES[name] = find
        return find

    return register


@functools.cache
def rules() -> Mapping[str, Find]:
    """Every rule by its name."""
    importlib.import_module("kimi_nb.prove.tune.advice_rules")
    return dict(_RULES)


@dataclass(frozen=True, repr=False)
class Advices(show.Both):
    """All advice from one set of measurements. ``kind`` is measured, published or REHEARSAL,
    ``shares`` the loads that it came from under their limits."""

    advices: tuple[Advice, ...]
    kind: str
    asked: int
    shares: show.Table

    @property
    def pairs(self) -> tuple[str, ...]:
        """The changes of the service, as --set takes them; of one flag the first."""
        first: dict[str, str] = {}
        for one in self.advices:
            if one.pair:
                first.setdefault(one.flag, one.pair)
        return tuple(first.values())

    def table(self) -> show.Table:
        """A row for each piece of advice."""
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
        """The loads under their limits."""
        return self.shares

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": self.kind, "advices": [asdict(one) for one in self.advices]}


def advise(cells: Iterable[Cell], facts: Facts) -> tuple[Advice, ...]:
    """Ask every rule, for each size of requests apart. Where requests failed, only that is told:
    what survived is no measure."""
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
    """Advice on a plan from what was measured of it, or was published. Raises ParameterError where
    none of the results is of these settings."""
    cells, kind = cells_of(plan, results)
    known = facts(plan)
    return Advices(
        advise(cells, known),
        kind,
        len(rules()),
        shares.of(plan, cells, kind=kind, drafts=known.drafts),
    )


def documented() -> tuple[Plan, Published]:
    """The concurrency sweep that a document has published, and the plan that it was measured
    with: what advice must say of it is known."""
    table = next(
        one for one in published.tables() if len({row["concurrency"] for row in one.rows}) > 1
    )
    told = table.conditions
    return build.plan(told["model"], told["hardware"], told["layout"]), table


def cells_of(plan: Plan, results: BenchResult | Published) -> tuple[list[Cell], str]:
    """(the cells of a plan's own settings, measured, published or REHEARSAL). Loads without a
    limit on concurrency are left out. Raises ParameterError where all are of other settings."""
    if isinstance(results, Published):
        return [Cell.of(row) for row in results.rows if row["concurrency"]], "published"
    rows = results.summary().to_dict("records") if results.files else []
    mine = [row for row in rows if row["flags"] == identity.flags_hash(plan)]
    if rows and not mine:
        raise ParameterError(
            f"advice: none of the {len(rows)} loads in {results.folder} was "
            f"measured with the settings of this plan ({plan.name})."
        )
    return [Cell.of(row) for row in mine if row["concurrency"]], results.mark or "measured"


def facts(plan: Plan) -> Facts:
    """What the rules need of a plan."""
    deployment = check.of_plan(plan)
    out: dict[str, Any] = {}
    for role in plan.flags:
        server = next(one for one, _ in deployment.profiles() if one.role == role)
        shape = memory.Shape.of(server, deployment.ascend, capacity.defaults(deployment))
        assert shape is not None, role  # a plan's sizes are always known
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
