"""Write the texts of a bundle for Kubernetes that are for people: what to run, what OK looks like."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from kimi_nb.bundle.kubernetes import kubernetes_files, pod_template
from kimi_nb.plan import pod_names, router
from kimi_nb.plan.spec import EngineSpec, Plan

_NEEDS = (
    "LeaderWorkerSet v1 (`kubectl get crd leaderworkersets.leaderworkerset.x-k8s.io`), the device "
    "plugin of the accelerators, and a network plugin that heeds network policies"
)
# The API server merges: nothing of others is overwritten, and no annotation limits the size of a script.
# `kimi-nb up` applies under the same name.
_APPLY = "--server-side --field-manager=kimi-nb -k"


def _kubectl(plan: Plan) -> str:
    said = pod_template.cluster(plan)
    return shlex.join(["kubectl", "--context", said.context, "--namespace", said.namespace])


def _steps(plan: Plan, files: Collection[str]) -> list[tuple[str, str]]:
    """Return (command, what OK looks like), in order; ``files`` are the names of the bundle's."""
    kubectl, said = _kubectl(plan), pod_template.cluster(plan)
    sets = " ".join(f"leaderworkerset/{pods.name}" for pods in pod_names.sets(plan))
    door = f"service/{said.name}"
    port = plan.url.rpartition(":")[2]
    rows = [
        (f"{kubectl} get leaderworkersets,pods", "an answer: the namespace and the CRD are there")
    ]
    if f"{kubernetes_files.FOLDER}/weights/kustomization.yaml" in files:
        rows += [
            (
                f"{kubectl} apply {_APPLY} kubernetes/weights",
                "the Job is made; it may be applied again",
            ),
            (
                f"{kubectl} wait --for=condition=complete job/{said.name}-weights --timeout=6h",
                "condition met: the weights are there",
            ),
        ]
    rows += [
        (f"{kubectl} diff {_APPLY} kubernetes", "what would change; nothing is touched"),
        (f"{kubectl} apply {_APPLY} kubernetes", "every object serverside-applied"),
        (
            f"{kubectl} wait --for=condition=Available {sets} --timeout=2h",
            "condition met: every group completes a prompt",
        ),
    ]
    if plan.router:
        deployment = pod_names.door_node(said)
        rows.append(
            (
                f"{kubectl} rollout status deployment/{deployment} --timeout=1h",
                "successfully rolled out",
            )
        )
    return [
        *rows,
        (f"{kubectl} port-forward {door} {port}:{port}", "Forwarding; leave it open"),
        (
            f"kimi-nb verify http://127.0.0.1:{port}",
            "no failed check"
            + (" but what the front door causes" if router.notes(plan.router) else ""),
        ),
        (f"{kubectl} delete -k kubernetes", "what was applied is gone; weights and claim stay"),
    ]


def bundle(plan: Plan, files: Collection[str]) -> str:
    """Return the README of the bundle."""
    said, sets = pod_template.cluster(plan), pod_names.sets(plan)
    pods = [
        f"{len(one.pods)} group{'s' * (len(one.pods) > 1)} of {one.size} as `{one.name}`"
        for one in sets
    ]
    least, most = pod_template.memory_gib(plan)
    lines = [
        f"# {plan.heading}",
        "",
        f"{plan.title}.",
        "",
        f"- Engine: {plan.engine} {plan.engine_version} (vLLM {plan.vllm_version}), image {plan.image}",
        f"- Cluster: context {said.context}, namespace {said.namespace}; {len(plan.nodes)} pods, each "
        f"takes {plan.devices_per_node} x {said.device}: {', '.join(pods)}",
        f"- Front door: {plan.url}, model name {plan.served_name}",
        f"- Host memory of a pod: requested {said.memory or f'{least} GiB'}, limit "
        f"{said.memory or f'{most} GiB'}{'' if said.memory else ' (estimated)'}",
        f"- Source: {plan.source}{'' if plan.documented else ' (not documented)'}",
        "",
        f"The cluster needs {_NEEDS}. Run:",
        "",
        "| run | OK is |",
        "| --- | --- |",
        *(f"| `{command}` | {good} |" for command, good in _steps(plan, files)),
        "",
        "`kubernetes/` has an object file for each role, and the scripts that kustomize puts into "
        "ConfigMaps. A folder is named after each pod: what it runs, with its own addresses and numbers. "
        "`llm-d/values.yaml` has the same engines for the chart llm-d-modelservice, which brings its own "
        "front door.",
        "",
        "Nothing of this has run on real accelerators.",
        "",
    ]
    lines += [f"{note[0].upper()}{note[1:]}\n" for note in router.notes(plan.router)]
    if said.host_network:
        lines += ["Pods use the network of their node: the network policies do not reach them.", ""]
    if plan.host_tuning:
        lines += [
            "`host_tuning.sh` in a pod's folder is for the nodes, as root, once after each start of "
            "them: a pod may not do it.",
            "",
        ]
    if plan.secrets:
        key = plan.request.site.api_key_env
        lines += [
            f"The API key is in the secret {said.api_key_secret}, under the key {key}: make it before "
            f'the first step, `printf %s "${key}" | {_kubectl(plan)} create secret generic '
            f"{said.api_key_secret} --from-file={key}=/dev/stdin`. (The words of a command are in the "
            "list of processes, its input is not.)",
            "",
        ]
    if plan.errata:
        lines += ["Differences from the document, each with its reason:", ""]
        lines += [f"- {entry['id']}: {entry['uses']}" for entry in plan.errata]
    return "\n".join(lines).rstrip() + "\n"


def day(plan: Plan, files: Collection[str]) -> str:
    """Return the day of a deployment, step by step."""
    rows = [
        ("kimi-nb check kubernetes", "0 errors"),
        *_steps(plan, files),
    ]
    lines = [
        f"# The day of {plan.heading}",
        "",
        f"{plan.title}, on {plan.site}. From the folder of this file, where kubectl reaches the cluster.",
        "",
        *(f"{at}. `{command}`: {good}." for at, (command, good) in enumerate(rows, start=1)),
        "",
        "A pod that does not start says why in `kubectl describe pod` and `kubectl logs`; `kimi-nb doctor` "
        "reads both, and events.",
    ]
    return "\n".join(lines) + "\n"


def pod(plan: Plan, first: EngineSpec) -> str:
    """Return the README of a pod's folder; ``first`` is its first engine."""
    return (
        f"# {first.node} ({first.address})\n\n{plan.title}. What this pod runs, with its own addresses and "
        "numbers; the cluster runs the scripts of `../kubernetes/scripts`, which have variables in "
        "their place.\n"
    )
