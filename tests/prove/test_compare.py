"""Measurements beside published figures: what can be compared, and what differs where nothing can."""

from __future__ import annotations

import json

import pytest

from kimi_nb.check import public_engines
from kimi_nb.plan import build
from kimi_nb.prove.bench import (
    compare,
    identity,
    published_figures,
    published_tables,
    results,
    summary,
    workload,
)
from kimi_nb.prove.bench.compare import Comparison
from kimi_nb.prove.bench.summary import Timed

B200 = next(
    one
    for one in published_figures.figures("k2.5", "b200")
    if one.id == "k2.5-b200-inferencex" and one.load["concurrency"] == 8
)


def measured(folder, about: dict, settings: dict | None = None):
    """A folder with one more measurement, as the benchmark writes it."""
    timed = [Timed(10, 0.1 * at, 0.05, [0.01, 0.01], 0.07, 3) for at in range(9)]
    kept = {
        "identity": {"tool_version": "0.20.2", "repetition": 1, "mark": "", "attached": ""} | about,
        "time": "t",
        "errors": {},
        "metrics": {},
    }
    if settings is not None:
        kept["settings"] = settings
    path = folder / f"c{about['concurrency']}-r1-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(summary.of(timed, 2.0) | {"kimi_nb": kept}))
    return results.load(folder)


def of_b200(**more) -> dict:
    """The identity of a measurement like the published one."""
    load = {"input_len": 8192, "output_len": 1024, "concurrency": 8, "prompts": 80, "rate": "inf"}
    other = {"weights": "moonshotai/Kimi-K2.5", "nodes": 1, "layout": "single", "flags": "f"}
    return {**B200.conditions, **load, **other, **more}


def settings_of(figure) -> dict:
    flags = public_engines.of(figure.entry).servers[0].flags
    return {"flags": {"serve": dict(flags)}, "env": {"serve": {}}}


# What differs ---------------------------------------------------------------------------------


def test_nothing_differs_but_what_the_source_states():
    wanted = {"hardware": "a3", "engine_version": None, "dataset": "random"}
    about = {"hardware": "a3", "engine_version": "1", "dataset": "random", "concurrency": 8}
    assert compare.differences(about, wanted, {"concurrency": 8, "mean_ttft_ms": 1.0}) == ()
    assert compare.differences({**about, "hardware": "a2"}, wanted, {"concurrency": 16}) == (
        "hardware: a2, published a3",
        "concurrency: 8, published 16",
    )
    assert compare.differences({}, wanted, {"rate": "inf"}) == (
        "hardware: not said, published a3",
        "dataset: not said, published random",
        "rate: not said, published inf",
    )


@pytest.mark.parametrize("name", ["concurrency", "input_len", "output_len", "prompts", "rate"])
def test_each_part_of_a_load_counts(name):
    assert compare.differences({name: 1}, {}, {name: 2}) == (f"{name}: 1, published 2",)


def test_a_rehearsal_or_a_service_of_unknown_flags_is_not_comparable():
    assert compare.differences({"mark": "REHEARSAL", "attached": "http://h"}, {}, {}) == (
        "it is a REHEARSAL",
        "the service was there already: its flags are not known",
    )
    assert compare.differences({"mark": "", "attached": ""}, {}, {}) == ()


def test_flags_and_variables_that_differ():
    flags = {
        "tensor-parallel-size": 8,
        "gpu-memory-utilization": 0.9,
        "seed": 1,
        "served-model-name": "x",
        "trust-remote-code": True,
        "model": "m",
        "quantization": "",
    }
    entry = {**B200.entry, "env": {"A": "1", "B": "2", "C": ""}}
    given = {"flags": {"serve": flags}, "env": {"serve": {"A": 1, "B": "3"}}}
    assert compare.flag_differences(given, entry) == (
        "--enable-prefix-caching: not said, published False",
        "--gpu-memory-utilization: 0.9, published 0.95",
        "--quantization: not said, published not said",
        "--seed: 1, published not said",
        "B: 3, published 2",
        "C: not said, published not said",
    )
    assert compare.flag_differences(settings_of(B200), B200.entry) == ()
    assert compare.flag_differences({**settings_of(B200), "env": {}}, B200.entry) == ()
    none = {**settings_of(B200), "env": {}}
    assert compare.flag_differences(none, {**B200.entry, "env": {"A": "1"}}) == (
        "A: not said, published 1",
    )
    # A variable that only we set may be one that has nothing to do with the figures.
    more = {**settings_of(B200), "env": {"serve": {"OURS": "1"}}}
    assert compare.flag_differences(more, B200.entry) == ()
    assert compare.flag_differences(None, B200.entry) == (
        "the result does not hold its flags: measure again",
    )


def test_of_several_roles_the_one_that_decodes_is_compared():
    right = settings_of(B200)["flags"]["serve"]
    given = {"flags": {"prefill": {}, "decode": right}, "env": {"prefill": {}, "decode": {}}}
    assert compare.flag_differences(given, B200.entry) == ()
    entry = {**B200.entry, "env": {"A": "1"}}
    given["env"] = {"prefill": {"A": "1"}, "decode": {"A": "2"}}
    assert compare.flag_differences(given, entry) == ("A: 2, published 1",)


# With all that is published -------------------------------------------------------------------


def of_table(row: int, **more) -> dict:
    plan = build.plan("k2-thinking", "a3", "single")
    load = workload.Load(8, prompts=80).as_dict() | {"tool": "vllm"}
    table = published_tables.tables("k2-thinking")[1]
    assert compare.differences(identity.of_plan(plan) | load, table.conditions, table.rows[3]) == ()
    return {**identity.of_plan(plan), **load, "concurrency": table.rows[row]["concurrency"], **more}


def test_a_measurement_like_a_row_of_a_table_stands_beside_it(tmp_path):
    found = compare.with_published(measured(tmp_path, of_table(3)))
    ((mine, theirs, source),) = found.pairs
    assert source == "ascend-k2-thinking 8, second table" and found.mark == ""
    assert (mine["concurrency"], theirs) == (8, published_tables.tables("k2-thinking")[1].rows[3])
    said = dict(found.reasons)
    # Of a table of which a row fits nothing is said; of the other, what is nearest.
    first = "Request sizes at one request a second (ascend-k2-thinking 8, first table)"
    assert said[first] == (
        "concurrency: 8, published 0; prompts: 80, published 10; rate: inf, published 1.0"
    )
    assert not [title for title in said if title.startswith("Rising concurrency")]
    assert [name for name in said if name.startswith("k2-thinking-a3-5682 (https://")]
    (shown,) = [row for row in found.table().rows if row[1] == "mean_ttft_ms"]
    assert shown == (8, "mean_ttft_ms", f"{mine['mean_ttft_ms']:.2f}", theirs["mean_ttft_ms"],
        f"{mine['mean_ttft_ms'] / theirs['mean_ttft_ms']:.2f}", source)  # fmt: skip


def test_other_flags_are_a_reason_and_the_nearest_load_tells_it(tmp_path):
    measured(tmp_path, of_table(3, flags="other", hardware="a2", concurrency=3))
    found = compare.with_published(measured(tmp_path, of_table(3, flags="other", mark="REHEARSAL")))
    assert found.pairs == () and found.mark == "REHEARSAL"
    said = dict(found.reasons)
    own = identity.flags_hash(build.plan("k2-thinking", "a3", "single"))
    assert said[
        "Rising concurrency, 1024 tokens in and out (ascend-k2-thinking 8, second table)"
    ] == (f"it is a REHEARSAL; flags: other, published {own}")


def test_a_measurement_like_a_single_figure_stands_beside_it(tmp_path):
    measured(tmp_path, of_b200(concurrency=3, flags="g"), {"flags": {"serve": {}}, "env": {}})
    found = compare.with_published(measured(tmp_path, of_b200(), settings_of(B200)))
    assert [(mine["concurrency"], theirs, source) for mine, theirs, source in found.pairs] == [
        (8, {"per_user": 81.1}, B200.source)
    ]
    (row,) = found.table().rows
    mine = found.pairs[0][0]["per_user"]
    assert row == (8, "per_user", f"{mine:.2f}", 81.1, f"{mine / 81.1:.2f}", B200.source)
    said = dict(found.reasons)
    # Of an engine of which one load fits nothing is said; of the others, what is nearest.
    assert not [name for name in said if name.startswith("k2.5-b200-inferencex ")]
    names = {one.id for one in published_figures.figures("k2.5", "b200") if one.entry}
    assert {name.split(" ")[0] for name in said if name.startswith("k2.5-")} == names - {B200.id}


def test_what_keeps_a_measurement_from_a_single_figure(tmp_path):
    about = of_b200(weights="nvidia/Kimi-K2.5-NVFP4")
    found = compare.with_published(measured(tmp_path, about))
    assert dict(found.reasons)[f"k2.5-b200-inferencex ({B200.source})"] == (
        "precision: NVFP4, published INT4; the result does not hold its flags: measure again"
    )


def test_a_source_has_to_say_its_load(tmp_path):
    about = {**of_b200(), "model": "k2.6", "hardware": "mi300x", "weights": "moonshotai/Kimi-K2.6"}
    figure = published_figures.figures("k2.6", "mi300x")[0]
    found = compare.with_published(measured(tmp_path, about, settings_of(figure)))
    assert dict(found.reasons)[f"k2.6-mi300x-dflash ({figure.source})"] == (
        "input_len: the source does not say; output_len: the source does not say"
    )


def test_weights_of_a_model_that_is_not_ours_are_compared_by_name_alone():
    assert compare._precision({"model": "mine", "weights": "x"}, "INT4") == []
    assert compare._precision({"model": "k2.5", "weights": "x"}, "INT4") == []


def test_without_a_measurement_nothing_is_said(tmp_path):
    found = compare.with_published(results.BenchResult(tmp_path, ()))
    assert found == Comparison("", (), ())
    table = found.table()
    assert (table.title, table.headings) == (
        "Not comparable with what is published",
        ("published", "because"),
    )
    assert table.rows == (("nothing", "no document has figures of this model on this hardware"),)
    assert Comparison("", (), (("a", "b"),)).table().rows == (("a", "b"),)


def test_measured_beside_published():
    mine = {"concurrency": 8, "mean_ttft_ms": 300.0, "output_throughput": 50.0, "per_user": 3.0}
    pairs = (
        (mine, {"output_throughput": 100.0, "mean_ttft_ms": 100.0, "completed": 3}, "one"),
        (mine, {"per_user": 2.0}, "two"),
    )
    table = Comparison("", pairs, ()).table()
    assert table.title == "Measured beside published"
    assert table.headings == ("concurrency", "figure", "measured", "published", "ratio", "source")
    assert table.rows == (
        (8, "output_throughput", "50.00", 100.0, "0.50", "one"),
        (8, "mean_ttft_ms", "300.00", 100.0, "3.00", "one"),
        (8, "per_user", "3.00", 2.0, "1.50", "two"),
    )


def test_whole_numbers_are_compared_as_such():
    assert compare._plain({"a": 8.0, "b": 0.5, "rate": 1.0, "c": "8.0"}) == {
        "a": 8,
        "b": 0.5,
        "rate": 1.0,
        "c": "8.0",
    }
    assert str(compare._plain({"rate": 1.0})["rate"]) == "1.0"
    assert str(compare._plain({"a": 8.0})["a"]) == "8"
