"""Published figures: each has its source, none lies beyond a limit of ours, and what compares."""

from __future__ import annotations

import json

import pytest

from kimi_nb.check import public_engines
from kimi_nb.cli.main import main
from kimi_nb.core import data_files
from kimi_nb.plan import build
from kimi_nb.prove.bench import compare, identity, published_figures, results, workload
from kimi_nb.prove.tune import limits, published_limits

ROWS = published_limits.of()


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.limit], ids=lambda row: f"{row.figure.id}-{row.figure.name}"
)
def test_no_published_figure_lies_beyond_a_limit(row):
    assert not row.beyond, f"{row.figure.value:g} {row.figure.unit} against {row.limit:g}"
    assert row.limit > 0 and not row.why


def test_what_has_no_limit_says_why():
    assert sum(row.limit is not None for row in ROWS) > len(ROWS) / 2
    assert all(len(row.why) > 10 for row in ROWS if row.limit is None)


def test_a_limit_that_is_too_tight_is_noticed():
    row = next(row for row in ROWS if row.figure.name == "mean_tpot_ms" and row.limit)
    tight = published_limits.Bounded(row.figure, row.figure.value * 1.01)
    assert tight.beyond
    fast = next(row for row in ROWS if row.figure.name == "output_throughput")
    assert published_limits.Bounded(fast.figure, fast.figure.value * 0.99).beyond


def test_every_figure_says_what_it_is_of():
    data = data_files.facts("prove/published_figures")
    assert {one["source"] for one in data["engines"]} == set(data["sources"])
    assert len({one["id"] for one in data["engines"]}) == len(data["engines"])
    keys = {name for one in data["engines"] for row in one["rows"] for name in row}
    assert keys - {"load", "mean"} <= set(published_figures.UNITS)
    for row in ROWS:
        one = row.figure
        assert one.source and one.engine and one.devices and one.value > 0, one.id
        assert row.as_dict()["evidence"] == "published"


@pytest.mark.parametrize(
    "entry", data_files.facts("prove/published_figures")["engines"], ids=lambda one: one["id"]
)
def test_the_words_of_an_engine_take_its_devices(entry):
    """But for the devices of prefill engines, which stand beside."""
    devices = {"hardware": "h200"} if "no parameter file" in entry.get("no_limit", "") else {}
    found = public_engines.of({**entry, **devices})
    shape = limits.capacity.shape_of(found, found.servers[0])
    assert shape.devices * entry.get("groups", 1) <= entry["devices"]
    assert entry["devices"] % shape.devices == 0


def test_the_command(capsys):
    assert main(["published", "--model", "moonshotai/Kimi-K2.5", "--hw", "H200", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["model"], row["hardware"]) for row in rows} == {("k2.5", "h200")}
    one = next(
        row for row in rows if row["figure"] == "per_user" and row["load"]["concurrency"] == 8
    )
    assert one["value"] == 70.3 < one["limit"] and one["limit_evidence"] == "estimated"
    assert main(["published", "--hw", "B200"]) == 0
    out = capsys.readouterr().out
    assert "published" in out and "at most 390.4" in out
    assert main(["published"]) == 0, "all of them, loads of any rate too"
    capsys.readouterr()
    assert main(["published", "--hw", "h800"]) == 0
    assert "no parameter file describes an H800" in capsys.readouterr().out
    assert main(["published", "--hw", "cpu"]) == 0
    assert "No published figure of cpu is known here." in capsys.readouterr().out
    assert main(["published", "--model", "k9"]) == 2
    assert "'k9' is not known. Allowed: " in capsys.readouterr().err


def _measured(tmp_path, pairs, **load):
    plan = build.plan("k2.5", "mi300x", "single", pairs=pairs)
    about = {
        **identity.of_plan(plan),
        "mark": "",
        "attached": "",
        "tool": "vllm",
        "tool_version": "0.20.2",
        **workload.Load(**load).as_dict(),
        "repetition": 1,
    }
    own = {"identity": about, "settings": identity.settings(plan), "time": "t", "errors": {}}
    figures = {"completed": 40, "failed": 0, "output_throughput": 100.0, "median_tpot_ms": 20.0}
    path = tmp_path / "c4-r1-x.json"
    path.write_text(json.dumps({**figures, "kimi_nb": {**own, "metrics": {}}}))
    return results.load(tmp_path)


def test_a_figure_stands_beside_a_measurement_of_the_same_kind(tmp_path):
    """Same flags and load: the version is all that the source does not say exactly."""
    entry = next(
        one
        for one in data_files.facts("prove/published_figures")["engines"]
        if one["id"] == "k2.5-mi300x-inferencex"
    )
    flags = public_engines.of(entry).servers[0].flags
    pairs = [f"{name}={str(value).lower()}" for name, value in flags.items() if "size" not in name]
    found = _measured(
        tmp_path,
        [*pairs, "block-size=64"],
        concurrency=4,
        input_len=8192,
        output_len=1024,
        prompts=40,
    )
    why = dict(compare.with_published(found).reasons)
    (said,) = (text for name, text in why.items() if name.startswith("k2.5-mi300x-inferencex"))
    assert said.startswith("engine_version: ") and "published 0.18 to 0.2x" in said
    assert "--" not in said and "concurrency" not in said


def test_what_differs_from_a_figure_is_named(tmp_path):
    found = _measured(tmp_path, [], concurrency=4, input_len=1024, output_len=1024)
    table = compare.with_published(found)
    assert not table.pairs
    said = " ".join(text for _, text in table.reasons)
    assert "--gpu-memory-utilization: not said, published 0.95" in said
    assert "input_len: 1024, published 8192" in said
