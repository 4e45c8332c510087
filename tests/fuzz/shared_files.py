"""What others hand over: checkouts, traces of requests, results to size by, drills, saved plans."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from pathlib import Path

import yaml

from fuzz import change, guard
from fuzz.targets import Target, command, shipped, written
from kimi_nb.i18n import catalogue

_TAXONOMY = b"""hardware_profiles:
  h200: {brand: NVIDIA, generation: hopper, gpu_count: 8, vram_gb: 1128}
  b200: {brand: NVIDIA, generation: blackwell, gpu_count: 8, vram_gb: 1440}
"""
_STRATEGY = (
    b"name: single_node_tp\ndeploy_type: single_node\nparallel_flag: --tensor-parallel-size\n"
)
_POOLS = b"name: pd_cluster\ndeploy_type: pd_cluster\nparallel_flag: --tensor-parallel-size\n"
_PATCH = {"extends", "families", "recipes"}  # the keys of a proposed model file


def _page(data: bytes, folder: Path) -> str:
    """A page of a checkout of recipes."""
    root = folder / "recipes"
    written(root, "taxonomy.yaml", _TAXONOMY)
    written(root, "strategies/single_node_tp.yaml", _STRATEGY)
    written(root, "strategies/pd_cluster.yaml", _POOLS)
    written(root, "models/moonshotai/Kimi-K2.5.yaml", data)
    return _compared(root, folder / "out")


def _cases(data: bytes, folder: Path) -> str:
    """A configuration of the tests of a checkout of vllm-ascend."""
    root = _ascend(folder)
    written(root, "tests/e2e/weekly/Kimi-K2.5-A3.yaml", data)
    return _compared(root, folder / "out")


def _tutorial(data: bytes, folder: Path) -> str:
    """A document of a checkout of vllm-ascend."""
    root = _ascend(folder)
    written(root, "docs/source/tutorials/Kimi-K2.5.md", data)
    return _compared(root, folder / "out")


def _ascend(folder: Path) -> Path:
    root = folder / "ascend"
    for name in ("vllm_ascend", "tests/e2e/nightly", "tests/e2e/weekly", "docs/source/tutorials"):
        (root / name).mkdir(parents=True, exist_ok=True)
    return root


def _compared(root: Path, out: Path) -> str:
    """What is said of a checkout, and whether what is proposed has the keys of a model file alone."""
    shown = command("upstream", root, "--model", "", "--list")
    shown += command("upstream", root, "--model", "", "--out", out)
    for path in out.glob("*") if out.exists() else ():
        assert set(yaml.safe_load(path.read_text())) == _PATCH, path
        shown += command("plan", "--model", path, "--hw", "a3", "--layout", "single")
    return shown


def _trace(data: bytes, folder: Path) -> str:
    """A trace of requests to size for."""
    path = written(folder, "trace.jsonl", data)
    where = ("--model", "k2.5", "--hw", "h200", "--layout", "single")
    return command("size", *where, "--trace", path, "--tpot", "50ms")


def _measured(data: bytes, folder: Path) -> str:
    """Results of notebook 08 that calibrate sizes."""
    written(folder / "bench", "c1-r1-a.json", data)
    where = ("--model", "k2.5", "--hw", "h200", "--layout", "single")
    load = ("--input", "1024", "--output", "128", "--tpot", "50ms")
    return command("size", *where, *load, "--results", folder / "bench")


def _drill(data: bytes, folder: Path) -> str:
    """What a drill holds, with what is sealed in it as it stands."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        facts = None
    if isinstance(facts, dict) and isinstance(facts.get("sealed"), dict):
        sealed = base64.b64encode(zlib.compress(json.dumps(facts["sealed"]).encode())).decode()
        data = json.dumps({**facts, "sealed": sealed}).encode()
    return _judged(folder, data, _PLAN)


def _plan(data: bytes, folder: Path) -> str:
    """A saved plan, which says where the ranks of logs are."""
    shown = _judged(folder, _DRILL, data)
    return shown + command("doctor", folder / "drill" / "logs", "--plan", folder / "drill")


def _judged(folder: Path, drill: bytes, plan: bytes) -> str:
    root = folder / "drill"
    written(root, "drill.json", drill)
    written(root, "plan.json", plan)
    written(root, "client.log", b"REHEARSAL 11-23 09:41:06 front door: GET /health: 200\n")
    written(root, "logs/a3-0/rank_0.log", b"RuntimeError: NPU out of memory.\n")
    shown = command("drill", "--show", "--of", root)
    shown += command("drill", "--answer", "a3-0 rank 0 out of memory at load", "--of", root)
    return shown


_TRUTH = {
    "fault": "out-of-memory-at-load", "node": "a3-0", "ranks": [0], "whole": False,
    "cause": "NPU out of memory", "evidence": "logs/a3-0/rank_0.log: RuntimeError", "help": "less",
    "in_logs": True,
}  # fmt: skip
_DRILL = json.dumps(
    {
        "mark": "REHEARSAL", "plan": "p", "asked": "", "seed": 1,
        "sealed": base64.b64encode(zlib.compress(json.dumps(_TRUTH).encode())).decode(),
    }
).encode()  # fmt: skip
_PLAN = (Path(__file__).parent / "corpus" / "saved-plan" / "good-plan.json").read_bytes()


def _cluster(data: bytes, folder: Path) -> str:
    """A site that is a cluster of Kubernetes: every object is one of those that a plan has."""
    path, out = written(folder, "site.yaml", data), folder / "bundle"
    target = ("--model", "k2.5", "--hw", "a3", "--layout", "pd", "--site", path)
    shown = command("plan", *target, "--out", out, "--force")
    for made in (out / "kubernetes").glob("*.yaml"):
        found = [one for one in yaml.safe_load_all(made.read_text()) if one is not None]
        assert all(isinstance(one, dict) for one in found), made
        assert {one.get("kind") for one in found} <= _KINDS, made
    if guard.SECRET.encode() in data:  # a name there, which the bundle has too
        shutil.rmtree(out, ignore_errors=True)
    return shown


_KINDS = {
    "LeaderWorkerSet", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor", "Deployment", "Service",
    "Kustomization", None,
}  # fmt: skip


def _translated(data: bytes, folder: Path) -> str:
    """A sentence that is translated with what a stranger wrote in it."""
    text = data.decode("utf-8", "replace")
    told = [catalogue.into("zh", text), catalogue.into("zh", f"{text}: no such file. {text}.")]
    return command("explain", text[:200]) + str(sum(map(len, told)))


TARGETS = (
    Target("recipe-page", _page, (b"guide: |\n", b"base_args: [", b"extra_env: {", b"```bash\n", b"vllm serve "),
           change.yaml_values),
    Target("ascend-tests", _cases, (b"test_cases:\n", b"server_cmd: ", b"envs: {", b"<<: *a"), change.yaml_values),
    Target("tutorial", _tutorial, (b"```shell\n", b"```\n", b"=== \"A\"\n", b"### A3\n", b"export A=<b>\n")),
    Target("trace", _trace, (b"\"timestamp\": ", b"\"hash_ids\": [", b"\n"), change.json_lines),
    Target("measured", _measured, (), change.json_values),
    Target("drill", _drill, (), change.json_values),
    Target("saved-plan", _plan, (), change.json_values),
    Target("cluster", _cluster, (b"kubernetes:\n", b"weights: {claim: ", b"tolerations:\n"), change.yaml_values,
           lambda: shipped("sites/*kubernetes.yaml")),
    Target("translated", _translated, (b"error: ", b" is not ", b"no such file", b". ", b"; ", b", ")),
)  # fmt: skip
