"""SLURM of a test: it answers as it was told to, notes what is asked, and refuses the rest.

What is submitted waits until the test says otherwise (`set`); what is cancelled is over at once.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kimi_nb.bundle import scripts
from kimi_nb.deploy.slurm import cluster, job_book, job_queue
from kimi_nb.deploy.slurm.cluster import Cluster
from kimi_nb.deploy.slurm.slurm_commands import Slurm, SlurmError, SlurmSilent
from kimi_nb.deploy.steps import Change, Outcome, StepFailed
from kimi_nb.plan import build
from kimi_nb.plan.spec import Job

UP = "Slurmctld(primary) at head is UP"
SITE = """\
name: testbed
hardware: h200
transport: slurm
nodes:
{nodes}slurm: {{account: kimi, partition: gpu, cpu_partition: common, modules: [anaconda3]}}
{more}paths:
  cache: {root}/cache
  models: {root}/models
  project: {root}/project
  work: {root}/work
"""

NODES = """\
  - {name: dgx-01, address: 198.51.100.21}
  - {name: dgx-02, address: 198.51.100.22}
"""


class AnsweringSlurm(Slurm):
    """SLURM's commands; ``asked`` notes each call, `changed` those that change something.

    ``silent`` has why a kind of call gets no answer, by its first word in ``asked``; ``refuses``
    why sbatch refuses a job, by the job's name. ``on`` is called before each call with its note.
    """

    def __init__(self, env: Mapping[str, str], *, folder: Path) -> None:
        super().__init__(env)
        self.folder, self.asked = folder, []
        self.jobs: dict[int, dict[str, str]] = {}
        self.codes: dict[int, str] = {}
        self.silent: dict[str, str] = {}
        self.refuses: dict[str, str] = {}
        self.partitions_say = "gpu|up\ncommon|up\n"
        self.addresses = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
        self.stay: set[int] = set()  # jobs that no scancel ends
        self.on: Callable[[str], object] = lambda asked: None
        self.next = 11

    @property
    def changed(self) -> list[str]:
        """The calls that changed something."""
        return [one for one in self.asked if one.startswith(("submit ", "cancel "))]

    def add(self, number: int, name: str, state: str = "RUNNING", nodes: str = "", **more) -> None:
        """Put a job of the run "run-1" into the queue."""
        self.jobs[number] = {
            "state": state, "reason": "None", "nodes": nodes, "elapsed": "1:02",
            "folder": str(self.folder), "name": name, "comment": "kimi_nb:run-1",
        } | more  # fmt: skip

    def set(self, number: int, state: str, nodes: str = "", reason: str = "None") -> None:
        """Say what became of a job."""
        self.jobs[number] |= {"state": state, "nodes": nodes, "reason": reason}

    def _run(self, *argv, folder=None, given="", keep=(), env=None):
        note, answer = self._of(argv, folder, given, keep)
        self.asked.append(note)
        self.on(note)
        if error := self.silent.get(note.split()[0]):
            raise SlurmSilent(error)
        return answer()

    def _of(self, argv, folder, given, keep) -> tuple[str, Callable[[], str]]:
        """What a call is noted as, and how it is answered."""
        match argv:
            case ["scontrol", "ping"]:
                return "ping", lambda: f"{UP}\n"
            case ["sinfo", "--noheader", "--all", "--format=%R|%a"]:
                return "partitions", lambda: self.partitions_say
            case ["squeue", "--noheader", "--me", "--all", "--states=all", form]:
                assert form == "--format=%i|%T|%r|%N|%M|%Z|%j|%k"
                return "queue", self._queue
            case ["sbatch", "--test-only"]:
                return f"test {_name(given)}", lambda: self._verdict(_name(given))
            case ["sbatch", "--parsable", "--export=ALL", "--no-requeue", *options, file]:
                # The lock goes with it, or a controller that is killed leaves a job behind.
                (lock,) = keep
                assert os.readlink(f"/proc/self/fd/{lock}").endswith("/submitting")
                name = _name(Path(folder, file).read_text())
                after = " ".join(one for one in options if not one.startswith("--comment="))
                return f"submit {name} {after}".strip(), lambda: self._submit(name, options, folder)
            case ["scancel", "--quiet", *numbers]:
                return f"cancel {' '.join(numbers)}", lambda: self._cancel(map(int, numbers))
            case ["scontrol", "show", "hostnames", nodes]:
                names = {"n[1-2]": "n1\nn2\n", "n1": "n1\n", "n2": "n2\n"}
                return f"hosts {nodes}", lambda: names[nodes]
            case ["scontrol", "-o", "show", "node", name]:
                return f"address {name}", lambda: f"NodeName={name} NodeAddr={self.addresses[name]}"
            case ["scontrol", "-o", "show", "job", number]:
                return f"record {number}", lambda: f"JobId={number} {self.codes[int(number)]}"
        raise AssertionError(argv)

    def _queue(self) -> str:
        columns = ("state", "reason", "nodes", "elapsed", "folder", "name", "comment")
        return "".join(
            f"{number}|{'|'.join(one[column] for column in columns)}\n"
            for number, one in self.jobs.items()
        )

    def _verdict(self, name: str) -> str:
        if name in self.refuses:
            raise SlurmError(self.refuses[name])
        return ""

    def _submit(self, name: str, options: Sequence[str], folder: Path) -> str:
        self._verdict(name)
        number, self.next = self.next, self.next + 1
        waits = any(one.startswith("--dependency=") for one in options)
        (comment,) = (one.partition("=")[2] for one in options if one.startswith("--comment="))
        self.add(number, name, "PENDING", folder=str(folder), comment=comment)
        self.jobs[number]["reason"] = "Dependency" if waits else "Priority"
        return f"{number}\n"

    def _cancel(self, numbers) -> str:
        for number in numbers:
            if number not in self.stay:
                self.jobs[number]["state"] = "CANCELLED"
        return ""


def _name(script: str) -> str:
    return re.search(r"^#SBATCH --job-name=(\S+)$", script, re.MULTILINE)[1]


class Clock(types.SimpleNamespace):
    """The time of the modules that wait, in seconds, which sleeping moves; ``on`` is called then.

    The disk keeps nobody waiting either.
    """

    def __init__(self, monkeypatch) -> None:
        super().__init__(now=1000.0, slept=[], on=lambda: None)
        self.strftime = lambda form: "11-23 06:04:02"
        for module in (cluster, job_queue):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(os, "fsync", lambda handle: None)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        assert len(self.slept) < 5000, "it waits for ever"
        self.on()


class Site:
    """A cluster of SLURM with a plan on it, and what it says."""

    def __init__(
        self,
        root: Path,
        *,
        nodes: str = NODES,
        more: str = "",
        env: Mapping[str, str] | None = None,
        **how,
    ) -> None:
        self.root, self.said = root, []
        self.project, self.work = root / "project", root / "work"
        path = root / "site.yaml"
        path.write_text(SITE.format(root=root, nodes=nodes, more=more))
        self.plan = build.plan("k2.5", "h200", "single", variant="slurm", site=str(path), **how)
        self.files = dict(scripts.files(self.plan))
        self.bundle = self.work / self.plan.name
        self.jobs = self.bundle / "jobs"
        programs = root / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo"):
            (programs / name).touch(mode=0o755)
        env = {"PATH": str(programs)} | dict(env or {})
        self.slurm = AnsweringSlurm(env, folder=self.jobs)
        self.cluster = self.process()

    def process(self, run_id: str = "run-1", poll: float = 5.0, **more) -> Cluster:
        """The cluster as one process of a run sees it."""
        return Cluster(
            self.plan, self.files, self.root / run_id, run_id, self.said.append,
            commands=self.slurm, poll=poll, **more,
        )  # fmt: skip

    def job(self, name: str) -> Job:
        """A job of the plan by its name there."""
        return next(job for job in self.plan.jobs if job.name == name)

    def step(self, name: str) -> Outcome:
        """Run one step."""
        (step,) = (one for one in self.cluster.steps if one.name == name)
        return step.run()

    def pushed(self) -> Site:
        """The site with the bundle on it, as far as it is before the jobs are submitted."""
        for step in ("claim", "push"):
            self.step(step)
        return self

    def prepared(self) -> Site:
        """The same, with all done that comes before the serving job, as jobs 1, 2, ...

        SLURM has forgotten them.
        """
        self.pushed()
        for number, job in enumerate(job_book.chain(self.plan)[:-1], start=1):
            for path in map(Path, job.products):
                path.mkdir(parents=True)
            text = self.files[f"jobs/{job.file}"]
            self.book.note(job.name, id=number, digest=job_book.digest(text), state="COMPLETED")
        return self

    def serves(self, nodes: str = "n1", host: str = "n1") -> int:
        """Bring it up to a serving job that runs; its number."""
        self.prepared()
        self.step("submit")
        number = self.cluster._queue.ids()[self.cluster._serving_job.name]
        self.slurm.set(number, "RUNNING", nodes)
        self.host_file.write_text(f"{host}\n")
        self.step("wait")
        return number

    @property
    def book(self) -> job_book.Book:
        """The record of the jobs."""
        return self.cluster._book

    @property
    def host_file(self) -> Path:
        """Where the serving job writes on which node it is."""
        return self.project / "server_host.txt"


def whats(changes: Sequence[Change], node: str) -> list[str]:
    """What was changed, all of it on one node."""
    assert {one.node for one in changes} <= {node}, changes
    return [one.what for one in changes]


def failure(call: Callable[[], object], step: str) -> StepFailed:
    """The failure of a step by its name."""
    try:
        call()
    except StepFailed as error:
        assert error.step == step, error
        assert error.__suppress_context__ or error.__context__ is None
        return error
    raise AssertionError("nothing failed")
