"""Jobs submitted, followed, looked up and cancelled, on what SLURM's commands print."""

from __future__ import annotations

import fcntl
import re
import types
from pathlib import Path

import pytest

from kimi_nb.core.errors import KimiError
from kimi_nb.deploy.slurm import job_book, job_faults, job_queue
from kimi_nb.deploy.slurm.job_book import Book, JobState
from kimi_nb.deploy.slurm.job_queue import JobQueue
from kimi_nb.deploy.slurm.slurm_commands import Row, Slurm, SlurmError, SlurmSilent
from kimi_nb.deploy.steps import Change, Outcome, StepFailed
from kimi_nb.plan.spec import Job


def job(name: str, called: str, after: str = "", *more: str) -> Job:
    options = (f"--job-name={called}", *more)
    return Job(name, f"1_{name}.sbatch", after, options, {}, (), ())


INSTALL, FETCH = job("install", "install_vllm"), job("download", "fetch", "install")
SERVE = job("baseline", "vllm_kimi", "download")
CHAIN = (INSTALL, FETCH, SERVE)
FILES = {f"jobs/{one.file}": f"#!/bin/bash\n# {one.name}\n" for one in CHAIN}


class Programs(Slurm):
    """SLURM's commands as this project calls them; each other call is a mistake.

    ``jobs`` are the queue; ``silent`` is how many calls get no answer from now on. ``on`` is called
    before each look at the queue, with the number of the look.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self.folder, self.jobs, self.asked = folder, {}, []
        self.silent, self.looks, self.on = 0, 0, lambda at: None
        self.records: dict[str, str] = {}

    def add(
        self, number: int, name="vllm_kimi", state="RUNNING", reason="None", nodes="n1", **more
    ):
        facts = {"comment": "kimi_nb:run-1", "folder": self.folder} | more
        self.jobs[number] = (state, reason, nodes, "1:02", facts["folder"], name, facts["comment"])

    def _run(self, *argv, folder=None, given="", keep=(), env=None):
        self.asked.append(argv[0])
        if argv[0] == "squeue":
            assert "--me" in argv and "--states=all" in argv
            self.looks += 1
            self.on(self.looks)
        if self.silent:
            self.silent -= 1
            raise SlurmSilent("no answer")
        if argv[0] == "squeue":
            return "".join(f"{at}|{'|'.join(map(str, one))}\n" for at, one in self.jobs.items())
        if argv[0] == "scancel":
            self.asked[-1] = argv
            return ""
        if argv[0] == "sbatch":
            self.asked[-1] = (*argv[4:], folder, tuple(keep))
            if "refuse" in self.records:
                raise SlurmError(self.records["refuse"])
            return "9\n"
        if argv[:2] == ("scontrol", "show") and argv[2] == "hostnames":
            assert argv[3] == "n[1-2]"
            return "n1\nn2\n"
        if argv[:3] == ("scontrol", "-o", "show"):
            return self.records[f"{argv[3]} {argv[4]}"]
        raise AssertionError(argv)


@pytest.fixture
def clock(monkeypatch):
    """The time of `job_queue`, in seconds, which sleeping moves."""
    time = types.SimpleNamespace(now=1000.0, slept=[])

    def sleep(seconds):
        time.slept.append(seconds)
        time.now += seconds
        assert len(time.slept) < 5000, "it waits for ever"

    time.monotonic, time.sleep = lambda: time.now, sleep
    time.strftime = lambda form: {"%m-%d %H:%M:%S": "11-23 06:04:02"}[form]
    monkeypatch.setattr(job_queue, "time", time)
    return time


class Site:
    """A queue of a run's jobs, with all that it says."""

    def __init__(self, root: Path) -> None:
        self.jobs = root / "jobs"
        self.jobs.mkdir()
        self.slurm, self.said = Programs(self.jobs), []
        self.book = Book(root / "run", "run-1", self.jobs, CHAIN)
        self.queue = JobQueue(self.slurm, self.book, FILES, self.jobs, self.said.append, 5.0)
        for name, text in FILES.items():
            (root / name).write_text(text)


@pytest.fixture
def site(tmp_path, clock):
    return Site(tmp_path)


def state(number: int | None = 9, of="FAILED", reason="", node="n1", name="baseline") -> JobState:
    called = {"baseline": "vllm_kimi", "install": "install_vllm"}[name]
    return JobState(name, f"1_{name}.sbatch", number, of, reason, node, "1:02", called)


def failure(call) -> StepFailed:
    with pytest.raises(StepFailed) as told:
        call()
    assert told.value.step == "serve"
    return told.value


# State ----------------------------------------------------------------------------------------


def test_a_look_at_the_queue(site):
    site.slurm.add(9)
    assert site.queue.look("serve") == {
        "install": JobState("install", INSTALL.file, None, "", job_name="install_vllm"),
        "download": JobState("download", FETCH.file, None, "", job_name="fetch"),
        "baseline": state(9, "RUNNING"),
    }
    site.slurm.silent = 1
    (one,) = failure(lambda: site.queue.look("serve")).failed
    assert one == job_faults.silent(SlurmError("no answer"))


def test_a_watch_looks_no_more_often_than_it_polls(site, clock):
    site.slurm.add(9)
    clock.now = 0.0
    assert site.queue.now()["baseline"].state == "RUNNING" and site.slurm.looks == 1
    site.slurm.add(9, state="FAILED")
    clock.now += 5.0
    assert site.queue.now()["baseline"].state == "RUNNING" and site.slurm.looks == 1
    clock.now += 0.1
    assert site.queue.now()["baseline"].state == "FAILED" and site.slurm.looks == 2
    site.queue.now()
    assert site.slurm.looks == 2
    site.queue.forget()
    site.queue.now()
    assert site.slurm.looks == 3


def test_the_exit_code_of_a_job_is_recorded(site):
    site.slurm.add(9, state="FAILED")
    site.queue.look("serve")
    site.slurm.records["job 9"] = "JobId=9 ExitCode=3:0 Comment=x"
    assert site.queue.code(state()) == 3
    site.slurm.records.clear()  # SLURM has forgotten it
    assert site.queue.code(state()) == 3 == site.book.entries["baseline"]["code"]


@pytest.mark.parametrize(
    ("said", "of", "code"),
    [("JobId=9 JobState=TIMEOUT", "TIMEOUT", -15), ("", "FAILED", 1), ("", "COMPLETED", 0)],
)
def test_an_exit_code_that_slurm_does_not_say(site, said, of, code):
    site.slurm.add(9, state=of)
    site.queue.look("serve")
    site.slurm.records["job 9"] = said
    assert site.queue.code(state(of=of)) == code == site.book.entries["baseline"]["code"]


def test_an_exit_code_while_slurm_is_silent_is_not_recorded(site):
    site.slurm.add(9, state="TIMEOUT")
    site.queue.look("serve")
    site.slurm.silent = 1
    assert site.queue.code(state(of="TIMEOUT")) == -15
    assert "code" not in site.book.entries["baseline"]
    site.slurm.records["job 0"] = "ExitCode=4:0"
    assert site.queue.code(state(None, "FAILED", name="install")) == 4


def test_the_numbers_of_the_jobs(site):
    assert site.queue.ids() == {}
    site.book.note("install", id=7)
    site.book.note("baseline", id=9)
    assert site.queue.ids() == {"install": 7, "baseline": 9}


def test_the_files_of_a_job(site):
    assert site.queue.files_of(SERVE) == []
    site.book.note("baseline", id=9)

    def names(*more: str) -> list[str]:
        files = site.queue.files_of(job("baseline", "vllm_kimi", "", *more))
        assert all(path.parent == site.jobs for path in files)
        return [path.name.removeprefix("vllm_kimi.9") for path in files]

    assert names() == names("--nodes=1") == [".out", ".err"]
    assert names("--nodes=2") == [
        ".out", ".err", ".node0.out", ".node0.err", ".node1.out", ".node1.err",
    ]  # fmt: skip
    assert len(names("--nodes=3")) == 8


def test_a_job_is_the_same_while_its_script_is(site):
    assert site.queue.same(SERVE)
    site.book.note("baseline", id=9)
    assert site.queue.same(SERVE)  # nothing is known of its script
    site.book.note("baseline", digest=job_book.digest(FILES[f"jobs/{SERVE.file}"]))
    assert site.queue.same(SERVE) and site.queue.same(INSTALL)
    site.book.note("baseline", digest="0" * 16)
    assert not site.queue.same(SERVE)


def test_the_nodes_of_a_job_are_asked_for_once(site):
    site.slurm.add(9, nodes="n[1-2]")
    site.queue.look("serve")
    site.slurm.records |= {"node n1": "NodeName=n1 NodeAddr=10.0.0.1", "node n2": "NodeName=n2"}
    hosts = [("n1", "10.0.0.1"), ("n2", "n2")]
    assert site.queue.hosts(state(node="n[1-2]")) == hosts
    site.slurm.records.clear()
    assert site.queue.hosts(state(node="n[1-2]")) == hosts
    assert site.book.entries["baseline"]["hosts"] == [list(one) for one in hosts]
    assert site.slurm.asked.count("scontrol") == 3


# Submitting -----------------------------------------------------------------------------------


def test_a_job_is_submitted_and_recorded(site, tmp_path):
    site.slurm.add(7, "install_vllm", "COMPLETED")
    assert site.queue.now()["baseline"].id is None
    changes = [Change("x", "before")]
    # sbatch gives this number.
    site.slurm.jobs[9] = (*site.slurm.jobs[7][:5], "vllm_kimi", "kimi_nb:run-1")
    assert site.queue.send("serve", SERVE, 7, "afterany", 5, changes, said="why") == 9
    assert site.slurm.asked[-1] == (
        "--comment=kimi_nb:run-1", "--dependency=afterany:7", "--kill-on-invalid-dep=yes",
        SERVE.file, site.jobs, (5,),
    )  # fmt: skip
    digest = job_book.digest(FILES[f"jobs/{SERVE.file}"])
    assert site.book.entries["baseline"] == {"id": 9, "digest": digest, "said": "why"}
    assert changes == [
        Change("x", "before"),
        Change("SLURM", f"job 9 (vllm_kimi): submitted from jobs/{SERVE.file}"),
    ]
    assert site.queue.now()["baseline"].id == 9  # the queue is looked at again
    assert site.queue.send("serve", INSTALL, None, "afterok", 0, [], of=3) == 9
    assert site.slurm.asked[-1][1:2] == (INSTALL.file,)


def test_a_job_that_is_refused_tells_what_was_submitted(site):
    site.book.note("install", id=7)
    site.slurm.records["refuse"] = "invalid partition specified: gpux"
    made = [Change("SLURM", "job 7 (install_vllm): submitted")]
    changes = list(made)
    told = failure(lambda: site.queue.send("serve", SERVE, 7, "afterok", 0, changes))
    text = FILES[f"jobs/{SERVE.file}"]
    assert told.failed == (job_faults.refused(SERVE, site.slurm.records["refuse"], text),)
    assert told.outcome.changes == tuple(made) and told.outcome.facts == {"jobs": {"install": 7}}
    assert changes == made and "baseline" not in site.book.entries


def test_a_submission_without_an_answer_is_no_refusal(site):
    site.book.note("install", id=7)
    made = [Change("SLURM", "job 7 (install_vllm): submitted")]
    site.slurm.silent = 1
    told = failure(lambda: site.queue.send("serve", SERVE, 7, "afterok", 0, list(made)))
    assert told.failed == (job_faults.silent(SlurmError("no answer")),)
    assert told.outcome == Outcome(tuple(made), facts={"jobs": {"install": 7}})
    assert "baseline" not in site.book.entries


def test_a_job_that_is_replaced_is_cancelled(site):
    site.book.note("install", id=7)
    made = Change("SLURM", "job 7 (install_vllm): submitted")
    site.queue.withdraw("serve", state(9, "PENDING"), [made])
    assert site.slurm.asked == [("scancel", "--quiet", "9")]
    site.queue.withdraw("serve", state(None, ""), [])
    assert site.slurm.asked[1:] == [("scancel", "--quiet", "0")]
    site.slurm.silent = 1
    told = failure(lambda: site.queue.withdraw("serve", state(), [made]))
    assert told.failed == (job_faults.silent(SlurmError("no answer")),)
    # What was submitted before it is told, too.
    assert told.outcome == Outcome((made,), facts={"jobs": {"install": 7}})


# Following ------------------------------------------------------------------------------------


def until(site, enough=lambda one: one.state == "RUNNING") -> JobState:
    return site.queue.until("serve", CHAIN, enough)


def test_jobs_are_followed_until_the_last_one_runs(site, clock):
    def on(look):
        if look == 1:
            site.slurm.add(7, "install_vllm", "PENDING", "Priority", "")
            site.slurm.add(9, state="PENDING", reason="Dependency", nodes="")
        if look == 3:
            site.slurm.add(7, "install_vllm", "RUNNING", nodes="n3")
        if look == 4:
            site.slurm.add(7, "install_vllm", "COMPLETED", nodes="n3")
            site.slurm.add(9, state="PENDING", reason="Resources", nodes="")
        if look == 5:
            site.slurm.add(9, nodes="n1")

    site.slurm.on = on
    assert until(site) == state(9, "RUNNING")
    assert site.said == [
        "install_vllm (7): PENDING (Priority)",
        "vllm_kimi (9): PENDING (Dependency)",
        "install_vllm (7): RUNNING on n3",
        "install_vllm (7): COMPLETED",
        "vllm_kimi (9): PENDING (Resources)",
        "vllm_kimi (9): RUNNING on n1",
    ]
    assert clock.slept == [5.0] * 4


def test_an_outage_of_slurm_is_waited_out(site, clock):
    site.slurm.add(9, state="PENDING", nodes="")
    site.slurm.on = lambda look: (
        setattr(site.slurm, "silent", int(look <= 150)) or (look == 151 and site.slurm.add(9))
    )
    assert until(site).state == "RUNNING"
    assert site.said == [
        "SLURM does not answer (no answer): waiting",
        "vllm_kimi (9): RUNNING on n1",
    ]


def test_outages_do_not_add_up_but_one_must_end(site, clock):
    site.slurm.add(9, state="PENDING", nodes="")
    # Answers at every 150th look: 745 s without one, again and again.
    site.slurm.on = lambda look: setattr(site.slurm, "silent", int(look % 150 != 0 and look < 600))

    def enough(one):
        return site.slurm.looks > 600

    assert until(site, enough).id == 9
    assert site.said.count("SLURM does not answer (no answer): waiting") == 4
    begin, site.slurm.on = clock.now, lambda look: setattr(site.slurm, "silent", 1)
    told = failure(lambda: until(site))
    assert told.failed == (job_faults.silent(SlurmError("no answer")),)
    assert clock.now - begin == 905.0  # more than a quarter of an hour
    assert site.said.count("SLURM does not answer (no answer): waiting") == 5


def test_a_job_that_was_never_submitted_fails_if_it_is_the_last(site):
    site.slurm.add(7, "install_vllm")
    told = failure(lambda: until(site, lambda one: True))
    assert told.failed == (job_faults.not_submitted(SERVE),)
    site.slurm.jobs.clear()
    site.slurm.add(9)
    assert until(site).id == 9  # those before it may be done already


@pytest.mark.parametrize(
    ("of", "reason", "number", "code"),
    [
        ("FAILED", "NonZeroExitCode", 7, 3),
        ("COMPLETED", "", 9, 0),
        ("TIMEOUT", "TimeLimit", 9, -15),
        ("PENDING", "InvalidQOS", 7, 0),
        ("PENDING", "QOSNotAllowed", 9, 0),
    ],
)
def test_the_first_job_that_does_not_do_its_work_is_told(site, of, reason, number, code):
    """The one after it only says that its dependency is never satisfied."""
    name, one = {7: ("install", INSTALL), 9: ("baseline", SERVE)}[number]
    called = job_book.option(one, "job-name")
    site.slurm.add(7, "install_vllm", "COMPLETED")
    site.slurm.add(9, state="PENDING", reason="DependencyNeverSatisfied", nodes="")
    site.slurm.add(number, called, of, reason or "None")
    site.slurm.records[f"job {number}"] = f"JobId={number} ExitCode={max(code, 0)}:{max(-code, 0)}"
    (site.jobs / f"{called}.{number}.err").write_text("why\n")
    told = failure(lambda: until(site))
    seen = state(number, of, reason, name=name)
    assert told.failed == (job_faults.failed(one, seen, code, f"{called}.{number}.err: why"),)
    assert told.outcome.facts == {"jobs": site.queue.ids()} and site.queue.ids()[name] == number
    assert ("scontrol" in site.slurm.asked) == (of != "PENDING")


def test_a_job_that_only_waits_is_waited_for(site, clock):
    site.slurm.add(7, "install_vllm", "RUNNING", "QOSNotAllowed")  # of no job that runs
    site.slurm.add(9, state="PENDING", reason="Priority", nodes="")
    site.slurm.on = lambda look: look == 4 and site.slurm.add(9)
    assert until(site).id == 9 and clock.slept == [5.0] * 3


def test_how_a_job_on_several_nodes_ended(site):
    several = job("baseline", "vllm_kimi", "", "--nodes=2")
    site.book.note("baseline", id=9)
    out, err, zeroth, first, second, last = site.queue.files_of(several)
    err.write_text("srun: error: n2: task 1: Exited with exit code 1\n")
    assert site.queue._said(several, 9) == f"{err.name}: {err.read_text().strip()}"
    last.write_text("x\n  RuntimeError: first\nValueError: second  \nthe end\n")
    assert site.queue._said(several, 9) == f"{last.name}: ValueError: second"
    first.write_text("all is well\n")
    assert site.queue._said(several, 9) == f"{last.name}: ValueError: second"
    second.write_text("RuntimeError: on standard output\n")
    assert site.queue._said(several, 9) == f"{second.name}: RuntimeError: on standard output"
    zeroth.write_text("KeyError: of the first task\n")
    assert site.queue._said(several, 9) == f"{zeroth.name}: KeyError: of the first task"
    assert not out.exists()


# Cancelling -----------------------------------------------------------------------------------


def test_the_jobs_of_the_run_are_cancelled(site, clock, tmp_path):
    site.slurm.add(7, "install_vllm", "COMPLETED")
    site.slurm.add(8, "fetch", "PENDING", nodes="")
    site.slurm.add(9)
    site.slurm.add(10, "other", folder=tmp_path)
    site.slurm.add(11, "other", comment="kimi_nb:run-2")
    site.queue.now()

    def on(look):
        if look == 3:
            del site.slurm.jobs[8]
            site.slurm.add(9, state="COMPLETING")
            site.slurm.add(12, "late")
        if look == 5:
            site.slurm.add(9, state="CANCELLED")
            site.slurm.add(12, "late", "FAILED")

    site.slurm.on = on
    changes: list[Change] = []
    assert site.queue.cancel(changes) == []
    assert [one for one in site.slurm.asked if "scancel" in one] == [
        ("scancel", "--quiet", "8", "9"),
        ("scancel", "--quiet", "12"),
    ]
    assert changes == [
        Change("SLURM", "job 8 (fetch): cancelled"),
        Change("SLURM", "job 9 (vllm_kimi): cancelled"),
        Change("SLURM", "job 12 (late): cancelled"),
    ]
    assert clock.slept == [1.0]  # no longer, however seldom the queue is looked at
    assert site.book.entries["baseline"]["state"] == "CANCELLED"
    looks = site.slurm.looks
    site.queue.now()
    assert site.slurm.looks == looks + 1
    # Jobs that ran are told whose doing it was, beside their output.
    assert sorted(path.name for path in site.jobs.glob("*.log")) == [
        "late.12.down.log",
        "vllm_kimi.9.down.log",
    ]
    text = (site.jobs / "vllm_kimi.9.down.log").read_text()
    place = r"\[job_queue\.py:\d+\]"
    words = rf"INFO 11-23 06:04:02 {place} kimi-nb down: job 9 \(vllm_kimi\) is cancelled\n"
    assert re.fullmatch(words, text)


def test_a_job_that_does_not_end_is_told(site, clock):
    site.slurm.add(9, state="COMPLETING")
    begin = clock.now
    (row,) = site.queue.cancel([])
    assert row == Row(
        9, "vllm_kimi", "COMPLETING", "", "n1", "1:02", str(site.jobs), "kimi_nb:run-1"
    )
    assert clock.now - begin == 121.0 and set(clock.slept) == {1.0}
    assert not list(site.jobs.glob("*.log"))


def test_nobody_submits_while_jobs_are_cancelled(site, tmp_path):
    seen = []

    def on(look):
        with (tmp_path / "run" / "submitting").open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                seen.append(look)

    site.slurm.on = on
    site.queue.cancel([])
    assert seen == [1]


def test_a_short_poll_is_the_pause_between_two_looks(site, clock):
    site.slurm.add(9)
    site.slurm.on = lambda look: look == 3 and site.slurm.add(9, state="CANCELLED")
    queue = JobQueue(site.slurm, site.book, FILES, site.jobs, site.said.append, 0.2)
    assert queue.cancel([]) == [] and clock.slept == [0.2]


def test_a_note_of_a_cancellation_is_utf8(site, monkeypatch):
    coded, write = [], Path.write_text

    def noted(path, text, **more):
        coded.append(str(more.get("encoding")).lower())
        return write(path, text, **more)

    site.slurm.add(9)
    site.slurm.on = lambda look: look == 2 and site.slurm.add(9, state="CANCELLED")
    monkeypatch.setattr(Path, "write_text", noted)
    site.queue.cancel([])
    assert coded == ["utf-8"]


def test_a_full_disk_keeps_no_job_alive(site, monkeypatch):
    def full(*given, **more):
        raise OSError(28, "No space left on device")

    site.slurm.add(9)
    site.slurm.on = lambda look: look == 2 and site.slurm.add(9, state="CANCELLED")
    monkeypatch.setattr(Path, "write_text", full)
    changes: list[Change] = []
    assert site.queue.cancel(changes) == [] and len(changes) == 1
    assert issubclass(SlurmError, KimiError)


def test_a_full_disk_on_which_nothing_is_recorded_keeps_no_job_alive(site, monkeypatch):
    def full(*given, **more):
        raise OSError(28, "No space left on device")

    site.slurm.add(7, "install_vllm", "COMPLETED")
    site.slurm.add(9)
    site.slurm.on = lambda look: look == 2 and site.slurm.add(9, state="CANCELLED")
    monkeypatch.setattr(job_book.scratch, "write", full)
    changes: list[Change] = []
    assert site.queue.cancel(changes) == []
    assert changes == [Change("SLURM", "job 9 (vllm_kimi): cancelled")]
