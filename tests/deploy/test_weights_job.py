"""The Job that downloads the weights, as kubectl tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from testbed.kubectl_answers import Answers, error

from kimi_nb.deploy.kubernetes.kubectl import KubectlError
from kimi_nb.deploy.kubernetes.weights_job import WeightsJob
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.params import load
from kimi_nb.plan import build

PLAN = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
LOOK = "get job kimi-weights --ignore-not-found -o json"
CLAIM = "get pvc kimi-weights --ignore-not-found -o name"


def job(answers, files=Path("/files"), plan=PLAN) -> WeightsJob:
    return WeightsJob(plan, Answers(answers), files)


def looked(answer) -> tuple[bool, bool]:
    """Whether the Job is complete, and whether it has failed, after a look."""
    made = job({LOOK: answer})
    made.look()
    return made.complete, made.failed


def test_a_plan_has_a_job_where_its_bundle_has_one(tmp_path):
    made = job({}, tmp_path)
    assert not made.wanted
    (tmp_path / "kustomization.yaml").write_text("")
    assert made.wanted and made.name == "kimi-weights"


@pytest.mark.parametrize(("answer", "there"), [("persistentvolumeclaim/kimi-weights\n", True), ("\n", False), ("", False)])  # fmt: skip
def test_whether_the_claim_is_there(answer, there):
    assert job({CLAIM: answer}).claimed is there
    with pytest.raises(KubectlError):
        assert job({CLAIM: error("Forbidden")}).claimed


def test_the_claim_of_the_site_file_is_looked_for(tmp_path):
    site = load.site("a3-kubernetes").model_dump(mode="json", exclude_unset=True)
    site["kubernetes"] |= {"weights": {"claim": "models"}, "name": "other"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    plan = build.plan("k2.5", "a3", "pd", site=str(tmp_path / "site.yaml"))
    made = job({CLAIM.replace("kimi-weights", "models"): "x"}, plan=plan)
    assert made.claimed and made.claim == "models" and made.name == "other-weights"
    assert made.no_claim() == Diagnosis(
        "no-claim",
        "a3-cluster",
        None,
        "there is no claim models with the weights",
        "kubectl get pvc models: NotFound",
        remedies.of("kubernetes/no-claim"),
    )


def test_nothing_is_known_before_a_look():
    made = job({})
    assert not made.complete and not made.failed


@pytest.mark.parametrize(
    ("conditions", "complete", "failed"),
    [
        ([{"type": "Complete", "status": "True"}], True, False),
        ([{"type": "Failed", "status": "True"}], False, True),
        ([{"type": "Suspended", "status": "True"}, {"type": "Complete", "status": "True"}], True, False),
        ([{"type": "Complete", "status": "False"}, {"type": "Failed", "status": "Unknown"}], False, False),
        ([{"type": "Complete"}, {"status": "True"}, {}, None, "Complete"], False, False),
        *((odd, False, False) for odd in (None, 7, "Complete", {"Complete": "True"}, True, [])),
    ],
)  # fmt: skip
def test_what_became_of_the_job(conditions, complete, failed):
    assert looked({"status": {"conditions": conditions}}) == (complete, failed)


@pytest.mark.parametrize("answer", ["", {}, *({"status": odd} for odd in (None, 7, "x", ["Complete"]))])  # fmt: skip
def test_a_job_that_is_not_there_or_says_nothing(answer):
    assert looked(answer) == (False, False)


def test_the_job_is_applied_as_asked():
    made = job({"apply --server-side -k /files": "created"})
    made.apply("--server-side", "-k")
    assert made._kubectl.asked == ["apply --server-side -k /files"]


def test_a_download_that_failed_is_told():
    assert job({}).not_downloaded("weights.log", "OSError: no space") == Diagnosis(
        "download",
        "job/kimi-weights",
        None,
        "job/kimi-weights has not downloaded the weights",
        "weights.log: OSError: no space",
        remedies.of("kubernetes/download"),
    )
