"""The reasons of a verdict, from logs that are written for them: first by what is said, not when."""

from __future__ import annotations

import pytest

from kimi_nb.drill import record, verdict
from kimi_nb.plan import build

FULL = "(EngineCore_DP1 pid=7) ERROR 11-21 10:00:{} [core.py:1] OSError: [Errno 28] No space left on device: '/x'\n"
LOST = (
    "(APIServer pid=8) ERROR 11-21 10:00:{} [core_client.py:600] "
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
)
MEMORY = "(EngineCore_DP0 pid=9) ERROR 11-21 10:00:{} [core.py:1] RuntimeError: NPU out of memory. Tried to allocate 1.31 GiB\n"


@pytest.fixture
def drill(tmp_path):
    """Make a drill of logs: node/rank and text of each; rank 1 of a3-1 has a full disk."""

    def made(**logs: str) -> record.Drill:
        plan = build.plan("k2.6", "a3", "pd", scenario="throughput")
        (tmp_path / "plan.json").write_text(plan.as_json())
        (tmp_path / record.CLIENT).write_text("")
        for name, text in logs.items():
            node, _, rank = name.partition("_")
            path = tmp_path / "logs" / node.replace("a3", "a3-") / f"{rank}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        truth = record.Truth("disk-full", "a3-1", (1,), False, "disk full", "", "", True)
        return record.write(tmp_path, plan=plan.name, asked="", seed=1, truth=truth)

    return made


@pytest.mark.parametrize(
    "own, other, wanted",
    [
        ("05", "09", "it is the earliest: 11-21 10:00:05; the next is a3-1, rank 0"),
        ("05", "05", "by the clock alone it cannot be told"),
        ("05", "02", "the clock misleads here: a3-1, rank 0"),
    ],
)
def test_what_a_line_says_goes_before_when_it_was_said(own, other, wanted, drill):
    found = verdict.judge(drill(a31_rank_1=FULL.format(own), a31_rank_0=LOST.format(other)))
    told = " ".join(found.reasons)
    assert wanted in told, found.reasons
    assert (
        "says of itself" in found.reasons[0]
        and "what 1 other says follows from it" in told
        and found.rank == "1"
    )


def test_another_cause_is_told_apart_and_is_no_consequence(drill):
    logs = {"a31_rank_1": FULL.format("05"), "a30_rank_0": MEMORY.format("08")}
    told = verdict.judge(drill(**logs)).reasons
    assert any("apart from it, a3-0, rank 0" in one and "memory" in one for one in told), told
    assert not any("follows from it" in one or "nothing else" in one for one in told)


def test_alone_it_is_all_that_is_told(drill):
    told = verdict.judge(drill(a31_rank_1=FULL.format("05"))).reasons
    assert told[-1] == "nothing else in the logs tells of a failure."
