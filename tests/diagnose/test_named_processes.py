"""Which process a failure names, in the forms of launchers, engines and libraries."""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import doctor

TRACE = (
    "Traceback (most recent call last):",
    '  File "/opt/serve.py", line 3, in <module>',
    "RuntimeError: bad shard",
)
CORE = "(EngineCore_DP{dp} pid=301) ERROR 09-21 11:04:11 [core.py:712] "
FATAL = (
    "EngineCore encountered a fatal error.",
    "Traceback (most recent call last):",
    '  File "/opt/vllm/v1/executor/multiproc_executor.py", line 300, in get_response',
)
SCHEDULER = (
    "[2026-10-23 19:30:50 TP{at}] Init torch distributed begin.",
    "[2026-10-23 19:30:57 TP{at}] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/opt/sglang/srt/managers/scheduler.py", line 2311, in run_scheduler_process',
    "RuntimeError: NCCL error: unhandled system error",
)
# What a launcher puts before each line of a process, and the name of that process.
BEFORE = {
    "12: ": "12",
    " 3: ": "3",
    "[1,3]<stderr>:": "3",
    "[prterun-n1-51@1,3]<stderr>: ": "3",
    "[3] ": "3",
    "[default3]:": "3",
    "[worker5]:": "5",
    "[rank2]: ": "2",
    "node-2: ": "node-2",
    "prefill: ": "prefill",
    "05:49:20 prefill.1 | ": "prefill.1",
    "[worker-1:pytorch] ": "worker-1",
    "vllm-0 \u203a vllm ": "vllm-0",
    '{"pod":"vllm-0","container":"vllm"} ': "vllm-0",
    "worker_1: ": "worker_1",
    "vllm-0-1 vllm-worker ": "vllm-0-1",
    "(WorkerDict pid=616) ": "pid=616",
    "(ServeReplica:llm:vllm pid=812, ip=192.0.2.8) ": "ip=192.0.2.8",
    "(VLLMEngine pid=359) (Worker pid=530) (Worker pid=538) ": "pid=538",
    "vllm-decode-1   | ": "vllm-decode-1",
}
# A line, and the process that it names.
LINES = {
    "(DPCoordinator pid=98) ERROR 11-22 05:49:20 [coordinator.py:120] ValueError: no": "DPCoordinator",
    "[2] [TensorRT-LLM][ERROR] Assertion failed: hasRank (/src/mpiUtils.cpp:120)": "2",
    "2026-11-22 05:49:20,123 - lmdeploy - ERROR - a.py:7 - Task <Loop> failed, rank[2]: RuntimeError": "2",
    "[2026-11-22 05:49:20.123+08:00] [411] [281] [server] [ERROR] [slave.cpp:21] : Failed to init "
    "model, rankId: 6, ret = -1": "6",
    "[ERROR] HCCL(3412,python3):2026-11-22-05:49:20.123.456 [hccl_comm.cc:120] [3500][InitCollComm] "
    "errNo[0x05] call trace: ret -> 4, rank[6], dev[2]": "6",
    "ERROR 03-12 15:02:44 [worker.py:300] No device (local_rank=3): RuntimeError: CUDA error": "3",
    "[2026-01-30 10:00:01] Mooncake failed to register memory for dp_rank=0 tp_rank=0 pp_rank=2: "
    "error code -1": "DP0 TP0 PP2",
    "(autoscaler +2m1s) 3 tasks were killed due to memory pressure (OOM), node ip=192.0.2.26.": (
        "ip=192.0.2.26"
    ),
    "2 workers were killed due to memory pressure (OOM), node ip 192.0.2.27. See below.": "ip=192.0.2.27",
    "2025-11-25 08:13:11 ERROR http_request{id=7}: sglang_router_rs::routers: src/router.rs:588: "
    "Failed to send typed request worker_url=http://192.0.2.12:8002 route=/v1 error=x": "ip=192.0.2.12:8002",
    "[2026-11-22 05:49:20] Subprocess scheduler_2 (pid=512) crashed with exit code -9.": "scheduler_2",
    "ERROR 07-26 14:50:35 [utils.py:120] Worker VllmWorkerProcess pid 2142 died, exit code: -11": "pid=2142",
    "2026-09-15 13:02:43,123 - rank3 - ERROR - RuntimeError: no": "3",
    "srun: error: gpu-7: tasks 8-15: Exited with exit code 1": "gpu-7",
    "=   PID 3412 RUNNING AT gpu-7": "gpu-7",
    "/src/nvshmem/init.cu:init:1021: nvshmem initialization failed [PE 5], exiting": "5",
    '{"ts": "11-22", "level": "error", "rank": 3, "msg": "worker failed: no"}': "3",
    '{"ts": "11-22", "level": "error", "pod": "vllm-0-1", "msg": "worker failed: no"}': "vllm-0-1",
    "ERROR 09-15 13:02:43 [worker.py:870] [NPU:3] RuntimeError: no": "NPU:3",
    "RuntimeError: CUDA error: an illegal memory access was encountered on device cuda:3": "cuda:3",
    "RuntimeError: [address=192.0.2.7:38251, pid=86] CUDA error: no": "ip=192.0.2.7:38251",
    "torch.multiprocessing.spawn.ProcessExitedException: process 4 terminated with signal SIGSEGV": "4",
    "2026-05-08T03:22:52Z ERROR engine.run: [PrefillWorker:1] RuntimeError: no": "PrefillWorker:1",
    "2026-11-22 05:49:20,123 - lmdeploy - ERROR - a.py:7 - worker 3 failed: RuntimeError: no": "3",
    "E1122 05:49:20.123456 412 a.cc:1186] failed to load 'm': Internal: rank 2 failed": "2",
    "[2026-11-22 05:49:20.123+08:00] [411] [281] [llm] [ERROR] [a.py:2] : rank_id 6 init failed": "6",
    "RuntimeError: Native API failed: -5 (PI_ERROR_OUT_OF_RESOURCES) on xpu:3": "xpu:3",
    '{"severity": "ERROR", "message": "raylet marked dead", "host_name": "gpu-07"}': "gpu-07",
    "[2026-11-22 05:49:12] Scheduler or DataParallelController 812 terminated with -9": "pid=812",
    "[2026-11-22 05:49:12] DetokenizerManager hit an exception: ValueError: no": "DetokenizerManager",
    "[1742985552.117305] [h20:7722 :1]  tcp_ep.c:1260 UCX  ERROR tcp_ep 0x7f: send(118) failed": "h20:7722",
}


def first(folder, *lines):
    path = folder / "serve.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return doctor.examine(path).first


def named(found):
    return {str(found.rank), found.label}


@pytest.mark.parametrize("before", BEFORE)
def test_what_a_launcher_puts_before_a_line_names_its_process(before, tmp_path):
    found = first(tmp_path, *[before + line for line in TRACE])
    assert found.text.endswith(TRACE[-1]) and BEFORE[before] in named(found)


@pytest.mark.parametrize("line", LINES)
def test_a_line_names_its_process(line, tmp_path):
    found = first(tmp_path, line)
    assert found.text == line and LINES[line] in named(found), found


@pytest.mark.parametrize(
    ("said", "dp", "rank"),
    [
        ("RuntimeError: Worker_TP1 failed with error 'CUDA error: ECC'", 0, "TP1"),
        ("RuntimeError: Worker_TP1 failed with error 'CUDA error: ECC'", 2, "DP2 TP1"),
        ("RuntimeError: Worker (TP1) raised: CUDA error: ECC", 0, "TP1"),
        ("RuntimeError: Worker_DP3_TP1 failed with error 'CUDA error: ECC'", 3, "DP3_TP1"),
        ("RuntimeError: no worker of TP1 is meant", 2, "2"),
    ],
)
def test_an_engine_names_the_worker_of_which_it_tells(said, dp, rank, tmp_path):
    found = first(tmp_path, *[CORE.format(dp=dp) + line for line in (*FATAL, said)])
    assert found.text.endswith(said) and str(found.rank) == rank


@pytest.mark.parametrize(
    ("title", "rank"), [("VLLM::Worker_TP1", "TP1"), ("sglang::scheduler_DP1_TP3", "DP1_TP3")]
)
def test_frames_of_cpp_name_a_process_by_its_title(title, rank, tmp_path):
    found = first(
        tmp_path,
        "(Worker_TP0 pid=411) INFO 06-07 11:02:10 [a.py:2] Starting to load model",
        "terminate called after throwing an instance of 'c10::AcceleratorError'",
        "  what():  CUDA error: an illegal memory access was encountered",
        *[f"frame #{at}: <unknown function> + 0x2 (0x7f in /a.so)" for at in range(40)],
        f"frame #40: Py_RunMain + 0x3c4 (0x55d9 in {title})",
        CORE.format(dp=0) + "Worker proc died unexpectedly, shutting down executor.",
    )
    assert "illegal memory" in found.text and (found.rank, found.label) == (
        rank,
        rank.replace("_", " "),
    )


@pytest.mark.parametrize(
    "line",
    [
        "[812.1] VLLM::Worker_TP[412]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so[7f]",
        "kernel: [812.1] Memory cgroup out of memory: Killed process 412 (VLLM::Worker_TP) total-vm:1kB",
        "[812.1] NVRM: Xid (PCI:0000:81:00): 79, pid=412, name=VLLM::Worker_TP, GPU has fallen off.",
        "E1122 05:49:20.123456   412 worker_pool.cpp:281] Worker: Process failed for slice (opcode: 1)",
        "[pod-a:412  :1:900] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_1:1/RoCE",
    ],
)
@pytest.mark.parametrize("far", [0, 400_000])
def test_a_number_of_a_process_is_named_by_what_it_said_before(line, far, tmp_path):
    info = "(Worker_TP{at} pid={pid}) INFO 08-18 10:00:00 [loader.py:80] reading"
    found = first(
        tmp_path,
        *[info.format(at=at, pid=411 + at) for at in range(4)],
        *["INFO 08-18 10:00:01 [a.py:7] up"] * (far // 10),
        line,
        CORE.format(dp=0) + "Worker proc died unexpectedly, shutting down executor.",
    )
    assert found.text == line and found.rank == "TP1"


def test_a_number_that_two_hosts_have_is_not_taken_for_that_of_the_other(tmp_path):
    found = first(
        tmp_path,
        "[pod/a-1/vllm] (Worker_TP9 pid=412) INFO 08-18 10:00:00 [loader.py:80] reading",
        "pod-a:412:500 [3] NCCL WARN Call to connect to 192.0.2.9<43111> failed : No route to host",
    )
    assert found.rank == "[3]"


def test_numbers_of_thousands_of_digits_name_nothing(tmp_path):
    number = "4" * 9000
    found = first(
        tmp_path,
        f"(RayWorkerWrapper pid={number}) ERROR 02-12 19:57:26 [a.py:5] RuntimeError: rank_id={number}",
        f"(RayWorkerWrapper pid={number}, ip=192.0.2.2) INFO 02-12 19:57:27 [a.py:5] up",
    )
    assert found is not None


@pytest.mark.parametrize(
    "device", ["pod-8z:277:509 [7] /opt/net_ib.cc:17 ", "[7] /opt/net.cc:201 "]
)
def test_what_nccl_says_of_a_device_is_of_no_rank_that_is_on_another(device, tmp_path):
    warns = f"{device}NCCL WARN Call to connect to 192.0.2.9<43111> failed : No route to host"
    begins, *fails = (line.format(at=0) for line in SCHEDULER)
    found = first(tmp_path, begins, warns, *fails)
    assert found.text == warns and found.rank == "[7]"
    begins, *fails = (line.format(at=7) for line in SCHEDULER)
    assert first(tmp_path, begins, warns, *fails).rank == "TP7"


def test_a_process_without_a_name_has_the_only_rank_that_is_told(tmp_path):
    told = "INFO 11-12 14:00:11 [parallel_state.py:1165] rank {} in world size 16 is assigned as TP rank"
    fails = "E20251112 14:02:40.129794 73020 master_client.cpp:146] RPC call failed: no answer"
    assert first(tmp_path, told.format(9), fails).rank == 9
    assert first(tmp_path, told.format(9), told.format(8), fails).rank is None


def test_gloo_tells_the_rank_of_its_process(tmp_path):
    told = "(WorkerDict pid={}) [Gloo] Rank {} is connected to 3 peer ranks. Expected number is : 3"
    found = first(
        tmp_path,
        *[told.format(500 + at, at) for at in range(4)],
        *[f"(WorkerDict pid=502) {line}" for line in TRACE],
    )
    assert (found.rank, found.label) == (2, "WorkerDict pid=502")


def test_launchers_name_the_process_that_ended_in_a_table(tmp_path):
    table = (
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "the job to be terminated. The first process to do so was:",
        "",
        "  Process name: [[41233,1],5]",
        "  Exit code:    1",
    )
    assert first(tmp_path, *table).rank == 5
    trace = [f"  {line}" for line in TRACE[1:]]
    table = (
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-05-21_15:43:03",
        "  host      : node-5",
        "  rank      : 9 (local_rank: 1)",
        "  exitcode  : 1 (pid: 14750)",
        "  error_file: /tmp/error.json",
        "  traceback : Traceback (most recent call last):",
        *trace,
    )
    found = first(tmp_path, *table)
    assert found.rank == 9 and found.text == trace[-1].strip()


def test_a_traceback_is_of_the_process_that_is_named_above_it(tmp_path):
    assert first(tmp_path, "Process SpawnProcess-1:", *TRACE).rank == "SpawnProcess-1"
    assert first(tmp_path, "Process SpawnProcess-1:", "", *TRACE).rank is None


def test_what_the_engine_announces_is_of_the_worker_whose_traceback_it_is(tmp_path):
    where = "ERROR 03-21 05:31:41 multiproc_worker_utils.py:242] "
    announced = f"{where}Exception in worker VllmWorkerProcess while processing method load."
    found = first(
        tmp_path, announced, *[f"(VllmWorkerProcess pid=76) {where}{line}" for line in TRACE]
    )
    assert named(found) == {"pid=76", "VllmWorkerProcess pid=76"} and TRACE[-1] in found.text


def test_a_timeout_that_is_quoted_names_its_rank(tmp_path):
    found = first(tmp_path, "> DeepEP timeout check failed: rank = 6, thread = 0, value = 0)")
    assert found.rank == 6 and found.component == "deepep"


def test_a_failed_probe_announces_no_traceback(tmp_path):
    probe = "2025-12-12T19:45:10.220744Z ERROR tower_http::trace: 503 Service Unavailable uri=/live"
    assert first(tmp_path, probe, *TRACE).text == TRACE[-1]


def test_a_title_above_a_traceback_counts_more_than_a_neighbour_that_fails_later(tmp_path):
    found = first(tmp_path, "Process Process-6:", *TRACE, *[one.format(at=0) for one in SCHEDULER])
    assert TRACE[-1] in found.text and named(found) == {"Process-6"}


def test_a_worker_is_known_by_its_number_though_a_title_follows(tmp_path):
    worker = "(VllmWorkerProcess pid=93) ERROR 07-19 14:22:51 [a.py:7] "
    died = "ERROR 07-19 14:22:53 [b.py:120] Worker VllmWorkerProcess pid 93 died, exit code: -15"
    lines = [worker + line for line in ("Exception in worker", *TRACE)]
    found = first(tmp_path, *lines, died, "Process SpawnProcess-1:", *TRACE)
    assert found.rank == "pid=93" and found.line <= len(lines)


def test_an_engine_tells_the_worker_of_ray_of_which_nothing_else_is_known(tmp_path):
    task = "ray.exceptions.RayTaskError(AssertionError): ray::RayWorkerWrapper.run() (pid=44, ip=192.0.2.2)"
    lines = (*FATAL, task, '  File "/opt/vllm/gemma3.py", line 416, in forward', "AssertionError")
    found = first(tmp_path, *[CORE.format(dp=1) + line for line in lines])
    assert (found.rank, found.label) == ("pid=44", "DP1 pid=44, ip=192.0.2.2")


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("Nov 22 05:49:28 infer-04 vllm[518]: ImportError: no libcudart", "infer-04"),
        ("vllm-1  | RuntimeError: Failed to infer device type", "vllm-1"),
        ("prefill: ValueError: invalid literal", "prefill"),
        (
            "(RayWorkerWrapper pid=7, ip=192.0.2.3) ERROR 11-22 05:49:20 [a.py:7] ValueError: no",
            "serve",
        ),
        ("RuntimeError: Failed to infer device type", "serve"),
    ],
)
def test_in_the_only_log_the_host_that_a_line_names_is_the_node(line, node, tmp_path):
    assert first(tmp_path, line).node == node
    (tmp_path / "other.log").write_text("INFO 11-22 05:49:08 [a.py:7] up\n")
    assert doctor.examine(tmp_path).first.node == "serve"
