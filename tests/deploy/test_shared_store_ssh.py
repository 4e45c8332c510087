"""A shared KV store over SSH: two hosts with a real sshd, stand-ins in place of engines and store."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from testbed import hosts as testbed

from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.rehearse.host_programs import path_folder

KIMI = [str(Path(sys.executable).with_name("kimi-nb"))]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(testbed.missing()), reason=testbed.missing() or "-"),
]


class Site:
    """Two hosts that have what a plan with a centralised store needs."""

    def __init__(self, folder: Path, hosts: testbed.Hosts, model: str) -> None:
        self.hosts = hosts
        site = folder / "h200.yaml"
        site.write_text(hosts.site("h200", 2))
        self.words = ["--model", model, "--hw", "h200", "--layout", "single", "--site", str(site)]
        self.plan = build.plan(model, "h200", "single", site=str(site))

    def kimi(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.hosts.run([*KIMI, *words])

    def up(self, run: Path, *more: str):
        """(exit code, the JSON, stderr) of kimi-nb up, confirmed."""
        words = ["up", *self.words, "--run-dir", str(run), "--json", "--confirm", "testbed"]
        done = self.kimi(*words, *more)
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    def running(self, what: str) -> list[psutil.Process]:
        """The programs on the hosts whose command line names something."""
        out = []
        for host in self.hosts.hosts:
            pids = subprocess.run(
                ["ip", "netns", "pids", host.netns], text=True, capture_output=True, check=True
            ).stdout.split()
            for pid in pids:
                try:
                    one = psutil.Process(int(pid))
                    words = one.cmdline()
                except psutil.Error:
                    continue
                if any("path_stub.py" in word for word in words) and what in " ".join(words):
                    out.append(one)
        return out


@pytest.fixture
def site(tmp_path_factory, stored_model):
    folder = tmp_path_factory.mktemp("ssh")
    hosts, model = testbed.Hosts(folder, 2), stored_model("centralised")
    stand_ins = testbed.StandIns(hosts)
    stand_ins.NAMES = (*stand_ins.NAMES, "mooncake_master")
    for host in hosts.hosts:
        stand_ins.prepare(host)
        module = host.folder / "modules" / "mooncake"
        module.mkdir(parents=True)
        (module / "__init__.py").write_text("")
        text = path_folder.caller("the store service")
        (module / "mooncake_store_service.py").write_text(text)
        host.env |= {"PYTHONPATH": str(module.parent)}
        weights = load.model("k2.5").weights["int4"].directory
        testbed.checkpoint(host.root / "models" / weights)
    with hosts:
        made = Site(folder, hosts, model)
        stand_ins.start([made.plan], hosts.hosts)
        yield made
        for host in hosts.hosts:
            stand_ins.stop(host)


def test_up_status_logs_a_dead_master_down(site, tmp_path):
    run = tmp_path / "run"
    code, made, said = site.up(run)
    assert code == 0, (made and made["failed"], said[-400:])
    assert made["ready"] == made["engines"] == 2 and made["url"].endswith(":30080")
    assert len(site.running("mooncake_master")) == 1
    assert len(site.running("mooncake_store_service.py")) == 2

    code, again, said = site.up(run)
    assert (code, again["changes"]) == (0, []), said
    states = json.loads(site.kimi("status", str(run), "--json").stdout)
    parts = [(one["engine"], one["node"], one["port"], one["state"]) for one in states[2:]]
    assert parts == [
        ("store-master", "h1", 50051, "ready"),
        ("store-service", "h1", 8080, "ready"),
        ("store-service", "h2", 8080, "ready"),
    ]
    shown = site.kimi("status", str(run))
    assert shown.returncode == 0 and "2 of 2 engines ready" in shown.stdout
    logs = site.kimi("logs", "--no-follow", str(run)).stdout
    said_by = {line.partition(" | ")[0] for line in logs.splitlines()}
    assert {"h1 store-master", "h1 store-service", "h2 store-service"} <= said_by

    (master,) = site.running("mooncake_master")
    master.send_signal(signal.SIGKILL)
    end = time.monotonic() + 60
    while (shown := site.kimi("status", str(run))).returncode == 0:
        assert time.monotonic() < end
        time.sleep(0.5)
    assert "ended 137" in shown.stdout, shown.stdout
    assert "the master of the KV store died" in shown.stdout, shown.stdout
    code, again, _ = site.up(run)
    assert code == 1 and "store-master has ended" in json.dumps(again["failed"])

    ended = site.kimi("down", str(run))
    assert ended.returncode == 0, ended.stderr
    assert not site.running("mooncake") and not site.running("serve")
