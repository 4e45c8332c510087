"""64 SSH hosts: reach, push, start; beside pyinfra's own `echo ok` on the same hosts.

    python benchmarks/ssh.py            # needs root, ip and sshd (tests/testbed/hosts.py)

Bounds: 15 s, and 1.5 times pyinfra's own. What `up` does between them (take the nodes, look at
each: a Python reads the headers of the weights there) is shown, and so is the whole. The hosts are
network namespaces of this machine: what they do themselves is paid by the same cores, which is
not so on a cluster.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from testbed import hosts as testbed  # noqa: E402

HOSTS, ROUNDS = 64, 3
SECONDS, RATIO = 15.0, 1.5

# What `kimi-nb up` does up to started engines, in a process of its own.
STARTED = """
import json, sys, time
from pathlib import Path
from kimi_nb import build, bundle, inventory, scripts
from kimi_nb.deploy import deploy
from kimi_nb.deploy.journal import Journal

plan = build.plan("tiny-llama", "cpu", "dp", site=sys.argv[1], pairs=sys.argv[3].split())
journal = Journal.open(Path(sys.argv[2]), plan)
bundle.write(scripts.files(plan), journal.folder / "bundle")
with deploy.target(plan, journal) as site:
    for step in site.steps:
        begun = time.monotonic()
        out = step.run()
        print(json.dumps([step.name, time.monotonic() - begun]))
    assert len(out.changes) == 2 * len(plan.nodes), out
"""


def main() -> int:
    """Measure and judge; 1 where a bound is not kept."""
    if testbed.missing():
        print(f"skipped: {testbed.missing()}")
        return 0
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
    median = {name: statistics.median(one[name] for one in ours) for name in ours[0]}
    mine, floor = median["asked"], statistics.median(theirs)
    print(
        f"{HOSTS} hosts, reach, push, start: {mine:.1f} s (bound {SECONDS:g}); pyinfra's echo ok "
        f"{floor:.1f} s; ratio {mine / floor:.2f} (bound {RATIO}). Between them, take and look: "
        f"{median['look']:.1f} s; the whole process: {median['whole']:.1f} s, ratio "
        f"{median['whole'] / floor:.2f} (no bound)"
    )
    return int(mine > SECONDS or mine / floor > RATIO)


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
    sys.exit(main())
