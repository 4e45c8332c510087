"""A real Slurm of two nodes on this machine, with stand-ins for what its jobs run.

with running() as site:          # Unavailable says why there can be none here
    plan = site.plan("first", "optimised")
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kimi_nb.core.processes import Programs
from kimi_nb.deploy.slurm.slurm_commands import Slurm
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.host_programs import path_folder
from kimi_nb.rehearse.simulated_site import FOLDER, NODE, SimulatedSite

HERE = Path(__file__).parent
NODES = ("n1", "n2")
_TOOLS = (
    *("module", "conda", "pip", "git", "hf", "vllm", "python", "python3", "vllm-router"),
    "apptainer",
)
# The tasks of a step connect to srun at the address from which srun came. On one machine that is
# 127.0.0.1 for every node, but srun listens where its host name points to.
_SRUN = """\
#!/bin/sh
exec unshare --uts sh -c 'hostname localhost && exec /usr/bin/srun "$@"' srun "$@"
"""
_SITE = """\
name: testbed
hardware: h200
transport: slurm
nodes:
{nodes}slurm: {{account: kimi, partition: gpu, cpu_partition: common, {programs}}}
{more}paths:
  cache: {root}/cache
  models: {root}/models
  project: {project}
  work: {project}/runbook
"""


class Unavailable(Exception):
    """Why there can be no Slurm here."""


class SlurmSite:
    """The cluster and its stand-ins. ``env`` is what a shell on its login node has."""

    def __init__(self, root: Path, second: int) -> None:
        self.root = root
        self.addresses = {node: f"127.{second}.0.{at}" for at, node in enumerate(NODES, start=1)}
        self.env = {
            "PATH": f"{root / 'bin'}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(root),
            "LANG": "C.UTF-8",
            FOLDER: str(root),
            "SLURM_CONF": str(root / "slurm" / "etc" / "slurm.conf"),
        }

    @property
    def commands(self) -> Slurm:
        """SLURM's commands as on the login node."""
        return Slurm(self.env)

    def run(self, *argv: str) -> str:
        """A command on the login node; what it prints."""
        return subprocess.run(
            argv, env=self.env, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def plan(
        self,
        name: str,
        scenario: str = "default",
        more: str = "",
        pairs: Sequence[str] = (),
        programs: str = "modules: [anaconda3]",
    ) -> Plan:
        """A plan with a project folder of its own, below the site's.

        ``pairs`` are of --set, and ``programs`` says where the jobs find theirs.
        """
        path = self.root / f"{name}.yaml"
        nodes = "".join(
            f"  - {{name: dgx-0{at}, address: 198.51.100.2{at}}}\n"
            for at in range(1, len(NODES) + 1)
        )
        project = self.project(name)
        text = _SITE.format(
            root=self.root, project=project, more=more, nodes=nodes, programs=programs
        )
        path.write_text(text)
        return build.plan(
            "k2.5",
            "h200",
            "single",
            variant="slurm",
            scenario=scenario,
            site=str(path),
            pairs=pairs,
        )

    def project(self, name: str) -> Path:
        """The project folder of a plan."""
        return self.root / "projects" / name

    def occupy(self, *options: str) -> int:
        """A job of somebody else's that holds what it asks for; its number."""
        return int(
            self.run(
                "sbatch",
                "--parsable",
                "--output=/dev/null",
                "--job-name=other",
                *options,
                "--wrap",
                "sleep 300",
            )
        )

    def close(self) -> None:
        """End every job."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user=root")


@contextlib.contextmanager
def running() -> Iterator[SlurmSite]:
    """The cluster, up; stopped by its own process numbers at the end. Raises Unavailable."""
    missing = [
        name
        for name in ("sbatch", "slurmctld", "slurmd", "munged", "unshare")
        if shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None
    ]
    if missing:
        raise Unavailable(
            f"no {', '.join(missing)} here (apt-get install slurm-wlm slurm-client munge)"
        )
    if os.geteuid() != 0:
        raise Unavailable("the daemons of Slurm are started as root")
    root = Path(tempfile.mkdtemp(prefix="kimi-nb-slurm-"))
    root.chmod(0o755)
    closed = [path for path in root.parents if not path.stat().st_mode & 0o001]
    block = loopback.claim()
    try:
        if closed:
            raise Unavailable(
                f"munge refuses a socket below {closed[0]}, which is not "
                "executable for all: set TMPDIR"
            )
        site = SlurmSite(root, block.second)
        with _stand_ins(site):
            _start(site, block.second)
            try:
                yield site
            finally:
                site.close()
                subprocess.run(
                    ["bash", HERE / "slurm_stop.sh", root / "slurm"], check=False, timeout=60
                )
    finally:
        block.guard.close()
        shutil.rmtree(root, ignore_errors=True)


def _start(site: SlurmSite, second: int) -> None:
    done = subprocess.run(
        ["bash", HERE / "slurm_start.sh", site.root / "slurm", str(second), str(len(NODES))],
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    end = time.monotonic() + 60
    while done.returncode == 0:
        with contextlib.suppress(subprocess.SubprocessError):
            if site.run("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D").split() == ["2"]:
                return
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    subprocess.run(["bash", HERE / "slurm_stop.sh", site.root / "slurm"], check=False, timeout=60)
    logs = "\n".join(
        path.read_text(errors="replace")[-500:] for path in site.root.glob("slurm/log/*.log")
    )
    raise Unavailable(f"Slurm did not start: {done.stderr[-500:]}\n{logs}")


@contextlib.contextmanager
def _stand_ins(site: SlurmSite) -> Iterator[None]:
    """The rehearsal's stand-ins for what the jobs call. Their node is the one on which slurmd
    runs them; `hostname` is the machine's own, as each node has one."""
    root, python = site.root, sys.executable
    path_folder.write(root)
    for path in (root / "bin").iterdir():
        if path.name not in _TOOLS:
            path.unlink()
    for path in map(root.joinpath("stubs").joinpath, _TOOLS):
        first, rest = path.read_text().split("\n", 1)
        bench = (
            f'[ "$1" != bench ] || exec {python} {HERE / "bench.py"} "$@"\n'
            if path.name == "vllm"
            else ""
        )
        path.write_text(f'{first}\nexport {NODE}="${{SLURMD_NODENAME:-}}"\n{bench}{rest}')
    (root / "bin" / "srun").write_text(_SRUN)
    (root / "bin" / "srun").chmod(0o755)
    simulated = replace(SimulatedSite.of(site.plan("simulated", "optimised")), nodes=site.addresses)
    (root / "logs").mkdir()
    with Programs(root / "logs" / "supervisor.log") as programs:
        programs.start(
            "spawner",
            [python, "-m", "kimi_nb.rehearse.spawner", str(root)],
            root,
            dict(os.environ),
            root / "logs" / "spawner.log",
        )
        simulated.write(root / "world.json")
        end = time.monotonic() + 60
        while not (root / "spawner.sock").exists():
            if time.monotonic() > end:
                raise Unavailable((root / "logs" / "spawner.log").read_text()[-2000:])
            time.sleep(0.02)
        yield
