"""Nodes that are folders of this machine: real bash, its answers and its ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kimi_nb.deploy import local
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.node_answers import Answer, Line

FACT = Line("fact", "verb", "look")
SAYS = "printf 'fact\\tverb\\tlook\\n'\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (SAYS, Answer((FACT,))),
        (f"echo banner; {SAYS}echo warning >&2", Answer((FACT,))),
        ("", Answer(())),
        (f"{SAYS}echo '  why ' >&2; exit 3", Answer((FACT,), "why")),
        (f"{SAYS}exit 3", Answer((FACT,), "exit code 3")),
        ("kill -9 $$", Answer((), "exit code -9")),
        ("printf 'fail\\tdisk\\tfull\\n'; echo x >&2; exit 1", Answer((Line("fail", "disk", "full"),))),
        ("printf '%0400d' 7 >&2; exit 1", Answer((), "0" * 299 + "7")),
        ("printf 'fact\\tx\\t\\377\\n'", Answer((Line("fact", "x", "\ufffd"),))),
        ("printf '\\377' >&2; exit 1", Answer((), "\ufffd")),
    ],
)  # fmt: skip
def test_what_a_script_says(text, answer):
    nodes = LocalNodes()
    assert nodes.look({"n": text}) == nodes.change({"n": text}, "push") == {"n": answer}


def test_each_node_has_its_own_answer():
    nodes = LocalNodes()
    texts = {name: f"printf 'fact\\tname\\t{name}\\n'" for name in ("b", "a")}
    for found in (nodes.look(texts), nodes.change(texts, "start")):
        assert [(name, answer.lines[0].text) for name, answer in found.items()] == [
            ("b", "b"),
            ("a", "a"),
        ]
    assert nodes.unreachable == {} and nodes.look({}) == {} and nodes.close() is None


def test_programs_beside_this_python_are_found(monkeypatch):
    def path() -> str:
        answer = LocalNodes().look({"n": "printf 'fact\\tpath\\t%s\\n' \"$PATH:$KEPT\""})["n"]
        return answer.lines[0].text

    beside = Path(sys.executable).parent
    monkeypatch.setenv("KEPT", "kept")
    assert path() == f"{os.environ['PATH']}:{beside}:kept"
    monkeypatch.delenv("PATH")
    assert path() == f"{os.defpath}:{beside}:kept"


def test_what_is_started_survives_the_end_of_the_terminal():
    text = "printf 'fact\\tsession\\t%s\\n' \"$(ps -o sid= -p $$) $$\""
    session, pid = LocalNodes().look({"n": text})["n"].lines[0].text.split()
    assert session == pid != str(os.getsid(0))


def test_only_what_brings_the_weights_has_no_end(monkeypatch):
    seconds, wait = [], subprocess.Popen.communicate

    def noted(self, text, timeout):
        seconds.append(timeout)
        return wait(self, text, timeout=60)

    monkeypatch.setattr(subprocess.Popen, "communicate", noted)
    nodes = LocalNodes()
    nodes.look({"n": SAYS})
    nodes.change({"n": SAYS}, "push")
    nodes.change({"n": SAYS}, "weights")
    assert seconds == [600.0, 600.0, None]


def test_a_script_that_does_not_end_is_no_answer(monkeypatch):
    monkeypatch.setattr(local, "_SECONDS", 0.2)
    answer = LocalNodes().look({"n": f"{SAYS}exec sleep 60"})["n"]
    assert answer.lines == () and "timed out after 0.2 seconds" in answer.error


@pytest.fixture
def begun(tmp_path):
    """A script that starts a program and waits for it, and a look at who of them is alive."""
    note, session = tmp_path / "pids", tmp_path / "session"
    text = (
        f"setsid sleep 300 & echo $! > {session}\n"
        f"sleep 300 & echo $$ $! > {note}.new; mv {note}.new {note}; wait\n"
    )
    yield text, note, session
    for pid in session.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def alive(note: Path) -> list[str]:
    """The programs of a note that run, after all that were killed had 60 s to go."""
    end = time.monotonic() + 60
    while True:
        found = [
            pid
            for pid in note.read_text().split()
            if (stat := Path("/proc", pid, "stat")).exists()
            and stat.read_text().rpartition(")")[2].split()[0] != "Z"
        ]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def test_what_a_script_has_begun_ends_with_its_time(begun, monkeypatch):
    """But not what it has given a session of its own, such as an engine."""
    text, note, session = begun
    monkeypatch.setattr(local, "_SECONDS", 2.0)
    assert "timed out after 2.0 seconds" in LocalNodes().look({"n": text})["n"].error
    assert alive(note) == []
    os.kill(int(session.read_text()), 0)


def test_what_a_script_has_begun_ends_with_the_person_s_patience(begun):
    text, note, _ = begun
    script = (
        "import sys\nfrom kimi_nb.deploy.local import LocalNodes\n"
        "try: LocalNodes().change({'n': sys.argv[1]}, 'weights')\nexcept KeyboardInterrupt: exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, text])
    end = time.monotonic() + 60
    while not note.exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 7
    assert alive(note) == []


def test_a_machine_without_bash_gives_no_answer(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    answer = LocalNodes().look({"n": SAYS})["n"]
    assert answer == Answer((), "[Errno 2] No such file or directory: 'bash'")
