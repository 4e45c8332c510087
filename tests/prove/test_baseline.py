"""Baselines of a site: what is slower is told, what is noise is not, what differs is refused."""

from __future__ import annotations

import json
import os

import pytest

from kimi_nb.cli.main import main
from kimi_nb.core.errors import BenchError, ParameterError
from kimi_nb.plan import build
from kimi_nb.prove.bench import baseline, identity, results, workload

# Output tokens/s of three repetitions, as they scatter from start to start.
STEADY, NOISE = (1200.0, 1214.0, 1191.0), (1168.0, 1225.0, 1187.0)


@pytest.fixture(scope="module")
def plan():
    return build.plan("k2.5", "h200", "single")


@pytest.fixture
def write(tmp_path, plan):
    """Write the results of repetitions; times rise as the throughput falls."""

    def call(name, throughputs, concurrency=8, mark="", **about):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for number, tokens in enumerate(throughputs, 1):
            whole = {
                **identity.of_plan(plan),
                "mark": mark,
                "attached": "",
                "tool": "vllm",
                "tool_version": "0.32.0",
                **workload.Load(concurrency, prompts=80).as_dict(),
                "seed": number,
                "repetition": number,
                **about,
            }
            one = {
                "completed": 80,
                "failed": 0,
                "output_throughput": tokens,
                "median_ttft_ms": 300_000 / tokens,
                "median_tpot_ms": 8_000 / tokens,
                "kimi_nb": {"identity": whole, "time": "t", "errors": {}, "metrics": {}},
            }
            path = folder / f"c{concurrency}-i1024-o1024-r{number}-x.json"
            path.write_text(json.dumps(one))
            os.utime(path, (number, number))
        return results.load(folder)

    return call


def test_fifteen_per_cent_less_is_told(write, tmp_path):
    path = baseline.keep(write("old", STEADY), tmp_path / "b.json")
    slower = write("new", [0.85 * one for one in NOISE], engine_version="0.99.0")
    found = baseline.against(slower, path)
    assert {one.word for one in found.changes} == {baseline.REGRESSION}
    assert len(found.regressions) == 3
    assert "8 at once, 1024/1024 tokens: output_throughput 1200.00 before" in found.regressions[0]
    assert any(text.startswith("engine_version: 0.99.0, baseline ") for text in found.changed)
    assert "3 regression" in str(found)


def test_noise_of_three_per_cent_is_not(write, tmp_path):
    path = baseline.keep(write("old", STEADY), tmp_path / "b.json")
    for tokens in (NOISE, [0.97 * one for one in STEADY], [1.03 * one for one in STEADY]):
        found = baseline.against(write("new", tokens), path)
        assert {one.word for one in found.changes} == {baseline.SAME} and not found.regressions


def test_faster_is_no_regression(write, tmp_path):
    path = baseline.keep(write("old", STEADY), tmp_path / "b.json")
    found = baseline.against(write("new", [1.2 * one for one in NOISE]), path)
    assert {one.word for one in found.changes} == {baseline.BETTER} and not found.regressions


@pytest.mark.parametrize("tokens", [(700.0,), (600.0, 1300.0, 1000.0)])
def test_what_cannot_be_told_is_said(write, tmp_path, tokens):
    """One repetition has no interval, and a wide one rules nothing out."""
    path = baseline.keep(write("old", STEADY), tmp_path / "b.json")
    found = baseline.against(write("new", tokens), path)
    assert {one.word for one in found.changes} == {baseline.UNSURE}


@pytest.mark.parametrize(
    "about, said",
    [
        ({"input_len": 2048}, "input_len: 2048, baseline 1024"),
        ({"hardware": "mi300x"}, "hardware: mi300x, baseline h200"),
        ({"concurrency": 16}, "concurrency: 16, baseline 8"),
        ({"model": "k2.6"}, "model: k2.6, baseline k2.5"),
        ({"tool": "kimi_nb"}, "tool: kimi_nb, baseline vllm"),
    ],
)
def test_what_does_not_compare_is_refused(write, tmp_path, about, said):
    path = baseline.keep(write("old", STEADY), tmp_path / "b.json")
    with pytest.raises(BenchError) as caught:
        baseline.against(write("new", STEADY, **about), path)
    assert said in str(caught.value) and "nothing can be compared" in str(caught.value)


def test_a_load_that_the_baseline_lacks_is_named(write, tmp_path):
    path = baseline.keep(write("old", STEADY), tmp_path / "b.json")
    write("new", STEADY)
    found = baseline.against(write("new", STEADY, concurrency=32), path)
    assert len(found.changes) == 3 and "concurrency: 32, baseline 8" in found.missing[0]


def test_a_rehearsal_is_no_baseline(write, tmp_path):
    path = tmp_path / "b.json"
    with pytest.raises(BenchError, match="a REHEARSAL measures no hardware"):
        baseline.keep(write("old", STEADY, mark="REHEARSAL"), path)
    assert not path.exists()


def test_a_baseline_is_not_overwritten(write, tmp_path):
    path = baseline.keep(write("old", STEADY), tmp_path / "b.json")
    before = path.read_bytes()
    with pytest.raises(BenchError, match="there is a baseline of that name"):
        baseline.keep(write("new", NOISE), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind": "benchmark-baseline", "measurements": []}', '{"kind": 1']
)
def test_a_file_that_is_none(write, tmp_path, text):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(BenchError, match="is no baseline of ours"):
        baseline.against(write("new", STEADY), path)


def test_the_place(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("")
    runs = tmp_path / "runs"
    assert baseline.place("may", "east", str(own), runs) == tmp_path / "baselines/east/may.json"
    assert baseline.place("may", "h200", "", runs) == runs / "baselines/h200/may.json"
    for name in ("", "../x", "a/b", "-x"):
        with pytest.raises(ParameterError, match="baseline: a name"):
            baseline.place(name, "east", "", runs)


def test_the_command(write, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    old, new = write("old", STEADY).folder, write("new", [0.85 * one for one in STEADY]).folder
    assert main(["bench", str(old), "--keep", "may"]) == 0
    assert (tmp_path / "runs/baselines/h200-example/may.json").is_file()
    assert main(["bench", str(old), "--against", "may"]) == 0
    assert main(["bench", str(new), "--against", "may"]) == 1
    assert "slower: 8 at once" in capsys.readouterr().out
    assert main(["bench", str(new), "--against", "may", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["regressions"]) == 3
    assert main(["bench", str(new), "--against", "june"]) == 2
    assert "there is no such baseline; there are may." in capsys.readouterr().err
    assert main(["bench", str(new)]) == 2
    assert main(["bench", str(tmp_path), "--against", "may"]) == 2
    assert "no results of a benchmark are there" in capsys.readouterr().err


def test_a_notebook_keeps_the_first_and_compares_the_next(write, tmp_path):
    path = tmp_path / "b.json"
    assert "none was named" in str(baseline.held(write("old", STEADY), None))
    rehearsed = write("try", STEADY, mark="REHEARSAL")
    assert "measures no hardware" in str(baseline.held(rehearsed, path)) and not path.exists()
    assert str(path) in str(baseline.held(write("old", STEADY), path).rows)
    found = baseline.held(write("new", [0.85 * one for one in STEADY]), path)
    assert "3 regression" in found.title
