"""Of several lines that tell of one failure the one that says most is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.diagnose import doctor

BEGUN = (
    "INFO 11-22 05:49:01 [core.py:58] Initializing a V1 LLM engine",
    "[2026-11-22 05:49:02 TP0] Init torch distributed begin.",
)


def examined(folder: Path, *lines: str) -> doctor.Report:
    path = folder / "serve.log"
    path.write_text("".join(f"{line}\n" for line in (*BEGUN, *lines)))
    return doctor.examine(path)


DEVICE = (
    "EZ9999: [PID: 912] 2026-11-22-05:49:30.641.902 The error from device(chipId:4, dieId:0), serial number "
    "is 11, there is an exception of aivec error",
    "        TraceBack (most recent call last):",
    "        synchronize stream failed, runtime result = 507035[FUNC:ReportCallError][FILE:x.cpp][LINE:161]",
)
WATCHDOG = (
    "[rank19]:[E1122 05:54:31.320117004 ProcessGroupNCCL.cpp:629] [Rank 19] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=24713, OpType=ALLREDUCE) ran for 600027 milliseconds",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "Fatal Python error: Aborted",
    "[2026-11-22 05:54:33] Received sigquit from a child proces. It usually means the child failed.",
)
KERNEL = (
    "[1874203.551947] Out of memory: Killed process 248029 (VLLM::Worker_TP) total-vm:58917324kB, "
    "anon-rss:22718640kB"
)
ASSERTION = (
    "[dec-1:604:0:609]        ud_ep.c:714  Assertion `UCT_UD_PSN_COMPARE(ep->tx.acked_psn, <, ep->tx.psn)' "
    "failed: ep 0x7f31: flags=0x28 acked_psn=5"
)
ANNOUNCED = (
    "2026-11-22T05:49:52.118Z ERROR engine.run_mp_engine: [VllmWorker:1] NIXL_ERR_BACKEND",
    "Traceback (most recent call last):",
    '  File "/opt/nixl/_api.py", line 247, in register_memory',
    "    self.agent.registerMem(reg_descs, handle_list)",
    "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND",
)
BUILD = (
    "Traceback (most recent call last):",
    '  File "/opt/flashinfer/jit/core.py", line 10, in build',
    "RuntimeError: ",
    "Ninja build failed. Ninja output:",
    "ninja: Entering directory '/root/.cache'",
)
TABLE = tuple(
    f"[ERROR] HCCL(704,python3):2026-11-22-05:49:05.706.502 [hccl_socket_manager.cc:591] [731]{said}"
    for said in (
        "   ______________LINK_ERROR_INFO______________",
        "   |  comm error, device[0] comm id[group_name_94]  |",
        "[Wait][LinkEstablish]wait socket establish timeout, role[0] rank[0] timeout[120 s]",
    )
)
CODED = (
    "[rank1]:[E1122 05:49:31.390187003 compiler_depend.ts:429] operator():compiler_depend.ts:1045 HCCL "
    "function error: HcclAllreduce, error code is 6",
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/opt/torch/distributed/distributed_c10d.py", line 2501, in all_reduce',
    "[rank1]: RuntimeError: InnerRunOpApi:OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6",
    "[rank1]: EI0006: [PID: 1305] 2026-11-22-05:49:31.388.920 Getting socket times out. Reason: no data",
)
COMPLETIONS = tuple(
    f"[1795326581.896{at}49] [prefill-0:541  :2]       srd_iface.c:221  UCX  ERROR send completion[{at}] "
    f"with error on rdmap132s0/0x55cf: {why} Error, vendor_err 0xd"
    for at, why in enumerate(("Remote Aborted", "Work Request Flushed"))
)


@pytest.mark.parametrize(
    ("lines", "telling"),
    [
        pytest.param(BUILD, BUILD[3], id="the words below an exception"),
        pytest.param(TABLE, TABLE[-1], id="what a table is about"),
        pytest.param(CODED, CODED[-1], id="what explains the code of a call"),
        pytest.param(COMPLETIONS, COMPLETIONS[0], id="the first of several completions"),
        pytest.param(DEVICE, DEVICE[0], id="a device above the calls that met it"),
        pytest.param((*WATCHDOG, "Killed"), WATCHDOG[0], id="what a launcher then killed"),
        pytest.param(
            ("Killed", "$ dmesg | tail -1", KERNEL), KERNEL, id="the kernel below a shell"
        ),
        pytest.param(
            (
                "E1122 05:49:50.118204 608 nixl_agent.cpp:1189] genNotif: backend 'UCX' returned error "
                "status NIXL_ERR_REMOTE_DISCONNECT",
                "INFO 11-22 05:49:50 [nixl_kv.py:142] Added remote agent prefill_2 with 4096 pages",
                ASSERTION,
            ),
            ASSERTION,
            id="what ended a process after it lost another one",
        ),
        pytest.param(ANNOUNCED, ANNOUNCED[-1], id="an exception that is announced by its words"),
    ],
)
def test_the_line_that_says_most_is_named(lines, telling, tmp_path):
    first = examined(tmp_path, *lines).first
    assert first is not None and first.text == telling


def test_a_process_that_is_killed_long_after_an_error_was_killed_for_another_reason(tmp_path):
    quiet = ["[2026-11-22 05:54:33] waiting"] * 20
    first = examined(
        tmp_path, "[2026-11-22 05:49:33] [ERROR] the spans were not sent", *quiet, "Killed"
    ).first
    assert first is not None and first.text == "Killed"


def test_a_chain_of_hundreds_of_frames_is_of_one_process(tmp_path):
    """As a compiler that fails while graphs are captured leaves it."""
    frames = ['  File "/opt/torch/_inductor/graph.py", line 9, in run', "    self.run()"] * 150
    ours = [
        '  File "/opt/sglang/srt/model_executor/cuda_graph_runner.py", line 298, in __init__'
    ] * 150
    first = examined(
        tmp_path,
        "[2026-11-22 05:49:31 TP3] Scheduler hit an exception: Traceback (most recent call last):",
        *frames,
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
        "OutOfResources: out of resource: shared memory, Required: 196608, Hardware limit: 65536.",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        *ours,
        "Exception: Capture cuda graph failed: backend='inductor' raised:",
        "[2026-11-22 05:49:31] Received sigquit from a child process.",
    ).first
    assert first is not None
    assert (first.rank, first.component, first.exception) == ("TP3", "jit", "BackendCompilerFailed")
