"""Terms and figures, what torch sees of a device, graphs, and what loading takes of the host."""

from __future__ import annotations

import pytest

from kimi_nb.params import load, schema
from kimi_nb.plan.memory import GIB, Shape, Term, device, graphs, host, terms

A3 = load.hardware("a3")


def sizes(one: Term) -> tuple[float, ...]:
    return one.bytes / GIB, one.low / GIB, one.high / GIB


def hardware(**devices) -> schema.Hardware:
    return A3.model_copy(update={"devices": A3.devices.model_copy(update=devices)})


# Values -----------------------------------------------------------------------------------------


def test_a_term_says_its_sizes_in_gib():
    term = Term("graphs", 1.23456 * GIB, 0.23456 * GIB, 2.34567 * GIB, "f", "s", False, "derived")
    assert term.gib == 1.235
    assert term.as_dict() == {
        "name": "graphs",
        "gib": 1.235,
        "low_gib": 0.235,
        "high_gib": 2.346,
        "inside": False,
        "formula": "f",
        "source": "s",
        "mark": "derived",
    }


def test_a_figure_becomes_a_term_in_a_unit():
    figure = terms.Figure(2.0, 1.0, 5.0, "a log")
    assert figure.term("x", 10, "f") == Term("x", 20, 10, 50, "f", "a log", True, "estimated")
    other = figure.term("y", 3, "g", source="a page", inside=False)
    assert other == Term("y", 6, 3, 15, "g", "a page", False, "estimated")


def test_a_figure_has_its_place_in_the_file():
    found = terms.figure("expert_workspace", "MXFP4", "nvidia")
    assert (found.value, found.low, found.high) == (1.6, 0, 2) and "Kimi-K3" in found.evidence
    with pytest.raises(KeyError, match="nobody"):
        terms.figure("graphs", "nobody")


def test_ranges_add_up_as_squares():
    """Less by 3 and 4, more by 5 and 12."""
    pair = [Term("x", 100, 97, 105, "f", "s"), Term("y", 50, 46, 62, "f", "s")]
    assert terms.spread(pair) == (5, 13)
    assert terms.spread([]) == (0, 0)


# The device -------------------------------------------------------------------------------------


def test_what_torch_was_seen_to_report_holds_for_this_size():
    seen = schema.Usable(gib=60.5, nominal_gb=64, source="a message")
    size = 60.5 * GIB
    assert device.usable(hardware(memory_gb=64, usable=seen)) == Term(
        "device", size, size, size, "what torch reports", "a message", True, "measured"
    )


@pytest.mark.parametrize("seen", [None, schema.Usable(gib=60.5, nominal_gb=64, source="a message")])
def test_another_size_has_the_usual_share_of_the_vendor(seen):
    found = device.usable(hardware(memory_gb=100, usable=seen))
    assert sizes(found) == pytest.approx((95.25, 95, 100))
    assert (found.name, found.formula) == ("device", "100 GB nominal x 0.9525")
    assert found.mark == "estimated" and "torch_npu" in found.source and found.inside


# Graphs -----------------------------------------------------------------------------------------


def test_graphs_take_a_pool_before_or_after_the_cache():
    (found,) = graphs.terms(Shape(vendor="ascend"))
    assert sizes(found) == pytest.approx((0.8, 0.04, 2))
    assert (found.name, found.formula) == ("graphs", "a pool for all captured sizes")
    assert not found.inside and "13439" in found.source
    assert graphs.terms(Shape(vendor="nvidia", graphs_inside=True))[0].inside
    assert graphs.terms(Shape(graphs=False)) == graphs.terms(Shape(vendor="cpu")) == []


# The host ---------------------------------------------------------------------------------------


def test_a_node_needs_memory_for_each_worker_and_for_offloaded_cache():
    """A worker takes 8 GiB, at the least 3."""
    assert (host.need_gib(4), host.least_gib(4)) == (32, 12)
    assert (host.need_gib(4, 100), host.least_gib(4, 100)) == (132, 112)
    assert isinstance(host.need_gib(4), float) and isinstance(host.least_gib(4), float)


def test_the_host_holds_workers_cache_a_store_and_what_is_read():
    workers, offloaded, store, page = host.terms(4, 100, 594, 7)
    assert sizes(workers) == (32, 12, 64)
    assert (workers.name, workers.formula) == ("processes", "a worker for each device of the node")
    assert workers.inside and workers.source
    size = 100 * GIB
    assert offloaded == Term(
        "offloaded cache", size, size, size, "--kv-offloading-size", "the plan"
    )
    size, formula = 7 * GIB, "a segment and a buffer of each device or service"
    assert store == Term("shared KV store", size, size, size, formula, "the plan")
    assert page == Term(
        "page cache",
        594e9,
        0,
        594e9,
        "the checkpoint, as it is read",
        "safetensors are mapped; --safetensors-load-strategy prefetch reads all of them",
        inside=False,
    )
    assert host.terms(4, 0, None) == [workers]


def test_a_checkpoint_takes_minutes_to_read():
    assert host.load_minutes(600, 2) == 5
