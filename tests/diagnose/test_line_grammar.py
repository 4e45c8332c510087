"""One line of a log: who speaks, as which rank, how gravely, and what."""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import line_grammar

# line: rank, level, speaker, what is said
LINES = {
    "(VllmWorker rank=5 pid=8) ERROR 08-28 02:33:28 [core.py:634] no": (5, "ERROR", "VllmWorker"),
    "(VllmWorker TP6 pid=8) ERROR 08-28 02:33:28 [core.py:634] no": ("TP6", "ERROR", "VllmWorker"),
    "(Worker_TP4 pid=8) WARNING 08-28 02:33:28 [core.py:634] no": ("TP4", "WARNING", "Worker"),
    "(Worker_DP3_TP2_EP14 pid=8) ERROR 08-28 02:33:28 [core.py:6] no": (
        "DP3_TP2_EP14",
        "ERROR",
        "Worker",
    ),
    "(Worker_DP6_EP6 pid=8) ERROR 08-28 02:33:28 [core.py:6] no": (6, "ERROR", "Worker"),
    "(Worker_PP1_TP2 pid=8) ERROR 08-28 02:33:28 [core.py:6] no": ("PP1_TP2", "ERROR", "Worker"),
    "(EngineCore_DP0 pid=3) (Worker_TP3 pid=8) ERROR 08-28 02:33:28 [core.py:6] no": (
        "TP3",
        "ERROR",
        "Worker",
    ),
    "(EngineCore_DP2 pid=3) (Worker_TP3 pid=8) ERROR 08-28 02:33:28 [core.py:6] no": (
        "DP2 TP3",
        "ERROR",
        "Worker",
    ),
    "(EngineCore_DP0 pid=3) (RayWorkerWrapper pid=8, ip=192.0.2.8) ERROR 08-28 02:33:28 [a.py:6] no": (
        "ip=192.0.2.8",
        "ERROR",
        "RayWorkerWrapper",
    ),
    "(EngineCore_DP0 pid=3) (RayWorkerProc rank=7 pid=8) ERROR 08-28 02:33:28 [a.py:6] no": (
        7,
        "ERROR",
        "RayWorkerProc",
    ),
    "DeepEP timeout for combine receiver, rank 9, no": (9, "", ""),
    "(EngineCore_3 pid=8) ERROR 08-28 02:33:28 [core.py:6] no": (3, "ERROR", "EngineCore"),
    "(RayWorkerWrapper pid=7, ip=192.0.2.8) ERROR 08-28 02:33:28 x.py:6] no [repeated 7x across "
    "cluster] (Ray deduplicates logs)": ("ip=192.0.2.8", "ERROR", "RayWorkerWrapper"),
    "[rank4]:[E1001 16:06:04.537131842 ProcessGroupNCCL.cpp:607] [Rank 4] no": (4, "ERROR", ""),
    "[2025-03-09 00:57:15 DP4 TP4] no": ("DP4 TP4", "", ""),
    "h1:16:21 [3] misc/shm.cc:112 NCCL WARN no": ("[3]", "WARNING", "NCCL"),
    "[ERROR] 2026-05-08-03:20:31 (PID:758, Device:9, RankID:-1) no": (9, "ERROR", ""),
    "[ERROR] HCCL(7,python):2026-11-22-05:49:28.123.456 [x.cc:1][9]no": (None, "ERROR", "HCCL"),
    "E0724 03:14:20.698112 104002 worker_pool.cpp:289] no": (None, "ERROR", ""),
    "[1745499308.854013] [h1:760  :0]  ib_device.c:1332 UCX  ERROR   no": (None, "ERROR", "UCX"),
    "[11/21/2024-10:26:10] [TRT-LLM] [RANK 2] [E] no": (2, "ERROR", "TRT-LLM"),
    "2025-05-16T04:56:18.119Z ERROR no": (None, "ERROR", ""),
    "2025-02-16 19:30:35,539 WARNING worker.py:2074 -- no": (None, "WARNING", ""),
    "(raylet) [2025-04-02 15:02:00,117 E 135 135] (raylet) node.cc:30: no": (
        None,
        "ERROR",
        "raylet",
    ),
    "[E ProcessGroupNCCL.cpp:475] [Rank 4] no": (4, "ERROR", ""),
    "E20251222 18:59:31.900412 281468 client_service.cpp:1301] no": (None, "ERROR", ""),
    "[2022-02-16 12:46:52,789 C 149 149] node_manager.cc:170: no": (None, "FATAL", ""),
    "[h1:13210:0:13210]    ud_iface.c:732  UCX Fatal: no": (None, "FATAL", "UCX"),
    "2025-07-30 00:10:41 ERROR sglang_router_rs::pd: src/pd_router.rs:640: no": (
        None,
        "ERROR",
        "router",
    ),
    "[Router (Rust)] 2025-03-18 14:17:58 - WARN - no": (None, "WARNING", "router"),
    '{"time":"2025-10-08T13:03:56Z","level":"ERROR","message":"no"}': (None, "ERROR", ""),
    "Mon Jul  2 19:35:38 2018[1,936]<stdout>:no": (936, "", ""),
    "(EngineCore pid=7) ERROR 08-25 12:24:19 [m.py:6] Worker proc VllmWorker-6 died, no": (
        "VllmWorker-6",
        "ERROR",
        "EngineCore",
    ),
    "DeepEP timeout check failed: rank = 6, no": (6, "", ""),
    "DeepEP dispatch CPU timeout, rank 3, no": (3, "", ""),
    "[2026-05-21 16:41:11 DP0 ATTN_CP7 MOE_DP1 TP7] no": ("DP0 ATTN_CP7 MOE_DP1 TP7", "", ""),
    "[16:41:11 TP7] no": ("TP7", "", ""),
    "[DP1 TP3] no": ("DP1 TP3", "", ""),
    "[gpu=3] no": ("[3]", "", ""),
    "[Rank 3/8] no": (3, "", ""),
    "RANK 3 no": (3, "", ""),
    "rank3: no": (3, "", ""),
    "FluxError: Rank 3 has no": (3, "", ""),
    "the flux on rank 3 is no": (3, "", ""),
    "the flux of remote rank: 3, no": (None, "", ""),
    "[3] is setting up NCCL communicator with no": (3, "", ""),
    "[TRT-LLM] [RANK 2] [E] no": (2, "ERROR", "TRT-LLM"),
    "Abort(37) on node 5 (rank 5 in comm 0): Fatal error in PMPI_Init: no": (5, "", ""),
    "prterun noticed that process rank 48 with PID 7 on node h1 said no": (48, "", ""),
    "=   RANK 3 PID 123 RUNNING AT no": (3, "", ""),
    "[h1:167] *** Process received signal, no": (None, "", ""),
    "[ERROR] HCCL(7,python):2026-11-22-05:49:28.123.456 [x.cc:1][9][Init][Rank]rank[5] no": (
        5,
        "ERROR",
        "HCCL",
    ),
    "[ERROR] HCCL(7,python):2026-11-22-05:49:28.123.456 [x.cc:1]remote rank:[4], rankId[5] no": (
        5,
        "ERROR",
        "HCCL",
    ),
    "[ERROR] RUNTIME(7,python):2026-11-22-05:49:28.123.456 [x.cc:1]9 device_id=6, no": (
        "[6]",
        "ERROR",
        "RUNTIME",
    ),
    "[ERROR] TDT(7,python):2026-11-22-05:49:28.123.456 [x.cpp:1]deviceLogicId[2] no": (
        "[2]",
        "ERROR",
        "TDT",
    ),
    "(VllmWorkerProcess pid=7) ERROR 08-28 02:33:28 x.py:6] NPU out of memory (NPU 6; no": (
        "NPU 6",
        "ERROR",
        "VllmWorkerProcess",
    ),
    "ERROR 01-29 08:37:48 [c.py:5] Engine core proc EngineCore_DP1 died, no": (1, "ERROR", ""),
    "ERROR 01-29 08:37:48 [c.py:5] Process ApiServer_2 (PID: 359) died, no": (2, "ERROR", ""),
    "(EngineCore pid=7) ERROR 08-25 12:24:19 [m.py:6] Worker proc Worker_TP3 died, no": (
        "TP3",
        "ERROR",
        "EngineCore",
    ),
    "(raylet) The node with address: 192.0.2.7 and node name: h7 has been marked dead, no": (
        "ip=192.0.2.7",
        "",
        "raylet",
    ),
    "[12-16 14:27:08] Rank 2 scheduler says no": (2, "", ""),
    "[vllm]: (VllmWorker rank=1 pid=9) ERROR 08-28 02:33:28 [a.py:6] no": (
        1,
        "ERROR",
        "VllmWorker",
    ),
    "[ERROR] Traceback says no": (None, "ERROR", ""),
    "-- Process 5 terminated with the following error: no": (5, "", ""),
    "/opt/nvshmem/src/host/topo/topo.cpp:469: [GPU 3] Peer GPU 0 no": (3, "", ""),
    "(VllmWorkerProcess pid=7) ERROR 08-28 02:33:28 x.py:6] GPU 3 has a total capacity of no": (
        "GPU 3",
        "ERROR",
        "VllmWorkerProcess",
    ),
    "(Worker_PP1) ERROR 08-28 02:33:28 [core.py:634] no": ("PP1", "ERROR", "Worker"),
    "(VllmWorker TP3 pid=8, ip=192.0.2.8) ERROR 08-28 02:33:28 [core.py:634] no": (
        "TP3",
        "ERROR",
        "VllmWorker",
    ),
    "[ERROR] HCCL(8,):2026-06-17-02:21:43.853.333 [transport_manager.cc:954] [86231]Transport init "
    "error! createLink para:rank[7]-localUserrank[7], remoteRank[15]-remoteUserrank[15], no": (
        7,
        "ERROR",
        "HCCL",
    ),
    "slurmstepd: error: no": (None, "ERROR", "slurmstepd"),
    "[1,3]<stderr>:no": (3, "", ""),
    "ERROR 11-23 06:04:02 [launch_online_dp.py:288] rank 31 failed: no": (31, "ERROR", ""),
}
# What is put around a line changes nothing of what it says.
AROUND = (
    "[pod/vllm-decode-0/main] ",
    "ms-decode-6c8f9c4df6-vh88z vllm ",
    "vllm-1  | ",
    "vllm  | ",
    "May 16, 2026 @ 20:44:55.560    ",
    "2026-11-22T05:49:28.123456789Z stderr F ",
    "2026-11-22T05:49:28.123456789Z ",
    "2026-11-22 05:49:28 EST | ",
    "2026-11-22T05:49:28+08:00\t",
    "[2026-11-22T05:49:28Z] ",
    "2026-11-22 05:49:28,693 - __main__ - INFO - ",
    "2026-11-22 05:49:28.753 [Info] (Process) ",
    "[RAW SERVER] ",
    "[my job 7: out] ",
    "  | ",
    "stderr: ",
    "[36m",
    "ESC[36m",
    "Nov 22 05:49:28 node-7 vllm[4711]: ",
)


@pytest.mark.parametrize("line", LINES)
def test_a_line(line):
    said = line_grammar.of(line)
    assert (said.rank, said.level, said.speaker) == LINES[line]
    assert said.text.endswith("no"), said


@pytest.mark.parametrize("around", AROUND)
def test_what_wraps_a_line(around):
    inner = "(Worker_DP3_TP2 pid=9) ERROR 11-22 05:49:28 [multiproc_executor.py:7] RuntimeError: no"
    said = line_grammar.of(around + inner)
    assert (said.rank, said.label, said.level) == ("DP3_TP2", "DP3 TP2", "ERROR")
    assert (said.source, said.text) == ("multiproc_executor.py:7", "RuntimeError: no")


def test_the_innermost_speaker_counts():
    said = line_grammar.of(
        "(APIServer pid=1) (EngineCore_DP6 pid=2454) (Worker_DP6_EP6 pid=2516) ERROR 10-30 17:32:00 "
        "[v1/executor/multiproc_executor.py:671] RuntimeError: no"
    )
    assert (said.speaker, said.rank, said.label) == ("Worker", 6, "DP6 EP6")


def test_a_docker_log_in_json():
    line = '{"log":"(Worker_TP1 pid=8) ERROR 08-28 02:33:28 [a.py:6] no\\n","stream":"stderr"}'
    assert line_grammar.of(line).rank == "TP1"


def test_lines_of_json_are_read_by_their_keys():
    said = line_grammar.of(
        '{"level":"error","ts":"x","caller":"a/b.go:12","msg":"no","err":"gone"}'
    )
    assert (said.level, said.source, said.text) == ("ERROR", "a/b.go:12", "no: gone")
    nested = line_grammar.of('{"level":"WARN","fields":{"message":"slow"},"target":"a::b"}')
    assert (nested.level, nested.text, nested.calm) == ("WARNING", "slow", True)


DRAWN = "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.17s/it]"
BEGUN = (
    "(Worker_TP1 pid=9) ERROR 08-28 02:33:28 [a.py:6] FluxError: no",
    "[rank5]:[E226 11:16:37.121617583 ProcessGroupNCCL.cpp:616] [Rank 5] no",
    "[2026-08-04 14:43:00 DP4 TP4 EP4] Scheduler hit an exception: no",
    "ERROR 08-28 02:33:28 [a.py:6] no",
)


@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize(
    "before", [DRAWN, "Extension modules: numpy.core._multiarray_umath, PIL._imaging", DRAWN + "\r"]
)
def test_a_line_begins_where_an_engine_began_it(before, begun):
    assert line_grammar.own(before + begun) == begun


@pytest.mark.parametrize(
    "line",
    (
        *BEGUN,
        DRAWN + " (Worker_TP1 pid=9) is what it waits for",
        "(Worker_TP1 pid=9) ERROR 08-28 02:33:28 [a.py:6] FluxError(Worker_TP2 pid=9) no",
        "FluxError: the flux is gone for good, it is.[rank5]:no",
        '{"log":"as long as a bar.(Worker_TP1 pid=9) ERROR 08-28 02:33:28 [a.py:6] no"}',
    ),
)
def test_a_line_that_was_begun_before_is_left_alone(line):
    assert line_grammar.own(line) == line


def test_plain_text_is_left_alone():
    for line in ("", '  File "x.py", line 3', "bread and butter", "{not json"):
        assert line_grammar.of(line).text == line


@pytest.mark.parametrize(
    "line",
    (
        '\u2502   File "a.py", line 7, in run                \u2502',
        "\u2502 FluxError: the flux is gone           \u2502",
        "\u2502 [2026-11-22 05:49:28 TP4] FluxError   \u2502",
    ),
)
def test_the_border_of_a_terminal_says_nothing(line):
    assert "\u2502" not in line_grammar.of(line).text
    drawn = "\u2502 /opt/flux.py:7 in run                 \u2502"
    assert line_grammar.of(drawn).text.startswith("\u2502")  # a row of a traceback's box
