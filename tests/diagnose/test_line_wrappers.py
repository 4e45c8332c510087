"""What some program puts before every line of a log is learnt from the lines, and hides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.diagnose import doctor, line_wrappers

BEFORE = "(Worker_TP2 pid=93) "
VLLM = [
    f"{BEFORE}INFO 11-22 05:49:01 [x.py:7] up",
    f"{BEFORE}ERROR 11-22 05:49:02 [x.py:9] WorkerProc hit an exception.",
    f"{BEFORE}ERROR 11-22 05:49:02 [x.py:9] Traceback (most recent call last):",
    f'{BEFORE}ERROR 11-22 05:49:02 [x.py:9]   File "vllm/v1/worker/x.py", line 3, in run',
    f"{BEFORE}ERROR 11-22 05:49:02 [x.py:9]     torch._C._cuda_setDevice(device)",
    f"{BEFORE}ERROR 11-22 05:49:02 [x.py:9] FluxError: the flux is gone",
]
RAW = [
    "(Worker_TP2 pid=93) INFO 11-22 05:49:01 [x.py:7] up",
    "Traceback (most recent call last):",
    '  File "vllm/v1/worker/x.py", line 3, in run',
    "    torch._C._cuda_setDevice(device)",
    "FluxError: the flux is gone",
]
GLOG = [
    "I1122 05:49:01.300119  1204 transfer_engine.cpp:91] up",
    "I1122 05:49:01.300120  1204 transfer_engine.cpp:95] listening",
    "E1122 05:49:02.300121  1204 rdma_transport.cpp:820] the flux is gone",
]
FORMS = {
    "clock": "2026-11-22 05:49:0{at}: {line}",
    "clock and level": "2026-11-22 05:49:0{at},123 - launcher - INFO - {line}",
    "loguru": "2026-11-22 05:49:0{at}.123 | INFO     | launcher:run:88 - {line}",
    "name": "node-7| {line}",
    "logger": "INFO:launcher:{line}",
    "brackets": "[engine][a3-0] {line}",
    "file and number": "serve.log:{at}:{line}",
    "number": "{at}  {line}",
    "quotation": "> {line}",
    "indent": "        {line}",
    "tab": "engine\t{line}",
    "two spaces": "stderr:  {line}",
}


def wrapped(form: str, lines: list[str]) -> list[str]:
    return [form.format(at=at + 1, line=line) for at, line in enumerate(lines)]


@pytest.mark.parametrize("lines", [VLLM, RAW, GLOG], ids=["vllm", "raw", "glog"])
@pytest.mark.parametrize("form", FORMS)
def test_the_failure_is_the_same_whatever_stands_before_the_lines(form, lines, tmp_path):
    path: Path = tmp_path / "serve.log"
    path.write_text("\n".join(wrapped(FORMS[form], lines)) + "\n")
    first = doctor.examine(path).first
    assert first is not None and first.text.endswith("the flux is gone"), first
    if lines is VLLM:
        assert (first.rank, first.exception) == ("TP2", "FluxError")


@pytest.mark.parametrize(
    "lines",
    [
        VLLM,
        [f"[2026-11-22 05:49:0{at} TP{at}] Decode batch. #running-req: {at}" for at in range(5)],
        [f"[2026-11-22 05:49:0{at}] INFO:     Started server" for at in range(5)],
        [f"2026-11-22 05:49:0{at},123 - lmdeploy - INFO - engine.py:7 - up" for at in range(5)],
        # Their numbers name processes.
        [f"{at % 2}: {VLLM[0]}" for at in range(5)],
        [f"[rank{at % 2}]: {RAW[at % 3]}" for at in range(5)],
        VLLM[:2],
    ],
)
def test_what_an_engine_begins_its_lines_with_is_its_own(lines):
    assert line_wrappers.of(lines) is None


def test_a_line_that_begins_otherwise_is_left_alone():
    form = line_wrappers.of(wrapped(FORMS["clock"], VLLM))
    assert line_wrappers.bare("Killed", form) == "Killed"
    assert line_wrappers.bare("2027-01-01 00:00:00: Killed", form) == "Killed"
    assert line_wrappers.bare("Killed", None) == "Killed"
