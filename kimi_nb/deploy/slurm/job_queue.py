"""Submit, follow, look up and cancel the jobs of one run.

`cluster` decides what to do at each step; this module does it with SLURM's commands and the record
of the jobs.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kimi_nb.deploy.slurm import job_book, job_faults, slurm_commands
from kimi_nb.deploy.slurm.job_book import Book, JobState
from kimi_nb.deploy.slurm.slurm_commands import Slurm, SlurmError, SlurmSilent
from kimi_nb.deploy.steps import Change, Outcome, StepFailed
from kimi_nb.plan import serving_job
from kimi_nb.plan.spec import Job

QUEUE = "SLURM"  # the node named in changes of the queue
_OUTAGE = 900.0  # seconds for which waiting tolerates that slurmctld does not answer
_CANCEL = 120.0  # seconds for cancelled jobs to end


class JobQueue:
    """The jobs of a run.

    ``files`` are those of the bundle, ``folder`` is its folder ``jobs`` on the shared file system,
    and ``poll`` is the time between two looks at the queue, in seconds.
    """

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

    # State --------------------------------------------------------------------------------

    def look(self, step: str) -> dict[str, JobState]:
        """Return the current state of the jobs. Raises StepFailed for ``step``."""
        try:
            return self.book.look(self._slurm.queue())
        except SlurmError as error:
            raise StepFailed(step, [job_faults.silent(error)]) from None

    def now(self) -> dict[str, JobState]:
        """Return the state of the jobs, which is at most ``poll`` seconds old.

        A watch asks for it often.
        """
        at, states = self._seen
        if not states or time.monotonic() - at > self._poll:
            states = self.book.look(self._slurm.queue())
            self._seen = (time.monotonic(), states)
        return states

    def forget(self) -> None:
        """Make the next call of `now` look at the queue again."""
        self._seen = (0.0, {})

    def code(self, state: JobState) -> int:
        """Return the exit code of an ended job, and record it because SLURM forgets it."""
        entry = self.book.entries.get(state.name, {})
        if "code" in entry:
            return int(entry["code"])
        try:
            text = self._slurm.record(state.id or 0).get("ExitCode", "")
        except SlurmError:
            return slurm_commands.exit_code("", state.state)
        code = slurm_commands.exit_code(text, state.state)
        self.book.note(state.name, code=code)
        return code

    def ids(self) -> dict[str, int]:
        """Return the numbers of the submitted jobs, by name."""
        return {name: one["id"] for name, one in self.book.entries.items()}

    def files_of(self, job: Job) -> list[Path]:
        """Return the output and error output of a job; [] if it was not submitted.

        A job on several nodes also has those of its task on each node, in the order of the nodes.
        """
        number = self.book.entries.get(job.name, {}).get("id")
        if number is None:
            return []
        nodes = int(job_book.option(job, "nodes") or 1)
        parts = ["", *map(serving_job.task_suffix, range(nodes))] if nodes > 1 else [""]
        return [
            self.book.path(job, f"{part}{suffix}", number)
            for part in parts
            for suffix in (".out", ".err")
        ]

    def same(self, job: Job) -> bool:
        """Return whether a job was submitted with its present script, as far as is known."""
        before = self.book.entries.get(job.name, {}).get("digest")
        return before in (None, job_book.digest(self._files[f"jobs/{job.file}"]))

    def hosts(self, state: JobState) -> list[tuple[str, str]]:
        """Return (name, address) of each node on which a job runs, and record them.

        The first is the one that runs the job's script, and on which the API listens.
        """
        entry = self.book.entries.get(state.name, {})
        if not entry.get("hosts"):
            names = self._slurm.hosts(state.node)
            self.book.note(state.name, hosts=[[name, self._slurm.address(name)] for name in names])
            entry = self.book.entries[state.name]
        return [(name, address) for name, address in entry["hosts"]]

    # Changes ------------------------------------------------------------------------------

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
        """Submit a job, record it with ``facts``, add it to ``changes``, and return its number.

        Raises StepFailed with what was submitted so far.
        """
        text = self._files[f"jobs/{job.file}"]
        try:
            number = self._slurm.submit(
                job.file, self._folder, self.book.comment, after, kind, [lock]
            )
        except SlurmError as error:
            silent = isinstance(error, SlurmSilent)
            raise StepFailed(
                step,
                [job_faults.silent(error) if silent else job_faults.refused(job, str(error), text)],
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
        return number

    def withdraw(self, step: str, state: JobState, changes: Sequence[Change]) -> None:
        """Cancel a job that is to be replaced.

        Raises StepFailed with what was submitted so far.
        """
        try:
            self._slurm.cancel([state.id or 0])
        except SlurmError as error:
            raise StepFailed(
                step,
                [job_faults.silent(error)],
                Outcome(tuple(changes), facts={"jobs": self.ids()}),
            ) from None

    def until(
        self, step: str, chain: Sequence[Job], enough: Callable[[JobState], bool]
    ) -> JobState:
        """Follow jobs until the last one satisfies ``enough``, and return its state.

        Raises StepFailed for the first job that ends in any other way.
        """
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
        """Raise StepFailed for the first job that will not do its work.

        The jobs after it only report that their dependency is never satisfied.
        """
        for job, state in zip(chain, states, strict=True):
            last = job is chain[-1]
            if state.id is None:
                if last:
                    raise StepFailed(step, [job_faults.not_submitted(job)])
            elif (state.ended and (last or not state.done)) or (
                state.state == "PENDING" and state.reason in slurm_commands.NEVER
            ):
                code = self.code(state) if state.ended else 0
                raise StepFailed(
                    step,
                    [job_faults.failed(job, state, code, self._said(job, state.id))],
                    Outcome(facts={"jobs": self.ids()}),
                )

    def _said(self, job: Job, number: int) -> str:
        """Return how a job ended in its own words; of a job on several nodes, in those of a task."""
        for path in self.files_of(job)[2:]:
            wrong = [line for line in job_book.end_of(path).splitlines() if job_faults.tells(line)]
            if wrong:
                return f"{path.name}: {wrong[-1].strip()}"
        return self.book.last_lines(job, number)

    def cancel(self, changes: list[Change]) -> list[slurm_commands.Row]:
        """Cancel the run's jobs, found by number and by comment; return those that do not end."""
        end = time.monotonic() + _CANCEL
        asked: set[int] = set()
        with self.book.submitting():  # nobody can submit meanwhile
            while True:
                queue = self._slurm.queue()
                with contextlib.suppress(OSError):  # a full disk keeps no job alive
                    self.book.look(queue)
                live = [
                    row for row in self.book.ours(queue) if row.state not in slurm_commands.ENDED
                ]
                fresh = [row for row in live if row.id not in asked]
                if fresh:
                    _note(fresh)
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


def _note(rows: Sequence[slurm_commands.Row]) -> None:
    """Write beside the output of jobs that run that this run cancels them.

    SLURM's own words on it are the same whoever did it; `diagnose.stopping` reads this line.
    """
    place = f"{Path(__file__).name}:{sys._getframe().f_lineno}"
    begin = f"INFO {time.strftime('%m-%d %H:%M:%S')} [{place}]"
    for row in rows:
        path = Path(row.folder) / f"{row.name}.{row.id}.down.log"
        line = f"{begin} kimi-nb down: job {row.id} ({row.name}) is cancelled\n"
        with contextlib.suppress(OSError):  # a full disk keeps no job alive
            if row.state == "RUNNING":
                path.write_text(line, encoding="utf-8")
