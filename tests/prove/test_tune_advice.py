"""Advice: each rule fires on its case and is silent on the others; the cases are data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kimi_nb.check import judge
from kimi_nb.plan import build
from kimi_nb.prove.bench import published_tables
from kimi_nb.prove.tune import advice, advice_rules, limits
from kimi_nb.prove.tune.advice_registry import Cell, Facts

CASES = yaml.safe_load((Path(__file__).parent / "tune" / "advice.yaml").read_text())
SIDES = [
    (rule, side, number)
    for rule, case in CASES.items()
    for side in ("fires", "silent")
    for number in range(len(case[side]) if isinstance(case[side], list) else 1)
]
NAMES = ("concurrency", "throughput", "ttft_ms", "tpot_ms")


def cells(case: dict) -> list[Cell]:
    size = {"input_len": 1024, "output_len": 1024}
    return [
        Cell(**size, **(one if isinstance(one, dict) else dict(zip(NAMES, one, strict=True))))
        for one in case["cells"]
    ]


@pytest.mark.parametrize(("rule", "side", "number"), SIDES)
def test_rule(rule, side, number):
    case = CASES[rule][side]
    case = case[number] if isinstance(case, list) else case
    known = Facts(
        **{
            "seqs": 64,
            "ranks": 1,
            "batched_tokens": 65536,
            "prefill_ranks": 1,
            **case.get("facts", {}),
        }
    )
    mine = [one for one in advice.advise(cells(case), known) if one.rule == rule]
    if side == "silent":
        assert not mine
        return
    said = [{"flag": one.flag, "now": one.now, "try_next": one.try_next} for one in mine]
    assert case["says"] in said
    assert all(one.effect and any(sign.isdigit() for sign in one.figures) for one in mine)


def test_every_rule_has_its_case_and_says_what_goes_on():
    assert sorted(CASES) == sorted(advice.rules())
    assert all(find.__doc__ for find in advice.rules().values())


def test_the_published_sweep_gives_its_documents_own_conclusions():
    """8 was best; 16 queued because 12 places were there; raise max-num-seqs and
    max-num-batched-tokens, or limit concurrency."""
    plan, table = advice.documented()
    assert (plan.model, plan.hardware, plan.layout) == ("k2-thinking", "a3", "single")
    found = advice.of(plan, table)
    assert found.kind == "published"
    told = {(one.rule, one.flag): one for one in found.advices}
    assert told["best-concurrency", "concurrency"].try_next == 8
    queue = told["queueing", "max-num-seqs"]
    assert (queue.now, queue.try_next) == (12, 16)
    assert "concurrency 16 > max-num-seqs 12 x 1 ranks" in queue.figures
    assert told["queueing", "concurrency"].try_next == 12
    assert told["prefill-chunk", "max-num-batched-tokens"].try_next == 16384
    assert found.pairs == ("max-num-seqs=16", "max-num-batched-tokens=16384")
    assert "measure-higher" not in {one.rule for one in found.advices}
    better = build.plan("k2-thinking", "a3", "single", pairs=found.pairs)
    assert judge.plan(better).ok, "the advice must be a plan"
    assert "6 % of the bandwidth limit (estimated)" in str(found)


def test_the_published_figures_lie_under_the_limits():
    plan, table = advice.documented()
    for row in table.rows:
        found = limits.of_plan(
            plan,
            input_len=row["input_len"],
            output_len=row["output_len"],
            concurrency=row["concurrency"],
        )
        assert found.tokens_per_s() > row["output_throughput"]
        assert found.tpot_ms() < row["mean_tpot_ms"] and found.ttft_ms() < row["mean_ttft_ms"]


def test_loads_without_a_limit_on_concurrency_give_no_cells():
    sizes = next(
        one for one in published_tables.tables("k2-thinking") if not one.rows[0]["concurrency"]
    )
    found, _ = advice.cells_of(build.plan("k2-thinking", "a3", "single"), sizes)
    assert found == []


@pytest.mark.parametrize("rate, drafts", [(0.9, 3), (0.5, 4), (0.2, 15), (1.0, 2)])
def test_the_chance_of_a_draft_gives_the_measured_share(rate, drafts):
    chance = advice_rules._chance(rate, drafts)
    assert sum(chance**n for n in range(1, drafts + 1)) / drafts == pytest.approx(rate, abs=1e-6)


def test_facts_are_those_of_the_roles():
    known = advice.facts(build.plan("k2.5", "a3", "pd"))
    assert (known.seqs, known.ranks, known.places) == (48, 32, 1536)
    assert (known.batched_tokens, known.prefill_ranks, known.drafts) == (16384, 4, 3)
    assert (known.decode, known.prefill) == ("decode.", "prefill.")


def test_facts_of_every_plan(each_plan):
    known = advice.facts(each_plan)
    assert known.places >= 1 and known.batched_tokens >= 1
