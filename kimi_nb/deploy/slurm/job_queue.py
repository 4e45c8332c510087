"""The jobs of one run in the queue: submitted, followed, cancelled, and looked up again.

What `Cluster` does at each step stands there; this is how, with SLURM's commands and the book.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kimi_nb.deploy.slurm import job_book, job_faults
from kimi_nb.deploy.slurm import slurm_commands as slurm
from kimi_nb.deploy.slurm.job_book import Book, JobState
from kimi_nb.deploy.slurm.slurm_commands import Slurm, SlurmError
from kimi_nb.deploy.steps import Change, Outcome, StepFailed
from kimi_nb.plan.spec import Job

QUEUE = "SLURM"  # the node of a change that is the cluster's
_OUTAGE = 900.0  # seconds without an answer of slurmctld that a wait sits out
_CANCEL = 120.0  # seconds for cancelled jobs to be gone


class JobQueue:
    """A run's jobs. ``files`` are those of the bundle, whose folder ``jobs`` is ``folder`` on the
    shared file system; ``poll`` is how many seconds lie between two looks at the queue."""

    def __init__(
        self,
        commands: Slurm,
        book: Book,
        files: Mapping[str, str],
        folder: Path,
        say: Callable[[str], None],
        poll: float,
    ) -> None:
        self.book, self._slurm, self._files, self._folder = book, commands, files, folder
        self._say, self._poll = say, poll
        self._seen: tuple[float, dict[str, JobState]] = (0.0, {})

    # What is known ------------------------------------------------------------------------

    def look(self, step: str) -> dict[str, JobState]:
        """The jobs as they are now. Raises StepFailed of ``step``."""
        try:
            return self.book.look(self._slurm.queue())
        except SlurmError as error:
            raise StepFailed(step, [job_faults.silent(error)]) from None

    def now(self) -> dict[str, JobState]:
        """The jobs, looked up at most once in ``poll`` seconds: a watch asks many times."""
        at, states = self._seen
        if not states or time.monotonic() - at > self._poll:
            states = self.book.look(self._slurm.queue())
            self._seen = (time.monotonic(), states)
        return states

    def forget(self) -> None:
        """Look again at the next `now`."""
        self._seen = (0.0, {})

    def code(self, state: JobState) -> int:
        """The exit code of a job that has ended; written down, as SLURM forgets it."""
        entry = self.book.entries.get(state.name, {})
        if "code" in entry:
            return int(entry["code"])
        try:
            text = self._slurm.record(state.id or 0).get("ExitCode", "")
        except SlurmError:
            return slurm.exit_code("", state.state)
        code = slurm.exit_code(text, state.state)
        self.book.note(state.name, code=code)
        return code

    def ids(self) -> dict[str, int]:
        """The numbers of the jobs that were submitted, by name."""
        return {name: one["id"] for name, one in self.book.entries.items()}

    def files_of(self, job: Job) -> list[Path]:
        """Output and error output of a job; empty for one that was not submitted."""
        number = self.book.entries.get(job.name, {}).get("id")
        return (
            []
            if number is None
            else [self.book.path(job, suffix, number) for suffix in (".out", ".err")]
        )

    def same(self, job: Job) -> bool:
        """Whether a job was submitted with the script that it has now, as far as is known."""
        before = self.book.entries.get(job.name, {}).get("digest")
        return before in (None, job_book.digest(self._files[f"jobs/{job.file}"]))

    def host(self, state: JobState) -> tuple[str, str]:
        """(name, address) of the node on which a job runs; written down."""
        entry = self.book.entries.get(state.name, {})
        if not entry.get("host"):
            host = self._slurm.hosts(state.node)[0]
            self.book.note(state.name, host=host, address=self._slurm.address(host))
            entry = self.book.entries[state.name]
        return entry["host"], entry["address"]

    # What is done -------------------------------------------------------------------------

    def send(
        self,
        step: str,
        job: Job,
        after: int | None,
        kind: str,
        lock: int,
        changes: list[Change],
        **facts: object,
    ) -> int:
        """Submit a job, write it down with ``facts``, add it to ``changes``; its number. Raises
        StepFailed with what was submitted so far."""
        text = self._files[f"jobs/{job.file}"]
        try:
            number = self._slurm.submit(
                job.file, self._folder, self.book.comment, after, kind, [lock]
            )
        except SlurmError as error:
            raise StepFailed(
                step,
                [job_faults.refused(job, str(error), text)],
                Outcome(tuple(changes), facts={"jobs": self.ids()}),
            ) from None
        self.book.note(job.name, id=number, digest=job_book.digest(text), **facts)
        self.forget()
        changes.append(
            Change(
                QUEUE,
                f"job {number} ({job_book.option(job, 'job-name')}): "
                f"submitted from jobs/{job.file}",
            )
        )
        self._say(changes[-1].what)
        return number

    def withdraw(self, step: str, state: JobState) -> None:
        """Cancel a job that another one takes the place of."""
        try:
            self._slurm.cancel([state.id or 0])
        except SlurmError as error:
            raise StepFailed(step, [job_faults.silent(error)]) from None

    def until(
        self, step: str, chain: Sequence[Job], enough: Callable[[JobState], bool]
    ) -> JobState:
        """Follow jobs until the last one is as it has to be; raise StepFailed for the first that
        ended otherwise."""
        said: dict[str, tuple[str, str]] = {}
        out_since: float | None = None
        while True:
            try:
                states = self.book.look(self._slurm.queue())
                out_since = None
            except SlurmError as error:
                now = time.monotonic()
                if out_since is None:
                    self._say(f"SLURM does not answer ({error}): waiting")
                out_since = out_since or now
                if now - out_since > _OUTAGE:
                    raise StepFailed(step, [job_faults.silent(error)]) from None
                time.sleep(self._poll)
                continue
            mine = [states[job.name] for job in chain]
            for one in mine:
                if one.id is not None and said.get(one.name) != (one.state, one.reason):
                    said[one.name] = (one.state, one.reason)
                    self._say(
                        f"{one}: {one.state}"
                        + (f" ({one.reason})" if one.reason else "")
                        + (f" on {one.node}" if one.node and one.live else "")
                    )
            if mine[-1].id is not None and enough(mine[-1]):
                return mine[-1]
            self._check_failed(step, chain, mine)
            time.sleep(self._poll)

    def _check_failed(self, step: str, chain: Sequence[Job], states: Sequence[JobState]) -> None:
        """Raise StepFailed for the first job that will not do its work: what follows from it only
        says that its dependency is never satisfied."""
        for job, state in zip(chain, states, strict=True):
            last = job is chain[-1]
            if state.id is None:
                if last:
                    raise StepFailed(step, [job_faults.not_submitted(job)])
            elif (state.ended and (last or not state.done)) or (
                state.state == "PENDING" and state.reason in slurm.NEVER
            ):
                code = self.code(state) if state.ended else 0
                raise StepFailed(
                    step,
                    [job_faults.failed(job, state, code, self.book.last_lines(job, state.id))],
                    Outcome(facts={"jobs": self.ids()}),
                )

    def cancel(self, changes: list[Change]) -> list[slurm.Row]:
        """Cancel the run's jobs by number and by comment; those that are still there."""
        end = time.monotonic() + _CANCEL
        asked: set[int] = set()
        with self.book.submitting():  # nobody submits meanwhile
            while True:
                queue = self._slurm.queue()
                self.book.look(queue)
                live = [row for row in self.book.ours(queue) if row.state not in slurm.ENDED]
                fresh = [row for row in live if row.id not in asked]
                if fresh:
                    self._slurm.cancel([row.id for row in fresh])
                    asked |= {row.id for row in fresh}
                    changes += [
                        Change(QUEUE, f"job {row.id} ({row.name}): cancelled") for row in fresh
                    ]
                elif not live or time.monotonic() > end:
                    self.forget()
                    return live
                else:
                    time.sleep(min(self._poll, 1.0))
