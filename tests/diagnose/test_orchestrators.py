"""What SLURM and Kubernetes say of jobs and pods: in logs, `kubectl describe` and `kubectl get events`.

The texts are after what kubelet, the scheduler, slurmstepd and srun print.
"""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import doctor, rank_places
from kimi_nb.plan import build

DESCRIBED = """\
Name:             kimi-decode-0
Namespace:        serving
Node:             gpu-07/10.0.0.7
Start Time:       Sun, 22 Nov 2026 05:20:11 +0000
Status:           Running
Containers:
  vllm:
    Image:          docker.io/vllm/vllm-openai:v0.20.0
    State:          {state}
    Last State:     {last}
    Ready:          False
    Restart Count:  {restarts}
    Limits:
      memory:          512Gi
      nvidia.com/gpu:  8
    Liveness:     http-get http://:8000/health delay=60s timeout=1s period=10s #failure=3
Conditions:
  Type              Status
  Ready             False
Events:
  Type     Reason     Age                   From               Message
  ----     ------     ----                  ----               -------
{events}
"""
TERMINATED = """Terminated
      Reason:       {reason}
      Exit Code:    {code}
      Started:      Sun, 22 Nov 2026 05:40:00 +0000
      Finished:     Sun, 22 Nov 2026 05:49:28 +0000"""
WAITING = "Waiting\n      Reason:       CrashLoopBackOff"
SCHEDULED = (
    "  Normal   Scheduled  12m                default-scheduler  Successfully assigned "
    "serving/kimi-decode-0 to gpu-07"
)
BACK_OFF = (
    "  Warning  BackOff    2m (x10 over 10m)  kubelet            Back-off restarting failed "
    "container vllm in pod kimi-decode-0_serving(4f1c)"
)
PROBE = (
    "  Warning  Unhealthy  3m (x9 over 12m)   kubelet            Liveness probe failed: Get "
    '"http://10.0.0.7:8000/health": dial tcp 10.0.0.7:8000: connect: connection refused',
    "  Normal   Killing    3m (x3 over 11m)   kubelet            Container vllm failed liveness "
    "probe, will be restarted",
)
UNSCHEDULED = (
    "  Warning  FailedScheduling  14m              default-scheduler  0/3 nodes are available: 3 "
    "Insufficient nvidia.com/gpu."
)
HEAD = "LAST SEEN   TYPE      REASON             OBJECT              MESSAGE"


def described(*events: str, state: str = "Running", last: str = "", restarts: int = 0) -> str:
    return DESCRIBED.format(
        state=state, last=last, restarts=restarts, events="\n".join((SCHEDULED, *events))
    )


def event(kind: str, reason: str, pod: str, message: str) -> str:
    return f"{HEAD}\n2m          {kind:9} {reason:18} pod/{pod:15} {message}"


FAILURES = {
    # Kubernetes
    "OOMKilled, described": (
        described(
            BACK_OFF,
            state=WAITING,
            last=TERMINATED.format(reason="OOMKilled", code=137),
            restarts=6,
        ),
        "pod-out-of-memory",
        "host-memory",
        "",
    ),
    "CrashLoopBackOff, described": (
        described(
            BACK_OFF, state=WAITING, last=TERMINATED.format(reason="Error", code=1), restarts=6
        ),
        "pod-crash-loop",
        "kubernetes",
        "",
    ),
    "CrashLoopBackOff, listed": (
        "NAME            READY   STATUS             RESTARTS      AGE\n"
        "kimi-decode-0   0/1     CrashLoopBackOff   6 (41s ago)   12m",
        "pod-crash-loop",
        "kubernetes",
        "kimi-decode-0",
    ),
    "ImagePullBackOff, events": (
        event(
            "Warning",
            "Failed",
            "kimi-prefill-0",
            'Failed to pull image "vllm/vllm-openai:v9": rpc error: code = NotFound desc = failed to '
            "resolve reference: docker.io/vllm/vllm-openai:v9: not found",
        )
        + "\n1m          Warning   Failed             pod/kimi-prefill-0  Error: ImagePullBackOff",
        "pod-image",
        "kubernetes",
        "kimi-prefill-0",
    ),
    "ErrImagePull, listed": (
        "NAME            READY   STATUS         RESTARTS   AGE\n"
        "kimi-prefill-0  0/1     ErrImagePull   0          12m",
        "pod-image",
        "kubernetes",
        "kimi-prefill-0",
    ),
    "FailedScheduling, events": (
        event(
            "Warning",
            "FailedScheduling",
            "kimi-decode-0",
            "0/4 nodes are available: 2 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint "
            "{node.kubernetes.io/unreachable: }. preemption: 0/4 nodes are available.",
        ),
        "pod-unschedulable",
        "kubernetes",
        "kimi-decode-0",
    ),
    "Evicted, events": (
        event(
            "Warning",
            "Evicted",
            "kimi-decode-1",
            "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: "
            "3Gi. Container vllm was using 200Gi, request is 0.",
        ),
        "pod-evicted",
        "kubernetes",
        "kimi-decode-1",
    ),
    "a probe that kills, described": (described(*PROBE), "pod-probe", "kubernetes", ""),
    "FailedMount, events": (
        event(
            "Warning",
            "FailedMount",
            "kimi-decode-0",
            'MountVolume.SetUp failed for volume "models" : mount failed: exit status 32',
        ),
        "pod-volume",
        "kubernetes",
        "kimi-decode-0",
    ),
    "NodeNotReady, events": (
        event("Warning", "NodeNotReady", "kimi-decode-0", "Node is not ready"),
        "pod-node-lost",
        "kubernetes",
        "kimi-decode-0",
    ),
    "Error, listed": (
        "NAME            READY   STATUS       RESTARTS   AGE\n"
        "kimi-prefill-0  1/1     Running      0          12m\n"
        "kimi-decode-0   0/1     Init:Error   0          12m",
        "unknown",
        "kubernetes",
        "",
    ),
    # systemd and docker compose
    "memory of a unit": (
        "Nov 22 05:49:28 a3-0 systemd[1]: vllm.service: Failed with result 'oom-kill'.",
        "unknown",
        "host-memory",
        "",
    ),
    "memory of a process of a unit": (
        "Nov 22 05:49:28 a3-0 systemd[1]: vllm.service: A process of this unit has been killed by the "
        "OOM killer.",
        "unknown",
        "host-memory",
        "",
    ),
    "a program that a unit does not find": (
        "Nov 22 05:49:28 a3-0 systemd[1]: vllm.service: Main process exited, code=exited, status=203/EXEC",
        "unknown",
        "container",
        "",
    ),
    "a service on which others depend": (
        "dependency failed to start: container kimi-prefill-1 is unhealthy",
        "unknown",
        "container",
        "",
    ),
    # SLURM
    "NODE_FAIL": (
        "JobId=7 JobName=vllm_kimi JobState=NODE_FAIL Reason=NodeDown NodeList=n1 signal=9",
        "job-node-failure",
        "slurm",
        "",
    ),
    "node failure, said by srun": (
        "srun: error: Node failure on n7\nsrun: Job step aborted: Waiting up to 32 seconds for job "
        "step to finish.",
        "job-node-failure",
        "slurm",
        "",
    ),
    "memory of a job": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some of the step tasks have "
        "been OOM Killed.",
        "job-out-of-memory",
        "host-memory",
        "",
    ),
    "memory of a task, said by srun": (
        "srun: error: n7: task 3: Out Of Memory",
        "job-out-of-memory",
        "host-memory",
        "",
    ),
    "memory limit of older versions": (
        "slurmstepd: error: Exceeded job memory limit at some point.",
        "job-out-of-memory",
        "slurm",
        "",
    ),
    "a program that is not on the node": (
        "slurmstepd: error: execve(): python3.11: No such file or directory",
        "job-program",
        "slurm",
        "",
    ),
    "something else of slurmstepd": (
        "slurmstepd: error: task/cgroup: unable to add task[pid=77] to memory cg '(null)'",
        "unknown",
        "slurm",
        "",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_named(name, tmp_path):
    text, signature, component, pod = FAILURES[name]
    (tmp_path / "said.txt").write_text(text + "\n")
    found = doctor.examine(tmp_path)
    assert found.first is not None
    assert (found.first.signature, found.first.component) == (signature, component), found.first
    assert found.first.help and found.first.see
    if pod:
        assert found.first.node == pod
    assert not found.also, found.also


@pytest.mark.parametrize(
    "text",
    [
        described(),
        described(PROBE[0].replace("Liveness", "Readiness")),  # while the model loads
        described("  Normal   Pulled     12m   kubelet   Container image already present"),
        described("  Normal   Killing    12m   kubelet   Stopping container vllm"),
        described().replace(SCHEDULED, f"{UNSCHEDULED}\n{SCHEDULED}"),  # it waited for a node
        event("Warning", "FailedScheduling", "kimi-decode-0", "0/3 nodes are available")
        + "\n1m          Normal    Scheduled          pod/kimi-decode-0   Successfully assigned "
        "serving/kimi-decode-0 to gpu-07",
        "Nov 22 05:49:28 a3-0 systemd[1]: vllm.service: Main process exited, code=killed, status=15/TERM",
        "Nov 22 05:49:28 a3-0 systemd[1]: vllm.service: Main process exited, code=exited, status=143/n/a",
        "Nov 22 05:49:28 a3-0 systemd[1]: vllm.service: State 'stop-sigterm' timed out. Killing.\n"
        "Nov 22 05:49:28 a3-0 systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
        "NAME            READY   STATUS    RESTARTS   AGE\ndebug-0         0/1     Error     0          12d",
        "[    1.000000] ACPI Error: No handler for Region [SYSI]",
        "kimi-prefill-1 exited with code 0",
        "srun: job 7 queued and waiting for resources\nsrun: job 7 has been allocated resources",
    ],
)
def test_what_is_as_it_shall_be_is_no_failure(text, tmp_path):
    (tmp_path / "said.txt").write_text(text + "\n")
    found = doctor.examine(tmp_path)
    assert found.ok and not found.unknown, found.first


def test_a_pod_that_waits_for_a_node_is_named_though_another_one_has_one(tmp_path):
    text = described().replace(SCHEDULED, f"{UNSCHEDULED}\n{SCHEDULED}")
    (tmp_path / "said.txt").write_text(text.replace("serving/kimi-decode-0 to", "serving/b to"))
    found = doctor.examine(tmp_path)
    assert found.first is not None and "FailedScheduling" in found.first.text


def test_what_ended_the_pod_comes_before_what_kubernetes_says_of_it(tmp_path):
    """The engine's own log and the description of its pod."""
    (tmp_path / "kimi-decode-0.log").write_text(
        "(EngineCore_DP3 pid=7) ERROR 11-22 05:49:20 [core.py:1136] RuntimeError: NPU out of memory. "
        "Tried to allocate 1.31 GiB\n"
    )
    (tmp_path / "said.txt").write_text(described(BACK_OFF, state=WAITING, restarts=6) + "\n")
    found = doctor.examine(tmp_path)
    assert (found.first.signature, found.first.rank) == ("out-of-memory", 3)
    assert not found.also and {one.signature for one in found.cascade} == {"pod-crash-loop"}


def test_a_job_that_was_cancelled_is_of_its_host(tmp_path):
    path = tmp_path / "slurm-7.out"
    path.write_text(
        "slurmstepd: error: *** JOB 7 ON gpuh05 CANCELLED AT 2026-11-22T02:31:17 DUE TO TIME LIMIT ***\n"
    )
    first = doctor.examine(path).first
    assert first is not None and first.node == "gpuh05" and first.signature == "job-time-limit"


@pytest.mark.parametrize(
    ("lines", "node", "rank"),
    [
        (("srun: error: Node failure on n3",), "n3", None),
        (("srun: error: n7: task 3: Out Of Memory",), "n7", 3),
        (
            (
                "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks "
                "have been OOM Killed.",
                "srun: error: n7: task 3: Out Of Memory",
                "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-22T05:49:02 ***",
            ),
            "n7",
            3,
        ),
        (("srun: error: n7: task 3: Segmentation fault (core dumped)",), "n7", 3),
        (("srun: error: Unable to create step for job 7: Memory required",), "slurm-7.out", None),
    ],
)
def test_what_slurm_names_is_named(lines, node, rank, tmp_path):
    path = tmp_path / "slurm-7.out"
    path.write_text("\n".join(lines) + "\n")
    first = doctor.examine(path).first
    assert first is not None and (first.node, first.rank) == (node, rank), first


def test_a_node_that_fails_is_that_of_the_plan_which_slurm_names(tmp_path):
    plan = build.plan("k2.5", "a3", layout="pd")
    nodes = rank_places.of(plan).nodes
    path = tmp_path / "logs" / nodes[0] / "vllm_kimi.7.err"
    path.parent.mkdir(parents=True)
    path.write_text(f"srun: error: Node failure on {nodes[1]}\n")
    first = doctor.examine(path, plan).first
    assert first is not None and (first.node, first.rank) == (nodes[1], None), first
