"""Write a plan as files for kubectl: ``kubectl apply -k kubernetes``.

>>> from kimi_nb.plan import build
>>> made = files(build.plan("k2.5", "a3", "pd", site="a3-kubernetes"))
>>> [
...     name
...     for name in made
...     if name.endswith(".yaml") and "/" not in name.removeprefix("kubernetes/")
... ]
['kubernetes/prefill.yaml', 'kubernetes/decode.yaml', 'kubernetes/router.yaml', 'kubernetes/service.yaml', 'kubernetes/kustomizeconfig.yaml', 'kubernetes/kustomization.yaml']

Everything is pure: plan in, texts out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kimi_nb.bundle import script_parts
from kimi_nb.bundle.kubernetes import cluster_objects, llm_d_values, pod_scripts, pod_template
from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.plan import checkpoints, network, pod_names
from kimi_nb.plan.pod_names import PodSet
from kimi_nb.plan.router import DOOR, UPSTREAM
from kimi_nb.plan.spec import Plan

FOLDER = "kubernetes"
PROXY, _DOWNLOAD = "proxy.sh", "download.sh"
EXAMPLES = "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1"
_EDIT = "edit_quantization_target.py"
_LARGEST_MAP = (1 << 20) - (8 << 10)  # etcd takes 1 MiB of an object, with its names
# Kustomize gives each ConfigMap a name with a hash of its content, so that pods start anew when a
# script changes; where a LeaderWorkerSet names one it has to be told.
_NAMES = [
    f"spec/leaderWorkerTemplate/{template}/spec/volumes/configMap/name"
    for template in ("leaderTemplate", "workerTemplate")
]


def files(plan: Plan) -> dict[str, str]:
    """Return the files by path in the bundle; raise PlanError for a plan that pods cannot serve."""
    sets = pod_names.sets(plan)
    scripts = {pods.name: pod_scripts.of(plan, pods) for pods in sets}
    out = {f"{pods.role}.yaml": _role(plan, pods, sets, scripts[pods.name]) for pods in sets}
    maps = {
        f"{pods.name}-scripts": {
            f"scripts/{pods.role}/{name}": text for name, text in scripts[pods.name].files.items()
        }
        for pods in sets
    }
    if plan.router:
        out["router.yaml"] = _text(plan, [cluster_objects.router_deployment(plan, PROXY)])
        name = f"{pod_names.door_node(pod_template.cluster(plan))}-scripts"
        maps[name] = {f"scripts/router/{file}": text for file, text in _router(plan).items()}
    _check_sizes(maps)
    out["service.yaml"] = _text(plan, [cluster_objects.service(plan)])
    resources = [*out]
    reference = {
        "kind": "ConfigMap",
        "version": "v1",
        "fieldSpecs": [{"kind": "LeaderWorkerSet", "path": path} for path in _NAMES],
    }
    out["kustomizeconfig.yaml"] = _dump({"nameReference": [reference]})
    out["kustomization.yaml"] = _kustomization(plan, resources, maps, ["kustomizeconfig.yaml"])
    for texts in maps.values():
        out |= texts
    out |= {f"weights/{name}": text for name, text in _weights(plan).items()}
    values = llm_d_values.values(plan, sets, scripts)
    return {f"{FOLDER}/{name}": text for name, text in out.items()} | {
        "llm-d/values.yaml": _dump(values, f"Values of the chart llm-d-modelservice: {plan.title}.")
    }


def _role(plan: Plan, pods: PodSet, sets: tuple[PodSet, ...], scripts: pod_scripts.Scripts) -> str:
    """Return the objects of one role."""
    objects = [
        cluster_objects.leader_worker_set(plan, pods, scripts),
        cluster_objects.disruption_budget(plan, pods),
        *cluster_objects.network_policies(plan, pods, sets),
    ]
    if pod_template.cluster(plan).pod_monitor:
        objects.append(cluster_objects.pod_monitor(plan, pods))
    return _text(plan, objects)


def _check_sizes(maps: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse scripts that no ConfigMap can hold."""
    for name, texts in maps.items():
        size = sum(len(text.encode()) for text in texts.values())
        if size > _LARGEST_MAP:
            raise PlanError(
                f"Kubernetes: the scripts of {name} have {size >> 10} KiB, and a ConfigMap takes "
                f"{_LARGEST_MAP >> 10}: the router names too many engines. Plan fewer groups (--set), "
                "several deployments, or llm-d's own front door (llm-d/values.yaml)."
            )


def _text(plan: Plan, objects: Sequence[Mapping[str, Any]]) -> str:
    return f"# {plan.title}.\n" + "---\n".join(_dump(one) for one in objects)


class _Plain(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Write what is there twice twice: nobody looks up &id001 in a manifest."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _dump(value: Any, comment: str = "") -> str:
    head = f"# {comment}\n" if comment else ""
    return head + str(yaml.dump(value, Dumper=_Plain, sort_keys=False, width=100))


def _kustomization(
    plan: Plan,
    resources: Sequence[str],
    maps: Mapping[str, Mapping[str, str]],
    configurations: Sequence[str] = (),
) -> str:
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": pod_template.cluster(plan).namespace,
        "resources": list(resources),
        "configMapGenerator": [
            {"name": name, "files": list(texts)} for name, texts in maps.items()
        ],
    }
    content["generatorOptions"] = {"labels": pod_template.labels(plan, "scripts")}
    if configurations:
        content["configurations"] = list(configurations)
    else:  # a Job's template cannot change: it would have to name another ConfigMap
        content["generatorOptions"]["disableNameSuffixHash"] = True
    return _dump(content)


def _router(plan: Plan) -> dict[str, str]:
    """Return the files of the router: its script, the door that asks for a key, the probe."""
    router = plan.router
    assert router is not None
    out = {pod_scripts.READY: script_parts.static(pod_scripts.READY)}
    argv: list[object] = [pod_scripts.PYTHON if word == "python" else word for word in router.argv]
    if DOOR in argv:
        out[DOOR] = script_parts.static(DOOR)
        argv[argv.index(DOOR)] = f"{pod_scripts.FOLDER}/{DOOR}"
    if router.kind == "upstream":
        lines = [
            f"cd {EXAMPLES}  # the image has {UPSTREAM} there",
            *shell.command(["exec", *argv]),
        ]
    else:
        lines = _installed(plan, argv)
    return {PROXY: shell.script([f"The front door: {router.url}."], lines), **out}


def _installed(plan: Plan, argv: Sequence[object]) -> list[str]:
    """Return lines that run vllm-router, after its installation where the image lacks it."""
    steps = [step for step in plan.installs["docker"] if step.argv[0] == "uv"]
    folder = "/opt/router"
    lines = [
        shell.export(*item) for item in network.variables(plan.request.site.network).items()
    ] + ["if ! command -v vllm-router > /dev/null; then"]
    for step in steps:
        words = [folder if word == plan.router.folder else word for word in step.argv]  # type: ignore[union-attr]
        lines += [f"    {line}" for line in shell.command(words)]
    return [*lines, f"    export PATH={folder}/bin:$PATH", "fi", *shell.command(["exec", *argv])]


def _weights(plan: Plan) -> dict[str, str]:
    """Return the files that make the claim and fill it; {} where the nodes have the weights."""
    said = pod_template.cluster(plan)
    fetched = [one for one in checkpoints.of(plan) if one.command]
    if said.weights.host_path or not fetched:
        return {}
    lines = [shell.export(*item) for item in network.variables(plan.request.site.network).items()]
    for one in fetched:
        lines += [shell.remark(f"{one.id}: about {one.size_gb} GB"), *shell.command(one.command)]
        if one.edit:
            lines += shell.command(["python3", f"{pod_scripts.FOLDER}/{_EDIT}", "apply", one.into])
    maps = {
        _DOWNLOAD: shell.script(
            ["Download what is missing of the weights; run it again to go on."], lines
        )
    }
    if any(one.edit for one in fetched):
        maps[_EDIT] = script_parts.static(_EDIT)
    objects = [cluster_objects.download_job(plan, _DOWNLOAD)]
    if said.weights.storage_class:
        objects.insert(0, cluster_objects.claim(plan))
    return {
        "weights.yaml": _text(plan, objects),
        "kustomization.yaml": _kustomization(
            plan, ["weights.yaml"], {f"{said.name}-weights-scripts": maps}
        ),
        **maps,
    }
