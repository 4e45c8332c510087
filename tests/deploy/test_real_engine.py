"""The real vLLM on this machine's CPU, deployed by the notebooks as a person would.

`make engine` installs it; without it these tests are skipped, and say so.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

import kimi_nb
from kimi_nb.check import memory_account
from kimi_nb.core import evidence
from kimi_nb.core.errors import ParameterError
from kimi_nb.plan import build
from kimi_nb.plan.memory import engine_report
from kimi_nb.prove.accuracy import evaluators
from kimi_nb.prove.accuracy.scores import Score
from kimi_nb.prove.bench import compare, results

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / ".engine"

pytestmark = pytest.mark.skipif(
    not (ENGINE / "bin/vllm").exists(),
    reason=f"the real engine is not installed in {ENGINE}: make engine",
)


@pytest.fixture(autouse=True)
def alone(tmp_path_factory):
    """One at a time: they share the site."""
    with (tmp_path_factory.getbasetemp().parent / "engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _deploy(
    name: str, tmp_path: Path, deployments: int = 1, **given: str
) -> tuple[nbformat.NotebookNode, dict]:
    """A notebook with action deploy on hw cpu: executed, and its evidence of the deployment."""
    out, run = tmp_path / "out.ipynb", tmp_path / "run"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "papermill",
            "--no-progress-bar",
            f"notebooks/{name}.ipynb",
            str(out),
            "-p",
            "hw",
            "cpu",
            "-p",
            "action",
            "deploy",
            "-p",
            "confirm",
            "local",
            "-p",
            "run_dir",
            str(run),
            *(word for pair in given.items() for word in ("-p", *pair)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert done.returncode == 0, done.stdout + done.stderr
    finally:  # also when papermill was killed half-way
        subprocess.run(
            [sys.executable, "-m", "kimi_nb", "down", str(run)],
            cwd=ROOT,
            check=False,
            capture_output=True,
        )
    made = [line for line in evidence.read(run) if line["stage"] == "deploy"]
    assert len(made) == deployments
    return nbformat.read(out, as_version=4), made[0]


def _nothing_runs() -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        assert not (os.fsencode(ENGINE) in words[0] and b"serve" in words), words


def test_single(tmp_path):
    _, made = _deploy("03_single_node", tmp_path)
    assert made["ok"] and made["ready"] == made["engines"] == 1
    assert made["mark"] == "measured"
    assert made["ready_s"] > 5 and made["first_answer_s"] >= made["ready_s"]
    assert made["memory_mb"] > 1000
    log = next(tmp_path.glob("run/*/deployments/001/logs/local-0/engines.log")).read_text()
    assert "KimiK25ForConditionalGeneration" in log
    _nothing_runs()


def test_verification(tmp_path):
    """What needs a model's sense does not apply; what parsers and grammars do is judged."""
    _deploy("06_verification", tmp_path, layout="single")
    found = {
        line["name"]: line
        for line in evidence.read(
            next((tmp_path / "run").glob("*/verify.jsonl")).parent, "verify.jsonl"
        )
    }
    assert not [line for line in found.values() if line["status"] == "fail"]
    assert not any(line["mark"] for line in found.values()), "it is no rehearsal"
    for name in (
        "engines/completion",
        "api/usage-exact",
        "reasoning/apart",
        "reasoning/off",
        "streaming/equal",
        "errors/too-long",
        "load/concurrent",
    ):
        assert found[name]["status"] == "pass", found[name]
    for name in ("canary/words", "tool-calls/auto", "content/image"):
        assert found[name]["status"] == "not applicable", found[name]
    _nothing_runs()


def test_head_and_headless_follower(tmp_path):
    _, made = _deploy("04_multi_node_dp", tmp_path)
    assert made["ok"] and made["ready"] == made["engines"] == 2
    plan = build.plan("k2.5", "cpu", "dp")
    assert [engine.headless for engine in plan.engines] == [False, True]
    logs = {
        path.parent.name: path.read_text()
        for path in tmp_path.glob("run/*/deployments/001/logs/*/engines.log")
    }
    assert set(logs) == {"local-0", "local-1"}
    _nothing_runs()


def test_prefill_and_decode_over_nixl(tmp_path):
    notebook, made = _deploy("05_pd", tmp_path)
    assert made["ok"] and made["ready"] == made["engines"] == 2
    assert made["moved_bytes"] > 0  # the cache of the first answer, by NIXL's own count
    assert any("KV cache moved" in json.dumps(cell.get("outputs", [])) for cell in notebook.cells)
    _nothing_runs()


def test_accuracy(tmp_path):
    """The real lm-eval asks the real engine our own questions."""
    if evaluators.find("lm-eval") is None:
        pytest.skip(evaluators.reason("lm-eval"))
    notebook, made = _deploy("07_accuracy", tmp_path, layout="single", limit="4")
    assert made["ok"]
    score = Score.load(next(tmp_path.glob("run/*/accuracy/001/score.json")))
    assert score.ok and score.mark == "RANDOM WEIGHTS" and score.samples == 4
    said = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "RANDOM WEIGHTS: the figure says nothing of a model" in said
    _nothing_runs()


def test_tuning(tmp_path):
    """A sweep serves each setting once, and writes the best as a model file that can be planned."""
    _deploy(
        "09_tuning",
        tmp_path,
        deployments=2,
        layout="single",
        sweep="max-num-seqs: [2, 4]; concurrency: [2]",
        repetitions="1",
        input_len="16",
        output_len="8",
    )
    said = next(line for line in evidence.read(tmp_path / "run") if line["stage"] == "sweep")
    assert said["measured"] == 2 and not said["failed"] and said["best"] and not said["mark"]
    winner = next(tmp_path.glob("run/*/sweep/tuned.yaml"))
    plan = build.plan(str(winner), "cpu", "single", scenario="tuned")
    assert plan.engines[0].argv[plan.engines[0].argv.index("--max-num-seqs") + 1] in ("2", "4")
    _nothing_runs()


def test_the_panel_deploys_and_stops(tmp_path):
    """By the site's name, as a person presses."""
    run = kimi_nb.start(hw="cpu", model="k2.5", run_dir=str(tmp_path / "run"))
    work = run.panel(run.choose("single")).work
    plan = build.plan("k2.5", "cpu", "single")
    work.deploy(plan, "local")
    assert work.wait(600) and work.state == "up", work.said
    with pytest.raises(ParameterError, match="confirm it by its name"):
        work.stop()
    work.verify()
    assert work.checks.wait(600)
    found = work.checks.contract
    assert found is not None and found.counts["fail"] == 0, found
    work.stop("local")
    assert work.state == "stopped"
    _nothing_runs()


def _start(folder: Path, name: str, chip: str, *pairs: str) -> list[str]:
    """The lines of the log of an engine of a plan, which was started and stopped again."""
    (one,) = build.plan("tiny-k2.5", chip, "single", pairs=pairs).engines
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        engine = subprocess.Popen(
            [ENGINE / "bin" / one.argv[0], *one.argv[1:]],
            env=os.environ | one.env,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        for _ in range(600):
            if engine.poll() is not None or b"startup complete" in log.read_bytes():
                break
            time.sleep(1)
        assert engine.poll() is None, log.read_text()[-2000:]
    finally:
        engine.terminate()
        engine.wait(60)
    return log.read_text().splitlines()


def test_one_log_teaches_what_another_start_takes(tmp_path):
    """The cache of a start with other settings, within 3 %, from the log of the first."""
    chip = str(ROOT / "tests/plan/engine_logs/cpu-auto.yaml")
    first = ("gpu-memory-utilization=0.15",)
    second = ("gpu-memory-utilization=0.22", "max-num-seqs=4", "max-model-len=1024")
    learnt = memory_account.learn(
        build.plan("tiny-k2.5", chip, "single", pairs=first),
        "",
        engine_report.read(_start(tmp_path, "a", chip, *first), "a.log"),
        "2026-01-01",
    )
    layer = tmp_path / "layer.yaml"
    layer.write_text(json.dumps(learnt.layer.model_dump(mode="json")))
    plan = build.plan("tiny-k2.5", chip, "single", pairs=second, calibrations=[str(layer)])
    (bar,) = memory_account.of(plan).bars
    said = engine_report.read(_start(tmp_path, "b", chip, *second), "b.log")
    assert bar.fit.tokens == pytest.approx(said.tokens, rel=0.03)
    assert bar.fit.low <= said.tokens <= bar.fit.high
    _nothing_runs()


def test_performance(tmp_path):
    """The real vllm bench serve measures the real engine."""
    _, made = _deploy(
        "08_performance",
        tmp_path,
        layout="single",
        concurrency="1,2",
        prompts="4",
        repetitions="1",
        output_len="8",
    )
    assert made["ok"]
    found = results.load(next(tmp_path.glob("run/*/bench")))
    assert found.frame["tool"].tolist() == ["vllm", "vllm"] and not found.mark
    assert found.frame["completed"].tolist() == [4, 4] and not found.failed
    assert found.frame["total_output_tokens"].tolist() == [32, 32]
    assert (found.frame["seen_generation_tokens"] >= 32).all()
    assert (found.frame["seen_utilisation_max"] > 0).all()
    assert found.measurements[0]["kimi_nb"]["engine_says"].startswith("0.32.0")
    assert len(list(found.folder.glob("pictures/*.svg"))) == 4
    published = str(compare.with_published(found))
    assert "tool: vllm" not in published and "hardware: cpu" in published
    _nothing_runs()
