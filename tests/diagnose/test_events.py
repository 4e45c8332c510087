"""Lines joined to events, the part an event has in a failure, and which of them is the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def test_a_traceback_is_read_behind_whatever_a_program_writes_before_each_line(tmp_path):
    told = [
        "Loading the model",
        *TRACE,
        "    raise NoSuchBits(bits)",
        "ValueError: no such quantization: fp3",
        "Bye: the engine has gone",
    ]
    lines = [f"app.{at} <engine-3> 11:04:{at + 8},7 {text}" for at, text in enumerate(told)]
    first = examined(tmp_path, *lines).first
    assert first.exception == "ValueError" and first.text == lines[4]


def test_an_exception_may_have_any_name_below_a_traceback(tmp_path):
    lines = (*TRACE, "    raise OutOfBits(bits)", "OutOfBits: 3 are too few", "Exit")
    first = examined(tmp_path, *lines).first
    assert (first.exception, first.text) == ("OutOfBits", "OutOfBits: 3 are too few")


def test_what_goes_on_behind_a_cut_traceback_is_no_exception(tmp_path):
    first = examined(tmp_path, *TRACE, "INFO: 3 requests", "Exit").first
    assert first.exception == ""


def test_a_frame_is_named_only_where_nothing_else_is_told(tmp_path):
    """The head of the traceback is gone."""
    lines = [worker(1, '  File "vllm/v1/worker/x.py", line 3, in run'), worker(1, "    run()")]
    first = examined(tmp_path / "a", *lines, worker(1, "FluxError: gone", 2)).first
    assert first.text.endswith("FluxError: gone")
    first = examined(
        tmp_path / "b", *lines, "(EngineCore pid=7) ERROR 11-22 05:49:03 [core.py:7] no"
    ).first
    assert first.text.endswith("no")


def test_of_a_long_line_the_beginning_and_the_end_are_shown(tmp_path):
    line = worker(1, f"transfer failed for {'9' * 600} with KVTransferError(7): nobody answers")
    first = examined(tmp_path, line).first
    assert first.text.startswith(line[:60]) and first.text.endswith("nobody answers")
    assert len(first.text) < len(line)


def test_a_traceback_within_a_record_of_json_is_read_to_its_end(tmp_path):
    said = "\n".join(["cannot start", *TRACE, "    raise E" + "x" * 300, "FluxError: gone", ""])
    record = {"level": "ERROR", "fields": {"message": said, "thread": "x" * 300}}
    first = examined(tmp_path, json.dumps(record)).first
    assert first.exception == "FluxError" and "FluxError: gone" in first.text


@pytest.mark.parametrize(
    "line",
    [
        "vllm: error: unrecognized arguments: --no-such-option",
        "ROCm error: invalid device function",
        "CUDA failure 2: out of memory ; GPU=1 ; hostname=a ; file=/x.cc ; line=12",
        "double free or corruption (!prev)",
        "ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'",
        "nvidia-container-cli: initialization error: driver error: failed to process request",
        "/bin/sh: 1: vllm: not found",
        'time="2026-11-22T05:49:01Z" level=error msg="no room"',
        '{"log.level":"error","message":"no room"}',
        "2026/11/22 05:49:01 [error] 12#12: *1 upstream prematurely closed connection",
        "error: creating server: Internal - failed to load all models",
    ],
)
def test_what_programs_without_levels_say_is_a_failure(line, tmp_path):
    assert examined(tmp_path, "starting the engine", line).first.text == line


def test_a_complaint_is_named_only_where_nothing_else_is_told(tmp_path):
    complaint = "Failed to read the cache of kernels"
    first = examined(tmp_path / "a", complaint, worker(1, "FluxError: gone", 2)).first
    assert first.text.endswith("FluxError: gone")
    assert examined(tmp_path / "b", "starting", complaint).first.text == complaint
    up = "(APIServer pid=7) INFO:     Application startup complete."
    assert examined(tmp_path / "c", "starting", complaint, up).ok
    assert examined(tmp_path / "d", up, complaint).ok
    ready = "[2026-11-22 05:49:01] The server is fired up and ready to roll!"
    assert examined(tmp_path / "e", complaint, ready).ok
    assert examined(tmp_path / "f", complaint, *["loading"] * 80).ok


def test_the_rank_among_all_counts_before_that_in_one_group(tmp_path):
    line = (
        "[rank18]:[E1122 05:49:01.1 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=81, OpType=ALLREDUCE, Timeout(ms)=600000)"
    )
    assert examined(tmp_path, line).first.rank == 18


def test_source_code_may_have_lost_its_indent(tmp_path):
    frames = ['File "vllm/v1/worker/x.py", line 3, in run', "output = func(*args)"]
    lines = [TRACE[0], *frames, *frames, "FluxError: gone", "Exit"]
    first = examined(tmp_path, *lines).first
    assert (first.exception, first.text) == ("FluxError", "FluxError: gone")


def test_an_exception_within_a_group_is_the_one_that_counts(tmp_path):
    first = examined(
        tmp_path,
        "ERROR:    Exception in ASGI application",
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "starlette/_utils.py", line 79, in collapse_excgroups',
        "  |     yield",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "vllm/v1/worker/x.py", line 3, in run',
        "    | FluxError: gone",
        "    +------------------------------------",
    ).first
    assert first.exception == "FluxError" and first.text.endswith("FluxError: gone")


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


def test_what_another_process_only_repeats_gives_way_to_it(tmp_path):
    quoted = "RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate 4 GiB.'"
    found = examined(
        tmp_path,
        worker(1, TRACE[0]),
        worker(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4 GiB."),
        f"(EngineCore_DP0 pid=7) ERROR 11-22 05:49:01 [core.py:946] {quoted}",
    )
    assert (found.first.rank, found.first.exception) == ("TP1", "OutOfMemoryError")


def test_the_lines_of_one_file_are_in_order(tmp_path):
    found = examined(
        tmp_path,
        "E1122 05:49:01.300120  1204 rdma_transport.cpp:820] cannot reach 192.0.2.7:20010",
        "(EngineCore_DP0 pid=7) ERROR 11-22 05:49:01 [pool.py:210] get key failed: ret -800",
    )
    assert found.first.line == 1 and found.first.component == "mooncake"


def test_what_stands_above_the_first_time_came_first(tmp_path):
    found = examined(
        tmp_path,
        *(f"[rank0]: {text}" for text in (*TRACE, "RuntimeError: the flux is gone")),
        "INFO 11-22 05:49:01 [core.py:7] shutting down",
        *(f"[rank1]: {text}" for text in (*TRACE, "RuntimeError: the flux is gone")),
    )
    assert found.first.rank == 0


def test_exceptions_of_other_languages(tmp_path):
    cpp = examined(
        tmp_path / "cpp",
        "(Worker_TP6 pid=96) terminate called after throwing an instance of 'c10::AcceleratorError'",
        "(Worker_TP6 pid=96)   what():  CUDA error: unspecified launch failure",
    )
    assert (cpp.first.rank, cpp.first.exception, cpp.first.code) == (
        "TP6",
        "AcceleratorError",
        "719",
    )
    rust = examined(
        tmp_path / "rust",
        "[Router (Rust)] 2025-03-18 14:17:58 - INFO - Removed worker: http://localhost:8001",
        "thread 'actix-server worker 3' panicked at src/router.rs:512:39:",
        "called `Option::unwrap()` on a `None` value",
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
    )
    assert rust.first.component == "router" and "on a `None` value" in rust.first.cause
    go = examined(
        tmp_path / "go", "panic: assignment to entry in nil map", "", "goroutine 7 [running]:"
    )
    assert "nil map" in go.first.cause


def test_torchrun_names_the_rank_that_failed_first(tmp_path):
    found = examined(
        tmp_path,
        *TRACE,
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Failures:",
        "[1]:",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : 1 (pid: 467398)",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 5 (local_rank: 5)",
        "  exitcode  : -7 (pid: 467397)",
    )
    assert (found.first.rank, found.first.code, found.first.component) == (5, "-7", "os-limit")


def test_a_worker_that_ended_without_a_word_is_named(tmp_path):
    line = "ERROR 08-25 12:24:19 [x.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down"
    found = examined(tmp_path, f"(EngineCore_0 pid=271) {line}")
    assert (found.first.rank, found.first.label) == ("VllmWorker-1", "DP0 VllmWorker-1")


def test_what_a_daemon_says_before_the_engine_serves_is_no_failure_alone(tmp_path):
    told = "E1122 05:49:01.300120  1204 agent.cpp:8] cannot export the metrics"
    serves = "(APIServer pid=7) INFO:     Application startup complete."
    assert examined(tmp_path / "a", told, serves).ok
    assert examined(tmp_path / "b", told).first.line == 1
    after = examined(tmp_path / "c", told, serves, worker(0, "RuntimeError: the flux is gone"))
    assert not after.ok


def test_an_exception_that_is_ignored_hides_none_after_it(tmp_path):
    ray = "(RayWorkerWrapper pid=14289) "
    found = examined(
        tmp_path,
        f"{ray}Exception ignored in: <function Communicator.__del__ at 0x7f4d>",
        *(f"{ray}{text}" for text in (*TRACE, "AttributeError: no attribute 'comm'")),
        f"{ray}ERROR 04-17 09:00:33 ray_utils.py:44] Error executing method init_device.",
        *(f"{ray}ERROR 04-17 09:00:33 ray_utils.py:44] {text}" for text in TRACE),
        f"{ray}ERROR 04-17 09:00:33 ray_utils.py:44] FluxError: the flux is gone",
    )
    assert found.first.exception == "FluxError"


def test_a_library_s_answer_404_is_no_client_s_mistake(tmp_path):
    found = examined(
        tmp_path,
        "E0414 03:56:41.856248 77969 transfer_metadata_plugin.cpp:173] Unexpected code in http "
        "response, response code: 404 response body: metadata not found",
    )
    assert found.first.component == "mooncake"


def test_nats_is_where_the_parts_of_dynamo_find_each_other(tmp_path):
    """As etcd is: it has to run and to be reached, whatever the engines and the front door do."""
    frames = (
        '  File "/venv/lib/python3.12/site-packages/dynamo/frontend/main.py", line 256, in start'
    )
    for number, said in enumerate(
        (
            "Exception: Failed to connect to NATS: IO error: Connection refused (os error 111)",
            "nats.errors.NoRespondersError: nats: no responders available for request",
            "ValueError: JetStream not available",
        )
    ):
        first = examined(tmp_path / str(number), TRACE[0], frames, said).first
        assert (first.component, first.exception) == (
            "store",
            said.partition(":")[0].split(".")[-1],
        )
        assert "nats-server" in first.help
    lost = examined(tmp_path / "own", TRACE[0], frames, "KeyError: 'model'").first
    assert lost.component == "router"  # what its own code raises is of the front door


def test_a_traceback_names_the_rank_of_an_announcement_without_one(tmp_path):
    found = examined(
        tmp_path,
        "CRITICAL 11-22 05:49:01 [core_client.py:359] Got fatal signal from worker processes.",
        *(f"(VllmWorker rank=3 pid=93) {text}" for text in TRACE),
        "(VllmWorker rank=3 pid=93) FluxError: the flux is gone",
    )
    assert (found.first.exception, found.first.rank) == ("FluxError", 3)


def test_a_rank_in_the_words_of_a_named_logger_counts(tmp_path):
    found = examined(
        tmp_path,
        "2026-11-22 05:49:01,218 - flux - ERROR - agent.py:489 - Rank[2] failed.",
        *TRACE,
        "FluxError: the flux is gone",
    )
    assert (found.first.exception, found.first.rank) == ("FluxError", 2)


def test_what_another_process_of_the_npu_says_names_no_other_rank(tmp_path):
    found = examined(
        tmp_path,
        "(NPURayWorkerWrapper pid=93) ERROR 11-22 05:49:01 worker_base.py:581] "
        "RuntimeError: ACL stream synchronize failed.",
        "[ERROR] 2026-11-22-05:49:07 (PID:4711, Device:0, RankID:-1) ERR99999 UNKNOWN exception",
    )
    assert "stream synchronize" in found.first.text
    assert found.first.rank == "pid=93"


def test_a_worker_without_a_rank_takes_that_of_no_other_process(tmp_path):
    found = examined(
        tmp_path,
        "(NPURayWorkerWrapper pid=93) ERROR 11-22 05:49:01 worker_base.py:581] "
        "RuntimeError: NPU out of memory. Tried to allocate 30.00 MiB",
        "[ERROR] 2026-11-22-05:49:07 (PID:4711, Device:0, RankID:-1) ERR99999 UNKNOWN exception",
    )
    assert "out of memory" in found.first.text
    assert found.first.rank == "pid=93"


def test_what_cann_prints_below_a_warning_is_of_the_rank_that_warns(tmp_path):
    found = examined(
        tmp_path,
        "[rank5]:[W1122 05:49:01.041 NPUStream.cpp:409] Warning: NPU warning, error code is "
        "507046[Error]: ",
        "[Error]: In the specified timeout waiting event, all tasks are not completed. ",
        "        Rectify the fault based on the error information in the ascend log.",
        "EE1002: 2026-11-22-05:49:01.041.231 Stream synchronize timeout.",
    )
    assert found.first.rank == 5


def test_the_worker_of_which_ray_tells_is_named_where_nobody_else_is(tmp_path):
    found = examined(
        tmp_path,
        "ERROR 11-22 05:49:01 [core.py:387] EngineCore hit an exception: " + TRACE[0],
        "ERROR 11-22 05:49:01 [core.py:387] " + TRACE[1],
        "ERROR 11-22 05:49:01 [core.py:387] ray.exceptions.RayTaskError(FluxError): "
        "ray::RayWorkerWrapper.execute_method() (pid=93, ip=192.0.2.7, actor_id=1c)",
        "ERROR 11-22 05:49:01 [core.py:387] " + TRACE[1],
        "ERROR 11-22 05:49:01 [core.py:387] FluxError: the flux is gone",
    )
    assert (found.first.exception, found.first.rank) == ("FluxError", "pid=93")
    assert found.first.node == "192.0.2.7"


def test_the_process_that_a_parent_names_is_the_rank_of_what_it_raised(tmp_path):
    found = examined(
        tmp_path,
        *TRACE,
        "torch.multiprocessing.spawn.ProcessRaisedException:",
        "",
        "-- Process 5 terminated with the following error:",
        *TRACE,
        "FluxError: the flux is gone",
    )
    assert (found.first.exception, found.first.rank) == ("FluxError", 5)


@pytest.mark.parametrize(("pid", "rank"), ((93, "TP2"), (91, "[0]")))
def test_what_nccl_says_is_of_the_worker_of_its_process_alone(tmp_path, pid, rank):
    found = examined(
        tmp_path,
        f"h1:{pid}:405 [0] transport/net_ib.cc:199 NCCL WARN NET/IB : Got async event: port error",
        *(f"(Worker_TP2 pid=93) ERROR 11-22 05:49:02 [m.py:6] {text}" for text in TRACE),
        "(Worker_TP2 pid=93) ERROR 11-22 05:49:02 [m.py:6] FluxError: the flux is gone",
    )
    assert "port error" in found.first.text
    assert found.first.rank == rank


def test_a_pane_s_border_hides_no_exception(tmp_path):
    found = examined(
        tmp_path,
        f"[2026-11-22 05:49:01 TP7] Scheduler hit an exception: {TRACE[0]}     \u2502",
        f"\u2502 {TRACE[1]}     \u2502",
        "\u2502     flux()     \u2502",
        "\u2502 FluxError: the flux is gone     \u2502",
    )
    assert (found.first.exception, found.first.rank) == ("FluxError", "TP7")


def test_nvshmem_writes_no_level(tmp_path):
    found = examined(
        tmp_path,
        "/opt/nvshmem/src/host/topo/topo.cpp:469: [GPU 3] Peer GPU 0 is not accessible, exiting ...",
        "/opt/nvshmem/src/host/init/init.cu:998: non-zero status: 3 building transport map failed",
    )
    assert (found.first.rank, found.first.component) == (3, "deepep")


@pytest.mark.parametrize("around", ("", "[pod/decode-0-1/main] ", "Nov 22 05:49:28 n7 sgl[4711]: "))
def test_what_names_a_pod_keeps_the_rank_of_a_traceback_without_one(tmp_path, around):
    found = examined(
        tmp_path,
        f"{around}[2026-11-22 05:49:01 DP12 TP12] Scheduler hit an exception: {TRACE[0]}",
        f"{around}{TRACE[1]}",
        f"{around}FluxError: the flux is gone",
    )
    assert (found.first.exception, found.first.rank) == ("FluxError", "DP12 TP12")


def test_the_lines_of_two_pods_are_kept_apart(tmp_path):
    one, two = "[pod/decode-0-1/main] ", "[pod/decode-0-2/main] "
    found = examined(
        tmp_path,
        f"{one}[2026-11-22 05:49:01 TP1] Scheduler hit an exception: {TRACE[0]}",
        f"{two}[2026-11-22 05:49:01 TP2] Scheduler hit an exception: {TRACE[0]}",
        f"{one}{TRACE[1]}",
        f"{two}{TRACE[1]}",
        f"{one}FluxError: the flux is gone",
        f"{two}RuntimeError: so is ours",
    )
    assert (found.first.exception, found.first.rank) == ("FluxError", "TP1")


def test_a_completion_with_a_status_is_an_error_of_nccl(tmp_path):
    found = examined(
        tmp_path,
        "h1:93:405 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
        "192.0.2.7<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
        "[rank4]:[E1122 05:49:02.10 ProcessGroupNCCL.cpp:523] [Rank 4] NCCL error: remote process "
        "exited or there was a network error",
    )
    assert (found.first.line, found.first.rank) == (1, 4)


def test_a_traceback_that_is_cut_counts_with_its_last_frame(tmp_path):
    found = examined(tmp_path, worker(1, "Traceback (most recent call last):"), worker(1, TRACE[1]))
    assert found.first.rank == "TP1" and 'File "vllm/v1/worker/x.py"' in found.first.text


@pytest.mark.parametrize("before", [True, False])
def test_the_head_of_a_traceback_alone_beats_nothing(before, tmp_path):
    head = "(EngineCore_DP1 pid=70) Traceback (most recent call last):"
    lost = worker(2, "RuntimeError: Worker failed with error 'device is lost', please check")
    found = examined(tmp_path, *((head, lost) if before else (lost, head)))
    assert "device is lost" in found.first.text


@pytest.mark.parametrize("before", [True, False])
def test_what_ray_passes_on_is_told_by_the_exception(before, tmp_path):
    trace = [
        worker(3, text) for text in (*TRACE, "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND")
    ]
    passed = (
        "(EngineCore_0 pid=61) 2026-11-22 05:49:01,840\tERROR worker.py:427 -- Unhandled error "
        "(suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::RayWorkerWrapper.execute_method() "
        "(pid=611, ip=192.0.2.84, actor_id=07c1, repr=<vllm.executor.ray_utils.RayWorkerWrapper>)"
    )
    found = examined(tmp_path, *((passed, *trace) if before else (*trace, passed)))
    assert (found.first.exception, found.first.rank) == ("nixlBackendError", "TP3")


@pytest.mark.parametrize("times", [1, 2])
def test_a_limit_that_is_reached_again_is_a_failure_at_any_level(times, tmp_path):
    warned = (
        "2026-11-22 09:21:51  WARN sglang_router_rs::core::worker: src/core/worker.rs:301: accept "
        "error: Too many open files (os error 24)"
    )
    found = examined(tmp_path, *[warned] * times)
    assert found.ok if times == 1 else found.first.component == "os-limit"


@pytest.mark.parametrize("prefix", ["[my job] ", "[VLLM LOG] "])
def test_a_traceback_behind_a_prefix_in_brackets_is_one_event(prefix, tmp_path):
    lines = [*TRACE, "    flow()", "FluxError: the flux is gone"]
    found = examined(tmp_path, *(prefix + line for line in lines))
    assert found.first.exception == "FluxError" and "the flux is gone" in found.first.text
