"""Lines joined to events, the part an event has in a failure, and which of them is the first."""

from __future__ import annotations

from pathlib import Path

from kimi_nb.diagnose import doctor

TRACE = ("Traceback (most recent call last):", '  File "vllm/v1/worker/x.py", line 3, in run')


def examined(folder: Path, *lines: str, name: str = "serve.log") -> doctor.Report:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")
    return doctor.examine(folder)


def worker(rank: int, text: str, second: int = 1) -> str:
    return f"(Worker_TP{rank} pid={90 + rank}) ERROR 11-22 05:49:{second:02} [x.py:7] {text}"


def test_source_code_in_a_traceback_is_no_evidence(tmp_path):
    found = examined(
        tmp_path,
        *(worker(2, text) for text in TRACE),
        worker(2, "    raise RuntimeError('NPU out of memory. Tried to allocate')"),
        worker(2, "FluxError: the flux is gone"),
    )
    assert found.first.exception == "FluxError" and "the flux is gone" in found.first.cause
    assert (found.first.rank, found.first.confidence) == ("TP2", "seen")


def test_the_cause_of_a_chain_counts(tmp_path):
    found = examined(
        tmp_path,
        *TRACE,
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *TRACE,
        "RuntimeError: could not start",
    )
    assert found.first.exception == "ConnectionRefusedError" and found.first.code == "111"
    assert found.first.component == "network" and not found.also


def test_what_is_known_and_what_only_seen_are_told_apart(tmp_path):
    known = examined(tmp_path / "a", worker(0, "RuntimeError: NPU out of memory. Tried 1 GiB"))
    part = examined(tmp_path / "b", worker(0, "RuntimeError: Ninja build failed. Ninja output:"))
    seen = examined(tmp_path / "c", worker(0, "FluxError: gone"))
    assert [one.first.confidence for one in (known, part, seen)] == ["known", "component", "seen"]
    assert [one.first.signature for one in (part, seen)] == ["unknown", "unknown"]
    assert part.first.component == "jit" and "nvcc" in part.first.help
    fields = {"component", "signature", "confidence", "cause", "help", "node", "rank", "file"}
    assert part.as_dict()["first"].keys() >= fields | {"line", "text", "time", "exception", "code"}


def test_a_special_event_wins_over_a_general_signature(tmp_path):
    found = examined(
        tmp_path,
        worker(3, "RuntimeError: Ninja build failed. Ninja output:"),
        "(EngineCore_DP0 pid=7) ERROR 11-22 05:49:01 [core.py:9] RuntimeError: Worker failed with "
        "error 'Ninja build failed', please check the stack trace above for the root cause",
    )
    assert (found.first.rank, found.first.component) == ("TP3", "jit")


def test_ties_are_broken_by_the_first_error_of_a_process(tmp_path):
    """Worker 1 reports last, but it was the first to say that something is wrong."""
    found = examined(
        tmp_path,
        worker(1, "kernel launch is slow: giving up"),
        worker(0, "FluxError: the group is incomplete"),
        worker(1, "FluxError: the kernel has failed"),
    )
    assert found.first.rank == "TP1"


def test_a_killed_process_is_the_cause_where_nothing_else_is(tmp_path):
    found = examined(
        tmp_path,
        "(EngineCore_DP0 pid=7) ERROR 11-22 05:49:01 [core.py:9] Worker proc VllmWorker-3 died "
        "unexpectedly, shutting down executor.",
        "kernel: [812.1] Out of memory: Killed process 412 (VLLM::Worker_TP3) anon-rss:66231020kB",
    )
    assert found.first.component == "host-memory" and "Killed process" in found.first.text


def test_hccl_names_the_silent_rank(tmp_path):
    lines = (
        "[rank{0}]: RuntimeError: npuSynchronizeDevice NPU function error: AclrtSynchronizeDevice, "
        "error code is 507048",
        "[rank{0}]: EI0002: [PID: 9] 2025-10-11-15:09:34.713.335 The wait execution of the Notify "
        "register times out. Reason: The Notify register has not received the Notify record from "
        "remote rank: [24].",
    )
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}.log").write_text("\n".join(lines).format(rank) + "\n")
    found = doctor.examine(tmp_path)
    assert found.first.rank == 24 and found.first.component == "hccl"
    assert "remote rank: [24]" in found.first.text


def test_the_rank_that_does_not_wait_is_the_silent_one(tmp_path):
    for rank in range(4):
        text = "INFO 11-22 05:00:00 [x.py:1] fine"
        if rank != 2:
            text = (
                f"[rank{rank}]:[E1122 06:06:04.537131842 ProcessGroupNCCL.cpp:607] [Rank {rank}] "
                "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)"
            )
        (tmp_path / f"rank_{rank}.log").write_text(text + "\n")
    assert doctor.examine(tmp_path).first.rank == 2


def test_a_native_line_belongs_to_the_rank_that_tells_of_it(tmp_path):
    found = examined(
        tmp_path,
        "E1122 05:49:01.133715 203020 transfer_task.cpp:305] Failed to complete transfers",
        *(worker(2, text, 2) for text in TRACE),
        worker(2, "AssertionError", 2),
    )
    assert found.first.rank == "TP2" and found.first.component == "mooncake"


def test_cann_prints_one_failure_in_many_lines(tmp_path):
    found = examined(
        tmp_path,
        *TRACE,
        "RuntimeError: init NPU function error: aclrtGetDeviceCount(&n), error code is 207004",
        "[ERROR] 2025-11-18-09:33:13 (PID:42, Device:-1, RankID:-1) ERR00100 PTA call acl api failed",
        "[Error]: The device is unavailable.",
        "        Check whether the device is running properly.",
        "EE1001: [PID: 42] 2025-11-18-09:33:13.673.064 The argument is invalid.",
    )
    assert (found.first.code, found.first.component) == ("207004", "device")
    assert not found.also and "npu-smi" in found.first.help


def test_a_failed_request_that_the_engine_survives_is_no_failure(tmp_path):
    lines = (
        "(APIServer pid=7) ERROR 11-22 05:49:01 [serving_chat.py:9] Error in chat completion stream",
        *(f"(APIServer pid=7) ERROR 11-22 05:49:01 [serving_chat.py:9] {text}" for text in TRACE),
        "(APIServer pid=7) ERROR 11-22 05:49:01 [serving_chat.py:9] IndexError: list index",
    )
    goes_on = "(APIServer pid=7) INFO 11-22 05:49:09 [loggers.py:1] Avg prompt throughput: 41.2"
    assert examined(tmp_path / "a", *lines, goes_on).ok
    assert examined(tmp_path / "b", *lines).first.exception == "IndexError"


def test_an_engine_that_was_told_to_stop_has_not_failed(tmp_path):
    stop = (
        "(APIServer pid=7) INFO 11-22 05:49:00 [x.py:1] [shutdown] API server: shutdown triggered"
    )
    dead = (
        "(APIServer pid=7) ERROR 11-22 05:49:01 [async_llm.py:9] vllm.v1.engine.exceptions."
        "EngineDeadError: EngineCore encountered an issue."
    )
    assert examined(tmp_path / "a", stop, dead).ok
    serves = "(APIServer pid=8) INFO:     Application startup complete."
    assert not examined(tmp_path / "b", stop, serves, dead).ok, "it was started again"


def test_kubernetes_and_slurm(tmp_path):
    for at, (line, component) in enumerate(
        (
            ("    Reason:       OOMKilled", "host-memory"),
            ("srun: error: n7: task 3: Out Of Memory", "host-memory"),
            ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x DUE TO NODE FAILURE ***", "slurm"),
            ("JobId=7 JobState=NODE_FAIL Reason=NodeDown NodeList=n1", "slurm"),
            ("decode-0   0/1   CrashLoopBackOff   6   10m", "kubernetes"),
        )
    ):
        found = examined(tmp_path / str(at), line)
        assert found.first is not None and found.first.component == component, (line, found.first)
