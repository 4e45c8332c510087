"""What in a namespace is ours: only that is changed, whatever the cluster says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from testbed.kubectl_answers import Answers, error

from kimi_nb.core import evidence
from kimi_nb.deploy.kubernetes import ownership
from kimi_nb.deploy.kubernetes.kubectl import KubectlError
from kimi_nb.deploy.kubernetes.ownership import Ownership
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.params import load
from kimi_nb.plan import build

PLAN = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
HELD = "get configmap kimi-run --ignore-not-found -o json"
CREATE = "create --validate=false -f -"
OBJECTS = "get --ignore-not-found -k /files -o json"
SETS = "get --raw /apis/leaderworkerset.x-k8s.io"
KINDS = (
    "leaderworkersets.leaderworkerset.x-k8s.io,deployments.apps,services,configmaps,"
    "poddisruptionbudgets.policy,networkpolicies.networking.k8s.io,jobs.batch"
)
SELECTOR = "app.kubernetes.io/name=kimi,app.kubernetes.io/managed-by=kimi-nb"
# Values of another form than the API server has.
ODD = [None, 7, "x", [], ["x"], {}, True]


def ours(answers, run="run-1", plan=PLAN) -> tuple[Ownership, Answers]:
    kubectl = Answers(answers)
    return Ownership(plan, kubectl, run, "me@here since noon"), kubectl


def claim(**data) -> dict:
    return {"kind": "ConfigMap", "metadata": {"name": "kimi-run"}, "data": data}


# Whose the name is ----------------------------------------------------------------------------


def test_the_name_and_the_labels_are_those_of_the_site_file():
    made, _ = ours({})
    assert (made.claim, made.selector) == ("kimi-run", SELECTOR)
    assert made.holds({"run": "run-1"})
    for held in ({}, {"run": "run-2"}, {"run": "?"}, {"who": "run-1"}):
        assert not made.holds(held)


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        ("", {}),
        (claim(run="run-2", who="ann"), {"run": "run-2", "who": "ann"}),
        (claim(run=" a\n  b\t", who="\x1b[31m", plan=["x"], since=7), {"run": "a b", "who": "\\x1b[31m"}),
        (claim(run="x" * 200), {"run": "x" * 100 + "..."}),
        (claim(), {"run": "?"}),
        (claim(run=7), {"run": "?"}),
        ({"kind": "ConfigMap"}, {"run": "?"}),
        *(({"data": odd}, {"run": "?"}) for odd in ODD),
    ],
)  # fmt: skip
def test_what_a_claim_says(answer, held):
    made, _ = ours({HELD: answer})
    assert made.held() == held


def test_the_name_is_taken_by_making_the_claim(monkeypatch):
    monkeypatch.setattr(evidence, "now", lambda: "2026-01-02T03:04:05Z")
    made, kubectl = ours({HELD: "", CREATE: "configmap/kimi-run created"})
    assert made.take() == {} and kubectl.asked == [HELD, CREATE]
    assert json.loads(kubectl.given[1]) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "kimi-run",
            "labels": {"app.kubernetes.io/name": "kimi", "app.kubernetes.io/managed-by": "kimi-nb"},
        },
        "data": {
            "run": "run-1",
            "who": "me@here since noon",
            "since": "2026-01-02T03:04:05Z",
            "plan": PLAN.name,
        },
    }


@pytest.mark.parametrize("run", ["run-1", "run-2"])
def test_a_name_that_is_held_is_not_taken_again(run):
    made, kubectl = ours({HELD: claim(run=run)})
    assert made.take() == {"run": run} and kubectl.asked == [HELD]


def test_of_two_that_try_at_once_one_gets_the_name():
    made, kubectl = ours({HELD: ["", claim(run="run-2")], CREATE: error("AlreadyExists")})
    assert made.take() == {"run": "run-2"} and kubectl.asked == [HELD, CREATE, HELD]


@pytest.mark.parametrize("reason", ["Forbidden", ""])
def test_a_name_that_cannot_be_taken_is_a_failure(reason):
    made, _ = ours({HELD: "", CREATE: error(reason)})
    with pytest.raises(KubectlError) as told:
        made.take()
    assert told.value.reason == reason


@pytest.mark.parametrize(("answer", "given"), [("configmap/kimi-run\n", True), ("\n", False), ("", False)])  # fmt: skip
def test_the_name_is_given_back(answer, given):
    made, _ = ours({"delete configmap kimi-run --ignore-not-found -o name": answer})
    assert made.release() is given


def test_who_has_a_name_is_told_to_a_person():
    assert ownership.told({"run": "7", "who": "ann", "since": "", "plan": "p"}) == (
        "run 7 of ann since ? (p)"
    )
    held = {"run": "7", "who": "", "since": "noon", "plan": ""}
    assert ownership.told(held) == "run 7 of ? since noon (?)"
    assert ownership.told({}) == "run ? of ? since ? (?)"


# Objects of others ----------------------------------------------------------------------------


def thing(name="kimi", kind="Service", **labels) -> dict:
    return {"kind": kind, "metadata": {"name": name, "labels": labels}}


OURS = {"app.kubernetes.io/managed-by": "kimi-nb"}
HELM = {"app.kubernetes.io/managed-by": "Helm"}


def strangers(answer) -> Diagnosis | None:
    made, kubectl = ours({OBJECTS: answer})
    found = made.strangers(Path("/files"))
    assert kubectl.asked == [OBJECTS]
    return found


@pytest.mark.parametrize(
    "answer",
    ["", thing(**OURS), {"items": []}, {"items": [thing(**OURS), thing("a", "Deployment", **OURS)]},
     *({"items": odd} for odd in ODD), {"items": [None, 7, "x", ["x"], True]}],
)  # fmt: skip
def test_objects_with_our_label_are_no_strangers(answer):
    assert strangers(answer) is None


@pytest.mark.parametrize("labels", [HELM, {}, {"app.kubernetes.io/name": "kimi"}])
def test_an_object_that_somebody_else_has_made_is_named(labels):
    for answer in (thing(**labels), {"items": [thing("a", **OURS), thing(**labels)]}):
        assert strangers(answer) == Diagnosis(
            "not-ours",
            "a3-cluster",
            None,
            "namespace kimi has objects of these names that kimi-nb has not made",
            "without the label app.kubernetes.io/managed-by=kimi-nb: Service/kimi",
            remedies.of("kubernetes/not-ours"),
        )


@pytest.mark.parametrize("odd", ODD)
def test_an_object_whose_labels_cannot_be_read_is_not_ours(odd):
    found = strangers({"items": [{"kind": "Service", "metadata": {"name": "a", "labels": odd}}]})
    assert found.evidence.endswith("kimi-nb: Service/a")
    found = strangers({"items": [{"kind": "Service", "metadata": odd}]})
    assert found.evidence.endswith("kimi-nb: Service/")


def test_the_names_of_objects_are_told_in_short():
    many = [thing(f"a{at}") for at in range(9)]
    assert strangers({"items": many}).evidence.endswith(
        ": " + ", ".join(f"Service/a{at}" for at in range(8))
    )
    odd = strangers({"items": [thing("\x1b[31m"), {"metadata": {}}, thing("x" * 100)]}).evidence
    assert odd.endswith(f": Service/\\x1b[31m, /, Service/{'x' * 72}...")


# Deleting -------------------------------------------------------------------------------------


def names(text: str, *more: str) -> dict[str, str]:
    return {f"get {KINDS} -l {SELECTOR} -o name": text}


def test_only_what_bears_our_labels_is_deleted():
    there = "service/kimi\njob.batch/kimi-weights\nconfigmap/kimi-run\nconfigmap/kimi-run-2\n"
    delete = (
        "delete --wait=false --ignore-not-found "
        "service/kimi job.batch/kimi-weights configmap/kimi-run-2"
    )
    made, kubectl = ours({SETS: {}, delete: "deleted"} | names(there))
    assert made.delete() == ["service/kimi", "job.batch/kimi-weights", "configmap/kimi-run-2"]
    assert kubectl.asked[-1] == delete and len(kubectl.asked) == 3


@pytest.mark.parametrize("there", ["", "\n", "configmap/kimi-run\n"])
def test_nothing_is_deleted_where_nothing_is_ours(there):
    """Not even by a command without a name."""
    made, kubectl = ours({SETS: {}} | names(there))
    assert made.delete() == [] and len(kubectl.asked) == 2


def test_a_cluster_without_the_definition_of_sets_is_cleaned_too():
    kinds = KINDS.replace("leaderworkersets.leaderworkerset.x-k8s.io,", "")
    made, kubectl = ours({SETS: error("NotFound"), f"get {kinds} -l {SELECTOR} -o name": ""})
    assert made.delete() == [] and len(kubectl.asked) == 2


def test_monitors_are_deleted_where_the_plan_has_them(tmp_path):
    site = load.site("a3-kubernetes").model_dump(mode="json", exclude_unset=True)
    site["kubernetes"] |= {"pod_monitor": True, "name": "other"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    plan = build.plan("k2.5", "a3", "pd", site=str(tmp_path / "site.yaml"))
    kinds = KINDS.replace(",jobs", ",podmonitors.monitoring.coreos.com,jobs")
    selector = SELECTOR.replace("=kimi,", "=other,")
    made, _ = ours({SETS: {}, f"get {kinds} -l {selector} -o name": ""}, plan=plan)
    assert made.delete() == [] and made.claim == "other-run"
