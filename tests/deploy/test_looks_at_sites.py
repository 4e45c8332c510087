"""Looks at all nodes of a site: what each is asked, what is told of it, and from node to node."""

from __future__ import annotations

import base64
import re
import shlex
import types
from pathlib import Path

import pytest

from kimi_nb import show
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import node_looks
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.node_answers import Answer, Line
from kimi_nb.deploy.node_looks import NodeLooks, Row
from kimi_nb.deploy.slurm import job_faults
from kimi_nb.deploy.slurm.cluster import Cluster
from kimi_nb.deploy.slurm.slurm_commands import SlurmError
from kimi_nb.deploy.ssh import transport
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.service import prerequisites
from kimi_nb.service.prerequisites import Look, Seen

A3, SITE = load.hardware("a3"), load.site("a3")
WEIGHTS = load.model("k2.5").weights["w4a8"]
NAMES = [node.name for node in SITE.nodes]
ADDRESS = {node.name: node.address for node in SITE.nodes}


class Nodes:
    """Nodes on which commands come to what ``says`` returns: (exit code, output), or no answer."""

    def __init__(self, says, unreachable=None) -> None:
        self.unreachable: dict[str, str] = dict(unreachable or {})
        self.says, self.closed = says, 0
        self.asked: dict[str, list[list[str]]] = {}

    def look(self, texts):
        assert texts, "nobody is asked for nothing"
        out = {}
        for node, text in texts.items():
            assert node not in self.unreachable
            found = re.findall(r"^one (\d+) (.+?)( &)?$(?=\n(?:one|wait))", text, re.M | re.S)
            mine = [(number, shlex.split(words)) for number, words, _ in found]
            self.asked.setdefault(node, []).extend(argv for _, argv in mine)
            lines = [line for number, argv in mine if (line := self._line(node, number, argv))]
            out[node] = Answer(tuple(lines))
        return out

    def _line(self, node, number, argv):
        said = self.says(node, argv)
        if said is None:
            return None
        text = base64.b64encode(said[1].encode("utf-8", "surrogateescape")).decode()
        return Line("fact", f"look {number}", f"{said[0]} {text}")

    def change(self, texts, verb):
        raise AssertionError("a look changes nothing")

    def close(self):
        self.closed += 1


def address(node: str, device: str) -> str:
    return f"10.0.{NAMES.index(node) if node in NAMES else ord(node)}.{device}"


def healthy(node, argv):
    """What a good node says."""
    if argv[-2:] == ["-vnic", "-g"]:
        return 0, f"vnic ipaddr:{address(node, argv[2])}\nvnic netmask:255.255.0.0"
    said = {
        "npu-smi": "OK",
        "ping": "2 received, 0% packet loss",
        "hccn_tool": "UP Success switch[0]",
    }
    said["hccn_tool"] += " 3 received, 0.00% packet loss"
    return 0, said.get(argv[0], "Version=25 files in address room 0\n")


@pytest.fixture
def looked(monkeypatch):
    """Returns the looks at the nodes of the example's site, on a stand-in for the connection."""

    def made(nodes, *more, **named) -> NodeLooks:
        monkeypatch.setattr(
            node_looks, "_connect", lambda site, folder: folder.is_dir() and site is SITE and nodes
        )
        return node_looks.of_site(A3, SITE, WEIGHTS, "pd", *more, **named)

    return made


# A site ---------------------------------------------------------------------------------------


def test_every_node_of_a_site_is_looked_at(looked):
    nodes = Nodes(healthy)
    found = looked(nodes)
    assert found.site == SITE.name and nodes.closed == 1 and found.failed == ()
    checks = list(dict.fromkeys(row.check for row in found.rows))
    assert [(row.node, row.check) for row in found.rows] == [
        (name, check) for name in NAMES for check in checks
    ]
    assert {"devices", "driver", "reach", "link", "npu-ping"} <= set(checks)
    pinged = {node: [argv[-1] for argv in each if argv[0] == "ping"] for node, each in nodes.asked.items()}  # fmt: skip
    assert pinged == {name: [ADDRESS[other] for other in NAMES if other != name] for name in NAMES}
    (row,) = (row for row in found.rows if (row.node, row.check) == ("a3-0", "npu-ping"))
    # Each device to the same one of the next node, and one of each of the two others.
    assert (row.status, row.found, row.help) == ("pass", "18 of 18", "")


def test_other_layouts_and_installations_have_their_own_looks(monkeypatch):
    nodes = Nodes(healthy)
    monkeypatch.setattr(node_looks, "_connect", lambda site, folder: nodes)
    seen = []
    looks = prerequisites.looks
    monkeypatch.setattr(
        prerequisites, "looks", lambda *given: seen.append(given[3:]) or looks(*given)
    )
    engine = object()  # only the driver of NVIDIA depends on it
    found = node_looks.of_site(A3, SITE, WEIGHTS, "single", "pip", engine)
    assert seen == [("single", "pip", engine)]
    wanted = {name for name, check in A3.checks.items() if "single" in check.layouts}
    assert {row.check for row in found.rows} == wanted
    node_looks.of_site(A3, SITE, WEIGHTS, "pd")
    assert seen[1] == ("pd", "docker", None)


@pytest.mark.parametrize("gone", [NAMES[1:2], NAMES])
def test_a_node_that_cannot_be_reached_is_told(gone, looked):
    why = "Could not connect (timed out)"
    nodes = Nodes(healthy, dict.fromkeys(gone, why))
    found = looked(nodes)
    cause = "one-node" if len(gone) < len(NAMES) else "every-node"
    for name in NAMES:
        rows = [row for row in found.rows if row.node == name]
        if name in gone:
            assert rows == [Row(name, "reached", "fail", "cannot be reached: timed out",
                                remedies.of(f"reach/{cause}"))]  # fmt: skip
        else:
            assert len(rows) > 5 and not [row for row in rows if row.status == "fail"]
    assert found.failed == tuple(f"{name} reached" for name in gone) and nodes.closed == 1


def test_a_connection_is_closed_where_a_look_fails(looked):
    def broken(node, argv):
        raise RuntimeError("of the transport")

    nodes = Nodes(broken)
    with pytest.raises(RuntimeError):
        looked(nodes)
    assert nodes.closed == 1


def test_a_node_that_says_nothing_fails_each_check(looked):
    found = looked(Nodes(lambda node, argv: None if node == "a3-1" else healthy(node, argv)))
    rows = [row for row in found.rows if row.node == "a3-1"]
    assert len(rows) > 5 and {row.status for row in rows} == {"fail"}
    assert rows[0].found == "no answer: the look ended early"
    assert rows[0].help == remedies.of("node/silent", node="a3-1")


def test_the_table_of_a_site():
    rows = (Row("a", "disk", "fail", "full", "Delete."), Row("a", "driver", "pass", "25"),
            Row("b", "disk", "skipped", "why"), Row("b", "driver", "pass", "25"))  # fmt: skip
    found = NodeLooks("s", rows)
    assert found.failed == ("a disk",) and found.counts == {"fail": 1, "pass": 2, "skipped": 1}
    assert found.table() == show.Table(
        "s: 2 OK, 1 failed, 1 not looked",
        ("node", "check", "is", "found", "what to do"),
        (
            ("a", "disk", "fail", "full", "Delete."),
            ("a", "driver", "OK", "25", ""),
            ("b", "disk", "not looked", "why", ""),
            ("b", "driver", "OK", "25", ""),
        ),
    )


# Connections ----------------------------------------------------------------------------------


def test_a_site_on_this_machine_needs_no_connection(tmp_path):
    site = build.plan("tiny-llama", "cpu", "dp").request.site
    assert isinstance(node_looks._connect(site, tmp_path), LocalNodes)
    assert [*tmp_path.iterdir()] == []


def test_a_site_over_ssh_is_reached_with_its_own_files(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(transport, "SshNodes", lambda *given: made.append(given) or "nodes")
    assert node_looks._connect(SITE, tmp_path) == "nodes"
    ((listed, folder, log),) = made
    assert [(name, data["ssh_hostname"]) for name, data in listed] == [*ADDRESS.items()]
    assert log == tmp_path / "ssh.log" and folder.is_dir() and any(folder.iterdir())
    assert tmp_path in folder.parents


def test_a_private_key_that_is_not_there(tmp_path, monkeypatch):
    def with_key(key):
        return SITE.model_copy(update={"ssh": SITE.ssh.model_copy(update={"key_file": key})})

    made = []
    monkeypatch.setattr(transport, "SshNodes", lambda *given: made.append(given))
    with pytest.raises(ParameterError) as told:
        node_looks._connect(with_key(str(tmp_path / "none")), tmp_path)
    assert str(told.value) == (
        f"Site {SITE.name}, ssh.key_file {tmp_path / 'none'}: there is no such file on this "
        "machine. Name the private key, or leave it out for the agent's and those of ~/.ssh."
    )
    assert made == []
    with pytest.raises(ParameterError):
        node_looks.check_key(with_key(str(tmp_path)))  # a folder is no key
    (tmp_path / "id").write_text("key")
    monkeypatch.setenv("HOME", str(tmp_path))
    node_looks.check_key(with_key("~/id"))
    node_looks.check_key(with_key(None))


# SLURM ----------------------------------------------------------------------------------------


def test_a_cluster_is_looked_at_from_its_login_node(monkeypatch):
    plan = build.plan("k2.5", "h200", "single", variant="slurm")
    made = []

    def look(cluster):
        made.append(cluster)
        cluster._say("nothing of it is shown")
        return [], "the controller is UP"

    monkeypatch.setattr(Cluster, "look", look)
    found = node_looks.of_cluster(plan)
    apart = Row("the nodes", "devices, driver, network", "skipped", "SLURM gives a node to a job "
                "only, so that none can be looked at before one runs")  # fmt: skip
    assert found.site == plan.site
    assert found.rows == (Row("login node", "SLURM", "pass", "the controller is UP"), apart)
    assert made[0].plan is plan and not made[0]._folder.exists()
    assert made[0]._files[f"jobs/{plan.jobs[0].file}"].startswith("#!/bin/bash")
    assert made[0]._run_id == "look" and made[0]._folder.is_absolute()
    wrong = job_faults.silent(SlurmError("no answer"))
    monkeypatch.setattr(Cluster, "look", lambda cluster: ([wrong], ""))
    found = node_looks.of_cluster(plan)
    assert found.rows == (Row("SLURM", "slurm-silent", "fail", wrong.cause, wrong.help), apart)


# From node to node ----------------------------------------------------------------------------


def links(says, names=("a", "b"), every=True, **more):
    nodes = Nodes(says)
    return node_looks.links(nodes, A3, names, every=every, **more), nodes


def test_a_node_alone_and_another_layout_have_no_links():
    for names, layout in ((["a"], "pd"), ([], "pd"), (["a", "b"], "single")):
        found, nodes = links(healthy, names, layout=layout)
        assert found == {} and nodes.asked == {}


def test_each_device_tries_that_of_the_next_node():
    found, nodes = links(healthy, layout="pd")
    tried = [argv for argv in nodes.asked["a"] if "-hccs_ping" in argv]
    assert tried == [
        ["hccn_tool", "-i", str(at), "-hccs_ping", "-g", "address", address("b", str(at))]
        for at in range(16)
    ]
    assert [*found] == ["a", "b"] and {one.status for one in found["a"]} == {"pass"}
    assert len(found["a"]) == 16


def test_each_pair_of_nodes_is_tried_by_another_device():
    _, nodes = links(healthy, ("a", "b", "c", "d"))
    tried = [(argv[2], argv[-1]) for argv in nodes.asked["b"] if "-hccs_ping" in argv]
    assert tried == [
        *((str(at), address("c", str(at))) for at in range(16)),
        ("1", address("d", "1")),
        ("2", address("a", "2")),
    ]


def test_before_a_start_one_device_of_each_node_is_tried():
    found, nodes = links(healthy, ("a", "b", "c"), every=False)
    for name, mine in nodes.asked.items():
        others = [argv[-1] for argv in mine if "-hccs_ping" in argv]
        assert sorted(others) == [address(one, "0") for one in "abc" if one != name]
    assert {name: len(each) for name, each in found.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_device_without_an_address_is_told_and_not_tried():
    def says(node, argv):
        silent = (node, argv[2], argv[-2]) == ("b", "3", "-vnic")
        return (1, "no such device") if silent else healthy(node, argv)

    found, nodes = links(says)
    # b tells it once; what a would have tried is not looked at, and b's own device tries nothing.
    (wrong,) = (one for one in found["b"] if one.status != "pass")
    assert (wrong.status, wrong.found) == ("fail", "exit code 1: no such device")
    assert wrong.look.name == "npu-ping of 3" and found["b"][0] is wrong
    (left,) = (one for one in found["a"] if one.status != "pass")
    assert (left.status, left.found) == ("skipped", "b does not say the address of 3")
    assert left.look.name == "npu-ping 3 to 3 of b ()"
    assert [len(found[name]) for name in "ab"] == [16, 16]
    for name in "ab":
        tried = {argv[2] for argv in nodes.asked[name] if "-hccs_ping" in argv}
        assert tried == {str(at) for at in range(16) if at != 3}


def test_a_node_that_is_not_reached_tells_no_address():
    nodes = Nodes(healthy, {"b": "timed out"})
    found = node_looks.links(nodes, A3, ["a", "b"], every=False)
    assert [one.found for one in found["a"]] == ["b does not say the address of 0"]
    assert found["b"] == [] and [*nodes.asked] == ["a"]


def test_links_that_are_down_are_told_apart_from_what_is_not_known():
    def says(node, argv):
        if argv[3] == "-hccs_ping" and node == "a":
            return (0, "3 packets transmitted, 0 received, 100.00% packet loss") if argv[2] == "1" else (1, "bad option")  # fmt: skip
        return healthy(node, argv)

    found, _ = links(says)
    down, unknown = node_looks.diagnoses({"a": found["a"][:2], "b": found["b"]})
    address_ = address("b", "1")
    assert down == [
        Diagnosis(
            "link-down",
            "a",
            None,
            f"npu-ping 1 to 1 of b ({address_}): "
            "3 packets transmitted, 0 received, 100.00% packet loss",
            f"hccn_tool -i 1 -hccs_ping -g address {address_}",
            remedies.of("look/npu-ping", node="a"),
        )
    ]
    (silent,), _ = node_looks.diagnoses(
        {"a": [Seen(asked("link 0", broken="timeout"), "fail", "no answer within 20 s", "timeout")]}
    )
    assert silent.help == remedies.of("node/silent", node="a")
    assert unknown == [("a", f"link not tried: npu-ping 0 to 0 of b ({address('b', '0')}): "
                             "exit code 1: bad option")]  # fmt: skip
    assert node_looks.diagnoses({}) == ([], [])


# What a node is asked, and what it says -------------------------------------------------------


def asked(name="disk", argv=("true",), needs="tool", pattern="", broken=""):
    return Look(name, "what", argv, "OK", pattern, needs, "", broken)


def said(look: Look, *facts: tuple[str, str], error="") -> Seen:
    answer = Answer(tuple(Line("fact", thing, text) for thing, text in facts), error)
    (seen,) = node_looks._seen([look], answer)
    return seen


def b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


@pytest.mark.parametrize(
    ("look", "text", "status", "found"),
    [
        (asked(), f"0 {b64('fine')}", "pass", "fine"),
        (asked(), "0 ", "pass", ""),
        (asked(), f"3 {b64('oops')}", "fail", "exit code 3: oops"),
        (asked(pattern="^b"), f"0 {b64('a')}", "fail", "a"),
        (asked(), f"0 {b64(bytes([255]))}", "pass", "\ufffd"),
        (asked(), "125 ", "skipped", "no time was left: the looks before it took 240 s"),
        (asked(), f"125 {b64('of docker')}", "fail", "exit code 125: of docker"),
        (asked(), f"127 {b64('x: command not found')}", "fail", "exit code 127: x: command not found"),
        (asked(needs="node"), f"127 {b64('x: command not found')}", "skipped", "x: command not found"),
        (asked(needs="node"), f"126 {b64('x')}", "fail", "exit code 126: x"),
        (asked(), "124 ", "fail", "no answer within 20 s"),
        (asked(), f"124 {b64('half')}", "fail", "no answer within 20 s"),
        (asked(), "odd", "fail", "no answer: the look ended early"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_look(look, text, status, found):
    seen = said(look, ("look 0", text))
    assert (seen.look, seen.status, seen.found) == (look, status, found)


def test_a_look_without_an_answer_tells_why():
    assert said(asked(), error="the connection ended").found == "no answer: the connection ended"
    assert said(asked(), ("look 1", f"0 {b64('x')}")).found == "no answer: the look ended early"
    late = said(asked(broken="timeout"), ("look 0", "124 "))
    assert late.text == "timeout" and node_looks._is_broken(late)
    (first, second) = node_looks._seen(
        [asked(), asked()],
        Answer((Line("fact", "look 1", f"0 {b64('1')}"), Line("warn", "look 0", f"0 {b64('0')}"))),
    )
    assert first.status == "fail" and second.found == "1"


def test_nodes_without_looks_are_not_asked():
    nodes = Nodes(healthy, {"c": "timed out"})
    found = node_looks._ask(nodes, A3, {"a": [], "b": [asked()], "c": [asked()]})
    assert [*nodes.asked] == ["b"] and found["a"] == found["c"] == [] and len(found["b"]) == 1
    assert node_looks._ask(Nodes(None), A3, {"a": []}) == {"a": []}


def test_the_text_of_a_call():
    looks = [asked(argv=("ping", "-c", "2", "n2")), asked(argv=("printf", "a b; $(x)"))]
    lines = node_looks._text(A3, looks).splitlines()
    assert lines[-4:] == [
        "PATH=$PATH:" + shlex.quote(":".join(["/usr/sbin", "/sbin", *node_looks._tools(A3)])),
        "one 0 ping -c 2 n2 &",
        "one 1 printf 'a b; $(x)'",
        "wait",
    ]
    assert lines[-5] == "ALL=240 EACH=20 LATE=125 MISSING=127"
    assert node_looks._text(A3, looks).endswith("\nwait\n")


def test_our_script_is_utf8_whatever_the_language_of_the_shell(monkeypatch):
    coded, read = [], Path.read_text

    def noted(path, *given, **more):
        coded.append(str(more.get("encoding")).lower())
        return read(path, *given, **more)

    monkeypatch.setattr(Path, "read_text", noted)
    assert node_looks._carried(["python3", prerequisites.CHECK_WEIGHTS, "/"])[1] == "-c"
    assert coded == ["utf-8"]


def test_the_folders_of_the_driver_s_programs():
    assert node_looks._tools(load.hardware("h200")) == []
    assert node_looks._tools(types.SimpleNamespace(container=None, checks={})) == []
    places = ("/opt/a/npu-smi:/usr/bin/npu-smi:ro", "/opt/a/hccn_tool", "/opt/b/npu-smi", "/data")
    hardware = types.SimpleNamespace(
        container=types.SimpleNamespace(mounts=places), checks=A3.checks
    )
    assert node_looks._tools(hardware) == ["/opt/a", "/opt/b"]


# Rows -----------------------------------------------------------------------------------------


def rows(*found: tuple[str, str, str]) -> list[Row]:
    return [*node_looks._rows("h1", [Seen(asked(name), *rest) for name, *rest in found])]


def test_the_worst_look_of_a_check_is_told():
    found = rows(
        ("disk", "pass", "room"),
        ("link 0", "pass", "UP"),
        ("tls 0", "skipped", "why"),
        ("link 1 to 2", "fail", "DOWN"),
        ("tls 1", "pass", "0"),
        ("link 2", "skipped", "late"),
    )
    assert [(row.node, row.check, row.status, row.found) for row in found] == [
        ("h1", "disk", "pass", "room"),
        ("h1", "link", "fail", "1 to 2: DOWN"),
        ("h1", "tls", "pass", "1 of 2; not looked: why"),
    ]
    assert [bool(row.help) for row in found] == [False, True, False]


@pytest.mark.parametrize(
    ("name", "found", "help_"),
    [
        ("disk /x", "full", remedies.of("node/room", node="h1")),
        ("weights", "none", remedies.of("node/weights", node="h1")),
        ("hccn-conf", "none", remedies.of("node/hccn.conf", node="h1")),
        ("npu-ping 0", "loss", remedies.of("look/npu-ping", node="h1")),
        ("disk", "no answer within 20 s", remedies.of("node/silent", node="h1")),
        ("disk", "exit code 127: x", remedies.of("look/program", node="h1", program="true")),
        ("odd", "x", "Wanted: OK. By hand: true 'a b'"),
    ],
)
def test_what_to_do_about_a_failed_look(name, found, help_):
    one = Seen(asked(name, ("true", "a b")), "fail", found)
    assert node_looks._help("h1", one) == help_ and help_
    (row,) = node_looks._rows("h1", [one])
    assert row.help == help_
    long = Seen(asked("odd", ("true", "x" * 300)), "fail", found)
    if name == "odd":
        assert node_looks._help("h1", long) == f"Wanted: OK. By hand: true {'x' * 195}"
