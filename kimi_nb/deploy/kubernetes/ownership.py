"""Tell what in a namespace is ours: one run at a time has a name there, and only its objects are changed.

Example::

    ours = Ownership(plan, kubectl, "run-1", "me@here since ...")
    ours.take()  # {}: the name is ours now; or who has it
    ours.delete()  # ["deployment.apps/kimi-router", ...]
    ours.release()  # True: it was given back

Ours is what bears our labels; a ConfigMap is the claim of a run. What fails raises KubectlError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kimi_nb.bundle.kubernetes import pod_template
from kimi_nb.core import evidence
from kimi_nb.deploy.kubernetes import cluster_looks, pod_states
from kimi_nb.deploy.kubernetes.api_values import table, tables, text
from kimi_nb.deploy.kubernetes.kubectl import Kubectl, KubectlError
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan.spec import Plan

_MANAGED = "app.kubernetes.io/managed-by"
_SHOWN = 8


class Ownership:
    """The objects of one deployment; ``run`` identifies it, ``holder`` says who deploys."""

    def __init__(self, plan: Plan, kubectl: Kubectl, run: str, holder: str) -> None:
        self._plan, self._kubectl, self._run, self._holder = plan, kubectl, run, holder
        self._labels = pod_template.labels(plan, "")
        del self._labels[pod_states.COMPONENT]
        self.selector = ",".join(f"{key}={value}" for key, value in self._labels.items())
        self.claim = f"{cluster_looks.said(plan).name}-run"

    def holds(self, held: Mapping[str, str]) -> bool:
        """Return whether what `held` has returned is the claim of this run."""
        return held.get("run") == self._run

    def held(self) -> dict[str, str]:
        """Return what the claim says, {} without one."""
        found = self._kubectl.json("get", "configmap", self.claim, "--ignore-not-found")
        return {} if not found else _texts(found.get("data")) or {"run": "?"}

    def take(self) -> dict[str, str]:
        """Take the name; return {} if it is ours by this call, else what the claim says.

        The API server lets one of two that try at once through.
        """
        if held := self.held():
            return held
        claim = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.claim, "labels": self._labels},
            "data": {
                "run": self._run,
                "who": self._holder,
                "since": evidence.now(),
                "plan": self._plan.name,
            },
        }
        try:
            self._kubectl.run("create", "--validate=false", "-f", "-", stdin=json.dumps(claim))
        except KubectlError as error:
            if error.reason != "AlreadyExists":
                raise
            return self.held()
        return {}

    def release(self) -> bool:
        """Give the name back; return whether there was a claim."""
        words = ("delete", "configmap", self.claim, "--ignore-not-found", "-o", "name")
        return bool(self._kubectl.run(*words).strip())

    def strangers(self, files: Path) -> Diagnosis | None:
        """Return which objects of the names in a kustomization somebody else has made."""
        answer = self._kubectl.json("get", "--ignore-not-found", "-k", str(files))
        there = tables(answer.get("items") if "items" in answer else [answer] if answer else [])
        names = [_name(one) for one in there if not self._made(one)]
        if not names:
            return None
        return cluster_looks.diagnosis(
            "not-ours",
            self._kubectl.context,
            f"namespace {self._kubectl.namespace} has objects of these names that kimi-nb has not made",
            f"without the label {_MANAGED}={self._labels[_MANAGED]}: " + ", ".join(names[:_SHOWN]),
        )

    def _made(self, one: Mapping[str, Any]) -> bool:
        """Return whether an object says that kimi-nb has made it."""
        labels = table(table(one.get("metadata")).get("labels"))
        return labels.get(_MANAGED) == self._labels[_MANAGED]

    def delete(self) -> list[str]:
        """Delete all objects with our labels but the claims of weights and name; return their names."""
        kinds = [
            f"{resource}.{group}" if group else resource
            for group, resource in cluster_looks.kinds(self._plan)
            if resource != "persistentvolumeclaims"
        ]
        if self._kubectl.raw(f"/apis/{cluster_looks.SETS}") is None:
            kinds = [kind for kind in kinds if cluster_looks.SETS not in kind]
        there = self._kubectl.run("get", ",".join(kinds), "-l", self.selector, "-o", "name")
        names = [name for name in there.split() if name != f"configmap/{self.claim}"]
        if names:
            self._kubectl.run("delete", "--wait=false", "--ignore-not-found", *names)
        return names


def told(held: Mapping[str, str]) -> str:
    """Return who has a name, for a person.

    >>> told({"run": "7", "who": "ann@here", "since": "noon", "plan": "k2.5-a3-pd"})
    'run 7 of ann@here since noon (k2.5-a3-pd)'
    """
    run, who, since, plan = (held.get(key) or "?" for key in ("run", "who", "since", "plan"))
    return f"run {run} of {who} since {since} ({plan})"


def _name(one: Mapping[str, Any]) -> str:
    return text(f"{one.get('kind', '')}/{table(one.get('metadata')).get('name', '')}", 80)


def _texts(data: Any) -> dict[str, str]:
    """Return the entries of a ConfigMap that are texts, on one line each."""
    return {
        str(key): text(value, 100) for key, value in table(data).items() if isinstance(value, str)
    }
