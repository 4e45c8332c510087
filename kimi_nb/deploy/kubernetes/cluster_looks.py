"""Look at a Kubernetes cluster before anything is changed: may this plan be deployed there?

Example::

    found = cluster_looks.look(plan, kubectl)
    found.failed  # no such context, no LeaderWorkerSet, no right, no such resource, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from kimi_nb.bundle.kubernetes import pod_template
from kimi_nb.deploy.kubernetes.api_values import table, tables, text
from kimi_nb.deploy.kubernetes.kubectl import Kubectl, KubectlError
from kimi_nb.deploy.steps import Change
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.params.kubernetes_site import Kubernetes
from kimi_nb.plan.spec import Plan

SETS = "leaderworkerset.x-k8s.io"
MONITORS = "monitoring.coreos.com"
# (group, resource) of what is applied and deleted.
KINDS = (
    (SETS, "leaderworkersets"),
    ("apps", "deployments"),
    ("", "services"),
    ("", "configmaps"),
    ("policy", "poddisruptionbudgets"),
    ("networking.k8s.io", "networkpolicies"),
)
_WEIGHTS = (("batch", "jobs"), ("", "persistentvolumeclaims"))
_VERBS = ("get", "list", "create", "patch", "delete")
_READS = (
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("create", "", "pods", "portforward"),
    ("list", "", "events", ""),
)
_MOST = 128  # pods: each is asked through a kubectl of its own
_SHOWN = 6
_ALLOWED = (
    "{.spec.resourceAttributes.verb} {.spec.resourceAttributes.resource} "
    '{.spec.resourceAttributes.subresource} {.status.allowed}{"\\n"}'
)
_KEYS = '{{range $key, $value := .data}}{{$key}}{{"\\n"}}{{end}}'


@dataclass
class Found:
    """What is wrong with the cluster, and what could not be looked at."""

    failed: list[Diagnosis] = field(default_factory=list)
    warnings: list[Change] = field(default_factory=list)


def said(plan: Plan) -> Kubernetes:
    """Return what the site file says of the cluster."""
    return pod_template.cluster(plan)


def kinds(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return (group, resource) of all that a plan may have in the cluster."""
    monitors = ((MONITORS, "podmonitors"),) if said(plan).pod_monitor else ()
    return (*KINDS, *monitors, *_WEIGHTS)


def look(plan: Plan, kubectl: Kubectl) -> Found:
    """Look at everything; nothing is changed."""
    found = Found()
    try:
        if missing := _unreached(kubectl) or _too_many(plan):
            found.failed.append(missing)
            return found
        for check in (_sets, _namespace, _rights, _nodes, _secrets, _storage):
            for one in check(plan, kubectl):
                if isinstance(one, Diagnosis):
                    found.failed.append(one)
                else:
                    found.warnings.append(one)
    except KubectlError as error:
        found.failed.append(failure(kubectl, error))
    return found


def failure(kubectl: Kubectl, error: KubectlError) -> Diagnosis:
    """Return what a failed command of kubectl means."""
    kind = {"NoProgram": "no-kubectl", "Forbidden": "forbidden", "Conflict": "conflict"}.get(
        error.reason, "silent"
    )
    causes = {
        "no-kubectl": "kubectl is not on this machine",
        "forbidden": "the cluster refuses it to this user",
        "conflict": "somebody else has changed an object of this plan",
        "silent": "the cluster does not answer as it should",
    }
    return diagnosis(kind, kubectl.context, causes[kind], str(error))


def diagnosis(kind: str, where: str, cause: str, seen: str, **words: object) -> Diagnosis:
    """Return a diagnosis of the cluster, whose remedy is ``kubernetes/KIND``."""
    return Diagnosis(kind, where, None, cause, seen, remedies.of(f"kubernetes/{kind}", **words))


def _unreached(kubectl: Kubectl) -> Diagnosis | None:
    """Return why the cluster cannot be asked at all."""
    known = kubectl.run("config", "get-contexts", "-o", "name").split()
    if kubectl.context not in known:
        there = ", ".join(text(one, 60) for one in known[:_SHOWN]) or "none"
        return diagnosis(
            "no-context",
            kubectl.context,
            f"kubectl has no context {kubectl.context}",
            f"kubectl config get-contexts: {there}",
        )
    kubectl.json("version")
    return None


def _too_many(plan: Plan) -> Diagnosis | None:
    if len(plan.nodes) <= _MOST:
        return None
    return diagnosis(
        "too-many-pods",
        said(plan).context,
        f"{len(plan.nodes)} pods are more than the {_MOST} that kimi-nb asks one by one",
        f"plan {plan.name}",
    )


def _sets(plan: Plan, kubectl: Kubectl) -> Iterator[Diagnosis]:
    """Look for LeaderWorkerSet v1, and for PodMonitors where the site asks for them."""
    wanted = [(SETS, "LeaderWorkerSet", "no-lws")]
    if said(plan).pod_monitor:
        wanted.append((MONITORS, "PodMonitor", "no-monitors"))
    for group, kind, name in wanted:
        answer = kubectl.raw(f"/apis/{group}")
        versions = [text(one.get("version"), 60) for one in tables(table(answer).get("versions"))]
        if "v1" not in versions:
            there = f"only {', '.join(versions[:_SHOWN])}" if versions else "nothing of it"
            yield diagnosis(
                name,
                kubectl.context,
                f"the cluster has no {kind} of version v1",
                f"kubectl get --raw /apis/{group}: {there}",
            )


def _namespace(plan: Plan, kubectl: Kubectl) -> Iterator[Diagnosis | Change]:
    path = f"/api/v1/namespaces/{kubectl.namespace}"
    try:
        there = kubectl.raw(path)
    except KubectlError as error:
        yield _unseen(kubectl, error, f"namespace {kubectl.namespace}")
        return
    if there is None:
        yield diagnosis(
            "no-namespace",
            kubectl.context,
            f"there is no namespace {kubectl.namespace}",
            f"kubectl get --raw {path}: NotFound",
            name=kubectl.namespace,
        )


def _unseen(kubectl: Kubectl, error: KubectlError, what: str) -> Change:
    """Return that a thing could not be looked at; re-raise what is no lack of rights."""
    if error.reason != "Forbidden":
        raise error
    return Change(kubectl.context, f"{what}: not looked at, because this user may not read it")


def _rights(plan: Plan, kubectl: Kubectl) -> Iterator[Diagnosis]:
    """Ask the cluster for each right that deploying needs, all in one call."""
    asked = [(verb, group, resource, "") for group, resource in kinds(plan) for verb in _VERBS] + [
        *_READS
    ]
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "namespace": kubectl.namespace,
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "subresource": part,
                }
            },
        }
        for verb, group, resource, part in asked
    ]
    answers = kubectl.run(
        "create",
        "--validate=false",
        "-f",
        "-",
        "-o",
        f"jsonpath={_ALLOWED}",
        stdin=yaml.safe_dump_all(reviews),
    )
    denied: dict[str, list[str]] = {}
    for line in answers.splitlines():
        words = line.split()
        if len(words) in (3, 4) and words[-1] != "true":
            denied.setdefault("/".join(words[1:-1]), []).append(words[0])
    if denied:
        rows = [text(f"{', '.join(verbs)} {what}", 100) for what, verbs in denied.items()]
        yield diagnosis(
            "no-rights",
            kubectl.context,
            f"this user may not do all that is needed in namespace {kubectl.namespace}: "
            + "; ".join(rows[:_SHOWN])
            + (f"; and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""),
            "SelfSubjectAccessReview: not allowed",
            command=kubectl.typed("auth", "can-i", "--list"),
        )


def _nodes(plan: Plan, kubectl: Kubectl) -> Iterator[Diagnosis | Change]:
    """Count the nodes that can take a pod: by selector, taints and the device plugin."""
    cluster = said(plan)
    selector = ",".join(f"{key}={value}" for key, value in cluster.node_selector.items())
    try:
        answer = kubectl.json("get", "nodes", *(["-l", selector] if selector else []))
    except KubectlError as error:
        yield _unseen(kubectl, error, "nodes")
        return
    nodes = tables(answer.get("items"))
    fit = [one for one in nodes if _offers(one, plan) and _tolerated(one, cluster)]
    chosen = f" with {selector}" if selector else ""
    wanted = f"{plan.devices_per_node} x {cluster.device}"
    if not any(_amount(one, cluster.device) for one in nodes):
        offered = sorted({key for one in nodes for key in _allocatable(one) if "/" in key})
        yield diagnosis(
            "no-device",
            kubectl.context,
            f"no node{chosen} offers {cluster.device}",
            f"kubectl get nodes: {len(nodes)} nodes{chosen} offer "
            f"{', '.join(text(one, 60) for one in offered[:_SHOWN]) or 'no such resource'}",
        )
    elif len(fit) < len(plan.nodes):
        yield Change(
            kubectl.context,
            f"{len(fit)} of {len(nodes)} nodes{chosen} can take a pod of {wanted}, and "
            f"{len(plan.nodes)} are wanted: the others wait until there are more",
        )


def _allocatable(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return table(table(node.get("status")).get("allocatable"))


def _amount(node: Mapping[str, Any], resource: str) -> int:
    said = str(_allocatable(node).get(resource))
    return int(said) if said.isdecimal() and len(said) < 10 else 0


def _offers(node: Mapping[str, Any], plan: Plan) -> bool:
    cluster = said(plan)
    return _amount(node, cluster.device) >= plan.devices_per_node and all(
        _amount(node, name) >= count for name, count in cluster.resources.items()
    )


def _tolerated(node: Mapping[str, Any], cluster: Kubernetes) -> bool:
    """Return whether a pod of the site may be put on a node."""
    spec = table(node.get("spec"))
    taints = tables(spec.get("taints"))
    return not spec.get("unschedulable") and all(
        taint.get("effect") not in ("NoSchedule", "NoExecute")
        or any(
            one.key == taint.get("key")
            and one.effect in (None, taint.get("effect"))
            and (one.operator == "Exists" or one.value == (taint.get("value") or ""))
            for one in cluster.tolerations
        )
        for taint in taints
    )


def _secrets(plan: Plan, kubectl: Kubectl) -> Iterator[Diagnosis | Change]:
    """Look for the secrets that pods refer to; their values are never read."""
    cluster = said(plan)
    wanted: list[tuple[str, str]] = []
    if cluster.image_pull_secret:
        wanted.append((cluster.image_pull_secret, ""))
    if cluster.api_key_secret:
        wanted.append((cluster.api_key_secret, plan.request.site.api_key_env or ""))
    for name, key in wanted:
        try:
            keys: Sequence[str] = kubectl.run(
                "get", "secret", name, "-o", f"go-template={_KEYS}"
            ).split()
        except KubectlError as error:
            if error.reason != "NotFound":
                yield _unseen(kubectl, error, f"secret {name}")
                continue
            keys, seen = (), "NotFound"
        else:
            seen = f"its keys are {', '.join(text(one, 60) for one in keys[:_SHOWN]) or 'none'}"
            if not key or key in keys:
                continue
        yield diagnosis(
            "no-secret",
            kubectl.context,
            f"there is no secret {name}{f' with the key {key}' if key else ''} in namespace "
            f"{kubectl.namespace}",
            f"kubectl get secret {name}: {seen}",
        )


def _storage(plan: Plan, kubectl: Kubectl) -> Iterator[Diagnosis | Change]:
    name = said(plan).weights.storage_class
    if not name:
        return
    try:
        if kubectl.raw(f"/apis/storage.k8s.io/v1/storageclasses/{name}") is not None:
            return
    except KubectlError as error:
        yield _unseen(kubectl, error, f"storage class {name}")
        return
    yield diagnosis(
        "no-storage-class",
        kubectl.context,
        f"there is no storage class {name}",
        f"kubectl get storageclass {name}: NotFound",
    )
