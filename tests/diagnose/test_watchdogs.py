"""What torch's monitors say late beats neither the watchdog that timed out nor the first error."""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import doctor

TIMED_OUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
ILLEGAL = (
    "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access"
)
DETECTED = (
    "Exception (either an error or timeout) detected by watchdog at work: 812, last enqueued NCCL "
    "work: 812, last completed NCCL work: 811."
)
LATE = (
    "First PG on this rank that detected no heartbeat of its watchdog.",
    "Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
    "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
    'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too '
    "early), with error: failed to recv, got 0 bytes",
    "Received a dump signal due to a collective timeout from  rank 5 and we will try our best to dump "
    "the debug info.",
    "sendBytes failed on SocketImpl(fd=90): Broken pipe",
)


def line(rank: int, text: str, when: str) -> str:
    return f"[rank{rank}]:[E{when} ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0 Rank {rank}] {text}"


def first(folder, *lines):
    path = folder / "serve.log"
    path.write_text("\n".join(lines) + "\n")
    return doctor.examine(path).first


@pytest.mark.parametrize("when", ["1122 05:40:01.100", ""])
@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("early", [TIMED_OUT, ILLEGAL, DETECTED])
def test_a_monitor_only_follows(early, late, when, tmp_path):
    found = first(tmp_path, line(5, early, when), line(2, late, when))
    assert (found.rank, early[:40] in found.text) == (5, True)


@pytest.mark.parametrize("late", LATE)
def test_a_monitor_does_not_beat_the_error_of_a_worker(late, tmp_path):
    error = "(Worker_TP1 pid=40) ERROR 11-22 05:40:01 [multiproc_executor.py:7] FluxError: no flux"
    found = first(tmp_path, line(3, late, "1122 05:40:01.100"), error)
    assert (found.rank, found.exception) == ("TP1", "FluxError")


@pytest.mark.parametrize("late", LATE)
def test_a_monitor_alone_is_a_failure(late, tmp_path):
    assert first(tmp_path, line(3, late, "1122 05:40:01.100")).rank == 3


def test_a_communicator_is_aborted_only_after_its_watchdog(tmp_path):
    aborted = (
        "[rank5]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 5."
    )
    assert first(tmp_path, line(2, DETECTED, "1122 05:40:01.100"), aborted).rank == 2


CALLED = (
    "[2026-11-22 05:40:01 TP5] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/opt/sglang/srt/layers/moe/fused_moe.py", line 531, in fused_experts',
    "    cache = torch.empty((count, width))",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
)
WORDLESS = (
    "[rank5]:[E1122 05:40:01.100 compiler_depend.ts:1675] [Rank 5] HCCL watchdog thread terminated "
    "with exception:",
    "[ERROR] 2026-11-22-05:40:01 (PID:351, Device:5, RankID:-1) ERR02005 DIST internal error",
)
CANN = (
    "EH9999[PID: 351] 2026-11-22-05:40:01.100 (EH9999):  [Query][Status]query event recorded status "
    "failed, runtime result = 507014[FUNC:ReportCallError][FILE:log_inner.cpp]",
)


@pytest.mark.parametrize("before", [True, False])
def test_the_program_that_met_the_error_says_more_than_the_watchdog(before, tmp_path):
    said = line(5, ILLEGAL, "1122 05:40:01.100")
    found = first(tmp_path, *((*CALLED, said) if before else (said, *CALLED)))
    assert (found.rank, found.component) == ("TP5", "kernel")
    assert found.text.startswith("RuntimeError")


def test_the_watchdog_of_a_rank_is_not_explained_by_another_rank(tmp_path):
    said = line(2, ILLEGAL, "1122 05:40:01.100")
    assert first(tmp_path, said, *CALLED).rank == 2


@pytest.mark.parametrize("before", [True, False])
def test_cann_says_what_a_watchdog_without_words_does_not(before, tmp_path):
    found = first(tmp_path, *((*CANN, *WORDLESS) if before else (*WORDLESS, *CANN)))
    assert (found.rank, "query event recorded" in found.text) == (5, True)


def test_a_watchdog_without_words_alone_is_a_failure(tmp_path):
    assert first(tmp_path, *WORDLESS).rank == 5


DIED = (
    "(EngineCore_DP0 pid=41) ERROR 11-22 05:40:02 [multiproc_executor.py:154] Worker proc VllmWorker-4 "
    "died unexpectedly, shutting down executor."
)
NATIVE = (
    "[ERROR] 2026-11-22-05:40:0{} (PID:137, Device:4, RankID:-1) ERR02200 DIST call hccl api failed.",
    "[ERROR] HCCL(137,python):2026-11-22-05:40:0{}.100 [a.cc:9] [137]init network resource failed",
    "[2026-11-22 05:40:0{}] h1:77:99 [4] misc/ibvwrap.cc:30 NCCL WARN Call to ibv_create_qp failed",
)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("native", NATIVE)
def test_a_library_says_more_than_the_end_of_its_worker(native, before, tmp_path):
    lines = (native.format(1), DIED) if before else (DIED, native.format(3))
    found = first(tmp_path, *lines)
    assert found.signature != "worker-died" and found.text.startswith("[")


def test_what_a_library_lost_with_another_rank_is_not_why_a_worker_died(tmp_path):
    lost = (
        "h1:77:99 [4] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer"
    )
    assert first(tmp_path, DIED, lost).signature == "worker-died"
