"""Write a plan as values of the chart llm-d-modelservice: the same engines, prefill and decode.

The chart has one template for all pods of a group, so that each chooses its script by its number.
llm-d brings its own front door (gateway, picker and sidecar); the plan's router is not in it.

Source: values.yaml and templates of llm-d-modelservice 0.4 (April 2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kimi_nb.bundle.kubernetes import pod_template
from kimi_nb.bundle.kubernetes.pod_scripts import FOLDER, Scripts
from kimi_nb.core import shell
from kimi_nb.plan.pod_names import PodSet
from kimi_nb.plan.spec import Plan

_POD = "pod.sh"
# What the chart has keys for; everything else of a pod goes through its extraConfig.
_OF_CHART = (
    "nodeSelector",
    "tolerations",
    "enableServiceLinks",
    "terminationGracePeriodSeconds",
)


def values(plan: Plan, sets: Sequence[PodSet], scripts: Mapping[str, Scripts]) -> dict[str, Any]:
    """Return the values; a plan without prefill and decode is the chart's ``decode`` alone."""
    said = pod_template.cluster(plan)
    kind = "amd" if plan.request.hardware.vendor == "amd" else "nvidia"
    answering = next(engine for engine in plan.engines if engine.http_port is not None)
    out: dict[str, Any] = {
        "fullnameOverride": said.name,
        "multinode": True,
        # The chart knows no others: the name of the kind is free, that of the resource counts.
        "accelerator": {"type": kind, "resources": {kind: said.device}},
        "modelArtifacts": {
            "name": plan.served_name,
            "uri": _uri(plan),
            "mountPath": plan.request.site.paths.models,
        },
        "routing": {
            "servicePort": answering.http_port,
            "proxy": {"enabled": False},
        },
        "prefill": {"create": False},
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"{pods.name}-scripts", "namespace": said.namespace},
                "data": {name: _quoted(text) for name, text in _files(scripts[pods.name]).items()},
            }
            for pods in sets
        ],
    }
    for pods in sets:
        out["prefill" if pods.role == "prefill" else "decode"] = _role(
            plan, pods, scripts[pods.name]
        )
    return out


def _files(scripts: Scripts) -> dict[str, str]:
    """Return the scripts of a set, with one that chooses between those of leader and workers."""
    if scripts.leader == scripts.worker:
        return dict(scripts.files)
    lines = [
        f'if [ "$LWS_WORKER_INDEX" = 0 ]; then exec bash {FOLDER}/{scripts.leader}; fi',
        f"exec bash {FOLDER}/{scripts.worker}",
    ]
    text = shell.script(["A pod chooses by its number: 0 leads the group."], lines)
    return {**scripts.files, _POD: text}


def _quoted(text: str) -> str:
    """Return a text as the chart's template of it gives the text again."""
    return text.replace("{{", '{{ "{{" }}')


def _uri(plan: Plan) -> str:
    """Return where the chart is told that the weights lie; the plan mounts them itself."""
    folder = plan.engines[0].argv[2].removeprefix(f"{plan.request.site.paths.models}/")
    return f"pvc://{pod_template.claim_name(plan)}/{folder}"


def _role(plan: Plan, pods: PodSet, scripts: Scripts) -> dict[str, Any]:
    """Return the values of one role: the pods of `pod_template`, in the chart's words."""
    leader = pod_template.template(plan, pods, scripts, worker=False)["spec"]
    engine = plan.of(pods.pods[0][0])[0]
    container = dict(leader["containers"][0])
    if scripts.leader != scripts.worker:
        container["command"] = ["bash", f"{FOLDER}/{_POD}"]
        # Workers have no API, and the chart has one template for both.
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            container.pop(probe, None)
    out: dict[str, Any] = {
        "create": True,
        "replicas": len(pods.pods),
        "parallelism": {
            "tensor": engine.tp_size,
            "data": engine.dp_size,
            "dataLocal": max(1, engine.dp_size // pods.size),
            "workers": pods.size,
        },
        "containers": [{"modelCommand": "custom", "mountModelVolume": False, **container}],
        "volumes": leader["volumes"],
    }
    rest = {key: value for key, value in leader.items() if key not in ("containers", "volumes")}
    own = {key: rest.pop(key) for key in _OF_CHART if key in rest}
    return {**out, **own, "extraConfig": rest}
