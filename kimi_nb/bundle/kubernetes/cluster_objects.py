"""Write the objects of a plan beside its pods' templates: sets, router, services, policies, weights.

Source: API reference of Kubernetes 1.34, LeaderWorkerSet v1, PodMonitor of the Prometheus operator.
"""

from __future__ import annotations

from typing import Any

from kimi_nb.bundle.kubernetes import pod_scripts, pod_template
from kimi_nb.bundle.kubernetes.pod_template import GROUP_INDEX, cluster, labels
from kimi_nb.plan import checkpoints
from kimi_nb.plan.pod_names import PodSet, door_node
from kimi_nb.plan.spec import EngineSpec, Plan

_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
_MOST_POLICIES = 32  # groups of their own policy; more share that of their set
_ROUTER = "router"


def leader_worker_set(plan: Plan, pods: PodSet, scripts: pod_scripts.Scripts) -> dict[str, Any]:
    """Return the LeaderWorkerSet of a role: a replica for each group, a pod for each node."""
    worker = pod_template.template(plan, pods, scripts, worker=pods.size > 1)
    group: dict[str, Any] = {
        "size": pods.size,
        # The ranks of a group meet once, when they start: one that fails takes all with it.
        "restartPolicy": "RecreateGroupOnPodRestart",
    }
    if pods.size > 1:
        group["leaderTemplate"] = pod_template.template(plan, pods, scripts, worker=False)
    return _object(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        plan,
        pods.name,
        pods.role,
        {
            "replicas": len(pods.pods),
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "leaderWorkerTemplate": {**group, "workerTemplate": worker},
        },
    )


def router_deployment(plan: Plan, script: str) -> dict[str, Any]:
    """Return the Deployment of the router; ``script`` is the name of what it runs."""
    router = plan.router
    assert router is not None
    name, image = door_node(cluster(plan)), cluster(plan).router_image
    if router.kind == "upstream":
        image = plan.image
    ready = ["python3", f"{pod_scripts.FOLDER}/{pod_scripts.READY}", plan.served_name]
    container = {
        "name": _ROUTER,
        "image": image,
        "command": ["bash", f"{pod_scripts.FOLDER}/{script}"],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *pod_template.secrets(plan, "OPENAI_API_KEY", "VLLM_API_KEY"),
        ],
        "ports": [{"name": "http", "containerPort": router.port}],
        "resources": {
            "requests": {"cpu": 2, "memory": "4Gi"},
            "limits": {"memory": "4Gi"},
        },
        "readinessProbe": {
            "exec": {"command": [*ready, str(router.port)]},
            "periodSeconds": 30,
            "timeoutSeconds": 50,
        },
        "livenessProbe": {"tcpSocket": {"port": router.port}, "initialDelaySeconds": 120},
        "volumeMounts": [
            {"name": "scripts", "mountPath": pod_scripts.FOLDER, "readOnly": True},
            {"name": "work", "mountPath": "/opt/router"},
        ],
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [
            {"name": "scripts", "configMap": {"name": f"{name}-scripts", "defaultMode": 0o555}},
            {"name": "work", "emptyDir": {}},
        ],
        **pod_template.pull_secret(plan),
    }
    if router.kind == "upstream":  # it runs in the engine's image, which may be for one processor
        spec |= pod_template.spec(plan)
    mine = labels(plan, _ROUTER)
    return _object(
        "apps/v1",
        "Deployment",
        plan,
        name,
        _ROUTER,
        {
            "replicas": 1,
            "selector": {"matchLabels": mine},
            "template": {"metadata": {"labels": mine}, "spec": spec},
        },
    )


def service(plan: Plan) -> dict[str, Any]:
    """Return the Service in front of everything: the router, or the engines that answer."""
    first = _answering(plan)
    if plan.router:
        selector, port = labels(plan, _ROUTER), plan.router.port
    else:
        selector, port = labels(plan, first.role), first.http_port or 0
        nodes = {engine.node for engine in plan.engines if engine.http_port is not None}
        if len(nodes) < len(plan.nodes):  # workers of a group have no API
            selector[_WORKER_INDEX] = "0"
    return _object(
        "v1",
        "Service",
        plan,
        cluster(plan).name,
        "service",
        {"selector": selector, "ports": [{"name": "http", "port": port, "targetPort": port}]},
    )


def _answering(plan: Plan) -> EngineSpec:
    return next(engine for engine in plan.engines if engine.http_port is not None)


def disruption_budget(plan: Plan, pods: PodSet) -> dict[str, Any]:
    """Return the PodDisruptionBudget of a set: a drained node costs one group at a time.

    The only group of a set is not given up without a person.
    """
    return _object(
        "policy/v1",
        "PodDisruptionBudget",
        plan,
        pods.name,
        pods.role,
        {
            "maxUnavailable": 1 if len(pods.pods) > 1 else 0,
            "selector": {"matchLabels": labels(plan, pods.role)},
        },
    )


def network_policies(plan: Plan, pods: PodSet, sets: tuple[PodSet, ...]) -> list[dict[str, Any]]:
    """Return who may reach the engines of a set: the router, and engines that they work with.

    With prefill and decode apart these are all engines of the plan, otherwise those of the group.
    Without a router everyone may reach the port of the API.
    """
    engines = labels(plan, pods.role)
    rules: list[dict[str, Any]] = []
    if plan.router:
        rules.append({"from": [{"podSelector": {"matchLabels": labels(plan, _ROUTER)}}]})
    else:
        rules.append({"ports": _ports(plan, pods)})
    if cluster(plan).pod_monitor:
        prometheus = {"app.kubernetes.io/name": "prometheus"}
        scraper = {"namespaceSelector": {}, "podSelector": {"matchLabels": prometheus}}
        rules.append({"from": [scraper], "ports": _ports(plan, pods)})
    if plan.layout == "pd":
        peers = [{"podSelector": {"matchLabels": labels(plan, other.role)}} for other in sets]
        return [_policy(plan, pods, pods.name, engines, [*rules, {"from": peers}])]
    if len(pods.pods) > _MOST_POLICIES:
        group = {"from": [{"podSelector": {"matchLabels": engines}}]}
        return [_policy(plan, pods, pods.name, engines, [*rules, group])]
    out = []
    for at in range(len(pods.pods)):
        mine = {**engines, GROUP_INDEX: str(at)}
        group = {"from": [{"podSelector": {"matchLabels": mine}}]}
        out.append(_policy(plan, pods, f"{pods.name}-{at}", mine, [*rules, group]))
    return out


def _ports(plan: Plan, pods: PodSet) -> list[dict[str, Any]]:
    there = {engine.http_port for engine in plan.engines if engine.role == pods.role} - {None}
    return [{"port": port, "protocol": "TCP"} for port in sorted(port for port in there if port)]


def _policy(
    plan: Plan, pods: PodSet, name: str, selected: dict[str, str], rules: list[dict[str, Any]]
) -> dict[str, Any]:
    spec = {
        "podSelector": {"matchLabels": selected},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", plan, name, pods.role, spec)


def pod_monitor(plan: Plan, pods: PodSet) -> dict[str, Any]:
    """Return the PodMonitor of a set, by which the Prometheus operator reads every rank's metrics."""
    names = [port["name"] for port in pod_template.ports(plan.of(pods.pods[0][0]))]
    return _object(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        plan,
        pods.name,
        pods.role,
        {
            "selector": {"matchLabels": labels(plan, pods.role)},
            "podMetricsEndpoints": [{"port": name, "path": "/metrics"} for name in names],
        },
    )


def claim(plan: Plan) -> dict[str, Any]:
    """Return the claim of the weights, half as large again as the checkpoints."""
    size = sum(one.size_gb or 0 for one in checkpoints.of(plan))
    return _object(
        "v1",
        "PersistentVolumeClaim",
        plan,
        pod_template.claim_name(plan),
        "weights",
        {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": cluster(plan).weights.storage_class,
            "resources": {"requests": {"storage": f"{size * 3 // 2 + 1}G"}},
        },
    )


def download_job(plan: Plan, script: str) -> dict[str, Any]:
    """Return the Job that downloads what is missing of the weights; it may run again."""
    name = f"{cluster(plan).name}-weights"
    container = {
        "name": "download",
        "image": plan.image,
        "command": ["bash", f"{pod_scripts.FOLDER}/{script}"],
        "resources": {
            "requests": {"cpu": 4, "memory": "16Gi"},
            "limits": {"memory": "16Gi"},
        },
        "volumeMounts": [
            {"name": "scripts", "mountPath": pod_scripts.FOLDER, "readOnly": True},
            {"name": "weights", "mountPath": plan.request.site.paths.models},
        ],
    }
    pod = pod_template.spec(plan) | {
        "restartPolicy": "OnFailure",
        "containers": [container],
        "volumes": [
            {"name": "scripts", "configMap": {"name": f"{name}-scripts", "defaultMode": 0o555}},
            {"name": "weights", **pod_template.weights_volume(plan)},
        ],
    }
    template = {"metadata": {"labels": labels(plan, "weights")}, "spec": pod}
    return _object(
        "batch/v1", "Job", plan, name, "weights", {"backoffLimit": 20, "template": template}
    )


def _object(
    version: str, kind: str, plan: Plan, name: str, component: str, spec: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": cluster(plan).namespace,
            "labels": labels(plan, component),
            "annotations": {"kimi-nb/plan": plan.name},
        },
        "spec": spec,
    }
