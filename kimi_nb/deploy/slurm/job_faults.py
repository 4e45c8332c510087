"""Describe what can go wrong with jobs: where, what was seen, and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kimi_nb.deploy.claim import Holder
from kimi_nb.deploy.slurm import slurm_commands
from kimi_nb.deploy.slurm.job_book import GONE, JobState, option
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan.spec import Job, Plan

_ERROR = re.compile(
    r"\bERROR\b|\w(?:Error|Exception)\b|^slurmstepd: error|^srun: error|"
    r"command not found|^REHEARSAL: what the real"
)
# What happened to a job, by its final state.
_ENDS = {
    "FAILED": "failed",
    "TIMEOUT": "was ended by SLURM: its time limit of {time} was used up",
    "OUT_OF_MEMORY": (
        "was ended by SLURM: it took more than the {mem} of host memory that it asked for"
    ),
    "NODE_FAIL": "was ended by SLURM: its node {node} failed",
    "BOOT_FAIL": "was ended by SLURM: its node {node} did not start",
    "CANCELLED": "was cancelled from outside (scancel), by its owner or an administrator",
    "PREEMPTED": "was ended by SLURM for a job of higher priority",
    "DEADLINE": "was ended by SLURM: its deadline passed",
    GONE: "is unknown to SLURM by now, and its output does not say that its work was done",
}


def tells(line: str) -> bool:
    """Return whether a line of a log reports an error."""
    return bool(_ERROR.search(line))


def word(state: JobState, code: int) -> str:
    """Return SLURM's description of an ended job, in the form the failure signatures expect.

    The signatures are in ``data/diagnose/signatures.yaml``.
    """
    return (
        f"JobId={state.id} JobName={state.job_name} JobState={state.state} "
        f"Reason={state.reason or 'None'} NodeList={state.node or '(null)'} "
        f"{'signal' if code < 0 else 'ExitCode'}={abs(code)}"
    )


def failed(job: Job, state: JobState, code: int, last: str) -> Diagnosis:
    """Describe a job that ended without doing its work, or that will never run."""
    means, remedy = _ENDS.get(state.state), f"job/{state.state}"
    if state.state == "FAILED":
        remedy = "job/ended"
    if state.state == "PENDING":
        means = "will never run: {reason}"
    elif state.done:
        means = "ended by itself, and it has to serve"
    elif state.reason == "DependencyNeverSatisfied":
        means = "was cancelled by SLURM: the job before it did not do its work"
        remedy = "job/dependency"
    words = {
        "err": f"{state.job_name}.{state.id}.err",
        "node": state.node,
        "reason": state.reason,
        "mem": option(job, "mem"),
        "time": option(job, "time"),
    }
    # What is not ours may have braces.
    end = f"ended as {state.state}" if means is None else means.format(**words)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    seen = f"{state.state}, reason {state.reason or 'none'}"
    if state.state not in ("PENDING", GONE):
        seen += f", {how}"
    return Diagnosis(
        f"job-{state.state.lower().replace('_', '-')}",
        state.node or "SLURM",
        None,
        f"job {state.id} ({state.job_name}, jobs/{job.file}) {end}",
        f"{seen}; {last}",
        remedies.first((remedy, "job/unclear"), **words),
    )


def refused(job: Job, refusal: str, text: str) -> Diagnosis:
    """Describe a job that sbatch refuses; ``text`` is its script."""
    asked = " ".join(re.findall(r"^#SBATCH (--\S+)", text, re.MULTILINE))
    return Diagnosis(
        "job-refused",
        "SLURM",
        None,
        f"jobs/{job.file} ({option(job, 'job-name')}) is refused",
        f"sbatch: {refusal}; asked for: {asked}",
        slurm_commands.advice(refusal, bool(option(job, "gpus-per-node"))),
    )


def no_partition(plan: Plan, partition: str, known: Mapping[str, str]) -> Diagnosis:
    """Describe a partition that does not exist on the cluster."""
    site = plan.request.site.slurm
    key = "slurm.partition" if partition == site.partition else "slurm.cpu_partition"
    return Diagnosis(
        "no-partition",
        "SLURM",
        None,
        f"partition {partition} does not exist",
        f"sinfo knows {', '.join(known) or 'none'}",
        remedies.of("slurm/no-partition", key=key),
    )


def silent(error: Exception) -> Diagnosis:
    """Describe the failure of SLURM to answer."""
    return Diagnosis(
        "slurm-silent",
        "SLURM",
        None,
        "SLURM does not answer",
        str(error),
        remedies.of("slurm/silent"),
    )


def held(path: Path, holder: Holder) -> Diagnosis:
    """Describe a site that another run holds."""
    return Diagnosis(
        "site-taken",
        "login node",
        None,
        f"the site is taken by run {holder.run_id} of {holder.who} since "
        f"{holder.since} ({holder.plan})",
        str(path),
        remedies.of("slurm/site-taken"),
    )


def other_scripts(live: Sequence[JobState], changed: Sequence[str]) -> Diagnosis:
    """Describe jobs that belong to another version of the bundle."""
    return Diagnosis(
        "other-scripts",
        "SLURM",
        None,
        f"jobs of this run with other scripts are pending or running: {', '.join(map(str, live))}",
        f"the bundle would change: {', '.join(changed[:6])}"
        if changed
        else "their scripts are not those of the bundle",
        remedies.of("slurm/other-scripts"),
    )


def not_submitted(job: Job) -> Diagnosis:
    """Describe a job that is awaited but was never submitted."""
    return Diagnosis(
        "not-submitted",
        "SLURM",
        None,
        f"jobs/{job.file} was not submitted",
        "neither jobs.json nor the queue has it",
        remedies.of("slurm/not-submitted"),
    )


def not_serving(job: Job, state: JobState) -> Diagnosis:
    """Describe a benchmark without a running service."""
    return Diagnosis(
        "not-serving",
        "SLURM",
        None,
        "the service does not run, so that nothing can be measured",
        f"{option(job, 'job-name')}: {state.state or 'not submitted'}"
        + (f" ({state.reason})" if state.reason else ""),
        remedies.of("slurm/not-serving"),
    )


def left(error: Exception, known: Sequence[str], path: Path) -> Diagnosis:
    """Describe what remains if SLURM cannot be asked to cancel jobs."""
    return Diagnosis(
        "slurm-silent",
        "SLURM",
        None,
        "SLURM does not answer, so that nothing was cancelled",
        f"{error}; what remains: jobs {', '.join(known) or 'none known'}, {path}",
        remedies.of("slurm/silent-at-end"),
    )


def stuck(live: Sequence[slurm_commands.Row], path: Path) -> Diagnosis:
    """Describe cancelled jobs that have not ended."""
    rows = ", ".join(
        f"{row.id} ({row.name}) {row.state} on {row.nodes or 'no node'}" for row in live
    )
    return Diagnosis(
        "still-there",
        live[0].nodes or "SLURM",
        None,
        "cancelled jobs are still there",
        f"{rows}; what remains: {path}",
        remedies.of("slurm/still-there"),
    )


def not_removed(path: Path, error: Exception) -> Diagnosis:
    """Describe a file that stays behind when everything else is cleaned up."""
    return Diagnosis(
        "not-removed",
        "login node",
        None,
        f"{path} cannot be removed",
        str(error),
        remedies.of("slurm/not-removed"),
    )
