"""A rank that somebody has stopped is no cause beside one; whoever stops a node may reach it first."""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import doctor

LAUNCHER = "11-25 16:40:41 [launch_online_dp.py:309]"
MISSING = (
    "docker: Error response from daemon: manifest for quay.io/ascend/vllm-ascend:v0.22.1rc1-a3 not "
    "found: manifest unknown: manifest unknown."
)


def examined(folder, end: str, *other: str):
    """Logs of two nodes: a rank ended on the first, other lines on the second."""
    told = (f"ERROR {LAUNCHER} rank 3 failed: {end}; last lines of logs/rank_3.log:",)
    for name, lines in (("n0", told), ("n1", other)):
        (folder / name).mkdir()
        (folder / name / "engines.log").write_text("".join(f"{one}\n" for one in lines))
    return doctor.examine(folder)


@pytest.mark.parametrize("end", ["signal SIGTERM", "signal SIGINT", "signal SIGHUP"])
def test_a_stopped_rank_is_no_cause_beside_one(end, tmp_path):
    report = examined(tmp_path, end, MISSING)
    assert report.first.signature == "image-not-found"
    assert [one.signature for one in report.also] == []
    assert [one.signature for one in report.cascade] == ["rank-died"]


def test_a_stopped_rank_is_told_where_nothing_else_is(tmp_path):
    report = examined(tmp_path, "signal SIGTERM", "INFO all is well")
    assert (report.first.signature, report.first.rank) == ("rank-died", 3)


@pytest.mark.parametrize("end", ["signal SIGKILL", "exit code 1"])
def test_a_rank_that_was_killed_or_failed_is_told_beside_a_cause(end, tmp_path):
    report = examined(tmp_path, end, MISSING)
    told = {one.signature for one in (report.first, *report.also)}
    assert "rank-died" in told
