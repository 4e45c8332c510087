"""What CANN says below its headlines, and the devices that native lines tell by a number."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.diagnose import doctor, line_grammar
from kimi_nb.diagnose.doctor_report import Finding

HEADS = (
    "EZ9999: Inner Error!",
    "E39999: Inner Error!",
    "[ERROR] 2026-11-22-05:49:31 (PID:402, Device:5, RankID:-1) ERR00100 PTA call acl api failed.",
)
BELOW = "EZ9999[PID: 402] 2026-11-22-05:49:10.801.552 (EZ9999):  The error from device(chipId:5, dieId:0), there is an aicpu error"


def first(folder: Path, *lines: str) -> Finding:
    path = folder / "serve.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    found = doctor.examine(path).first
    assert found is not None
    return found


def plog(module: str, text: str) -> str:
    return (
        f"[ERROR] {module}(9201,python3.11):2026-11-22-05:49:20.330.712 [x_engine.cc:15]9660 {text}"
    )


@pytest.mark.parametrize("head", HEADS)
def test_a_headline_says_less_than_what_stands_below(head, tmp_path):
    below = BELOW.replace("EZ9999", "E39999") if head.startswith("E3") else BELOW
    found = first(tmp_path, head, below, "        TraceBack (most recent call last):")
    assert (found.text, found.rank) == (below, 5)


@pytest.mark.parametrize("head", HEADS)
def test_a_headline_is_told_where_nothing_stands_below(head, tmp_path):
    assert first(tmp_path, head).text == head


@pytest.mark.parametrize(
    "text",
    [
        "Task run failed, device_id=5, stream_id=41",
        "TsdOpen failed. devId=5, tdt error=31",
        "get device info failed, devId(5) ret(87)",
        "open failed, logicDeviceId[5], error[31]",
        "[init][ra]phy_id(5) link down",
        "opData information is deviceId:[5], index[1402]",
        "The error from device(chipId:5, dieId:0), serial number is 7",
    ],
)
def test_a_device_is_named_by_its_number(text, tmp_path):
    found = first(tmp_path, plog("RUNTIME", text))
    assert (found.rank, found.label, found.component) == (5, "device 5", "device")


def test_an_exception_that_points_above_is_less_than_what_stands_there(tmp_path):
    above = "[2026-11-22 05:49:20.118] [error] [4410] [operation_base.cpp:273] Linear InferShape fail, error code: 8"
    text = (
        "RuntimeError: The Inner error is reported as above. The process exits for this inner error"
    )
    found = first(
        tmp_path,
        above,
        f"(Worker_TP2 pid=4410) ERROR 11-22 05:49:20 [multiproc_executor.py:870] {text}",
    )
    assert (found.text, found.rank) == (above, "TP2")


def test_a_rank_in_brackets_that_failed(tmp_path):
    line = "2026-11-22 05:49:19,840 - lmdeploy - ERROR - base.py:53 - RuntimeError: rank[2] failed with error: gone"
    assert first(tmp_path, line).rank == 2


@pytest.mark.parametrize("said", [(), ("WorkerProc hit an exception.",)])
def test_the_name_of_a_process_says_more_than_its_device(said, tmp_path):
    found = first(
        tmp_path,
        "(Worker_TP6 pid=9201) INFO 11-22 05:49:11 [model_runner.py:52] Capturing graphs",
        plog("RUNTIME", "Task run failed, device_id=2, stream_id=41"),
        *(
            f"(Worker_TP6 pid=9201) ERROR 11-22 05:49:21 [multiproc_executor.py:870] {text}"
            for text in (*said, "RuntimeError: gone")
        ),
    )
    assert (found.rank, found.component) == ("TP6", "device")


@pytest.mark.parametrize(
    "line, rank, text",
    [
        ("(Worker pid=7) [Stage-2] ERROR 11-22 05:49:12 [x.py:7] no", "Stage-2", "no"),
        ("(Worker_TP1 pid=7) [Stage-2] ERROR 11-22 05:49:12 [x.py:7] no", "TP1", "no"),
        (
            "(Worker_TP1 pid=7) [PG1] 2026-11-22 05:49:12.741 - Consumer gone",
            "TP1",
            "Consumer gone",
        ),
    ],
)
def test_a_tag_behind_a_process(line, rank, text):
    said = line_grammar.of(line)
    assert (said.rank if said.rank is not None else said.label, said.text) == (rank, text)
