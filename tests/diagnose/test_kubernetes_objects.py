"""What kubectl tells of events and pods: the same finding from a table, YAML, JSON and a description.

Messages are of the forms in which kubelet, the scheduler, the controllers of Kubernetes 1.29 to 1.34
and LeaderWorkerSet write them.
"""

from __future__ import annotations

import json

import pytest
import yaml

from kimi_nb.diagnose import doctor, kubernetes_objects

POD = "kimi-decode-0-1"
IMAGE = "quay.io/ascend/vllm-ascend:v0.18.0rc9-a3"
# Signature: type, reason, object, message.
EVENTS = {
    "pod-quota": (
        "Warning",
        "FailedCreate",
        "StatefulSet/kimi-decode-0",
        f'create Pod {POD} in StatefulSet kimi-decode-0 failed error: pods "{POD}" is forbidden: '
        "exceeded quota: npus, requested: requests.huawei.com/Ascend910=16, used: "
        "requests.huawei.com/Ascend910=48, limited: requests.huawei.com/Ascend910=48",
    ),
    "pod-unschedulable": (
        "Warning",
        "FailedScheduling",
        f"Pod/{POD}",
        "0/7 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node "
        "affinity/selector, 4 Insufficient huawei.com/Ascend910. preemption: 0/7 nodes are available: "
        "2 Preemption is not helpful for scheduling, 5 No preemption victims found for incoming pod.",
    ),
    "pod-unschedulable, taints": (
        "Warning",
        "FailedScheduling",
        f"Pod/{POD}",
        "0/4 nodes are available: 1 node(s) had untolerated taint "
        "{node-role.kubernetes.io/control-plane: }, 3 node(s) had untolerated taint {nvidia.com/gpu: "
        "present}. preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.",
    ),
    "pod-node-drained": (
        "Warning",
        "FailedScheduling",
        f"Pod/{POD}",
        "0/4 nodes are available: 1 node(s) were unschedulable, 3 Insufficient nvidia.com/gpu.",
    ),
    "pod-claim": (
        "Warning",
        "FailedScheduling",
        f"Pod/{POD}",
        '0/4 nodes are available: persistentvolumeclaim "kimi-weights" not found. preemption: 0/4 '
        "nodes are available: 4 Preemption is not helpful for scheduling.",
    ),
    "pod-image": (
        "Warning",
        "Failed",
        f"Pod/{POD}",
        f'Failed to pull image "{IMAGE}": rpc error: code = NotFound desc = failed to pull and unpack '
        f'image "{IMAGE}": failed to resolve reference "{IMAGE}": {IMAGE}: not found',
    ),
    "pod-image, waits": ("Normal", "BackOff", f"Pod/{POD}", f'Back-off pulling image "{IMAGE}"'),
    "pod-configuration": (
        "Warning",
        "Failed",
        f"Pod/{POD}",
        'Error: secret "kimi-api-key" not found',
    ),
    "pod-configuration, a key": (
        "Warning",
        "Failed",
        f"Pod/{POD}",
        "Error: couldn't find key KIMI_KEY in Secret kimi/kimi-api-key",
    ),
    "pod-configuration, a map": (
        "Warning",
        "FailedMount",
        f"Pod/{POD}",
        'MountVolume.SetUp failed for volume "scripts" : configmap "kimi-decode-scripts" not found',
    ),
    "pod-volume": (
        "Warning",
        "FailedMount",
        f"Pod/{POD}",
        'MountVolume.SetUp failed for volume "weights" : hostPath type check failed: /data/models is '
        "not a directory",
    ),
    "pod-volume, late": (
        "Warning",
        "FailedMount",
        f"Pod/{POD}",
        "Unable to attach or mount volumes: unmounted volumes=[weights], unattached volumes=[], failed "
        "to process volumes=[]: timed out waiting for the condition",
    ),
    "pod-evicted": (
        "Warning",
        "Evicted",
        f"Pod/{POD}",
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 84264Ki. Container "
        "engine was using 1500Gi, request is 640Gi, has larger consumption of memory. ",
    ),
    "pod-evicted, shm": (
        "Warning",
        "Evicted",
        f"Pod/{POD}",
        'Usage of EmptyDir volume "shm" exceeds the limit "64Gi". ',
    ),
    "pod-probe": (
        "Normal",
        "Killing",
        f"Pod/{POD}",
        "Container engine failed startup probe, will be restarted",
    ),
    "pod-crash-loop": (
        "Warning",
        "BackOff",
        f"Pod/{POD}",
        f"Back-off restarting failed container engine in pod {POD}_kimi(0c5fb3d0-7a0b-4c6e)",
    ),
    "pod-node-lost": ("Warning", "NodeNotReady", f"Pod/{POD}", "Node is not ready"),
    "pod-devices": (
        "Warning",
        "UnexpectedAdmissionError",
        f"Pod/{POD}",
        "Allocate failed due to requested number of devices unavailable for huawei.com/Ascend910. "
        "Requested: 16, Available: 15, which is unexpected",
    ),
    "pod-preempted": (
        "Normal",
        "Preempted",
        f"Pod/{POD}",
        "Preempted by pod 0c5fb3d0-7a0b on node a3-7",
    ),
    "pod-group-recreated": (
        "Normal",
        "RecreateGroupOnPodRestart",
        "LeaderWorkerSet/kimi-decode",
        f"Worker pod {POD} failed, deleted leader pod kimi-decode-0 to recreate group 0",
    ),
}


def listed(kind: str, reason: str, about: str, said: str) -> str:
    head = "LAST SEEN   TYPE      REASON             OBJECT                     MESSAGE\n"
    return f"{head}2m          {kind:9} {reason:18} {about.lower():26} {said}\n"


def events_of(kind: str, reason: str, about: str, said: str) -> str:
    """The newer ``kubectl events``: objects begin with a capital."""
    head = "LAST SEEN               TYPE      REASON    OBJECT       MESSAGE\n"
    return f"{head}2m (x3 over 12m)        {kind:9} {reason:9} {about:12} {said}\n"


def as_object(kind: str, reason: str, about: str, said: str) -> dict:
    what, _, name = about.partition("/")
    return {
        "apiVersion": "v1",
        "count": 3,
        "firstTimestamp": "2026-11-22T05:20:11Z",
        "involvedObject": {"apiVersion": "v1", "kind": what, "name": name, "namespace": "kimi"},
        "kind": "Event",
        "lastTimestamp": "2026-11-22T05:40:00Z",
        "message": said,
        "metadata": {"name": f"{name}.18a2", "namespace": "kimi"},
        "reason": reason,
        "source": {"component": "kubelet", "host": "a3-7"},
        "type": kind,
    }


def of_all(*event: str) -> dict:
    normal = as_object("Normal", "Pulled", "Pod/kimi-decode-0", "Container image already present")
    return {"apiVersion": "v1", "items": [normal, as_object(*event)], "kind": "List"}


def as_yaml(*event: str) -> str:
    return yaml.safe_dump(of_all(*event), width=100)


def as_json(*event: str) -> str:
    return json.dumps(of_all(*event), indent=4)


def newer(*event: str) -> str:
    """The events of events.k8s.io, as a document each."""
    one = as_object(*event)
    one |= {"apiVersion": "events.k8s.io/v1", "regarding": one.pop("involvedObject")}
    one |= {"note": one.pop("message"), "eventTime": "2026-11-22T05:40:00.000000Z"}
    return yaml.safe_dump_all([one])


DESCRIBED = """\
Name:             {pod}
Namespace:        kimi
Priority:         0
Service Account:  default
Node:             a3-7/10.0.0.7
Containers:
  engine:
    State:          Running
    Ready:          False
Conditions:
  Type              Status
  Ready             False
Events:
  Type     Reason     Age                   From               Message
  ----     ------     ----                  ----               -------
{events}
"""


def described(kind: str, reason: str, about: str, said: str) -> str:
    """Of two pods: the first one is well."""
    scheduled = "  Normal   Scheduled  12m  default-scheduler  Successfully assigned it"
    row = f"  {kind:7}  {reason:9}  2m (x3 over 12m)  kubelet  {said}"
    well = DESCRIBED.format(pod="kimi-decode-0", events=scheduled)
    return f"{well}\n\n{DESCRIBED.format(pod=POD, events=row)}"


FORMS = {
    "events.txt": listed,
    "newer.txt": events_of,
    "events.yaml": as_yaml,
    "events.json": as_json,
    "documents.log": newer,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_named_in_every_form(name, form, tmp_path):
    (tmp_path / form).write_text(FORMS[form](*EVENTS[name]))
    found = doctor.examine(tmp_path).first
    assert found is not None
    assert (found.signature, found.node) == (name.partition(",")[0], POD), found
    assert found.component == "kubernetes" and found.help and found.see


OF_PODS = [name for name, event in EVENTS.items() if event[2].startswith("Pod/")]


@pytest.mark.parametrize("name", OF_PODS)
def test_an_event_is_named_in_a_description(name, tmp_path):
    (tmp_path / "described.txt").write_text(described(*EVENTS[name]))
    found = doctor.examine(tmp_path).first
    assert (found.signature, found.node) == (name.partition(",")[0], POD), found


def pod(*containers: dict, **status: object) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": "kimi"},
        "spec": {"containers": [{"name": "engine", "image": IMAGE}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "engine", "ready": False, **one} for one in containers],
            **status,
        },
    }


def ended(reason: str, code: int) -> dict:
    told = {"reason": reason, "exitCode": code, "finishedAt": "2026-11-22T05:49:28Z"}
    loop = "back-off 5m0s restarting failed container=engine pod=x"
    waiting = {"reason": "CrashLoopBackOff", "message": loop}
    return {"lastState": {"terminated": told}, "state": {"waiting": waiting}}


def waiting(reason: str, said: str) -> dict:
    return {"state": {"waiting": {"reason": reason, "message": said}}}


def condition(kind: str, status: str, reason: str, said: str) -> dict:
    return {"type": kind, "status": status, "reason": reason, "message": said}


STATUSES = {
    "pod-out-of-memory": pod(ended("OOMKilled", 137)),
    "pod-crash-loop": pod(ended("Error", 1)),
    "pod-image": pod(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')),
    "pod-configuration": pod(
        waiting("CreateContainerConfigError", 'secret "kimi-api-key" not found')
    ),
    "pod-evicted": pod(
        phase="Failed", reason="Evicted", message="The node was low on resource: memory. "
    ),
    "pod-unschedulable": pod(
        phase="Pending",
        conditions=[
            condition(
                "PodScheduled",
                "False",
                "Unschedulable",
                "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
            )
        ],
    ),
    "pod-node-drained": pod(
        conditions=[
            condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
        ]
    ),
    "pod-preempted": pod(
        conditions=[
            condition(
                "DisruptionTarget",
                "True",
                "PreemptionByScheduler",
                "default-scheduler: preempting to accommodate a higher priority pod",
            )
        ]
    ),
    "pod-node-lost": pod(
        conditions=[
            condition(
                "DisruptionTarget",
                "True",
                "DeletionByTaintManager",
                "Taint manager: deleting due to NoExecute taint",
            )
        ]
    ),
}


@pytest.mark.parametrize("form", ["pods.yaml", "pods.json"])
@pytest.mark.parametrize("name", STATUSES)
def test_the_status_of_a_pod_is_named(name, form, tmp_path):
    write = yaml.safe_dump if form.endswith("yaml") else json.dumps
    (tmp_path / form).write_text(write({"apiVersion": "v1", "items": [STATUSES[name]]}))
    found = doctor.examine(tmp_path).first
    assert (found.signature, found.node) == (name, POD), found


def test_a_finding_names_the_line_of_the_file(tmp_path):
    text = as_yaml(*EVENTS["pod-image"])
    (tmp_path / "events.yaml").write_text(text)
    found = doctor.examine(tmp_path).first
    assert "Failed to pull" in text.splitlines()[found.line - 1]
    assert found.time == "11-22 05:40:00"


def test_what_goes_well_is_no_failure(tmp_path):
    running = pod({"ready": True, "state": {"running": {"startedAt": "2026-11-22T05:20:11Z"}}})
    begins = pod(waiting("ContainerCreating", ""), phase="Pending")
    normal = as_object("Normal", "Killing", f"Pod/{POD}", "Stopping container engine")
    done = pod({"state": {"terminated": {"reason": "Completed", "exitCode": 0}}})
    items = {"apiVersion": "v1", "kind": "List", "items": [running, begins, normal, done]}
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump(items))
    found = doctor.examine(tmp_path)
    assert found.ok and not found.unknown, found


@pytest.mark.parametrize(
    "text",
    [
        as_yaml(*EVENTS["pod-image"])[:-200],
        as_json(*EVENTS["pod-image"])[:-40],
        "apiVersion: v1\nitems: 7\nstatus: {phase: x}\n",
        "apiVersion: v1\nkind: Pod\nstatus: [1, {phase: 2}]\n",
        "apiVersion: v1\nitems: [[], 7, {involvedObject: 3, message: [x]}]\nphase: 1\n",
        '{"apiVersion": "v1", "items": [{"involvedObject": {"kind": []}, "message": null}]}',
        "apiVersion: v1\nphase: x\na: " + "[" * 3000,
    ],
    ids=["cut YAML", "cut JSON", "no items", "no status", "odd items", "nothing said", "deep"],
)
def test_what_is_no_list_of_events_ends_no_doctor(text, tmp_path):
    (tmp_path / "events.yaml").write_text(text)
    assert doctor.examine(tmp_path / "events.yaml") is not None
    kubernetes_objects.lines(text)


def test_a_manifest_is_not_taken_for_a_status():
    assert not kubernetes_objects.holds("apiVersion: apps/v1\nkind: Deployment\nspec: {}\n")
    assert not kubernetes_objects.holds("Name: x\nINFO 11-22 05:49:28 [a.py:7] fine\n")


def test_the_description_of_something_else_names_no_pod():
    """A LeaderWorkerSet has a name and a namespace as well."""
    text = "Name:         kimi-decode\nNamespace:    kimi\nKind:         LeaderWorkerSet\nEvents:  <none>\n"
    assert kubernetes_objects.lines(text) == text
