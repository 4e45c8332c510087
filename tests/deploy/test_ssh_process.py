"""pyinfra's side of nodes over SSH: real pyinfra, over connections that answer by a table."""

from __future__ import annotations

import importlib
import io
import json
import shutil
import socket
import sys
import types

import gevent.monkey
import pyinfra
import pytest
from pyinfra.api import inventory
from pyinfra.api.exceptions import ConnectError
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput, OutputLine

from kimi_nb.core import paths
from kimi_nb.deploy.ssh import channel_bounds

with pytest.MonkeyPatch.context() as patch:
    # Its sockets and threads would be those of all other tests too.
    patch.setattr(gevent.monkey, "patch_all", lambda: None)
    ssh_process = importlib.import_module("kimi_nb.deploy.ssh.ssh_process")

ENDED = "no answer: the connection ended"
WAITED = f"{ENDED}, or nothing came for 30 s"
FACT = ["fact", "disk", "1 TB"]


class Transport:
    """A connection, perhaps through a channel of another one."""

    def __init__(self, over: Transport | None = None) -> None:
        self.keepalive, self.options = 0, []
        direct = types.SimpleNamespace(setsockopt=lambda *given: self.options.append(given))
        through = types.SimpleNamespace(get_transport=lambda: over)
        self.sock = through if over else direct

    def open_channel(self) -> None:
        raise NotImplementedError

    def set_keepalive(self, seconds: int) -> None:
        self.keepalive = seconds


class Connector(BaseConnector):
    """What pyinfra calls to reach a host and to run a command there; `Site` says what happens."""

    site: Site

    @staticmethod
    def make_names_data(name):
        raise NotImplementedError

    def connect(self) -> None:
        if why := self.site.gone.get(self.host.name):
            raise ConnectError(why)
        transport = self.site.transports[self.host.name] = Transport()
        self.client = types.SimpleNamespace(get_transport=lambda: transport)

    def run_shell_command(self, command, print_output=False, print_input=False, **more):
        name = self.host.name
        assert (pyinfra.host.name, pyinfra.state.pool) == (name, self.state.pool)
        script = more["_stdin"]
        shown = (str(command), str(script))
        self.site.ran.append(
            (name, shown, script.encode(), more.get("_timeout"), more.get("_shell_executable"))
        )
        said = self.site.says.get(name, (0, ""))
        if isinstance(said, BaseException):
            raise said
        code, out, *err = said
        looks = "fact\\texit" in str(command)
        out = f"{out}\nfact\texit\t{code}" if looks and code is not None else out
        lines = [OutputLine("stdout", line) for line in out.splitlines()]
        lines += [OutputLine("stderr", line) for line in err]
        return looks or code == 0, CommandOutput(lines)

    put_file = get_file = rsync = run_shell_command


class Site:
    """``says`` has what a host does: an exception, or a code, its output and lines of errors;
    without a code the output ends early. ``ran`` notes what was run."""

    def __init__(self) -> None:
        self.gone: dict[str, str] = {}
        self.says: dict[str, object] = {}
        self.ran: list[tuple] = []
        self.transports: dict[str, Transport] = {}


@pytest.fixture
def site(monkeypatch, tmp_path):
    made = Site()
    monkeypatch.setattr(Connector, "site", made, raising=False)
    monkeypatch.setattr(inventory, "get_execution_connectors", lambda: {"ssh": Connector})
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for name in ("node_steps", "node_call"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    made.folder = tmp_path / "deploy"
    made.folder.mkdir()
    shutil.copy(paths.DATA / "bundle" / "node_steps.py", made.folder)
    shutil.copy(paths.PACKAGE / "deploy" / "node_call.py", made.folder)
    # A person's own file of that name, in the folder where they are.
    (tmp_path / "node_steps.py").write_text("raise AssertionError\n")
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def hosts(site):
    """Returns hosts that were reached."""

    def made(*names: str, gone: int = 60):
        order = {"folder": str(site.folder), "gone": gone, "hosts": [[name, {}] for name in names]}
        one = ssh_process._Hosts(order)
        one.failed = one.connect()
        return one

    return made


# Reaching hosts -------------------------------------------------------------------------------


def test_hosts_that_cannot_be_reached_have_their_reasons(site, hosts):
    site.gone = {"b": "Could not connect (timed out)"}
    one = hosts("a", "b", "c")
    assert one.failed == {"b": "Could not connect (timed out)"}
    assert set(site.transports) == {"a", "c"}
    config = one.state.config
    assert (config.CONNECT_TIMEOUT, config.PARALLEL, one.state.check_for_changes) == (10, 3, False)
    site.gone = dict.fromkeys("ab", "no route")
    assert hosts("a", "b").failed == site.gone
    assert hosts(*[f"n{at}" for at in range(70)]).state.config.PARALLEL == 64


@pytest.mark.parametrize(("gone", "keepalive"), [(60, 15), (9, 2), (3, 1)])
def test_a_link_that_is_cut_ends_its_connection(hosts, site, gone, keepalive):
    hosts("a", gone=gone)
    mine = site.transports["a"]
    assert mine.keepalive == keepalive
    assert mine.options == [(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, gone * 1000)]
    door = Transport()
    through = Transport(over=door)  # a jump host
    ssh_process._end_when_gone(through, gone)
    assert (through.keepalive, door.keepalive) == (keepalive, keepalive)
    assert through.options == [] and door.options == mine.options


def test_a_host_that_sends_without_an_end_is_named(hosts, site, monkeypatch):
    held = {}
    monkeypatch.setattr(channel_bounds, "hold", held.__setitem__)
    one = hosts("a", "b")
    held[site.transports["b"]]()
    site.says = dict.fromkeys("ab", (None, "fact\tlog\tx"))
    flood = "no answer: it has sent more than 256 MB or 100000 lines"
    assert one.look({"a": "x", "b": "x"}, 30) == {"a": {"error": WAITED}, "b": {"error": flood}}


# Looks and changes ----------------------------------------------------------------------------


def test_a_look_asks_those_that_are_named(hosts, site):
    one = hosts("a", "b", "c")
    site.says = {
        "a": (0, "banner\nfact\tdisk\t1 TB"),
        "c": (3, "fail\tport\ttaken\nfact\tdisk\t1 TB"),
    }
    found = one.look({"c": "of c", "a": "of a"}, 30)
    assert found == {"a": {"lines": [FACT]}, "c": {"lines": [["fail", "port", "taken"], FACT]}}
    assert [one[::2] for one in site.ran] == [
        ("a", b"of a\n", "bash"),
        ("c", b"of c\n", "bash"),
    ]
    for _, (command, script), _, seconds, _ in site.ran:
        assert command.startswith('(eval "$(cat)"); printf') and command.endswith(": look")
        assert (script, seconds) == ("(a script)", 30)


def test_why_there_is_no_answer_to_a_look(hosts, site):
    one = hosts("a", "b", "c", "d", "e")
    site.says = {
        "a": (3, "fact\tdisk\t1 TB"),
        "b": (None, "fact\tdisk\t1 TB\nfact\tother\t0"),
        "c": (None, ""),
        "d": ValueError("a fault of pyinfra's"),
        "e": TimeoutError(),
    }
    texts = dict.fromkeys("abcde", "x")
    assert one.look(texts, 30) == {
        "a": {"lines": [FACT], "error": "node.sh ended with exit code 3"},
        "b": {"error": WAITED},
        "c": {"error": WAITED},
        "d": {"error": "a fault of pyinfra's"},
        "e": {"error": WAITED},
    }
    site.says = {}
    assert one.look(texts, 30) == {name: {"lines": []} for name in "abcde"}  # none is given up
    one, site.says["z"] = hosts("z"), TimeoutError()  # nor is the last one
    assert one.look({"z": "x"}, 30) == {"z": {"error": WAITED}}


def test_a_host_that_was_not_reached_says_so_again(hosts, site):
    site.gone = {"b": "Could not connect (timed out)"}
    one = hosts("a", "b")
    assert one.look({"b": "x"}, 30) == {"b": {"error": "Could not connect (timed out)"}}


def test_a_change_is_made_on_those_that_are_named(hosts, site):
    one = hosts("a", "b", "c")
    site.says = {"a": (0, "changed\tclaim\ttaken", "a warning"), "c": (1, "fail\tdisk\tfull")}
    assert one.change({"c": "of c", "a": "of a"}, "claim", None) == {
        "a": {"lines": [["changed", "claim", "taken"]]},
        "c": {"lines": [["fail", "disk", "full"]]},
    }
    shown = ('eval "$(cat)"', "(a script)")
    assert sorted(site.ran) == [
        ("a", shown, b"of a\n", None, "bash"),
        ("c", shown, b"of c\n", None, "bash"),
    ]
    # Each call is one of its own, also after one that failed everywhere.
    site.ran.clear()
    site.says = dict.fromkeys("abc", OSError("cut off"))
    lost = {"lines": [], "error": WAITED}
    assert one.change(dict.fromkeys("abc", "x"), "push", 30) == {"a": lost, "b": lost, "c": lost}
    assert {(name, seconds) for name, *_, seconds, _ in site.ran} == {(name, 30) for name in "abc"}
    site.ran.clear()
    site.says = {"b": (0, "same\tscripts\tthere")}
    assert one.change({"b": "x"}, "push", 30) == {"b": {"lines": [["same", "scripts", "there"]]}}
    assert [name for name, *_ in site.ran] == ["b"]


def test_why_a_change_has_no_answer(hosts, site):
    one = hosts("a", "b", "c")
    site.says = {
        "a": (3, "changed\tclaim\ttaken", "one", "y" * 400),
        "b": (3, ""),
        "c": ValueError("a fault of pyinfra's"),
    }
    assert one.change(dict.fromkeys("abc", "x"), "push", 30) == {
        "a": {"lines": [["changed", "claim", "taken"]], "error": "y" * 300},
        "b": {"lines": [], "error": WAITED},
        "c": {"error": WAITED},
    }
    site.says = {"a": (3, "", "one", "two"), "b": (4, "")}
    found = one.change(dict.fromkeys("ab", "x"), "weights", None)
    assert [found[name]["error"] for name in "ab"] == ["one two", ENDED]


def test_the_log_says_what_was_done_and_that_nobody_was_reached(hosts, site, caplog):
    caplog.set_level("DEBUG", logger="pyinfra")
    site.gone = {"a": "no route"}
    hosts("a")
    assert caplog.messages[-1] == "No hosts remaining!"
    hosts("b").change({"b": "x"}, "push", 30)
    assert any("Starting operation: push" in message for message in caplog.messages)


# Orders ---------------------------------------------------------------------------------------


def test_orders_are_answered_line_by_line(monkeypatch):
    made = []

    class Hosts:
        def __init__(self, order) -> None:
            made.append(order)

        def connect(self):
            return {"b": "gone"}

        def look(self, *given):
            return {"looked": list(given)}

        def change(self, *given):
            return {"changed": list(given)}

    class Out(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    monkeypatch.setattr(ssh_process, "_Hosts", Hosts)
    connect = {"do": "connect", "folder": "f", "gone": 60, "hosts": []}
    orders = [
        connect,
        {"do": "look", "texts": {"a": "x"}, "seconds": 30},
        {"do": "change", "texts": {"a": "y"}, "verb": "push", "seconds": 40},
    ]
    out = Out()
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("".join(json.dumps(one) + "\n" for one in orders))
    )
    monkeypatch.setattr(sys, "stdout", out)
    assert ssh_process.main() == 0 and made == [connect]
    assert [json.loads(line) for line in out.flushed.splitlines()] == [
        {"failed": {"b": "gone"}},
        {"nodes": {"looked": [{"a": "x"}, 30]}},
        {"nodes": {"changed": [{"a": "y"}, "push", 40]}},
    ]
    assert out.flushed.endswith("\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(orders[1]) + "\n"))
    with pytest.raises(AssertionError):
        ssh_process.main()
