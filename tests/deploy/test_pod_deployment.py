"""The start of a plan on a cluster: what kubectl is asked in which order, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy import answering_cluster
from deploy.answering_cluster import (
    ALL,
    ALONE,
    APPLY,
    CLAIM,
    CREATE,
    D0,
    D1,
    DIFF,
    DIFFERS,
    DOOR,
    EVENTS,
    HELD,
    JOB,
    NAMES,
    OBJECTS,
    OTHERS,
    OURS,
    P0,
    P1,
    PLAN,
    PODS,
    READ,
    READ_NOW,
    SELECTOR,
    SILENT,
    SINGLE,
    TOLD,
    changes,
    diagnosis,
    ended,
    failed,
    fault,
    loops,
    made,
    no_image,
    pod,
    pods,
    step,
)
from testbed.kubectl_answers import error

from kimi_nb.deploy.kubernetes import pod_states
from kimi_nb.deploy.steps import Change, Outcome, StepFailed


@pytest.fixture
def cluster(monkeypatch):
    return answering_cluster.install(monkeypatch)


@pytest.fixture
def target(cluster):
    return made(cluster)


# What it is -----------------------------------------------------------------------------------


def test_the_parts_get_what_the_plan_says(cluster, target):
    assert target.plan is PLAN and target.url == PLAN.url == "http://kimi.kimi:1999"
    assert target.log_folder == Path("/run/logs")
    assert target.logs is cluster.logs
    assert cluster.logs.given == (PLAN, Path("/run"), cluster, SELECTOR, 6)
    assert [cluster.logs.names(one) for one in (D1, DOOR, "kimi-weights-x", "other")] == [
        f"{D1} engines", "router", "weights", "",
    ]  # fmt: skip
    assert cluster.forwards.given == (cluster, Path("/run/forwards"), "run-1")
    assert cluster.asked == []


def test_the_steps_end_where_every_pod_runs(target):
    assert [(one.name, one.title, one.always) for one in target.steps] == [
        ("reach", "look at the cluster, its rights and its nodes", True),
        ("claim", "take the name in the namespace for this run", True),
        ("weights", "the weights", False),
        ("start", "apply the objects", True),
        ("pods", "wait until every pod runs", True),
    ]
    assert target.after == () and target.memory_mb() == 0.0
    assert not any(target.undone(one.name) for one in target.steps)


# Before anything is changed -------------------------------------------------------------------


def test_the_cluster_is_looked_at_before_the_names_in_it(cluster, target):
    warning = Change("a3-cluster", "nodes: not looked at")
    cluster.found.warnings.append(warning)
    cluster.answers[OBJECTS] = ""
    assert step(target, "reach") == Outcome(warnings=(warning,))
    assert cluster.asked == ["look at the cluster", OBJECTS]


def test_what_is_wrong_with_the_cluster_is_told_alone(cluster, target):
    cluster.found.failed.append(SILENT)
    assert failed(target.steps[0].run, "reach") == [SILENT]
    assert cluster.asked == ["look at the cluster"]


def test_objects_of_others_are_not_taken_over(cluster, target):
    cluster.answers[OBJECTS] = {"kind": "Service", "metadata": {"name": "kimi"}}
    (found,) = failed(target.steps[0].run, "reach")
    assert found.kind == "not-ours" and found.evidence.endswith(": Service/kimi")


def test_a_cluster_that_falls_silent_is_told_at_each_step(cluster, target, tmp_path):
    (tmp_path / "kustomization.yaml").touch()
    target._weights_job._files = tmp_path
    for command in (OBJECTS, HELD, JOB, DIFF, PODS):
        cluster.answers[command] = error("")
    for one in target.steps:
        assert failed(one.run, one.name) == [SILENT]
    assert failed(target.down, "down") == failed(target.status, "status") == [SILENT]
    cluster.answers |= {DIFF: DIFFERS, EVENTS: error("Forbidden")}
    (found,) = failed(target.steps[3].run, "start")
    assert found.cause == "the cluster refuses it to this user"
    cluster.answers |= {EVENTS: pods(), APPLY: error("Conflict")}
    (found,) = failed(target.steps[3].run, "start")
    assert found.cause == "somebody else has changed an object of this plan"


def test_a_preview_tells_what_would_be_done_and_asks_for_no_change(cluster):
    target = made(cluster, download=True)
    target._weights_job._files = Path(__file__).parent  # without a kustomization
    cluster.found.warnings.append(Change("a3-cluster", "nodes: not looked at"))
    cluster.answers |= {OBJECTS: "", HELD: "", DIFF: DIFFERS}
    assert target.diff() == ""
    applied = changes(*(f"{name}: would be applied" for name in NAMES))
    assert target.preview() == [
        Change("a3-cluster", "nodes: not looked at"),
        *changes("configmap/kimi-run: would be taken"),
        *applied,
    ]
    assert target.diff() == DIFFERS
    assert cluster.asked == ["look at the cluster", OBJECTS, HELD, DIFF]
    cluster.found.warnings.clear()
    cluster.answers[HELD] = OTHERS
    (first, *rest) = target.preview()
    assert [first] == [*changes(f"configmap/kimi-run: {TOLD} has it; nothing would be done")]
    assert rest == [*applied]
    cluster.answers |= {HELD: OURS, DIFF: ""}
    assert target.preview() == [] and target.diff() == ""


@pytest.mark.parametrize("download", [True, False])
def test_a_preview_tells_of_a_download(cluster, download, tmp_path):
    (tmp_path / "kustomization.yaml").touch()
    target = made(cluster, download=download)
    target._weights_job._files = tmp_path
    cluster.answers |= {OBJECTS: "", HELD: OURS, DIFF: ""}
    told = changes("job/kimi-weights: would download what is missing")
    assert target.preview() == [*told] * download


def test_a_preview_of_what_fails_says_at_which_step(cluster, target):
    cluster.found.failed.append(SILENT)
    assert failed(target.preview, "reach") == [SILENT]
    cluster.found.failed.clear()
    cluster.answers |= {OBJECTS: "", HELD: error("")}
    assert failed(target.preview, "claim") == [SILENT]
    cluster.answers |= {HELD: "", DIFF: error("")}
    assert failed(target.preview, "start") == [SILENT]


# The name -------------------------------------------------------------------------------------


def test_the_name_is_taken_once(cluster, target):
    cluster.answers |= {HELD: "", CREATE: "created"}
    assert step(target, "claim") == Outcome(changes("configmap/kimi-run: taken"))
    assert '"who": "me@here"' in cluster.given[-1]
    cluster.answers[HELD] = OURS
    assert step(target, "claim") == Outcome()


def test_a_name_that_is_taken_is_told_with_who_has_it(cluster, target):
    cluster.answers[HELD] = OTHERS
    assert failed(target.steps[1].run, "claim") == [
        diagnosis(
            "claim",
            "a3-cluster",
            "the name kimi in namespace kimi is taken",
            f"configmap/kimi-run: {TOLD}",
            command="kubectl --context a3-cluster --namespace kimi delete configmap kimi-run",
        )
    ]
    assert cluster.asked == [HELD]
    # Also where another run takes it between the look and the taking.
    cluster.answers |= {HELD: ["", "", OTHERS], CREATE: error("AlreadyExists")}
    assert failed(target.steps[1].run, "claim")[0].evidence.endswith(TOLD)


@pytest.mark.parametrize("reason", ["", "Timeout"])
def test_a_name_is_perhaps_taken_where_the_answer_was_lost(cluster, target, reason):
    """Else the deployment would count as one that has changed nothing."""
    cluster.answers |= {HELD: "", CREATE: error(reason)}
    with pytest.raises(StepFailed) as caught:
        step(target, "claim")
    assert (caught.value.step, caught.value.failed) == ("claim", (SILENT,))
    perhaps = changes("configmap/kimi-run: perhaps taken: an answer was lost")
    assert caught.value.outcome == Outcome(perhaps)


def test_a_name_is_not_taken_where_the_cluster_refuses_it(cluster, target):
    cluster.answers |= {HELD: "", CREATE: error("Forbidden")}
    (found,) = failed(target.steps[1].run, "claim")
    assert found.kind == "forbidden"


# The weights ----------------------------------------------------------------------------------


@pytest.fixture
def fetches(cluster, tmp_path):
    """A deployment that downloads, where the bundle has the Job."""
    target = made(cluster, download=True)
    (tmp_path / "kustomization.yaml").touch()
    target._weights_job._files = tmp_path
    cluster.answers |= {
        f"apply --server-side --field-manager=kimi-nb -k {tmp_path}": "",
        PODS: pods(),
    }
    return target


def ends(kind: str) -> dict:
    return {"status": {"conditions": [{"type": kind, "status": "True"}]}}


def test_a_plan_without_a_claim_needs_no_weights(cluster, target):
    assert step(target, "weights") == Outcome() and cluster.asked == []
    assert target._weights_job._files == Path("/bundle/kubernetes/weights")


def test_weights_that_were_downloaded_are_there(cluster, fetches):
    cluster.answers[JOB] = ends("Complete")
    assert step(fetches, "weights") == Outcome() and cluster.asked == [JOB]


def test_without_a_download_the_claim_must_be_there(cluster, target, fetches):
    target._weights_job._files = fetches._weights_job._files
    cluster.answers |= {JOB: "", CLAIM: "persistentvolumeclaim/kimi-weights"}
    unseen = "what it holds is not looked at; --download fetches what is missing"
    assert step(target, "weights") == Outcome(warnings=changes(f"pvc/kimi-weights: {unseen}"))
    assert cluster.asked == [JOB, CLAIM]
    cluster.answers[CLAIM] = ""
    (found,) = failed(target.steps[2].run, "weights")
    assert found.kind == "no-claim"


def test_a_download_is_waited_for_while_its_log_is_read(cluster, fetches):
    cluster.answers[JOB] = ["", "", "", ends("Complete")]
    assert step(fetches, "weights") == Outcome(
        changes("job/kimi-weights: has downloaded what was missing")
    )
    apply = next(one for one in cluster.asked if one.startswith("apply"))
    assert cluster.asked == [JOB, apply, JOB, READ, PODS, JOB, READ, PODS, JOB]
    assert cluster.slept == [2.0, 2.0]


def test_a_download_that_cannot_begin_is_told(cluster, fetches):
    cluster.answers[JOB] = ""
    of_job = no_image("kimi-weights-abc")
    cluster.answers[PODS] = pods(no_image(P0), P1, of_job)
    assert failed(fetches.steps[2].run, "weights") == [fault(of_job)]
    # That of another part is none of this step's, and a container that ended begins again.
    cluster.answers[PODS] = pods(no_image(P0), loops("kimi-weights-abc"), ended("kimi-weights-x"))
    cluster.answers[JOB] = ["", "", ends("Complete")]
    cluster.now += 3
    assert step(fetches, "weights").changes


def test_a_download_that_has_failed_is_told_by_its_log(cluster, fetches):
    cluster.answers[JOB] = ["", "", ends("Failed")]
    (found,) = failed(fetches.steps[2].run, "weights")
    assert found.kind == "download" and found.evidence == "weights.log: OSError: no space"
    assert cluster.asked[-3:] == [READ, PODS, READ_NOW]


def test_a_download_has_six_hours(cluster, fetches):
    begun, cluster.late = cluster.now, -2

    def look():
        cluster.now += 3600
        return ""

    cluster.answers[JOB] = look
    (found,) = failed(fetches.steps[2].run, "weights")
    # It begins with the second look, and has all of the six hours.
    assert found.kind == "download" and cluster.now == begun + 8 * 3600


def test_a_download_during_which_the_cluster_falls_silent_says_so(cluster, fetches):
    cluster.answers |= {JOB: "", PODS: error("")}
    assert failed(fetches.steps[2].run, "weights") == [SILENT]


# The objects ----------------------------------------------------------------------------------


def test_what_differs_is_applied(cluster, target):
    cluster.answers |= {DIFF: DIFFERS, EVENTS: {"items": []}, APPLY: "applied"}
    assert step(target, "start") == Outcome(changes(*(f"{name}: applied" for name in NAMES)))
    assert cluster.asked == [DIFF, EVENTS, "begin the logs", APPLY]


def test_nothing_is_applied_where_nothing_differs(cluster, target):
    cluster.answers |= {DIFF: "", EVENTS: {"items": []}}
    assert step(target, "start") == Outcome() and cluster.asked == [DIFF, EVENTS]


# The pods -------------------------------------------------------------------------------------


def test_the_nodes_are_told_once_every_pod_runs(cluster, target):
    some = (pod(P0, node="n2"), pod(P1), pod(D0, "Pending", node=""), DOOR)
    cluster.answers[PODS] = [
        pods(),
        pods(*some),
        pods(*some, D1),
        pods(*ALL[1:], pod(P0, node="n2")),
    ]
    cluster.answers[EVENTS] = {"items": []}
    assert step(target, "pods") == Outcome(facts={"nodes": ["n1", "n2"]})
    assert cluster.said == [
        "  0 of 5 pods run",
        f"  3 of 5 pods run; {D0}: Pending",
        f"  4 of 5 pods run; {D0}: Pending",
    ]
    # What the cluster refuses is asked for only while a pod is missing.
    assert cluster.asked == [PODS, EVENTS, PODS, EVENTS, PODS, PODS]
    assert cluster.slept == [2.0] * 3


def test_progress_is_told_when_it_changes(cluster, target):
    def waits(message):
        return pod(P0, "Pending", conditions=[{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}])  # fmt: skip

    rest = ALL[1:]
    looks = [pods(waits("m" * 200), *rest)] * 3 + [pods(waits("other"), *rest), pods(*ALL)]
    cluster.answers[PODS] = looks
    step(target, "pods")
    assert cluster.said == [
        f"  4 of 5 pods run; {P0}: Unschedulable, {'m' * 120}",
        f"  4 of 5 pods run; {P0}: Unschedulable, other",
    ]


def test_a_plan_without_a_router_needs_no_pod_of_one(cluster):
    cluster.answers[PODS] = pods(*PLAN.nodes)
    assert step(made(cluster, ALONE), "pods").facts == {"nodes": ["n1"]}


def test_a_second_router_stands_for_no_pod_that_is_missing(cluster, target):
    new = pod("kimi-router-new", part="router")
    cluster.answers |= {PODS: [pods(P0, P1, D0, DOOR, new), pods(*ALL, new)], EVENTS: pods()}
    assert step(target, "pods").facts and cluster.slept == [2.0]
    assert cluster.said == ["  5 of 6 pods run"]


def test_a_pod_of_an_earlier_router_must_be_gone(cluster, target):
    old = pod("kimi-router-old", part="router")
    old["metadata"]["deletionTimestamp"] = "now"
    theirs = pod("kimi-weights-abc", "Pending")  # of no part that serves
    cluster.answers[PODS] = [pods(*ALL, old), pods(*ALL, theirs), pods(*ALL)]
    assert step(target, "pods").facts == {"nodes": ["n1"]}
    assert cluster.said == ["  5 of 6 pods run; kimi-router-old: Terminating"]
    step(target, "pods")  # at the same moment, and with another look
    assert cluster.asked == [PODS] * 3


@pytest.mark.parametrize(("plan", "rank"), [(PLAN, None), (SINGLE, 16)])
def test_a_pod_that_cannot_run_ends_the_wait(cluster, plan, rank):
    cluster.answers[PODS] = pods(P0, P1, D0, no_image(D1), no_image(DOOR))
    found = failed(made(cluster, plan).steps[4].run, "pods")
    assert found == [fault(no_image(D1), rank), fault(no_image(DOOR))]
    assert cluster.asked == [PODS, READ_NOW] and cluster.slept == []


def test_what_a_log_says_of_a_pod_that_ended_is_told(cluster, target):
    cause = diagnosis("no-claim", D1, "out of memory", "its log")
    cluster.causes = [cause, None]
    cluster.answers[PODS] = pods(P0, P1, loops(D0), ended(D1), DOOR)
    assert failed(target.steps[4].run, "pods") == [cause, fault(ended(D1))]
    look = "look for the cause at start in ['{}.log']"
    assert cluster.asked == [
        PODS, READ_NOW, look.format(D0), READ_NOW, look.format(D1), READ_NOW,
    ]  # fmt: skip


def test_what_the_log_of_the_router_says_is_told(cluster, target):
    """The Deployment stands for its node; the pods have other names."""
    cause = diagnosis("no-claim", "kimi-router", "No module named 'httpx'", "its log")
    cluster.causes = [cause]
    cluster.answers[PODS] = pods(*PLAN.nodes, loops(DOOR))
    assert failed(target.steps[4].run, "pods") == [cause]
    assert "look for the cause at start in ['kimi-router.log']" in cluster.asked


def event(owner: str, uid="e1") -> dict:
    about = {"kind": "StatefulSet", "name": owner}
    return {"metadata": {"uid": uid}, "involvedObject": about, "reason": "FailedCreate",
            "message": "exceeded quota: npus"}  # fmt: skip


def test_what_the_cluster_refuses_to_create_is_told(cluster, target):
    there = pods(P0, P1, D0, DOOR)
    cluster.answers |= {PODS: there, EVENTS: {"items": [event("kimi-decode"), event("other")]}}
    assert failed(target.steps[4].run, "pods") == [
        diagnosis(
            "quota",
            "kimi-decode",
            "StatefulSet kimi-decode may not create its pods",
            "kubectl get events: FailedCreate: exceeded quota: npus",
        )
    ]
    # But not what it has refused before this start.
    cluster.answers[DIFF] = ""
    step(target, "start")
    cluster.answers[PODS] = [there, pods(*ALL)]
    assert step(target, "pods").facts


def test_what_is_refused_cannot_be_seen_where_the_cluster_is_silent(cluster, target):
    cluster.answers |= {PODS: pods(), EVENTS: error("")}
    assert failed(target.steps[4].run, "pods") == [SILENT]


def test_a_pod_that_cannot_run_says_more_than_what_is_refused(cluster, target):
    cluster.answers[PODS] = pods(no_image(P0))
    assert failed(target.steps[4].run, "pods") == [fault(no_image(P0))]
    assert EVENTS not in cluster.asked


def test_pods_have_their_time_from_the_last_progress(cluster):
    """The time of patience, counted anew whenever a pod has another state."""
    waits = [pod(name, "Pending", node="") for name in (P0, DOOR)]
    begun, cluster.late = cluster.now, 0

    def look():
        return pods(*ALL[1:4], *waits) if cluster.now - begun >= 8 else pods(P1, D0, *waits)

    cluster.answers |= {PODS: look, EVENTS: {"items": []}}
    found = failed(made(cluster, SINGLE, patience=10).steps[4].run, "pods")
    states = pod_states.pods(pods(*waits))
    assert found == [pod_states.waits(states[0], 0), pod_states.waits(states[1])]
    assert cluster.now == begun + 20  # the first look that finds more than 10 s
    assert cluster.asked[-1] == READ_NOW


def test_pods_have_ten_minutes(cluster, target):
    begun, cluster.late = cluster.now, 0
    cluster.answers |= {PODS: pods(D0), EVENTS: {"items": []}}
    assert failed(target.steps[4].run, "pods") == [
        diagnosis(
            "no-pods",
            "a3-cluster",
            f"4 pods are not created, the first is {D1}",
            "kubectl get events: nothing was refused",
        )
    ]
    assert cluster.now == begun + 602


def test_a_router_that_the_cluster_refuses_is_told_too(cluster, target):
    cluster.answers |= {
        PODS: pods(*PLAN.nodes),
        EVENTS: {"items": [event("kimi-router-7d9f"), event("kimi-routers")]},
    }
    (found,) = failed(target.steps[4].run, "pods")
    assert (found.kind, found.node) == ("quota", "kimi-router-7d9f")
    assert cluster.asked == [PODS, EVENTS, READ_NOW]


def test_a_router_that_nobody_creates_is_named(cluster, target):
    cluster.answers |= {PODS: pods(*PLAN.nodes), EVENTS: {"items": []}}
    (found,) = failed(target.steps[4].run, "pods")
    assert found.kind == "no-pods"
    assert found.cause == "1 pods are not created, the first is kimi-router"


def test_pods_that_do_not_make_way_for_new_ones_are_named(cluster):
    """Nobody has refused anything there, and the controller runs."""
    there = [pod(D1, node="n9"), pod(DOOR)]
    for one in there:
        one["metadata"]["deletionTimestamp"] = "now"
    cluster.answers[PODS] = pods(P0, P1, D0, *there)
    found = failed(made(cluster, patience=60).steps[4].run, "pods")
    assert found == [
        diagnosis(
            "pod-leaves",
            name,
            "an earlier pod of this name has not ended after 60 s",
            f"kubectl get pod {name}: Terminating, on {node}",
            command=f"kubectl --context a3-cluster --namespace kimi describe pod {name}",
        )
        for name, node in ((D1, "n9"), (DOOR, "n1"))
    ]
