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
from leftovers import wait_gone
from testbed import deployments
from testbed import slurm_site as testbed

import kimi_nb
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

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

# What a test compares is English, whatever the language of the developer.
os.environ["KIMI_NB_LANG"] = "en"

ROWS = deployments.rows()
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(params=ROWS, ids=["-".join(row) for row in ROWS])
def each_plan(request):
    """Every deployment and scenario that we wrote, and one of each kind that we imported."""
    model, hardware, layout, variant, scenario = request.param
    return build.plan(model, hardware, layout, variant=variant, scenario=scenario)


@pytest.fixture
def run(tmp_path):
    """A notebook's start on four A3 nodes; at its end nothing that it has started is left."""
    made = kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    yield made
    made.close()
    assert not wait_gone(tmp_path)


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
def plan_on(tmp_path_factory):
    """Plan a service on a hardware that no recipe may be of: Kimi-K2.5 with a recipe of the test."""
    folder = tmp_path_factory.mktemp("models")

    def plan(hardware: str, **recipe) -> Plan:
        chip = load.hardware(hardware)
        ascend = chip.vendor == "ascend"
        # 600 GB of weights, and what an engine needs beside them.
        nodes = -(-700 // (chip.devices.count * chip.devices.memory_gb))
        service = {
            "hardware": chip.recipes_of,
            "layout": "single" if nodes == 1 else "dp",
            "variant": "docker",
            "title": "A recipe of a test",
            "source": {"document": "usage-guide"},
            "engine_version": "v0.23.0" if ascend else "0.25.1",
            "weights": "w4a8" if ascend else "int4",
            "install": "docker",
            "bind": "all",
            "features": ["expert-parallel"] if ascend else ["tool-parser", "reasoning-parser"],
            "settings": {"flags": {"max-model-len": 16384, "max-num-seqs": 16}},
            "roles": {"mixed": {"nodes": nodes, "tp": nodes * chip.devices.count}},
        }
        path = folder / f"{hardware}.yaml"
        path.write_text(
            yaml.safe_dump({"extends": "k2.5", "name": "mine", "recipes": [service | recipe]})
        )
        return build.plan(str(path), hardware)

    return plan


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
def stored_model(tmp_path_factory):
    """Write a model file: K2.5 with recipes that share a KV store, of both modes."""
    folder = tmp_path_factory.mktemp("models")

    def write(mode: str = "distributed", **changes) -> str:
        central = mode == "centralised"
        recipe = {
            "hardware": "h200",
            "layout": "single",
            "variant": "pip",
            "title": "Two H200 nodes that share a KV store",
            "documented": False,
            "source": {"document": "usage-guide", "section": "Running"},
            "engine_version": "0.25.1",
            "weights": "int4",
            "install": "pip",
            "router": "vllm-router",
            "router_port": 30080,
            "store": {"mode": mode, "segment_gb": 500 if central else 100},
            "roles": {"mixed": {"groups": 2, "tp": 8}},
        }
        recipe |= changes
        path = folder / f"{mode}-{len(list(folder.iterdir()))}.yaml"
        model = {"extends": "k2.5", "name": "k2.5-store", "recipes": [recipe]}
        path.write_text(yaml.safe_dump(model, sort_keys=False))
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


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory):
    """A model file: K2.5 with prefill-decode on H200 nodes, ranks of 16 devices and equal nodes.

    A prefill rank spans two nodes; two decode nodes answer for their own ranks.
    """
    path = tmp_path_factory.mktemp("models") / "wide.yaml"
    wide = {"extends": "k2.5", "name": "wide", "recipes": [_WIDE]}
    path.write_text(yaml.safe_dump(wide, sort_keys=False))
    return str(path)


_WIDE = {
    "hardware": "h200",
    "layout": "pd",
    "variant": "wide",
    "title": "Four H200 nodes, prefill TP16 over two, decode DP16 over two that answer apart",
    "documented": False,
    "source": {"document": "usage-guide", "section": "a shape of public recipes"},
    "engine_version": "0.32.0",
    "weights": "int4",
    "install": "pip",
    "router": "vllm-router",
    "features": ["expert-parallel"],
    "settings": {
        "env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "{address}"},
        "flags": {"kv-transfer-config": {"kv_connector": "NixlConnector"}},
    },
    "roles": {
        "prefill": {"nodes": 2, "tp": 16, "ports": {"http": 8001, "side_channel": 5557}},
        "decode": {
            "nodes": 2,
            "dp": 16,
            "ports": {"http": 8002, "rpc": 13345, "side_channel": 5558},
            "settings": {"flags": {"data-parallel-hybrid-lb": True}},
        },
    },
}
