"""Deploy a plan on a SLURM cluster from its login node: submit, follow and cancel its jobs.

Example::

    cluster = Cluster(plan, scripts.files(plan), folder, "run-1", print)
    for step in cluster.steps:
        step.run()
    watch = readiness.Watch(cluster.serving(), cluster.logs, cluster.ended, limits)

Nothing important is kept in memory only: another process with the same folder and run can continue.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kimi_nb import show
from kimi_nb.bundle import writer
from kimi_nb.core.errors import ParameterError, WriteError
from kimi_nb.deploy import claim
from kimi_nb.deploy.slurm import job_book, job_faults, job_logs, slurm_commands
from kimi_nb.deploy.slurm.job_book import Book, JobState
from kimi_nb.deploy.slurm.job_queue import QUEUE, JobQueue
from kimi_nb.deploy.slurm.slurm_commands import Slurm, SlurmError
from kimi_nb.deploy.steps import Change, EngineState, Outcome, Step, StepFailed
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan import build, serving_job
from kimi_nb.plan.spec import EngineSpec, Job, Plan
from kimi_nb.service import http_client, probe

LOGIN = "login node"  # the node named in changes on this machine
_HOST_FILE = 60.0  # seconds for the serving job to write its host name
_PROBE = 5.0  # seconds for a completion in `status`


class Cluster:
    """A plan on a SLURM cluster.

    ``files`` are those of the plan's bundle, ``folder`` is the deployment's own on the login node,
    ``run_id`` identifies the run on the cluster, ``say`` receives progress messages, and ``poll``
    is the time between two looks at the queue, in seconds. ``earlier`` are the folders of earlier
    deployments of the plan, the newest first: a job that did its work for one of them is kept.
    """

    def __init__(
        self,
        plan: Plan,
        files: Mapping[str, str],
        folder: Path,
        run_id: str,
        say: Callable[[str], None],
        *,
        commands: Slurm | None = None,
        poll: float = 2.0,
        earlier: Sequence[Path] = (),
    ) -> None:
        if not plan.jobs:
            raise ParameterError(
                f"{plan.name} has no jobs; choose a variant made of SLURM jobs (kimi-nb list)."
            )
        self.plan, self._files, self._say, self._poll = plan, dict(files), say, poll
        self._slurm = commands or slurm_commands.here()
        self._run_id, self._folder = run_id, folder
        paths = plan.request.site.paths
        self._work = Path(paths.work)
        self._host_file = Path(plan.request.places()["project"], serving_job.SERVER_FILE)
        self._chain = job_book.chain(plan)
        self._serving_job = self._chain[-1]
        self._benchmark = next(job for job in plan.jobs if job.name == "benchmark")
        self.bundle = self._work / plan.name
        self._book = Book(
            folder,
            run_id,
            self.bundle / "jobs",
            (*self._chain, self._benchmark),
            earlier,
            [job.name for job in self._chain[:-1]],
        )
        self._queue = JobQueue(
            self._slurm, self._book, self._files, self.bundle / "jobs", say, poll
        )
        self._bound: tuple[object, Plan] = (None, plan)
        self.logs = job_logs.JobLogs(self.log_folder, self._serving_files, self._word)

    @property
    def url(self) -> str:
        """The URL of the service on the node that SLURM chose."""
        return self.serving().url

    @property
    def log_folder(self) -> Path:
        """The folder in which `logs` keeps what it has read."""
        return self._folder / "logs"

    @property
    def steps(self) -> Sequence[Step]:
        """The steps from the login node to a running serving job."""
        return (
            Step(
                "reach",
                "look for SLURM, its partitions and the shared folders",
                self._reach,
                always=True,
            ),
            Step("claim", "take the site for this run", self._claim, always=True),
            Step("push", "put the bundle into the shared folder", self._push),
            Step("test", "ask sbatch whether it would take every job", self._test),
            Step("submit", "submit the jobs, each after the one before", self._submit, always=True),
            Step("wait", "wait until the serving job runs", self._wait, always=True),
        )

    @property
    def after(self) -> Sequence[Step]:
        """The step that submits the benchmark, without waiting for it.

        `queue` and `follow` show its progress.
        """
        return (Step("benchmark", "submit the benchmark job", self.submit_benchmark),)

    def diff(self) -> str:
        """Return the changes of the bundle in the shared folder as ``diff -u``."""
        before = writer.read(self.bundle)
        return writer.unified(before, self._files) if before else ""

    def queue(self) -> show.Table:
        """Return a table of the run's jobs. Raises SlurmError."""
        return show.Table(
            "Jobs",
            ("job", "number", "state", "reason", "node", "elapsed"),
            tuple(
                (
                    one.job_name,
                    one.id or "",
                    one.state or "not submitted",
                    one.reason,
                    one.node,
                    one.elapsed,
                )
                for one in self.jobs()
            ),
        )

    def memory_mb(self) -> float:
        """Return 0, because memory cannot be measured from the login node."""
        return 0.0

    # Before anything is submitted ---------------------------------------------------------

    def _reach(self) -> Outcome:
        missing = self._slurm.missing()
        if missing:
            there = " is" if len(missing) == 1 else " are"
            raise StepFailed(
                "reach",
                [
                    Diagnosis(
                        "no-slurm",
                        LOGIN,
                        None,
                        f"{', '.join(missing)}{there} not on this machine",
                        f"PATH={self._slurm.env.get('PATH', '')}",
                        remedies.of("slurm/no-commands"),
                    )
                ],
            )
        try:
            says, known = self._slurm.ping(), self._slurm.partitions()
        except SlurmError as error:
            raise StepFailed("reach", [job_faults.silent(error)]) from None
        failed, warnings = [], []
        for partition in dict.fromkeys(map(_partition, (*self._chain, self._benchmark))):
            if partition not in known:
                failed.append(job_faults.no_partition(self.plan, partition, known))
            elif known[partition] != "up":
                warnings.append(
                    Change(
                        QUEUE,
                        f"partition {partition} is {known[partition]}: jobs "
                        "wait there until it is up",
                    )
                )
        for folder in dict.fromkeys((self._work, self._host_file.parent)):
            why = _unwritable(folder)
            if why:
                failed.append(
                    Diagnosis(
                        "not-writable",
                        LOGIN,
                        None,
                        f"{folder} cannot be written",
                        why,
                        remedies.of("slurm/not-shared"),
                    )
                )
        if failed:
            raise StepFailed("reach", failed)
        return Outcome(warnings=tuple(warnings), facts={"controller": says})

    def look(self) -> tuple[Sequence[Diagnosis], str]:
        """Return what is wrong before anything is submitted, and what the controller says.

        Nothing is changed: the jobs are shown to sbatch with --test-only.
        """
        try:
            says = str(self._reach().facts["controller"])
            refused = [(job, self._refusal(job)) for job in (*self._chain, self._benchmark)]
        except StepFailed as error:
            return error.failed, ""
        except SlurmError as error:
            return [job_faults.silent(error)], ""
        return [
            job_faults.refused(job, refusal, self._files[f"jobs/{job.file}"])
            for job, refusal in refused
            if refusal
        ], f"{says}; sbatch takes {len(refused)} jobs"

    def _claim(self) -> Outcome:
        path = self._work / "claim"
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            held = claim.take(path, self._run_id, self.plan.name)
        except OSError as error:
            raise StepFailed(
                "claim",
                [
                    Diagnosis(
                        "not-writable",
                        LOGIN,
                        None,
                        f"{path} cannot be written",
                        str(error),
                        remedies.of("slurm/no-log-folder"),
                    )
                ],
            ) from None
        if held is None:
            return Outcome((Change(LOGIN, f"{path}: the site is this run's"),))
        if held.run_id == self._run_id:
            return Outcome()
        raise StepFailed("claim", [job_faults.held(path, held)])

    def _push(self) -> Outcome:
        changes = writer.diff(writer.read(self.bundle) or {}, self._files)
        live = [one for one in self._queue.look("push").values() if one.live] if changes else []
        if live and self.bundle.exists():
            # Replacing the folder would pull it from under jobs that write into it.
            raise StepFailed("push", [job_faults.other_scripts(live, sorted(changes))])
        try:
            done = writer.write(self._files, self.bundle)
        except WriteError as error:
            raise StepFailed(
                "push",
                [
                    Diagnosis(
                        "not-writable",
                        LOGIN,
                        None,
                        f"{self.bundle} cannot be written",
                        str(error),
                        remedies.of("slurm/no-bundle"),
                    )
                ],
            ) from None
        return Outcome(tuple(_written(self.bundle, done)))

    def _test(self) -> Outcome:
        states = self._queue.look("test")
        failed, tested = [], []
        for job, wanted in self._wanted(states):
            if not wanted:
                continue
            try:
                refusal = self._refusal(job)
            except SlurmError as error:
                raise StepFailed("test", [job_faults.silent(error)]) from None
            tested.append(job.file)
            if refusal:
                failed.append(job_faults.refused(job, refusal, self._files[f"jobs/{job.file}"]))
        if failed:
            raise StepFailed("test", failed)
        return Outcome(facts={"tested": tested} if tested else {})

    def _refusal(self, job: Job) -> str:
        return self._slurm.refusal(self._files[f"jobs/{job.file}"])

    def _wanted(self, states: Mapping[str, JobState]) -> list[tuple[Job, bool]]:
        """Return every job and whether it has to be submitted; the benchmark comes last.

        If an earlier job of the chain is repeated, later ones that are done no longer count, and a
        later one that is pending on the old job would wait in vain.
        """
        out, anew, unfinished = [], False, False
        for job in self._chain:
            state = states[job.name]
            kept = (
                not (anew and state.state == "PENDING")
                if state.live
                else (
                    state.done
                    and not unfinished
                    and job is not self._serving_job
                    and self._queue.same(job)
                    # What a job has made can have disappeared since.
                    and all(Path(path).exists() for path in job.products)
                )
            )
            anew |= not kept
            unfinished |= not kept or state.live
            out.append((job, not kept))
        return [*out, (self._benchmark, not self._measured(states))]

    # The jobs -----------------------------------------------------------------------------

    def _submit(self) -> Outcome:
        self._check_secrets("submit")
        changes: list[Change] = []
        with self._book.submitting() as lock:
            states = self._queue.look("submit")
            other = [
                states[job.name]
                for job in self._chain
                if states[job.name].live and not self._queue.same(job)
            ]
            if other:
                raise StepFailed("submit", [job_faults.other_scripts(other, [])])
            before: int | None = None
            for job, wanted in self._wanted(states)[:-1]:
                state = states[job.name]
                if not wanted:
                    before = state.id if state.live else None
                    continue
                if state.live:
                    self._queue.withdraw("submit", state, changes)
                if job is self._serving_job:
                    # The file names the server of an earlier job.
                    self._host_file.unlink(missing_ok=True)
                before = self._queue.send("submit", job, before, "afterok", lock, changes)
        return Outcome(tuple(changes), facts={"jobs": self._queue.ids()})

    def _check_secrets(self, step: str) -> None:
        unset = [
            source
            for source in dict.fromkeys(self.plan.secrets.values())
            if not self._slurm.env.get(source)
        ]
        if unset:
            names = ", ".join(unset)
            raise StepFailed(
                step,
                [
                    Diagnosis(
                        "secret-unset",
                        LOGIN,
                        None,
                        f"{names} is not set here",
                        f"the site file's api_key_env is {names}; sbatch hands the jobs the variables of "
                        "who submits",
                        remedies.of("slurm/secret-unset", names=names),
                    )
                ],
            )

    def _wait(self) -> Outcome:
        try:
            state = self._queue.until("wait", self._chain, lambda one: one.state == "RUNNING")
        except StepFailed:
            self.logs.keep(self._all_files())
            raise
        try:
            hosts = self._queue.hosts(state)
            said = self._host_said(state)
        except SlurmError as error:
            raise StepFailed("wait", [job_faults.silent(error)]) from None
        host, address = hosts[0]
        warnings = (
            ()
            if said
            else (
                Change(
                    host,
                    f"{self._host_file} was not written: the benchmark would ask {self.plan.url}",
                ),
            )
        )
        places = ", ".join(f"{name} ({where})" for name, where in hosts)
        self._say(f"{state} runs on {places}")
        return Outcome(
            warnings=warnings,
            facts={
                "jobs": self._queue.ids(),
                "host": host,
                "address": address,
                "hosts": [name for name, _ in hosts],
                "server_host": said,
            },
        )

    def _host_said(self, state: JobState) -> str:
        """Return what the serving job wrote into its host file, or "" if it did not in time."""
        end = time.monotonic() + _HOST_FILE
        while True:
            text = _text(self._host_file).strip()
            if text:
                self._book.note(state.name, said=text)
                return text
            if time.monotonic() > end or self._over(state.name):
                return ""
            time.sleep(min(self._poll, 1.0))

    def _over(self, name: str) -> bool:
        """Return whether a job has ended; while SLURM does not answer, none has."""
        try:
            return not self._queue.now()[name].live
        except SlurmError:
            return False

    # The service --------------------------------------------------------------------------

    def serving(self) -> Plan:
        """Return the plan with the nodes that SLURM chose instead of the site file's.

        While those nodes are not known, the plan is returned as it is.
        """
        hosts = self._book.entries.get(self._serving_job.name, {}).get("hosts")
        if not hosts:
            return self.plan
        if self._bound[0] != hosts:
            request = self.plan.request
            nodes = tuple(
                request.site.nodes[0].model_copy(update={"name": name, "address": address})
                for name, address in hosts
            )
            site = request.site.model_copy(update={"nodes": nodes})
            self._bound = (hosts, build.from_request(replace(request, site=site)))
        return self._bound[1]

    def ended(self) -> Mapping[str, int]:
        """Return {"NODE engines": exit code} for every node if the serving job has ended, else {}.

        While SLURM does not answer, nothing counts as ended.
        """
        try:
            state = self._queue.now()[self._serving_job.name]
        except SlurmError:
            return {}
        if not state.ended:
            return {}
        return dict.fromkeys(
            (f"{node} engines" for node in self.serving().nodes), self._queue.code(state)
        )

    def open_door(self) -> Outcome:
        """Do nothing: a job of replicas starts its router itself."""
        return Outcome()

    def submit_benchmark(self) -> Outcome:
        """Submit the benchmark of the running service, once for each serving job.

        The caller must have seen that the service is ready.
        """
        self._check_secrets("benchmark")
        changes: list[Change] = []
        with self._book.submitting() as lock:
            states = self._queue.look("benchmark")
            state = states[self._serving_job.name]
            if state.state != "RUNNING":
                raise StepFailed("benchmark", [job_faults.not_serving(self._serving_job, state)])
            if not self._measured(states):
                # After the start of the serving job ("after"), not its success: it does not end.
                self._queue.send(
                    "benchmark", self._benchmark, state.id, "after", lock, changes, of=state.id
                )
            number = self._queue.ids()[self._benchmark.name]
        output = self._book.path(self._benchmark, ".out", number)
        return Outcome(
            tuple(changes), facts={"jobs": self._queue.ids(), "benchmark_output": str(output)}
        )

    def _measured(self, states: Mapping[str, JobState]) -> bool:
        """Return whether the benchmark of this serving job is done, pending or running."""
        state = states[self._benchmark.name]
        of = self._book.entries.get(self._benchmark.name, {}).get("of")
        return state.live or (
            state.done
            and of in (None, states[self._serving_job.name].id)
            and self._queue.same(self._benchmark)
        )

    def wait_benchmark(self) -> Outcome:
        """Wait until the benchmark is done; the facts name its output file."""
        state = self._queue.until("benchmark", [self._benchmark], lambda one: one.done)
        assert state.id is not None
        output = self._book.path(self._benchmark, ".out", state.id)
        return Outcome(facts={"jobs": self._queue.ids(), "output": str(output)})

    # Status -------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobState, ...]:
        """Return every job of the run as SLURM knows it now. Raises SlurmError."""
        return tuple(self._book.look(self._slurm.queue()).values())

    def status(self) -> Sequence[EngineState]:
        """Return the current state of the plan's engines. Raises SlurmError."""
        self._queue.forget()
        job, plan = self._queue.now()[self._serving_job.name], self.serving()
        self.logs.read()
        lines = [line for log in self.logs.all() for line in log.lines if job_faults.tells(line)]
        key = self._slurm.env.get(self.plan.secrets.get("VLLM_API_KEY", ""), "")
        ways = {one.engine: one for one in reversed(probe.endpoints(plan))}
        heads = {_rank(engine): ways[engine.name] for engine in plan.engines if engine.name in ways}
        asked: dict[probe.Endpoint, http_client.Reply] = {}
        out = []
        for engine in plan.engines:
            state, mark = "ended" if job.ended else "not started", ""
            if job.state == "RUNNING":
                # A part of a rank that spans nodes is ready when the rank's head answers.
                one = heads[_rank(engine)]
                if one not in asked:
                    asked[one] = probe.chat(one, plan.served_name, _PROBE, key=key, max_tokens=1)
                state, mark = "ready" if asked[one].answered else "starting", asked[one].mark
            out.append(
                EngineState(
                    engine.name,
                    engine.node,
                    engine.rank,
                    engine.http_port,
                    state,
                    lines[-1].strip() if lines and state != "ready" else "",
                    mark,
                )
            )
        return out

    def undone(self, step: str) -> bool:
        """Return False: every step that starts something is always repeated."""
        return False

    def preview(self) -> Sequence[Change]:
        """Return what the steps would change, and sbatch's verdict on each job.

        Nothing is changed. Raises StepFailed for jobs that sbatch would refuse, and SlurmError.
        """
        self._reach()
        out, refused = [], []
        path = self._work / "claim"
        held = claim.holder(path)
        if held is None:
            out.append(Change(LOGIN, f"{path}: would be taken for this run"))
        elif held.run_id != self._run_id:
            out.append(Change(LOGIN, f"{path}: {held} has the site; nothing would be done"))
        out += _written(self.bundle, writer.diff(writer.read(self.bundle) or {}, self._files))
        for job, wanted in self._wanted(self._book.look(self._slurm.queue(), keep=False)):
            if wanted:
                if refusal := self._refusal(job):
                    text = self._files[f"jobs/{job.file}"]
                    refused.append(job_faults.refused(job, refusal, text))
                    continue
                when = " when the service is ready" * (job is self._benchmark)
                name = job_book.option(job, "job-name")
                out.append(Change(QUEUE, f"jobs/{job.file} ({name}): would be submitted{when}"))
        if refused:
            raise StepFailed("test", refused)
        return out

    def follow(self, stop: Callable[[], bool]) -> Iterator[tuple[str, str]]:
        """Yield (source, line) of all that the run's jobs write, until ``stop`` returns true.

        The source of a line of the serving job is "NODE JOB", that of another line its job.
        """
        return job_logs.follow(self._named_files, stop)

    # The end ------------------------------------------------------------------------------

    def down(self) -> Outcome:
        """Cancel unfinished jobs, wait until they are gone, and release the site."""
        changes: list[Change] = []
        path = self._work / "claim"
        # A claim that cannot be read keeps no job alive; its release below tells what is wrong.
        with contextlib.suppress(OSError):
            held = claim.holder(path)
            if held is not None and held.run_id == self._run_id:
                # Before the jobs are cancelled, and not again: their own words on that are no
                # failure.
                self.logs.keep(self._all_files())
        try:
            live = self._queue.cancel(changes)
        except SlurmError as error:
            known = [
                f"{name} ({one['id']})"
                for name, one in self._book.entries.items()
                if "state" not in one
            ]
            raise StepFailed(
                "down", [job_faults.left(error, known, path)], Outcome(tuple(changes))
            ) from None
        if live:
            raise StepFailed("down", [job_faults.stuck(live, path)], Outcome(tuple(changes)))
        failed = []
        try:
            if self._names_our_server(_text(self._host_file).strip()):
                self._host_file.unlink(missing_ok=True)
                changes.append(Change(LOGIN, f"{self._host_file}: removed"))
        except OSError as error:
            failed.append(job_faults.not_removed(self._host_file, error))
        try:
            if claim.release(path, self._run_id):
                changes.append(Change(LOGIN, f"{path}: released"))
        except OSError as error:
            failed.append(job_faults.not_removed(path, error))
        if failed:
            raise StepFailed("down", failed, Outcome(tuple(changes)))
        return Outcome(tuple(changes))

    def _names_our_server(self, host: str) -> bool:
        """Return whether this run's serving job wrote the name in the host file.

        That is also recognised if nobody waited for the file to be written.
        """
        entry = self._book.entries.get(self._serving_job.name, {})
        known = {entry.get("said"), entry.get("node"), *dict(entry.get("hosts", []))} - {None, ""}
        return host in known or host.partition(".")[0] in known

    def close(self) -> None:
        """Do nothing: there is no connection, and the jobs continue."""

    # Sources of the logs ------------------------------------------------------------------

    def _word(self) -> str:
        """Return how SLURM describes the end of the serving job; "" while it runs."""
        try:
            state = self._queue.now()[self._serving_job.name]
            return job_faults.word(state, self._queue.code(state)) if state.ended else ""
        except SlurmError:
            return ""

    def _serving_files(self) -> dict[Path, str]:
        """Return the node of each file that the serving job writes."""
        nodes = self.serving().nodes
        paths = self._queue.files_of(self._serving_job)
        # Two files of the job, which its first node writes, then two of the task on each node.
        return {path: nodes[max(at // 2 - 1, 0)] for at, path in enumerate(paths)}

    def _all_files(self) -> dict[Path, str]:
        """Return the node of each file that a job of the run writes; "" but for the serving job."""
        self._book.load()
        others = (*self._chain[:-1], self._benchmark)
        return {
            **{path: "" for job in others for path in self._queue.files_of(job)},
            **self._serving_files(),
        }

    def _named_files(self) -> dict[Path, str]:
        return {path: job_logs.source(node, path) for path, node in self._all_files().items()}


def _written(bundle: Path, files: Mapping[str, str]) -> list[Change]:
    """Return a change for all files of a folder to which the same was done."""
    names: dict[str, list[str]] = {}
    for name, what in files.items():
        names.setdefault(what, []).append(name)
    return [
        Change(LOGIN, f"{bundle}: {what}: {', '.join(sorted(some))}")
        for what, some in names.items()
    ]


def _rank(engine: EngineSpec) -> tuple[str, int, int]:
    return engine.role, engine.group, engine.rank


def _partition(job: Job) -> str:
    return job_book.option(job, "partition")


def _unwritable(folder: Path) -> str:
    """Return why a folder, or its nearest existing parent, cannot be written; "" if it can."""
    # Path.exists raises an error below a folder that others may not search, until Python 3.14.
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there}: no permission to write"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
