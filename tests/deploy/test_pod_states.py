"""What the API server says of pods and events, of whatever form it is."""

from __future__ import annotations

import pytest

from kimi_nb.deploy.kubernetes import api_values, pod_states
from kimi_nb.deploy.kubernetes.pod_states import PodState
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis

# Values of another form than the API server has.
ODD = [None, 7, -7, 1.5, "x", [], ["x"], [[]], {}, {"a": {}}, True]


def pod(status=None, **more) -> PodState:
    """The state of a pod of this status."""
    labels = {"app.kubernetes.io/component": "decode"}
    meta = {"name": "kimi-decode-0", "uid": "u1", "labels": labels}
    one = {"metadata": meta, "spec": {"nodeName": "n7"}, "status": status or {}}
    (found,) = pod_states.pods({"items": [one | more]})
    return found


def container(last=None, restarts=0, phase="Running", **state) -> dict:
    """The status of a pod whose container is in this state."""
    one = {"state": state, "restartCount": restarts, "lastState": last or {}}
    return {"phase": phase, "containerStatuses": [one]}


def conditions(**values: str) -> dict:
    return {"conditions": [{"type": name, "status": value} for name, value in values.items()]}


LOOPS = container({"terminated": {"exitCode": 3, "reason": "Error", "message": "last words"}}, 4,
                  waiting={"reason": "CrashLoopBackOff", "message": "back-off"})  # fmt: skip
RUNS = container(running={"startedAt": "now"})
ENDED = container(terminated={"exitCode": 3, "reason": "Error"})
PENDING = {"phase": "Pending", "conditions": [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}]}  # fmt: skip


# Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ODD)
def test_what_has_another_form_is_not_said(odd):
    assert api_values.table(odd) == (odd if isinstance(odd, dict) else {})
    assert api_values.tables(odd) == []
    assert api_values.text(odd) == (odd if odd == "x" else "")
    assert api_values.count(odd) == (odd if odd in (7, True) else 0)


def test_values_are_cut_and_cleaned():
    assert api_values.tables([{"a": 1}, None, {}, "x"]) == [{"a": 1}, {}]
    assert api_values.text(" a\n b\t\tc \x1b[31m") == "a b c \\x1b[31m"
    assert (
        api_values.text("x" * 601) == "x" * 600 + "..." and len(api_values.text("x" * 600)) == 600
    )
    assert api_values.text("abc", 2) == "ab..." and api_values.count(0) == 0


# One pod --------------------------------------------------------------------------------------


def test_a_pod_that_runs():
    status = RUNS | {"containerStatuses": [RUNS["containerStatuses"][0] | {"restartCount": 2}, 7]}
    found = pod(status | conditions(PodScheduled="True", Ready="True"))
    assert found == PodState(
        "kimi-decode-0", "u1", "decode", "Running", "n7", True, 2, "", "", None, False
    )
    assert found.runs and found.word == "Ready"
    assert pod_states.fault(found) is None and pod_states.waits(found) is None


@pytest.mark.parametrize(
    ("status", "ready", "reason", "message", "code"),
    [
        (RUNS | conditions(Ready="False"), False, "", "", None),
        (RUNS | conditions(PodScheduled="True"), False, "", "", None),
        ({"conditions": [{"type": "PodScheduled", "status": "True", "reason": "x"}]}, False, "", "",
         None),
        (ENDED, False, "Error", "", 3),
        (LOOPS, False, "CrashLoopBackOff", "back-off", 3),
        (PENDING, False, "Unschedulable", "0/4 nodes", None),
        # The last state of a container that has been started again is history.
        (container({"terminated": {"exitCode": 3, "reason": "Error"}}, running={}), False, "", "",
         None),
        (container({"terminated": {"exitCode": 3}}, waiting={"reason": "ImagePullBackOff"}), False,
         "ImagePullBackOff", "", None),
        # Out of memory says more than that it is not started again yet.
        (container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                   waiting={"reason": "CrashLoopBackOff", "message": "back-off"}),
         False, "OOMKilled", "back-off", 137),
        (container(terminated={"exitCode": 137, "reason": "OOMKilled", "message": "m"}), False,
         "OOMKilled", "m", 137),
        # What is said of the pod comes before what is said of its container.
        (ENDED | {"reason": "Evicted", "message": "low on memory"}, False, "Evicted",
         "low on memory", 3),
        (ENDED | {"message": "of no reason"}, False, "Error", "", 3),
        (LOOPS | PENDING, False, "CrashLoopBackOff", "back-off", 3),
        (container(waiting={"reason": "CrashLoopBackOff"}) | PENDING, False, "CrashLoopBackOff",
         "0/4 nodes", None),
        (container(terminated={"exitCode": True}), False, "", "", None),
        (container(terminated={"exitCode": "3"}), False, "", "", None),
        (container(terminated={"exitCode": 0, "reason": "Completed"}), False, "Completed", "", 0),
    ],
)  # fmt: skip
def test_what_a_pod_says(status, ready, reason, message, code):
    found = pod(status)
    assert (found.ready, found.reason, found.message, found.code) == (ready, reason, message, code)
    assert found.leaving is False and found.node == "n7"


def test_the_first_container_is_the_engine():
    first, second = RUNS["containerStatuses"][0], ENDED["containerStatuses"][0]
    assert pod({"containerStatuses": [first, second]}).code is None
    assert pod({"containerStatuses": [second, first]}).code == 3


def test_a_pod_that_is_being_deleted():
    meta = {"name": "kimi-decode-0", "deletionTimestamp": None}
    found = pod(ENDED, metadata=meta)
    assert found.leaving and not found.runs and found.word == "Terminating"
    assert pod_states.fault(found) is None and pod_states.waits(found) is None


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("key", ["metadata", "spec", "status"])
def test_a_pod_of_another_form_has_said_nothing(key, odd):
    found = pod(**{key: odd}) if key != "status" else pod(odd)
    assert found.reason == "" and found.code is None and not found.ready
    other = pod({"containerStatuses": [{"state": odd, "lastState": odd, "restartCount": odd}]})
    assert (other.reason, other.code) == ("", None) and other.restarts >= 0
    other = pod({"conditions": [{"type": odd, "status": odd}], "phase": odd, "reason": odd})
    assert not other.ready


def test_names_and_messages_are_cut():
    long = "x" * 1000
    meta = {"name": long, "uid": long, "labels": {"app.kubernetes.io/component": long}}
    status = {"phase": long, "reason": long, "message": long}
    (found,) = pod_states.pods({"items": [{"metadata": meta, "spec": {"nodeName": long}, "status": status}]})  # fmt: skip
    names = (found.name, found.uid, found.component, found.phase, found.node, found.reason)
    assert {len(one) for one in names} == {253 + 3} and len(found.message) == 600 + 3
    assert "\x1b" not in pod({"reason": "\x1b[31m", "phase": "\x1b"}).word


@pytest.mark.parametrize("odd", [*ODD, {"items": 7}, {"items": ["x", None]}])
def test_an_answer_without_pods(odd):
    assert pod_states.pods({"items": odd} if not isinstance(odd, dict) else odd) == ()


@pytest.mark.parametrize(
    ("status", "runs", "word"),
    [
        (RUNS, True, "Running"),
        (RUNS | conditions(Ready="True"), True, "Ready"),
        (ENDED, False, "Error"),
        (PENDING, False, "Unschedulable"),
        ({"phase": "Pending"}, False, "Pending"),
        ({"phase": "Failed", "reason": "Evicted"} | conditions(Ready="True"), False, "Evicted"),
    ],
)
def test_a_pod_in_a_word(status, runs, word):
    assert pod(status).runs is runs and pod(status).word == word


# What is wrong --------------------------------------------------------------------------------


def test_a_fault_is_told_in_full():
    found = pod_states.fault(pod(LOOPS), 3)
    assert found == Diagnosis(
        "crash-loop",
        "kimi-decode-0",
        3,
        "its container does not start: CrashLoopBackOff (back-off)",
        "kubectl get pod kimi-decode-0: Running, CrashLoopBackOff: back-off, on n7",
        remedies.of("kubernetes/crash-loop"),
    )
    bare = pod_states.fault(pod({"phase": "Failed"}, spec={}))
    assert bare == Diagnosis(
        "pod-failed",
        "kimi-decode-0",
        None,
        "the pod has failed: no reason",
        "kubectl get pod kimi-decode-0: Failed, no reason",
        remedies.of("kubernetes/pod-failed"),
    )


def waiting(reason: str) -> dict:
    return container(phase="Pending", waiting={"reason": reason})


@pytest.mark.parametrize(
    ("status", "kind", "cause"),
    [
        (container(terminated={"exitCode": 137, "reason": "OOMKilled"}), "oom-killed",
         "its container was killed: out of memory"),
        ({"phase": "Failed", "reason": "Evicted"}, "pod-failed", "the pod has failed: Evicted"),
        (ENDED | {"phase": "Failed"}, "pod-ended", "its container ended with exit code 3"),
        (ENDED, "pod-ended", "its container ended with exit code 3"),
        (container(phase="Succeeded", terminated={"exitCode": 3}), "pod-ended",
         "its container ended with exit code 3"),
        (container(terminated={"exitCode": 0}), "pod-ended", "its container ended with exit code 0"),
        *((waiting(reason), kind, f"its container does not start: {reason}") for reason, kind in {
            "ImagePullBackOff": "image-not-pulled", "ErrImageNeverPull": "image-not-pulled",
            "InvalidImageName": "image-not-pulled", "CreateContainerError": "container-config",
            "CreateContainerConfigError": "container-config", "RunContainerError":
            "container-config", "CrashLoopBackOff": "crash-loop"}.items()),
    ],
)  # fmt: skip
def test_each_fault_of_a_pod(status, kind, cause):
    found = pod_states.fault(pod(status))
    assert (found.kind, found.cause, found.rank) == (kind, cause, None)
    assert found.help == remedies.of(f"kubernetes/{kind}")
    for rank in (0, 9):
        assert pod_states.fault(pod(status), rank).rank == rank


@pytest.mark.parametrize(
    "status",
    [
        {},
        RUNS,
        PENDING,
        {"phase": "Succeeded"},
        container(phase="Succeeded", terminated={"exitCode": 0, "reason": "Completed"}),
        container(terminated={"exitCode": 0, "reason": "Completed"}),
        container(phase="Succeeded", terminated={"exitCode": 0}),
        waiting("ContainerCreating"),
        waiting("ErrImagePull"),
        waiting(""),
    ],
)
def test_a_pod_that_may_run_yet_has_no_fault(status):
    assert pod_states.fault(pod(status)) is None


def test_a_long_message_is_told_once_in_full():
    found = pod_states.fault(pod({"phase": "Failed", "reason": "Evicted", "message": "m" * 300}))
    assert found.cause == f"the pod has failed: Evicted ({'m' * 200}...)"
    assert found.evidence == f"kubectl get pod kimi-decode-0: Failed, Evicted: {'m' * 300}, on n7"


@pytest.mark.parametrize(
    ("status", "kind", "cause"),
    [
        (PENDING, "unschedulable", "no node runs it: Unschedulable (0/4 nodes)"),
        (waiting("ContainerCreating"), "not-started", "no node runs it: ContainerCreating"),
        ({"phase": "Pending"}, "not-started", "no node runs it: Pending"),
    ],
)
def test_a_pod_that_has_had_its_time(status, kind, cause):
    found = pod_states.waits(pod(status))
    assert (found.kind, found.cause, found.rank) == (kind, cause, None)
    assert found.help == remedies.of(f"kubernetes/{kind}")
    assert pod_states.waits(pod(status), 7).rank == 7


# Events ---------------------------------------------------------------------------------------


def event(message="exceeded quota: pods", owner="kimi-decode", uid="e1", **more) -> dict:
    about = {"kind": "StatefulSet", "name": owner}
    return {"metadata": {"uid": uid}, "involvedObject": about, "reason": "FailedCreate",
            "message": message, "count": 1, "lastTimestamp": "t1"} | more  # fmt: skip


def refused(*events, owners=("kimi-decode", "kimi-router"), known=frozenset()):
    return pod_states.refused({"items": list(events)}, owners, known)


def test_what_the_cluster_refuses_is_told():
    (found,) = refused(event())
    assert found == Diagnosis(
        "quota",
        "kimi-decode",
        None,
        "StatefulSet kimi-decode may not create its pods",
        "kubectl get events: FailedCreate: exceeded quota: pods",
        remedies.of("kubernetes/quota"),
    )
    (found,) = refused(event('admission webhook "x" denied\nthe request', "kimi-router-6c8f"))
    assert (found.kind, found.node) == ("refused", "kimi-router-6c8f")
    assert found.evidence.endswith('FailedCreate: admission webhook "x" denied the request')
    assert found.help == remedies.of("kubernetes/refused")


@pytest.mark.parametrize(
    "other",
    [
        event(owner="kimi-decoder"),
        event(owner="kimi"),
        event(owner="other-kimi-decode-0"),
        event(reason="Created"),
        event(message='pods "kimi-decode-0" already exists'),
        *(event(involvedObject=odd) for odd in ODD),
        *ODD,
    ],
)
def test_other_events_are_none_of_ours(other):
    assert refused(other) == ()
    (found,) = refused(other, event())
    assert found.node == "kimi-decode"


def test_the_last_event_of_each_owner_and_kind_counts():
    found = refused(
        event(), event("denied"), event("exceeded quota: memory", uid="e3"),
        event(owner="kimi-decode-0"), event(message=7, owner="kimi-router"),
    )  # fmt: skip
    assert [(one.node, one.kind) for one in found] == [
        ("kimi-decode", "quota"),
        ("kimi-decode", "refused"),
        ("kimi-decode-0", "quota"),
        ("kimi-router", "refused"),
    ]
    assert found[0].evidence.endswith("exceeded quota: memory")


@pytest.mark.parametrize(
    "again",
    [{"uid": "e2"}, {"count": 2}, {"lastTimestamp": "t2"}, {"series": {"count": 2}}],
)
def test_an_event_that_comes_again_is_a_new_one(again):
    known = pod_states.marks({"items": [event(), event(uid="e9"), None]})
    assert len(known) == 2 and isinstance(known, frozenset)
    assert refused(event(), known=known) == ()
    assert refused(event(message="denied"), known=known) == ()  # of the same event
    assert len(refused(event(**again), known=known)) == 1
    assert pod_states.marks({}) == pod_states.marks({"items": 7}) == frozenset()


def test_names_in_events_are_cut():
    about = {"kind": "x" * 300, "name": f"kimi-decode-{'y' * 300}"}
    (found,) = refused(event(involvedObject=about))
    assert found.node == f"kimi-decode-{'y' * 241}..."
    assert found.cause.startswith(f"{'x' * 253}... kimi-decode-y")
