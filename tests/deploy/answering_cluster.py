"""A cluster of a test: its kubectl answers by a table, its clock goes on by sleeping.

Example::

    cluster = answering_cluster.install(monkeypatch)
    cluster.answers[PODS] = pods(P0, no_image(D1))
    target = made(cluster)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from testbed.kubectl_answers import Answers

from kimi_nb.deploy.kubernetes import cluster_looks, pod_states
from kimi_nb.deploy.kubernetes import pod_deployment as module
from kimi_nb.deploy.kubernetes.pod_deployment import PodDeployment
from kimi_nb.deploy.steps import Change, Outcome, StepFailed
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis, Log
from kimi_nb.plan import build

PLAN = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
P0, P1, D0, D1 = PLAN.nodes
# With one rank on each node.
SINGLE = dataclasses.replace(
    PLAN, engines=tuple(next(one for one in PLAN.engines if one.node == node) for node in PLAN.nodes)
)  # fmt: skip
ALONE = dataclasses.replace(PLAN, router=None)
DOOR = "kimi-router-7d9f-x2x4z"
ALL = (P0, P1, D0, D1, DOOR)

SELECTOR = "app.kubernetes.io/name=kimi,app.kubernetes.io/managed-by=kimi-nb"
PODS, EVENTS = f"get pods -l {SELECTOR} -o json", "get events -o json"
HELD = "get configmap kimi-run --ignore-not-found -o json"
CREATE = "create --validate=false -f -"
OBJECTS = "get --ignore-not-found -k /bundle/kubernetes -o json"
HOW = "--server-side --field-manager=kimi-nb -k /bundle/kubernetes"
DIFF, APPLY = f"diff {HOW}", f"apply {HOW}"
JOB = "get job kimi-weights --ignore-not-found -o json"
CLAIM = "get pvc kimi-weights --ignore-not-found -o name"
SETS = "get --raw /apis/leaderworkerset.x-k8s.io"
THERE = (
    "get leaderworkersets.leaderworkerset.x-k8s.io,deployments.apps,services,configmaps,"
    "poddisruptionbudgets.policy,networkpolicies.networking.k8s.io,jobs.batch "
    f"-l {SELECTOR} -o name"
)
DELETE = "delete --wait=false --ignore-not-found service/kimi deployment.apps/kimi-router"
RELEASE = "delete configmap kimi-run --ignore-not-found -o name"
READ, READ_NOW = "read the logs", "read the logs now"

OURS = {"data": {"run": "run-1"}}
OTHERS = {"data": {"run": "run-2", "who": "ann", "since": "noon", "plan": "p"}}
TOLD = "run run-2 of ann since noon (p)"
DIFFERS = """diff -u -N /tmp/LIVE-1/apps.v1.Deployment.kimi.kimi-router /tmp/MERGED-2/apps.v1.Deployment.kimi.kimi-router
--- /tmp/LIVE-1/apps.v1.Deployment.kimi.kimi-router\t2026-01-02 03:04:05
+++ /tmp/MERGED-2/apps.v1.Deployment.kimi.kimi-router\t2026-01-02 03:04:05
@@ -1,2 +1,3 @@
+++ a/of.the.text
+++ b
--- /tmp/LIVE-1/v1.Service.kimi.kimi\t2026-01-02 03:04:05
+++ /tmp/MERGED-2/v1.Service.kimi.kimi\t2026-01-02 03:04:05
"""
NAMES = ("deployment/kimi-router", "service/kimi")


class Cluster(Answers):
    """kubectl, the logs, the forwards and the clock of a test; ``asked`` has what happened, in
    order. An answer may be a function of nothing."""

    def __init__(self) -> None:
        super().__init__({})
        self.now, self.slept = 1000.0, []
        self.late = 0.5  # seconds that a sleep takes longer
        self.found = cluster_looks.Found()
        self.said: list[str] = []
        self.logs = self.forwards = None
        self.causes: list[Diagnosis | None] = []

    def run(self, *words, stdin="", seconds=60.0, codes=(0,)):
        assert tuple(codes) == ((0, 1) if words[0] == "diff" else (0,))
        answer = self.answers[" ".join(words)]
        if callable(answer):
            self.answers[" ".join(words)] = answer()
        try:
            return super().run(*words, stdin=stdin, seconds=seconds, codes=codes)
        finally:
            self.answers[" ".join(words)] = answer

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late
        assert len(self.slept) < 1000, "this would go on for ever"

    def of_logs(self, logs, plan, when):
        self.asked.append(f"look for the cause {when} in {[log.file for log in logs]}")
        assert plan is PLAN
        return self.causes.pop(0)


class Logs:
    """The logs, as `pod_logs.PodLogs` has them."""

    cluster: Cluster

    def __init__(self, plan, folder, kubectl, selector, most, names) -> None:
        self.given = (plan, folder, kubectl, selector, most)
        self.names = names
        self.strange: dict[str, str] = {}
        self.reading = lambda: None
        self.cluster.logs = self

    def read(self, now=False):
        self.cluster.asked.append(READ_NOW if now else READ)
        self.reading()

    def begin(self):
        self.cluster.asked.append("begin the logs")

    def all(self):
        return [Log(node, None, f"{node}.log", []) for node in (*PLAN.nodes, "kimi-router")]

    def last_of(self, name):
        return f"{name}.log", "OSError: no space"


class Forwards:
    """The forwards, as `port_forwards.Forwards` has them."""

    cluster: Cluster

    def __init__(self, kubectl, folder, run) -> None:
        self.given, self.lost = (kubectl, folder, run), None
        self.to_of: dict[str, list[int]] = {}
        self.cluster.forwards = self

    def to(self, target, ports):
        assert target not in self.to_of
        self.to_of[target] = list(ports)
        return f"127.64.0.{len(self.to_of)}"

    def keep(self):
        return self.lost

    def close(self):
        self.cluster.asked.append("close the forwards")


def install(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Put the stand-ins in the place of what a deployment reaches."""
    made = Cluster()

    def kubectl(context, namespace):
        assert (context, namespace) == ("a3-cluster", "kimi")
        return made

    def look(plan, given):
        assert plan is PLAN and given is made
        made.asked.append("look at the cluster")
        return made.found

    monkeypatch.setattr(Logs, "cluster", made, raising=False)
    monkeypatch.setattr(Forwards, "cluster", made, raising=False)
    monkeypatch.setattr(module, "Kubectl", kubectl)
    monkeypatch.setattr(module.pod_logs, "PodLogs", Logs)
    monkeypatch.setattr(module, "Forwards", Forwards)
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module.cluster_looks, "look", look)
    monkeypatch.setattr(module.first_failure, "of_logs", made.of_logs)
    return made


def made(cluster, plan=PLAN, folder=Path("/run"), **more) -> PodDeployment:
    return PodDeployment(
        plan, Path("/bundle"), folder, "run-1", "me@here", cluster.said.append, **more
    )


def step(target: PodDeployment, name: str) -> Outcome:
    (found,) = [one for one in target.steps if one.name == name]
    return found.run()


def failed(call, name: str) -> list[Diagnosis]:
    """What a step that fails tells."""
    with pytest.raises(StepFailed) as caught:
        call()
    assert caught.value.step == name
    assert caught.value.outcome == Outcome()
    return list(caught.value.failed)


def diagnosis(kind, where, cause, seen, **words) -> Diagnosis:
    return Diagnosis(kind, where, None, cause, seen, remedies.of(f"kubernetes/{kind}", **words))


SILENT = diagnosis(
    "silent", "a3-cluster", "the cluster does not answer as it should", "what kubectl says"
)


def changes(*texts: str) -> tuple[Change, ...]:
    return tuple(Change("kimi", text) for text in texts)


def pod(name: str, phase="Running", uid="u1", node="n1", part="", last=None, **status) -> dict:
    """A pod as the API server tells of it; what it waits for or ended with is in ``status``."""
    part = part or ("router" if name == DOOR else name.split("-")[1])
    meta = {"name": name, "uid": uid, "labels": {"app.kubernetes.io/component": part}}
    state = {key: status.pop(key) for key in ("waiting", "terminated") if key in status}
    if state:
        one = {"state": state, "restartCount": 2, "lastState": {"terminated": last}}
        status["containerStatuses"] = [one]
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase, **status}}


def pods(*several) -> dict:
    return {"items": [pod(one) if isinstance(one, str) else one for one in several]}


def no_image(name: str, **more) -> dict:
    return pod(name, "Pending", waiting={"reason": "ImagePullBackOff", "message": "no a/b"}, **more)


def ended(name: str, code: int | None = 7, **more) -> dict:
    return pod(name, terminated={"exitCode": code, "reason": "Error"}, **more)


def loops(name: str, code: int | None = 3, **more) -> dict:
    return pod(name, last={"exitCode": code}, waiting={"reason": "CrashLoopBackOff"}, **more)


def fault(one: dict, rank: int | None = None) -> Diagnosis:
    (state,) = pod_states.pods({"items": [one]})
    return pod_states.fault(state, rank)
