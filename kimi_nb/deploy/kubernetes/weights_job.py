"""Fill the claim of the weights by the Job of the bundle, or see that the claim is there.

Example::

    found = WeightsJob(plan, kubectl, files)
    found.complete, found.claimed
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kimi_nb.bundle.kubernetes import pod_template
from kimi_nb.deploy.kubernetes import cluster_looks
from kimi_nb.deploy.kubernetes.api_values import table, tables
from kimi_nb.deploy.kubernetes.kubectl import Kubectl
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan.spec import Plan


class WeightsJob:
    """The Job of a plan; ``files`` is the folder of its kustomization. Raises KubectlError."""

    def __init__(self, plan: Plan, kubectl: Kubectl, files: Path) -> None:
        self._kubectl, self._files = kubectl, files
        self.name = f"{cluster_looks.said(plan).name}-weights"
        self.claim = pod_template.claim_name(plan)
        self._job: Mapping[str, Any] = {}

    @property
    def wanted(self) -> bool:
        """Whether the plan has one: not where the nodes hold the weights."""
        return (self._files / "kustomization.yaml").exists()

    @property
    def claimed(self) -> bool:
        """Whether the claim is there."""
        words = ("get", "pvc", self.claim, "--ignore-not-found", "-o", "name")
        return bool(self._kubectl.run(*words).strip())

    def look(self) -> None:
        """Ask for the state of the Job, which `complete` and `failed` then tell."""
        self._job = self._kubectl.json("get", "job", self.name, "--ignore-not-found")

    @property
    def complete(self) -> bool:
        """Whether it has downloaded the weights."""
        return self._condition("Complete")

    @property
    def failed(self) -> bool:
        """Whether it has given up."""
        return self._condition("Failed")

    def apply(self, *how: str) -> None:
        """Make the claim, where the plan makes it, and the Job."""
        self._kubectl.run("apply", *how, str(self._files))

    def no_claim(self) -> Diagnosis:
        """Return that the claim is not there."""
        return cluster_looks.diagnosis(
            "no-claim",
            self._kubectl.context,
            f"there is no claim {self.claim} with the weights",
            f"kubectl get pvc {self.claim}: NotFound",
        )

    def not_downloaded(self, file: str, line: str) -> Diagnosis:
        """Return that it has not done its work; ``line`` of its log says why."""
        name = f"job/{self.name}"
        cause = f"{name} has not downloaded the weights"
        return cluster_looks.diagnosis("download", name, cause, f"{file}: {line}")

    def _condition(self, name: str) -> bool:
        conditions = tables(table(self._job.get("status")).get("conditions"))
        return any(one.get("type") == name and one.get("status") == "True" for one in conditions)
