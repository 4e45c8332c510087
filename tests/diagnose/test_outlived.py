"""Errors that an engine outlives: it goes on answering requests after them, and nothing else is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.diagnose import doctor

BEFORE = (
    "[11/22/2026-05:49:02] [TRT-LLM] [I] start MpiSession with 4 workers",
    "INFO:     Application startup complete.",
)
ANSWER = 'INFO:     192.0.2.20:55012 - "POST /v1/completions HTTP/1.1" 200 OK'
REFUSED = ANSWER.replace("200 OK", "500 Internal Server Error")
HEALTH = ANSWER.replace("POST /v1/completions", "GET /metrics")
BATCH = "[2026-11-22 05:49:31 TP0] Decode batch. #running-req: 1, #token: 301, gen throughput (token/s): 41.2"
ITERATION = "[11/22/2026-05:49:40] [TRT-LLM] [RANK 0] [I] iter = 120, global_rank = 0, rank = 0"
STATISTICS = (
    "INFO 11-22 05:49:50 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
    "Avg generation throughput: {} tokens/s, Running: 1 reqs"
)
UCX = "[1795326611.281418] [ctx-0:3412 :0]     cuda_ipc_cache.c:295  UCX  ERROR   cuMemImportFromShareableHandle failed: invalid resource handle"
METRICS = "ERROR 11-22 05:49:20 [exporter.py:88] The spans could not be sent to the collector"
SAID = (
    METRICS,
    "ERROR 11-22 05:49:20 [usage_lib.py:210] Failed to send usage data to the server",
    "(Worker_TP1 pid=7) ERROR 11-22 05:49:01 [custom_all_reduce.py:299] no peer access between these devices",
    "(Worker_TP1 pid=7) [2026-11-22 05:49:51,159] LMCache ERROR: the controller's queue is full (worker.py:360:lmcache.v1.x)",
    "[11/22/2026-05:49:05] [TRT-LLM] [RANK 2] [E] [Autotuner] Failed when profiling runner=Moe, tactic=3",
    "2026-11-22T05:49:18Z ERROR vllm_router::metrics: cannot read the metrics of one worker",
    "ERROR:asyncio:Task exception was never retrieved",
    "(APIServer pid=77) ERROR 11-22 05:49:20 [parser.py:140] Error in extracting a tool call.",
)
TRACE = (
    "Traceback (most recent call last):",
    '  File "/opt/vllm/parser.py", line 3, in run',
    "    run()",
    "KeyError: 'name'",
)
# What ends an engine, or a part of it, whoever goes on.
ENDS = (
    "/opt/serve.sh: line 7: 233 Killed vllm serve moonshotai/Kimi-K2.5 --port 8001",
    "(EngineCore_DP3 pid=236) ERROR 11-22 05:49:12 [core.py:1136] ValueError: no such backend",
    "(Worker_TP1 pid=236) ERROR 11-22 05:49:12 [multiproc_executor.py:597] RuntimeError: gone",
    "[TM][FATAL][1122.05:49:13.270118][cast.cu:264] CUDA error: invalid argument",
    "Fatal Python error: Segmentation fault",
    "[2026-11-22 05:49:31 TP0] Scheduler hit an exception: RuntimeError: gone",
)


def examined(folder: Path, *lines: str) -> doctor.Report:
    path = folder / "serve.log"
    path.write_text("".join(f"{line}\n" for line in (*BEFORE, *lines)))
    return doctor.examine(path)


@pytest.mark.parametrize(
    "after",
    [
        (ANSWER,) * 3,
        (BATCH,) * 3,
        (ITERATION, ANSWER, HEALTH, ANSWER),
        (STATISTICS.format("18.0"), STATISTICS.format("41.5"), REFUSED, ANSWER),
    ],
)
@pytest.mark.parametrize("error", [UCX, METRICS])
def test_an_error_after_which_an_engine_goes_on_answering_is_no_failure(error, after, tmp_path):
    found = examined(tmp_path, error, error, *after)
    assert found.ok and not (found.also or found.cascade or found.unknown), found


@pytest.mark.parametrize("error", SAID)
def test_any_error_may_be_outlived_but_one_that_ends_a_process(error, tmp_path):
    before = error[: error.index("Error in")] if "Error in" in error else ""
    trace = [before + line for line in TRACE] if "exception" in error or before else []
    assert examined(tmp_path, error, *trace, *[ANSWER] * 3).ok
    assert not examined(tmp_path, ANSWER, error, *trace).ok


@pytest.mark.parametrize(
    "after",
    [
        (),
        (ANSWER,) * 2,
        (HEALTH,) * 5,
        (REFUSED,) * 5,
        (STATISTICS.format("0.0"),) * 5,
    ],
)
@pytest.mark.parametrize("error", [UCX, METRICS])
def test_an_engine_that_answers_little_afterwards_may_have_failed(error, after, tmp_path):
    first = examined(tmp_path, ANSWER, ANSWER, ANSWER, error, *after).first
    assert first is not None and first.text == error


def test_what_came_before_the_end_of_an_engine_is_told_with_it(tmp_path):
    found = examined(tmp_path, UCX, ANSWER, ANSWER, ANSWER, ENDS[0])
    assert found.first is not None and not found.ok


@pytest.mark.parametrize(
    "said",
    [
        "send completion[0] with error on rdmap132s0/0x55: Work Request Flushed Error",
        "Failed to connect to 192.0.2.9: no answer",
        "the endpoint was disconnected",
    ],
)
def test_a_request_that_is_lost_is_told_though_others_are_answered(said, tmp_path):
    error = f"[1795326611.281418] [ctx-0:3412 :0]     srd_iface.c:221  UCX  ERROR {said}"
    first = examined(tmp_path, error, *[ANSWER] * 5).first
    assert first is not None and first.text == error


@pytest.mark.parametrize("error", ENDS)
def test_who_ended_is_told_though_others_go_on(error, tmp_path):
    first = examined(tmp_path, error, *[ANSWER] * 5).first
    assert first is not None and first.text == error
