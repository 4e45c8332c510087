"""The objects of a plan on Kubernetes: expanded as the controller does, they are the plan again."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROWS
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_nb.bundle.kubernetes import kubernetes_files, kubernetes_readmes, pod_scripts
from kimi_nb.bundle.kubernetes.pod_values import Pod, Said
from kimi_nb.check import judge, reading
from kimi_nb.check.reading import pod_expansion
from kimi_nb.cli import main as cli
from kimi_nb.core import paths, shell
from kimi_nb.core.errors import PlanError
from kimi_nb.params import load
from kimi_nb.plan import build, pod_names
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import kubernetes_pods, rehearsal

KUBECTL = Path(sys.executable).with_name("kubectl")


def site_of(hardware: str, folder: Path, nodes: int = 16, **more: Any) -> str:
    """A Kubernetes site of any hardware."""
    site = load.site("h200-kubernetes").model_dump(mode="json", exclude_unset=True)
    site |= {"hardware": hardware, "nodes": nodes, "name": f"{hardware}-pods"}
    site["kubernetes"] |= more
    path = folder / f"{hardware}-pods.yaml"
    path.write_text(yaml.safe_dump(site))
    return str(path)


def write(plan: Plan, folder: Path) -> Path:
    for name, text in kubernetes_files.files(plan).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "kubernetes"


def rendered(folder: Path) -> list[dict[str, Any]]:
    """What the real kubectl makes of the folder, without a cluster."""
    done = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def engines_read(folder: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Variables of every engine that the linter's reader finds, by its pod and its command."""
    deployment = reading.read([folder])
    out = {}
    for server in deployment.servers:
        argv = tuple(word for word in server.argv if word != "exec")
        key = (server.spot.file.partition("/")[0], *argv)
        assert key not in out, "a rank twice"
        out[key] = dict(server.env)
    return out


def same(plan: Plan, found: dict[tuple[str, ...], dict[str, str]]) -> None:
    wanted = {(engine.node, *engine.argv): engine for engine in plan.engines}
    assert set(found) == set(wanted)
    for key, engine in wanted.items():
        env = {name: value for name, value in engine.env.items() if name not in shell.LISTS}
        assert env.items() <= found[key].items(), engine.name


def alike_in_place(plan: Plan, folder: Path) -> None:
    """Devices and ports of every rank, and of all of them: from the scripts and from the objects."""
    texts = [path.read_text() for path in sorted(folder.glob("*.yaml"))]
    objects = [one for text in texts for one in yaml.safe_load_all(text)]
    sets = {one["metadata"]["name"]: one["spec"] for one in objects if _is_set(one)}
    device = plan.request.site.kubernetes.device
    pods: dict[str, dict[str, Any]] = {}  # the container of each
    for name, spec in sets.items():
        group = spec["leaderWorkerTemplate"]
        for number, worker in itertools.product(range(spec["replicas"]), range(group["size"])):
            template = group.get("workerTemplate" if worker else "leaderTemplate")
            template = template or group["workerTemplate"]
            pod = f"{name}-{number}-{worker}" if worker else f"{name}-{number}"
            (pods[pod],) = template["spec"]["containers"]
    assert {*pods} == {engine.node for engine in plan.engines}
    count = {pod: one["resources"]["limits"][device] for pod, one in pods.items()}
    by_command = {(engine.node, *engine.argv): engine for engine in plan.engines}
    held: dict[str, list[int]] = {pod: [] for pod in pods}
    listening: dict[str, list[int]] = {pod: [] for pod in pods}
    for server in reading.read([folder]).servers:
        pod = server.spot.file.partition("/")[0]
        engine = by_command.pop((pod, *[word for word in server.argv if word != "exec"]))
        # Without a variable vLLM takes the first of what its pod was given.
        nodes = int(server.flags.get("nnodes") or 0)
        takes = server.tp * (server.pp or 1)
        takes = takes * server.dp // nodes if nodes else takes * server.ranks
        first = tuple(range(count[pod]))[:takes]
        seen = server.devices if server.devices is not None else first
        assert seen == engine.devices, engine.name
        ports = ("http_port", "kv_port", "side_channel_port", "rpc_port")
        read = {port: getattr(server, port) for port in ports}
        assert read == {port: getattr(engine, port) for port in ports}, engine.name
        assert (server.rank, server.ranks) == (engine.rank, engine.ranks), engine.name
        held[pod] += seen
        listening[pod] += [server.http_port] if server.http_port is not None else []
    assert not by_command, "every rank, and each once"
    declared = {pod: [one["containerPort"] for one in pods[pod]["ports"]] for pod in pods}
    assert {pod: sorted(ports) for pod, ports in listening.items()} == declared
    # A pod takes all devices of its node; its ranks have theirs of these, and none has another's.
    assert {*count.values()} == {plan.devices_per_node}
    for pod, devices in held.items():
        assert len(devices) == len({*devices}) and {*devices} <= {*range(count[pod])}, pod
    wanted = [device for engine in plan.engines for device in engine.devices]
    assert sorted(itertools.chain(*held.values())) == sorted(wanted)


def _is_set(one: Any) -> bool:
    return isinstance(one, dict) and one.get("kind") == "LeaderWorkerSet"


# Equal, per rank and in sum --------------------------------------------------------------------


def plans(row: tuple[str, ...], folder: Path) -> Iterator[Plan]:
    """A recipe on Kubernetes, in its own shape and in others; those that do not fit are left out."""
    model, hardware, layout, variant, scenario = row
    count = load.hardware(hardware).devices.count
    shapes = [
        [],
        ["groups=3"] if layout != "pd" else ["prefill.groups=3", "decode.groups=2"],
        ["nodes=2", "dp=2", f"tp={count}"] if layout != "pd" else ["decode.nodes=1"],
        ["nodes=2", f"dp={2 * count}", "tp=1"] if layout != "pd" else ["prefill.nodes=2"],
    ]
    for number, pairs in enumerate(shapes):
        try:
            plan = build.plan(
                model,
                hardware,
                layout,
                variant=variant,
                scenario=scenario,
                site=site_of(hardware, folder),
                pairs=pairs,
            )
        except PlanError:
            assert number, "the recipe's own shape"
            continue
        yield plan


IN_IMAGES = [row for row in ROWS if row[3] != "slurm" and load.hardware(row[1]).container]
DEFAULT = [row for row in IN_IMAGES if row[4] == "default"]
FEW = [
    row
    for row in DEFAULT
    if row[:4]
    in (
        ("k2.5", "a3", "pd", "docker"),
        ("k2.5", "a3", "single", "docker"),
        ("k2.5", "h200", "dp", "tp"),
        ("k2.5", "gb200", "pd", "nvfp4"),
        ("k3", "a3", "dp", "guide-v0.23"),
    )
]


@pytest.mark.parametrize("row", FEW, ids="-".join)
def test_what_the_linter_reads_is_the_plan(row, tmp_path):
    for number, plan in enumerate(plans(row, tmp_path)):
        folder = write(plan, tmp_path / str(number))
        same(plan, engines_read(folder))
        alike_in_place(plan, folder)


@pytest.mark.long
@pytest.mark.parametrize("row", [row for row in IN_IMAGES if row not in FEW], ids="-".join)
def test_so_it_is_for_every_recipe(row, tmp_path):
    for number, plan in enumerate(plans(row, tmp_path)):
        folder = write(plan, tmp_path / str(number))
        same(plan, engines_read(folder))
        alike_in_place(plan, folder)


ECHO = """#!/bin/bash
file=$(mktemp "$ECHO_FOLDER/XXXXXXXX")
printf '%s\\0' "$ECHO_POD" vllm "$@" > "$file.argv"
env -0 > "$file.env"
"""


def run_pods(objects: list[dict[str, Any]], work: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Run what each pod runs, in bash, with a program that only says how it was called."""
    maps = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
    work.mkdir()
    (work / "bin").mkdir()
    (work / "said").mkdir()
    (work / "bin" / "vllm").write_text(ECHO)
    (work / "bin" / "vllm").chmod(0o755)
    (work / "bin" / "python3").symlink_to(sys.executable)
    for run in pod_expansion.pods(objects, maps):
        mounted = work / run.name
        mounted.mkdir()
        for name, text in run.files.items():
            # Where the pod has folders of its own.
            text = text.replace(pod_scripts.LOGS, str(mounted / "logs"))
            (mounted / name).write_text(text.replace(pod_scripts.FOLDER, str(mounted)))
        environment = {
            **run.env,
            "PATH": f"{work / 'bin'}:/usr/bin:/bin",
            "ECHO_FOLDER": str(work / "said"),
            "ECHO_POD": run.name,
        }
        done = subprocess.run(
            ["bash", mounted / run.script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    out = {}
    for file in (work / "said").glob("*.argv"):
        argv = tuple(file.read_text().split("\0")[:-1])
        words = file.with_suffix(".env").read_text().split("\0")[:-1]
        assert argv not in out, "a rank twice"
        out[argv] = dict(word.split("=", 1) for word in words)
    return out


@pytest.mark.parametrize(
    "names, pairs",
    [
        (("k2.5", "a3", "pd", "a3-kubernetes"), []),
        (("k2.5", "h200", "dp", "h200-kubernetes"), ["groups=2"]),
        (("k3", "a3", "dp", "a3-kubernetes"), []),
        (("k2.5", "h200", "single", "h200-kubernetes"), ["groups=3", "router=vllm-router"]),
    ],
    ids=lambda value: "-".join(value) or "as-is",
)
def test_what_bash_runs_in_the_pods_of_kubectl_is_the_plan(names, pairs, tmp_path):
    """The real kubectl renders, the real bash and launcher run: neither knows the planner."""
    plan = build.plan(*names[:3], site=names[3], pairs=pairs)
    same(plan, run_pods(rendered(write(plan, tmp_path / "bundle")), tmp_path / "work"))


# The chart is not ours to ship: where its source lies.
CHART = os.environ.get("KIMI_NB_TEST_CHART", "")


@pytest.mark.parametrize(
    "names, pairs",
    [
        (("k2.5", "a3", "pd", "a3-kubernetes"), []),
        (("k2.5", "h200", "dp", "h200-kubernetes"), ["groups=2"]),
        (("k2.5", "gb200", "pd", "gb200-kubernetes"), []),
        (("k2.5", "mi300x", "single", "mi300x-kubernetes"), []),
    ],
    ids=lambda value: "-".join(value[1:3]) or "as-is",
)
def test_what_bash_runs_in_the_pods_of_llm_d_is_the_plan(names, pairs, tmp_path):
    """The real helm renders the real chart from our values; its pods run the plan's engines."""
    helm = pytest.importorskip("helm_python", reason="needs helm-python-sdk, 85 MB")
    if not (Path(CHART) / "Chart.yaml").is_file():
        pytest.skip("needs the chart llm-d-modelservice: KIMI_NB_TEST_CHART names its folder")
    plan = build.plan(*names[:3], site=names[3], pairs=pairs)
    values = yaml.safe_load(kubernetes_files.files(plan)["llm-d/values.yaml"])
    with helm.Chart.load(CHART) as chart:
        made = chart.render(values, name="kimi", namespace="kimi")
    objects = [
        one for text in made.values() for one in yaml.safe_load_all(text) if isinstance(one, dict)
    ]
    sets = [one for one in objects if one["kind"] == "LeaderWorkerSet"]
    assert len(sets) == len({engine.role for engine in plan.engines})
    for one in sets:
        one["metadata"].setdefault("namespace", "kimi")  # that of the release
    found = run_pods(objects, tmp_path / "work")
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for (pod, *argv), env in found.items():
        groups.setdefault(tuple(_unnamed(argv)), []).append(env)
        assert pod
    wanted = [tuple(_unnamed(engine.argv)) for engine in plan.engines]
    assert sorted(wanted) == sorted(argv for argv, envs in groups.items() for _ in envs)


def _unnamed(argv: Any) -> list[str]:
    """A command without the names of pods: the chart calls its sets otherwise."""
    return [re.sub(r"[\w-]+-\d+(?:-\d+)?\.[\w-]+\.kimi", "POD", word) for word in argv]


def test_a_set_of_1024_nodes_is_one_object(tmp_path):
    site = site_of("h200", tmp_path, 1024)
    plan = build.plan("k2.5", "h200", "dp", site=site, pairs=["groups=512"])
    folder = write(plan, tmp_path / "bundle")
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert max(sizes) < 64 << 10 and len(plan.nodes) == 1024
    (one,) = [one for one in rendered(folder) if one["kind"] == "LeaderWorkerSet"]
    assert one["spec"]["replicas"] == 512
    assert one["spec"]["leaderWorkerTemplate"]["size"] == 2


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_numbers_that_follow_group_and_worker_become_arithmetic(data):
    """What bash makes of the expression is the number of each pod, whatever it follows."""
    groups, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    pods = [
        Pod(g, w, f"p-{g}-{w}.p.n", f"p-{g}-0.p.n")
        for g, w in itertools.product(range(groups), range(size))
    ]
    values = data.draw(
        st.one_of(
            st.tuples(*[st.integers(0, 900)] * 3).map(
                lambda abc: [abc[0] + abc[1] * pod.group + abc[2] * pod.worker for pod in pods]
            ),
            st.lists(st.integers(0, 9), min_size=len(pods), max_size=len(pods)),
        )
    )
    text = data.draw(st.sampled_from(["{}", '{{"a b":"$x",\'kv\':{}}}', "p{}`x`", "1{}.5 {}"]))
    words = [text.replace("{}", str(value)) for value in values]
    said = Said(pods)
    word = said.word(words, "--flag")
    lines = [f"printf '%s\\0' {word if isinstance(word, shell.Raw) else shell.quote(word)}"]
    for pod, wanted in zip(pods, words, strict=True):
        script = "\n".join(
            [f"GROUP={pod.group} LWS_WORKER_INDEX={pod.worker}", *said.lines, *lines]
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == f"{wanted}\0"


@pytest.mark.parametrize(
    "file, old, new",
    [
        ("decode.yaml", "huawei.com/Ascend910: 16", "huawei.com/Ascend910: 8"),
        ("prefill.yaml", "replicas: 2", "replicas: 1"),
        ("decode.yaml", "containerPort: 7100", "containerPort: 7999"),
    ],
)
def test_objects_that_are_not_the_plan_are_found(file, old, new, tmp_path):
    """The comparison above can fail."""
    plan = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
    folder = write(plan, tmp_path)
    alike_in_place(plan, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises((AssertionError, KeyError)):
        alike_in_place(plan, folder)


def test_words_that_no_number_explains_are_refused():
    pods = [Pod(0, 0, "a", "a"), Pod(1, 0, "b", "b")]
    with pytest.raises(PlanError, match="after --x pods of one set say 'left' and 'right'"):
        Said(pods).word(["left", "right"], "--x")


# What a cluster would refuse -------------------------------------------------------------------


def objects_of(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    made = write(plan, folder)
    parts = [made, made / "weights"] if (made / "weights").exists() else [made]
    return [one for part in parts for one in rendered(part)]


FIELDS = yaml.safe_load((Path(__file__).parent / "kubernetes_fields.yaml").read_text())


def misspelt(value: Any, schema: Any, at: str) -> list[str]:
    """Keys of a custom resource that its definition does not know, and values of another kind."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{at}: {value!r}"]
        unknown = [f"{at}.{key}" for key in value.keys() - schema.keys()]
        known = value.keys() & schema.keys()
        return unknown + [
            one for key in known for one in misspelt(value[key], schema[key], f"{at}.{key}")
        ]
    if isinstance(schema, list):
        return [] if value in schema else [f"{at}: {value!r}"]
    if schema == "count":
        return [] if isinstance(value, int) and value >= 0 else [f"{at}: {value!r}"]
    return []


@pytest.mark.parametrize(
    "version",
    ["1.29", *(pytest.param(one, marks=pytest.mark.long) for one in ("1.32", "1.34")), "1.37"],
)
@pytest.mark.parametrize(
    "names, more",
    [
        (("k2.5", "a3", "pd"), {"weights": {"storage_class": "cephfs"}, "pod_monitor": True}),
        (("k2.5", "h200", "dp"), {"host_network": True, "image_pull_secret": "login"}),
        (("k2.5", "gb200", "pd"), {"weights": {"host_path": "/data"}, "cpus": 96}),
        (("k2.5", "mi300x", "single"), {"memory": "1500Gi"}),
    ],
    ids=["a3", "h200", "gb200", "mi300x"],
)
def test_every_object_is_valid_for_the_api(names, more, version, tmp_path):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    plan = build.plan(*names, site=site_of(names[1], tmp_path, **more))
    for one in objects_of(plan, tmp_path / "bundle"):
        if one["kind"] in FIELDS:
            assert misspelt(one["spec"], FIELDS[one["kind"]], one["kind"]) == []
            group = one["spec"].get("leaderWorkerTemplate", {})
            templates = [group[key] for key in ("leaderTemplate", "workerTemplate") if key in group]
            meta = {"name": "pod"}
            made = [
                {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], **meta}}
                for pod in templates
            ]
        else:
            made = [one]
        for real in made:
            kubernetes_validate.validate(real, version, strict=True)


def test_a_misspelt_key_is_found():
    """The checks above can fail."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    assert misspelt({"replica": 1}, FIELDS["LeaderWorkerSet"], "x") == ["x.replica"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"container": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, "1.34", strict=True)


EXAMPLES = {
    "a3-kubernetes": ("k2.5", "a3", "pd"),
    "h200-kubernetes": ("k2.5", "h200", "dp"),
    "gb200-kubernetes": ("k2.5", "gb200", "pd"),
    "mi300x-kubernetes": ("k2.5", "mi300x", "single"),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_becomes_all_that_a_cluster_needs(example, tmp_path):
    """With the settings that the examples have as remarks switched on."""
    text = (paths.root() / "params" / "sites" / f"{example}.yaml").read_text()
    text, count = re.subn(r"^  # (?=(?:image_pull_secret|api_key_secret|pod_monitor): )", "  ", text, flags=re.M)  # fmt: skip
    assert count == 3
    site = tmp_path / f"{example}.yaml"
    site.write_text(text.replace("paths: {", "api_key_env: KIMI_KEY\npaths: {"))
    several = [] if EXAMPLES[example][2] == "pd" else ["groups=2"]
    pairs = ["router=vllm-router", *several]
    plan = build.plan(*EXAMPLES[example], site=str(site), pairs=pairs)
    objects = objects_of(plan, tmp_path / "bundle")
    kinds = [one["kind"] for one in objects]
    sets = [one for one in objects if one["kind"] == "LeaderWorkerSet"]
    roles = {engine.role for engine in plan.engines}
    assert len(sets) == len(roles) == kinds.count("PodDisruptionBudget")
    assert kinds.count("PodMonitor") == len(roles) and kinds.count("Service") == 1
    assert kinds.count("NetworkPolicy") >= len(roles) and "ConfigMap" in kinds
    key = {"secretKeyRef": {"name": "kimi-api-key", "key": "KIMI_KEY"}}
    for one in sets:
        group = one["spec"]["leaderWorkerTemplate"]
        assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
        assert one["spec"]["networkConfig"] == {"subdomainPolicy": "Shared"}
        for template in ("leaderTemplate", "workerTemplate"):
            if template in group:
                check_pod(plan, group[template]["spec"], key)
    (router,) = [one for one in objects if one["kind"] == "Deployment"]
    (door,) = router["spec"]["template"]["spec"]["containers"]
    assert "ready.py" in " ".join(door["readinessProbe"]["exec"]["command"])
    for one in objects:
        if one["kind"] == "NetworkPolicy":
            check_policy(one["spec"], roles)
        if one["kind"] == "PodMonitor":
            (ports,) = [
                [port["name"] for port in container["ports"]]
                for made in sets
                if made["metadata"]["name"] == one["metadata"]["name"]
                for container in made["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"][
                    "containers"
                ][:1]
                if container["ports"]
            ] or [["http"]]
            asked = [row["port"] for row in one["spec"]["podMetricsEndpoints"]]
            assert asked == ports
    # A secret is named; its value is nowhere.
    assert not [one for one in objects if one["kind"] == "Secret"]


def check_pod(plan: Plan, pod: dict[str, Any], key: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["imagePullSecrets"] == [{"name": "registry-login"}]
    held = {one["name"]: one.get("valueFrom") for one in container["env"]}
    assert held["VLLM_API_KEY"] == key
    limits = container["resources"]["limits"]
    cluster = plan.request.site.kubernetes
    assert limits[cluster.device] == plan.devices_per_node
    assert all(limits[name] == count for name, count in cluster.resources.items())
    assert int(container["resources"]["requests"]["memory"].removesuffix("Gi")) <= int(
        limits["memory"].removesuffix("Gi")
    )
    if not container["ports"]:  # headless: its leader answers for it
        assert not [name for name in container if name.endswith("Probe")]
        return
    start, live = container["startupProbe"], container["livenessProbe"]
    # While it loads only the start-up probe counts: it waits for a slow disk.
    size = plan.request.weights.size_gb / 0.5
    assert start["periodSeconds"] * start["failureThreshold"] >= size + 30 * 60
    assert start["httpGet"] == live["httpGet"] and live["failureThreshold"] > 1
    command = container["readinessProbe"]["exec"]["command"]
    ports = [str(one["containerPort"]) for one in container["ports"]]
    assert command[1].endswith("/ready.py") and command[2:] == [plan.served_name, *ports]


def check_policy(policy: dict[str, Any], roles: set[str]) -> None:
    """Only the router, engines, and Prometheus at the ports of the API."""
    assert policy["policyTypes"] == ["Ingress"]
    for rule in policy["ingress"]:
        assert rule["from"], "not everyone"
        for one in rule["from"]:
            labels = one["podSelector"]["matchLabels"]
            if "namespaceSelector" in one:
                assert labels == {"app.kubernetes.io/name": "prometheus"} and rule["ports"]
            else:
                assert labels["app.kubernetes.io/component"] in {"router", *roles}


def test_names_meet(tmp_path):
    """Services select pods that there are; mounts name volumes, volumes ConfigMaps that are made."""
    plan = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
    objects = objects_of(plan, tmp_path)
    maps = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    pods = [
        template
        for one in objects
        for template in (
            [one["spec"]["template"]]
            if one["kind"] in ("Deployment", "Job")
            else [
                value
                for key, value in one["spec"].get("leaderWorkerTemplate", {}).items()
                if key.endswith("Template")
            ]
            if one["kind"] == "LeaderWorkerSet"
            else []
        )
    ]
    assert len(pods) == 5
    for pod in pods:
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        used = {one["configMap"]["name"] for one in volumes.values() if "configMap" in one}
        assert used <= maps, "with the hash of its content"
        for container in pod["spec"]["containers"]:
            assert {one["name"] for one in container["volumeMounts"]} <= set(volumes)
    (service,) = [one for one in objects if one["kind"] == "Service"]
    selector = service["spec"]["selector"].items()
    assert [selector <= pod["metadata"]["labels"].items() for pod in pods].count(True) == 1
    assert plan.url == f"http://{service['metadata']['name']}.kimi:1999"


# What people see -------------------------------------------------------------------------------


@pytest.mark.parametrize("row", FEW, ids="-".join)
def test_pods_bring_no_errors_of_their_own(row, tmp_path):
    """What is planned for a cluster can be deployed there as it stands, with a router or without."""
    model, hardware, layout, variant, scenario = row
    names = {"variant": variant, "scenario": scenario}
    on_nodes = build.plan(model, hardware, layout, **names)
    on_pods = build.plan(model, hardware, layout, **names, site=site_of(hardware, tmp_path))
    known, found = ({one.rule for one in judge.plan(plan).errors} for plan in (on_nodes, on_pods))
    assert found <= known


def test_the_checks_of_plan_and_objects_find_the_same(tmp_path):
    plan = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
    folder = write(plan, tmp_path)
    found = judge.files([folder], hardware="a3")
    assert found.ok and not [one for one in found.findings if one.severity == "error"]
    script = folder / "scripts" / "decode" / "serve.sh"
    script.write_text(script.read_text().replace("16 * LWS", "8 * LWS"))
    broken = judge.files([folder], hardware="a3")
    assert "topology/ranks" in {one.rule for one in broken.findings}


@pytest.mark.parametrize(
    "replicas, size", [(10**9, 10**9), ("x", -1), (10**18, 1), (1, 10**12), (None, None)]
)
def test_numbers_of_strangers_are_not_counted(replicas, size, tmp_path):
    """A manifest with 10**18 pods is read at once, with or without a script that is there."""
    folder = write(build.plan("k2.5", "h200", "dp", site="h200-kubernetes"), tmp_path)
    for name in ("service.yaml", "mixed.yaml"):
        objects = list(yaml.safe_load_all((folder / name).read_text()))
        if name == "mixed.yaml":
            objects[0]["spec"]["replicas"] = replicas
            objects[0]["spec"]["leaderWorkerTemplate"]["size"] = size
        (folder / name).write_text(yaml.safe_dump_all(objects))
    pods = {server.spot.file.partition("/")[0] for server in reading.read([folder]).servers}
    assert len(pods) <= pod_expansion.MOST
    (folder / "kustomization.yaml").unlink()
    assert reading.read([folder])


def test_too_many_engines_for_a_map_are_refused(monkeypatch):
    monkeypatch.setattr(kubernetes_files, "_LARGEST_MAP", 1 << 10)
    plan = build.plan("k2.5", "h200", "single", site="h200-kubernetes")
    with pytest.raises(PlanError, match="kimi-mixed-scripts have .* KiB, and a ConfigMap takes"):
        kubernetes_files.files(plan)


@pytest.mark.parametrize(
    "names, pairs",
    [
        pytest.param(("k2.5", "a3", "pd", "a3-kubernetes"), [], marks=pytest.mark.long, id="a3"),
        pytest.param(
            ("k2.5", "h200", "dp", "h200-kubernetes"),
            ["groups=2", "router=vllm-router"],
            id="h200",
        ),
    ],
)
def test_pods_are_rehearsed(names, pairs, tmp_path):
    plan = build.plan(*names[:3], site=names[3], pairs=pairs)
    found = rehearsal.rehearse(plan, tmp_path, make=kubernetes_pods.make)
    assert found.ok, found
    assert found.engines == len(plan.engines)


def test_a_pod_without_rdma_is_told(tmp_path):
    site = site_of("h200", tmp_path, resources={})
    plan = build.plan("k2.5", "h200", "dp", site=site)
    found = rehearsal.rehearse(plan, tmp_path / "run", make=kubernetes_pods.make)
    assert found.diagnosis and found.diagnosis.node.startswith("kimi-mixed-0")
    assert "TCP" in found.diagnosis.cause


def test_nodes_are_not_rehearsed_as_pods(tmp_path, capsys):
    words = ["--model", "k2.5", "--hw", "a3", "--layout", "pd"]
    assert cli.main(["rehearse", *words, "--as", "kubernetes", "--run-dir", str(tmp_path)])
    assert "site a3-example has transport ssh" in capsys.readouterr().err


def test_kustomized_text_reads_like_its_folder(tmp_path):
    plan = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
    folder = write(plan, tmp_path / "bundle")
    done = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, check=True
    )
    one = tmp_path / "all.yaml"
    one.write_text(done.stdout)
    assert engines_read(one) == engines_read(folder)


@pytest.mark.parametrize(
    "change, said",
    [
        (("nodes: 4", "nodes: 0"), "nodes: found 0: a list of nodes is wanted"),
        (("transport: kubernetes", "transport: ssh"), "with transport kubernetes"),
        (("namespace: kimi", "namespace: Kimi_1"), "small letters, digits and '-'"),
        (("{storage_class: cephfs}", "{}"), "one of claim, storage_class and host_path"),
        (("{storage_class: cephfs}", "{claim: a, host_path: /b}"), "one of claim, storage_class"),
        (("device: huawei.com/Ascend910", "device: npu"), "a resource of a device plugin"),
        ((", models: /models", ""), "paths.models: wanted with transport kubernetes"),
        (("name: kimi\n", f"name: {'k' * 31}\n"), "30 characters at most"),
        (("nic: eth0", "nic: eth0\napi_key_env: MY_KEY"), "kubernetes.api_key_secret go together"),
    ],
)
def test_mistakes_in_a_site_file_are_one_sentence(change, said, tmp_path, capsys):
    text = (paths.root() / "params" / "sites" / "a3-kubernetes.yaml").read_text()
    assert change[0] in text
    file = tmp_path / "site.yaml"
    file.write_text(text.replace(*change))
    from kimi_nb.cli import main

    assert main.main(
        ["plan", "--model", "k2.5", "--hw", "a3", "--layout", "pd", "--site", str(file)]
    )
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_the_secret_is_made_without_its_value_in_the_list_of_processes(tmp_path):
    """The command of the README, by the real bash and kubectl; what kubectl was given is kept."""
    site = yaml.safe_load(Path(site_of("h200", tmp_path, api_key_secret="kimi-key")).read_text())
    path = tmp_path / "keyed.yaml"
    path.write_text(yaml.safe_dump({**site, "api_key_env": "KIMI_API_KEY"}))
    plan = build.plan("k2.5", "h200", "single", site=str(path))
    told = kubernetes_readmes.bundle(plan, kubernetes_files.files(plan))
    (command,) = re.findall(r"`([^`]*create secret[^`]*)`", told)
    named = f"{tmp_path}/kubectl"
    Path(named).write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/given\nexec {KUBECTL} "$@" --dry-run=client -o json\n'
    )
    Path(named).chmod(0o755)
    context = load.site(str(path)).kubernetes.context
    clusters = {"contexts": [{"name": context, "context": {"cluster": "", "user": ""}}]}
    (tmp_path / "config").write_text(yaml.safe_dump(clusters))
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": f"{tmp_path}/config",
        "KIMI_API_KEY": "open sesame\\",
    }
    done = subprocess.run(
        ["bash", "-c", command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert base64.b64decode(made["data"]["KIMI_API_KEY"]) == b"open sesame\\"
    assert made["metadata"]["name"] == "kimi-key"
    assert "sesame" not in (tmp_path / "given").read_text()


def test_secrets_are_references(tmp_path, monkeypatch):
    site = yaml.safe_load((paths.root() / "params" / "sites" / "a3-kubernetes.yaml").read_text())
    site["api_key_env"] = "KIMI_API_KEY"
    site["kubernetes"]["api_key_secret"] = "kimi-key"
    file = tmp_path / "keyed.yaml"
    file.write_text(yaml.safe_dump(site))
    monkeypatch.setenv("KIMI_API_KEY", "never-in-a-file")
    plan = build.plan("k2.5", "a3", "pd", site=str(file))
    texts = kubernetes_files.files(plan)
    assert not any("never-in-a-file" in text for text in texts.values())
    pods = json.dumps(yaml.safe_load_all(texts["kubernetes/prefill.yaml"]).__next__())
    assert '"secretKeyRef": {"name": "kimi-key", "key": "KIMI_API_KEY"}' in pods
    assert "keyed_door.py" in texts["kubernetes/scripts/router/proxy.sh"]


def test_values_for_llm_d_run_the_same_scripts():
    """The chart has one template for leader and workers: each pod chooses by its number."""
    plan = build.plan("k2.5", "h200", "dp", site="h200-kubernetes")
    texts = kubernetes_files.files(plan)
    values = yaml.safe_load(texts["llm-d/values.yaml"])
    assert values["multinode"] and not values["prefill"]["create"]
    (container,) = values["decode"]["containers"]
    assert container["command"] == ["bash", "/opt/kimi-nb/scripts/pod.sh"]
    assert values["decode"]["parallelism"]["workers"] == 2
    (scripts,) = [one["data"] for one in values["extraObjects"]]
    for name in ("leader.sh", "worker.sh", "ready.py"):
        # The chart fills in templates: what looks like one is written as one that gives it again.
        given = scripts[name].replace('{{ "{{" }}', "{{")
        assert given == texts[f"kubernetes/scripts/mixed/{name}"]
    chosen = scripts["pod.sh"].replace("/opt/kimi-nb/scripts/", "").replace("bash", "echo")
    for index, script in (("0", "leader.sh"), ("3", "worker.sh")):
        done = subprocess.run(
            ["bash", "-c", chosen],
            env={"LWS_WORKER_INDEX": index, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{script}\n"


def test_llm_d_gets_all_of_a_pod(tmp_path):
    """What the chart has no key for goes through its extraConfig."""
    more = {"host_network": True, "image_pull_secret": "login"}
    plan = build.plan("k2.5", "h200", "dp", site=site_of("h200", tmp_path, **more))
    texts = kubernetes_files.files(plan)
    role = yaml.safe_load(texts["llm-d/values.yaml"])["decode"]
    lws = next(yaml.safe_load_all(texts["kubernetes/mixed.yaml"]))
    pod = lws["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    assert pod["hostNetwork"] and pod["imagePullSecrets"] == [{"name": "login"}]
    given = {**role, **role["extraConfig"]}
    assert {key: given.get(key) for key in pod if key != "containers"} == {
        key: value for key, value in pod.items() if key != "containers"
    }


def test_pods_of_other_flags_are_refused():
    plan = build.plan("k2.5", "h200", "dp", site="h200-kubernetes", pairs=["groups=2"])
    odd = replace(plan.engines[2], argv=(*plan.engines[2].argv, "--enforce-eager"))
    plan = replace(plan, engines=(*plan.engines[:2], odd, *plan.engines[3:]))
    with pytest.raises(PlanError, match="pods of kimi-mixed have other flags than their like"):
        kubernetes_files.files(plan)


def test_pods_are_named_as_the_controller_does(tmp_path):
    plan = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
    assert [one.pods for one in pod_names.sets(plan)] == [
        (("kimi-prefill-0",), ("kimi-prefill-1",)),
        (("kimi-decode-0", "kimi-decode-0-1"),),
    ]
    assert plan.engines[0].address == "kimi-prefill-0.kimi-prefill.kimi"


def test_a_plan_of_jobs_is_refused(tmp_path):
    with pytest.raises(PlanError, match=r"made of SLURM jobs.*choose another --variant"):
        build.plan("k2.5", "h200", "single", variant="slurm", site="h200-kubernetes")


ANSWERS = {
    "completion": (200, b'{"choices": [{"text": "x"}]}'),
    "empty": (200, b'{"choices": []}'),
    "no JSON": (200, b"ready"),
    "unknown model": (404, b"{}"),
}


@pytest.fixture
def engine():
    """An API that gives the answers it is told, and keeps what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append((self.path, body, self.headers.get("Authorization")))
            code, text = ANSWERS[server.gives]
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.gives = [], "completion"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def ready(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, paths.DATA / "bundle" / "ready.py", *map(str, words)],
        env={**os.environ, "POD_IP": "127.0.0.1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("gives", ANSWERS)
def test_ready_is_a_completion(gives, engine):
    """The probe: 0 when every port completes, 1 with what the first one said."""
    engine.gives, port = gives, engine.server_port
    done = ready("kimi", port, port, VLLM_API_KEY="key")
    if gives == "completion":
        assert (done.returncode, done.stderr) == (0, "")
        assert len(engine.asked) == 2
    else:
        assert done.returncode == 1 and done.stderr.startswith(f"port {port}: ")
        assert len(engine.asked) == 1
    path, body, key = engine.asked[0]
    assert (path, body["model"], body["max_tokens"]) == ("/v1/completions", "kimi", 1)
    assert key == "Bearer key"


def test_nothing_that_listens_is_not_ready():
    done = ready("m", 1)
    assert done.returncode == 1 and done.stderr.startswith("port 1: ")
    assert ready().returncode == ready("m", "http").returncode == 2
