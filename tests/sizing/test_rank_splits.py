"""Pipeline stages and prefill context parallelism: what they cost, where they are searched and refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from kimi_nb.check import judge
from kimi_nb.core.errors import NoFigureError
from kimi_nb.params import load
from kimi_nb.plan.memory import Shape
from kimi_nb.sizing import (
    as_plan,
    base_recipes,
    factors,
    rank_splits,
    request_load,
    search,
    step_time,
    units,
)
from kimi_nb.sizing.points import Bounds, Evaluator, Group
from kimi_nb.sizing.step_time import Kind

LOAD = request_load.fixed(16000, 500)
CHIP, ARCH = load.hardware("h200"), load.model("k2.6").architecture


def terms(kind, **load_of):
    """The terms of a decode or prefill step by name, in seconds."""
    table = factors.of("nvidia", "INT4")
    step = step_time.decode if "seqs" in load_of else step_time.prefill
    return {one.name: one.seconds for one in step(kind, table, **load_of).terms}


def base(model, hardware, layout):
    return base_recipes.of(model, hardware, layout=layout)[0][0]


def splits(of, role, nodes):
    refused: Counter[str] = Counter()
    return set(rank_splits.of(of, of.parts[role], nodes, refused)), refused


def test_prefill_context_parallelism_shares_out_a_prompt():
    plain = Kind(Shape(tp=4, expert_parallel=True), ARCH, "INT4", CHIP)
    wide = replace(plain, shape=replace(plain.shape, pcp=2))
    one, two = (terms(kind, tokens=8192, prompt=16000, ranks=1) for kind in (plain, wide))
    assert two["attention"] == pytest.approx(one["attention"] / 2)
    assert two["arithmetic"] == pytest.approx(one["arithmetic"] / 2, rel=0.01)
    assert "context exchange" in two and "context exchange" not in one
    one, two = (terms(kind, seqs=16, context=8192) for kind in (plain, wide))
    assert two["cache read"] == pytest.approx(one["cache read"] / 2), "each is decoded by one rank"


def test_a_pipeline_gains_no_latency_but_what_tensor_parallelism_exchanges():
    plain = Kind(Shape(tp=1), ARCH, "INT4", CHIP)
    deep = replace(plain, shape=replace(plain.shape, pp=2))
    one, two = (terms(kind, tokens=4096, prompt=4096, ranks=1) for kind in (plain, deep))
    assert two["arithmetic"] == pytest.approx(one["arithmetic"])
    assert two["launch, eager"] == pytest.approx(one["launch, eager"])
    assert two["pipeline"] > 0 and "pipeline" not in one
    one, two = (terms(kind, seqs=16, context=8192) for kind in (plain, deep))
    assert two["cache read"] == pytest.approx(one["cache read"] / 2), "half of them in each batch"


def test_where_they_are_searched():
    found, refused = splits(base("k2.6", "h200", "single"), "mixed", 1)
    assert {(4, 2, 1), (4, 1, 2), (8, 1, 1)} <= found and not refused
    assert all(tp * pp * pcp <= 8 and min(pp, pcp) == 1 for tp, pp, pcp in found)
    found, _ = splits(base("k2.6", "h200", "dp"), "mixed", 4)
    assert (8, 4, 1) in found, "a stage on each node"


@pytest.mark.parametrize(
    ("hardware", "role", "why"),
    [
        ("a3", "prefill", "pp where each rank is a process"),
        ("a3", "prefill", "pcp: prefill context parallelism and data parallelism exclude"),
        ("h200", "decode", "pp of decode (NIXL)"),
    ],
)
def test_what_the_planner_refuses_is_counted(hardware, role, why):
    of = base("k2.5", hardware, "pd")
    found, refused = splits(of, role, 1)
    assert any(reason.startswith(why) for reason in refused), refused
    assert not [one for one in found if one[1] > 1]


@pytest.mark.parametrize("wanted", [(4, 2, 1), (4, 1, 2)])
def test_a_point_with_them_is_a_plan_that_the_rules_pass(wanted):
    of = base("k2.6", "h200", "single")
    table = factors.of("nvidia", "INT4")
    unit = next(
        one
        for one in units.of(of, "mixed", 1, LOAD, table, Counter())
        if (one.kind.shape.tp, one.kind.shape.pp, one.kind.shape.pcp) == wanted
    )
    point = Evaluator(LOAD, Bounds()).mixed(of, Group(unit, 1, unit.seqs[0]))
    plan = as_plan.plan(point, "")
    (engine,) = plan.engines
    assert (engine.tp_size, engine.pp_size, engine.pcp_size) == wanted
    assert judge.plan(plan).ok
    assert f"{'pp' if wanted[1] > 1 else 'pcp'}2" in as_plan.described(point)


def _with_peaks(folder, peaks):
    path = folder / "here.yaml"
    table = {"extends": "cpu", "name": "here", "title": "Here", "peaks": {
        name: {"value": value, "source": "measured"} for name, value in peaks.items()
    }}  # fmt: skip
    path.write_text(json.dumps(table))
    return str(path)


def test_without_the_speed_of_links_what_needs_none_is_sized(tmp_path):
    chip = _with_peaks(tmp_path, {"memory_gb_s": 20, "bf16_tflops": 0.1})
    load_of = request_load.fixed(200, 50)
    found = search.answer("k2.5", chip, 1, load_of, Bounds(), layout="single")
    shapes = [one.point.groups[0].unit.kind.shape for one in found.candidates]
    assert 1 in [one.devices for one in shapes], "as documented, on one of two slots"
    assert {one.tp * one.dp for one in shapes} == {1}
    assert found.refused["speed of the links not published"] > 0
    with pytest.raises(NoFigureError, match="memory_gb_s"):
        search.answer("k2.5", "cpu", 1, load_of, Bounds(), layout="single")


def test_a_known_fault_bars_its_kind_after_a_few_tries():
    """Pipelines of K2.5 over nodes of H200 do not start: v-k25-pp."""
    found = search.answer("k2.5", "h200", 2, LOAD, Bounds(), layout="dp")
    assert 0 < found.refused["truth/known-fault"] <= 12
    assert found.candidates
    assert all("pp2" not in as_plan.described(one.point) for one in found.candidates)
