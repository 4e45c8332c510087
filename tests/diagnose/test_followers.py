"""Of the ranks that end after the first one, which only followed, and which failed by themselves."""

from __future__ import annotations

import pytest
from testbed.rank_logs import ended, examined

KILLED = "ERROR 11-22 05:49:02 [launch_online_dp.py:288] rank 5 failed: signal SIGKILL; last lines:"


def core(rank: int, time: str, text: str) -> str:
    return f"(EngineCore_DP{rank} pid={70 + rank}) ERROR 11-22 {time} [core.py:1136] {text}"


OUT = "RuntimeError: NPU out of memory. Tried to allocate 2 GiB"
LOST = "The group has lost rank 5 on n1: collective operations cannot go on."


@pytest.mark.parametrize("how", ["exit code 1", "signal SIGABRT", "signal SIGKILL"])
def test_the_end_of_a_rank_that_had_lost_another_is_what_followed(how, tmp_path):
    found = examined(
        tmp_path,
        n1=(KILLED,),
        n2=(ended(20, "05:49:03", how), ended(21, "05:49:03", how)),
        n2_20=(core(20, "05:49:03", LOST),),
        n2_21=(core(21, "05:49:03", LOST),),
    )
    assert (found.first.node, found.first.rank, found.first.signature) == ("n1", 5, "rank-died")
    assert not found.also
    assert {one.rank for one in found.cascade if one.signature == "rank-died"} == {20, 21}


def test_the_end_of_the_rank_that_failed_first_is_what_followed(tmp_path):
    found = examined(
        tmp_path,
        n1=(ended(5, "05:49:03", "exit code 1"),),
        n1_5=(core(5, "05:49:01", "RuntimeError: NPU out of memory. Tried to allocate 2 GiB"),),
    )
    assert (found.first.rank, found.first.signature) == (5, "out-of-memory")
    assert not found.also and [one.signature for one in found.cascade] == ["rank-died"]


@pytest.mark.parametrize(
    "text",
    [
        "EI0006: 2026-11-22-05:53:01 Getting socket times out. Reason: remote rank 5 did not answer",
        "RuntimeError: NCCL error: unhandled system error, NCCL version 2.27.3",
        "[rank7]:[E1122 05:53:01 ProcessGroupHCCL.cpp:9] EI0009: Transport init error.",
        "RuntimeError: ACL stream synchronize failed, error code:507014",
    ],
)
def test_a_partner_of_a_dead_rank_only_waited_for_it(text, tmp_path):
    """A collective that fails after the first death has failed because of it."""
    found = examined(
        tmp_path,
        n1=(KILLED,),
        n2=(ended(7, "05:53:02", "exit code 1"),),
        n2_7=(core(7, "05:53:01", text),),
    )
    assert (found.first.node, found.first.rank) == ("n1", 5), found.first
    assert not found.also, found.also
    assert found.cascade


def test_a_collective_that_failed_before_is_no_follower(tmp_path):
    text = "EI0006: Getting socket times out. Reason: the local rank could not connect"
    found = examined(
        tmp_path, n1=(ended(5, "05:53:09", "signal SIGKILL"),), n2_7=(core(7, "05:49:00", text),)
    )
    assert "hccl-socket" in {one.signature for one in (found.first, *found.also)}


def test_a_failure_of_its_own_stands_apart(tmp_path):
    """Two devices can be full at once."""
    text = "RuntimeError: NPU out of memory. Tried to allocate 2 GiB"
    found = examined(
        tmp_path,
        n1_5=(core(5, "05:49:01", text),),
        n2_9=(core(9, "05:49:04", text),),
        n2=(ended(9, "05:49:05", "exit code 1"),),
    )
    assert found.first.rank == 5
    assert [(one.rank, one.signature) for one in found.also] == [(9, "out-of-memory")]


def test_the_end_of_a_rank_that_says_nothing_stands_apart(tmp_path):
    found = examined(tmp_path, n1=(KILLED, ended(6, "05:49:02", "signal SIGKILL")))
    assert (found.first.rank, [one.rank for one in found.also]) == (5, [6])


def test_what_a_launcher_quotes_is_told_once(tmp_path):
    """It shows the last lines of a rank that ended, which stand in that rank's log, too."""
    text = "ERROR 11-22 05:49:01 [x.py:9] RuntimeError: NPU out of memory. Tried to allocate 2 GiB"
    found = examined(
        tmp_path,
        n1=(ended(5, "05:49:02", "exit code 1"), text, ended(6, "05:49:03", "exit code 1")),
        n1_5=(text,),
    )
    assert (found.first.rank, found.first.signature) == (5, "out-of-memory")
    assert [(one.rank, one.signature) for one in found.also] == [(6, "rank-died")]
    assert [(one.rank, one.signature) for one in found.cascade] == [(5, "rank-died")]


KILLED_BY_BASH = (
    "/var/spool/slurmd/job00014/slurm_script: line 35:  5747 Killed                  vllm serve "
    "moonshotai/Kimi-K2.5 --tensor-parallel-size 8"
)
KILLED_ON_NODE = "ERROR 11-22 05:49:02 [node.sh:433] node n1: engines failed: signal SIGKILL"


@pytest.mark.parametrize("line", [KILLED_BY_BASH, KILLED_ON_NODE])
def test_an_engine_of_no_launcher_that_is_killed(line, tmp_path):
    """It cannot say so itself: the shell that waits for it does."""
    served = "(APIServer pid=7) INFO:     Application startup complete."
    found = examined(tmp_path, n1=(served, line))
    assert found.first.kind == "rank-dies-while-serving" and found.first.node == "n1"
    assert found.first.cause.startswith("rank died while serving: ")
    found = examined(tmp_path, n1=(core(0, "05:49:01", OUT), served, line))
    assert found.first.signature == "out-of-memory" and not found.also


def test_an_engine_of_no_launcher_that_is_stopped(tmp_path):
    told = KILLED_BY_BASH.replace("Killed    ", "Terminated")
    assert examined(tmp_path, n1=(told,)).ok
