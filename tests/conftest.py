"""What several tests share: every plan that can be made, and stand-ins that print what they got."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import settings
from testbed import slurm_site as testbed

from kimi_nb.params import recipes
from kimi_nb.plan import build

# How long an example takes is the machine's affair; speed is measured in benchmarks/.
# The same examples in every run: what CI tells of a commit is the commit's doing.
settings.register_profile("kimi", deadline=None, derandomize=True, database=None)
settings.load_profile("kimi")

# What starts the tests in the background (nohup, a CI's shell) may have told them to ignore these,
# which programs inherit; those of a person's terminal do not.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# `make test`, called by another make, hands that one's options on to each make of a test.
for inherited in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(inherited, None)

ROWS = [
    (row["model"], row["hardware"], row["layout"], row["variant"], row["scenario"])
    for row in recipes.listing()
]
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(params=ROWS, ids=["-".join(row) for row in ROWS])
def each_plan(request):
    """Every deployment and scenario of `kimi-nb list`."""
    model, hardware, layout, variant, scenario = request.param
    return build.plan(model, hardware, layout, variant=variant, scenario=scenario)


class Echo:
    """Programs that, instead of working, append their name, argv and environment to a file."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.log = folder / "bin", folder / "calls.jsonl"
        self.bin.mkdir()

    def add(self, *names: str, then: str = "") -> None:
        """Stand in for programs; ``then`` is shell that runs afterwards."""
        for name in names:
            path = self.bin / name
            path.write_text(
                f"""#!/bin/bash
{sys.executable} -c '
import json, os, sys
with open({str(self.log)!r}.strip(), "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
' {name} "$@"
{then}
""".replace(f"'{self.log}'", f'"{self.log}"')
            )
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, script: Path, *args: str, **env: str) -> subprocess.CompletedProcess:
        """Run a script with the stand-ins first on PATH and nothing else of ours."""
        path = f"{self.bin}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(script), *args],
            env={"PATH": path, **env},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            cwd=script.parent,
            check=False,
        )

    @property
    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        """(argv, environment) of each call, oldest first."""
        if not self.log.exists():
            return []
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]


@pytest.fixture
def echo(tmp_path):
    return Echo(tmp_path)


@pytest.fixture
def two_dgx(tmp_path):
    """The SLURM example site of two nodes, with its project in tmp_path/projects."""
    text = (ROOT / "params" / "sites" / "h200-slurm.yaml").read_text()
    path = tmp_path / "two.yaml"
    path.write_text(text.replace("/projects/kimi", str(tmp_path / "projects")))
    return str(path)


@pytest.fixture
def slurm_in_image(tmp_path):
    """Write the SLURM example site with its jobs in an image."""

    def write(runtime: str, image: str = "", modules=(), **tables) -> str:
        site = yaml.safe_load((ROOT / "params" / "sites" / "h200-slurm.yaml").read_text())
        del site["slurm"]["modules"]
        site["slurm"] |= {"container": {"runtime": runtime} | ({"image": image} if image else {})}
        site["slurm"] |= {"modules": list(modules)} if modules else {}
        path = tmp_path / f"in-{runtime}.yaml"
        path.write_text(yaml.safe_dump(site | tables, sort_keys=False))
        return str(path)

    return write


@pytest.fixture
def site_file(tmp_path):
    """Write a site file: the A3 example with some lines replaced."""
    text = (ROOT / "params" / "sites" / "a3.yaml").read_text()

    def write(*changes: tuple[str, str], name: str = "mine.yaml") -> str:
        changed = text
        for old, new in changes:
            assert old in changed, old
            changed = changed.replace(old, new)
        path = tmp_path / name
        path.write_text(changed)
        return str(path)

    return write


@pytest.fixture(scope="session")
def nodes_file(tmp_path_factory):
    """Write a site file: the example site of a hardware (h200, h200-slurm) with as many nodes."""
    folder = tmp_path_factory.mktemp("sites")

    def write(name: str, count: int) -> str:
        site = yaml.safe_load((ROOT / "params" / "sites" / f"{name}.yaml").read_text())
        site["nodes"] = [
            {"name": f"node-{i}", "address": f"192.0.2.{i + 11}"} for i in range(count)
        ]
        path = folder / f"{name}-{count}.yaml"
        path.write_text(yaml.safe_dump(site))
        return str(path)

    return write


@pytest.fixture(scope="session")
def slurm_site():
    """A real Slurm with stand-ins for what its jobs run; skipped where there can be none."""
    try:
        with testbed.running() as site:
            yield site
    except testbed.Unavailable as why:
        pytest.skip(f"no Slurm: {why}")
