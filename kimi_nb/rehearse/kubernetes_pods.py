"""Rehearse the objects of a plan on Kubernetes: expand them into pods, and run what each pod runs.

The LeaderWorkerSets of the bundle are read back and expanded as their controller does it: names,
variables, order. Each pod is a container of a rehearsal on an address of its own, with the image,
devices, volumes and command of its template; the cluster's DNS are loopback addresses in the place
of names. `simulated_cluster` does what the cluster does with them. Not rehearsed: network policies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kimi_nb.bundle import scripts
from kimi_nb.bundle.kubernetes import kubernetes_files, pod_scripts
from kimi_nb.bundle.kubernetes.pod_template import labels as cluster_labels
from kimi_nb.check.reading import pod_expansion
from kimi_nb.check.reading.pod_expansion import PodRun
from kimi_nb.core import shell
from kimi_nb.plan.roles import fill
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import cluster_table
from kimi_nb.rehearse.loopback import Block
from kimi_nb.rehearse.simulated_site import rebound

_EXAMPLES = f"cd {kubernetes_files.EXAMPLES}"
# Of a container's options on a node these are the pod's own.
_OF_PODS = ("--rm", "--name", "--shm-size", "--net", "--network", "--ipc", "-p")


def make(plan: Plan, work: Any, block: Block) -> tuple[Plan, dict[str, str]]:
    """Return the plan on loopback addresses, and the scripts that start its pods there."""
    local = rebound(plan, work, block)
    here = {engine.node: engine.address for engine in local.engines}
    names = {f"{pod}.{_owner(pod, plan)}": address for pod, address in here.items()}
    written = kubernetes_files.files(plan)
    out = {
        name: text
        for name, text in scripts.files(local).items()
        if name.rpartition("/")[2] not in ("serve.sh", "launch.sh", "run_dp_template.sh")
    }
    runs = list(pod_expansion.pods(_objects(written), _maps(written)))
    out[cluster_table.FILE] = _cluster(plan, runs)
    for run in runs:
        out[f"{run.name}/docker_run.sh"] = _kubelet(local, run, names, f"{work}/{run.name}")
        for name, text in run.files.items():
            mounted = text.replace(pod_scripts.LOGS, f"{work}/{run.name}/logs")
            out[f"{run.name}/scripts/{name}"] = mounted
    if local.router:
        out[f"{local.router.node}/proxy.sh"] = _door(local, written, names)
    return local, out


def _cluster(plan: Plan, runs: Sequence[PodRun]) -> str:
    """Return what the API server holds: each pod as its controller makes it; and how many nodes."""
    pods = [_object(plan, run) for run in runs]
    nodes = len(plan.request.site.nodes)
    return json.dumps({"nodes": nodes, "pods": pods}, indent=1) + "\n"


def _object(plan: Plan, run: PodRun) -> dict[str, Any]:
    """Return a pod: its template with the names and variables that the controller adds."""
    first = run.template["containers"][0]
    own = [{"name": name, "value": run.env[name]} for name in run.env if name.startswith("LWS_")]
    names = {one["name"] for one in own}
    variables = own + [one for one in first["env"] if one["name"] not in names]
    spec = {**run.template, "hostname": run.name, "subdomain": run.owner}
    spec["containers"] = [{**first, "env": variables}, *run.template["containers"][1:]]
    labels = {
        **cluster_labels(plan, run.owner.rpartition("-")[2]),
        cluster_table.NAME: run.owner,
        cluster_table.GROUP: str(run.group),
        cluster_table.WORKER: str(run.worker),
    }
    space = plan.request.site.kubernetes.namespace
    meta = {"name": run.name, "namespace": space, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _owner(pod: str, plan: Plan) -> str:
    """Return the rest of a pod's name in the cluster: its set and namespace."""
    return next(one.address for one in plan.engines if one.node == pod).removeprefix(f"{pod}.")


def _objects(written: Mapping[str, str]) -> list[Any]:
    """Return the objects of the bundle, as kubectl reads them."""
    there = [text for name, text in written.items() if name.startswith("kubernetes/")]
    return [
        one
        for text in there
        if "\nkind: LeaderWorkerSet" in text
        for one in yaml.safe_load_all(text)
    ]


def _maps(written: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the ConfigMaps that kustomize makes."""
    folder = kubernetes_files.FOLDER
    made = yaml.safe_load(written[f"{folder}/kustomization.yaml"])["configMapGenerator"]
    return {
        one["name"]: {path.rpartition("/")[2]: written[f"{folder}/{path}"] for path in one["files"]}
        for one in made
    }


def _kubelet(local: Plan, run: PodRun, names: Mapping[str, str], folder: str) -> str:
    """Return the script that starts a pod's container as its template says."""
    container = run.template["containers"][0]
    env = {name: _resolved(value, names) for name, value in run.env.items()}
    words: list[object] = ["exec", "docker", "run", "--rm", "--net=host"]
    words += ["--name", local.request.site.container_name]
    for volume in run.template["volumes"]:
        if "sizeLimit" in volume.get("emptyDir", {}):
            words.append(f"--shm-size={volume['emptyDir']['sizeLimit'].removesuffix('i').lower()}")
    words += _devices(local)
    if len(container["resources"]["limits"]) > 2:  # beside accelerators and memory: RDMA devices
        words += ["--device", "/dev/infiniband"]
    for name in container["securityContext"]["capabilities"]["add"]:
        words += ["--cap-add", name]
    for name, value in env.items():
        words += ["-e", f"{name}={value}"]
    for name in sorted({*local.secrets, *local.secrets.values()}):
        words += ["-e", name]
    words += ["-v", f"{folder}/scripts:{pod_scripts.FOLDER}"]
    paths = {
        one["name"]: one["hostPath"]["path"] for one in run.template["volumes"] if "hostPath" in one
    }
    for mount in container["volumeMounts"]:
        path = mount["mountPath"]
        if mount["name"] not in ("scripts", "shm"):
            words += ["-v", f"{paths.get(mount['name'], path)}:{path}"]
    # A pod's command stands for the entry point of the image.
    program, *rest = container["command"]
    words += ["--entrypoint", program, container["image"], *rest]
    return shell.script([f"Pod {run.name}, as its template says."], shell.command(words))


def _resolved(text: str, names: Mapping[str, str]) -> str:
    """Return a text with the names of pods as the cluster's DNS gives them."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name])
    return text


def _devices(local: Plan) -> list[str]:
    """Return the options by which docker gives the devices that the device plugin gives a pod."""
    spec = local.request.hardware.container
    out: list[str] = []
    for option in spec.options if spec else ():
        if option[0].partition("=")[0] in _OF_PODS:
            continue
        many = range(local.devices_per_node if any("{device}" in word for word in option) else 1)
        out += [fill(word, {"device": str(at)}) for at in many for word in option]
    return out


def _door(local: Plan, written: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return the router's script on the first pod's address: a rehearsal has no other."""
    router = local.router
    assert router is not None
    text = written[f"{kubernetes_files.FOLDER}/scripts/router/{kubernetes_files.PROXY}"]
    text = text.replace(_EXAMPLES, 'cd "$(dirname "$0")"', 1)
    text = text.replace("--host 0.0.0.0", f"--host {router.host}")
    first, _, rest = _resolved(text, names).partition("\n")
    path = [shell.export("PATH", f"{router.folder}/bin")] if router.folder else []
    return "\n".join([first, *path, rest])
