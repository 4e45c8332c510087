"""What engines said of memory, in the notes of the doctor's report."""

from __future__ import annotations

import shutil
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.diagnose import doctor

LOGS = Path(__file__).parents[1] / "plan" / "engine_logs"


def notes(*logs: Path) -> list[str]:
    return [one for one in doctor.examine(logs).notes if one.startswith("memory")]


def test_what_a_start_took_is_told_with_the_command_that_compares_it(tmp_path):
    log = tmp_path / "h200.log"
    shutil.copy(LOGS / "h200-0.11.2.log", log)
    (note,) = notes(log)
    assert "KV cache 46.80 GiB" in note and "715,072 tokens" in note
    assert f"kimi-nb calibrate {log}" in note


def test_ranks_that_say_the_same_are_told_once(tmp_path):
    logs = [tmp_path / f"rank_{at}.log" for at in range(5)]
    for log in logs:
        shutil.copy(LOGS / "h200-0.11.2.log", log)
    other = tmp_path / "cpu.log"
    shutil.copy(LOGS / "cpu-0.32.0-a.log", other)
    found = notes(*logs, other)
    assert len(found) == 2 and sum("5 logs" in one for one in found) == 1


def test_lines_far_in_a_log_of_many_megabytes_are_no_reason_to_read_it_twice(tmp_path):
    """The report of a start stands in its first megabytes."""
    log = tmp_path / "long.log"
    filler = "INFO 11-21 10:00:00 [loggers.py:1] Engine 000: Running: 1 reqs\n" * 20_000
    with log.open("w") as out:
        out.write((LOGS / "h200-0.11.2.log").read_text())
        for _ in range(10):
            out.write(filler)
        out.write("INFO Available KV cache memory: 1.00 GiB\n")
    (note,) = notes(log)
    assert "46.80" in note and "1.00" not in note


def test_stand_ins_and_lines_that_are_cut_are_no_statement(tmp_path):
    marked = tmp_path / "marked.log"
    marked.write_text(f"INFO 11-21 10:00:00 [x.py:1] Model loading took 0.00 GiB memory ({MARK})\n")
    cut = tmp_path / "cut.log"
    cut.write_text("INFO 11-21 10:00:00 [x.py:1] Available KV cache memory: 46.\n")
    assert notes(marked, cut) == []


def test_a_name_of_a_file_is_quoted_for_the_shell(tmp_path):
    log = tmp_path / "rank 7 $(x).log"
    shutil.copy(LOGS / "h200-0.11.2.log", log)
    (note,) = notes(log)
    assert f"kimi-nb calibrate '{log}'" in note
