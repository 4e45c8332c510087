"""The caller's side of nodes over SSH: what its processes are told, and what is made of answers."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from kimi_nb.core.errors import KimiError
from kimi_nb.deploy.node_answers import Answer, Line
from kimi_nb.deploy.ssh import transport
from kimi_nb.deploy.ssh.transport import SshNodes, Tunnel

HOSTS: list[tuple[str, dict[str, object]]] = [
    ("n0", {"ssh_hostname": "10.0.0.1", "ssh_port": 22}),
    ("n1", {"ssh_hostname": "10.0.0.2", "ssh_port": 22}),
]
REACHED = '{"failed": {}}'
NONE = '{"nodes": {}}'


class Orders(io.StringIO):
    """The input of a process: every line is an order once it is flushed."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site

    def flush(self) -> None:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        assert text.endswith("\n")
        self._site.noted += [("order", json.loads(line)) for line in text.splitlines()]

    def close(self) -> None:
        if not self.closed:
            self._site.noted.append(("input closed",))
        super().close()


class Process:
    """A program that was started; `Site` says what it prints and whether it has ended."""

    def __init__(self, argv: list[str], **more: object) -> None:
        self.site, self.name = Site.now, "ssh" if argv[0] == "ssh" else "pyinfra"
        self.argv, self.more = argv, more
        setattr(self.site, self.name, self)
        more["stderr"].write(f"{self.name} began\n".encode())
        if preexec := more.pop("preexec_fn", None):
            preexec()
        self.stdin, self.stdout = Orders(self.site), self
        self.site.noted.append(("start", self.name))

    def readline(self) -> str:
        said = self.site.says.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said if said == "" or said.endswith("cut") else said + "\n"

    def poll(self) -> int | None:
        assert self.name == "ssh"
        return self.site.ended

    def terminate(self) -> None:
        self.site.noted.append(("terminate", self.name))

    def kill(self) -> None:
        self.site.noted.append(("kill", self.name))

    def wait(self, seconds: float | None = None) -> None:
        self.site.noted.append(("wait", self.name, seconds))
        if self.site.hangs and seconds is not None:
            raise subprocess.TimeoutExpired(self.argv, seconds)


class Site:
    """``says`` has the lines that come, an exception, or "" where the process has ended;
    ``listens`` whether the proxy takes connections. ``noted`` has what happened, in order."""

    now: Site

    def __init__(self) -> None:
        Site.now = self
        self.says: list[str | BaseException] = [REACHED]
        self.listens: list[bool | BaseException] = [True]
        self.hangs, self.ended = False, None
        self.noted: list[tuple] = []
        self.clock, self.asked, self.slept = 100.0, [], []

    def look(self, url: str, seconds: float) -> bool:
        self.asked.append((url, seconds))
        self.clock += 5.0
        found = self.listens.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def orders(self) -> list[dict]:
        return [one[1] for one in self.noted if one[0] == "order"]


@pytest.fixture
def site(monkeypatch, tmp_path):
    made = Site()
    popen = types.SimpleNamespace(
        Popen=Process, **{name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}
    )  # fmt: skip
    clock = types.SimpleNamespace(monotonic=lambda: made.clock, sleep=made.slept.append)

    def prctl():
        made.noted.append(("look up prctl",))
        return lambda *given: made.noted.append(("prctl", *given))

    monkeypatch.setattr(transport, "subprocess", popen)
    monkeypatch.setattr(transport, "time", clock)
    monkeypatch.setattr(transport.prctl, "prctl", prctl)
    monkeypatch.setattr(transport.http_client, "listens", made.look)
    monkeypatch.setattr(
        transport.http_client, "go_through", lambda port: made.noted.append(("through", port))
    )
    made.log = tmp_path / "ssh.log"
    made.log.write_text("before\n")
    return made


def nodes(site: Site, *more: object, **named: object) -> SshNodes:
    return SshNodes(HOSTS, Path("/bundle/deploy"), site.log, *more, **named)


# Connecting -----------------------------------------------------------------------------------


def test_the_process_has_a_session_of_its_own_and_appends_to_the_log(site):
    nodes(site)
    assert site.pyinfra.argv == [sys.executable, "-m", "kimi_nb.deploy.ssh.ssh_process"]
    errors = site.pyinfra.more.pop("stderr")
    assert (errors.name, errors.closed) == (str(site.log), True)
    assert site.pyinfra.more == {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    assert site.log.read_text() == "before\npyinfra began\n"


def test_every_node_is_connected_by_the_bundles_own_configuration(site):
    nodes(site)
    config = "/bundle/deploy/ssh_config"
    assert site.noted == [
        ("start", "pyinfra"),
        ("order", {
            "do": "connect", "folder": "/bundle/deploy", "gone": 60,
            "hosts": [[name, {**mine, "ssh_config_file": config}] for name, mine in HOSTS],
        }),
    ]  # fmt: skip
    assert all("ssh_config_file" not in mine for _, mine in HOSTS)
    site.says.append(REACHED)
    nodes(site, gone=2)
    assert site.orders()[-1]["gone"] == 2


def test_nodes_that_cannot_be_reached_have_their_reasons(site):
    site.says = ['{"failed": {"n1": "Could not connect (timed out)"}}']
    assert nodes(site).unreachable == {"n1": "Could not connect (timed out)"}


ENDED = ["", '{"fai cut', "Killed"]


@pytest.mark.parametrize("said", ENDED)
def test_a_process_that_ends_while_it_connects_is_told_and_not_left(site, said):
    site.says = [said]
    with pytest.raises(KimiError) as told:
        nodes(site)
    assert str(told.value) == (
        f"The process that holds the SSH connections has ended; its messages: {site.log}"
    )
    assert site.noted[2:] == [("input closed",), ("wait", "pyinfra", 5)]


def test_nothing_is_left_by_who_is_interrupted_while_it_connects(site):
    site.says, site.hangs = [KeyboardInterrupt()], True
    with pytest.raises(KeyboardInterrupt):
        nodes(site)
    assert site.noted[2:] == [
        ("input closed",), ("wait", "pyinfra", 5), ("kill", "pyinfra"), ("wait", "pyinfra", None),
    ]  # fmt: skip


# Looks and changes ----------------------------------------------------------------------------


def test_a_look_asks_the_nodes_that_are_named(site):
    made = nodes(site)
    answers = {
        "n0": {"lines": [["fact", "disk", "1 TB"], ["fail", "port", "taken"]]},
        "n1": {"lines": [["fact", "disk", "1 TB"]], "error": "node.sh ended with exit code 3"},
        "n2": {"error": "no answer: the connection ended"},
        "n3": {"lines": []},
    }
    site.says = [json.dumps({"nodes": answers})]
    assert made.look(types.MappingProxyType({"n1": "of n1", "n0": "of n0"})) == {
        "n0": Answer((Line("fact", "disk", "1 TB"), Line("fail", "port", "taken"))),
        "n1": Answer((Line("fact", "disk", "1 TB"),), "node.sh ended with exit code 3"),
        "n2": Answer((), "no answer: the connection ended"),
        "n3": Answer(()),
    }
    assert site.orders()[1:] == [
        {"do": "look", "texts": {"n1": "of n1", "n0": "of n0"}, "seconds": 300}
    ]


def test_a_change_is_made_on_the_nodes_that_are_named(site):
    made = nodes(site)
    site.says = ['{"nodes": {"n0": {"lines": [["changed", "claim", "taken"]]}}}']
    found = made.change(types.MappingProxyType({"n0": "of n0"}), "claim")
    assert found == {"n0": Answer((Line("changed", "claim", "taken"),))}
    assert site.orders()[1:] == [
        {"do": "change", "texts": {"n0": "of n0"}, "verb": "claim", "seconds": 300}
    ]


@pytest.mark.parametrize("verb", ["prepare", "engine", "weights"])
def test_what_downloads_or_reads_the_weights_has_no_limit(site, verb):
    made = nodes(site, seconds=3)
    site.says = [NONE, NONE, NONE]
    made.change({}, verb)
    made.change({}, "start")
    made.look({})
    assert [one["seconds"] for one in site.orders()[1:]] == [None, 3, 3]


@pytest.mark.parametrize("said", [*ENDED, OSError("cut off"), ValueError("closed")])
def test_a_process_that_has_ended_is_told_at_each_call(site, said):
    made = nodes(site)
    for call in (lambda: made.look({"n0": "x"}), lambda: made.change({"n0": "x"}, "start")):
        site.says = [said]
        with pytest.raises(KimiError, match="has ended; its messages: ") as told:
            call()
        assert told.value.__suppress_context__


def test_an_order_that_cannot_be_written_is_no_obstacle_to_closing(monkeypatch, tmp_path):
    """Else what the order came to would be hidden by a broken pipe."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nread line\necho '{REACHED}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    made = SshNodes(HOSTS, tmp_path, tmp_path / "ssh.log")
    made._process.wait()
    with pytest.raises(KimiError, match="has ended"):
        made.look({"n0": "x"})
    made.close()
    made.close()


# Closing --------------------------------------------------------------------------------------


def test_connections_end_with_the_input(site):
    made = nodes(site)
    made.close()
    assert site.noted[2:] == [("input closed",), ("wait", "pyinfra", 5)]
    made.close()
    assert site.noted[4:] == [("wait", "pyinfra", 5)]


def test_a_process_that_does_not_end_is_killed(site):
    made = nodes(site)
    site.hangs = True
    made.close()
    assert site.noted[2:] == [
        ("input closed",), ("wait", "pyinfra", 5), ("kill", "pyinfra"), ("wait", "pyinfra", None),
    ]  # fmt: skip


# Behind another host --------------------------------------------------------------------------


def port(site: Site) -> int:
    """The port of the proxy."""
    return int(site.ssh.argv[site.ssh.argv.index("-D") + 1].removeprefix("127.0.0.1:"))


def test_requests_go_through_the_first_node_that_was_reached(site):
    site.says = ['{"failed": {"n0": "no route"}}']
    made = nodes(site, True)
    assert port(site) > 1024
    assert site.ssh.argv == [
        "ssh", "-F", "/bundle/deploy/ssh_config", "-N", "-D", f"127.0.0.1:{port(site)}",
        "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "10.0.0.2",
    ]  # fmt: skip
    errors = site.ssh.more.pop("stderr")
    assert (errors.name, errors.closed) == (str(site.log), True)
    assert site.ssh.more == {
        "stdin": subprocess.DEVNULL,
        "stdout": errors,
        "start_new_session": True,
    }
    assert site.log.read_text() == "before\npyinfra began\nssh began\n"
    # The library is looked up before forking; the tunnel ends with this process.
    assert site.noted[2:] == [
        ("look up prctl",),
        ("prctl", transport.prctl.PR_SET_PDEATHSIG, signal.SIGTERM),
        ("start", "ssh"),
        ("through", port(site)),
    ]
    assert site.asked == [(f"http://127.0.0.1:{port(site)}", 1.0)] and site.slept == []
    site.noted.clear()
    made.close()
    assert site.noted == [
        ("through", None), ("terminate", "ssh"), ("wait", "ssh", None),
        ("input closed",), ("wait", "pyinfra", 5),
    ]  # fmt: skip


def test_no_tunnel_is_made_where_nobody_needs_one(site):
    nodes(site)
    site.says = ['{"failed": {"n0": "no route", "n1": "no route"}}']
    nodes(site, jump=True).close()
    assert not hasattr(site, "ssh") and not any(one[0] == "through" for one in site.noted)


def test_a_tunnel_is_waited_for(site):
    site.listens = [False, False, True]
    Tunnel("10.0.0.1", Path("/c"), site.log)
    assert site.slept == [0.05, 0.05] and site.noted[-1] == ("through", port(site))


CLOSED = [("through", None), ("terminate", "ssh"), ("wait", "ssh", None)]


@pytest.mark.parametrize(("ended", "looks"), [(None, 4), (0, 1), (255, 1)])
def test_a_tunnel_that_does_not_open_is_told_and_not_left(site, ended, looks):
    site.listens, site.ended = [False] * 9, ended
    with pytest.raises(KimiError) as told:
        Tunnel("10.0.0.1", Path("/c"), site.log)
    assert str(told.value) == (
        f"10.0.0.1: no way for HTTP through ssh -D; what ssh says: {site.log}"
    )
    assert len(site.asked) == looks and site.noted[-4:] == [("start", "ssh"), *CLOSED]


def test_a_machine_without_ssh_is_told(site, monkeypatch):
    made = nodes(site)

    def popen(argv, **more):
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    monkeypatch.setattr(transport.subprocess, "Popen", popen)
    with pytest.raises(KimiError) as told:
        Tunnel("10.0.0.1", Path("/c"), site.log)
    assert str(told.value) == (
        "10.0.0.1: no way for HTTP through ssh -D: ssh cannot be started: No such file or directory"
    )
    assert told.value.__suppress_context__
    assert ("through", None) not in site.noted
    made.close()


def test_nothing_is_left_where_there_is_no_tunnel(site):
    site.listens, site.ended = [False], 255
    with pytest.raises(KimiError, match="no way for HTTP"):
        nodes(site, True)
    assert site.noted[-5:] == [*CLOSED, ("input closed",), ("wait", "pyinfra", 5)]


def test_nothing_is_left_by_who_is_interrupted_while_a_tunnel_opens(site):
    site.listens = [False, KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        nodes(site, True)
    assert site.noted[-5:] == [*CLOSED, ("input closed",), ("wait", "pyinfra", 5)]
