"""What is told of a cluster before anything is changed, from what kubectl prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from testbed.kubectl_answers import Answers, error

from kimi_nb.deploy.kubernetes import cluster_looks
from kimi_nb.deploy.steps import Change
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.params import load
from kimi_nb.plan import build

PLAN = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
CONTEXT = PLAN.request.site.kubernetes.context
DEVICE = "huawei.com/Ascend910"
CONTEXTS = "config get-contexts -o name"
SETS = "get --raw /apis/leaderworkerset.x-k8s.io"
MONITORS = "get --raw /apis/monitoring.coreos.com"
NAMESPACE = "get --raw /api/v1/namespaces/kimi"
RIGHTS = (
    "create --validate=false -f - -o jsonpath={.spec.resourceAttributes.verb} "
    "{.spec.resourceAttributes.resource} {.spec.resourceAttributes.subresource} "
    '{.status.allowed}{"\\n"}'
)
NODES = "get nodes -l accelerator-type=module-a3-16 -o json"
STORAGE = "get --raw /apis/storage.k8s.io/v1/storageclasses/cephfs"
ODD = [None, 7, "x", [], ["x"], {}, True]


def secret(name: str) -> str:
    return (
        f"get secret {name} -o go-template="
        + '{{range $key, $value := .data}}{{$key}}{{"\\n"}}{{end}}'
    )


def node(amount: object = "16", device=DEVICE, **spec) -> dict:
    return {"spec": spec, "status": {"allocatable": {device: amount, "cpu": "64"}}}


FINE = {
    CONTEXTS: f"elsewhere\n{CONTEXT}\n",
    "version -o json": {},
    SETS: {"versions": [{"version": "v1alpha1"}, {"version": "v1"}]},
    NAMESPACE: {"kind": "Namespace"},
    RIGHTS: "get pods log true\nlist pods  true\n",
    NODES: {"items": [node() for _ in range(4)]},
    STORAGE: {"kind": "StorageClass"},
}


def look(plan=PLAN, **changes) -> tuple[cluster_looks.Found, Answers]:
    kubectl = Answers({**FINE, **{globals().get(key, key): one for key, one in changes.items()}})
    kubectl.context = CONTEXT
    return cluster_looks.look(plan, kubectl), kubectl


def the_fault(plan=PLAN, **changes) -> Diagnosis:
    """The only thing that is wrong."""
    found, _ = look(plan, **changes)
    assert found.warnings == []
    (one,) = found.failed
    assert (one.node, one.rank) == (CONTEXT, None)
    return one


def the_warning(plan=PLAN, **changes) -> str:
    found, _ = look(plan, **changes)
    assert found.failed == []
    (one,) = found.warnings
    assert one.node == CONTEXT
    return one.what


@pytest.fixture
def sited(tmp_path):
    """Returns a plan for the site with other words about the cluster."""

    def made(**more):
        site = load.site("a3-kubernetes").model_dump(mode="json", exclude_unset=True)
        top = {key: more.pop(key) for key in ("api_key_env",) if key in more}
        site["kubernetes"] |= more
        (tmp_path / "site.yaml").write_text(yaml.safe_dump(site | top))
        return build.plan("k2.5", "a3", "pd", site=str(Path(tmp_path / "site.yaml")))

    return made


# The whole ------------------------------------------------------------------------------------


def test_a_cluster_that_is_as_it_should_be():
    found, kubectl = look()
    assert (found.failed, found.warnings) == ([], [])
    assert set(kubectl.asked) == set(FINE) and len(kubectl.asked) == len(FINE)


def test_all_that_is_wrong_is_told_at_once():
    found, _ = look(SETS=error("NotFound"), NAMESPACE=error("NotFound"), NODES=error("Forbidden"))
    assert [one.kind for one in found.failed] == ["no-lws", "no-namespace"]
    assert [one.what.partition(":")[0] for one in found.warnings] == ["nodes"]


def test_a_failure_of_kubectl_ends_the_look():
    found, kubectl = look(SETS={}, NAMESPACE=error("", "no answer in 60 s"))
    assert [one.kind for one in found.failed] == ["no-lws", "silent"]
    assert found.failed[1].evidence == "no answer in 60 s" and kubectl.asked[-1] == NAMESPACE


@pytest.mark.parametrize(
    ("reason", "kind", "cause"),
    [
        ("NoProgram", "no-kubectl", "kubectl is not on this machine"),
        ("Forbidden", "forbidden", "the cluster refuses it to this user"),
        ("Conflict", "conflict", "somebody else has changed an object of this plan"),
        ("NotFound", "silent", "the cluster does not answer as it should"),
        ("", "silent", "the cluster does not answer as it should"),
    ],
)
def test_what_a_failed_command_means(reason, kind, cause):
    wrong = error(reason, "words of kubectl")
    told = cluster_looks.failure(Answers({}), wrong)
    help_ = remedies.of(f"kubernetes/{kind}")
    assert told == Diagnosis(kind, "a3-cluster", None, cause, "words of kubectl", help_)


def test_a_remedy_has_its_words():
    told = cluster_looks.diagnosis("no-namespace", "c", "cause", "seen", name="kimmi")
    assert told.help.endswith("kubectl create namespace kimmi.")


# Reaching it ----------------------------------------------------------------------------------


def test_a_context_that_kubectl_does_not_have():
    told = the_fault(CONTEXTS="a\nb\n\x1b[31m\n" + "x" * 70 + "\ne\nf\ng\n")
    assert told.kind == "no-context" and told.cause == f"kubectl has no context {CONTEXT}"
    assert told.evidence == (f"kubectl config get-contexts: a, b, \\x1b[31m, {'x' * 60}..., e, f")
    found, kubectl = look(CONTEXTS="")
    assert found.failed[0].evidence.endswith(": none") and kubectl.asked == [CONTEXTS]


def test_nothing_else_is_asked_of_a_silent_cluster():
    found, kubectl = look(**{"version -o json": error("", "connection refused")})
    assert [one.kind for one in found.failed] == ["silent"] and len(kubectl.asked) == 2


def test_more_pods_than_are_asked_one_by_one(monkeypatch):
    monkeypatch.setattr(cluster_looks, "_MOST", len(PLAN.nodes))
    assert look()[0].failed == []
    monkeypatch.setattr(cluster_looks, "_MOST", len(PLAN.nodes) - 1)
    told = the_fault()
    assert told.kind == "too-many-pods" and told.evidence == f"plan {PLAN.name}"
    assert told.cause == "4 pods are more than the 3 that kimi-nb asks one by one"
    assert SETS not in look()[1].asked


# Definitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        (error("NotFound"), "nothing of it"),
        ({}, "nothing of it"),
        ({"versions": [{"version": "v1alpha1"}, {"version": "v1beta1"}]}, "only v1alpha1, v1beta1"),
        ({"versions": [{"version": f"v{at}x"} for at in range(9)]}, "only v0x, v1x, v2x, v3x, v4x, v5x"),
        ({"versions": [{"version": "\x1b[31m"}]}, "only \\x1b[31m"),
        ({"versions": [{"version": "v" * 61}]}, f"only {'v' * 60}..."),
        *(({"versions": odd}, "nothing of it") for odd in ODD),
    ],
)  # fmt: skip
def test_the_definition_of_the_sets_is_wanted(answer, there):
    told = the_fault(SETS=answer)
    assert told.kind == "no-lws"
    assert told.cause == "the cluster has no LeaderWorkerSet of version v1"
    assert told.evidence == f"kubectl get --raw /apis/leaderworkerset.x-k8s.io: {there}"


def test_the_definition_of_monitors_is_wanted_where_the_site_asks_for_them(sited):
    plan = sited(pod_monitor=True)
    told = the_fault(plan, MONITORS=error("NotFound"))
    assert told.kind == "no-monitors" and "no PodMonitor of version v1" in told.cause
    assert look(plan, MONITORS={"versions": [{"version": "v1"}]})[0].failed == []
    assert ("monitoring.coreos.com", "podmonitors") in cluster_looks.kinds(plan)
    assert ("monitoring.coreos.com", "podmonitors") not in cluster_looks.kinds(PLAN)


# Names and rights -----------------------------------------------------------------------------


def test_a_namespace_that_is_not_there():
    told = the_fault(NAMESPACE=error("NotFound"))
    assert told.kind == "no-namespace" and told.cause == "there is no namespace kimi"
    assert told.evidence == "kubectl get --raw /api/v1/namespaces/kimi: NotFound"
    assert told.help.endswith("kubectl create namespace kimi.")
    assert the_warning(NAMESPACE=error("Forbidden")) == (
        "namespace kimi: not looked at, because this user may not read it"
    )


def test_every_right_is_asked_for():
    _, kubectl = look()
    reviews = [*yaml.safe_load_all(kubectl.given[kubectl.asked.index(RIGHTS)])]
    assert {(one["apiVersion"], one["kind"]) for one in reviews} == {
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview")
    }
    asked = [one["spec"]["resourceAttributes"] for one in reviews]
    assert {one["namespace"] for one in asked} == {"kimi"}
    rows = [(one["verb"], one["group"], one["resource"], one["subresource"]) for one in asked]
    kinds = cluster_looks.kinds(PLAN)
    assert rows == [
        (verb, group, resource, "")
        for group, resource in kinds
        for verb in ("get", "list", "create", "patch", "delete")
    ] + [
        ("list", "", "pods", ""),
        ("get", "", "pods", "log"),
        ("create", "", "pods", "portforward"),
        ("list", "", "events", ""),
    ]
    assert ("", "persistentvolumeclaims") in kinds and len(kinds) == 8


def test_rights_that_are_missing():
    told = the_fault(
        RIGHTS="get services  true\ncreate services  false\ndelete services  false\n"
        "get pods log false\n\nodd\na b c d e false\nlist pods  true\n"
    )
    assert told == Diagnosis(
        "no-rights",
        CONTEXT,
        None,
        "this user may not do all that is needed in namespace kimi: "
        "create, delete services; get pods/log",
        "SelfSubjectAccessReview: not allowed",
        remedies.of(
            "kubernetes/no-rights",
            command=f"kubectl --context {CONTEXT} --namespace kimi auth can-i --list",
        ),
    )


def test_of_many_rights_the_first_are_told():
    rows = "".join(f"get r{at}  false\n" for at in range(6))
    shown = "; ".join(f"get r{at}" for at in range(6))
    assert the_fault(RIGHTS=rows).cause.endswith(f"kimi: {shown}")
    more = rows + "get \x1b[31m  false\nget r8  false\n"
    assert the_fault(RIGHTS=more).cause.endswith(f"kimi: {shown}; and 2 more")
    long = the_fault(RIGHTS=f"get {'r' * 97}  false\n").cause
    assert long.endswith(f"kimi: get {'r' * 96}...")
    assert the_fault(RIGHTS="get \x1b[31m  false\n").cause.endswith("kimi: get \\x1b[31m")


# Nodes ----------------------------------------------------------------------------------------

TAINT = {"key": "maintenance", "effect": "NoSchedule"}


def fits(one, plan=PLAN) -> bool:
    """Whether a node can take a pod, by what is told of three good ones and this."""
    found, _ = look(plan, NODES={"items": [node(), node(), node(), one]})
    assert found.failed == [] and len(found.warnings) <= 1
    return not found.warnings


@pytest.mark.parametrize(
    ("one", "can"),
    [
        (node(), True),
        (node(16), True),
        (node("17"), True),
        (node("15"), False),
        (node("0"), False),
        (node("999999999"), True),
        (node("9" * 10), False),
        (node("9" * 5000), False),
        (node("16Gi"), False),
        (node("-16"), False),
        (node(unschedulable=True), False),
        (node(unschedulable=False), True),
        (node(taints=[TAINT]), False),
        (node(taints=[{**TAINT, "effect": "NoExecute"}]), False),
        (node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), True),
        (node(taints=[{"key": "huawei.com/npu", "effect": "NoSchedule", "value": "x"}]), True),
        (node(taints=[{"key": "huawei.com/npu", "effect": "NoExecute"}]), False),
        (node(taints=[{"key": "huawei.com/npu", "effect": "NoSchedule"}, TAINT]), False),
        *((node(taints=odd), True) for odd in ODD),
        (node(taints=[None, "x", {}]), True),
        *(({"spec": odd, "status": node()["status"]}, True) for odd in ODD),
        *(({"status": odd}, False) for odd in ODD),
        *(({"status": {"allocatable": odd}}, False) for odd in ODD),
        *((node(odd), False) for odd in ODD if odd != 7),
    ],
)
def test_which_nodes_can_take_a_pod(one, can):
    assert fits(one) is can


@pytest.mark.parametrize(
    ("toleration", "taint", "can"),
    [
        ({"operator": "Exists"}, {"value": "x"}, True),
        ({"operator": "Exists"}, {"effect": "NoExecute"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, {"effect": "NoExecute"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, {}, False),
        ({"operator": "Equal", "value": "x"}, {"value": "x"}, True),
        ({"operator": "Equal", "value": "x"}, {"value": "y"}, False),
        ({"operator": "Equal", "value": "x"}, {}, False),
        ({"operator": "Equal"}, {}, True),
        ({"operator": "Equal"}, {"value": None}, True),
        ({"operator": "Equal"}, {"value": "x"}, False),
        ({"operator": "Exists"}, {"key": "other"}, False),
    ],
)
def test_taints_that_the_site_tolerates(toleration, taint, can, sited):
    plan = sited(tolerations=[{"key": "maintenance"} | toleration])
    assert fits(node(taints=[TAINT | taint]), plan) is can


def test_other_resources_count_too(sited):
    plan = sited(resources={"rdma/hca": 2})
    good = node()
    good["status"]["allocatable"]["rdma/hca"] = "2"
    for amount, can in (("2", True), ("1", False)):
        one = node()
        one["status"]["allocatable"]["rdma/hca"] = amount
        found, _ = look(plan, NODES={"items": [good, good, good, one]})
        assert found.failed == [] and bool(found.warnings) is not can


def test_nodes_that_come_later_are_waited_for():
    assert the_warning(NODES={"items": [node(), node("8"), node(taints=[TAINT]), None]}) == (
        "1 of 3 nodes with accelerator-type=module-a3-16 can take a pod of "
        f"{PLAN.devices_per_node} x {DEVICE}, and 4 are wanted: the others wait until there are more"
    )
    assert the_warning(NODES=error("Forbidden")) == (
        "nodes: not looked at, because this user may not read it"
    )


def test_a_device_that_no_node_has():
    nodes = [node("8", "nvidia.com/gpu"), node("8", "\x1b[31m/x"), {"status": 7}]
    told = the_fault(NODES={"items": nodes})
    assert told.kind == "no-device"
    assert told.cause == f"no node with accelerator-type=module-a3-16 offers {DEVICE}"
    assert told.evidence == (
        "kubectl get nodes: 3 nodes with accelerator-type=module-a3-16 offer "
        "\\x1b[31m/x, nvidia.com/gpu"
    )
    many = the_fault(NODES={"items": [node("8", f"a/{at}{'x' * 70}") for at in range(9)]})
    assert many.evidence.count("...") == 6 and f"a/5{'x' * 57}..." in many.evidence
    for odd in ODD:
        told = the_fault(NODES={"items": odd})
        assert told.evidence.endswith("0 nodes with accelerator-type=module-a3-16 offer no such resource")  # fmt: skip


@pytest.mark.parametrize("selector", [{}, {"a": "1", "b": "2"}])
def test_nodes_are_those_of_the_site_s_selector(selector, sited):
    words = "get nodes -l a=1,b=2 -o json" if selector else "get nodes -o json"
    plan = sited(node_selector=selector)
    told = the_fault(plan, **{words: {"items": [node("8", "nvidia.com/gpu")]}})
    chosen = " with a=1,b=2" if selector else ""
    assert told.cause == f"no node{chosen} offers {DEVICE}"
    assert told.evidence == f"kubectl get nodes: 1 nodes{chosen} offer nvidia.com/gpu"
    fewer = the_warning(plan, **{words: {"items": [node()]}})
    assert fewer.startswith(f"1 of 1 nodes{chosen} can take a pod")


# Secrets and storage --------------------------------------------------------------------------


def test_the_secrets_of_the_site_file(sited):
    plan = sited(image_pull_secret="login", api_key_secret="key", api_key_env="KIMI_KEY")
    fine = {secret("login"): ".dockerconfigjson\n", secret("key"): "OTHER\nKIMI_KEY\n"}
    assert look(plan, **fine)[0] == cluster_looks.Found()
    told = the_fault(plan, **fine | {secret("login"): error("NotFound")})
    assert told.kind == "no-secret"
    assert told.cause == "there is no secret login in namespace kimi"
    assert told.evidence == "kubectl get secret login: NotFound"
    assert look(plan, **fine | {secret("login"): ""})[0] == cluster_looks.Found()
    told = the_fault(plan, **fine | {secret("key"): error("NotFound")})
    assert told.cause == "there is no secret key with the key KIMI_KEY in namespace kimi"
    assert told.evidence == "kubectl get secret key: NotFound"
    found, _ = look(plan, **{name: error("NotFound") for name in fine})
    assert len(found.failed) == 2
    found, _ = look(plan, **fine | {secret("login"): error("Forbidden"), secret("key"): ""})
    assert found.warnings == [
        Change(CONTEXT, "secret login: not looked at, because this user may not read it")
    ]
    assert [one.evidence for one in found.failed] == ["kubectl get secret key: its keys are none"]


def test_a_secret_without_the_key(sited):
    plan = sited(api_key_secret="key", api_key_env="KIMI_KEY")
    keys = ["A", "KIMI_KEYS", "\x1b[31m", "x" * 70, "E", "F", "G"]
    told = the_fault(plan, **{secret("key"): "\n".join(keys)})
    assert told.evidence == (
        f"kubectl get secret key: its keys are A, KIMI_KEYS, \\x1b[31m, {'x' * 60}..., E, F"
    )


def test_the_storage_class_of_the_site_file(sited):
    told = the_fault(STORAGE=error("NotFound"))
    assert told.kind == "no-storage-class" and told.cause == "there is no storage class cephfs"
    assert told.evidence == "kubectl get storageclass cephfs: NotFound"
    assert the_warning(STORAGE=error("Forbidden")) == (
        "storage class cephfs: not looked at, because this user may not read it"
    )
    _, kubectl = look(sited(weights={"claim": "models"}))
    assert STORAGE not in kubectl.asked
