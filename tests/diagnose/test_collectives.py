"""Of ranks whose collective timed out, the one that did not come is accused, or none at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.diagnose import doctor

CAUGHT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE)"
NEW = "failure detected by watchdog at work sequence id: 90 PG status: last enqueued work: {}"
OLD = "Exception (either an error or timeout) detected by watchdog at work: 90, last enqueued NCCL work: {}"


def _said(rank: int, text: str, group: str = "PG ID 2 PG GUID 3 ") -> str:
    """A line of the watchdog; all ranks say it in the same second."""
    head = f"[rank{rank}]:[E1122 06:06:04.537131842 ProcessGroupNCCL.cpp:607]"
    return f"{head} [{group}Rank {rank}] {text}"


def _accused(folder: Path, logs: dict[int, list[str]]) -> tuple[object, str]:
    """The rank that is named and the cause."""
    for rank, lines in logs.items():
        (folder / f"rank_{rank}.log").write_text("\n".join(lines) + "\n")
    first = doctor.examine(folder).first
    assert first is not None and first.component == "nccl"
    return first.rank, first.cause


@pytest.mark.parametrize("words", [NEW, OLD])
def test_the_rank_with_fewer_enqueued_works_is_accused(words: str, tmp_path: Path) -> None:
    """All four wait for the same collective, which rank 2 was the last to reach."""
    works = {0: 95, 1: 95, 2: 90, 3: 95}
    logs = {
        rank: [_said(rank, CAUGHT.format(90)), _said(rank, words.format(count))]
        for rank, count in works.items()
    }
    rank, cause = _accused(tmp_path, logs)
    assert rank == 2 and "rank 2" in cause


def test_the_silent_rank_is_accused_where_the_others_are_alike(tmp_path: Path) -> None:
    logs = {
        rank: [_said(rank, CAUGHT.format(90)), _said(rank, NEW.format(95))] for rank in (0, 1, 3)
    }
    assert _accused(tmp_path, {**logs, 2: ["INFO 11-22 05:00:00 [x.py:1] fine"]})[0] == 2


def test_the_one_that_hangs_at_an_earlier_collective_is_accused(tmp_path: Path) -> None:
    """Where no count of works is logged, the number of the collective tells the same."""
    logs = {rank: [_said(rank, CAUGHT.format(88 if rank == 3 else 90))] for rank in range(4)}
    assert _accused(tmp_path, logs)[0] == 3


def test_of_ranks_that_are_alike_none_is_accused(tmp_path: Path) -> None:
    logs = {rank: [_said(rank, CAUGHT.format(90)), _said(rank, NEW.format(95))] for rank in (0, 1)}
    assert "behind the others" not in _accused(tmp_path, logs)[1]


def test_a_number_of_one_kind_is_not_compared_with_another(tmp_path: Path) -> None:
    """A collective's number is below the count of works that wait behind it."""
    logs = {rank: [_said(rank, NEW.format(95))] for rank in (0, 1)}
    logs[2] = [_said(2, CAUGHT.format(90))]
    assert "behind the others" not in _accused(tmp_path, logs)[1]


def test_works_of_two_groups_are_not_compared(tmp_path: Path) -> None:
    """Of two tensor parallel groups one has done less; each waits for nobody of the other."""
    logs = {
        rank: [
            _said(
                rank,
                NEW.format(95 if rank < 2 else 20 + 5 * (rank == 2)),
                f"PG ID 2 PG GUID {3 + rank // 2} ",
            )
        ]
        for rank in range(4)
    }
    assert _accused(tmp_path, logs)[0] == 3
    logs[2], logs[3] = ([_said(rank, NEW.format(20), "PG ID 2 PG GUID 4 ")] for rank in (2, 3))
    assert "behind the others" not in _accused(tmp_path, logs)[1]
