"""Results of notebook 08 calibrate the factors of sizing; those that cannot say so."""

from __future__ import annotations

import json

import pytest

from kimi_nb.cli.main import main
from kimi_nb.core.errors import ParameterError
from kimi_nb.plan import build
from kimi_nb.prove.bench import identity
from kimi_nb.prove.bench.measurement_files import FIGURES
from kimi_nb.prove.bench.workload import Load
from kimi_nb.prove.tune import site_factors
from kimi_nb.sizing import factor_fit, factors

PLAN = build.plan("k2.5", "h200", "single")


def written(folder, plan=PLAN, mark="", slower=1.4):
    """Write results of a site on which everything takes longer than the vendor's factors say."""
    kind, groups = site_factors._kind(build.plan("k2.5", "h200", "single"), folder)
    for many in (1, 8, 32):
        load = Load(input_len=1000, output_len=200, concurrency=many, prompts=2 * many)
        about = identity.of(plan, load, 1, tool="vllm", tool_version="1", mark=mark)
        one = dict.fromkeys(FIGURES, 1.0) | {
            "completed": 2 * many,
            "failed": 0,
            "total_input_tokens": 2000 * many,
            "total_output_tokens": 400 * many,
        }
        asked = site_factors.request_load.fixed(1000, 200)
        for name, change in (
            ("median_ttft_ms", slower),
            ("median_tpot_ms", slower),
            ("output_throughput", 1 / slower),
        ):
            seen = factor_fit.Observation(kind, asked, many, name, 1.0, groups, 2 * many)
            one[name] = change * factor_fit.predicted(seen, factors.of("nvidia", "INT4"))
        own = {"identity": about, "time": "2026-11-23T10:00:00", "errors": {}, "metrics": {}}
        (folder / f"c{many}-r1-x.json").write_text(json.dumps(one | {"kimi_nb": own}))
    return folder


def test_a_slower_site_has_slower_factors(tmp_path):
    found = site_factors.of(written(tmp_path), "h200")
    prior = factors.of("nvidia", "INT4")
    moved = {name for name in found if found[name] is not prior[name]}
    assert moved and all(found[name].mark == "calibrated" for name in moved)
    assert all("2026-11-23" in found[name].source for name in moved)
    slower = {name: found[name].value / prior[name].value for name in moved}
    assert any(change > 1 if name.endswith("_s") else change < 1 for name, change in slower.items())


def test_the_command_sizes_with_them(tmp_path, capsys):
    words = ["size", "--model", "k2.5", "--hw", "h200", "--input", "1000", "--output", "200"]
    words += ["--layout", "single", "--json"]
    assert main(words) == 0
    before = json.loads(capsys.readouterr().out)["candidates"][0]
    assert main([*words, "--results", str(written(tmp_path))]) == 0
    after = json.loads(capsys.readouterr().out)["candidates"][0]
    assert after["tokens_per_s_device"] < before["tokens_per_s_device"]
    assert "calibrated" in {one["mark"] for one in after["terms"]}


def test_what_cannot_calibrate_says_so(tmp_path):
    with pytest.raises(ParameterError, match="no results"):
        site_factors.of(tmp_path, "h200")
    written(tmp_path)
    with pytest.raises(ParameterError, match="are of h200, sized is b200"):
        site_factors.of(tmp_path, "b200")
    with pytest.raises(ParameterError, match="other settings"):
        site_factors.of(tmp_path, "h200", ["max-num-seqs=7"])
    written(tmp_path, mark="REHEARSAL")
    with pytest.raises(ParameterError, match="stand-ins"):
        site_factors.of(tmp_path, "h200")
    for path in tmp_path.iterdir():
        path.unlink()
    written(tmp_path, build.plan("k2.5", "h200", "pd"))
    with pytest.raises(ParameterError, match="separate prefill and decode"):
        site_factors.of(tmp_path, "h200")


def test_set_without_results_is_refused(capsys):
    words = ["size", "--model", "k2.5", "--hw", "h200", "--input", "1000", "--output", "200"]
    assert main([*words, "--set", "max-num-seqs=7"]) == 2
    assert "--results" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, value",
    [
        ("total_output_tokens", None),
        ("total_input_tokens", float("nan")),
        ("total_input_tokens", 0),
        ("concurrency", 10**9),
    ],
)
def test_results_without_a_load_that_can_be_simulated_are_none(tmp_path, name, value):
    for path in written(tmp_path).iterdir():
        one = json.loads(path.read_text())
        holder = one["kimi_nb"]["identity"] if name == "concurrency" else one
        holder.pop(name)
        if value is not None:
            holder[name] = value
        path.write_text(json.dumps(one))
    with pytest.raises(ParameterError, match="no results with a concurrency"):
        site_factors.of(tmp_path, "h200")


def test_answers_of_one_token_have_no_time_for_a_further_one(tmp_path):
    for path in written(tmp_path).iterdir():
        one = json.loads(path.read_text())
        one["total_output_tokens"] = one["completed"]
        path.write_text(json.dumps(one))
    found = site_factors.of(tmp_path, "h200")
    assert all(one.low <= one.value <= one.high for one in found.values())


def test_figures_that_were_not_measured_calibrate_nothing(tmp_path):
    for path in written(tmp_path).iterdir():
        one = json.loads(path.read_text())
        one["median_tpot_ms"] = float("nan")
        path.write_text(json.dumps(one))
    found = site_factors.of(tmp_path, "h200")
    assert all(one.low <= one.value <= one.high for one in found.values())
