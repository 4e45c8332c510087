"""Write the template of a set's pods: image, resources, volumes, probes and variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kimi_nb.bundle.kubernetes import pod_scripts
from kimi_nb.params.kubernetes_site import Kubernetes
from kimi_nb.plan import store
from kimi_nb.plan.memory import host
from kimi_nb.plan.pod_names import PodSet
from kimi_nb.plan.roles import fill
from kimi_nb.plan.spec import EngineSpec, Plan

GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
_PERIOD = 15  # seconds between two looks at an engine that starts
_SLOW_GB_PER_S = 0.5  # a disk or network that is slow for weights
_BESIDES_LOADING = 30  # minutes: downloads of kernels, compilation, graphs
_STEP = 16  # GiB: memory is rounded up to it
_SHM = 64  # GiB of /dev/shm where the hardware's container says none: a limit, not a reservation


def labels(plan: Plan, component: str) -> dict[str, str]:
    """Return the labels of what belongs to a plan; ``component`` is a role, or router."""
    return {
        "app.kubernetes.io/name": cluster(plan).name,
        "app.kubernetes.io/managed-by": "kimi-nb",
        "app.kubernetes.io/component": component,
    }


def cluster(plan: Plan) -> Kubernetes:
    """Return what the site says of its cluster."""
    found: Kubernetes | None = plan.request.site.kubernetes
    assert found is not None, "a plan for Kubernetes"
    return found


def memory_gib(plan: Plan) -> tuple[int, int]:
    """Return (request, limit) of a pod's host memory in GiB, estimated by the memory model.

    The request has what is surely taken: processes, offloaded cache, the share of a KV store. The
    limit has also the page cache of the checkpoint and all of /dev/shm, which a container's limit
    counts: a lower one kills engines while they load.
    """
    shared = store.host_gib(plan.store, plan.devices_per_node) if plan.store else 0.0
    flags = [
        one["kv-offloading-size"] for one in plan.flags.values() if "kv-offloading-size" in one
    ]
    offload = max((float(one.value) for one in flags), default=0.0)
    terms = host.terms(plan.devices_per_node, offload, plan.request.weights.size_gb, shared)
    least = sum(term.gib for term in terms if term.inside)
    most = sum(term.gib for term in terms) + shm_gib(plan)
    return math.ceil(least / _STEP) * _STEP, math.ceil(most / _STEP) * _STEP


def shm_gib(plan: Plan) -> int:
    """Return the size of /dev/shm in GiB: that of the hardware's container, or 64."""
    spec = plan.request.hardware.container
    said = spec.shm_size.get(plan.layout, "") if spec else ""
    return int(said.removesuffix("g")) if said.endswith("g") and said != "1g" else _SHM


def template(
    plan: Plan, pods: PodSet, scripts: pod_scripts.Scripts, worker: bool
) -> dict[str, Any]:
    """Return the PodTemplateSpec of a set's leaders, or of its workers."""
    node = pods.pods[0][1 if worker else 0]
    engines = plan.of(node)
    return {
        "metadata": {"labels": labels(plan, pods.role)},
        "spec": spec(plan)
        | {
            "containers": [
                {
                    "name": "engine",
                    "image": plan.image,
                    "command": ["bash", script_path(scripts, worker)],
                    "env": variables(plan),
                    "ports": ports(engines),
                    "resources": resources(plan),
                    **probes(plan, engines),
                    "volumeMounts": mounts(plan),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        # RDMA and pinned buffers lock memory.
                        "capabilities": {"add": ["IPC_LOCK"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
            "volumes": volumes(plan, f"{pods.name}-scripts"),
        },
    }


def script_path(scripts: pod_scripts.Scripts, worker: bool) -> str:
    """Return the path in the container of what a pod runs."""
    return f"{pod_scripts.FOLDER}/{scripts.worker if worker else scripts.leader}"


def spec(plan: Plan) -> dict[str, Any]:
    """Return what every pod of engines has beside its containers and volumes."""
    said = cluster(plan)
    out: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # A Service called vllm would otherwise set VLLM_PORT, which the engine reads as its own.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
    }
    if said.host_network:
        out |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if said.node_selector:
        out["nodeSelector"] = dict(said.node_selector)
    if said.tolerations:
        out["tolerations"] = [
            {key: value for key, value in one.model_dump().items() if value}
            for one in said.tolerations
        ]
    return out | pull_secret(plan)


def pull_secret(plan: Plan) -> dict[str, Any]:
    """Return the secret with which images are pulled, {} without one."""
    name = cluster(plan).image_pull_secret
    return {"imagePullSecrets": [{"name": name}]} if name else {}


def variables(plan: Plan) -> list[dict[str, Any]]:
    """Return the variables of an engine's container; the controller adds LWS_* to them."""
    paths = {"POD_IP": "status.podIP", "GROUP": f"metadata.labels['{GROUP_INDEX}']"}
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in paths.items()
    ] + secrets(plan, *sorted({*plan.secrets, *plan.secrets.values()}))


def secrets(plan: Plan, *names: str) -> list[dict[str, Any]]:
    """Return variables that hold the API key, by reference; [] where the service asks for none."""
    name, key = cluster(plan).api_key_secret, plan.request.site.api_key_env
    reference = {"secretKeyRef": {"name": name, "key": key}}
    return [{"name": one, "valueFrom": reference} for one in names] if name else []


def ports(engines: tuple[EngineSpec, ...]) -> list[dict[str, Any]]:
    """Return the ports of the API, one for each rank that answers; names are for PodMonitor."""
    there = [engine.http_port for engine in engines if engine.http_port is not None]
    return [
        {"name": f"http-{at}" if at else "http", "containerPort": port}
        for at, port in enumerate(there)
    ]


def resources(plan: Plan) -> dict[str, Any]:
    """Return what a pod takes of a node: all of its accelerators, and memory."""
    said = cluster(plan)
    least, most = (said.memory or f"{gib}Gi" for gib in memory_gib(plan))
    devices = {said.device: plan.devices_per_node, **said.resources}
    cpus = {"cpu": said.cpus} if said.cpus else {}
    return {
        "limits": {**devices, "memory": most},
        "requests": {**devices, **cpus, "memory": least},
    }


def probes(plan: Plan, engines: tuple[EngineSpec, ...]) -> dict[str, Any]:
    """Return the probes of a pod: ready is a completion of every rank; {} for headless engines.

    An engine listens once its weights are loaded: the start has the time of a slow disk.
    """
    listening = [str(engine.http_port) for engine in engines if engine.http_port is not None]
    if not listening:
        return {}
    health = {"httpGet": {"path": "/health", "port": int(listening[0])}}
    ready = ["python3", f"{pod_scripts.FOLDER}/{pod_scripts.READY}", plan.served_name, *listening]
    size = plan.request.weights.size_gb or 0
    minutes = size / _SLOW_GB_PER_S / 60 + _BESIDES_LOADING
    return {
        "startupProbe": {
            **health,
            "periodSeconds": _PERIOD,
            "failureThreshold": math.ceil(minutes * 60 / _PERIOD),
        },
        "readinessProbe": {
            "exec": {"command": ready},
            "periodSeconds": 30,
            # Long prompts before it are no failure: one token waits its turn.
            "timeoutSeconds": 30 + 20 * len(listening),
            "failureThreshold": 3,
        },
        "livenessProbe": {
            **health,
            "periodSeconds": 30,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }


def volumes(plan: Plan, scripts: str) -> list[dict[str, Any]]:
    """Return the volumes of an engine's pod; ``scripts`` is the name of their ConfigMap."""
    out: list[dict[str, Any]] = [
        {"name": "scripts", "configMap": {"name": scripts, "defaultMode": 0o555}},
        {"name": "weights", **weights_volume(plan)},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_gib(plan)}Gi"}},
        {"name": "cache", "emptyDir": {}},
        {"name": "logs", "emptyDir": {}},
    ]
    return out + [
        {"name": f"host-{at}", "hostPath": {"path": source}}
        for at, (source, _) in enumerate(host_mounts(plan))
    ]


def weights_volume(plan: Plan) -> dict[str, Any]:
    """Return the source of the volume with the weights."""
    weights = cluster(plan).weights
    if weights.host_path:
        return {"hostPath": {"path": weights.host_path, "type": "Directory"}}
    return {"persistentVolumeClaim": {"claimName": claim_name(plan)}}


def claim_name(plan: Plan) -> str:
    """Return the claim of the weights: the site's, or the one that is made."""
    return cluster(plan).weights.claim or f"{cluster(plan).name}-weights"


def mounts(plan: Plan) -> list[dict[str, Any]]:
    """Return where an engine's container has its volumes."""
    site = plan.request.site
    out: list[dict[str, Any]] = [
        {"name": "scripts", "mountPath": pod_scripts.FOLDER, "readOnly": True},
        {"name": "weights", "mountPath": site.paths.models, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "cache", "mountPath": site.paths.cache},
        {"name": "logs", "mountPath": pod_scripts.LOGS},
    ]
    return out + [
        {"name": f"host-{at}", "mountPath": target, "readOnly": True}
        for at, (_, target) in enumerate(host_mounts(plan))
    ]


def host_mounts(plan: Plan) -> list[tuple[str, str]]:
    """Return (folder of the node, folder in the container) of the driver's files, as docker has them."""
    spec, words = plan.request.hardware.container, {"cache": "", "work": ""}
    own = [mount for mount in spec.mounts if "{" not in mount] if spec else []
    pairs: Mapping[str, str] = dict(fill(mount, words).split(":")[:2] for mount in own)
    return [(source.rstrip("/"), target.rstrip("/")) for source, target in pairs.items()]
