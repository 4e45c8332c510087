"""The terms of a step: what each one grows with, which are hidden, and what is not published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load
from kimi_nb.plan.memory import Shape
from kimi_nb.sizing import factors, step_time
from kimi_nb.sizing.roofline import Spread
from kimi_nb.sizing.step_time import Kind

K25 = load.model("k2.5").architecture
H200 = load.hardware("h200")
TABLE = factors.of("nvidia")
EIGHT = Kind(Shape(tp=8), K25, "INT4", H200)


def term(found, name):
    return next(one for one in found.terms if one.name == name)


def test_a_time_is_the_sum_of_what_is_not_hidden():
    found = step_time.decode(EIGHT, TABLE, seqs=16, context=8192)
    names = [one.name for one in found.terms]
    assert len(names) == len(set(names)) and "weights read" in names and "all-reduce" in names
    shown = sum(one.seconds for one in found.terms if not one.hidden)
    assert found.seconds == pytest.approx(shown)
    assert found.low < found.seconds < found.high
    assert sum(one.hidden for one in found.terms) == 2


def test_reading_is_hidden_behind_arithmetic_where_a_step_is_large():
    small = step_time.decode(EIGHT, TABLE, seqs=4, context=1000)
    large = step_time.prefill(EIGHT, TABLE, tokens=8192, prompt=8192, ranks=1)
    assert term(small, "arithmetic").hidden and not term(small, "weights read").hidden
    assert term(large, "weights read").hidden and not term(large, "arithmetic").hidden


@pytest.mark.parametrize("seqs", [1, 16, 64])
def test_times_grow_with_sequences_and_context(seqs):
    one = step_time.decode(EIGHT, TABLE, seqs=seqs, context=1000)
    more = step_time.decode(EIGHT, TABLE, seqs=2 * seqs, context=1000)
    longer = step_time.decode(EIGHT, TABLE, seqs=seqs, context=64000)
    assert one.seconds < more.seconds and one.seconds < longer.seconds
    assert term(longer, "cache read").seconds == pytest.approx(64 * term(one, "cache read").seconds)


def test_graphs_launch_faster():
    eager = replace(EIGHT, shape=replace(EIGHT.shape, graphs=False))
    with_graphs = step_time.decode(EIGHT, TABLE, seqs=1, context=100)
    without = step_time.decode(eager, TABLE, seqs=1, context=100)
    assert term(with_graphs, "launch, graphs").seconds < term(without, "launch, eager").seconds


def test_experts_over_nodes_use_the_network():
    spread = Shape(tp=1, dp=16, expert_parallel=True)
    inside = replace(EIGHT, shape=spread, spread=Spread(16, 1))
    across = replace(EIGHT, shape=spread, spread=Spread(8, 2))
    times = [
        term(step_time.decode(one, TABLE, seqs=16, context=100), "all-to-all").seconds
        for one in (inside, across)
    ]
    assert times[0] < times[1]


def test_drafts_cost_a_pass_and_give_tokens():
    drafted = replace(EIGHT, drafts=3, method="eagle3", draft_parameters=10**9)
    assert term(step_time.decode(drafted, TABLE, seqs=1, context=100), "drafts").seconds > 0
    expected, least, most = step_time.accepted(drafted, TABLE)
    assert 1 < least < expected < most < 4
    assert step_time.accepted(EIGHT, TABLE) == (1, 1, 1)


def test_the_cache_travels_over_the_network():
    found = step_time.transfer(EIGHT, TABLE, 16000)
    assert found.seconds >= 16000 * 70272 / 50e9


def test_a_peak_that_nobody_has_published_is_named():
    with pytest.raises(ParameterError, match="memory_gb_s"):
        step_time.decode(replace(EIGHT, hardware=load.hardware("mi350x")), TABLE, seqs=1, context=1)


def test_every_factor_has_its_interval_mark_and_source():
    for vendor in ("nvidia", "amd", "ascend", "nobody"):
        for one in factors.of(vendor).values():
            assert 0 < one.low <= one.value <= one.high and one.mark in factors.MARKS
            assert len(one.source) > 10
