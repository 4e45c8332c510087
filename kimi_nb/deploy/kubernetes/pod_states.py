"""Read what the API server says of pods: which run, which are ready, and which never will be.

Everything is pure: the JSON of kubectl in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.core.errors import short
from kimi_nb.deploy.kubernetes.api_values import NAME, count, table, tables, text
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis

COMPONENT = "app.kubernetes.io/component"
# Reasons for which a container waits, and does not start by waiting longer.
_NEVER = {
    "ImagePullBackOff": "image-not-pulled",
    "ErrImageNeverPull": "image-not-pulled",
    "InvalidImageName": "image-not-pulled",
    "CreateContainerConfigError": "container-config",
    "CreateContainerError": "container-config",
    "CrashLoopBackOff": "crash-loop",
    "RunContainerError": "container-config",
}
OOM = "OOMKilled"
TOLD_BY_LOGS = ("pod-ended", "crash-loop")  # faults whose cause a log may know


@dataclass(frozen=True)
class PodState:
    """A pod as the API server knows it.

    Attributes:
        component: The part of the service: a role, router or weights.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        ready: Whether its readiness probe has passed: every rank has completed a prompt.
        reason: Why it waits, has ended or is not scheduled; "" where nothing is said.
        message: The same in the cluster's words.
        code: The exit code of its container if that has ended, else None.
        leaving: Whether it is being deleted.
    """

    name: str
    uid: str
    component: str
    phase: str
    node: str
    ready: bool
    restarts: int
    reason: str
    message: str
    code: int | None
    leaving: bool

    @property
    def runs(self) -> bool:
        """Whether its container runs."""
        return self.phase == "Running" and self.code is None and not self.leaving

    @property
    def word(self) -> str:
        """Its state in a word or two, as `kubectl get pods` has it."""
        if self.leaving:
            return "Terminating"
        return self.reason or ("Ready" if self.ready else self.phase)


def pods(answer: Mapping[str, Any]) -> tuple[PodState, ...]:
    """Return the pods in the answer to ``kubectl get pods -o json``."""
    return tuple(_pod(one) for one in tables(answer.get("items")))


def _pod(one: Mapping[str, Any]) -> PodState:
    meta, spec, status = (table(one.get(key)) for key in ("metadata", "spec", "status"))
    containers = tables(status.get("containerStatuses"))
    first = containers[0] if containers else {}
    state = table(first.get("state"))
    waiting, ended = table(state.get("waiting")), table(state.get("terminated"))
    last = table(table(first.get("lastState")).get("terminated"))
    conditions = {text(each.get("type")): each for each in tables(status.get("conditions"))}
    scheduled = conditions.get("PodScheduled", {})
    unscheduled = scheduled if scheduled.get("status") == "False" else {}
    # A container that is started again and again tells of its end only in its last state.
    over = ended or (last if waiting.get("reason") == "CrashLoopBackOff" else {})
    code = over.get("exitCode")
    # That it ran out of memory says more than that it is not started again yet.
    told = (status, over, waiting) if over.get("reason") == OOM else (status, waiting, over)
    said = [one for one in (*told, unscheduled) if one.get("reason")]
    return PodState(
        name=text(meta.get("name"), NAME),
        uid=text(meta.get("uid"), NAME),
        component=text(table(meta.get("labels")).get(COMPONENT), NAME),
        phase=text(status.get("phase"), NAME),
        node=text(spec.get("nodeName"), NAME),
        ready=conditions.get("Ready", {}).get("status") == "True",
        restarts=count(first.get("restartCount")),
        reason=text(said[0].get("reason"), NAME) if said else "",
        message=text(next((each["message"] for each in said if each.get("message")), "")),
        code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        leaving="deletionTimestamp" in meta,
    )


def fault(pod: PodState, rank: int | None = None) -> Diagnosis | None:
    """Return why a pod does not run and will not by itself; None for one that may."""
    if pod.leaving or (pod.phase == "Succeeded" and not pod.code):
        return None
    if pod.reason == OOM:
        return _diagnosis("oom-killed", pod, rank, "its container was killed: out of memory")
    if pod.phase == "Failed" and pod.code is None:
        return _diagnosis(
            "pod-failed", pod, rank, f"the pod has failed: {pod.reason or 'no reason'}"
        )
    if pod.code is not None and pod.reason not in ("Completed", "CrashLoopBackOff"):
        return _diagnosis("pod-ended", pod, rank, f"its container ended with exit code {pod.code}")
    kind = _NEVER.get(pod.reason)
    return (
        _diagnosis(kind, pod, rank, f"its container does not start: {pod.reason}") if kind else None
    )


def waits(pod: PodState, rank: int | None = None) -> Diagnosis | None:
    """Return why a pod has not begun, for when it has had its time; None for one that runs."""
    if pod.runs or pod.leaving:
        return None
    kind = "unschedulable" if pod.reason == "Unschedulable" else "not-started"
    return _diagnosis(kind, pod, rank, f"no node runs it: {pod.word}")


def marks(answer: Mapping[str, Any]) -> frozenset[str]:
    """Return what tells each event in the answer to ``kubectl get events -o json`` from later ones."""
    return frozenset(map(_mark, tables(answer.get("items"))))


def _mark(event: Mapping[str, Any]) -> str:
    """Return a text that changes when the same event comes again."""
    meta = table(event.get("metadata"))
    return repr(
        (meta.get("uid"), event.get("count"), event.get("lastTimestamp"), event.get("series"))
    )


def refused(
    answer: Mapping[str, Any], owners: Iterable[str], known: frozenset[str] = frozenset()
) -> tuple[Diagnosis, ...]:
    """Return what the cluster refused to create for these sets, by the events of their namespace.

    ``answer`` is that of ``kubectl get events -o json``; ``known`` are the `marks` of events that are
    older. A quota is refused so, and an admission webhook.
    """
    names, out = tuple(owners), {}
    for one in tables(answer.get("items")):
        about, said = table(one.get("involvedObject")), text(one.get("message"))
        owner = text(about.get("name"), NAME)
        mine = any(owner == name or owner.startswith(f"{name}-") for name in names)
        if (
            mine
            and _mark(one) not in known
            and one.get("reason") == "FailedCreate"
            and "already exists" not in said
        ):
            kind = "quota" if "exceeded quota" in said else "refused"
            out[owner, kind] = Diagnosis(
                kind,
                owner,
                None,
                f"{text(about.get('kind'), NAME)} {owner} may not create its pods",
                f"kubectl get events: FailedCreate: {said}",
                remedies.of(f"kubernetes/{kind}"),
            )
    return tuple(out.values())


def _diagnosis(kind: str, pod: PodState, rank: int | None, cause: str) -> Diagnosis:
    seen = f"kubectl get pod {pod.name}: {pod.phase}, {pod.reason or 'no reason'}"
    return Diagnosis(
        kind,
        pod.name,
        rank,
        f"{cause}{f' ({short(pod.message)})' if pod.message else ''}",
        f"{seen}{f': {pod.message}' if pod.message else ''}"
        + (f", on {pod.node}" if pod.node else ""),
        remedies.of(f"kubernetes/{kind}"),
    )
