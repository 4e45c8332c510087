"""What somebody stopped has not failed: `kimi-nb down`, SIGTERM to the launcher, a cancelled job.

The engines of one node may lose those of another before they are told to stop themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from testbed.rank_logs import ended, examined

from kimi_nb.diagnose import doctor
from kimi_nb.plan import build

SERVES = (
    "(APIServer pid=7) INFO 11-22 05:40:00 [api_server.py:602] Starting vLLM server",
    "(APIServer pid=7) INFO:     Application startup complete.",
)
STOPPED = (
    "(APIServer pid=7) INFO 11-22 05:49:01 [launcher.py:254] [shutdown] API server: shutdown "
    "triggered"
)
RECEIVED = "INFO 11-22 05:49:01 [launch_online_dp.py:286] SIGTERM received: stopping all ranks"


def lost(time: str) -> tuple[str, ...]:
    """What a rank says whose partner in a collective is gone."""
    at = f"(EngineCore_DP17 pid=9) ERROR 11-22 {time} [core.py:1136]"
    return (
        f"{at} EngineCore encountered a fatal error.",
        f"{at} Traceback (most recent call last):",
        f'{at}   File "/vllm/distributed/utils.py", line 9, in all_reduce',
        f"{at} RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[10.0.0.1]:50120",
        f"(APIServer pid=7) ERROR 11-22 {time} [async_llm.py:9] vllm.v1.engine.exceptions."
        "EngineDeadError: EngineCore encountered an issue.",
    )


@pytest.mark.parametrize("how", ["exit code 1", "signal SIGABRT", "signal SIGTERM"])
def test_ranks_that_lost_those_of_a_node_that_was_stopped_have_not_failed(how, tmp_path):
    found = examined(
        tmp_path,
        n1=(RECEIVED,),
        n1_0=(*SERVES, STOPPED),
        n2=(ended(17, "05:49:02", how),),
        n2_17=(*SERVES, *lost("05:49:01")),
    )
    assert found.ok and not (found.also or found.cascade or found.unknown), found.first


def test_without_a_launcher_the_engine_itself_says_that_it_was_stopped(tmp_path):
    found = examined(tmp_path, n1=(*SERVES, STOPPED), n2=(*SERVES, *lost("05:49:02")))
    assert found.ok and not found.unknown, found.first


@pytest.mark.parametrize("how", ["signal SIGTERM", "exit code 143"])
def test_ranks_that_end_before_their_launcher_hears_of_it(how, tmp_path):
    found = examined(
        tmp_path, n1=(ended(0, "05:49:01", how), RECEIVED), n1_0=(*SERVES,), n1_1=(*SERVES, STOPPED)
    )
    assert found.ok, found.first


def test_what_failed_before_the_stop_has_failed(tmp_path):
    """As `kimi-nb down` after a failure, and as a launcher that ends the others."""
    found = examined(
        tmp_path,
        n1=(ended(5, "05:48:58", "signal SIGKILL"),),
        n1_0=(*SERVES, STOPPED),
        n1_5=SERVES,
        n2=(RECEIVED,),
        n2_17=(*SERVES, *lost("05:49:01")),
    )
    assert (found.first.rank, found.first.signature) == (5, "rank-died")


def test_a_rank_that_ends_without_a_word_has_failed(tmp_path):
    """Even where only the others tell of it, in the same second as its launcher stops them."""
    found = examined(
        tmp_path,
        n1_0=(*SERVES, STOPPED),
        n1_5=SERVES,
        n2_17=(*SERVES, *lost("05:49:01")),
    )
    assert not found.ok


def test_a_launcher_that_stops_the_others_after_a_failure_is_no_order(tmp_path):
    found = examined(
        tmp_path,
        n1_0=(*SERVES, STOPPED),
        n1_5=(*SERVES, *lost("05:49:01")),
        n1=(ended(5, "05:49:01", "exit code 1"),),
    )
    assert not found.ok


def test_one_rank_that_somebody_killed_has_failed(tmp_path):
    found = examined(tmp_path, n1=(ended(5, "05:49:01", "signal SIGTERM"),), n1_5=SERVES)
    assert (found.first.rank, found.first.signature) == (5, "rank-died")


def test_a_cause_of_its_own_stays_one_while_it_is_stopped(tmp_path):
    text = "RuntimeError: NPU out of memory. Tried to allocate 2 GiB"
    oom = f"(EngineCore_DP17 pid=9) ERROR 11-22 05:49:02 [core.py:1136] {text}"
    found = examined(tmp_path, n1=(RECEIVED,), n1_0=(*SERVES, STOPPED), n2_17=(*SERVES, oom))
    assert found.first.signature == "out-of-memory"


# SLURM ----------------------------------------------------------------------------------

CANCELLED = "slurmstepd: error: *** JOB 14 ON n1 CANCELLED AT 2026-11-22T05:49:02 ***"
STEP = "slurmstepd: error: *** STEP 14.0 ON n1 CANCELLED AT 2026-11-22T05:49:02 ***"
TASKS = (
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "srun: error: n2: task 1: Terminated",
)
NOTE = "INFO 11-22 05:49:01 [cluster.py:9] kimi-nb down: job 14 (vllm_kimi) is cancelled for ann@n0"


def of_job(folder: Path, *lines: str, note: str = "") -> doctor.Report:
    (folder / "vllm_kimi.14.err").write_text("".join(f"{line}\n" for line in lines))
    if note:
        (folder / "vllm_kimi.14.down.log").write_text(f"{note}\n")
    return doctor.examine(folder)


def test_a_job_that_down_cancelled_has_not_failed(tmp_path):
    lines = (*SERVES, CANCELLED, STEP, *TASKS)
    found = of_job(tmp_path, *lines, note=NOTE)
    assert found.ok and not found.unknown, found.first


def test_a_step_that_is_ended_once_it_has_served_has_not_failed(tmp_path):
    killed = (*TASKS[:1], "srun: error: n1: task 0: Killed")
    assert of_job(tmp_path, *SERVES, STEP, *killed).ok


def test_a_step_that_is_ended_before_it_serves_is_told(tmp_path):
    killed = (*TASKS[:1], "srun: error: n1: task 0: Killed")
    assert not of_job(tmp_path, "INFO 11-22 05:49:00 [core.py:1] starts", STEP, *killed).ok


@pytest.mark.parametrize("note", ["", NOTE.replace("14", "15")])
def test_a_job_that_somebody_else_cancels_once_it_has_served_is_noted(note, tmp_path):
    found = of_job(tmp_path, *SERVES, STEP, *TASKS, CANCELLED, note=note)
    assert found.ok and not (found.also or found.cascade or found.unknown), found
    (said,) = found.notes
    assert said.startswith("job 14 was cancelled (scancel) after its engine had served")


def test_a_job_that_down_cancelled_is_not_noted(tmp_path):
    assert not of_job(tmp_path, *SERVES, CANCELLED, STEP, *TASKS, note=NOTE).notes


@pytest.mark.parametrize("note", ["", NOTE.replace("14", "15")])
def test_a_job_that_somebody_else_cancels_before_it_serves_is_told(note, tmp_path):
    found = of_job(tmp_path, SERVES[0], STEP, *TASKS, CANCELLED, note=note)
    assert found.first.signature == "job-cancelled" and not (found.also or found.notes), found


def test_who_cancels_a_job_that_failed_does_not_hide_why(tmp_path):
    text = "RuntimeError: NPU out of memory. Tried to allocate 2 GiB"
    oom = f"(EngineCore_DP17 pid=9) ERROR 11-22 05:49:00 [core.py:1136] {text}"
    found = of_job(tmp_path, *SERVES, oom, STEP, *TASKS, CANCELLED)
    assert found.first.signature == "out-of-memory" and not found.also, found


def test_a_job_whose_engine_served_on_another_node_is_cancelled_by_hand(tmp_path):
    found = examined(tmp_path, n1_0=SERVES, n2=(CANCELLED, *TASKS))
    assert found.ok and len(found.notes) == 1, found


def test_a_deployment_whose_job_somebody_else_cancels_has_failed(tmp_path):
    path = tmp_path / "a3-0" / "vllm_kimi.14.err"
    path.parent.mkdir()
    path.write_text("".join(f"{line}\n" for line in (*SERVES, STEP, *TASKS, CANCELLED)))
    found = doctor.examine(tmp_path, build.plan("k2.5", "a3", layout="pd"))
    assert found.first.signature == "job-cancelled" and not found.ok
