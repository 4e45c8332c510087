"""The supervisor, in this process: its orders, its events, and what it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time

import psutil
import pytest

from kimi_nb.core import prctl, supervisor

PR_GET_CHILD_SUBREAPER = 37
SPINS = "for i in {1..300000}; do :; done"
READS_ITS_SIGNAL = """
import ctypes, signal, sys
held = ctypes.c_int(-1)
ctypes.CDLL(None).prctl(2, ctypes.byref(held))  # PR_GET_PDEATHSIG
print(held.value, sys.stdin.read() == "", flush=True)
"""


@pytest.fixture
def one(tmp_path, monkeypatch):
    """A supervisor of this process, which adopts orphans meanwhile."""
    # No more than a bound: it is left once all have ended, however busy the machine is.
    monkeypatch.setattr(supervisor, "GRACE", 20.0)
    call = prctl.prctl()
    call(prctl.PR_SET_CHILD_SUBREAPER, 1)
    made = supervisor._Supervisor()
    yield made
    made._stop_all()
    call(prctl.PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
def told(capfd):
    """The events that were told since the last look."""
    return lambda: [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def start(one, folder, name: str, words: str, **more) -> int:
    """Start a shell, and return its process id once it has said that it runs."""
    mark = folder / f"{name}.runs"
    argv = ["bash", "-c", f"{words.partition('|')[0]}\n: > {mark}\n{words.partition('|')[2]}"]
    order = {"do": "start", "name": name, "argv": argv, "cwd": str(folder)}
    one._obey(order | {"env": {"PATH": os.environ["PATH"]}, "log": str(folder / name)} | more)
    until(mark.exists)
    return next(pid for pid, (called, _) in one.children.items() if called == name)


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def ended(one) -> bool:
    one._collect()
    return not one.children


def test_a_program_is_told_by_its_name_when_it_has_ended(one, tmp_path, told):
    pid = start(one, tmp_path, "a", "echo out; echo err >&2; pwd|exit 3")
    process = one.children[pid][1]
    assert process.pid == pid
    until(lambda: ended(one))
    assert told() == [{"event": "ended", "name": "a", "code": 3}] and process.returncode == 3
    assert (tmp_path / "a").read_text() == f"out\nerr\n{tmp_path}\n"
    start(one, tmp_path, "a", "echo more|kill -9 $$")
    until(lambda: ended(one))
    assert told() == [{"event": "ended", "name": "a", "code": -9}]
    assert (tmp_path / "a").read_text().endswith("\nmore\n")  # behind what was there


def test_a_program_dies_with_the_supervisor_and_reads_nothing(one, tmp_path):
    argv = [sys.executable, "-c", READS_ITS_SIGNAL]
    order = {"name": "a", "argv": argv, "cwd": "/", "env": {}, "log": str(tmp_path / "a")}
    one._start(order)
    ((pid, (name, _)),) = one.children.items()
    assert os.getsid(pid) == pid and name == "a"
    until(lambda: ended(one))
    assert (tmp_path / "a").read_text() == f"{int(signal.SIGTERM)} True\n"


@pytest.mark.parametrize("wrong", [{"argv": ["/nowhere"]}, {"cwd": "/nowhere"}, {"log": "/"}])
def test_a_program_that_cannot_be_started_has_ended(one, tmp_path, told, wrong):
    order = {"name": "a", "argv": ["true"], "cwd": "/", "env": {}, "log": str(tmp_path / "a")}
    one._start(order | wrong)
    (event,) = told()
    (at,) = wrong.values()
    assert (at if isinstance(at, str) else at[0]) in event.pop("error")
    assert event == {"event": "ended", "name": "a", "code": 127}
    assert one.children == {}


def test_one_program_is_stopped_with_all_below_it(one, tmp_path, told):
    script = "(exec -a deep sleep 60) & echo $! > deep; setsid sleep 61 & echo $! > apart|wait"
    a = start(one, tmp_path, "a", script)
    b = start(one, tmp_path, "b", "sleep 60 &|wait")
    below = [int((tmp_path / name).read_text()) for name in ("deep", "apart")]
    assert next(process.pid for process in supervisor._below([b])) == b
    assert {process.pid for process in supervisor._below([a])} >= {a, *below}
    one._obey({"do": "stop", "name": "a"})
    assert told() == [
        {"event": "ended", "name": "a", "code": -15},
        {"event": "stopped", "name": "a"},
    ]
    assert not any(map(psutil.pid_exists, [a, *below])) and psutil.pid_exists(b)
    one._obey({"do": "stop", "name": "none"})
    assert [*one.children] == [b] and told() == [{"event": "stopped", "name": "none"}]
    one._obey({"do": "stop", "name": None})
    assert not psutil.pid_exists(b) and told()[-1] == {"event": "stopped", "name": None}


def test_what_was_left_behind_is_ended_too(one, tmp_path, told):
    start(one, tmp_path, "a", "setsid sleep 60 & echo $! > left|exit 0")
    left = int((tmp_path / "left").read_text())
    until(lambda: ended(one))
    assert psutil.pid_exists(left)
    one._stop_all()
    assert not psutil.pid_exists(left)
    assert told() == [{"event": "ended", "name": "a", "code": 0}]


def test_who_does_not_heed_a_first_signal_is_killed(one, tmp_path, told, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 2.0)
    start(one, tmp_path, "a", "trap '' TERM|while :; do sleep 0.1; done")
    start(one, tmp_path, "b", "trap 'echo heard > heard; exit 0' TERM|sleep 60 & wait")
    one._stop_all()
    codes = {event["name"]: event["code"] for event in told()}
    assert codes == {"a": -9, "b": 0} and (tmp_path / "heard").exists()


def test_a_parent_is_told_before_its_children(one, tmp_path, monkeypatch):
    """Else it sees them fail, and ends as if it had not been stopped."""
    words = "for i in {1..6}; do bash -c 'sleep 60 & wait' & done|wait"
    start(one, tmp_path, "a", words)
    start(one, tmp_path, "b", words)
    until(lambda: len(psutil.Process().children(recursive=True)) == 26)
    parents = {child.pid: child.ppid() for child in psutil.Process().children(recursive=True)}
    told, send = [], supervisor._signal

    def record(process, number):
        told.append(process.pid)
        send(process, number)

    monkeypatch.setattr(supervisor, "_signal", record)
    one._obey({"do": "stop", "name": "a"})
    assert len(told) == 13
    one._stop_all()
    assert len(told) == 26
    assert all(parents[pid] not in told[at:] for at, pid in enumerate(told))


def test_an_orphan_of_a_program_that_was_stopped_is_killed(one, tmp_path, monkeypatch):
    """Its parent heeds the first signal, and is no more when the second is sent."""
    monkeypatch.setattr(supervisor, "GRACE", 0.6)
    deaf = r"trap '' TERM; echo \$\$ > deaf; while :; do sleep 0.1; done"
    start(one, tmp_path, "a", f'bash -c "{deaf}" & until [ -s deaf ]; do sleep 0.1; done|wait')
    b = start(one, tmp_path, "b", "sleep 60 &|wait")
    pid = int((tmp_path / "deaf").read_text())
    one._obey({"do": "stop", "name": "a"})
    assert not psutil.pid_exists(pid) and psutil.pid_exists(b)


def test_each_process_has_the_first_signal_once(one, tmp_path):
    words = "n=0; trap 'n=$((n+1)); echo $n >> heard; sleep 0.3; exit 0' TERM"
    start(one, tmp_path, "a", f"{words}|while :; do read -t 0.05 < /dev/zero; done")
    one._stop_all()
    assert (tmp_path / "heard").read_text() == "1\n"


def test_memory_and_cpu_are_those_of_all_below(one, tmp_path, told, monkeypatch):
    pid = start(one, tmp_path, "a", "for i in {1..200000}; do :; done; sleep 60 &|wait")
    until(lambda: psutil.Process(pid).children())
    (child,) = psutil.Process(pid).children()
    monkeypatch.setattr(supervisor, "_pss", {os.getpid(): 7e6, pid: 5e6, child.pid: 3e6}.get)
    monkeypatch.setattr(supervisor, "_pss", _of(supervisor._pss))
    one._obey({"do": "measure", "memory": False})
    (event,) = told()
    assert (event["event"], event["peak_mb"], event["processes"]) == ("measured", 0.0, 2)
    assert event["cpu_s"] >= sum(psutil.Process(pid).cpu_times()[:2]) > 0
    one._obey({"do": "measure", "memory": True})
    assert told()[0]["peak_mb"] == 15.0 == one.peak
    one._obey({"do": "stop", "name": None})
    one._measure()
    assert one.peak == 15.0


def _of(table):
    return lambda process: table(process.pid)


def test_a_measurement_says_how_long_it_took(one, monkeypatch):
    times = iter([10.0, 12.5])
    with monkeypatch.context() as patch:
        patch.setattr(supervisor.time, "monotonic", lambda: next(times))
        assert one._measure() == 2.5


def test_of_a_process_that_has_ended_nothing_is_asked():
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    process = psutil.Process(pid)
    until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    assert not supervisor._lives(process) and process not in supervisor._below()
    os.waitpid(pid, 0)
    assert not supervisor._lives(process)
    assert supervisor._cpu(process) == 0.0 and supervisor._pss(process) == 0
    assert supervisor._below([pid]) == []
    supervisor._signal(process, signal.SIGKILL)


def test_a_process_may_end_while_it_is_looked_at(monkeypatch):
    process = psutil.Process()

    def gone():
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(process, "status", gone)
    assert not supervisor._lives(process)
    monkeypatch.setattr(supervisor.psutil, "Process", lambda *_: gone())
    assert supervisor._below() == supervisor._below([os.getpid()]) == []


def test_a_pause_gives_a_measurement_its_share_of_the_time():
    assert supervisor._pause(0.01) == 0.7  # the least
    assert supervisor._pause(0.1) == pytest.approx(2.0)


def test_waiting_for_disks_is_no_use_of_a_core(monkeypatch):
    process = psutil.Process()
    monkeypatch.setattr(process, "cpu_times", lambda: (1.0, 2.0, 4.0, 8.0, 16.0))
    assert supervisor._cpu(process) == 15.0


def test_processes_are_measured_by_their_pages_and_seconds():
    me = psutil.Process()
    assert abs(supervisor._pss(me) / me.memory_full_info().pss - 1) < 0.5
    pid = os.spawnlp(os.P_NOWAIT, "bash", "bash", "-c", f"bash -c '{SPINS}'; sleep 60 & wait")
    process = psutil.Process(pid)
    try:
        # Of the seconds of a child that has ended its parent tells.
        until(lambda: process.cpu_times().children_user > 0)
        assert supervisor._cpu(process) >= sum(process.cpu_times()[:4]) * 0.99 > 0
        times = process.cpu_times()
        assert supervisor._cpu(process) >= times.children_user + times.children_system
    finally:
        for child in process.children():
            child.kill()
        process.kill()
        os.waitpid(pid, 0)


# All of it ------------------------------------------------------------------------------------


@pytest.fixture
def input_(one):
    """A pipe that is this process's input; the handlers of signals are as before afterwards."""
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    kept, (reader, writer) = os.dup(0), os.pipe()
    os.dup2(reader, 0)
    os.close(reader)
    yield writer
    os.dup2(kept, 0)
    os.close(kept)
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def order(writer: int, *orders: dict) -> None:
    os.write(writer, b"".join(json.dumps(one).encode() + b"\n" for one in orders))


def begin(folder, name: str, words: str) -> dict:
    env = {"PATH": os.environ["PATH"]}
    argv, log = ["bash", "-c", words], str(folder / f"{name}.log")
    return {"do": "start", "name": name, "argv": argv, "cwd": str(folder), "env": env, "log": log}


def test_orders_are_obeyed_until_the_input_ends(one, input_, tmp_path, told, monkeypatch):
    monkeypatch.setattr(supervisor, "MEASURE_EVERY", 0.1)
    measured = []
    monkeypatch.setattr(one, "_measure", lambda: measured.append(len(one.children)) or 0.001)

    def caller():
        order(input_, begin(tmp_path, "a", "exit 3"), begin(tmp_path, "b", "touch b; sleep 60"))
        until((tmp_path / "b").exists)
        text = json.dumps(begin(tmp_path, "c", "touch c; sleep 60")).encode() + b"\n"
        os.write(input_, text[:9])
        time.sleep(0.2)
        os.write(input_, text[9:])
        until((tmp_path / "c").exists)
        until(lambda: len(measured) > 2)
        os.close(input_)

    one.prctl(prctl.PR_SET_CHILD_SUBREAPER, 0)
    thread = threading.Thread(target=caller)
    thread.start()
    assert one.serve() == 0
    thread.join()
    codes = {event["name"]: event["code"] for event in told()}
    assert codes == {"a": 3, "b": -15, "c": -15} and one.children == {}
    assert 0 not in measured  # without a program nothing is measured
    assert _subreaper() == 1


def _subreaper() -> int:
    held = ctypes.c_int(-1)
    assert prctl.prctl()(PR_GET_CHILD_SUBREAPER, ctypes.addressof(held)) == 0
    return held.value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_what_it_runs(one, input_, tmp_path, told, number):
    def caller():
        order(input_, begin(tmp_path, "a", "touch a; sleep 60"))
        until((tmp_path / "a").exists)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=caller)
    thread.start()
    assert one.serve() == 0 and one.ended_by == number
    thread.join()
    assert told() == [{"event": "ended", "name": "a", "code": -15}]
    os.close(input_)


def test_a_wrong_order_ends_what_it_runs_too(one, input_, tmp_path, told):
    order(input_, begin(tmp_path, "a", "sleep 60"))
    os.write(input_, b"no order\n")
    with pytest.raises(ValueError, match="Expecting value"):
        one.serve()
    assert told() == [{"event": "ended", "name": "a", "code": -15}]
    os.close(input_)


def test_a_program_has_the_variables_of_its_order_and_no_input(one, input_, tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_CALLER", "1")
    start(one, tmp_path, "a", "echo ${OF_THE_CALLER-none}; readlink /proc/$$/fd/0")
    until(lambda: ended(one))
    assert (tmp_path / "a").read_text() == "none\n/dev/null\n"
    os.close(input_)


def test_measuring_has_its_share_of_the_time(one, input_, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MEASURE_EVERY", 0.05)
    measured = []
    monkeypatch.setattr(one, "_measure", lambda: measured.append(1) or 3600.0)

    def caller():
        order(input_, begin(tmp_path, "a", "touch a; sleep 60"))
        until(lambda: measured)
        time.sleep(0.5)
        os.close(input_)

    thread = threading.Thread(target=caller)
    thread.start()
    one.serve()
    thread.join()
    assert measured == [1]


def test_without_a_caller_events_go_nowhere(one, monkeypatch):
    def gone(*_):
        raise BrokenPipeError

    monkeypatch.setattr(supervisor.os, "write", gone)
    one._tell(event="stopped")


def test_what_was_started_last_is_told_first_to_end(one, tmp_path, monkeypatch):
    """Who needs another program was started after it, and must not see that one end."""
    pids = [start(one, tmp_path, name, f"|{SPINS}; wait") for name in "abc"]
    sent = []
    signals = supervisor._signal
    monkeypatch.setattr(
        supervisor,
        "_signal",
        lambda process, number: (sent.append(process.pid), signals(process, number)),
    )
    one._obey({"do": "stop", "name": None})
    assert [pid for pid in sent if pid in pids][:3] == pids[::-1]
