"""A plan that runs on a cluster: how it is reached, what befalls its pods, and its end."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from deploy import answering_cluster
from deploy.answering_cluster import (
    ALL,
    ALONE,
    D0,
    D1,
    DELETE,
    DOOR,
    HELD,
    OTHERS,
    OURS,
    P0,
    P1,
    PLAN,
    PODS,
    READ_NOW,
    RELEASE,
    SETS,
    SILENT,
    SINGLE,
    THERE,
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

from kimi_nb.deploy.kubernetes import pod_deployment as module
from kimi_nb.deploy.kubernetes.pod_deployment import PodDeployment
from kimi_nb.deploy.steps import EngineState, Outcome, StepFailed
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.service import readiness


@pytest.fixture
def cluster(monkeypatch):
    return answering_cluster.install(monkeypatch)


@pytest.fixture
def target(cluster):
    return made(cluster)


# The service ----------------------------------------------------------------------------------


def test_each_pod_is_reached_by_its_own_forward(cluster, target):
    found = target.serving()
    ports = {}
    for engine in PLAN.engines:
        ports.setdefault(f"pod/{engine.node}", []).append(engine.http_port)
    assert cluster.forwards.to_of == {**ports, "service/kimi": [1999]}
    at = {node: f"127.64.0.{at}" for at, node in enumerate(PLAN.nodes, 1)}
    assert found == dataclasses.replace(
        PLAN,
        engines=tuple(dataclasses.replace(one, address=at[one.node]) for one in PLAN.engines),
        url="http://127.64.0.5:1999",
    )
    assert target.serving() is found and target.url == PLAN.url


def test_a_pod_without_a_port_is_not_forwarded(cluster):
    quiet = [dataclasses.replace(one, http_port=None) if one.node == D1 else one for one in SINGLE.engines]  # fmt: skip
    plan = dataclasses.replace(SINGLE, engines=tuple(quiet))
    found = made(cluster, plan).serving()
    assert f"pod/{D1}" not in cluster.forwards.to_of
    assert [one.address for one in found.engines if one.node == D1] == [quiet[3].address]


def test_a_person_is_told_how_to_reach_the_service(cluster, target):
    reach = "kubectl --context a3-cluster --namespace kimi port-forward service/kimi 1999:1999"
    assert target.open_door() == Outcome(facts={"reach it by": reach}) and cluster.asked == []


@pytest.fixture
def runs(cluster, target):
    """A deployment whose pods were seen running."""
    cluster.answers[PODS] = pods(*ALL)
    step(target, "pods")
    cluster.asked.clear()
    cluster.now += 100
    return target


def lost(target: PodDeployment) -> Diagnosis:
    with pytest.raises(readiness.Found) as caught:
        target.ended()
    return caught.value.found


def test_nothing_has_ended_while_every_pod_runs(cluster, runs):
    cluster.answers[PODS] = pods(no_image("kimi-weights-abc"), *ALL)
    assert runs.ended() == {} and cluster.asked == [PODS]


def test_pods_are_asked_for_once_in_two_seconds(cluster, runs):
    for seconds in (0, 1, 1):
        cluster.now += seconds
        runs.ended()
    assert cluster.asked == [PODS]
    cluster.now += 0.5
    runs.ended()
    assert cluster.asked == [PODS, PODS]
    assert "Running" in str(runs.queue()) and len(cluster.asked) == 2


def test_pods_are_asked_for_on_a_machine_that_has_just_started(cluster, target):
    cluster.now = 0.5
    cluster.answers[PODS] = pods(ended(P0, 7))
    assert target.ended() == {f"{P0} engines": 7}


def test_a_pod_that_has_ended_has_its_code(cluster, runs):
    cluster.answers[PODS] = pods(
        no_image("kimi-weights-abc"),
        ended(P0, 7),
        loops(P1, None),
        D0,
        ended(D1, 0),
        ended(DOOR, 2),
    )
    codes = {f"{P0} engines": 7, f"{P1} engines": 1, f"{D1} engines": 0}
    assert runs.ended() == {**codes, "router": 2}
    cluster.now += 3
    cluster.answers[PODS] = pods(*ALL[:3], loops(D1), loops(DOOR, None))
    assert runs.ended() == {f"{D1} engines": 3, "router": 1}


def test_a_router_that_is_not_of_the_plan_is_not_told_as_ended(cluster):
    cluster.answers[PODS] = pods(*ALL[:4], ended(DOOR))
    assert made(cluster, ALONE).ended() == {}


@pytest.mark.parametrize(("name", "rank"), [(D1, 16), (DOOR, None)])
def test_a_pod_that_the_cluster_has_ended_is_told(cluster, name, rank):
    target = made(cluster, SINGLE)
    cluster.answers[PODS] = pods(ended(P0), no_image(name))
    assert lost(target) == fault(no_image(name), rank)


def test_a_pod_that_cannot_be_reached_is_told(cluster, runs):
    cluster.forwards.lost = SILENT
    assert lost(runs) == SILENT and cluster.asked == []


def test_while_the_cluster_is_silent_nothing_counts_as_ended(cluster, runs):
    cluster.answers[PODS] = error("")
    assert runs.ended() == {} and cluster.asked == [PODS]


def test_a_pod_that_was_replaced_is_told_by_the_logs_or_at_least_as_such(cluster, runs):
    cause = diagnosis("no-claim", D1, "out of memory", "its log")
    cluster.causes = [cause, None]
    cluster.answers[PODS] = pods(*ALL[:3], pod(D1, uid="u2"), DOOR)
    nodes = (*PLAN.nodes, "kimi-router")
    assert lost(runs) == cause
    assert cluster.asked == [
        PODS, READ_NOW, f"look for the cause at start in {[f'{node}.log' for node in nodes]}",
    ]  # fmt: skip
    assert lost(runs) == diagnosis(
        "pod-replaced",
        D1,
        "its group was restarted: a pod of it had ended, or its node was drained",
        f"kubectl get pod {D1}: another pod of that name, Running",
        command="kubectl --context a3-cluster --namespace kimi get events",
    )


def test_a_router_that_was_replaced_serves_all_the_same(cluster, runs):
    cluster.answers[PODS] = pods(*ALL[:4], pod(DOOR, uid="u2"))
    assert runs.ended() == {}


def test_a_pod_that_was_never_seen_running_is_not_replaced(cluster, target):
    cluster.answers[PODS] = pods(*ALL)
    assert target.ended() == {}


# Status and logs ------------------------------------------------------------------------------


def test_the_state_of_each_engine_is_that_of_its_pod(cluster):
    ready = pod(P1, conditions=[{"type": "Ready", "status": "True"}])
    target = made(cluster, SINGLE)
    e0, e1, e2, e3 = SINGLE.engines

    def state(engine, *more):
        return EngineState(engine.name, engine.node, engine.rank, engine.http_port, *more)

    cluster.answers[PODS] = pods(ended(P0), ready, D0)
    assert target.status() == [
        state(e0, "ended 7", fault(ended(P0)).cause),
        state(e1, "ready"),
        state(e2, "starting"),
        state(e3, "not started"),
    ]
    cluster.answers[PODS] = pods(no_image(P0), pod(P1, "Pending"), DOOR)
    assert [(one.state, one.error) for one in target.status()] == [
        ("ended", fault(no_image(P0)).cause), ("Pending", ""), ("not started", ""), ("not started", ""),
    ]  # fmt: skip
    assert cluster.asked == [PODS, PODS], "each time anew"


def test_the_pods_are_a_table(cluster, target):
    cluster.answers[PODS] = pods(no_image(P0), DOOR)
    table = target.queue()
    assert table.title == "Pods"
    assert table.headings == ("pod", "part", "state", "restarts", "node", "said")
    assert table.rows == (
        (P0, "prefill", "ImagePullBackOff", 2, "n1", "no a/b"),
        (DOOR, "router", "Running", 0, "n1", ""),
    )
    cluster.answers[PODS] = error("")
    cluster.now += 3
    assert failed(target.queue, "status") == [SILENT]


def test_logs_are_followed_until_the_last_reading(cluster, tmp_path):
    target = made(cluster, folder=tmp_path)
    paths = [tmp_path / "logs" / name for name in ("router.log", f"{P0}/engines.log")]
    reads = itertools.count(1)

    def reading():
        at = next(reads)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"line {at}\n")
        if at == 2:
            cluster.logs.strange[D0] = "it has begun anew"

    cluster.logs.reading = reading
    stops = iter([False, False, True])
    source = target.follow(lambda: next(stops))
    assert list(source) == [
        (P0, "line 1"), ("router", "line 1"),
        (D0, "an earlier log is not kept: it has begun anew"),
        (P0, "line 2"), ("router", "line 2"),
        (P0, "line 3"), ("router", "line 3"),
    ]  # fmt: skip
    assert cluster.asked == [READ_NOW] * 3 and cluster.slept == [2.0, 2.0]


def test_following_for_days_fills_no_memory(cluster, tmp_path, monkeypatch):
    kept = []

    class Tails(module.Tails):
        def __init__(self):
            super().__init__()
            kept.append(self)

    monkeypatch.setattr(module, "Tails", Tails)
    target = made(cluster, folder=tmp_path)
    target.log_folder.mkdir()
    (target.log_folder / "router.log").write_text("a\nb\n")
    assert [line for _, line in target.follow(lambda: True)] == ["a", "b"]
    assert [*kept[0].lines.values()] == [[]]


# The end --------------------------------------------------------------------------------------

DELETED = changes("service/kimi: deleted", "deployment.apps/kimi-router: deleted")


@pytest.fixture
def ends_well(cluster, target):
    """A deployment that can be deleted."""
    cluster.answers |= {
        HELD: OURS,
        SETS: {},
        THERE: "service/kimi\ndeployment.apps/kimi-router\nconfigmap/kimi-run\n",
        DELETE: "",
        PODS: [pods(*ALL), pods(D0), pods()],
        RELEASE: "configmap/kimi-run",
    }
    return target


def test_the_name_is_given_back_after_the_pods_are_gone(cluster, ends_well):
    given = changes("configmap/kimi-run: given back")
    assert ends_well.down() == Outcome(DELETED + given)
    assert cluster.asked == [
        HELD, READ_NOW, SETS, THERE, DELETE, PODS, PODS, PODS, RELEASE,
    ]  # fmt: skip
    assert cluster.slept == [2.0, 2.0]


def test_what_was_seen_before_the_deletion_does_not_count(cluster, ends_well):
    ends_well.ended()
    cluster.late = -2
    assert ends_well.down().changes and cluster.asked.count(PODS) == 3
    assert cluster.slept == [2.0]


def test_what_nobody_holds_is_deleted_too(cluster, ends_well):
    cluster.answers |= {HELD: "", RELEASE: ""}
    assert ends_well.down() == Outcome(DELETED)


def test_what_another_run_has_is_left_alone(cluster, ends_well):
    cluster.answers[HELD] = OTHERS
    warning = changes(f"claim: left alone, {TOLD} has it")
    assert ends_well.down() == Outcome(warnings=warning) and cluster.asked == [HELD]


def test_pods_that_do_not_end_are_told_and_the_name_is_kept(cluster, ends_well):
    begun, cluster.late = cluster.now, 0
    cluster.answers[PODS] = pods(*(pod(f"kimi-decode-{at}") for at in range(9)))
    with pytest.raises(StepFailed) as caught:
        ends_well.down()
    names = ", ".join(f"kimi-decode-{at}" for at in range(8))
    assert caught.value.step == "down"
    assert caught.value.failed == (
        diagnosis(
            "pods-stay",
            "a3-cluster",
            "9 pods have not ended after 300 s",
            f"kubectl get pods: {names}",
            command="kubectl --context a3-cluster --namespace kimi describe pod kimi-decode-0",
        ),
    )
    assert caught.value.outcome == Outcome(DELETED)
    assert cluster.now == begun + 302 and RELEASE not in cluster.asked


def test_a_deletion_that_is_refused_is_told(cluster, ends_well):
    cluster.answers[THERE] = error("Forbidden")
    (found,) = failed(ends_well.down, "down")
    assert found.kind == "forbidden" and RELEASE not in cluster.asked


@pytest.mark.parametrize(("command", "answer"), [(PODS, error("")), (RELEASE, error("")), (PODS, [pods(D0), error("")])])  # fmt: skip
def test_what_was_deleted_before_the_cluster_fell_silent_is_told(
    cluster, ends_well, command, answer
):
    cluster.answers[command] = answer
    with pytest.raises(StepFailed) as caught:
        ends_well.down()
    assert (caught.value.step, caught.value.failed) == ("down", (SILENT,))
    assert caught.value.outcome == Outcome(DELETED)


def test_logs_that_cannot_be_kept_do_not_keep_pods_running(cluster, ends_well):
    def full():
        raise OSError(28, "No space left on device", "/run/logs/router.log")

    cluster.logs.reading = full
    unkept = changes("logs: the last lines are not kept: No space left on device")
    given = changes("configmap/kimi-run: given back")
    assert ends_well.down() == Outcome(DELETED + given, unkept)
    cluster.answers[PODS] = error("")
    with pytest.raises(StepFailed) as caught:
        ends_well.down()
    assert caught.value.outcome == Outcome(DELETED, unkept)


def test_closing_ends_the_forwards_only(cluster, target):
    target.close()
    assert cluster.asked == ["close the forwards"]
