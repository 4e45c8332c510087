"""Simulate what a cluster does with pods: order, admission, images, probes, evictions, restarts.

    cluster = SimulatedCluster(table, site, programs, start, root)
    cluster.begin()  # leaders first, then their workers, as LeaderWorkerSet creates them
    cluster.look()  # the start-up probes that are due
    cluster.ready(work, environment)  # the readiness probes

``table`` is what `kubernetes_pods` writes as `cluster_table.FILE`: the pods as objects, and how many nodes there
are. What happens to a pod is in logs/POD/events.log, in the words of the controllers, the scheduler
and kubelet and in the columns of ``kubectl get events``; there the diagnosis finds it.

Source: pod_controller.go of LeaderWorkerSet v1; prober, eviction and images of kubelet 1.34.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from kimi_nb.core.marks import MARK
from kimi_nb.core.processes import Programs
from kimi_nb.diagnose.log_files import file_of
from kimi_nb.plan.spec import url_of
from kimi_nb.rehearse.cluster_table import GROUP, NAME, WORKER
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.simulated_site import SimulatedSite
from kimi_nb.service import http_client, probe

EVENTS = "events.log"
_PROGRAMS = {"python3": sys.executable}  # of an image, where a probe runs on this machine
_QUOTA = "accelerators"
_WORDS_WAIT, _STOP_WAIT = 10.0, 10.0  # seconds until a container says something, until it has ended
_PROBE_WAIT = 1.0  # seconds of a probe whose object says nothing of it
Pod = Mapping[str, Any]


class SimulatedCluster:
    """The controllers, the scheduler and the kubelets of a rehearsal's cluster.

    ``start`` starts the container of a pod by the pod's name; ``root`` is the rehearsal's folder.
    """

    def __init__(
        self,
        table: Mapping[str, Any],
        site: SimulatedSite,
        programs: Programs,
        start: Callable[[str], None],
        root: Path,
    ) -> None:
        self._site, self._programs, self._start, self._root = site, programs, start, root
        self._pods: Sequence[Pod] = table["pods"]
        self._free = [f"node-{at}" for at in range(table["nodes"])]
        self._where: dict[str, str] = {}  # the node of each pod
        self._due: dict[str, tuple[float, int]] = {}  # when it is probed, how often it failed

    def begin(self) -> None:
        """Create all pods in the order of their controller, and let faults strike."""
        created = [pod for pod in self._pods if not _worker(pod) and self._create(pod)]
        led = {_group(pod) for pod in created}
        for pod in self._pods:
            if _worker(pod) and _group(pod) in led:
                self._create(pod)
        for pod in self._pods:
            for name, strike in (
                (FaultName.POD_EVICTED, self._evict),
                (FaultName.NODE_DRAINED, self._drain),
                (FaultName.GROUP_RESTART, self._fail),
            ):
                if self._has(name, pod):
                    self._wait_for_words(pod)
                    strike(pod)
        self.look()

    def look(self) -> None:
        """Ask the containers whose start-up probe is due, and end those that fail it too often."""
        for pod in self._pods:
            name, asked = pod["metadata"]["name"], _startup(pod)
            when, failed = self._due.get(name, (0.0, 0))
            if name not in self._due or time.monotonic() < when:
                continue
            said = self._probe(pod, asked)
            if not said:
                del self._due[name]  # it has started
                continue
            failed += 1
            self._tell(pod, "Warning", "Unhealthy", f"Startup probe failed: {said}")
            self._due[name] = (time.monotonic() + asked["periodSeconds"], failed)
            if failed >= asked["failureThreshold"]:
                del self._due[name]
                text = (
                    f"Container {_container(pod)['name']} failed startup probe, will be restarted"
                )
                self._tell(pod, "Normal", "Killing", text)
                self._end(pod)

    def ready(self, folder: Path, environment: Mapping[str, str]) -> dict[str, int | None]:
        """Run the readiness probes of all containers, and return the exit codes of those that fail.

        ``folder`` holds the folders of the pods, with what is mounted there as scripts. The result is
        by the names of the programs; None is a probe that did not end in its time.
        """
        asked = {}
        for pod in self._pods:
            name, said = pod["metadata"]["name"], _container(pod).get("readinessProbe", {})
            words = said.get("exec", {}).get("command", [])
            if not words:  # a container without an API
                continue
            program, script, *rest = words
            local = [
                _PROGRAMS.get(program, program),
                str(folder / name / "scripts" / PurePosixPath(script).name),
            ]
            variables = {**environment, "POD_IP": self._site.nodes[name]}
            probed = f"{name} readiness"
            log = file_of(self._root, probed)
            self._programs.start(probed, [*local, *rest], folder / name, variables, log)
            asked[probed] = (pod, said["timeoutSeconds"])
        codes = {name: self._programs.wait(name, seconds) for name, (_, seconds) in asked.items()}
        failed = {name: code for name, code in codes.items() if code != 0}
        for name in failed:
            lines = file_of(self._root, name).read_text(errors="replace").splitlines()
            text = f"Readiness probe failed: {lines[-1] if lines else 'it did not end in time'}"
            self._tell(asked[name][0], "Warning", "Unhealthy", text)
        return failed

    def _has(self, name: FaultName, pod: Pod) -> bool:
        return self._site.fault(name, pod["metadata"]["name"])

    # Start --------------------------------------------------------------------------------

    def _create(self, pod: Pod) -> bool:
        """Admit, schedule and start a pod; return whether it was admitted."""
        if self._has(FaultName.QUOTA_EXCEEDED, pod):
            self._refuse(pod)
            return False
        name = pod["metadata"]["name"]
        self._tell(
            pod,
            "Normal",
            "SuccessfulCreate",
            f"create Pod {name} in StatefulSet {_owner(pod)} successful",
            f"statefulset/{_owner(pod)}",
        )
        if self._schedule(pod):
            self._run(pod)
        return True

    def _refuse(self, pod: Pod) -> None:
        name, (device, count) = pod["metadata"]["name"], _devices(pod)
        amount = f"requests.{device}={count}"
        self._tell(
            pod,
            "Warning",
            "FailedCreate",
            f'create Pod {name} in StatefulSet {_owner(pod)} failed error: pods "{name}" is '
            f"forbidden: exceeded quota: {_QUOTA}, requested: {amount}, used: {amount}, limited: "
            f"{amount}",
            f"statefulset/{_owner(pod)}",
        )

    def _schedule(self, pod: Pod, cordoned: int = 0) -> bool:
        """Give a pod a node of its own, as it takes all devices of one; return whether one is free."""
        name, (device, _) = pod["metadata"]["name"], _devices(pod)
        if not self._free:
            taken = len(self._where)
            why = f"{cordoned} node(s) were unschedulable, " if cordoned else ""
            self._tell(
                pod,
                "Warning",
                "FailedScheduling",
                f"0/{taken + cordoned} nodes are available: {why}{taken} Insufficient {device}. "
                f"preemption: 0/{taken + cordoned} nodes are available: {taken + cordoned} No "
                "preemption victims found for incoming pod.",
            )
            return False
        node = self._where[name] = self._free.pop(0)
        where = f"{pod['metadata']['namespace']}/{name} to {node}"
        self._tell(pod, "Normal", "Scheduled", f"Successfully assigned {where}")
        return True

    def _run(self, pod: Pod) -> None:
        """Pull the image of a pod and start its container, as the kubelet of its node does."""
        name, container = pod["metadata"]["name"], _container(pod)
        image = container["image"]
        if self._has(FaultName.IMAGE_NOT_PULLED, pod):
            self._tell(pod, "Normal", "Pulling", f'Pulling image "{image}"')
            unknown = f"failed to pull and unpack image: failed to resolve reference: {image}"
            error = f"rpc error: code = NotFound desc = {unknown}: not found"
            self._tell(pod, "Warning", "Failed", f'Failed to pull image "{image}": {error}')
            self._tell(pod, "Warning", "Failed", "Error: ErrImagePull")
            self._tell(pod, "Normal", "BackOff", f'Back-off pulling image "{image}"')
            self._tell(pod, "Warning", "Failed", "Error: ImagePullBackOff")
            return
        for reason, text in (
            ("Pulled", f'Container image "{image}" already present on machine'),
            ("Created", f"Created container: {container['name']}"),
            ("Started", f"Started container {container['name']}"),
        ):
            self._tell(pod, "Normal", reason, text)
        self._start(name)
        if "startupProbe" in container:
            delay = container["startupProbe"].get("initialDelaySeconds", 0)
            self._due[name] = (time.monotonic() + delay, 0)

    def _probe(self, pod: Pod, asked: Mapping[str, Any]) -> str:
        """Return "" if a container's start-up probe succeeds, otherwise what kubelet says."""
        url = url_of(self._site.nodes[pod["metadata"]["name"]], asked["httpGet"]["port"])
        seconds = asked.get("timeoutSeconds", _PROBE_WAIT)
        whole = f'Get "{url}{asked["httpGet"]["path"]}"'
        if not http_client.listens(url, seconds):
            return f"{whole}: dial tcp {url.partition('://')[2]}: connect: connection refused"
        reply = probe.health(url, seconds)
        return "" if reply.good else f"HTTP probe failed with statuscode: {reply.status}"

    # What happens to pods -------------------------------------------------------------------

    def _evict(self, pod: Pod) -> None:
        """Take a pod from its node as kubelet does where the node's memory runs out."""
        container = _container(pod)
        most, least = (container["resources"][one]["memory"] for one in ("limits", "requests"))
        self._tell(
            pod,
            "Warning",
            "Evicted",
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 84264Ki. "
            f"Container {container['name']} was using {most}, request is {least}, has larger "
            "consumption of memory.",
        )
        self._stop(pod)

    def _drain(self, pod: Pod) -> None:
        """Take a pod from its node as ``kubectl drain`` does, and look for another node."""
        name = pod["metadata"]["name"]
        node = self._where.pop(name)
        text = f"Node {node} status is now: NodeNotSchedulable"
        self._tell(pod, "Normal", "NodeNotSchedulable", text, f"node/{node}")
        self._write(name, f"evicting pod {pod['metadata']['namespace']}/{name}")
        self._stop(pod)
        self._schedule(pod, cordoned=1)

    def _fail(self, pod: Pod) -> None:
        """End a pod's container once: its group is deleted, and created again as a whole."""
        name, group = pod["metadata"]["name"], [one for one in self._pods if _same(one, pod)]
        leader = group[0]["metadata"]["name"]
        self._end(pod)
        self._tell(
            pod,
            "Normal",
            "RecreateGroupOnPodRestart",
            f"Worker pod {name} failed, deleted leader pod {leader} to recreate group "
            f"{pod['metadata']['labels'][GROUP]}",
            f"leaderworkerset/{pod['metadata']['labels'][NAME]}",
        )
        for one in group:
            if one is not pod:
                self._stop(one)
            self._free.append(self._where.pop(one["metadata"]["name"]))
        for one in group:
            self._create(one)

    def _stop(self, pod: Pod) -> None:
        self._tell(pod, "Normal", "Killing", f"Stopping container {_container(pod)['name']}")
        self._end(pod)

    def _end(self, pod: Pod) -> None:
        """End a pod's container, and wait until nothing of it is left."""
        program = f"{pod['metadata']['name']} engines"
        self._due.pop(pod["metadata"]["name"], None)
        self._programs.stop(program)
        self._programs.wait(program, _STOP_WAIT)

    def _wait_for_words(self, pod: Pod) -> None:
        """Wait until a pod's container has said something: what strikes it strikes what runs."""
        log = file_of(self._root, f"{pod['metadata']['name']} engines")
        end = time.monotonic() + _WORDS_WAIT
        while time.monotonic() < end and not (log.exists() and log.stat().st_size):
            time.sleep(0.02)

    # Events ---------------------------------------------------------------------------------

    def _tell(self, pod: Pod, kind: str, reason: str, message: str, about: str = "") -> None:
        """Write an event: its time, type, reason, object and message."""
        name = pod["metadata"]["name"]
        now = time.strftime("%m-%d %H:%M:%S")
        about = about or f"pod/{name}"
        self._write(name, f"{now}   {kind:8}  {reason:18}  {about:24}  {message}")

    def _write(self, name: str, line: str) -> None:
        path = self._root / "logs" / name / EVENTS
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{MARK} {line}\n")


def _container(pod: Pod) -> Mapping[str, Any]:
    found: Mapping[str, Any] = pod["spec"]["containers"][0]
    return found


def _startup(pod: Pod) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _container(pod).get("startupProbe", {})
    return found


def _devices(pod: Pod) -> tuple[str, int]:
    """Return the resource of a pod's accelerators, and how many it takes."""
    resource, count = next(iter(_container(pod)["resources"]["limits"].items()))
    return resource, count


def _worker(pod: Pod) -> bool:
    return bool(pod["metadata"]["labels"][WORKER] != "0")


def _group(pod: Pod) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels[NAME], labels[GROUP]


def _same(one: Pod, other: Pod) -> bool:
    return _group(one) == _group(other)


def _owner(pod: Pod) -> str:
    """Return the StatefulSet that creates a pod: that of all leaders, or that of one leader."""
    owner, group = _group(pod)
    return f"{owner}-{group}" if _worker(pod) else owner
