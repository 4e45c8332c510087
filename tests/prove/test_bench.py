"""Benchmarks: loads, command lines, our client against a server that misbehaves, results."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import misbehaving
import pytest

import kimi_nb
from kimi_nb import catalog, report
from kimi_nb.core import evidence
from kimi_nb.core.errors import BenchError, ParameterError, PlanError, ServiceError, WriteError
from kimi_nb.plan import build
from kimi_nb.prove.bench import (
    bench_commands,
    bench_pictures,
    compare,
    device_use,
    identity,
    load_client,
    load_programs,
    measurement_files,
    measurements,
    metrics,
    published_tables,
    request_faults,
    results,
    summary,
    timed_stream,
    workload,
)
from kimi_nb.prove.bench.timed_stream import Timed
from kimi_nb.report.sections import Sections

SMALL = {"input_len": 16, "output_len": 4}
# The keys that vllm bench serve 0.32.0 wrote on a CPU, with --save-detailed and percentiles.
KEYS = {
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "generated_texts",
    "errors",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    *(
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "std", "p50", "p90", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    ),
}


@pytest.fixture
def bench(tmp_path):
    """Measure a URL as the plan k2.5 on a3, single."""

    def call(url: str, loads: workload.Loads | None = None, resume: bool = True, **more):
        run = kimi_nb.start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path / "run"))
        service = run.serve(run.plan(run.choose("single")), url=str(url))
        loads = loads or run.load(service.plan, "2", prompts=6, **SMALL)
        return run.bench(service, replace(loads, **more), resume=resume)

    return call


# Loads --------------------------------------------------------------------------------


def test_a_sweep():
    loads = workload.sweep("1, 4,8", input_len=64, output_len=32)
    assert [(one.concurrency, one.prompts) for one in loads.cells] == [(1, 4), (4, 16), (8, 32)]
    assert workload.sweep([2], prompts=7).cells[0].prompts == 7
    seeds = {one.seeded(number).seed for one in loads.cells for number in (1, 2, 3)}
    assert len(seeds) == 9, "two measurements with the same prompts"


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": ""},
        {"concurrency": "1,x"},
        {"concurrency": "4,4"},
        {"concurrency": True},
        {"concurrency": "-1"},
        {"concurrency": "0"},
        {"concurrency": 1, "input_len": 0},
        {"concurrency": 1, "output_len": 2.5},
        {"concurrency": 1, "rate": 0},
        {"concurrency": 1, "dataset": "sharegpt2"},
        {"concurrency": 1, "dataset": "hf"},
    ],
)
def test_loads_that_are_refused(given):
    with pytest.raises(ParameterError):
        workload.sweep(**given)


def test_the_load_of_a_document():
    plan = build.plan("k2-thinking", "a3", "single")
    engine = bench_commands.engine(plan)
    once, sweep = (workload.of_command(one.argv, engine, one.sweep) for one in plan.clients[1:])
    assert (once.cells[0].concurrency, once.cells[0].rate, once.cells[0].prompts) == (0, 1.0, 10)
    assert [(one.concurrency, one.prompts) for one in sweep.cells] == [
        (many, 10 * many) for many in (1, 2, 4, 8, 16, 32)
    ]


def test_the_load_of_a_document_by_its_name(tmp_path):
    run = kimi_nb.start(hw="h200", model="k2.5", action="plan", run_dir=str(tmp_path))
    plan = run.plan(run.choose("single"))
    found = run.load(plan, "visionarena").cells[0]
    assert (found.path, found.prompts, found.rate) == ("lmarena-ai/VisionArena-Chat", 1000, 20.0)
    assert run.load(plan, "4", dataset=found.path).cells[0].dataset == "hf"
    with pytest.raises(ParameterError, match="Allowed: visionarena"):
        run.load(plan, "bench-sweep")


# Command lines ------------------------------------------------------------------------


def test_every_plan_has_its_lines(each_plan):
    """All flags are known to the parser of the plan's version, or `checked` raises."""
    text = bench_commands.all_of(each_plan, workload.sweep("1,4", **SMALL)).text
    at = bench_commands.target(each_plan)
    assert f"--base-url {each_plan.url}" in text and f"--model {each_plan.served_name}" in text
    assert "vllm bench latency" in text and "vllm bench throughput" in text
    assert "ais_bench" in text and f"model={at.model!r}" in text
    assert "127.0.0.1:8000" not in text or ":8000" in each_plan.url
    for client_ in bench_commands.documents(each_plan).values():
        for argv in bench_commands.documented(client_, bench_commands.engine(each_plan)):
            assert argv.count("--seed") == 1 and "--save-detailed" in argv


def test_the_sweep_of_the_document_is_written_out():
    plan = build.plan("k2-thinking", "a3", "single")
    lines = bench_commands.documented(
        plan.clients[2], bench_commands.engine(plan), "http://192.0.2.9:1"
    )
    pairs = [
        (line[line.index("--max-concurrency") + 1], line[line.index("--num-prompts") + 1])
        for line in lines
    ]
    assert pairs == [(str(many), str(10 * many)) for many in (1, 2, 4, 8, 16, 32)]
    assert all(line.count("--base-url") == 1 and "http://192.0.2.9:1" in line for line in lines)


def test_a_flag_of_another_version_is_refused():
    old = catalog.engine("vllm", "0.11.2")
    with pytest.raises(PlanError, match="skip-tokenizer-init"):
        bench_commands.checked(["vllm", "bench", "serve", "--skip-tokenizer-init"], old)
    with pytest.raises(PlanError, match="whole number"):
        bench_commands.checked(["vllm", "bench", "serve", "--num-prompts", "ten"], old)


def test_the_tool():
    plan = build.plan("k2.5", "a3", "single")
    assert load_programs.choose("auto", plan, "REHEARSAL").name == "kimi_nb"
    with pytest.raises(ParameterError, match="did you mean 'vllm'"):
        load_programs.choose("vlm", plan, "")
    env = load_programs.environment(
        {"PYTHONPATH": "x", "no_proxy": "a", "OPENAI_API_KEY": "old"}, "http://10.0.0.1:80", ""
    )
    assert env["NO_PROXY"] == "a,10.0.0.1" and not {"PYTHONPATH", "OPENAI_API_KEY"} & set(env)


def test_vllm_is_asked_for_and_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = build.plan("k2.5", "a3", "single")
    with pytest.raises(BenchError, match="no vllm in PATH"):
        load_programs.choose("vllm", plan, "")
    assert "no vllm on this machine" in load_programs.choose("auto", plan, "").why


def _stand_in_vllm(folder: Path, then: str) -> None:
    program = folder / "vllm"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "value = lambda flag: sys.argv[sys.argv.index(flag) + 1]\n" + then
    )
    program.chmod(0o755)


_WRITES = """
with open(os.path.join(value("--result-dir"), value("--result-filename")), "w") as file:
    file.write({!r})
"""


def test_vllm_at_hand_is_what_runs(bench, tmp_path, monkeypatch):
    """The program that is found gets the load, the key by environment, and its file is taken."""
    checks = """
assert "KEY" not in " ".join(sys.argv)
assert value("--max-concurrency") == "2" and value("--num-prompts") == "6"
"""
    _stand_in_vllm(tmp_path, checks + _WRITES.format(json.dumps(_result(2, 0))))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with misbehaving.server() as url:
        found = bench(url, tool="vllm", repetitions=1)
    about = found.measurements[0]["kimi_nb"]
    assert about["identity"]["tool"] == "vllm" and "--save-detailed" in about["command"]
    assert found.frame["completed"].tolist() == [2]


def test_vllm_that_fails_is_told(bench, tmp_path, monkeypatch):
    _stand_in_vllm(tmp_path, "sys.exit('OSError: no tokenizer there')\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with misbehaving.server() as url, pytest.raises(BenchError, match="no tokenizer there"):
        bench(url, tool="vllm", repetitions=1)


# Our client ---------------------------------------------------------------------------


def test_a_load_is_sent_as_asked():
    one = workload.Load(3, prompts=9, warmup=2, seed=5, **SMALL)
    with misbehaving.server() as url:
        ticks = []
        found = load_client.run(
            one, url, "m", tick=lambda done, failed: ticks.append((done, failed))
        )
        bodies = url.chat.bodies
    assert set(found) >= KEYS, KEYS - set(found)
    assert found["completed"] == 9 and not found["failed"] and ticks[-1] == (9, 0)
    assert found["output_lens"] == [4] * 9 and found["input_lens"] == [7] * 9
    assert found["total_output_tokens"] == 36 and 1 <= found["max_concurrent_requests"] <= 9
    assert all(len(gaps) == 3 for gaps in found["itls"])
    assert found["median_tpot_ms"] >= misbehaving.TOKEN_S * 1000 * 0.9
    assert len(bodies) == 11 and all(body["ignore_eos"] and body["stream"] for body in bodies)
    texts = [body["messages"][0]["content"][0]["text"] for body in bodies]
    # The server counts two tokens a word.
    assert {len(text.split()) for text in texts} == {8} and len(set(texts)) == 9
    assert "counted" in found["tokenizer_id"]


@pytest.mark.parametrize("tool, other", [("kimi_nb", "vllm"), ("vllm", "kimi_nb")])
def test_a_result_says_which_figures_the_other_client_defines_otherwise(
    bench, tmp_path, monkeypatch, capsys, tool, other
):
    _stand_in_vllm(tmp_path, _WRITES.format(json.dumps(_result(2, 0))))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with misbehaving.server() as url:
        found = bench(url, tool=tool, repetitions=1)
    said = found.measurements[0]["kimi_nb"]["definitions"]
    assert {"ttft", "tpot", "itl", "e2el", "output_throughput", "total_input_tokens"} <= set(said)
    assert "trust_env" in said["ttft"] and other in said["ttft"] and other not in said["tpot"]
    printed = capsys.readouterr().out
    assert f"Not to be compared with figures of {other}: TTFT (" in printed
    table = str(found.definitions())
    assert "TTFT" in table and "trust_env" in table


def test_no_more_at_once_than_asked():
    one = workload.Load(2, prompts=8, **SMALL)
    with misbehaving.server() as url:
        found = load_client.run(one, url, "m")
    spans = sorted(
        (start, start + latency)
        for start, latency in zip(found["start_times"], found["latencies"], strict=True)
    )
    assert max(sum(a <= at < b for a, b in spans) for at, _ in spans) <= 2


def test_arrivals():
    at = load_client.arrivals(workload.Load(0, prompts=50, rate=10.0, seed=1))
    assert at == sorted(at) and at[-1] == pytest.approx(5.0) and at[0] > 0
    assert at == load_client.arrivals(workload.Load(0, prompts=50, rate=10.0, seed=1))
    assert set(load_client.arrivals(workload.Load(4))) == {0.0}


@pytest.mark.parametrize(
    "how, kind",
    [
        ("401", "unauthorised"),
        ("404", "not-found"),
        ("429", "too-many-requests"),
        ("400", "refused"),
        ("500", "server-error"),
        ("503", "server-error"),
        ("html", "malformed"),
        ("malformed", "malformed"),
        ("shape", "malformed"),
        ("empty", "empty"),
        ("error-in-stream", "error-in-stream"),
        ("no-done", "cut-off"),
        ("cut-off", "cut-off"),
    ],
)
def test_what_goes_wrong_has_a_name(bench, how, kind):
    """From the fifth request on: the result says how many, and why. From the first one on: an
    error of one screen."""
    with misbehaving.server(how, after=5) as url:  # a probe, two to warm up, two measured
        found = bench(url, repetitions=1)
    assert found.errors == {kind: 4} and found.failed == 4
    assert found.frame["completed"].tolist() == [2]
    assert found.frame["output_throughput"].item() > 0
    with misbehaving.server(how) as url, pytest.raises(BenchError) as caught:
        bench(url, repetitions=2)
    text = str(caught.value)
    assert f"1 x {kind}: " in text and len(text.splitlines()) < 10 and url in text


def test_a_key_is_used_and_never_kept(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("kimi_nb.service.handle.Service.key", misbehaving.KEY)
    with misbehaving.server("401") as url:
        found = bench(url, repetitions=1)
    assert not found.failed
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or misbehaving.KEY not in path.read_text(errors="replace")


def test_a_request_without_an_end():
    with misbehaving.server("hang") as url:
        found = load_client.run(
            workload.Load(1, prompts=1, warmup=0, **SMALL), url, "m", seconds=0.3
        )
    assert request_faults.counts(found["errors"]) == {"timeout": 1}


def test_nobody_there(bench):
    with socket.socket() as held:  # a port that is taken, and that nobody listens at
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ServiceError, match="nobody takes connections"):
            bench(url)
        assert request_faults.kind(load_client.probe(url, "m")) == "unreachable"


def test_a_data_set_of_pictures_needs_vllm():
    with pytest.raises(BenchError, match="tool vllm"):
        load_client.run(workload.Load(1, dataset="hf", path="a/b"), "http://127.0.0.1:9", "m")


def test_vllms_own_errors_have_the_same_names():
    trace = 'Traceback (most recent call last):\n  File "x"\n'
    for text, kind in (
        (trace + "aiohttp.client_exceptions.ClientConnectorError: Cannot connect", "unreachable"),
        (trace + "aiohttp.client_exceptions.ServerDisconnectedError", "cut-off"),
        (trace + "json.decoder.JSONDecodeError: Expecting", "malformed"),
        ("Too Many Requests", "too-many-requests"),
        ("Unauthorized", "unauthorised"),
        ("Not Found", "not-found"),
        ("Internal Server Error", "server-error"),
        ("Never received a valid chunk to calculate TTFT.", "empty"),
        ("???", "other"),
    ):
        assert request_faults.kind(text) == kind and kind in request_faults.KINDS
    assert request_faults.kind("") == ""


# A sweep and its files ----------------------------------------------------------------


def test_a_sweep_is_resumed_where_it_stopped(bench, capsys):
    """An engine dies after the first round, and is there again for the second call."""
    loads = workload.sweep("1,2", prompts=3, **SMALL)
    # A probe, then one and two to warm up, and three measured each.
    with misbehaving.server("500", after=1 + (1 + 3) + (2 + 3)) as url:
        with pytest.raises(BenchError, match="2 of 4 measurements are there and stay"):
            bench(url, loads, repetitions=2)
        url.chat.how = "well"
        found = bench(url, loads, repetitions=2)
    assert "2 measured, 2 kept" in capsys.readouterr().out
    assert len(found.frame) == 4 and not found.failed
    with misbehaving.server() as other:
        elsewhere = bench(other, loads, repetitions=1)
    assert not set(elsewhere.files) & set(found.files), "another service is another measurement"


def test_resume_keeps_what_is_whole_and_no_more(bench, capsys):
    with misbehaving.server() as url:
        first = bench(url, repetitions=2)
        first.files[0].write_text("{")
        kept = first.files[1].read_text()
        bench(url, repetitions=2)
        assert "1 measured, 1 kept" in capsys.readouterr().out
        assert first.files[1].read_text() == kept
        bench(url, repetitions=2, resume=False)
        assert "2 measured, 0 kept" in capsys.readouterr().out
        assert first.files[1].read_text() != kept


def test_results_survive_a_kill(tmp_path):
    """SIGKILL in the middle: what is there is whole, and the same call goes on after it."""
    code = (
        "import sys, kimi_nb\n"
        "run = kimi_nb.start(hw='a3', model='k2.5', action='plan', run_dir=sys.argv[2])\n"
        "service = run.serve(run.plan(run.choose('single')), url=sys.argv[1])\n"
        "loads = run.load(service.plan, '1', input_len=8, output_len=8, prompts=10, repetitions=8)\n"
        "run.bench(service, loads)\n"
    )
    with misbehaving.server() as url:
        words = [sys.executable, "-c", code, str(url), str(tmp_path)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while len(list(tmp_path.rglob("c*.json"))) < 3 and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        there = list(tmp_path.rglob("c*.json"))
        assert 3 <= len(there) < 8
        times = {path: path.stat().st_mtime_ns for path in there}
        assert len(measurement_files.read(there)) == len(there)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert len(list(tmp_path.rglob("c*.json"))) == 8
    assert all(path.stat().st_mtime_ns == at for path, at in times.items())


def test_ctrl_c_ends_at_once(tmp_path):
    code = (
        "import sys\nfrom kimi_nb.prove.bench import load_client, workload\n"
        "print('go', flush=True)\n"
        "load_client.run(workload.Load(1, prompts=3, input_len=8, output_len=8), sys.argv[1], 'm')\n"
    )
    with misbehaving.server("hang") as url:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(url)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout.readline() == "go\n"
        while not url.chat.seen:
            time.sleep(0.02)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in errors and time.monotonic() - begun < 5


def test_nothing_serves_with_action_plan(tmp_path):
    run = kimi_nb.start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path))
    found = run.bench(
        run.serve(run.plan(run.choose("single"))), run.load(run.plan(run.choose("single")), "1")
    )
    assert not len(found.frame) and not bench_pictures.draw(found) and not found.failed
    assert len(found.goodput(1, 1)) == len(found.metrics()) == 0 and str(
        compare.with_published(found)
    )
    assert evidence.read(tmp_path)[-1]["measurements"] == 0


@pytest.mark.parametrize("repetitions", [0, 1.5, True, 101])
def test_repetitions_that_are_refused(bench, repetitions):
    with misbehaving.server() as url, pytest.raises(ParameterError):
        bench(url, repetitions=repetitions)


def test_a_foreign_file_is_named(tmp_path):
    (tmp_path / "c1-r1-x.json").write_text("[]")
    with pytest.raises(BenchError, match="c1-r1-x.json is no measurement"):
        _ = results.load(tmp_path).frame


# Figures ------------------------------------------------------------------------------


def test_figures_are_those_of_vllm():
    """By hand: two requests that were answered, one that was not."""
    timed = [
        Timed(10, 0.0, 0.1, [0.02, 0.04], 0.16, 3),
        Timed(20, 0.5, 0.3, [], 0.3, 1),
        Timed(30, 0.5, error="empty: x"),
    ]
    found = summary.of(timed, 2.0)
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 4)
    assert found["output_throughput"] == 2.0 and found["total_token_throughput"] == 17.0
    assert found["mean_ttft_ms"] == pytest.approx(200) and found["p99_ttft_ms"] > 290
    assert found["mean_tpot_ms"] == pytest.approx(30)  # a single token has none
    assert found["mean_itl_ms"] == pytest.approx(30)
    assert found["mean_e2el_ms"] == pytest.approx(230)
    assert found["max_output_tokens_per_s"] == 4 and found["max_concurrent_requests"] == 2
    assert summary.goodput(found) == 1.0
    assert summary.goodput(found, ttft_ms=150) == 0.5
    assert summary.goodput(found, tpot_ms=29) == 0.5
    assert summary.goodput({"duration": 1}) is None
    for name in ("ttfts", "output_lens"):
        assert summary.goodput(found | {name: None}) is None


def test_medians_and_spread():
    rows = results.frame(
        [_measurement(1, at, tokens) for at, tokens in ((1, 100.0), (2, 110.0), (3, 400.0))]
    )
    cell = results.over_repetitions(rows)
    assert len(cell) == 1 and cell["output_throughput"].item() == 110.0
    assert cell["output_throughput_spread"].item() == pytest.approx(300 / 110)
    assert cell["repetitions"].item() == 3 and cell["per_device"].item() == pytest.approx(110 / 16)


def test_the_front():
    import pandas as pd

    cells = pd.DataFrame(
        {
            "concurrency": [1, 2, 4, 8],
            "per_user": [40.0, 20.0, 30.0, 10.0],
            "per_device": [1.0, 2.0, 3.0, 4.0],
        }
    )
    assert bench_pictures.front(cells)["concurrency"].tolist() == [1, 4, 8]


def test_pictures(bench):
    with misbehaving.server() as url:
        found = bench(url, workload.sweep("1,2", prompts=4, **SMALL), repetitions=2)
    shown = bench_pictures.draw(found, 1000, 100)
    assert len(shown) == 4
    for one in shown.pictures:
        svg, png, data = (
            found.folder / "pictures" / f"{one.name}.{kind}" for kind in ("svg", "png", "csv")
        )
        assert svg.read_text().startswith("<?xml") and png.read_bytes()[:4] == b"\x89PNG"
        assert len(data.read_text().splitlines()) == 3 and len(one.alt) > 40
        page = one._repr_html_()
        assert f'aria-label="{one.alt}"' in page
        assert "<script" not in page and 'src="http' not in page
    assert len(found.goodput(1000, 100)) == 2 and len(found.metrics()) == 4


@pytest.mark.parametrize("name", ["num_requests_waiting", "kv_cache_usage_perc"])
def test_a_number_that_no_float_holds_is_no_metric(name):
    assert metrics.read([f"vllm:{name} {'9' * 300}"])
    with pytest.raises(ValueError, match="hundreds of digits"):
        metrics.read([f"vllm:{name} {'9' * 400}"])
    with pytest.raises(ValueError, match="OverflowError of the parser"):
        metrics.read([f"vllm:{name} 1 {'9' * 400}"])  # the time of a sample


def test_metrics():
    with misbehaving.server() as url:
        with metrics.Sampler([url, url], every=0.05) as seen:
            load_client.run(workload.Load(1, prompts=2, warmup=0, **SMALL), url, "m")
        found = seen.result()
        with metrics.Sampler([f"{url}/nowhere"]) as blind:
            pass
    assert found["running_max"] == 5 and found["kv_cache_max"] == 0.5 and found["looks"] >= 2
    assert found["preemptions"] == 2 and found["prefix_hit_rate"] == pytest.approx(0.4)
    assert "HTTP 404" in blind.result()["why_not"]


@pytest.mark.parametrize("why", [5, ["HTTP 404"], {"a": 1}, True])
def test_a_reason_that_is_no_text_is_shown_as_it_is(bench, why):
    with misbehaving.server() as url:
        found = bench(url, workload.sweep("1", prompts=2, **SMALL))
    path = found.files[0]
    one = json.loads(path.read_text())
    one["kimi_nb"]["metrics"] |= {"why_not": why, "utilisation_why_not": "nobody looked"}
    path.write_text(json.dumps(one))
    again = results.load(found.folder)
    assert f"{why}; nobody looked" in str(again.metrics())


def test_devices():
    assert device_use.percents("nvidia-smi", "87\n93\n") == [87.0, 93.0]
    # As npu-smi info -t usages prints it for a card of two chips.
    assert device_use.percents(
        "npu-smi", "\tNPU ID  : 0\n\tAicore Usage Rate(%)   : 12\n\tAicore Usage Rate(%)   : 40\n"
    ) == [12.0, 40.0]
    assert device_use.watch(build.plan("k2.5", "a3", "single"), "REHEARSAL").look() is None
    assert "npu-smi" in device_use.watch(build.plan("k2.5", "a3", "single"), "").why
    assert "nvidia-smi" in device_use.watch(build.plan("k2.5", "h200", "single"), "").why
    here = device_use.watch(build.plan("k2.5", "cpu", "single"), "")
    assert here.what == "CPU" and 0 <= here.look() <= 100


def test_the_hash_knows_every_flag_and_no_address():
    plan = build.plan("k2.5", "a3", "pd")
    other = {
        identity.flags_hash(build.plan("k2.5", "a3", "pd", pairs=[pair]))
        for pair in (
            "decode.max-num-seqs=32",
            "env.HCCL_BUFFSIZE=1200",
            "decode.dp=16",
            "router=vllm-router",
        )
    }
    assert len(other | {identity.flags_hash(plan)}) == 5
    assert identity.flags_hash(plan) == identity.flags_hash(
        build.plan("k2.5", "a3", "pd", pairs=["prefill.port=7300"])
    )


def test_replicas_behind_a_router_are_another_measurement(nodes_file):
    """Of the same two engines: the router decides who gets which request."""

    def hashed(*pairs):
        site = nodes_file("h200", 2)
        plan = build.plan("k2.5", "h200", "single", variant="pip", site=site, pairs=pairs)
        return identity.flags_hash(plan)

    alone, routed = hashed("groups=2"), hashed("groups=2", "router=vllm-router")
    assert len({hashed(), alone, routed}) == 3
    assert routed == hashed("groups=2", "router=vllm-router", "router.port=1998")


# Beside the documents -----------------------------------------------------------------


def test_published_tables():
    sizes, sweep = published_tables.tables("k2-thinking", "a3")
    assert [row["output_throughput"] for row in sweep.rows] == [17.21, 32.83, 56.47, 90.28, 52.97]
    assert sizes.rows[2]["input_len"] == 2048 and "2048" in str(sizes)
    for row in (*sizes.rows, *sweep.rows):  # the figures of a row agree with each other
        many = row["completed"] * row["output_len"] / row["duration"]
        assert row["output_throughput"] == pytest.approx(many, rel=0.01)
    assert not published_tables.tables("k2.5")


def test_comparable_or_the_reasons(tmp_path):
    plan = build.plan("k2-thinking", "a3", "single")
    table = published_tables.tables("k2-thinking")[1]
    about = {
        **identity.of_plan(plan),
        "mark": "",
        "attached": "",
        "tool": "vllm",
        **workload.Load(8, prompts=80).as_dict(),
    }
    assert compare.differences(about, table.conditions, table.rows[3]) == ()
    assert compare.differences({**about, "hardware": "a2"}, table.conditions, table.rows[3]) == (
        "hardware: a2, published a3",
    )
    assert "it is a REHEARSAL" in compare.differences(
        {**about, "mark": "REHEARSAL"}, table.conditions, table.rows[3]
    )
    path = tmp_path / "c8-r1-x.json"
    path.write_text(
        json.dumps(
            {
                **_result(80, 0),
                "kimi_nb": {
                    "identity": {**about, "tool_version": "0.20.2", "repetition": 1},
                    "time": "t",
                    "errors": {},
                    "metrics": {},
                    "command": [],
                    "engine_says": "",
                },
            }
        )
    )
    found = results.load(tmp_path)
    assert [
        (theirs["concurrency"], source) for _, theirs, source in compare.with_published(found).pairs
    ] == [(8, "ascend-k2-thinking 8, second table")]
    assert "published" in bench_pictures.draw(found).pictures[0].svg


def _result(completed: int, failed: int) -> dict:
    timed = [Timed(10, 0.1 * at, 0.05, [0.01, 0.01], 0.07, 3) for at in range(completed)]
    return summary.of([*timed, *(Timed(10, error="empty: x") for _ in range(failed))], 2.0)


def _measurement(many: int, repetition: int, tokens: float) -> dict:
    plan = build.plan("k2.5", "a3", "single")
    return {
        **_result(2, 0),
        "output_throughput": tokens,
        "kimi_nb": {
            "identity": {
                **identity.of_plan(plan),
                "mark": "",
                "attached": "",
                "tool": "kimi_nb",
                "tool_version": "1",
                **workload.Load(many).as_dict(),
                "repetition": repetition,
            },
            "time": f"t{repetition}",
            "errors": {},
            "metrics": {"running_max": math.pi},
        },
    }


def test_the_physical_limit_stands_under_each_measurement_and_in_the_report(bench, tmp_path):
    with misbehaving.server() as url:
        result = bench(url, repetitions=1)
    run = kimi_nb.start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path / "run"))
    plan = build.plan("k2.5", "a3", "single")
    found = run.shares(plan, result)
    (row,) = found.rows
    assert row[0] == 2 and float(row[2].replace(",", "")) > float(row[1]) > 0
    assert row[5].endswith("limit (estimated)")
    assert "not strict: experts are taken to be chosen evenly" in found.title
    (planned,) = report.collect(run.folder).plans
    assert planned.limits.rows == (tuple(map(str, row)),)
    shown = str(Sections(report.collect(run.folder)).performance)
    assert "limit (estimated)" in shown and "not strict" in shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.update(failed={}), "failed: Input should be a valid integer"),
        (lambda one: one.update(duration="2"), "duration: Input should be a valid number"),
        (lambda one: one.update(mean_ttft_ms=-1.0), "mean_ttft_ms: .* from 0 to 1e.15, found -1"),
        (lambda one: one.pop("duration"), "duration: there is none"),
        (lambda one: one.update(errors=[]), "not of the same requests"),
        (lambda one: one["kimi_nb"].pop("metrics"), "kimi_nb.metrics: Field required"),
        (lambda one: one["kimi_nb"]["identity"].pop("weights"), "identity.weights: Field required"),
        (lambda one: one["kimi_nb"]["identity"].update(prompts=10**400), "identity.prompts: "),
        (lambda one: one["kimi_nb"]["identity"].update(variant=["pip"]), "identity.variant"),
        (lambda one: one["kimi_nb"]["identity"].update(variant="\udc80"), "variant: .* no text in"),
        (
            lambda one: one["kimi_nb"]["identity"].update(hardware="\ud800"),
            "hardware: .* no text in",
        ),
    ],
)
def test_a_measurement_that_is_none_is_named(change, words, tmp_path):
    one = _measurement(2, 1, 100.0)
    path = tmp_path / "c2-r1-x.json"
    path.write_text(json.dumps(one))
    assert len(measurement_files.read([path])) == 1
    change(one)
    path.write_text(json.dumps(one))
    with pytest.raises(BenchError, match=f"c2-r1-x.json is no measurement of ours.*{words}"):
        measurement_files.read([path])


def test_what_a_service_repeats_of_its_key_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DOOR_API_KEY", "open-sesame-4711")
    error = "refused: 400 no open-sesame-4711"
    measurements.write(tmp_path / "c1-r1-x.json", {"errors": [error]})
    assert json.loads((tmp_path / "c1-r1-x.json").read_text()) == {
        "errors": ["refused: 400 no [redacted]"]
    }


def test_what_is_said_of_a_stream_is_short(monkeypatch):
    """Also where it is empty lines, or begins a key just before it is cut."""
    monkeypatch.setenv("DOOR_API_KEY", "open-sesame-4711")
    for data in (b"\n" * 300 + b"x", b"<p>" + b"a " * 95 + b"open-sesame-4711 b"):
        stream = timed_stream._Stream(Timed(3))
        with pytest.raises(timed_stream._Faulty) as told:
            stream.take(data)
            stream.end()
        assert "open" not in str(told.value) and str(told.value).count("\n") < 9


def test_where_every_request_failed_the_share_is_not_known(tmp_path):
    one = _measurement(2, 1, 0.0) | {"request_throughput": 0.0}
    (tmp_path / "c2-r1-x.json").write_text(json.dumps(one))
    (row,) = results.load(tmp_path).goodput(500.0).rows
    assert row[-1] == "-"


def test_a_disk_that_became_read_only_is_told_and_no_traceback(tmp_path, monkeypatch):
    """What was begun cannot be removed there either."""

    def refuse(*_args, **_more):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(measurements.os, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(WriteError, match="Read-only file system"):
        measurements.write(tmp_path / "c1.json", {})
