"""A KV store on nodes: its master and services before the engines, their state, their end."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from kimi_nb.bundle import scripts, writer
from kimi_nb.deploy import node_call
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.plan import build

RUN = f"s{os.getpid()}"
# Listens at (address, port), as the master does, and at nothing else.
LISTENS = """import socket, sys, time
one = socket.create_server((sys.argv[1], int(sys.argv[2])))
time.sleep(60)
"""


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Nodes:
    """Two nodes of this machine that share a store; its parts and the engines are stand-ins."""

    def __init__(self, root: Path, model: str, site: str, ports: dict[str, int]) -> None:
        self.root, self.ports = root, ports
        plan = build.plan(model, "h200", "single", site=site)
        self.names = plan.nodes
        writer.write(scripts.files(plan), root / "files")
        (root / "bin").mkdir()
        program = root / "bin" / "mooncake_master"
        program.write_text("#!/bin/sh\necho mooncake_master version 0.3.13.post1\n")
        program.chmod(0o755)
        self.folders = {}
        for at, name in enumerate(self.names):
            files, address = root / "files" / name, f"127.0.0.{at + 1}"
            self.folders[name] = root / "work" / name
            (files / "serve.sh").write_text("sleep 60\n")
            env = files / "node.env"
            shared = {"store-master": ("127.0.0.1", ports["rpc"])}
            if (files / "store-service.sh").exists():
                shared["store-service"] = (address, ports["service"])
            values = {
                "WORK": root / "work" / f"claim-{name}",
                "FOLDER": self.folders[name],
                "ENGINE": "",
                "ADDRESS": address,
                "STORE_SECONDS": 3,
                "PORTS": "\n".join(f"{port} {part}" for part, (_, port) in shared.items()),
            }
            parts = [f"{part} {host} {port}" for part, (host, port) in shared.items()]
            env.write_text(
                env.read_text()
                + "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in values.items())
                + f"SHARED=({shlex.join(parts)})\n"
            )
            for part, port in (("store-master", "rpc"), ("store-service", "service")):
                if (files / f"{part}.sh").exists():
                    words = [sys.executable, "-c", LISTENS]
                    words += ["127.0.0.1" if port == "rpc" else address, str(ports[port])]
                    (files / f"{part}.sh").write_text(f"exec {shlex.join(words)}\n")

    def call(self, node: str, *verbs: str) -> dict[str, list[tuple[str, str]]]:
        """Lines by kind: (thing, text)."""
        text = node_call.text(self.root / "files" / node, verbs, run=RUN, holder="me")
        path = f"PATH={self.root / 'bin'}:$PATH\n"
        answer = LocalNodes().change({node: path + text}, verbs[-1])[node]
        out: dict[str, list[tuple[str, str]]] = {"error": [("", answer.error)]}
        for line in answer.lines:
            if line.thing != "verb":
                out.setdefault(line.kind, []).append((line.thing, line.text))
        return out

    def pid(self, node: str, name: str) -> int:
        return int((self.folders[node] / "run" / f"{name}.pid").read_text().split()[0])


@pytest.fixture
def nodes(request, tmp_path, stored_model, nodes_file):
    ports, mode = {"rpc": free(), "service": free()}, getattr(request, "param", "centralised")
    store = {"mode": mode, "segment_gb": 1}
    made = Nodes(tmp_path, stored_model(mode, store=store), nodes_file("h200", 2), ports)
    yield made
    for name in made.names:
        made.call(name, "stop", "release")


@pytest.mark.parametrize(
    "nodes", ["centralised", pytest.param("distributed", marks=pytest.mark.long)], indirect=True
)
def test_the_store_is_there_before_the_engines_and_ends_with_them(nodes):
    first, second = nodes.names
    began = nodes.call(first, "claim", "push", "start")
    central = (nodes.root / "files" / first / "store-service.sh").exists()
    assert ("store", "started: store-master.sh") in began["changed"], began
    assert (("store", "started: store-service.sh") in began["changed"]) == central
    assert began["changed"][-1] == ("engines", "started: serve.sh")
    other = nodes.call(second, "claim", "push", "start")["changed"]
    assert ("store", "started: store-master.sh") not in other and other[-1][0] == "engines"

    facts = dict(nodes.call(first, "state")["fact"])
    assert facts["engines"] == facts["store-master"] == "runs"
    assert ("store-service" in facts) == central
    assert nodes.call(first, "start")["same"] == [("engines", "run")]
    assert (nodes.folders[first] / "logs" / "store-master.log").exists()

    for name in nodes.names:
        nodes.call(name, "stop", "release")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", nodes.ports["rpc"]))
    assert not any((folder / "run").exists() for folder in nodes.folders.values())


@pytest.mark.long
def test_a_master_that_is_killed_is_told_and_not_passed_over(nodes):
    first = nodes.names[0]
    nodes.call(first, "claim", "push", "start")
    leader = nodes.pid(first, "store-master")  # the shell that tells of its end
    (child,) = psutil.Process(leader).children()
    child.kill()
    end = time.monotonic() + 60
    while dict(nodes.call(first, "state")["fact"])["store-master"] == "runs":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert dict(nodes.call(first, "state")["fact"])["store-master"] == "ended 137"
    log = (nodes.folders[first] / "logs" / "store-master.log").read_text()
    assert f"node {first}: store-master failed: signal SIGKILL" in log
    assert "store-master has ended" in nodes.call(first, "start")["fail"][0][1]


def test_no_engine_starts_where_no_master_answers(nodes):
    second = nodes.names[1]
    with (nodes.root / "files" / second / "node.env").open("a") as env:
        env.write("STORE_SECONDS=1\n")
    said = nodes.call(second, "claim", "push", "start")
    (thing, text) = said["fail"][0]
    assert thing == "store" and "store-master does not answer at 127.0.0.1" in text
    assert "engines" not in dict(nodes.call(second, "state").get("fact", []))


def test_a_part_that_ends_at_once_is_told_with_what_it_said(nodes):
    first = nodes.names[0]
    script = nodes.root / "files" / first / "store-master.sh"
    script.write_text("echo 'ERROR: unknown command line flag' >&2\nexit 1\n")
    text = nodes.call(first, "claim", "push", "start")["fail"][0][1]
    assert text == "store-master ended with exit code 1: ERROR: unknown command line flag"


def test_a_node_without_the_program_is_named(nodes):
    first = nodes.names[0]
    assert nodes.call(first, "engine")["same"][0][0] == "store"
    (nodes.root / "bin" / "mooncake_master").write_text(
        "#!/bin/sh\necho 'libibverbs.so.1: cannot open shared object file' >&2\nexit 127\n"
    )
    assert "libibverbs.so.1" in nodes.call(first, "engine")["fail"][0][1]
    (nodes.root / "bin" / "mooncake_master").unlink()
    assert nodes.call(first, "engine")["fail"][0] == ("store", "mooncake_master is not on PATH")


def test_other_bundles_know_nothing_of_a_store():
    files = scripts.files(build.plan("k2.5", "h200", "single", variant="pip"))
    assert not any("mooncake" in text.lower() for text in files.values())
    assert "#store{" not in "".join(files.values()) and "store-master" not in files
