"""What is told of jobs that went wrong: where, what was seen, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.deploy.claim import Holder
from kimi_nb.deploy.slurm import job_faults, slurm_commands
from kimi_nb.deploy.slurm.job_book import GONE, JobState
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan import build
from kimi_nb.plan.spec import Job

OPTIONS = ("--job-name=vllm_kimi", "--mem=900G", "--time=1-00:00:00", "--gpus-per-node=8")
JOB = Job("baseline", "4_baseline.sbatch", "download", OPTIONS, {}, (), ())
ON_CPUS = Job("download", "3_download.sbatch", "", ("--job-name=fetch",), {}, (), ())
ERR = {"err": "vllm_kimi.9.err"}


def state(of="FAILED", reason="NonZeroExitCode", node="n7") -> JobState:
    return JobState("baseline", JOB.file, 9, of, reason, node, "1:00", "vllm_kimi")


def row(number: int, name: str, of: str, nodes: str) -> slurm_commands.Row:
    return slurm_commands.Row(number, name, of, "None", nodes, "1:00", "/run", "kimi_nb:run-1")


def failed(one: JobState, code: int = 3) -> Diagnosis:
    return job_faults.failed(JOB, one, code, "the last line")


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        ("(EngineCore pid=7) ERROR 11-23 06:04:02 [core.py:1] no memory", True),
        ("RuntimeError: no such interface", True),
        ("torch.OutOfMemoryError: CUDA out of memory", True),
        ("ray.exceptions.RayException", True),
        ("slurmstepd: error: *** JOB 9 CANCELLED", True),
        ("srun: error: n2: task 1: Exited with exit code 1", True),
        ("bash: vllm: command not found", True),
        ("REHEARSAL: what the real one would say", True),
        ("ERRORS: 0", False),
        ("TERROR", False),
        ("Error", False),
        ("an Error or an Exception", False),
        ("node n1: srun: error: quoted", False),
        ("a REHEARSAL: what the real one would say", False),
        ("INFO 11-23 06:04:02 all is well", False),
        ("", False),
    ],
)
def test_a_line_that_tells_of_an_error(line, tells):
    assert job_faults.tells(line) is tells


@pytest.mark.parametrize(
    ("one", "code", "said"),
    [
        (state(), 3, "JobState=FAILED Reason=NonZeroExitCode NodeList=n7 ExitCode=3"),
        (state(), 0, "JobState=FAILED Reason=NonZeroExitCode NodeList=n7 ExitCode=0"),
        (state("TIMEOUT", "", ""), -15, "JobState=TIMEOUT Reason=None NodeList=(null) signal=15"),
    ],
)
def test_the_words_of_slurm(one, code, said):
    assert job_faults.word(one, code) == f"JobId=9 JobName=vllm_kimi {said}"


# A job that has failed ------------------------------------------------------------------------


def test_a_job_that_failed_is_told_in_full():
    assert failed(state()) == Diagnosis(
        "job-failed",
        "n7",
        None,
        "job 9 (vllm_kimi, jobs/4_baseline.sbatch) failed",
        "FAILED, reason NonZeroExitCode, exit code 3; the last line",
        remedies.of("job/ended", **ERR),
    )
    assert "vllm_kimi.9.err" in failed(state()).help


@pytest.mark.parametrize(
    ("one", "code", "kind", "cause", "seen"),
    [
        (state("TIMEOUT"), -15, "job-timeout", "its time limit of 1-00:00:00 was used up",
         "TIMEOUT, reason NonZeroExitCode, signal 15"),
        (state("OUT_OF_MEMORY", ""), -9, "job-out-of-memory", "more than the 900G of host memory",
         "OUT_OF_MEMORY, reason none, signal 9"),
        (state("NODE_FAIL", ""), -9, "job-node-fail", "its node n7 failed", "NODE_FAIL, reason"),
        (state("BOOT_FAIL", ""), 1, "job-boot-fail", "its node n7 did not start", "BOOT_FAIL, "),
        (state("CANCELLED", ""), 0, "job-cancelled", "was cancelled from outside (scancel)",
         "CANCELLED, reason none, exit code 0"),
        (state("PREEMPTED", ""), -15, "job-preempted", "a job of higher priority", "PREEMPTED, "),
        (state("DEADLINE", ""), -15, "job-deadline", "its deadline passed", "DEADLINE, reason"),
        (state("REVOKED", ""), 1, "job-revoked", "ended as REVOKED", "REVOKED, reason none"),
    ],
)  # fmt: skip
def test_each_end_of_a_job_has_its_words(one, code, kind, cause, seen):
    found = failed(one, code)
    assert (found.kind, found.node, found.rank) == (kind, "n7", None)
    assert cause in found.cause and found.evidence.startswith(seen)
    assert found.evidence.endswith("; the last line")
    known = remedies.first([f"job/{one.state}", "job/unclear"], node="n7", **ERR)
    assert found.help == known and "{" not in found.help


def test_a_job_that_slurm_has_forgotten_has_no_exit_code():
    found = failed(state(GONE, "", ""))
    assert found.node == "SLURM" and found.kind == "job-gone"
    assert found.evidence == "GONE, reason none; the last line"
    assert found.cause.endswith("is unknown to SLURM by now, and its output does not say that its "
                                "work was done")  # fmt: skip
    assert found.help == remedies.of("job/unclear", **ERR)


def test_a_job_that_will_never_run():
    found = failed(state("PENDING", "InvalidQOS", ""), 0)
    assert found.cause.endswith(" will never run: InvalidQOS") and found.kind == "job-pending"
    assert found.evidence == "PENDING, reason InvalidQOS; the last line"
    assert found.help == remedies.of("job/PENDING")


def test_a_job_that_serves_must_not_complete():
    found = failed(state("COMPLETED", ""), 0)
    assert found.cause.endswith(" ended by itself, and it has to serve")
    assert found.help == remedies.of("job/unclear", **ERR) and found.kind == "job-completed"


def test_a_job_whose_predecessor_failed():
    found = failed(state("CANCELLED", "DependencyNeverSatisfied", ""), 0)
    assert found.cause.endswith("was cancelled by SLURM: the job before it did not do its work")
    assert found.help == remedies.of("job/dependency")


@pytest.mark.parametrize("text", ["{reason.__class__}", "{0}", "{", "NEW_{kind}"])
def test_a_state_that_nobody_knows_is_told_as_it_is(text):
    """jobs.json and SLURM are read by a person, not by str.format."""
    found = failed(state(text))
    assert found.cause.endswith(f" ended as {text}") and found.evidence.startswith(f"{text}, ")


# What was never a job -------------------------------------------------------------------------


@pytest.mark.parametrize(("job", "gpu"), [(JOB, True), (ON_CPUS, False)])
def test_a_job_that_sbatch_refuses(job, gpu):
    text = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --mem=9G # x\n  #SBATCH --no\necho --time=1\n"
    found = job_faults.refused(job, "invalid partition specified: gpux", text)
    assert found == Diagnosis(
        "job-refused",
        "SLURM",
        None,
        f"jobs/{job.file} ({'vllm_kimi' if gpu else 'fetch'}) is refused",
        "sbatch: invalid partition specified: gpux; asked for: --nodes=1 --mem=9G",
        slurm_commands.advice("invalid partition specified: gpux", gpu),
    )
    assert ("slurm.partition" in found.help) == gpu


def test_a_partition_that_is_not_there():
    plan = build.plan("k2.5", "h200", "single", variant="slurm")
    slurm = plan.request.site.slurm
    own = job_faults.no_partition(plan, slurm.partition, {"debug": "up", "long": "down"})
    assert own == Diagnosis(
        "no-partition",
        "SLURM",
        None,
        f"partition {slurm.partition} does not exist",
        "sinfo knows debug, long",
        remedies.of("slurm/no-partition", key="slurm.partition"),
    )
    other = job_faults.no_partition(plan, "cpux", {})
    assert (other.cause, other.evidence) == ("partition cpux does not exist", "sinfo knows none")
    assert other.help == remedies.of("slurm/no-partition", key="slurm.cpu_partition")
    assert own.help != other.help


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (
            lambda: job_faults.silent(OSError("no answer in 90 s")),
            ("slurm-silent", "SLURM", "SLURM does not answer", "no answer in 90 s", "silent"),
        ),
        (
            lambda: job_faults.held(Path("/w/claim"), Holder("run-7", "ann@here", "noon", "k2.5-h200")),
            ("site-taken", "login node",
             "the site is taken by run run-7 of ann@here since noon (k2.5-h200)", "/w/claim",
             "site-taken"),
        ),
        (
            lambda: job_faults.other_scripts([state(), state()], [f"f{at}" for at in range(9)]),
            ("other-scripts", "SLURM",
             "jobs of this run with other scripts are pending or running: "
             "vllm_kimi (9), vllm_kimi (9)",
             "the bundle would change: f0, f1, f2, f3, f4, f5", "other-scripts"),
        ),
        (
            lambda: job_faults.other_scripts([state()], []),
            ("other-scripts", "SLURM",
             "jobs of this run with other scripts are pending or running: vllm_kimi (9)",
             "their scripts are not those of the bundle", "other-scripts"),
        ),
        (
            lambda: job_faults.not_submitted(JOB),
            ("not-submitted", "SLURM", "jobs/4_baseline.sbatch was not submitted",
             "neither jobs.json nor the queue has it", "not-submitted"),
        ),
        (
            lambda: job_faults.not_serving(JOB, state("PENDING", "Priority")),
            ("not-serving", "SLURM", "the service does not run, so that nothing can be measured",
             "vllm_kimi: PENDING (Priority)", "not-serving"),
        ),
        (
            lambda: job_faults.not_serving(JOB, state("", "")),
            ("not-serving", "SLURM", "the service does not run, so that nothing can be measured",
             "vllm_kimi: not submitted", "not-serving"),
        ),
        (
            lambda: job_faults.left(OSError("no answer"), ["7", "9"], Path("/run")),
            ("slurm-silent", "SLURM", "SLURM does not answer, so that nothing was cancelled",
             "no answer; what remains: jobs 7, 9, /run", "silent-at-end"),
        ),
        (
            lambda: job_faults.left(OSError("no answer"), [], Path("/run")),
            ("slurm-silent", "SLURM", "SLURM does not answer, so that nothing was cancelled",
             "no answer; what remains: jobs none known, /run", "silent-at-end"),
        ),
        (
            lambda: job_faults.stuck(
                [row(7, "vllm_kimi", "COMPLETING", "n[1-2]"),
                 row(8, "fetch", "RUNNING", "")], Path("/run")),
            ("still-there", "n[1-2]", "cancelled jobs are still there",
             "7 (vllm_kimi) COMPLETING on n[1-2], 8 (fetch) RUNNING on no node; "
             "what remains: /run", "still-there"),
        ),
        (
            lambda: job_faults.stuck([row(8, "fetch", "RUNNING", "")], Path("/run")),
            ("still-there", "SLURM", "cancelled jobs are still there",
             "8 (fetch) RUNNING on no node; what remains: /run", "still-there"),
        ),
        (
            lambda: job_faults.not_removed(Path("/run/claim"), OSError("why")),
            ("not-removed", "login node", "/run/claim cannot be removed", "why", "not-removed"),
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_cluster_or_the_run(found, wanted):
    kind, where, cause, seen, remedy = wanted
    assert found() == Diagnosis(kind, where, None, cause, seen, remedies.of(f"slurm/{remedy}"))
