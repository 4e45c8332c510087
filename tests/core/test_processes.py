"""Programs below a supervisor: their ends are told, and they end with the caller."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import time

import psutil
import pytest

from kimi_nb.core import prctl, processes
from kimi_nb.core.errors import KimiError


@pytest.fixture
def programs(tmp_path):
    with processes.Programs(tmp_path / "supervisor.log") as made:
        yield made


def start(programs, folder, name: str, words: str, **env: str) -> None:
    argv = ["bash", "-c", words]
    programs.start(name, argv, folder, {"PATH": os.environ["PATH"], **env}, folder / f"{name}.log")


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_program_has_its_folder_variables_and_log_and_its_end_is_told(programs, tmp_path):
    start(programs, tmp_path, "a", 'echo "$PWD $MINE"; echo bad >&2; exit 3', MINE="x y")
    assert programs.wait("a", 30) == 3 and programs.ended() == {"a": 3}
    assert (tmp_path / "a.log").read_text() == f"{tmp_path} x y\nbad\n"
    start(programs, tmp_path, "b", "kill -9 $$")
    assert programs.wait("b", 30) == -9 and programs.ended() == {"a": 3, "b": -9}
    start(programs, tmp_path, "a", "exec sleep 60")
    assert programs.wait("a", 0.2) is None and "a" not in programs.ended()
    told = programs.ended()
    told.clear()
    assert programs.ended() == {"b": -9}


def test_a_program_that_is_not_there_ends_with_127(programs, tmp_path, capfd):
    programs.start("none", ["/nowhere/x"], tmp_path, {}, tmp_path / "none.log")
    assert programs.wait("none", 30) == 127
    until(lambda: "none: " in capfd.readouterr().err)


def test_one_program_is_stopped_or_all_of_them(programs, tmp_path):
    for name in ("a", "b", "c"):
        start(programs, tmp_path, name, f"echo $$ > {name}.pid; sleep 60 & wait")
    until(lambda: len(list(tmp_path.glob("*.pid"))) == 3)
    programs.stop("a")
    # On a machine that is busy it may not heed the first signal in time.
    assert programs.wait("a", 30) in (-signal.SIGTERM, -signal.SIGKILL)
    assert [*programs.ended()] == ["a"]
    programs.stop()
    assert set(programs.ended()) == {"a", "b", "c"}


def test_memory_and_cores_are_measured(programs, tmp_path):
    assert programs.peak_mb() > 1
    code = "import time\nx = bytearray(200_000_000)\nopen('held', 'w').close()\ntime.sleep(60)"
    programs.start("big", [sys.executable, "-c", code], tmp_path, {}, tmp_path / "big.log")
    until((tmp_path / "held").exists)
    assert programs.peak_mb() > 200
    programs.stop()
    assert programs.peak_mb() > 200  # the highest so far
    start(programs, tmp_path, "busy", "while :; do :; done")
    assert programs.busy(0.5) > 0


@pytest.mark.parametrize(
    ("before", "after", "seconds", "cores"),
    [
        ({"cpu_s": 1.0}, {"cpu_s": 4.0}, 2.0, 1.5),
        ({"cpu_s": 4.0}, {"cpu_s": 3.0}, 2.0, 0.0),  # who has ended is measured no more
        ({}, {"cpu_s": 0.5}, 1.0, 0.5),
        ({"cpu_s": 0.25}, {}, 1.0, 0.0),
    ],
)
def test_cores_are_cpu_seconds_by_seconds(programs, monkeypatch, before, after, seconds, cores):
    asked, slept, answers = [], [], iter([before, after])

    def ask(event, **order):
        asked.append((event, order))
        return next(answers)

    monkeypatch.setattr(programs, "_ask", ask)
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    assert programs.busy(seconds) == cores and slept == [seconds]
    assert asked == [("measured", {"do": "measure", "memory": False})] * 2


def test_memory_is_the_highest_in_mb(programs, monkeypatch):
    asked = []
    answers = iter([{"peak_mb": 12}, {}])
    monkeypatch.setattr(
        programs, "_ask", lambda event, **order: asked.append((event, order)) or next(answers)
    )
    assert programs.peak_mb() == 12.0 and programs.peak_mb() == 0.0
    assert asked == [("measured", {"do": "measure", "memory": True})] * 2


def test_leaving_ends_every_program(tmp_path):
    with processes.Programs(tmp_path / "supervisor.log") as programs:
        start(programs, tmp_path, "a", "echo $$ > a.pid.new; mv a.pid.new a.pid; exec sleep 60")
        until((tmp_path / "a.pid").exists)
        pid = int((tmp_path / "a.pid").read_text())
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid) and not programs._alive
    assert programs._process.stdout.closed and not programs._reader.is_alive()
    programs.close()  # a second time there is nothing to do


def test_a_supervisor_that_does_not_end_is_killed(tmp_path, monkeypatch):
    programs = processes.Programs(tmp_path / "supervisor.log")
    programs.peak_mb()
    monkeypatch.setattr(processes, "STOP_WAIT", 0.2)
    programs._process.send_signal(signal.SIGSTOP)
    programs.close()
    assert programs._process.returncode == -signal.SIGKILL


def test_the_end_of_the_supervisor_is_told(tmp_path):
    programs = processes.Programs(tmp_path / "supervisor.log")
    programs.peak_mb()
    programs._process.kill()
    programs._process.wait()
    log = tmp_path / "supervisor.log"
    wanted = (
        "The supervisor of this run has ended: it was stopped from outside, "
        f"and everything that it had started with it. Its messages: {log}"
    )
    with pytest.raises(KimiError) as told:
        programs.ended()
    assert str(told.value) == wanted
    with pytest.raises(KimiError) as told:
        programs.stop()
    assert str(told.value) == wanted.replace("ended:", "ended (Broken pipe):")
    assert programs.wait("a", 60) is None
    programs.close()


def test_a_supervisor_that_says_nothing_is_told(tmp_path, monkeypatch):
    programs = processes.Programs(tmp_path / "supervisor.log")
    programs.peak_mb()
    monkeypatch.setattr(processes, "STOP_WAIT", 0.2)
    programs._process.send_signal(signal.SIGSTOP)
    with pytest.raises(KimiError, match="has ended: it was stopped"):
        programs.stop()
    programs.close()


def test_the_supervisor_writes_its_errors_behind_those_of_before(tmp_path):
    log = tmp_path / "supervisor.log"
    log.write_text("before\n")
    programs = processes.Programs(log)
    programs._process.stdin.write(b"no order\n")
    programs._process.stdin.flush()
    assert programs._process.wait(30) == 1
    programs.close()
    assert log.read_text().startswith("before\nTraceback") and "JSONDecodeError" in log.read_text()


def test_the_supervisor_is_a_session_of_its_own_and_holds_what_it_is_given(tmp_path):
    reader, writer = os.pipe()
    with processes.Programs(tmp_path / "supervisor.log", keep=[writer]) as programs:
        pid = programs._process.pid
        assert os.getsid(pid) == pid
        os.close(writer)
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)


# The calls of Linux ---------------------------------------------------------------------------


def test_prctl_sets_what_linux_then_tells():
    call = prctl.prctl()
    before = _subreaper(call)
    try:
        for value in (1, 0):
            assert call(prctl.PR_SET_CHILD_SUBREAPER, value) == 0
            assert _subreaper(call) == value
    finally:
        call(prctl.PR_SET_CHILD_SUBREAPER, before)
    assert call(prctl.PR_SET_PDEATHSIG, 9999) == -1


def _subreaper(call) -> int:
    held = ctypes.c_int(-1)
    assert call(37, ctypes.addressof(held)) == 0  # PR_GET_CHILD_SUBREAPER
    return held.value


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_without_a_prctl_nothing_is_done(monkeypatch, error):
    def none(name):
        raise error

    monkeypatch.setattr(prctl.ctypes, "CDLL", none)
    assert prctl.prctl()(prctl.PR_SET_PDEATHSIG, 9999) == 0


@pytest.fixture
def handlers():
    """The handlers of this process are as before after a test."""
    child, descriptor = signal.getsignal(signal.SIGCHLD), signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(descriptor)
    signal.signal(signal.SIGCHLD, child)


def test_a_signal_wakes_up_and_the_ends_of_children_are_read_once(handlers):
    reader = prctl.wakeup()
    try:
        assert not os.get_blocking(reader)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
        first = os.spawnlp(os.P_NOWAIT, "bash", "bash", "-c", "exit 3")
        second = os.spawnlp(os.P_NOWAIT, "bash", "bash", "-c", "kill -9 $$")
        living = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
        seen = {}
        until(lambda: seen.update(prctl.reaped()) or len(seen) == 2)
        assert seen == {first: 3, second: -9} and list(prctl.reaped()) == []
        assert set(os.read(reader, 99)) == {signal.SIGCHLD}
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)
        assert list(prctl.reaped()) == []
        writer = signal.set_wakeup_fd(-1)
        assert not os.get_blocking(writer)
        os.close(writer)
    finally:
        os.close(reader)


def test_a_pipe_that_is_full_of_signals_says_nothing(handlers, capfd):
    reader = prctl.wakeup()
    size = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(size + 9):
        signal.raise_signal(signal.SIGCHLD)
    assert capfd.readouterr().err == "" and len(os.read(reader, 2 * size)) == size
    os.close(signal.set_wakeup_fd(-1))
    os.close(reader)
