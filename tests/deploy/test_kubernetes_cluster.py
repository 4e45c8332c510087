"""Plans on a cluster, by the real kubectl against a stand-in for the API server (tests/testbed)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from testbed import kube_api

from kimi_nb.bundle import scripts, writer
from kimi_nb.cli import main as cli
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import journal, lifecycle
from kimi_nb.deploy.kubernetes import (
    cluster_looks,
    kubectl,
    pod_logs,
    pod_states,
    port_forwards,
)
from kimi_nb.deploy.kubernetes import pod_deployment as module
from kimi_nb.deploy.kubernetes.pod_deployment import PodDeployment
from kimi_nb.deploy.steps import StepFailed
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal
from kimi_nb.service import readiness

LIMITS = readiness.Limits(ready=60.0, progress=30.0, answer=5.0, door=20.0)
SITE = "a3-kubernetes-example"
DEVICE = "huawei.com/Ascend910"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A cluster with four nodes, in which the example's plan can be deployed."""
    monkeypatch.setattr(module, "_LOOK", 0.05)
    monkeypatch.setattr(pod_logs, "_EVERY", 0.1)
    with kube_api.cluster("a3-cluster", "kimi", tmp_path) as (made, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{tmp_path / 'kubectl-bin'}{os.pathsep}{os.environ['PATH']}")
        for at in range(4):
            labels = {"accelerator_type": "module-a3-16"}
            made.add("v1", "nodes", kube_api.node(f"n{at}", DEVICE, 16, **labels))
        made.add("storage.k8s.io/v1", "storageclasses", {"metadata": {"name": "cephfs"}})
        claim = {"metadata": {"name": "kimi-weights"}}
        made.add("v1", "persistentvolumeclaims", claim, "kimi")
        yield made
        assert made.odd == []


def site(folder: Path, **more) -> str:
    """The example's site with other words about the cluster."""
    one = load.site("a3-kubernetes").model_dump(mode="json", exclude_unset=True)
    top = {key: more.pop(key) for key in ("api_key_env",) if key in more}
    one["kubernetes"] |= more
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump(one | top))
    return str(path)


def plan_of(where: str = "a3-kubernetes", *names: str):
    return build.plan("k2.5", "a3", *(names or ("pd",)), site=where)


def target(folder: Path, plan=None, run="run-1", **more) -> PodDeployment:
    plan = plan or plan_of()
    writer.write(scripts.files(plan), folder / "bundle")
    return PodDeployment(plan, folder / "bundle", folder, run, "me@here", lambda text: None, **more)


def to(made: PodDeployment, last: str):
    """Every step up to one; what they changed."""
    out = []
    for step in made.steps:
        out += [change.what for change in step.run().changes]
        if step.name == last:
            return out
    raise AssertionError(last)


def failed(made: PodDeployment, last: str) -> list[Diagnosis]:
    with pytest.raises(StepFailed) as caught:
        to(made, last)
    assert caught.value.step == last
    text = str(caught.value)
    assert text.count("\n") < 40 and "\x1b" not in text
    assert all(one.help for one in caught.value.failed)
    return list(caught.value.failed)


def changes(world) -> list[tuple[str, str]]:
    """What kubectl asked that changes anything."""
    return [
        (verb, path)
        for verb, path in world.asked
        if verb != "GET" and "dryRun" not in path and "accessreviews" not in path
    ]


# From end to end --------------------------------------------------------------------------------


@pytest.fixture
def engines(world, tmp_path):
    """The plan's own pods on stand-ins, where the forwards of kubectl lead."""
    plan = plan_of()
    with rehearsal.start(plan, tmp_path / "engines") as live:
        assert live.result.ok
        table = {
            f"pod/{engine.node} {engine.http_port}": [engine.address, engine.http_port]
            for engine in live.plan.engines
            if engine.http_port is not None
        }
        door, port = live.url.removeprefix("http://").split(":")
        table[f"service/kimi {port}"] = [door, int(port)]
        (tmp_path / "forwards.json").write_text(json.dumps(table))
        yield SimpleNamespace(plan=plan, live=live)


def test_up_status_and_down(world, engines, tmp_path, capsys):
    for name in engines.plan.nodes:
        world.logs[name] = [(kube_api.now(), "(rank 0) INFO 01-01 00:00:00 loaded")]
    folder, said = tmp_path / "run", []
    made = lifecycle.up(engines.plan, folder, confirm=SITE, say=said.append, limits=LIMITS).result
    assert made.ok, str(made)
    assert made.ready == len(engines.plan.engines)
    assert made.mark == "REHEARSAL" and "REHEARSAL" in str(made)
    assert made.moved_tokens  # the cache goes from prefill to decode behind the real forwards
    assert made.url == engines.plan.url == "http://kimi.kimi:1999"
    assert made.facts["reach it by"] == (
        "kubectl --context a3-cluster --namespace kimi port-forward service/kimi 1999:1999"
    )
    assert world.names("leaderworkersets") == ["kimi-decode", "kimi-prefill"]
    assert world.names("pods") == sorted([*engines.plan.nodes, "kimi-router-7d9f-x2x4z"])
    applied = [one.what for one in made.changes]
    assert "deployment/kimi-router: applied" in applied and len(applied) == 12

    one = journal.find(str(folder), tmp_path)
    states, tables = lifecycle.status(one)
    assert {state.state for state in states} == {"ready"} and len(states) == made.engines
    assert "kimi-prefill-0" in str(tables[-1])
    assert cli.main(["logs", str(one.folder), "--no-follow"]) == 0
    assert "kimi-prefill-0 | (rank 0) INFO" in capsys.readouterr().out

    before = len(changes(world))
    again = lifecycle.up(engines.plan, folder, confirm=SITE, limits=LIMITS).result
    assert again.ok and again.changes == () and len(changes(world)) == before

    outcome = lifecycle.down(one)
    assert {change.what for change in outcome.changes} >= {
        "deployment.apps/kimi-router: deleted",
        "configmap/kimi-run: given back",
    }
    left = {key[1] for key in world.objects if key[2] == "kimi"}
    assert left == {"persistentvolumeclaims"}, "what others made, and the weights"
    assert journal.Journal.read(one.folder).state == "down"
    assert lifecycle.down(one).changes == (), "a second time changes nothing"


def test_a_dry_run_changes_nothing(world, tmp_path, capsys):
    words = ["--model", "k2.5", "--hw", "a3", "--layout", "pd", "--site", "a3-kubernetes"]
    words += ["--run-dir", str(tmp_path / "run")]
    assert cli.main(["up", *words, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "leaderworkerset/kimi-decode: would be applied" in out
    assert "+kind: LeaderWorkerSet" in out and "12 changes" in out
    assert cli.main(["up", *words, "--confirm", "another"]) == 2
    assert SITE in capsys.readouterr().err
    assert changes(world) == []


def test_the_names_of_secrets_come_back_with_the_plan(tmp_path):
    """`down` reads the plan from what `up` has kept; names of secrets are none."""
    secrets = {"api_key_secret": "key-1a2b3c", "image_pull_secret": "login-9z8y7x"}
    plan = plan_of(site(tmp_path, api_key_env="KIMI_KEY", **secrets))
    kept = journal.Journal.open(tmp_path / "run", plan)
    kept.keep(plan)
    again = journal.Journal.read(kept.folder).kept_plan()
    assert again.request.site.kubernetes == plan.request.site.kubernetes


def test_a_notebook_says_where_to_deploy(world):
    import kimi_nb

    with pytest.raises(ParameterError, match="kimi-nb up"):
        kimi_nb.start(hw="a3", model="k2.5", site="a3-kubernetes", action="deploy", confirm=SITE)
    assert world.asked == []


# Told before anything is changed ------------------------------------------------------------------


def _no_kubectl(world, monkeypatch, folder):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(kubectl.sys, "executable", "/nowhere/python")


def _no_sets(world, monkeypatch, folder):
    world.gone.add("leaderworkerset.x-k8s.io/v1")


def _older_sets(world, monkeypatch, folder):
    _no_sets(world, monkeypatch, folder)
    older = {"leaderworkersets": "LeaderWorkerSet"}
    monkeypatch.setitem(kube_api.RESOURCES, "leaderworkerset.x-k8s.io/v1alpha1", older)


def _silent(world, monkeypatch, folder):
    path = Path(os.environ["KUBECONFIG"])
    path.write_text(
        path.read_text().replace("server: http://127.0.0.1:", "server: http://127.0.0.1:1 #")
    )


def _other_nodes(world, monkeypatch, folder):
    for key in [key for key in world.objects if key[1] == "nodes"]:
        world.objects[key]["status"]["allocatable"] = {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    "break_it, more, kind, said",
    [
        (_no_kubectl, {}, "no-kubectl", "kubectl is not on this machine"),
        (None, {"context": "prod"}, "no-context", "a3-cluster, elsewhere"),
        (None, {"context": "elsewhere"}, "silent", "127.0.0.1:1"),
        (_no_sets, {}, "no-lws", "nothing of it"),
        (_older_sets, {}, "no-lws", "only v1alpha1"),
        (None, {"namespace": "kimmi"}, "no-namespace", "no namespace kimmi"),
        (
            lambda world, *_: world.denied.update({("create", "deployments"), ("get", "pods/log")}),
            {},
            "no-rights",
            "create deployments; get pods/log",
        ),
        (_other_nodes, {}, "no-device", "offer nvidia.com/gpu"),
        (None, {"device": "huawei.com/Ascend920"}, "no-device", "no node"),
        (None, {"weights": {"storage_class": "nfs"}}, "no-storage-class", "nfs"),
        (None, {"image_pull_secret": "login"}, "no-secret", "login"),
        (
            lambda world, *_: world.add(
                "v1",
                "secrets",
                {"metadata": {"name": "key"}, "data": {"OTHER": "c2VjcmV0"}},
                "kimi",
            ),
            {"api_key_secret": "key", "api_key_env": "KIMI_KEY"},
            "no-secret",
            "its keys are OTHER",
        ),
        (None, {"pod_monitor": True}, "no-monitors", "PodMonitor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_told_before_anything_is_changed(
    break_it, more, kind, said, world, tmp_path, monkeypatch
):
    plan = plan_of(site(tmp_path, **more))
    if break_it:
        break_it(world, monkeypatch, tmp_path)
    found = failed(target(tmp_path, plan), "reach")
    assert kind in [one.kind for one in found]
    assert said in " ".join(f"{one.cause} {one.evidence}" for one in found)
    assert "c2VjcmV0" not in str(found)
    assert changes(world) == []


@pytest.mark.long
def test_what_may_not_be_looked_at_is_a_warning(world, tmp_path):
    world.denied |= {("list", "nodes"), ("get", "storageclasses"), ("get", "secrets")}
    plan = plan_of(site(tmp_path, image_pull_secret="login"))
    made = target(tmp_path, plan)
    warnings = [one.what for one in made.steps[0].run().warnings]
    assert len(warnings) == 3 and all("not looked at" in one for one in warnings)


@pytest.mark.long
def test_nodes_that_come_later_are_waited_for(world, tmp_path):
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    for name in ("n0", "n1"):
        world.objects["v1", "nodes", "", name]["spec"]["taints"] = [taint]
    world.objects["v1", "nodes", "", "n2"]["spec"]["taints"] = [
        {"key": "huawei.com/npu", "effect": "NoSchedule"}  # which the site tolerates
    ]
    (warning,) = target(tmp_path).steps[0].run().warnings
    assert warning.what.startswith("2 of 4 nodes with accelerator-type=module-a3-16 can take")


def test_too_many_pods_for_this_way_are_refused(world, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_looks, "_MOST", 3)
    (found,) = failed(target(tmp_path), "reach")
    assert found.kind == "too-many-pods" and "README.md" in found.help


# Only what is ours --------------------------------------------------------------------------------


def test_an_object_of_somebody_else_is_not_taken_over(world, tmp_path):
    service = {"metadata": {"name": "kimi", "labels": {"app.kubernetes.io/managed-by": "Helm"}}}
    world.add("v1", "services", service, "kimi")
    (found,) = failed(target(tmp_path), "reach")
    assert found.kind == "not-ours" and "Service/kimi" in found.evidence
    assert changes(world) == []


@pytest.mark.long
def test_a_field_of_another_manager_is_a_conflict(world, tmp_path):
    made = target(tmp_path)
    to(made, "start")
    key = ("v1", "services", "kimi", "kimi")
    world.objects[key]["metadata"]["annotations"]["manager"] = "argocd"
    world.objects[key]["spec"]["ports"][0]["port"] = 9
    (found,) = failed(target(tmp_path), "start")
    assert found.kind == "conflict" and "argocd" in found.evidence


def test_one_run_has_the_name(world, tmp_path):
    to(target(tmp_path), "claim")
    (found,) = failed(target(tmp_path / "two", run="run-2"), "claim")
    assert found.kind == "claim" and "run run-1 of me@here" in found.evidence
    assert world.names("leaderworkersets") == []
    other = target(tmp_path / "three", run="run-2")
    outcome = other.down()
    assert outcome.changes == () and outcome.warnings[0].what.startswith("claim: left alone")
    assert world.names("configmaps") == ["kimi-run"]


@pytest.mark.long
def test_a_claim_without_words_is_somebody_elses(world, tmp_path):
    world.add("v1", "configmaps", {"metadata": {"name": "kimi-run"}}, "kimi")
    (found,) = failed(target(tmp_path), "claim")
    assert found.kind == "claim"


def test_down_leaves_what_others_have_made(world, tmp_path):
    others = {"name": "theirs", "labels": {"app.kubernetes.io/name": "kimi"}}
    made = target(tmp_path)
    to(made, "pods")
    world.add("v1", "configmaps", {"metadata": others}, "kimi")
    world.add("apps/v1", "deployments", {"metadata": {**others}, "spec": _deployment()}, "kimi")
    made.down()
    assert world.names("configmaps") == ["theirs"] and world.names("deployments") == ["theirs"]
    assert world.names("persistentvolumeclaims") == ["kimi-weights"]


def _deployment():
    return {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}}


@pytest.mark.long
def test_pods_that_stay_are_named_and_the_name_is_kept(world, tmp_path, monkeypatch):
    made = target(tmp_path)
    to(made, "pods")
    monkeypatch.setattr(module, "_GONE", 0.2)
    monkeypatch.setattr(type(world), "reconcile", lambda self: None)  # its node is gone
    with pytest.raises(StepFailed) as caught:
        made.down()
    (found,) = caught.value.failed
    assert found.kind == "pods-stay" and "kimi-decode-0" in found.evidence
    assert caught.value.outcome.changes and world.names("configmaps") == ["kimi-run"]


def test_down_without_a_cluster_is_a_failure(world, tmp_path, monkeypatch):
    made = target(tmp_path)
    to(made, "start")
    _silent(world, monkeypatch, tmp_path)
    with pytest.raises(StepFailed):
        made.down()
    assert world.names("configmaps")


@pytest.mark.long
def test_down_where_the_definition_of_the_sets_is_gone(world, tmp_path):
    made = target(tmp_path)
    to(made, "start")
    for key in [key for key in world.objects if key[1] == "leaderworkersets"]:
        del world.objects[key]
    world.gone.add("leaderworkerset.x-k8s.io/v1")
    made.down()
    assert world.names("deployments") == [] and world.names("configmaps") == []


# Weights ------------------------------------------------------------------------------------------


def test_weights_without_a_claim_are_named(world, tmp_path):
    del world.objects["v1", "persistentvolumeclaims", "kimi", "kimi-weights"]
    (found,) = failed(target(tmp_path), "weights")
    assert found.kind == "no-claim" and "--download" in found.help
    assert world.names("leaderworkersets") == []


@pytest.mark.long
def test_weights_are_downloaded_when_asked(world, tmp_path):
    del world.objects["v1", "persistentvolumeclaims", "kimi", "kimi-weights"]
    made = target(tmp_path, download=True)

    def done(pod):
        job = world.objects["batch/v1", "jobs", "kimi", "kimi-weights"]
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        return kube_api.running()

    world.pod_of = done
    assert "job/kimi-weights: has downloaded what was missing" in to(made, "weights")
    assert world.names("persistentvolumeclaims") == ["kimi-weights"]
    before = len(changes(world))
    assert to(target(tmp_path), "weights") == [] and len(changes(world)) == before


@pytest.mark.long
def test_a_download_that_fails_is_told_with_its_log(world, tmp_path):
    made = target(tmp_path, download=True)

    def done(pod):
        job = world.objects["batch/v1", "jobs", "kimi", "kimi-weights"]
        world.logs[pod] = [(kube_api.now(), "OSError: [Errno 28] No space left on device")]
        job.setdefault("status", {})
        return kube_api.waiting("CrashLoopBackOff", restarts=20, exitCode=1, reason="Error")

    world.pod_of = done
    look = made._weights_job.look

    def looked():
        if made.logs.progress:
            job = world.objects["batch/v1", "jobs", "kimi", "kimi-weights"]
            job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        look()

    made._weights_job.look = looked
    (found,) = failed(made, "weights")
    assert found.kind == "download" and "No space left on device" in found.evidence


# Pods that do not run -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status, kind, said",
    [
        (
            kube_api.waiting("ImagePullBackOff", "Back-off pulling image \x1b[31mquay.io/x"),
            "image-not-pulled",
            "quay.io/x",
        ),
        (
            kube_api.waiting("CreateContainerConfigError", 'secret "key" not found'),
            "container-config",
            'secret "key" not found',
        ),
        (kube_api.ended(137, "OOMKilled"), "oom-killed", "out of memory"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
            "pod-failed",
            "Evicted",
        ),
        (kube_api.ended(3), "pod-ended", "exit code 3"),
        (
            kube_api.waiting("CrashLoopBackOff", restarts=4, exitCode=1, reason="Error"),
            "crash-loop",
            "CrashLoopBackOff",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value else "",
)
def test_a_pod_that_cannot_run_is_told(status, kind, said):
    (pod,) = pod_states.pods({"items": [{"metadata": {"name": "kimi-decode-0"}, "status": status}]})
    found = pod_states.fault(pod)
    assert (found.kind, found.node) == (kind, "kimi-decode-0")
    assert said in found.cause and "\x1b" not in str(found) and found.help


def test_a_pod_that_cannot_run_ends_the_start(world, tmp_path):
    status = kube_api.waiting("ImagePullBackOff", "Back-off pulling image quay.io/x")
    world.pod_of = lambda name: status if name == "kimi-decode-0" else kube_api.running()
    (found,) = failed(target(tmp_path), "pods")
    assert (found.kind, found.node) == ("image-not-pulled", "kimi-decode-0")


@pytest.mark.long
def test_the_log_of_a_pod_that_ended_tells_more(world, tmp_path):
    world.pod_of = lambda name: (
        kube_api.ended(1) if name == "kimi-decode-0-1" else kube_api.running()
    )
    line = "ERROR 01-01 00:00:01 [core.py:1] torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB"
    world.logs["kimi-decode-0-1"] = [(kube_api.now(), line)]
    plan = plan_of()
    assert "kimi-decode-0-1" in plan.nodes
    (found,) = failed(target(tmp_path), "pods")
    assert found.node == "kimi-decode-0-1" and "memory" in found.cause
    assert found.kind not in ("pod-ended", "unknown")


@pytest.mark.long
def test_a_pod_without_a_node_has_its_time(world, tmp_path):
    message = "0/4 nodes are available: 4 Insufficient huawei.com/Ascend910."
    world.pod_of = lambda name: kube_api.unschedulable(message)
    found = failed(target(tmp_path, patience=0.3), "pods")
    assert {one.kind for one in found} == {"unschedulable"} and message in found[0].cause
    assert len(found) == len(plan_of().nodes) + 1, "the router's pod, too"


@pytest.mark.long
def test_a_quota_is_named(world, tmp_path, monkeypatch):
    message = 'pods "kimi-decode-0" is forbidden: exceeded quota: npus, requested: 16, limited: 8'
    event = {
        "metadata": {"name": "e"},
        "reason": "FailedCreate",
        "message": message,
        "involvedObject": {"kind": "StatefulSet", "name": "kimi-decode"},
    }
    world.add("v1", "events", event, "kimi")
    made = target(tmp_path)
    to(made, "pods")  # an event of an earlier start, which says nothing of this one
    monkeypatch.setattr(type(world), "reconcile", lambda self: None)
    for key in [key for key in world.objects if key[1] == "pods"]:
        del world.objects[key]
    event["count"] = 2  # the controller has tried again
    with pytest.raises(StepFailed) as caught:
        made.steps[-1].run()
    (found,) = caught.value.failed
    assert found.kind == "quota" and "exceeded quota" in found.evidence


@pytest.mark.long
def test_sets_that_nobody_controls_are_named(world, tmp_path, monkeypatch):
    monkeypatch.setattr(type(world), "reconcile", lambda self: None)
    (found,) = failed(target(tmp_path, patience=0.2), "pods")
    assert found.kind == "no-pods" and "lws-system" in found.help


@pytest.mark.parametrize(
    "status, anew, kind, said",
    [
        ({"phase": "Failed", "reason": "Evicted"}, False, "pod-failed", "Evicted"),
        (kube_api.ended(137, "OOMKilled"), False, "oom-killed", "out of memory"),
        (None, True, "pod-replaced", "its group was restarted"),
    ],
    ids=["evicted", "oom", "replaced"],
)
def test_what_befalls_a_pod_that_loads_is_named(status, anew, kind, said, world, tmp_path):
    made = target(tmp_path)
    to(made, "pods")
    assert made.ended() == {}
    world.pod("kimi-prefill-0", status, anew)
    made._seen = (0.0, ())
    with pytest.raises(readiness.Found) as caught:
        made.ended()
    assert caught.value.found.kind == kind and said in caught.value.found.cause
    assert caught.value.found.node == "kimi-prefill-0"


def test_an_engine_that_ends_has_its_exit_code(world, tmp_path):
    made = target(tmp_path)
    to(made, "pods")
    world.pod("kimi-prefill-0", kube_api.ended(7))
    world.pod("kimi-router-7d9f-x2x4z", kube_api.ended(1))
    # One of the download, which its Job has made again since.
    labels = {"app.kubernetes.io/name": "kimi", "app.kubernetes.io/managed-by": "kimi-nb"}
    labels["app.kubernetes.io/component"] = "weights"
    gone = {"phase": "Failed", "reason": "Evicted"}
    meta = {"name": "kimi-weights-abcde", "labels": labels}
    job = {"metadata": {"name": "kimi-weights"}, "spec": {"template": {"spec": {}}}}
    world.add("batch/v1", "jobs", job, "kimi")
    world.add("v1", "pods", {"metadata": meta, "status": gone}, "kimi")
    made._seen = (0.0, ())
    assert made.ended() == {"kimi-prefill-0 engines": 7, "router": 1}
    states = {one.node: one for one in made.status()}
    assert states["kimi-prefill-0"].state == "ended 7"
    assert states["kimi-decode-0"].state == "ready"


@pytest.mark.long
def test_a_forward_that_cannot_start_is_named(world, tmp_path, monkeypatch):
    monkeypatch.setattr(port_forwards, "_PAUSE", 0.1)
    made = target(tmp_path)
    to(made, "pods")
    log = tmp_path / "taken"
    program = tmp_path / "kubectl-bin" / "kubectl"
    program.write_text(
        f"#!/bin/sh\necho 'unable to listen on any of the requested ports'\ntouch {log}\nexit 1\n"
    )
    try:
        made.serving()
        with pytest.raises(readiness.Found) as caught:
            for _ in range(400):
                made.ended()
                kube_api.time.sleep(0.05)
        assert "unable to listen" in caught.value.found.evidence
    finally:
        made.close()


# Strangers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"items": None},
        {"items": "x"},
        {"items": [None, 1, [], "x"]},
        {"items": [{"metadata": [], "status": "x", "spec": None}]},
        {"items": [{"status": {"containerStatuses": [{"state": [], "restartCount": "x"}]}}]},
        {"items": [{"status": {"conditions": [{"type": [], "status": {}}], "reason": 7}}]},
        {"items": [{"metadata": {"name": "\x1b]0;x\x07", "labels": 3}, "status": {"phase": "\n"}}]},
    ],
)
def test_pods_of_any_form_are_read(answer):
    for one in pod_states.pods(answer):
        assert "\x1b" not in one.name and "\n" not in one.phase
        pod_states.fault(one)
    assert pod_states.refused(answer, ["kimi-decode"]) == ()


def test_names_of_pods_lead_to_no_other_folder(world, tmp_path):
    made = target(tmp_path)
    text = "\n".join(
        f"[pod/{name}/engine] 2026-01-01T00:00:00Z x"
        for name in ("../../etc", "kimi-decode-0/../..", "other", "kimi-decode-0")
    )
    found = [pod for pod, _, _ in pod_logs.lines(text)]
    assert found == ["other", "kimi-decode-0"]
    names = pod_logs.name_of(made.plan, "kimi-router", "kimi-weights")
    assert [names(one) for one in ("other", "..", "kimi-decode-0", "kimi-router-x")] == [
        "",
        "",
        "kimi-decode-0 engines",
        "router",
    ]


@pytest.mark.long
def test_an_answer_without_end_is_cut(tmp_path, monkeypatch):
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nexec head -c 3000000 /dev/zero\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(kubectl, "_MOST", 1 << 20)
    with pytest.raises(kubectl.KubectlError, match="more than 1 MiB"):
        kubectl.Kubectl("c", "n").run("get", "pods")
    program.write_text("#!/bin/sh\nsleep 60\n")
    with pytest.raises(kubectl.KubectlError, match="no answer in"):
        kubectl.Kubectl("c", "n").run("get", "pods", seconds=0.2)
    program.write_text("#!/bin/sh\necho '['\n")
    with pytest.raises(kubectl.KubectlError, match="prints no object"):
        kubectl.Kubectl("c", "n").json("get", "pods")


def test_no_value_of_a_secret_is_written(world, engines, tmp_path, monkeypatch):
    monkeypatch.setenv("KIMI_KEY", "planted-9c1f")
    world.add("v1", "secrets", {"metadata": {"name": "key"}, "data": {"KIMI_KEY": "eA=="}}, "kimi")
    plan = plan_of(site(tmp_path, api_key_secret="key", api_key_env="KIMI_KEY"))
    world.logs["kimi-decode-0"] = [(kube_api.now(), "Authorization: Bearer planted-9c1f")]
    made = target(tmp_path / "run", plan)
    to(made, "pods")
    made.logs.read(now=True)
    texts = [
        path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*") if path.is_file()
    ]
    assert any("Authorization" in text for text in texts)
    assert not any("planted-9c1f" in text for text in texts)
    assert not any("planted-9c1f" in path for _, path in world.asked)


# Logs -------------------------------------------------------------------------------------------------


def stamp(second: int, part: str = "") -> str:
    return f"2026-01-01T00:00:{second:02}{part}Z"


def test_logs_are_read_once_and_in_order(world, tmp_path):
    made = target(tmp_path)
    to(made, "pods")
    world.logs["kimi-decode-0"] = [(stamp(1, ".1"), "one"), (stamp(1, ".15"), "two")]
    world.logs["kimi-prefill-0"] = [(stamp(59), "late")]
    made.logs.read(now=True)
    world.logs["kimi-decode-0"] += [
        (stamp(1, ".15"), "two, too"),
        (stamp(2), "two"),
        (stamp(3), ""),
    ]
    made.logs.read(now=True)
    made.logs.read(now=True)
    path = tmp_path / "logs" / "kimi-decode-0" / "engines.log"
    assert path.read_text() == "one\ntwo\ntwo, too\ntwo\n\n"
    assert (tmp_path / "logs" / "kimi-prefill-0" / "engines.log").read_text() == "late\n"
    # Another process reads all of it, and has it once.
    again = target(tmp_path)
    assert [line for who, line in again.follow(lambda: True) if who == "kimi-decode-0"] == [
        "one",
        "two",
        "two, too",
        "two",
        "",
    ]
    assert path.read_text().count("one") == 1


@pytest.mark.long
def test_the_log_of_a_replaced_pod_is_kept(world, tmp_path):
    made = target(tmp_path)
    to(made, "pods")
    world.logs["kimi-decode-0"] = [(stamp(1), "the first")]
    made.logs.read(now=True)
    world.logs["kimi-decode-0"] = [(stamp(2), "the second")]
    target(tmp_path).logs.read(now=True)
    folder = tmp_path / "logs" / "kimi-decode-0"
    assert (folder / "engines.log").read_text() == "the second\n"
    assert (folder / "engines.1.before").read_text() == "the first\n"


@pytest.mark.long
def test_a_silent_pod_does_not_bring_the_others_again(world, tmp_path):
    made = target(tmp_path)
    to(made, "pods")
    world.logs["kimi-decode-0"] = [("2026-01-01T00:00:00Z", "once")]
    world.logs["kimi-prefill-0"] = [("2026-01-01T10:00:00Z", "busy")]
    made.logs.read(now=True)
    world.asked.clear()
    made.logs.read(now=True)
    asked = [path for _, path in world.asked if path.split("?")[0].endswith("/log")]
    assert asked and all("sinceTime=2026-01-01T09%3A59%3A00Z" in path for path in asked)
