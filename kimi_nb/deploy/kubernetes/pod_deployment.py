"""Deploy a plan on a Kubernetes cluster: apply its objects, follow its pods, delete what is ours.

Example::

    made = PodDeployment(plan, folder / "bundle", folder, "run-1", "me@here since ...", print)
    for step in made.steps:
        step.run()
    watch = readiness.Watch(made.serving(), made.logs, made.ended, limits)

Ours is what bears our labels, and one run at a time has the name that the site file gives: a ConfigMap
is its claim. The claim of the weights is never deleted.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kimi_nb import show
from kimi_nb.bundle.kubernetes import kubernetes_files
from kimi_nb.core.tail import Tails
from kimi_nb.deploy.kubernetes import cluster_looks, pod_logs, pod_states
from kimi_nb.deploy.kubernetes.kubectl import Kubectl, KubectlError
from kimi_nb.deploy.kubernetes.ownership import Ownership, told
from kimi_nb.deploy.kubernetes.pod_states import PodState
from kimi_nb.deploy.kubernetes.port_forwards import Forwards
from kimi_nb.deploy.kubernetes.weights_job import WeightsJob
from kimi_nb.deploy.steps import Change, EngineState, Outcome, Step, StepFailed
from kimi_nb.diagnose import first_failure
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan import pod_names
from kimi_nb.plan.spec import Plan
from kimi_nb.service import readiness

MANAGER = "kimi-nb"
_APPLY = ("--server-side", f"--field-manager={MANAGER}", "-k")
_DIFFERS = re.compile(r"^\+\+\+ \S*/(?P<name>[^/\s]+)", re.MULTILINE)
_LOOK = 2.0  # seconds between two looks at the pods
_PATIENCE = 600.0  # seconds for a pod to get a node and its image without any progress
_DOWNLOAD = 6 * 3600.0  # seconds for the download of the weights
_GONE = 300.0  # seconds for pods to end
_SHOWN = 8


class PodDeployment:
    """A plan on a Kubernetes cluster.

    ``bundle`` has the written files, ``folder`` is the deployment's own on this machine, ``run``
    identifies it on the cluster, ``holder`` says who deploys, and ``say`` receives progress.
    ``download`` fills the claim of the weights; ``patience`` is how long a pod may wait for a node
    or an image, in seconds.
    """

    def __init__(
        self,
        plan: Plan,
        bundle: Path,
        folder: Path,
        run: str,
        holder: str,
        say: Callable[[str], None],
        *,
        download: bool = False,
        patience: float = _PATIENCE,
    ) -> None:
        self.plan, self._say = plan, say
        self._folder, self._files = folder, bundle / kubernetes_files.FOLDER
        self._download, self._patience = download, patience
        self._said = said = cluster_looks.said(plan)
        self.kubectl = Kubectl(said.context, said.namespace)
        self._ours = Ownership(plan, self.kubectl, run, holder)
        self._weights_job = WeightsJob(plan, self.kubectl, self._files / "weights")
        self._door = pod_names.door_node(said)
        self.logs = pod_logs.PodLogs(
            plan,
            folder,
            self.kubectl,
            self._ours.selector,
            len(plan.nodes) + 2,
            pod_logs.name_of(plan, self._door, self._weights_job.name),
        )
        self._forwards = Forwards(self.kubectl, folder / "forwards", run)
        self._seen: tuple[float, tuple[PodState, ...]] = (-math.inf, ())
        self._uids: dict[str, str] = {}  # of the pods that were seen running
        self._served: Plan | None = None
        self._old_events: frozenset[str] = frozenset()
        self._diff = ""

    @property
    def url(self) -> str:
        """The URL of the service within the cluster."""
        return self.plan.url

    @property
    def log_folder(self) -> Path:
        """The folder in which `logs` keeps what it has read."""
        return self._folder / "logs"

    @property
    def steps(self) -> Sequence[Step]:
        """The steps from the cluster's API to pods that run."""
        return (
            Step("reach", "look at the cluster, its rights and its nodes", self._reach, True),
            Step("claim", "take the name in the namespace for this run", self._claim, True),
            Step("weights", "the weights", self._weights),
            Step("start", "apply the objects", self._start, True),
            Step("pods", "wait until every pod runs", self._pods, True),
        )

    @property
    def after(self) -> Sequence[Step]:
        """No further steps."""
        return ()

    def undone(self, step: str) -> bool:
        """Return False: what starts something is always repeated."""
        return False

    def memory_mb(self) -> float:
        """Return 0: the memory of pods is not measured."""
        return 0.0

    # Before anything is changed -----------------------------------------------------------

    def _reach(self) -> Outcome:
        found = cluster_looks.look(self.plan, self.kubectl)
        if not found.failed:
            with self._asking("reach"):
                strangers = self._ours.strangers(self._files)
            found.failed = [strangers] if strangers else []
        if found.failed:
            raise StepFailed("reach", found.failed)
        return Outcome(warnings=tuple(found.warnings))

    def preview(self) -> Sequence[Change]:
        """Return what the steps would change, by ``kubectl diff``; nothing is changed."""
        warnings = self._reach().warnings
        out = [*warnings]
        with self._asking("claim"):
            held = self._ours.held()
        if not self._ours.holds(held):
            word = f"{told(held)} has it; nothing would be done" if held else "would be taken"
            out.append(self._change(f"configmap/{self._ours.claim}: {word}"))
        if self._download and self._weights_job.wanted:
            name = self._weights_job.name
            out.append(self._change(f"job/{name}: would download what is missing"))
        return [
            *out,
            *(self._change(f"{name}: would be applied") for name in self._changes("start")),
        ]

    def diff(self) -> str:
        """Return the changes of the objects as ``diff -u``; call it after `preview`."""
        return self._diff

    def _changes(self, step: str) -> list[str]:
        """Return the objects that applying would create or change."""
        with self._asking(step):
            # Exit code 1 says that there are differences.
            self._diff = self.kubectl.run("diff", *_APPLY, str(self._files), codes=(0, 1))
        # kubectl names its files GROUP.VERSION.KIND.NAMESPACE.NAME.
        words = [name.split(".") for name in _DIFFERS.findall(self._diff)]
        return [f"{one[-3]}/{one[-1]}".lower() for one in words if len(one) > 3]

    def _change(self, what: str) -> Change:
        return Change(self._said.namespace, what)

    # Steps --------------------------------------------------------------------------------

    def _claim(self) -> Outcome:
        with self._asking("claim"):
            held = self._ours.held()
        if not held:
            held = self._take()
        if not held:
            return Outcome((self._change(f"configmap/{self._ours.claim}: taken"),))
        if not self._ours.holds(held):
            raise StepFailed(
                "claim",
                [
                    cluster_looks.diagnosis(
                        "claim",
                        self._said.context,
                        f"the name {self._said.name} in namespace {self._said.namespace} is taken",
                        f"configmap/{self._ours.claim}: {told(held)}",
                        command=self.kubectl.typed("delete", "configmap", self._ours.claim),
                    )
                ],
            )
        return Outcome()

    def _take(self) -> dict[str, str]:
        """Take the name, as `Ownership.take`; the failure says if it is perhaps taken all the same."""
        try:
            return self._ours.take()
        except KubectlError as error:
            perhaps = f"configmap/{self._ours.claim}: perhaps taken: an answer was lost"
            done = () if error.reason == "Forbidden" else (self._change(perhaps),)
            found = cluster_looks.failure(self.kubectl, error)
            raise StepFailed("claim", [found], Outcome(done)) from None

    def _weights(self) -> Outcome:
        """Download the weights into their claim if that was asked for, or see that it is there."""
        job = self._weights_job
        if not job.wanted:
            return Outcome()
        with self._asking("weights"):
            job.look()
            if job.complete:
                return Outcome()
            if self._download:
                return self._fetch(job)
            if not job.claimed:
                raise StepFailed("weights", [job.no_claim()])
        unseen = "what it holds is not looked at; --download fetches what is missing"
        return Outcome(warnings=(self._change(f"pvc/{job.claim}: {unseen}"),))

    def _fetch(self, job: WeightsJob) -> Outcome:
        job.apply(*_APPLY)
        end = time.monotonic() + _DOWNLOAD
        while True:
            job.look()
            if job.complete:
                return Outcome((self._change(f"job/{job.name}: has downloaded what was missing"),))
            self.logs.read()
            for pod in self._now("weights"):
                found = pod.component == "weights" and pod_states.fault(pod)
                # The Job starts a container that has ended again, and goes on where it stopped.
                if found and found.kind not in pod_states.TOLD_BY_LOGS:
                    raise StepFailed("weights", [found])
            if job.failed or time.monotonic() > end:
                self.logs.read(now=True)
                raise StepFailed("weights", [job.not_downloaded(*self.logs.last_of("weights"))])
            time.sleep(_LOOK)

    def _start(self) -> Outcome:
        names = self._changes("start")
        # The cluster remembers for an hour what it refused: that of an earlier start is none of this.
        self._old_events = pod_states.marks(self._events("start"))
        if not names:
            return Outcome()
        self.logs.begin()
        with self._asking("start"):
            self.kubectl.run("apply", *_APPLY, str(self._files))
        return Outcome(tuple(self._change(f"{name}: applied") for name in names))

    def _pods(self) -> Outcome:
        """Wait until every pod runs; name the first that cannot."""
        shown = ""
        begun, before = time.monotonic(), None
        while True:
            pods = {pod.name: pod for pod in self._now("pods", fresh=True)}
            doors = [pod for pod in pods.values() if pod.component == readiness.ROUTER]
            mine = [*(pods[name] for name in self.plan.nodes if name in pods), *doors]
            missing = set(self.plan.nodes) - set(pods)
            if self.plan.router is not None and not doors:
                missing.add(self._door)
            running = [pod for pod in mine if pod.runs]
            if not missing and running == mine:
                self._uids = {pod.name: pod.uid for pod in running}
                return Outcome(facts={"nodes": sorted({pod.node for pod in running})})
            failed = [found for pod in mine if (found := self._fault(pod))]
            if missing and not failed:
                failed = [*self._refused()]
            state = tuple((pod.name, pod.word) for pod in mine)
            if state != before:
                begun, before = time.monotonic(), state
            text = f"  {len(running)} of {len(mine) + len(missing)} pods run{_waiting(mine)}"
            if text != shown:
                self._say(text)
                shown = text
            if not failed and time.monotonic() - begun > self._patience:
                failed = [
                    found for pod in mine if (found := pod_states.waits(pod, self._rank(pod.name)))
                ]
                failed = failed or [self._leaves(pod) for pod in mine if pod.leaving]
                failed = failed or [self._no_pods(missing)]
            if failed:
                self.logs.read(now=True)
                raise StepFailed("pods", failed)
            time.sleep(_LOOK)

    def _fault(self, pod: PodState) -> Diagnosis | None:
        """Return why a pod cannot run; its own log tells more where it has one."""
        found = pod_states.fault(pod, self._rank(pod.name))
        if found is None or found.kind not in pod_states.TOLD_BY_LOGS:
            return found
        self.logs.read(now=True)
        # The Deployment stands for the router's node.
        node = self._door if pod.component == readiness.ROUTER else pod.name
        logs = [log for log in self.logs.all() if log.node == node]
        return first_failure.of_logs(logs, self.plan, "at start") or found

    def _refused(self) -> tuple[Diagnosis, ...]:
        """Return what the cluster refuses to create."""
        owners = [*(one.name for one in pod_names.sets(self.plan)), self._door]
        return pod_states.refused(self._events("pods"), owners, self._old_events)

    def _events(self, step: str) -> Mapping[str, Any]:
        with self._asking(step):
            return self.kubectl.json("get", "events")

    def _leaves(self, pod: PodState) -> Diagnosis:
        return cluster_looks.diagnosis(
            "pod-leaves",
            pod.name,
            f"an earlier pod of this name has not ended after {self._patience:.0f} s",
            f"kubectl get pod {pod.name}: {pod.word}, on {pod.node}",
            command=self.kubectl.typed("describe", "pod", pod.name),
        )

    def _no_pods(self, missing: set[str]) -> Diagnosis:
        return cluster_looks.diagnosis(
            "no-pods",
            self._said.context,
            f"{len(missing)} pods are not created, the first is {min(missing)}",
            "kubectl get events: nothing was refused",
        )

    def _rank(self, node: str) -> int | None:
        """Return the rank of a pod that has one only."""
        ranks = {engine.rank for engine in self.plan.of(node)}  # none of the router's pod
        return min(ranks) if len(ranks) == 1 else None

    # The service --------------------------------------------------------------------------

    def serving(self) -> Plan:
        """Return the plan at the addresses by which kubectl forwards to its pods."""
        if self._served is None:
            addresses = {}
            for node in self.plan.nodes:
                ports = [one.http_port for one in self.plan.of(node) if one.http_port is not None]
                if ports:
                    addresses[node] = self._forwards.to(f"pod/{node}", ports)
            engines = tuple(
                replace(engine, address=addresses.get(engine.node, engine.address))
                for engine in self.plan.engines
            )
            port = int(self.plan.url.rpartition(":")[2])
            # The front door is reached once there is a pod behind it; until then it refuses.
            door = self._forwards.to(f"service/{self._said.name}", [port])
            self._served = replace(self.plan, engines=engines, url=f"http://{door}:{port}")
        return self._served

    def open_door(self) -> Outcome:
        """Say how a person reaches the service: kubectl applies the router with the engines."""
        port = self.plan.url.rpartition(":")[2]
        reach = self.kubectl.typed("port-forward", f"service/{self._said.name}", f"{port}:{port}")
        return Outcome(facts={"reach it by": reach})

    def ended(self) -> Mapping[str, int]:
        """Return the exit codes of pods that have ended, as `readiness.Watch` takes them.

        Raises `readiness.Found` for a pod that the cluster has ended, and for one that cannot be
        reached. While the API server does not answer, nothing counts as ended.
        """
        if lost := self._forwards.keep():
            raise readiness.Found(lost)
        try:
            pods = self._now("ready")
        except StepFailed:
            return {}
        codes: dict[str, int] = {}
        router = self.plan.router
        for pod in pods:
            mine = pod.name in self.plan.nodes
            if not mine and pod.component != readiness.ROUTER:
                continue  # such as a pod of the download that was evicted and made again
            found = pod_states.fault(pod, self._rank(pod.name))
            if found and found.kind not in pod_states.TOLD_BY_LOGS:
                raise readiness.Found(found)
            if found and mine:
                codes[f"{pod.name} engines"] = pod.code if pod.code is not None else 1
            elif found and router and not mine:
                codes[readiness.ROUTER] = pod.code if pod.code is not None else 1
            elif mine and self._uids.get(pod.name, pod.uid) != pod.uid:
                self.logs.read(now=True)
                told = first_failure.of_logs(self.logs.all(), self.plan, "at start")
                raise readiness.Found(told or self._replaced(pod))
        return codes

    def _replaced(self, pod: PodState) -> Diagnosis:
        return cluster_looks.diagnosis(
            "pod-replaced",
            pod.name,
            "its group was restarted: a pod of it had ended, or its node was drained",
            f"kubectl get pod {pod.name}: another pod of that name, {pod.word}",
            command=self.kubectl.typed("get", "events"),
        )

    # Status -------------------------------------------------------------------------------

    def _now(self, step: str, fresh: bool = False) -> tuple[PodState, ...]:
        """Return the pods of this deployment, as they were a moment ago at the latest."""
        at, pods = self._seen
        if fresh or time.monotonic() - at > _LOOK:
            with self._asking(step):
                pods = pod_states.pods(self.kubectl.json("get", "pods", "-l", self._ours.selector))
            self._seen = (time.monotonic(), pods)
        return pods

    def status(self) -> Sequence[EngineState]:
        """Return the current state of every engine, as the probe of its pod sees it."""
        pods = {pod.name: pod for pod in self._now("status", fresh=True)}
        out = []
        for engine in self.plan.engines:
            pod = pods.get(engine.node)
            found = pod and pod_states.fault(pod)
            state = "not started"
            if pod is not None:
                state = "ready" if pod.ready else "starting" if pod.runs else pod.word
            if found:
                state = "ended" if pod.code is None else f"ended {pod.code}"  # type: ignore[union-attr]
            out.append(
                EngineState(
                    engine.name,
                    engine.node,
                    engine.rank,
                    engine.http_port,
                    state,
                    found.cause if found else "",
                )
            )
        return out

    def queue(self) -> show.Table:
        """Return a table of the deployment's pods."""
        return show.Table(
            "Pods",
            ("pod", "part", "state", "restarts", "node", "said"),
            tuple(
                (pod.name, pod.component, pod.word, pod.restarts, pod.node, pod.message)
                for pod in self._now("status")
            ),
        )

    def follow(self, stop: Callable[[], bool]) -> Iterator[tuple[str, str]]:
        """Yield (source, line) of every log from its beginning, until ``stop`` returns true."""
        tails = Tails()
        strange: set[str] = set()
        while True:
            last = stop()
            self.logs.read(now=True)
            for pod in self.logs.strange.keys() - strange:
                strange.add(pod)
                yield pod, f"an earlier log is not kept: {self.logs.strange[pod]}"
            paths = [*self.log_folder.glob("*.log"), *self.log_folder.glob("*/*.log")]
            for path, lines in tails.read(sorted(paths)).items():
                tails.lines[path].clear()  # following for days must not fill the memory
                who = path.stem if path.parent == self.log_folder else path.parent.name
                for line in lines:
                    yield who, line
            if last:
                return
            time.sleep(_LOOK)

    # The end ------------------------------------------------------------------------------

    def down(self) -> Outcome:
        """Delete what bears our labels, wait until its pods are gone, and give the name back."""
        with self._asking("down"):
            held = self._ours.held()
        if held and not self._ours.holds(held):
            return Outcome(warnings=(self._change(f"claim: left alone, {told(held)} has it"),))
        warnings: list[Change] = []
        try:
            self.logs.read(now=True)
        except OSError as error:  # such as a full disk: the pods end all the same
            unkept = f"logs: the last lines are not kept: {error.strerror}"
            warnings.append(self._change(unkept))
        changes: list[Change] = []
        try:
            self._delete(changes)
        except StepFailed as error:
            done = Outcome(tuple(changes), tuple(warnings))
            raise StepFailed(error.step, error.failed, done) from None
        return Outcome(tuple(changes), tuple(warnings))

    def _delete(self, changes: list[Change]) -> None:
        """Delete the objects, wait for the end of the pods and give the name back."""
        with self._asking("down"):
            changes += [self._change(f"{name}: deleted") for name in self._ours.delete()]
        end = time.monotonic() + _GONE
        while left := self._now("down", fresh=True):
            if time.monotonic() > end:
                names = ", ".join(pod.name for pod in left[:_SHOWN])
                raise StepFailed(
                    "down",
                    [
                        cluster_looks.diagnosis(
                            "pods-stay",
                            self._said.context,
                            f"{len(left)} pods have not ended after {_GONE:.0f} s",
                            f"kubectl get pods: {names}",
                            command=self.kubectl.typed("describe", "pod", left[0].name),
                        )
                    ],
                )
            time.sleep(_LOOK)
        with self._asking("down"):
            if self._ours.release():
                changes.append(self._change(f"configmap/{self._ours.claim}: given back"))

    def close(self) -> None:
        """End the port-forwards; the pods go on."""
        self._forwards.close()

    @contextlib.contextmanager
    def _asking(self, step: str) -> Iterator[None]:
        """Make a failure of kubectl that of a step."""
        try:
            yield
        except KubectlError as error:
            raise StepFailed(step, [cluster_looks.failure(self.kubectl, error)]) from None


def _waiting(pods: Sequence[PodState]) -> str:
    """Return what the first pod that does not run waits for."""
    waits = next((pod for pod in pods if not pod.runs), None)
    if waits is None:
        return ""
    return f"; {waits.name}: {waits.word}{f', {waits.message[:120]}' if waits.message else ''}"
