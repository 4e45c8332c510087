"""kubectl as this project calls it: what it is given, and what is made of what it prints."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from kimi_nb.core.errors import KimiError
from kimi_nb.deploy.kubernetes import kubectl
from kimi_nb.deploy.kubernetes.kubectl import Kubectl, KubectlError

# Writes down its words, its input and its variables; prints `out` and `err`; ends with `code`.
PROGRAM = """#!/bin/bash
cd "${0%/*}"
printf '%s\\n' "$@" > argv
cat > stdin
env -0 > env
cat err >&2
cat out
exit "$(cat code)"
"""


class Program:
    """A kubectl on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "kubectl"
        folder.mkdir()
        self.path.write_text(PROGRAM)
        self.path.chmod(0o755)
        self.says("")

    def says(self, out: str | bytes, code: int = 0, err: str | bytes = "") -> None:
        for name, text in (("out", out), ("err", err), ("code", str(code))):
            data = text.encode() if isinstance(text, str) else text
            (self.folder / name).write_bytes(data)

    @property
    def asked(self) -> list[str]:
        return (self.folder / "argv").read_text().splitlines()


@pytest.fixture
def program(tmp_path, monkeypatch):
    made = Program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def ours():
    return Kubectl("a3-cluster", "kimi")


def told(call) -> KubectlError:
    with pytest.raises(KubectlError) as caught:
        call()
    return caught.value


# What is asked --------------------------------------------------------------------------------


def test_kubectl_is_that_of_the_path_or_beside_python(program, monkeypatch, tmp_path):
    assert kubectl.program() == str(program.path)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "executable", str(program.folder / "python3"))
    assert kubectl.program() == str(program.path)
    program.path.chmod(0o644)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)  # as for anybody but root
    missing = told(kubectl.program)
    assert (str(missing), missing.reason) == ("kubectl is not on PATH.", "NoProgram")


def test_context_and_namespace_are_always_named(program, ours):
    program.says("hi\n")
    assert ours.run("get", "pods", "-l", "a=b c") == "hi\n"
    begin = ["--context", "a3-cluster", "--namespace", "kimi"]
    assert program.asked == [*begin, "--request-timeout=30s", "get", "pods", "-l", "a=b c"]
    assert (program.folder / "stdin").read_bytes() == b""
    assert ours.argv("port-forward", "x") == [str(program.path), *begin, "port-forward", "x"]
    assert ours.typed("get", "a b") == ("kubectl --context a3-cluster --namespace kimi get 'a b'")
    assert ours.words == ["kubectl", *begin]


def test_a_text_is_given(program, ours):
    ours.run("apply", "-f", "-", stdin="kind: é\n")
    assert (program.folder / "stdin").read_bytes() == "kind: é\n".encode()


def test_a_command_that_reads_nothing_is_given_all_the_same(program, ours, monkeypatch):
    wrong = []
    monkeypatch.setattr(threading, "excepthook", wrong.append)
    before = threading.enumerate()
    program.path.write_text("#!/bin/bash\nexec <&-\necho done\n")
    assert ours.run("apply", "-f", "-", stdin="x" * 1_000_000) == "done\n"
    for one in set(threading.enumerate()) - set(before):
        one.join()
    assert wrong == []


def test_variables_that_change_the_meaning_are_left_out(program, ours, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/k")
    for name in ("KUBECTL_EXTERNAL_DIFF", "KUBECTL_KUBERC", "KUBERC"):
        monkeypatch.setenv(name, "x")
    ours.run("get", "pods")
    text = (program.folder / "env").read_text()
    env = dict(one.split("=", 1) for one in text.split("\0") if one)
    assert env["KUBECONFIG"] == "/k" and not {
        one for one in env if "KUBERC" in one or "DIFF" in one
    }


# What is answered -----------------------------------------------------------------------------


def test_an_object_is_read(program, ours):
    program.says('{"kind": "List", "items": []}')
    assert ours.json("get", "pods") == {"kind": "List", "items": []}
    assert program.asked[-4:] == ["get", "pods", "-o", "json"]
    assert (program.folder / "stdin").read_bytes() == b""
    ours.json("create", "-f", "-", stdin="x")
    assert (program.folder / "stdin").read_text() == "x"
    program.says("")
    assert ours.json("get", "pods") == {}


@pytest.mark.parametrize(
    "text", ["[]", "7", '"x"', "null", "{", "No resources found", "[" * 99_999]
)
def test_what_is_no_object_is_refused(text, program, ours):
    program.says(text)
    assert str(told(lambda: ours.json("get", "pods"))) == (
        f"kubectl get prints no object: {text[:120]!r}"
    )
    assert str(told(lambda: ours.raw("/api/v1"))) == (
        f"/api/v1: the API server answers no object: {text[:120]!r}"
    )


def test_what_the_api_server_has_at_a_path(program, ours):
    program.says('{"kind": "Namespace"}')
    assert ours.raw("/api/v1/namespaces/kimi") == {"kind": "Namespace"}
    assert program.asked[-3:] == ["get", "--raw", "/api/v1/namespaces/kimi"]
    program.says("", 1, "Error from server (NotFound): namespaces not found\n")
    assert ours.raw("/api/v1/namespaces/kimi") is None
    program.says("", 1, "Error from server (Forbidden): no\n")
    assert told(lambda: ours.raw("/api/v1/namespaces/kimi")).reason == "Forbidden"


def test_exit_codes_that_are_no_failure(program, ours):
    program.says("differs", 1)
    assert ours.run("diff", codes=(0, 1)) == "differs"
    program.says("", 2, "broken")
    assert str(told(lambda: ours.run("diff", codes=(0, 1)))) == "kubectl diff: broken"
    assert isinstance(told(lambda: ours.run("diff")), KimiError)


@pytest.mark.parametrize(
    ("err", "text", "reason"),
    [
        ("Error from server (Forbidden): pods is forbidden\n", None, "Forbidden"),
        ("Error from server (AlreadyExists): x\n", None, "AlreadyExists"),
        ("Unable to connect to the server: EOF\n", None, ""),
        ("", "exit code 7, and nothing was said", ""),
        (" \n\n", "exit code 7, and nothing was said", ""),
        ("  a  \nb\na\n", "a; b", ""),
        ("E0102 03:04:05.6 7 memcache.go:1] couldn't\nrefused\n", "refused", ""),
        ("I0102 x\nW0102 y\nF0102 z\nrefused\n", "refused", ""),
        ("E0102 only this\n", "E0102 only this", ""),
        ("E01 short\n", "E01 short", ""),
        ("x" * 900, "x" * 600, ""),
        (b"\xff\n", "\ufffd", ""),
    ],
)
def test_why_a_command_failed(err, text, reason, program, ours):
    program.says("on stdout", 7, err)
    found = told(lambda: ours.run("apply", "-k", "/files"))
    said = err.strip() if text is None else text
    assert str(found) == f"kubectl apply: {said}" and found.reason == reason


def test_output_of_any_bytes_is_read(program, ours):
    program.says(b"\xff\n")
    assert ours.run("logs") == "\ufffd\n"


# What does not end ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["1", "2"])
def test_an_answer_without_end_is_ended(stream, program, ours, monkeypatch):
    monkeypatch.setattr(kubectl, "_MOST", 2 << 20)
    program.path.write_text(f"#!/bin/bash\nexec yes >&{stream}\n")
    found = told(lambda: ours.run("logs"))
    assert (str(found), found.reason) == ("kubectl prints more than 2 MiB; it was ended.", "")
    program.path.write_text(f"#!/bin/bash\nhead -c {2 << 20} /dev/zero >&{stream}\nsleep 0.2\n")
    assert len(ours.run("logs")) == (2 << 20 if stream == "1" else 0)


def test_a_command_that_does_not_answer_is_ended(program, ours, monkeypatch):
    made = []

    class Noted(kubectl.subprocess.Popen):
        def __init__(self, *given, **more):
            made.append(self)
            super().__init__(*given, **more)

    program.path.write_text("#!/bin/bash\nexec sleep 60\n")
    monkeypatch.setattr(kubectl.subprocess, "Popen", Noted)
    found = told(lambda: ours.run("get", "pods", seconds=0.4))
    assert (str(found), found.reason) == ("kubectl get: no answer in 0 s", "")
    assert [one.returncode for one in made] == [-9]


@pytest.fixture
def left_behind(program):
    """Begin kubectl with a program that keeps its streams open, and speaks there, as a tunnel may."""
    os.mkfifo(program.folder / "nothing")
    program.path.write_text(
        f"#!/bin/bash\ncd {program.folder}\n"
        "{ for i in {1..600}; do echo x; read -rt 0.05 <>nothing; done; touch ended; } &\n"
        "echo $! > left\n"
    )
    yield program.path
    assert not (program.folder / "ended").exists(), "it was waited for"
    os.kill(int((program.folder / "left").read_text()), signal.SIGKILL)


def test_what_a_command_leaves_running_is_not_waited_for(left_behind, ours):
    """Yet all that the command itself has printed is read: an answer cut short is another one."""
    before = threading.enumerate()
    with left_behind.open("a") as file:
        file.write("echo beside >&2\nhead -c 300000 /dev/zero\n")
    assert ours.run("get", "pods").replace("x\n", "") == "\0" * 300_000
    assert set(threading.enumerate()) <= set(before)


def test_nor_where_the_command_does_not_answer(left_behind, ours, monkeypatch):
    begun = left_behind.with_name("left")

    class Begun(kubectl.subprocess.Popen):
        """One whose time begins when it has left its program running."""

        def wait(self, timeout=None):
            while not (begun.exists() and begun.read_text()):
                time.sleep(0.01)
            return super().wait(timeout)

    monkeypatch.setattr(kubectl.subprocess, "Popen", Begun)
    with left_behind.open("a") as file:
        file.write("exec sleep 30\n")
    said = str(told(lambda: ours.run("get", "pods", seconds=0.4)))
    assert said == "kubectl get: no answer in 0 s"


def test_a_command_that_reads_nothing_and_does_not_end_is_ended(program, ours):
    program.path.write_text("#!/bin/bash\nexec sleep 30\n")
    said = str(told(lambda: ours.run("apply", stdin="x" * 1_000_000, seconds=0.4)))
    assert said == "kubectl apply: no answer in 0 s"


def test_what_nobody_reads_holds_up_nothing(program, ours):
    """Not even the end of this process, where another program keeps the command's input open."""
    os.mkfifo(program.folder / "nothing")
    program.path.write_text(
        f"#!/bin/bash\ncd {program.folder}\nexec 3<&0\n{{ read -rt 30 <>nothing; }} &\n"
        "echo $! > left\necho done\n"
    )
    assert ours.run("apply", stdin="x" * 1_000_000) == "done\n"
    assert [one for one in threading.enumerate() if not one.daemon] == [threading.main_thread()]
    os.kill(int((program.folder / "left").read_text()), signal.SIGKILL)


def test_a_program_that_cannot_be_started(program, ours):
    program.path.write_text("#!/no/such/interpreter\n")
    assert str(told(lambda: ours.run("get"))) == (
        "kubectl cannot be started: No such file or directory"
    )


def test_an_interrupt_leaves_no_program_behind(program, ours, monkeypatch):
    program.path.write_text("#!/bin/bash\nexec sleep 60\n")
    made = []

    class Interrupted(kubectl.subprocess.Popen):
        def wait(self, timeout=None):
            made.append(self)
            if len(made) == 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(kubectl.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        ours.run("get")
    assert made[0].returncode == -9


def test_a_command_has_a_minute(program, ours, monkeypatch):
    seen = []

    class Noted(kubectl.subprocess.Popen):
        def wait(self, timeout=None):
            seen.append(timeout)
            return super().wait(timeout)

    monkeypatch.setattr(kubectl.subprocess, "Popen", Noted)
    ours.run("get", "pods")
    ours.json("get", "pods")
    assert [one for one in seen if one is not None] == [60.0, 60.0]
