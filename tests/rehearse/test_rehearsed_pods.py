"""Pods of a rehearsal: created as their controller does, probed as kubelet does, and their failures."""

from __future__ import annotations

import json
import re

import pytest
from leftovers import left

from kimi_nb.core.errors import PlanError
from kimi_nb.core.marks import MARK
from kimi_nb.diagnose import doctor
from kimi_nb.plan import build
from kimi_nb.rehearse import (
    cluster_table,
    fault_names,
    faults,
    kubernetes_pods,
    loopback,
    rehearsal,
    simulated_cluster,
)
from kimi_nb.rehearse.simulated_site import SimulatedSite


def plan_of(*pairs: str):
    pairs = pairs or ("groups=2",)
    return build.plan("k2.5", "h200", "dp", site="h200-kubernetes", pairs=list(pairs))


def aim(name: str, plan, folder) -> faults.Target:
    block = loopback.claim()
    block.guard.close()
    local, files = kubernetes_pods.make(plan, folder, block)
    return faults.apply(name, local, SimulatedSite.of(local), files)[2]


def events(found: rehearsal.Rehearsal, pod: str) -> list[list[str]]:
    """Type, reason, object and message of each event of a pod."""
    text = (found.folder / "logs" / pod / simulated_cluster.EVENTS).read_text()
    lines = [line.split(f"{MARK} ", 1)[1] for line in text.splitlines()]
    return [re.split(r"  +", line)[1:] for line in lines if re.match(r"\d\d-\d\d ", line)]


SAID = {
    "pod-evicted": (
        "pod-evicted",
        "was evicted at start: its node, or its limit, ran short of memory",
    ),
    "image-not-pulled": ("pod-image", "cannot be pulled"),
    "probe-too-early": ("pod-probe", "its startup probe failed"),
    "quota-exceeded": (
        "pod-quota",
        "the quota accelerators of the namespace does not admit the pod",
    ),
    "node-drained": ("pod-node-drained", "the node of the pod was drained at start"),
    "group-restart": ("pod-group-recreated", "group 1 was started again as a whole"),
}


@pytest.mark.parametrize("name", fault_names.ON_PODS)
def test_a_fault_of_pods_is_named(name, tmp_path):
    """Pod and rank, cause and way out: by the rehearsal, and by the doctor on the same logs."""
    plan = plan_of()
    target = aim(name, plan, tmp_path)
    found = rehearsal.rehearse(plan, tmp_path / "run", fault=name, make=kubernetes_pods.make)
    seen, (signature, cause) = found.diagnosis, SAID[name]
    assert not found.ok and seen is not None, found
    assert (seen.kind, seen.node, seen.rank) == (name, target.engine.node, target.engine.rank)
    assert cause in seen.cause and seen.help and MARK in seen.evidence
    assert f"{seen.node}/{simulated_cluster.EVENTS}: " in seen.evidence
    told = doctor.examine(found.folder, found.folder / "bundle")
    first = told.first
    assert (first.signature, first.component) == (signature, "kubernetes")
    assert (first.kind, first.node, first.rank) == (seen.kind, seen.node, seen.rank)
    # A pod that is hit after its own ranks answered, and before others do, is at start for the one,
    # and while serving for the other.
    causes = [re.split(" at start| while serving", one.cause)[0] for one in (first, seen)]
    assert causes[0] == causes[1]
    assert not told.also, told.also
    assert not left(tmp_path)


def test_a_group_starts_again_as_a_whole(tmp_path):
    """Of two groups the one of the pod that ended; then the service answers all the same."""
    found = rehearsal.rehearse(
        plan_of(), tmp_path, fault="group-restart@mixed0-node0", make=kubernetes_pods.make
    )
    assert found.diagnosis.node == "kimi-mixed-0" and "group 0" in found.diagnosis.cause
    assert found.answer.startswith(MARK) and found.ready == found.engines == 4
    started = {
        pod: [row[1] for row in events(found, pod)].count("Started")
        for pod in ("kimi-mixed-0", "kimi-mixed-0-1", "kimi-mixed-1", "kimi-mixed-1-1")
    }
    assert started == {
        "kimi-mixed-0": 2,
        "kimi-mixed-0-1": 2,
        "kimi-mixed-1": 1,
        "kimi-mixed-1-1": 1,
    }


def test_the_only_group_of_a_role_is_not_drained(tmp_path):
    """Its disruption budget says so."""
    with pytest.raises(PlanError, match="the disruption budget keeps the only group of mixed"):
        aim("node-drained", plan_of("groups=1"), tmp_path)


@pytest.mark.parametrize("name", fault_names.ON_PODS)
def test_without_a_cluster_there_are_no_faults_of_pods(name, tmp_path):
    plan = build.plan("k2.5", "a3", "single")
    with pytest.raises(PlanError, match=f"fault {name}: .*transport kubernetes.*--as kubernetes"):
        rehearsal.rehearse(plan, tmp_path, fault=name)


def test_a_probe_strikes_only_an_engine_that_answers(tmp_path):
    plan = plan_of()
    headless = next(one.name for one in plan.engines if one.headless)
    with pytest.raises(PlanError, match="an engine that answers"):
        aim(f"probe-too-early@{headless}", plan, tmp_path)


# What the cluster does ---------------------------------------------------------------------------


class Programs:
    """Programs that only say how they were called."""

    def __init__(self, codes=None) -> None:
        self.codes, self.done = codes or {}, []

    def start(self, name, argv, folder, environment, log):
        self.done.append(("start", name, argv, environment))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("port 8000: HTTP 503\n")

    def stop(self, name):
        self.done.append(("stop", name))

    def wait(self, name, seconds):
        return self.codes.get(name, 0)


def cluster_of(plan, folder, codes=None, nodes=None, fault=""):
    block = loopback.claim()
    block.guard.close()
    local, files = kubernetes_pods.make(plan, folder / "work", block)
    site = SimulatedSite.of(local)
    if fault:
        site, files, _ = faults.apply(fault, local, site, files)
    table = json.loads(files[cluster_table.FILE])
    programs, started = Programs(codes), []
    table |= {"nodes": nodes} if nodes else {}
    made = simulated_cluster.SimulatedCluster(table, site, programs, started.append, folder)
    return made, programs, started, table["pods"]


def test_leaders_are_created_before_workers(tmp_path):
    """startupPolicy LeaderCreated: a leader that is there has workers, ready or not."""
    cluster, _, started, _ = cluster_of(plan_of(), tmp_path)
    cluster.begin()
    assert started == ["kimi-mixed-0", "kimi-mixed-1", "kimi-mixed-0-1", "kimi-mixed-1-1"]


def test_a_leader_that_is_not_admitted_has_no_workers(tmp_path):
    cluster, _, started, _ = cluster_of(plan_of(), tmp_path, fault="quota-exceeded@mixed0-node0")
    cluster.begin()
    assert started == ["kimi-mixed-1", "kimi-mixed-1-1"]


def test_a_pod_takes_a_node_and_without_one_it_waits(tmp_path):
    cluster, _, started, _ = cluster_of(plan_of(), tmp_path, nodes=3)
    cluster.begin()
    assert started == ["kimi-mixed-0", "kimi-mixed-1", "kimi-mixed-0-1"]
    text = (tmp_path / "logs" / "kimi-mixed-1-1" / "events.log").read_text()
    assert (
        "FailedScheduling" in text
        and "0/3 nodes are available: 3 Insufficient nvidia.com/gpu" in text
    )
    (tmp_path / "kimi.log").write_text(text)
    found = doctor.examine(tmp_path / "kimi.log").first
    assert (found.signature, found.node) == ("pod-unschedulable", "kimi-mixed-1-1")


def test_readiness_is_asked_as_the_object_says(tmp_path):
    """One program for each container with an API; what it says when it fails becomes an event."""
    plan = plan_of()
    codes = {"kimi-mixed-1 readiness": 1}
    cluster, programs, *_ = cluster_of(plan, tmp_path, codes)
    assert cluster.ready(tmp_path / "work", {"A": "b"}) == codes
    asked = [(name, argv[1:], env) for _, name, argv, env in programs.done]
    assert [name for name, *_ in asked] == ["kimi-mixed-0 readiness", "kimi-mixed-1 readiness"]
    _, words, environment = asked[0]
    assert words == [str(tmp_path / "work/kimi-mixed-0/scripts/ready.py"), plan.served_name, "8000"]
    assert environment["A"] == "b" and environment["POD_IP"].startswith("127.")
    text = (tmp_path / "logs" / "kimi-mixed-1" / "events.log").read_text()
    assert "Readiness probe failed: port 8000: HTTP 503" in text


def test_the_objects_are_pods_of_the_api(tmp_path):
    """Names, labels, variables and addresses as the controller gives them; valid for the API."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    *_, pods = cluster_of(plan_of(), tmp_path)
    for pod in pods:
        kubernetes_validate.validate(pod, "1.34", strict=True)
    worker = pods[3]
    assert worker["metadata"]["name"] == worker["spec"]["hostname"] == "kimi-mixed-1-1"
    assert worker["spec"]["subdomain"] == "kimi-mixed"
    labels = worker["metadata"]["labels"]
    assert labels[cluster_table.GROUP] == labels[cluster_table.WORKER] == "1"
    first, *_ = worker["spec"]["containers"][0]["env"]
    assert first == {"name": "LWS_LEADER_ADDRESS", "value": "kimi-mixed-1.kimi-mixed.kimi"}


def test_a_start_up_probe_has_the_tries_of_its_object(tmp_path, monkeypatch):
    """The engine is asked until it answers, or until it has failed as often as the object allows."""
    cluster, programs, _, pods = cluster_of(plan_of("groups=1"), tmp_path)
    now = [0.0]
    monkeypatch.setattr(simulated_cluster.time, "monotonic", lambda: now[0])
    cluster.begin()
    probe = pods[0]["spec"]["containers"][0]["startupProbe"]
    for _ in range(probe["failureThreshold"] - 2):
        now[0] += probe["periodSeconds"]
        cluster.look()
    assert not [one for one in programs.done if one[0] == "stop"]
    now[0] += probe["periodSeconds"]
    cluster.look()
    assert ("stop", "kimi-mixed-0 engines") in programs.done
    text = (tmp_path / "logs" / "kimi-mixed-0" / "events.log").read_text()
    assert text.count("Startup probe failed") == probe["failureThreshold"]


def test_a_container_that_has_started_is_not_probed_again(tmp_path, monkeypatch):
    cluster, *_ = cluster_of(plan_of("groups=1"), tmp_path)
    asked = []

    def listens(url, seconds):
        asked.append(url)
        return True

    monkeypatch.setattr(simulated_cluster.http_client, "listens", listens)
    reply = simulated_cluster.http_client.Reply(200, "", 0.0)
    monkeypatch.setattr(simulated_cluster.probe, "health", lambda url, seconds: reply)
    cluster.begin()
    cluster.look()
    assert len(asked) == 1
