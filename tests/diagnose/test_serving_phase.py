"""Whether something failed at start or while it served: what the engines had answered decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.diagnose import doctor

START = "(APIServer pid=7) INFO 11-22 05:40:00 [api_server.py:602] Starting vLLM server"
COMPLETE = "(APIServer pid=7) INFO:     Application startup complete."
REPLY = '(APIServer pid=7) INFO:     192.0.2.7:50120 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
REFUSED = REPLY.replace("200 OK", "400 Bad Request")
ASKED = '(APIServer pid=7) INFO:     192.0.2.7:50120 - "GET /health HTTP/1.1" 200 OK'
LIMIT = "slurmstepd: error: *** JOB 14 ON n1 CANCELLED AT 2026-11-22T05:49:02 DUE TO TIME LIMIT ***"
NODE = "JobId=14 JobName=vllm_kimi JobState=NODE_FAIL Reason=NodeDown NodeList=n1 signal=9"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=14.batch. Some of the step tasks."
DIED = "ERROR 11-22 05:49:02 [launch_online_dp.py:288] rank 5 failed: signal SIGKILL; last lines:"


def cause(folder: Path, **logs: tuple[str, ...]) -> str:
    """The cause that is told of logs by name: ``n1__x`` is the file x of node n1."""
    for name, lines in logs.items():
        file = folder / (name.replace("__", "/") + ".log")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))
    found = doctor.examine(folder)
    assert found.first is not None
    return found.first.cause


@pytest.mark.parametrize("line", [LIMIT, NODE, OOM])
@pytest.mark.parametrize("place", ["n1__err", "n1__job", "job"])
def test_slurm_ended_a_job_that_had_served(line, place, tmp_path):
    """The engine writes without times to the error output, where its own start is told, too."""
    logs = {"n1__out": (START,), "n1__err": (COMPLETE,)}
    logs[place] = (*logs.get(place, ()), line)
    assert "while serving" in cause(tmp_path, **logs)


@pytest.mark.parametrize("line", [LIMIT, NODE, OOM])
def test_slurm_ended_a_job_that_had_not_served(line, tmp_path):
    assert "at start" in cause(tmp_path, n1__out=(START,), n1__err=(line,))


@pytest.mark.parametrize(
    "said, phase",
    [
        ((REPLY,), "while serving"),
        ((ASKED, REFUSED, REPLY), "while serving"),
        ((ASKED,), "at start"),
        ((REFUSED,), "at start"),
        ((), "at start"),
    ],
)
def test_a_log_whose_beginning_is_gone(said, phase, tmp_path):
    """logrotate took the start; an answered request is as good. /health answers before."""
    assert phase in cause(tmp_path, n1__rank_5=(START, *said), n1__engines=(DIED,))


def test_a_rank_that_never_served_beside_others_that_did(tmp_path):
    found = cause(tmp_path, n1__rank_4=(START, COMPLETE), n1__rank_5=(START,), n1__engines=(DIED,))
    assert "at start" in found


def test_a_failure_that_came_before_the_first_reply(tmp_path):
    text = "(EngineCore_DP0 pid=9) ERROR 11-22 05:40:00 [core.py:1136] RuntimeError: Worker failed with error 'x'"
    assert "at start" in cause(tmp_path, n1__rank_0=(START, text, COMPLETE, REPLY))


def test_a_program_that_a_script_did_not_find_is_no_failure_once_an_engine_serves(tmp_path):
    missing = "/srv/run.sh: line 9: npu-smi: command not found"
    answer = 'INFO:     192.0.2.7:54412 - "POST /generate HTTP/1.1" 200 OK'
    path = tmp_path / "router.log"
    path.write_text(f"NPU info:\n{missing}\nDNS info:\n{answer}\n")
    assert doctor.examine(path).ok
    path.write_text(f"NPU info:\n{missing}\nDNS info:\n")
    assert doctor.examine(path).first.signature == "program-missing"
