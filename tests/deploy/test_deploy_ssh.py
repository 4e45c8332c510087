"""Deployments over SSH: four hosts with a real sshd each, stand-ins in place of engines.

What is asked of a person's machine is asked here: `kimi-nb up`, `status`, `logs`, `down`, and
pyinfra by hand, all as processes on the controller's side of the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from testbed import hosts as testbed
from testbed.hub import HUB

from kimi_nb.core import evidence, paths
from kimi_nb.params import load
from kimi_nb.plan import build

KIMI = [str(Path(sys.executable).with_name("kimi-nb"))]
TWO, NAMES = ["h1", "h2"], ["h1", "h2", "h3", "h4"]
CHECKPOINTS = ("Eco-Tech/Kimi-K2.5-W4A8", "lightseekorg/kimi-k2.5-eagle3")
FOLDERS = ("Kimi-K2.5-W4A8", "kimi-k2.5-eagle3")  # below paths.models
PORT = "8088"
SHARD = "model-00001-of-00001.safetensors"

pytestmark = pytest.mark.skipif(bool(testbed.missing()), reason=testbed.missing() or "-")

HANGING = """
import json, sys
from pathlib import Path
from kimi_nb.bundle import inventory, scripts, writer
from kimi_nb.plan import build
from kimi_nb.deploy.ssh import transport

folder = Path(sys.argv[1])
plan = build.plan("k2.5", "a2", "dp", site=sys.argv[2])
writer.write(scripts.files(plan), folder)
nodes = transport.SshNodes(inventory.hosts(plan), folder / "deploy", folder / "log", seconds=3)
texts = {name: "printf 'fact\\techo\\tok\\n'" for name in plan.nodes}
for answers in (nodes.look(texts), nodes.change(texts, "start")):
    print(json.dumps({name: answer.error for name, answer in answers.items()}), flush=True)
nodes.close()
"""


CUT = """
import json, subprocess, sys
from pathlib import Path
from kimi_nb.bundle import inventory, scripts, writer
from kimi_nb.plan import build
from kimi_nb.deploy.ssh import transport

folder = Path(sys.argv[1])
plan = build.plan("k2.5", "a2", "dp", site=sys.argv[2])
writer.write(scripts.files(plan), folder)
nodes = transport.SshNodes(inventory.hosts(plan), folder / "deploy", folder / "log", gone=2)
subprocess.run(sys.argv[3:], check=True)
texts = {"h1": "printf 'fact\\techo\\tok\\n'", "h2": "sleep 60"}
for ask in (lambda: nodes.change(texts, "weights"), lambda: nodes.look(texts)):
    print(json.dumps({name: answer.error for name, answer in ask().items()}), flush=True)
nodes.close()
"""


class Site:
    """Four hosts that have what the A3 prefill-decode plan needs, and two of them the A2 plan for
    what it is enough for; `kimi` runs on the other side of the network. No test changes the
    settings of the machine itself: --without host-tuning."""

    def __init__(self, folder: Path, hosts: testbed.Hosts, stand_ins: testbed.StandIns) -> None:
        self.folder, self.hosts, self.stand_ins = folder, hosts, stand_ins
        self.plans = {}
        for hardware, layout, number in (("a3", "pd", 4), ("a2", "dp", 2), ("a3", "single", 4)):
            file = folder / f"{hardware}.yaml"
            file.write_text(hosts.site(hardware, number))
            self.plans[layout] = build.plan(
                "k2.5", hardware, layout, site=str(file), dropped=["host-tuning"]
            )

    def start(self, *names: str, fault: str = "") -> None:
        """Stand-ins anew on hosts, which ends their engines."""
        self.stand_ins.start(
            list(self.plans.values()), [self.host(name) for name in names], *filter(None, [fault])
        )

    def host(self, name: str) -> testbed.Host:
        return self.hosts.hosts[int(name[1:]) - 1]

    def target(self, layout: str = "dp", site: Path | None = None) -> list[str]:
        """The words that name a plan."""
        plan = self.plans[layout]
        return [
            "--model",
            "k2.5",
            "--hw",
            plan.hardware,
            "--layout",
            layout,
            "--site",
            str(site or self.folder / f"{plan.hardware}.yaml"),
            "--without",
            "host-tuning",
        ]

    def words(
        self, run: Path, *more: str, layout: str = "dp", site: Path | None = None
    ) -> list[str]:
        return [*KIMI, "up", *self.target(layout, site), "--run-dir", str(run), "--json", *more]

    def up(self, run: Path, *more: str, layout: str = "dp", site: Path | None = None):
        """(exit code, the JSON, stderr) of kimi-nb up, confirmed."""
        done = self.hosts.run(
            self.words(run, "--confirm", "testbed", *more, layout=layout, site=site)
        )
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    def kimi(self, *words: str):
        return self.hosts.run([*KIMI, *words])

    def engines(self) -> list[str]:
        """The command lines of the engines that run on the hosts."""
        found = []
        for host in self.hosts.hosts:
            for pid in subprocess.run(
                ["ip", "netns", "pids", host.netns], text=True, capture_output=True, check=True
            ).stdout.split():
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                except FileNotFoundError:
                    continue
                if words[-2:-1] != ["vllm"] and "serve" in words and "path_stub.py" in words[3]:
                    found.append(f"{host.name} {' '.join(words)}")
        return found

    def clear(self) -> None:
        self.start(*NAMES)
        for host in self.hosts.hosts:
            (host.root / "kimi/claim").unlink(missing_ok=True)

    def nothing_failed(self, run: Path) -> None:
        """What was stopped has not failed: the doctor on the run, and on the logs of the hosts."""
        own = [str(host.root / "kimi") for host in self.hosts.hosts]
        logs = [path for path in own if any(Path(path).rglob("rank_*.log"))]
        assert logs
        for given in ([str(run)], logs):
            done = self.kimi("doctor", *given)
            assert done.returncode == 0 and "nothing is wrong" in done.stdout, done.stdout

    def claims(self) -> list[str]:
        return [host.name for host in self.hosts.hosts if (host.root / "kimi/claim").exists()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ssh")
    hosts = testbed.Hosts(folder, 4)
    stand_ins = testbed.StandIns(hosts)
    for host in hosts.hosts:
        stand_ins.prepare(host)
        (host.folder / "etc").mkdir(parents=True)
        (host.folder / "etc" / "hccn.conf").write_text("address_0=192.0.2.1\n")
        for name in FOLDERS:
            testbed.checkpoint(host.root / "models" / name)
    with hosts:
        site = Site(folder, hosts, stand_ins)
        site.start(*NAMES)
        yield site
        for host in hosts.hosts:
            stand_ins.stop(host)


@pytest.fixture
def site(made, tmp_path):
    """The hosts as they were made, whatever the test before left."""
    yield made
    for state in tmp_path.glob("**/state.json") if made.claims() else ():
        if json.loads(state.read_text())["state"] != "down":
            made.kimi("down", str(state.parent))
    left = made.claims(), made.engines()
    if left != ([], []):  # the next test has nothing to do with it
        made.clear()
    assert left == ([], [])


def test_up_twice_status_logs_down_twice(site, tmp_path):
    run, plan = tmp_path / "run", site.plans["pd"]
    code, made, said = site.up(run, layout="pd")
    assert code == 0, (made and made["failed"], said[-400:])
    assert made["ready"] == made["engines"] == 36
    assert made["answer"].startswith("REHEARSAL") and made["mark"] == "REHEARSAL"
    assert len(site.engines()) == 36 and site.claims() == NAMES

    code, again, said = site.up(run, layout="pd")
    assert (code, again["changes"], again["ready"]) == (0, [], 36), said
    assert len(site.engines()) == 36

    states = json.loads(site.kimi("status", str(run), "--json").stdout)
    assert [one["state"] for one in states] == ["ready"] * 36
    assert {one["mark"] for one in states} == {"REHEARSAL"}
    assert site.kimi("status", str(run)).stdout.startswith("REHEARSAL: k2.5-a3-pd on ")
    assert {(one["node"], one["rank"], one["port"]) for one in states} == {
        (engine.node, engine.rank, engine.http_port) for engine in plan.engines
    }

    logs = site.kimi("logs", "--no-follow", str(run)).stdout
    said_by = {line.partition(" | ")[0] for line in logs.splitlines()}
    assert {f"h4 rank_{rank}" for rank in range(16, 32)} <= said_by
    assert {"h1 engines", "h1 router"} <= said_by

    ended = site.kimi("down", str(run))
    assert ended.returncode == 0, ended.stderr
    assert site.engines() == [] and site.claims() == []
    site.nothing_failed(run)
    again = site.kimi("down", str(run))
    assert again.returncode == 0 and "no change" in again.stdout

    lines = evidence.read(run / "k2.5-a3-pd/deployments/001")
    done = [line["step"] for line in lines if line["stage"] == "deploy"]
    assert done[:6] == ["reach", "claim", "prepare", "engine", "weights", "start"]
    assert all("@" in line["by"] and line["run"] for line in lines)
    assert lines[-1]["stage"] == "down"
    start = next(line for line in lines if line.get("step") == "start")
    assert start["codes"] == dict.fromkeys(NAMES, 0)


REPLICAS = ["--set", "groups=2", "--set", "router=vllm-router"]


@pytest.mark.long
def test_replicas_behind_the_router_of_the_first_node(site, tmp_path):
    """The containers run the engines, the host of the first node the router."""
    run = tmp_path / "run"
    code, made, said = site.up(run, *REPLICAS, layout="single")
    assert code == 0, (made and made["failed"], said[-400:])
    assert made["ready"] == made["engines"] == 2 and made["url"].endswith(":1999")
    logs = site.kimi("logs", "--no-follow", str(run)).stdout
    said_by = {line.partition(" | ")[0] for line in logs.splitlines()}
    assert "h1 router" in said_by and "h2 router" not in said_by
    code, again, said = site.up(run, *REPLICAS, layout="single")
    assert (code, again["changes"], again["ready"]) == (0, [], 2), said
    ended = site.kimi("down", str(run))
    assert ended.returncode == 0 and site.engines() == [] and site.claims() == []


def test_a_router_that_is_not_installed_is_named_before_anything_starts(site, tmp_path):
    program = site.host("h1").folder / "rehearsal" / "bin" / "vllm-router"
    text = program.read_text()
    program.unlink()
    try:
        code, made, _said = site.up(tmp_path, *REPLICAS, layout="single")
    finally:
        program.write_text(text)
        program.chmod(0o755)
    (failed,) = made["failed"]
    assert code == 1 and failed["node"] == "h1" and made["ready"] == 0
    assert "vllm-router is not in" in json.dumps(failed) and "install/" in json.dumps(failed)
    assert site.engines() == []


def test_without_the_sites_name_nothing_is_changed(site, tmp_path):
    shown = site.hosts.run([*KIMI, "up", *site.target(), "--run-dir", str(tmp_path), "--dry-run"])
    assert shown.returncode == 0, shown.stderr
    assert "h1, h2: claim: take the node" in shown.stdout
    assert "h1, h2: engines: start serve.sh" in shown.stdout
    other = site.hosts.run(site.words(tmp_path, "--confirm", "other"))
    assert (other.returncode, other.stdout) == (2, "")  # before any node is asked
    done = site.hosts.run(site.words(tmp_path))
    assert done.returncode == 2
    for told in (other.stderr, done.stderr):
        assert "--confirm testbed" in told and "2 nodes of site testbed" in told
    changes = {one["what"].partition(":")[0] for one in json.loads(done.stdout)["changes"]}
    assert {"claim", "engines"} <= changes
    assert site.claims() == [] and site.engines() == []


@pytest.mark.long
def test_by_hand_with_pyinfra(site, tmp_path):
    out = tmp_path / "bundle"
    site.kimi("plan", *site.target(), "--out", str(out))
    pyinfra = [str(Path(sys.executable).with_name("pyinfra")), "inventory.py"]

    def run(*words: str) -> str:
        done = site.hosts.run([*pyinfra, *words], cwd=out / "deploy")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "change engines" in run("up.py", "--dry")
    assert site.claims() == []
    run("up.py", "-y")
    assert site.claims() == TWO
    assert "] Success" not in run("up.py", "-y")  # no operation had anything to do
    run("down.py", "-y")
    assert site.claims() == [] and site.engines() == []


# Ways to the nodes ------------------------------------------------------------------------


def _site_file(site: Site, tmp_path: Path, **ssh: str) -> Path:
    path = tmp_path / "other.yaml"
    path.write_text(site.hosts.site("a2", 2, **ssh))
    return path


def test_a_dead_node_is_named_and_the_others_report(site, tmp_path):
    site.host("h3").sshd.send_signal(signal.SIGSTOP)
    try:
        code, made, _said = site.up(tmp_path, layout="pd")
    finally:
        site.host("h3").sshd.send_signal(signal.SIGCONT)
    assert code == 1
    assert [one["node"] for one in made["failed"]] == ["h3"]
    assert "cannot be reached" in made["failed"][0]["cause"] and made["step"] == "reach"
    assert "other nodes answered" in made["failed"][0]["help"]
    line = next(line for line in evidence.read(Path(made["folder"])) if line["stage"] == "deploy")
    assert line["facts"]["reached"] == ["h1", "h2", "h4"]
    assert site.claims() == []


def test_a_login_that_hangs_is_named(site, tmp_path):
    """A .bashrc that waits for something: the connection is open, and nothing comes."""
    shell = site.host("h2").folder / "home" / ".bashrc"
    shell.write_text("sleep 20\n")
    try:
        said = site.hosts.run(
            [sys.executable, "-c", HANGING, str(tmp_path), str(site.folder / "a2.yaml")]
        )
    finally:
        shell.unlink()
    lines = said.stdout.splitlines()
    assert len(lines) == 2, said  # a look and a change
    for line in lines:
        found = json.loads(line)
        assert found["h1"] == "" and "nothing came for 3 s" in found["h2"], said


def test_a_login_that_prints_without_an_end_is_named(site, tmp_path):
    """Also in a verb without a limit of time, which would be read until the memory is full."""
    shell = site.host("h2").folder / "home" / ".bashrc"
    shell.write_text("yes\n")
    program = HANGING.replace('"start"', '"weights"').replace("seconds=3", "seconds=60")
    try:
        said = site.hosts.run(
            [sys.executable, "-c", program, str(tmp_path), str(site.folder / "a2.yaml")]
        )
    finally:
        shell.unlink()
    lines = said.stdout.splitlines()
    assert len(lines) == 2, said
    for line in lines:
        found = json.loads(line)
        assert found["h1"] == "" and "it has sent more than" in found["h2"], said


def test_a_link_that_is_gone_is_named_also_while_weights_are_loaded(site, tmp_path):
    """Loading the weights has no limit of time, and TCP would wait a quarter of an hour."""
    link = ["ip", "-n", site.hosts.bridge, "link", "set", f"v{site.host('h2').number}"]
    begun = time.monotonic()
    words = [sys.executable, "-c", CUT, str(tmp_path), str(site.folder / "a2.yaml")]
    try:
        said = site.hosts.run([*words, *link, "down"])
    finally:
        subprocess.run([*link, "up"], check=True)
    lines = said.stdout.splitlines()
    assert len(lines) == 2, said
    for line in lines:
        found = json.loads(line)
        assert found["h1"] == "" and "the connection ended" in found["h2"], said
    assert time.monotonic() - begun < 60


def test_a_key_that_is_not_taken(site, tmp_path):
    other = _site_file(site, tmp_path, key_file=str(site.hosts.folder / "keys/other"))
    code, made, _said = site.up(tmp_path, site=other)
    assert code == 1 and [one["node"] for one in made["failed"]] == TWO
    assert "ssh.key_file" in made["failed"][0]["help"]


@pytest.mark.parametrize("kind", ["changed", "unknown"])
def test_host_keys_are_checked(site, tmp_path, kind):
    keys = site.hosts.folder / "keys"
    lines = site.hosts.known.read_text().splitlines()
    if kind == "changed":
        lines[1] = f"10.77.0.2 {(keys / 'other.pub').read_text().rpartition(' ')[0]}"
    else:
        del lines[1]
    known = tmp_path / "known"
    known.write_text("\n".join(lines) + "\n")
    other = _site_file(site, tmp_path, known_hosts=str(known))
    code, made, _said = site.up(tmp_path, site=other)
    assert code == 1 and [one["node"] for one in made["failed"]] == ["h2"]
    assert "host key" in made["failed"][0]["help"]
    assert site.claims() == []
    if kind == "unknown":  # new ones may be taken, where the site says so
        other.write_text(site.hosts.site("a2", 2, known_hosts=str(known), host_keys="accept-new"))
        done = site.hosts.run(site.words(tmp_path, "--dry-run", site=other))
        assert done.returncode == 0, done.stderr
        assert "10.77.0.2" in known.read_text()


def test_an_agents_key(site, tmp_path):
    agent = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    env = dict(part.split("=", 1) for part in agent.replace("\n", "").split(";") if "=" in part)
    try:
        subprocess.run(
            ["ssh-add", "-q", str(site.hosts.key)],
            env={**os.environ, **env},
            check=True,
            capture_output=True,
        )
        other = _site_file(site, tmp_path, key_file="")
        done = site.hosts.run(
            site.words(tmp_path, "--dry-run", site=other), env={**os.environ, **env}
        )
        assert done.returncode == 0, done.stderr
        assert "claim: take the node" in done.stdout
    finally:
        os.kill(int(env["SSH_AGENT_PID"]), signal.SIGTERM)


def test_a_jump_host(site, tmp_path):
    """h2 is reached by way of h1 only, SSH and HTTP."""
    other = _site_file(site, tmp_path, jump_host=site.host("h1").address)
    blocked = f"{site.host('h2').address}/32"
    site.hosts.run(["ip", "route", "add", "blackhole", blocked])
    try:
        code, made, said = site.up(tmp_path, site=other)
        assert code == 0, said
        assert made["ready"] == 2 and made["answer"].startswith("REHEARSAL")
        assert "from 10.77.0.1 " in (site.host("h2").folder / "sshd.log").read_text()
        assert site.kimi("down", str(tmp_path)).returncode == 0
    finally:
        site.hosts.run(["ip", "route", "del", "blackhole", blocked])


# What can be wrong on a node ----------------------------------------------------------------


def _fails(site: Site, run: Path, node: str, step: str, *words: str) -> dict:
    code, made, said = site.up(run)
    assert code == 1, said
    assert [one["node"] for one in made["failed"]] == [node], made["failed"]
    assert made["step"] == step
    text = made["failed"][0]["cause"] + made["failed"][0]["help"]
    for word in words:
        assert word in text, text
    if "manifest" not in text:
        assert site.claims() == [] and site.engines() == []  # nothing was changed anywhere
    return made


def test_a_full_disk(site, tmp_path):
    host = site.host("h2")
    host.shell(
        "mkdir -p /srv/kimi && mount -t tmpfs -o size=1m none /srv/kimi && "
        "head -c 2m /dev/zero > /srv/kimi/full 2> /dev/null; true"
    )
    try:
        _fails(site, tmp_path, "h2", "look", "No space left on device", "paths.work")
    finally:
        host.shell("umount /srv/kimi")


def test_a_disk_that_fills_up_later(site, tmp_path):
    """After the look: the node has room for the claim and none for the scripts. Here it is the
    number of files that is used up."""
    host = site.host("h2")
    host.shell("mkdir -p /srv/kimi && mount -t tmpfs -o size=80m,nr_inodes=8 none /srv/kimi")
    try:
        code, made, _ = site.up(tmp_path)
        assert code == 1 and made["step"] == "start"
        assert [one["node"] for one in made["failed"]] == ["h2"]
        assert "No space left" in made["failed"][0]["cause"]
        assert site.kimi("down", str(tmp_path)).returncode == 0
        assert site.claims() == []
    finally:
        host.shell("umount /srv/kimi")


def test_an_image_that_cannot_be_pulled(site, tmp_path):
    site.start("h2", fault="wrong-image-tag")
    try:
        # Whether it can be pulled is not known before it is tried.
        _fails(site, tmp_path, "h2", "engine", "manifest unknown", "docker load on h2")
    finally:
        site.start("h2")


def test_docker_is_absent(site, tmp_path):
    docker = site.host("h1").folder / "rehearsal/bin/docker"
    docker.rename(docker.with_name("away"))
    try:
        _fails(site, tmp_path, "h1", "engine", "docker is not installed")
    finally:
        docker.with_name("away").rename(docker)


@pytest.mark.parametrize("fault", ["missing", pytest.param("cut", marks=pytest.mark.long)])
def test_weights_on_one_node(site, tmp_path, fault):
    shard = site.host("h2").root / "models" / FOLDERS[0] / SHARD
    whole = shard.read_bytes()
    if fault == "missing":
        shard.unlink()
    else:
        shard.write_bytes(whole[:-1])
    try:
        code, looked, said = site.up(tmp_path, "--dry-run")
        assert code == 1 and [one["node"] for one in looked["failed"]] == ["h2"], said
        assert SHARD in looked["failed"][0]["cause"] and "no answer" not in said
        _fails(site, tmp_path, "h2", "weights", CHECKPOINTS[0], SHARD)
    finally:
        shard.write_bytes(whole)
    code, made, said = site.up(tmp_path, "--resume")
    assert code == 0 and made["ready"] == 2, said


@pytest.mark.long
def test_weights_that_are_missing_are_downloaded(site, tmp_path):
    """Named first, with the command; fetched with --download; a hub that fails on one node is
    named with it, and --resume goes on."""
    text = (paths.root() / "params/models/k2.5.yaml").read_text()
    small = tmp_path / "k2.5.yaml"  # this machine's disk has no room for 560 GB
    small.write_text(
        text.replace("size_gb: 560", "size_gb: 1").replace(
            "parameters_million: 1900", "parameters_million: 1"
        )
    )
    for host in (site.host("h1"), site.host("h2")):
        for name in ("hf", "modelscope"):
            program = host.folder / "rehearsal/bin" / name
            program.parent.parent.joinpath("hub.json").write_text('{"hub": ""}')
            program.write_text(f"#!{sys.executable}\n{HUB}")
            program.chmod(0o755)
        testbed.checkpoint(host.folder / "rehearsal/source")
    lost = site.host("h2").root / "models" / FOLDERS[0]
    away = lost.with_name("away")
    lost.rename(away)
    target = site.target()
    target[target.index("--model") + 1] = str(small)
    words = [*KIMI, "up", *target, "--run-dir", str(tmp_path / "run"), "--json"]
    words += ["--confirm", "testbed"]

    def up(*more):
        done = site.hosts.run([*words, *more])
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    try:
        code, made, said = up()
        assert code == 1 and [one["node"] for one in made["failed"]] == ["h2"], said
        command = (
            f"modelscope download --model {CHECKPOINTS[0]} --local_dir /srv/models/{FOLDERS[0]}"
        )
        cause = made["failed"][0]["cause"]
        assert command in cause and "1 GB" in cause and "--download" in made["failed"][0]["help"]
        assert site.claims() == [] and not lost.exists()
        hub = site.host("h2").folder / "rehearsal/hub.json"
        hub.write_text(json.dumps({"hub": "", CHECKPOINTS[0]: "unreachable"}))
        code, made, said = up("--download")
        assert code == 1 and [one["node"] for one in made["failed"]] == ["h2"], said
        assert "the hub does not answer" in made["failed"][0]["cause"]
        assert "--resume --download" in made["failed"][0]["help"] and site.engines() == []
        hub.write_text(json.dumps({"hub": ""}))
        code, made, said = up("--download", "--resume")
        assert code == 0 and made["ready"] == 2, said
        assert (lost / SHARD).exists()
        assert not (site.host("h1").folder / "rehearsal/calls").exists()  # it had them
        assert site.kimi("down", str(tmp_path / "run")).returncode == 0
    finally:
        for host in (site.host("h1"), site.host("h2")):
            for name in ("hf", "modelscope"):
                (host.folder / "rehearsal/bin" / name).unlink()
        shutil.rmtree(lost, ignore_errors=True)
        away.rename(lost)


def test_a_port_in_use(site, tmp_path):
    host = site.host("h1")
    other = subprocess.Popen(
        host.enter(sys.executable, "-m", "http.server", PORT, "--bind", host.address),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and PORT not in host.shell("ss -Hltn"):
            time.sleep(0.05)
        _fails(site, tmp_path, "h1", "start", PORT, "HTTP of mixed0-rank0", "python")
    finally:
        other.kill()
        other.wait()


def test_the_settings_of_a_host(site, tmp_path):
    """A kernel setting that each host has of its own: the machine's are left alone."""
    hardware = json.loads(load.hardware("a2").model_dump_json(exclude_unset=True))
    hardware |= {
        "name": "a2-tuned",
        "like": "a2",
        "host_tuning": {"sysctl": {"net.ipv4.ip_default_ttl": 63, "kernel.no_such": 1}},
    }
    file = tmp_path / "a2-tuned.yaml"
    file.write_text(json.dumps(hardware))
    words = [
        str(file) if word == "a2" else word for word in site.words(tmp_path, "--confirm", "testbed")
    ]
    for option in ("--without", "host-tuning"):
        words.remove(option)
    made = json.loads(site.hosts.run(words).stdout)
    assert {
        one["node"]: one["what"] for one in made["changes"] if "ttl" in one["what"]
    } == dict.fromkeys(TWO, "net.ipv4.ip_default_ttl: 64 -> 63, as root")
    assert "kernel.no_such: this kernel does not have it" in [
        one["what"] for one in made["warnings"]
    ]
    for name in TWO:
        assert site.host(name).shell("cat /proc/sys/net/ipv4/ip_default_ttl") == "63\n"
    assert json.loads(site.hosts.run(words).stdout)["changes"] == []


@pytest.mark.long
def test_other_scripts_under_a_service(site, tmp_path):
    """A changed plan does not touch what another one has started; after a failure that changed
    nothing it may be changed freely."""
    docker = site.host("h1").folder / "rehearsal/bin/docker"
    docker.rename(docker.with_name("away"))
    try:
        assert site.up(tmp_path)[1]["step"] == "engine"
    finally:
        docker.with_name("away").rename(docker)
    code, made, said = site.up(tmp_path, "--set", "max-num-seqs=8")
    assert code == 0, said
    code, made, said = site.up(tmp_path, "--set", "max-num-seqs=16")
    assert code == 2 and made is None
    assert "is up with other scripts" in said and "kimi-nb down" in said
    assert len(site.engines()) == 2
    assert site.kimi("down", str(tmp_path)).returncode == 0
    shown = site.hosts.run(
        [
            *KIMI,
            "up",
            *site.target(),
            "--run-dir",
            str(tmp_path),
            "--dry-run",
            "--set",
            "max-num-seqs=16",
        ]
    ).stdout
    assert "-    --max-num-seqs 8 " in shown and "+    --max-num-seqs 16 " in shown
    assert "+++ after/h2/serve.sh" in shown


def test_no_network_of_the_npus(site, tmp_path):
    host = site.host("h2")
    host.shell("mv /etc/hccn.conf /etc/away")
    try:
        _fails(site, tmp_path, "h2", "prepare", "/etc/hccn.conf", "hccn_tool")
    finally:
        host.shell("mv /etc/away /etc/hccn.conf")


@pytest.mark.long
def test_two_runs_on_one_site(site, tmp_path):
    code, _first, said = site.up(tmp_path / "first")
    assert code == 0, said
    code, made, said = site.up(tmp_path / "second")
    assert code == 1 and made["step"] == "claim"
    assert [one["node"] for one in made["failed"]] == ["h1", "h2"]  # and no port of the other's
    held = made["failed"][0]
    assert "@" in held["cause"] and "since" in held["cause"] and "k2.5-a2-dp" in held["cause"]
    assert "kimi-nb down" in held["help"]
    running = site.engines()
    assert running
    # Its own end changes nothing of the other's.
    other = site.kimi("down", str(tmp_path / "second"))
    assert other.returncode == 1 and "belongs to another run" in other.stdout, other.stdout
    assert site.engines() == running and site.claims() == TWO
    assert site.kimi("down", str(tmp_path / "first")).returncode == 0


@pytest.mark.parametrize("said", ["claim: taken", "engines: started"])
def test_the_controller_is_killed_half_way(site, tmp_path, said):
    process = subprocess.Popen(
        site.hosts.argv(site.words(tmp_path, "--confirm", "testbed")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if said in line:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert site.claims() == TWO
    before = site.engines()
    code, made, text = site.up(tmp_path, "--resume")
    assert code == 0, text
    assert made["ready"] == 2 and len(site.engines()) == 2
    assert set(before) <= set(site.engines())
    if said == "engines: started":
        assert "prepare: done before" in text


@pytest.mark.long
def test_a_group_starts_anew_as_a_whole(site, tmp_path):
    """One node of a group has ended; the others of the group would wait for ever."""
    code, made, said = site.up(tmp_path)
    assert code == 0, said
    site.start("h2")
    states = json.loads(site.kimi("status", str(tmp_path), "--json").stdout)
    assert {one["state"] for one in states if one["node"] == "h2"} != {"ready"}
    code, made, said = site.up(tmp_path)
    assert code == 0, said
    started = [one["node"] for one in made["changes"] if "started: serve.sh" in one["what"]]
    assert started == TWO and made["ready"] == 2


@pytest.mark.long
def test_an_engine_that_was_killed_is_started_again_by_resume(site, tmp_path):
    """Its start was done before, but what it has started is gone."""
    code, made, said = site.up(tmp_path)
    assert code == 0 and made["ready_s"] > 0, said
    killed = [line for line in site.engines() if line.startswith("h2 ")]
    assert len(killed) == 1
    for pid in subprocess.run(
        ["ip", "netns", "pids", site.host("h2").netns], text=True, capture_output=True, check=True
    ).stdout.split():
        if "path_stub.py" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(int(pid), signal.SIGKILL)
    end = time.monotonic() + 60
    while "The first failure" not in (seen := site.kimi("status", str(tmp_path)).stdout):
        assert time.monotonic() < end, seen
    assert "kimi-nb doctor" in seen and "--resume" in seen
    code, made, said = site.up(tmp_path, "--resume")
    assert code == 0, (made and made["failed"], said)
    started = [one["node"] for one in made["changes"] if "started: serve.sh" in one["what"]]
    assert started == TWO and made["ready"] == 2 and len(site.engines()) == 2
    assert "prepare: done before" in said and "start: done before" not in said
    ended = [one for one in made["warnings"] if "had ended" in one["what"]]
    # Its peer ends for want of it, with a code of its own.
    assert [one["node"] for one in ended if "137 (SIGKILL)" in one["what"]] == ["h2"]
    assert "137 (SIGKILL)" in said

    # What ran already has no time of a start, and the report keeps the one that was measured.
    measured = made["ready_s"]
    code, made, said = site.up(tmp_path, "--resume")
    assert code == 0 and made["changes"] == [], said
    assert made["ready_s"] is None and made["first_answer_s"] is None and made["times"] == {}
    found = json.loads(site.kimi("report", str(tmp_path), "--json").stdout)
    facts = [tuple(fact) for one in found["plans"][0]["attempts"] for fact in one["facts"]]
    assert ("ready after", f"{measured:.1f} s", "measured, REHEARSAL") in facts
    inside = site.kimi("report", str(tmp_path / "k2.5-a2-dp/deployments/001"), "--json").stdout
    assert json.loads(inside)["folder"] == found["folder"] == str(tmp_path)


def test_an_interface_that_a_node_has_not(site, tmp_path):
    file = tmp_path / "mine.yaml"
    text = site.hosts.site("a2", 2)
    file.write_text(text.replace("address: 10.77.0.2}", "address: 10.77.0.2, nic: enp9s0}"))
    for more in (("--confirm", "testbed"), ("--dry-run",)):
        done = site.hosts.run(site.words(tmp_path / "run", *more, site=file))
        assert done.returncode == 1, done.stderr
        failed = json.loads(done.stdout)["failed"]
        assert [one["node"] for one in failed] == ["h2"]
        assert "enp9s0" in failed[0]["cause"] and "eth0" in failed[0]["cause"]
        assert "nic" in failed[0]["help"]
    assert site.claims() == []


@pytest.mark.long
def test_two_sites_of_one_name(site, tmp_path):
    """The second one's nodes are others: its name confirms nothing of the first's."""
    code, _made, said = site.up(tmp_path)
    assert code == 0, said
    other = tmp_path / "other.yaml"
    text = site.hosts.site("a2", 2)
    for at in (2, 1):
        text = text.replace(f"10.77.0.{at}}}", f"10.77.0.{at + 2}}}")
    other.write_text(text)
    done = site.hosts.run(site.words(tmp_path, "--confirm", "testbed", site=other))
    assert done.returncode == 2 and "two sites have the name testbed" in done.stderr, done.stderr
    assert "10.77.0.1" in done.stderr and "10.77.0.3" in done.stderr and "name:" in done.stderr
    assert site.claims() == TWO
    assert site.kimi("down", str(tmp_path)).returncode == 0


# Looking at every node ------------------------------------------------------------------------

LOOKING = """
import json, sys
import kimi_nb

hw, file, layout, folder = sys.argv[1:]
run = kimi_nb.start(hw=hw, model="k2.5", site=file, action="deploy", run_dir=folder)
found = run.prerequisites(run.choose(layout), every_node=True)
print("JSON" + json.dumps([vars(one) for one in found.rows]))
print(found)
"""


def _looked(site, tmp_path, hw="a2", layout="dp", file=None):
    """{(node, check): row} and all that was printed."""
    words = [hw, str(file or site.folder / f"{hw}.yaml"), layout, str(tmp_path / "run")]
    done = site.hosts.run([sys.executable, "-c", LOOKING, *words])
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("JSON"))
    rows = json.loads(line.removeprefix("JSON"))
    return {(one["node"], one["check"]): one for one in rows}, done.stdout


@contextlib.contextmanager
def _instead(site, name: str, tool: str, script: str):
    """Put a script before a host's program; without a script the host has none."""
    path = site.host(name).folder / "rehearsal" / "bin" / tool
    real = path.parent.parent / "real" / tool
    real.parent.mkdir(exist_ok=True)
    path.rename(real)
    if script:
        path.write_text(f'#!/bin/bash\n{script}\nexec {real} "$@"\n')
        path.chmod(0o755)
    try:
        yield
    finally:
        real.rename(path)


def _files(site) -> dict[str, float]:
    """What is on the hosts: every file below /srv, with its time."""
    return {
        str(path): path.stat().st_mtime
        for host in site.hosts.hosts
        for path in host.root.rglob("*")
    }


def test_every_node_is_looked_at_and_nothing_is_changed(site, tmp_path):
    before = _files(site)
    found, shown = _looked(site, tmp_path, "a3", "pd")
    assert {node for node, _ in found} == set(NAMES)
    for name in NAMES:
        assert found[name, "link"]["found"] == "16 of 16"
        # Each NPU to the same one of the next node, and one to each of the two others.
        assert (found[name, "npu-ping"]["status"], found[name, "npu-ping"]["found"]) == (
            "pass",
            "18 of 18",
        )
        assert found[name, "weights"]["status"] == "pass"
        assert found[name, "hccn-conf"]["status"] == "pass"
    assert {one["check"] for one in found.values() if one["status"] == "fail"} <= {"driver", "disk"}
    assert "testbed: " in shown and _files(site) == before and not site.claims()
    line = evidence.read(tmp_path / "run")[-1]
    assert line["stage"] == "prerequisites" and line["pass"] > 20


def test_a_link_that_is_down_is_a_row_and_stops_up(site, tmp_path):
    down = """if [[ " $* " == *" -i 1 -link "* ]]; then echo "link status: DOWN"; exit 0; fi
if [[ " $* " == *ping* ]]; then
    echo "3 packets transmitted, 0 received, 100.00% packet loss"; exit 1
fi"""
    with _instead(site, "h2", "hccn_tool", down):
        found, shown = _looked(site, tmp_path)
        code, made, _said = site.up(tmp_path / "up")
    assert found["h2", "link"]["status"] == "fail" and found["h1", "link"]["status"] == "pass"
    assert found["h2", "link"]["found"] == "1: link status: DOWN"
    assert "switch port of these NPUs of h2" in found["h2", "link"]["help"]
    assert "100.00% packet loss" in found["h2", "npu-ping"]["found"]
    assert found["h1", "npu-ping"]["status"] == "pass"
    assert "not looked" in shown  # no ping on the host
    assert (code, made["step"]) == (1, "reach")
    (failed,) = made["failed"]
    assert failed["node"] == "h2" and "100.00% packet loss" in failed["cause"]
    assert "hccn_tool -i 0 -ping -g address 10." in failed["evidence"]
    assert "npu" in failed["cause"] and "netmask" in failed["help"]
    assert site.claims() == []


def test_a_node_without_the_tool_is_a_row_and_up_goes_on(site, tmp_path):
    with _instead(site, "h2", "hccn_tool", ""):
        found, _shown = _looked(site, tmp_path)
        code, made, said = site.up(tmp_path / "up")
    for check in ("link", "tls", "net-health", "npu-ping"):
        row = found["h2", check]
        assert row["status"] == "fail" and "hccn_tool: command not found" in row["found"]
        assert "Is hccn_tool on h2?" in row["help"]
    assert found["h1", "npu-ping"]["status"] == "skipped"
    assert "h2 does not say the address" in found["h1", "npu-ping"]["found"]
    # What cannot be tried is told, and no reason to refuse the deployment.
    assert code == 0, (made and made["failed"], said)
    warned = {one["node"]: one["what"] for one in made["warnings"] if "link" in one["what"]}
    assert set(warned) == {"h1", "h2"} and "command not found" in warned["h2"]


def test_a_node_that_is_not_reached_is_a_row(site, tmp_path):
    site.host("h2").sshd.send_signal(signal.SIGSTOP)
    try:
        found, shown = _looked(site, tmp_path)
    finally:
        site.host("h2").sshd.send_signal(signal.SIGCONT)
    (row,) = (one for (node, _), one in found.items() if node == "h2")
    assert row["status"] == "fail" and "cannot be reached" in row["found"]
    assert "other nodes answered" in row["help"]
    assert found["h1", "devices"]["status"] == "pass" and "h2" in shown


def test_notebook_01_shows_the_table_of_all_nodes(site, tmp_path):
    """Headless: the table stands in the notebook, and what failed ends it with the same table."""
    out = tmp_path / "out.ipynb"
    with _instead(site, "h2", "npu-smi", "echo none; exit 1"):
        done = site.hosts.run(
            [
                *(sys.executable, "-m", "papermill", "--no-progress-bar"),
                *(str(paths.root() / "notebooks/01_prerequisites.ipynb"), str(out)),
                *("-p", "hw", "a2", "-p", "action", "deploy", "-p", "layout", "dp"),
                *("-p", "site", str(site.folder / "a2.yaml")),
                *("-p", "run_dir", str(tmp_path / "run")),
            ]
        )
    assert done.returncode == 1
    cells = json.loads(out.read_text())["cells"]
    shown = [
        "".join(output["data"]["text/plain"])
        for cell in cells
        for output in cell.get("outputs", ())
        if "what to do" in "".join(output.get("data", {}).get("text/plain", ""))
    ]
    assert len(shown) == 1 and "8 of 8" in shown[0] and "exit code 1: none" in shown[0]
    assert re.search(r"h2 +devices +fail", shown[0]) and "by hand" in shown[0]
    assert re.search(r"h2 +devices +fail", done.stderr)  # the run fails, by the same table
