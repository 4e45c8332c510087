"""Sizes in notebook 09: what is proposed, swept around it, and what calibrates the model."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from kimi_nb.check import judge
from kimi_nb.core.errors import ParameterError
from kimi_nb.notebook.choice import Choice
from kimi_nb.prove.bench import identity
from kimi_nb.prove.bench.measurement_files import FIGURES
from kimi_nb.prove.bench.workload import Load
from kimi_nb.prove.tune import design
from kimi_nb.sizing import request_load

SIZES = {"input_len": 1000, "output_len": 200}
MIX = "1000:200:0.9,60000:800:0.1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    import kimi_nb

    return kimi_nb.start(hw="h200", model="k2.5", run_dir=str(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def sized(run):
    return run.size(run.choose("single"), **SIZES, tpot_ms=50)


def _result(folder, plan, mark=""):
    """Write one result of notebook 08 in which each token takes 30 ms."""
    load = Load(input_len=1000, output_len=200, concurrency=8, prompts=16)
    about = identity.of(plan, load, 1, tool="vllm", tool_version="1", mark=mark)
    figures = dict.fromkeys(FIGURES, 1.0) | {
        "completed": 16,
        "failed": 0,
        "total_input_tokens": 16000,
        "total_output_tokens": 3200,
        "median_ttft_ms": 400.0,
        "median_tpot_ms": 30.0,
        "output_throughput": 250.0,
    }
    own = {"identity": about, "time": "2026-11-23T10:00:00", "errors": {}, "metrics": {}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "c8-r1-x.json").write_text(json.dumps(figures | {"kimi_nb": own}))


def test_what_is_proposed_can_be_planned_checked_and_swept(sized):
    choice, axes = sized.around()
    plan = choice.plan()
    assert not judge.plan(plan).errors
    assert plan.engines and choice.overrides and sized.best.known == "estimated"
    made = design.of(plan, axes, input_len=64, output_len=32)
    seqs = sized.best.point.groups[-1].seqs
    assert f"mixed.max-num-seqs={seqs}" in [group.title for group in made.groups]
    assert len(made.groups) > 1, "only what is proposed, and nothing around it"


def test_every_figure_has_its_interval_and_mark(sized):
    for row in sized.table().rows:
        assert all(re.fullmatch(r"[\d.,]+ \([\d.,]+ to [\d.,]+\)", one) for one in row[2:5])
        assert row[-1].startswith("estimated")
    assert "limited by" in str(sized.below()) and "planned and swept around" in str(sized.below())


def test_the_picture_says_what_it_draws(sized):
    drawn = sized.picture()
    ElementTree.fromstring(drawn.svg)
    assert "currentColor" in drawn.svg and "estimated" in drawn.alt
    assert len(drawn.data) >= len(sized.answer.candidates)
    assert all(
        row["device low"] <= row["tokens/s/device"] <= row["device high"] for row in drawn.data
    )


def test_an_own_choice_or_sweep_stays(run, sized):
    assert sized.around("concurrency: [2]") == (sized.choice, "concurrency: [2]")
    own = run.choose("single", overrides="max-num-seqs=8")
    choice, axes = dataclasses.replace(sized, choice=own).around()
    assert choice is own and axes == "mixed.max-num-seqs: [4, 8]; concurrency: [1, 4]"


def test_stand_ins_get_few_requests_at_once(sized):
    assert sized.around()[1].endswith("concurrency: [4]")
    assert not dataclasses.replace(sized, most=0).around()[1].endswith("concurrency: [4]")


def test_nodes_search_every_layout(run):
    """Long prompts are best read apart, which the layout of the choice does not do."""
    asked = {"input_len": 16000, "output_len": 1000, "ttft_ms": 2000, "tpot_ms": 50}
    found = run.size(run.choose("single"), **asked, nodes=2)
    assert {one.point.base.layout for one in found.answer.candidates} - {"single"}


def test_a_distribution_is_sized_as_on_the_command_line(run):
    found = run.size(run.choose("single"), **SIZES, lengths=MIX, tpot_ms=50).answer
    assert found.load == request_load.lengths(MIX)
    assert found.candidates and found.load.longest == 60800
    assert "6900 tokens in, 260 out" in str(found)


def test_a_trace_is_sized_for_its_own_arrivals(run, tmp_path):
    line = '{"timestamp": %d, "input_length": 1000, "output_length": 200}'
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(line % at for at in range(0, 5000, 500)))
    found = run.size(run.choose("single"), trace=str(path), tpot_ms=50).answer
    assert (found.load.rate, len(found.load.requests)) == (2.0, 10)
    assert found.candidates and all(one.point.rate >= 2 for one in found.candidates)


def test_a_line_of_a_trace_that_is_wrong_is_named(run, tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text('{"input_length": 1000, "output_length": 200}\n{"input_length": 1000}\n')
    with pytest.raises(ParameterError, match=r"requests\.jsonl, line 2: output_length"):
        run.size(run.choose("single"), trace=str(path))


@pytest.mark.parametrize(
    "workload, says",
    [
        ({}, "--input and --output are wanted, or --lengths, or --trace"),
        ({"input_len": 1000}, "--input and --output are wanted"),
        ({"lengths": MIX, "trace": "requests.jsonl"}, "has its own lengths"),
        (SIZES | {"trace": "/nowhere.jsonl"}, "--trace /nowhere.jsonl: cannot be read"),
        ({"lengths": "1000:200"}, "--lengths: IN:OUT:WEIGHT is wanted"),
        ({"lengths": "1000:200:0"}, "--lengths: IN:OUT:WEIGHT is wanted"),
        ({"lengths": "0:200:1"}, "--lengths: IN:OUT:WEIGHT is wanted"),
        ({"lengths": ["1000:200:1"]}, "--lengths: IN:OUT:WEIGHT is wanted"),
        ({"lengths": "500000:200:1"}, "Shorten"),
        ({"trace": "/nowhere.jsonl"}, "--trace /nowhere.jsonl: cannot be read"),
        ({"trace": "/"}, "--trace /: cannot be read"),
        ({"trace": 5}, "--trace: the path of a file is wanted, found 5"),
        ({"trace": "a; rm -r b"}, "--trace"),
        ({"input_len": "many", "output_len": 5}, "--input: 1 to .* tokens are wanted"),
        ({"input_len": 1000.5, "output_len": 5}, "--input: 1 to .* tokens are wanted"),
    ],
)
def test_a_mistake_in_a_workload_is_one_sentence(run, workload, says):
    with pytest.raises(ParameterError, match=says) as told:
        run.size(run.choose("single"), **workload)
    assert len(str(told.value).splitlines()) == 1


def test_hardware_without_figures_says_which_and_the_choice_stays(tmp_path):
    import kimi_nb

    run = kimi_nb.start(hw="cpu", model="k2.5", run_dir=str(tmp_path))
    found = run.size(run.choose("single"), **SIZES)
    assert found.best is None and "memory_gb_s" in str(found.table())
    assert found.around()[0] == Choice("k2.5", "cpu", "single") and "Nothing" in found.picture().alt


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"input_len": 0}, "--input"),
        ({"tpot_ms": -1}, "slo_tpot_ms"),
        ({"ttft_ms": "2s"}, "slo_ttft_ms"),
        ({"nodes": -1}, "1 to 4096 nodes"),
        ({"input_len": 10**7}, "Shorten"),
    ],
)
def test_a_mistake_is_told(run, wrong, says):
    with pytest.raises(ParameterError, match=says):
        run.size(run.choose("single"), **(SIZES | wrong))


def test_results_of_this_run_calibrate_and_the_table_says_so(run, sized):
    choice = run.choose("single")
    assert "has measured nothing" in run.calibrate(choice).why
    folder = run.folder / choice.plan().name / "bench"
    _result(folder, choice.plan())
    known = run.calibrate(choice)
    assert "calibrated by 3 figures of the load client, 2026-11-23" in known.why
    assert "calibrated" in [row[2] for row in known.table().rows]
    again = run.size(choice, known, **SIZES)
    assert any("calibrated" in row[-1] for row in again.table().rows)
    assert str(again.table()) != str(sized.table())
    _result(folder, choice.plan(), mark="REHEARSAL")
    assert "stand-ins" in run.calibrate(choice).why and run.calibrate(choice).table_of is None
    with pytest.raises(ParameterError, match="stand-ins"):
        run.calibrate(choice, str(folder))
