"""Keep a record of a run's jobs: written when they are submitted, updated from the queue.

The record (``jobs.json``) is on disk right after each submission, and every job carries the run in
its comment. By that comment a job is found that was submitted just before the submitting process
was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kimi_nb.core import scratch
from kimi_nb.deploy.slurm import slurm_commands
from kimi_nb.plan import jobs
from kimi_nb.plan.spec import Job, Plan

GONE = "GONE"  # SLURM has forgotten the job, and its output does not say that it did its work
_TAIL = 8192  # bytes at the end of a file that are read


class _Entry(BaseModel):
    """What the record holds of one job. What else is there is kept."""

    model_config = ConfigDict(strict=True, extra="allow")

    id: int
    digest: str = ""
    state: str = ""
    reason: str = ""
    node: str = ""
    said: str = ""
    code: int = 0
    of: int = 0
    hosts: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = []


@dataclass(frozen=True)
class JobState:
    """The state of one job of the run.

    Attributes:
        name: Its name in the plan.
        id: Its number, or None if it was not submitted.
        state: SLURM's state, or "" if it was not submitted.
        node: The nodes it runs on, as a host list.
        elapsed: The time it has run, as SLURM writes it.
        job_name: Its name in SLURM.
    """

    name: str
    file: str
    id: int | None
    state: str
    reason: str = ""
    node: str = ""
    elapsed: str = ""
    job_name: str = ""

    @property
    def live(self) -> bool:
        """Whether it is pending or running."""
        return self.id is not None and not self.ended

    @property
    def ended(self) -> bool:
        """Whether it was submitted and is over, successfully or not."""
        return self.state in slurm_commands.ENDED or self.state == GONE

    @property
    def done(self) -> bool:
        """Whether it has completed its work."""
        return self.state == "COMPLETED"

    def __str__(self) -> str:
        return f"{self.job_name} ({self.id})"


def serving_name(plan: Plan) -> str:
    """Return the name of the job that serves the plan's own scenario."""
    return "baseline" if plan.scenario == "default" else "optimised"


def chain(plan: Plan) -> tuple[Job, ...]:
    """Return the jobs up to the one that serves, each after the one before."""
    table = {job.name: job for job in plan.jobs}
    out: list[Job] = []
    name = serving_name(plan)
    while name:
        out.insert(0, table[name])
        name = table[name].after
    return tuple(out)


def option(job: Job, name: str) -> str:
    """Return the value of an option of a job, or ""."""
    return next((one.partition("=")[2] for one in job.options if one.startswith(f"--{name}=")), "")


def digest(text: str) -> str:
    """Return a short hash that identifies a job's script."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _record(folder: Path) -> dict[str, Any]:
    """Return the record in the folder of a deployment, or {} if there is none that can be read.

    A job whose entry is damaged is left out. If it is in the queue, its comment tells whose it is.
    """
    try:
        table = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not (isinstance(table, dict) and isinstance(table.get("jobs"), dict)):
        return {}
    return {**table, "jobs": {name: one for name, one in table["jobs"].items() if _is_whole(one)}}


def _is_whole(entry: Any) -> bool:
    try:
        _Entry.model_validate(entry)
    except ValidationError:
        return False
    return True


def _done_before(earlier: Sequence[Path], kept: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what earlier deployments recorded of the jobs ``kept`` that completed, the newest of each.

    Only a job whose script is known can stand for one of the present scripts.
    """
    out: dict[str, dict[str, Any]] = {}
    for folder in earlier:
        for name, one in _record(folder).get("jobs", {}).items():
            done = one.get("state") == "COMPLETED" and "digest" in one
            if done and name in kept:
                out.setdefault(name, dict(one))
    return out


def end_of(path: Path) -> str:
    """Return the end of a file, or "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


class Book:
    """The record ``jobs.json`` in a run's folder; ``outputs`` is the folder the jobs write to.

    ``earlier`` are the folders of earlier deployments of the plan, the newest first, whose jobs
    ``kept`` need not be done again.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        outputs: Path,
        wanted: Sequence[Job],
        earlier: Sequence[Path] = (),
        kept: Sequence[str] = (),
    ) -> None:
        self._folder, self._run_id, self._outputs, self._jobs = folder, run_id, outputs, wanted
        self.entries: dict[str, dict[str, Any]] = _done_before(earlier, kept)
        self.load()

    @property
    def comment(self) -> str:
        """The comment that every job of the run carries."""
        return f"kimi_nb:{self._run_id}"

    def load(self) -> None:
        """Read the record again, because another process of the run may have written it."""
        table = _record(self._folder)
        if table.get("run") == self._run_id:
            self.entries = {name: dict(one) for name, one in table["jobs"].items()}

    def note(self, name: str, **facts: Any) -> None:
        """Record facts about a job atomically; known facts are not written again.

        A new ``id`` starts the entry of the job afresh.
        """
        entry = self.entries.get(name, {})
        fresh = facts if facts.get("id", entry.get("id")) != entry.get("id") else entry | facts
        if fresh == entry:
            return
        self.entries[name] = fresh
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / "jobs.json.new"
        text = json.dumps({"run": self._run_id, "jobs": self.entries}, indent=1)
        scratch.write(new, text + "\n", sync=True)
        new.replace(self._folder / "jobs.json")

    @contextlib.contextmanager
    def submitting(self) -> Iterator[int]:
        """Hold the lock for submissions, and yield its file descriptor to hand to sbatch.

        sbatch then holds the lock until it has ended, even if this process is killed. Whoever takes
        the lock next finds the new job in the queue.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._folder / "submitting", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self.load()
            yield handle
        finally:
            os.close(handle)

    def ours(self, queue: Sequence[slurm_commands.Row]) -> list[slurm_commands.Row]:
        """Return the run's own jobs in the queue, recorded or not.

        A job of the same number or comment that works in another folder belongs to another run or
        cluster.
        """
        ids = {entry["id"] for entry in self.entries.values()}
        here = os.path.realpath(self._outputs)
        return [
            row
            for row in queue
            if (row.comment == self.comment or row.id in ids)
            and os.path.realpath(row.folder) == here
        ]

    def look(self, queue: Sequence[slurm_commands.Row], keep: bool = True) -> dict[str, JobState]:
        """Return every job of the run by its name in the plan, from the output of squeue.

        With ``keep`` what is new is recorded.
        """
        return {job.name: self._state(job, queue, keep) for job in self._jobs}

    def _state(self, job: Job, queue: Sequence[slurm_commands.Row], keep: bool) -> JobState:
        entry, called = self.entries.get(job.name, {}), option(job, "job-name")
        mine = [row for row in self.ours(queue) if row.name == called]
        row = max(mine, key=lambda row: row.id, default=None)
        if row is not None and row.id >= entry.get("id", 0):
            facts: dict[str, Any] = {"id": row.id}
            if row.state in slurm_commands.ENDED:
                facts |= {"state": row.state, "reason": row.reason, "node": row.nodes}
            if keep:
                self.note(job.name, **facts)
            return JobState(
                job.name, job.file, row.id, row.state, row.reason, row.nodes, row.elapsed, called
            )
        if not entry:
            return JobState(job.name, job.file, None, "", job_name=called)
        state = entry.get("state")
        if state is None:
            done = jobs.complete(job.name, self.tail(job, ".out", entry["id"]))
            state = "COMPLETED" if done else GONE
            if keep:
                self.note(job.name, state=state)
        return JobState(
            job.name,
            job.file,
            entry["id"],
            state,
            entry.get("reason", ""),
            entry.get("node", ""),
            job_name=called,
        )

    def path(self, job: Job, suffix: str, number: int) -> Path:
        """Return the path of a file that a job writes."""
        return self._outputs / f"{option(job, 'job-name')}.{number}{suffix}"

    def tail(self, job: Job, suffix: str, number: int) -> str:
        """Return the end of a file that a job writes, or "" if there is none."""
        return end_of(self.path(job, suffix, number))

    def last_lines(self, job: Job, number: int, most: int = 4) -> str:
        """Return how a job's error output ended, or its standard output if that is empty."""
        for suffix in (".err", ".out"):
            lines = [line for line in self.tail(job, suffix, number).splitlines() if line.strip()]
            if lines:
                return f"{self.path(job, suffix, number).name}: {' | '.join(lines[-most:])}"
        return f"{self.path(job, '.err', number).name}: nothing was said"
