"""64 SSH hosts: reach, push, start; beside pyinfra's own `echo ok` on the same hosts.

    python benchmarks/ssh.py            # needs root, ip and sshd (tests/testbed/hosts.py)

Bounds: 15 s, and 1.5 times pyinfra's own in the same run. What `up` does between them (take the nodes, look at
each: a Python reads the headers of the weights there) is shown, and so is the whole. The hosts are
network namespaces of this machine: what they do themselves is paid by the same cores, which is
not so on a cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import judging

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from testbed import hosts as testbed  # noqa: E402

HOSTS, ROUNDS = 64, 3
SECONDS, RATIO = 15.0, 1.5

# What `kimi-nb up` does up to started engines, in a process of its own.
STARTED = """
import json, sys, time
from pathlib import Path
from kimi_nb.bundle import inventory, scripts, writer
from kimi_nb.plan import build
from kimi_nb.deploy import lifecycle
from kimi_nb.deploy.journal import Journal

plan = build.plan("tiny-llama", "cpu", "dp", site=sys.argv[1], pairs=sys.argv[3].split())
journal = Journal.open(Path(sys.argv[2]), plan)
writer.write(scripts.files(plan), journal.folder / "bundle")
with lifecycle.target(plan, journal) as site:
    for step in site.steps:
        begun = time.monotonic()
        out = step.run()
        print(json.dumps([step.name, time.monotonic() - begun]))
    assert len(out.changes) == 2 * len(plan.nodes), out
"""


def main(judge: judging.Judge) -> None:
    if testbed.missing():
        judge.not_measured(f"{HOSTS} hosts", testbed.missing())
        return
    ours: list[dict[str, float]] = []
    theirs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = testbed.Hosts(folder, HOSTS)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "vllm").write_text("#!/bin/sh\nexec sleep 3\n")
        (tools / "vllm").chmod(0o755)
        for host in hosts.hosts:
            host.env["PATH"] = f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin"
        with hosts:
            site = folder / "site.yaml"
            site.write_text(
                hosts.site("cpu", HOSTS).replace(
                    "paths: {", f"paths: {{models: {ROOT / 'params' / 'tiny'}, "
                )
            )
            inventory = folder / "inventory.py"
            listed = [(host.name, {"ssh_hostname": host.address}) for host in hosts.hosts]
            data = {
                "ssh_user": "root",
                "ssh_key": str(hosts.key),
                "ssh_known_hosts_file": str(hosts.known),
                "ssh_strict_host_key_checking": "yes",
            }
            inventory.write_text(f"nodes = ({listed!r}, {data!r})\n")
            pyinfra = str(Path(sys.executable).with_name("pyinfra"))
            for number in range(ROUNDS):
                theirs.append(
                    _run(hosts, [pyinfra, "-y", str(inventory), "exec", "--", "echo", "ok"])[0]
                )
                whole, said = _run(
                    hosts,
                    [
                        sys.executable,
                        "-c",
                        STARTED,
                        str(site),
                        str(folder / f"run{number}"),
                        f"mixed.nodes={HOSTS} mixed.dp={HOSTS}",
                    ],
                )
                steps = dict(json.loads(line) for line in said.splitlines())
                ours.append(
                    {
                        "asked": steps["reach"] + steps["start"],
                        "look": steps["claim"],
                        "whole": whole,
                    }
                )
                time.sleep(5)  # until what was started has ended
                for host in hosts.hosts:  # empty nodes again
                    host.shell("rm -rf /srv/kimi")
    peer = ("pyinfra's echo ok", theirs)
    mine = [one["asked"] for one in ours]
    what = f"{HOSTS} hosts, reach, push, start"
    judge.figure(what, mine, "s", most=SECONDS)
    judge.ratio(what, mine, "s", most=RATIO, peer=peer)
    judge.figure("take and look", [one["look"] for one in ours], "s")
    judge.figure("the whole process", [one["whole"] for one in ours], "s", peer=peer)


def _run(hosts: testbed.Hosts, argv: list[str]) -> tuple[float, str]:
    """(seconds, what it says)"""
    begun = time.monotonic()
    done = subprocess.run(
        hosts.argv(argv),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return time.monotonic() - begun, done.stdout


if __name__ == "__main__":
    sys.exit(judging.judged(main))
