"""The record of a run's jobs: what is written, what is read again, and what the queue adds."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from kimi_nb.deploy.slurm import job_book
from kimi_nb.deploy.slurm.job_book import GONE, Book, JobState
from kimi_nb.deploy.slurm.slurm_commands import Row
from kimi_nb.plan import build
from kimi_nb.plan.spec import Job


def job(name: str, called: str, after: str = "") -> Job:
    options = ("--nodes=1", f"--job-name={called}", "--job-name-of=other")
    return Job(name, f"1_{name}.sbatch", after, options, {}, (), ())


INSTALL, SERVE = job("install", "install_vllm"), job("baseline", "vllm_kimi", "install")


@pytest.fixture
def outputs(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    return folder


@pytest.fixture
def book(tmp_path, outputs):
    return Book(tmp_path / "run-1", "run-1", outputs, (INSTALL, SERVE))


def row(number: int, outputs, name="vllm_kimi", state="RUNNING", comment="kimi_nb:run-1", **more):
    facts = {"reason": "", "nodes": "n1", "elapsed": "1:02"} | more
    return Row(number, name, state, folder=str(outputs), comment=comment, **facts)


def written(book) -> dict:
    return json.loads((book._folder / "jobs.json").read_text())


# One job --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "state", "is_so"),
    [
        (None, "", (False, False, False)),
        (7, "PENDING", (True, False, False)),
        (7, "COMPLETING", (True, False, False)),
        (7, "COMPLETED", (False, True, True)),
        (7, "TIMEOUT", (False, True, False)),
        (7, GONE, (False, True, False)),
    ],
)
def test_a_job_is_live_ended_or_done(number, state, is_so):
    one = JobState("baseline", "4.sbatch", number, state, job_name="vllm_kimi")
    assert (one.live, one.ended, one.done) == is_so
    assert str(one) == f"vllm_kimi ({number})"


def test_the_jobs_up_to_the_one_that_serves():
    plan = build.plan("k2.5", "h200", "single", variant="slurm")
    names = [one.name for one in job_book.chain(plan)]
    assert names == ["create-env", "install", "download", "baseline"]
    tuned = build.plan("k2.5", "h200", "single", variant="slurm", scenario="optimised")
    assert job_book.serving_name(tuned) == "optimised" == job_book.chain(tuned)[-1].name


def test_an_option_of_a_job():
    assert job_book.option(SERVE, "job-name") == "vllm_kimi"
    assert job_book.option(SERVE, "nodes") == "1"
    assert job_book.option(SERVE, "qos") == ""
    equal = Job("a", "a", "", ("--comment=a=b",), {}, (), ())
    assert job_book.option(equal, "comment") == "a=b"


def test_a_script_is_identified_by_its_text():
    assert (
        job_book.digest("#!/bin/bash\n# é")
        == (hashlib.sha256("#!/bin/bash\n# é".encode()).hexdigest()[:16])
    )


# What is written ------------------------------------------------------------------------------


def test_what_is_noted_is_read_by_another_process(book, tmp_path, outputs):
    book.note("install", id=7, digest="d")
    book.note("install", state="COMPLETED")
    assert written(book) == {
        "run": "run-1",
        "jobs": {"install": {"id": 7, "digest": "d", "state": "COMPLETED"}},
    }
    text = (tmp_path / "run-1" / "jobs.json").read_text()
    assert text.endswith("}\n") and text.splitlines()[1] == ' "run": "run-1",'
    assert [path.name for path in (tmp_path / "run-1").iterdir()] == ["jobs.json"]
    again = Book(tmp_path / "run-1", "run-1", outputs, (INSTALL, SERVE))
    assert again.entries == book.entries == written(book)["jobs"]
    other = Book(tmp_path / "run-1", "run-2", outputs, (INSTALL, SERVE))
    assert other.entries == {}


def test_another_number_starts_the_entry_afresh_and_the_same_one_does_not(book):
    book.note("install", id=7, state="FAILED", node="n1")
    book.note("install", id=7, code=3)
    assert book.entries["install"] == {"id": 7, "state": "FAILED", "node": "n1", "code": 3}
    book.note("install", id=8)
    assert book.entries["install"] == {"id": 8} == written(book)["jobs"]["install"]


def test_what_is_known_is_not_written_again(book):
    book.note("install", id=7)
    (book._folder / "jobs.json").unlink()
    book.note("install", id=7)
    assert not (book._folder / "jobs.json").exists()
    book.note("install", id=7, state="COMPLETED")
    assert written(book)["jobs"]["install"]["state"] == "COMPLETED"


def test_a_record_is_on_the_disk_once_it_is_noted(book, monkeypatch):
    synced = []
    fsync = os.fsync

    def noted(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    book.note("install", id=7)
    assert synced == [str(book._folder / "jobs.json.new")]


def test_the_record_is_made_where_there_is_no_folder_yet(tmp_path, outputs):
    deep = Book(tmp_path / "a" / "b", "run-1", outputs, (SERVE,))
    deep.note("baseline", id=7)
    assert written(deep)["jobs"] == {"baseline": {"id": 7}}
    with Book(tmp_path / "c" / "d", "run-1", outputs, (SERVE,)).submitting():
        assert (tmp_path / "c" / "d" / "submitting").is_file()


def test_a_submission_holds_a_lock_and_reads_the_record_again(book, tmp_path, outputs):
    other = Book(tmp_path / "run-1", "run-1", outputs, (INSTALL, SERVE))
    before = os.umask(0o022)
    try:
        with book.submitting():
            pass
    finally:
        os.umask(before)
    path = tmp_path / "run-1" / "submitting"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    other.note("install", id=7)
    with book.submitting() as handle, path.open("r+") as file:
        assert book.entries == {"install": {"id": 7}}
        assert os.readlink(f"/proc/self/fd/{handle}") == str(path)
        os.write(handle, b"x")
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# What is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        "COMPLETED",
        {},
        {"id": "seven"},
        {"id": [7]},
        {"id": 7, "digest": {}, "state": "COMPLETED"},
        {"id": 7, "state": []},
        {"id": 7, "node": 1},
        {"id": 7, "code": "one"},
        {"id": 7, "of": [7]},
        {"id": 7, "hosts": ["n1"]},
        {"id": 7, "hosts": [["n1"]]},
    ],
)
def test_a_damaged_entry_of_a_job_is_left_out(tmp_path, damaged):
    jobs = {"install": damaged, "baseline": {"id": 8, "digest": "0", "state": "COMPLETED"}}
    (tmp_path / "jobs.json").write_text(json.dumps({"run": "run-1", "jobs": jobs}))
    seen = Book(tmp_path, "run-1", tmp_path, (INSTALL, SERVE)).look(())
    assert (seen["install"].id, seen["baseline"].id) == (None, 8)
    assert seen["baseline"].state == "COMPLETED"
    later = Book(tmp_path / "2", "run-2", tmp_path, (), [tmp_path], ["install", "baseline"])
    assert [*later.entries] == ["baseline"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"run": "run-1"}', '{"run": "run-1", "jobs": []}', '["jobs"]', "[" * 100_000],
)
def test_a_record_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "jobs.json").write_text(text)
    assert Book(tmp_path, "run-1", tmp_path, (SERVE,)).entries == {}


def test_a_record_is_utf8_whatever_the_language_of_the_shell(tmp_path, outputs, monkeypatch):
    coded, read = [], Path.read_text

    def noted(path, *given, **more):
        coded.append(str(more.get("encoding")).lower())
        return read(path, *given, **more)

    monkeypatch.setattr(Path, "read_text", noted)
    entry = {"id": 7, "said": "zu groß"}
    text = json.dumps({"run": "run-1", "jobs": {"install": entry}}, ensure_ascii=False)
    (tmp_path / "jobs.json").write_text(text, encoding="utf-8")
    assert Book(tmp_path, "run-1", outputs, (INSTALL,)).entries == {"install": entry}
    assert coded == ["utf-8"]


def test_of_earlier_deployments_only_what_prepares_the_service_is_kept(tmp_path):
    done = {"id": 7, "state": "COMPLETED", "digest": "x"}
    jobs = {
        "odd": 1,
        "old": {"id": 7, "state": "COMPLETED"},
        "download": {**done, "state": "FAILED"},
        "install": done,
        "benchmark": done,
    }
    newer = {"install": {**done, "id": 9}}
    texts = (json.dumps({"run": "r", "jobs": one}) for one in (jobs, newer))
    for number, text in enumerate((*texts, "[]", "{", "")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "jobs.json").write_text(text)
    folders = [tmp_path / str(number) for number in (4, 3, 2, 0)]
    kept = ["install", "download", "odd", "old"]
    assert Book(tmp_path / "9", "run-9", tmp_path, (), folders, kept).entries == {"install": done}
    newest = [tmp_path / "1", *folders]
    assert Book(tmp_path / "9", "run-9", tmp_path, (), newest, kept).entries == newer
    assert Book(tmp_path / "9", "run-9", tmp_path, (), newest).entries == {}


def test_what_this_run_recorded_takes_the_place_of_earlier_deployments(tmp_path):
    Book(tmp_path / "1", "run-1", tmp_path, ()).note("install", id=7, state="COMPLETED", digest="x")
    Book(tmp_path / "2", "run-2", tmp_path, ()).note("baseline", id=8)
    again = Book(tmp_path / "2", "run-2", tmp_path, (), [tmp_path / "1"], ["install"])
    assert again.entries == {"baseline": {"id": 8}}


# The queue ------------------------------------------------------------------------------------


def test_a_job_of_the_run_is_known_by_comment_or_number_and_by_its_folder(book, outputs, tmp_path):
    book.note("install", id=3)
    (tmp_path / "link").symlink_to(outputs)
    mine = [
        row(7, outputs),
        row(3, outputs, "install_vllm", comment=""),
        row(9, tmp_path / "link"),
    ]
    others = [
        row(8, tmp_path / "elsewhere"),
        row(3, tmp_path / "elsewhere", comment=""),
        row(10, outputs, comment="kimi_nb:run-2"),
        row(11, outputs, comment=""),
    ]
    assert book.ours([*others, *mine]) == mine


def test_a_job_in_the_queue_is_told_and_recorded(book, outputs):
    queue = [
        row(7, outputs, state="CANCELLED", reason="x"),
        row(9, outputs, state="PENDING", reason="Resources", nodes="", elapsed=""),
        row(8, outputs, state="FAILED"),
        row(5, outputs, "another"),
    ]
    assert book.look(queue) == {
        "install": JobState("install", "1_install.sbatch", None, "", job_name="install_vllm"),
        "baseline": JobState(
            "baseline", "1_baseline.sbatch", 9, "PENDING", "Resources", "", "", "vllm_kimi"
        ),
    }
    assert written(book)["jobs"] == {"baseline": {"id": 9}}
    ended = row(9, outputs, state="TIMEOUT", reason="TimeLimit", nodes="n[1-2]")
    assert book.look([ended])["baseline"] == JobState(
        "baseline", "1_baseline.sbatch", 9, "TIMEOUT", "TimeLimit", "n[1-2]", "1:02", "vllm_kimi"
    )
    known = {"id": 9, "state": "TIMEOUT", "reason": "TimeLimit", "node": "n[1-2]"}
    assert written(book)["jobs"] == {"baseline": known}
    # Now SLURM has forgotten the job, and the record tells of it.
    assert book.look([])["baseline"] == JobState(
        "baseline", "1_baseline.sbatch", 9, "TIMEOUT", "TimeLimit", "n[1-2]", "", "vllm_kimi"
    )


def test_a_job_that_has_ended_at_the_first_look_is_recorded_with_its_number(book, outputs):
    book.look([row(9, outputs, state="FAILED", reason="NonZeroExitCode")])
    assert written(book)["jobs"] == {
        "baseline": {"id": 9, "state": "FAILED", "reason": "NonZeroExitCode", "node": "n1"}
    }


def test_an_older_job_of_the_queue_does_not_stand_for_the_recorded_one(book, outputs):
    book.note("baseline", id=9, state="COMPLETED")
    assert book.look([row(8, outputs)])["baseline"].id == 9
    assert book.look([row(9, outputs, state="COMPLETING")])["baseline"].state == "COMPLETING"
    assert book.look([row(10, outputs)])["baseline"].id == 10


def test_any_number_of_the_queue_is_taken_where_nothing_is_recorded(book, outputs):
    assert book.look([row(0, outputs)])["baseline"].id == 0


def test_a_look_that_keeps_nothing(book, outputs):
    book.note("install", id=3)
    before = written(book)
    seen = book.look([row(7, outputs, state="FAILED")], keep=False)
    assert (seen["baseline"].state, seen["install"].state) == ("FAILED", GONE)
    assert written(book) == before and book.entries == before["jobs"]


def test_a_job_that_slurm_has_forgotten_is_known_by_its_last_words(book, outputs):
    book.note("install", id=3)
    book.note("baseline", id=4)
    (outputs / "install_vllm.3.out").write_text("pip says much\nInstall complete.\n")
    (outputs / "vllm_kimi.4.out").write_text("Install complete.\n")
    seen = book.look(())
    assert seen["install"] == JobState(
        "install", "1_install.sbatch", 3, "COMPLETED", "", "", "", "install_vllm"
    )
    assert seen["baseline"].state == GONE
    states = {name: one["state"] for name, one in written(book)["jobs"].items()}
    assert states == {"install": "COMPLETED", "baseline": GONE}


# What the jobs write --------------------------------------------------------------------------


def test_the_end_of_a_file(tmp_path):
    path = tmp_path / "a.out"
    assert job_book.end_of(path) == ""
    path.write_bytes(b"\xff ok\n")
    assert job_book.end_of(path) == "\ufffd ok\n"
    path.write_bytes(b"ab" + b"c" * 8191)
    assert job_book.end_of(path) == "b" + "c" * 8191


def test_the_last_lines_of_a_job(book, outputs):
    assert book.path(SERVE, ".err", 7) == outputs / "vllm_kimi.7.err"
    assert book.last_lines(SERVE, 7) == "vllm_kimi.7.err: nothing was said"
    (outputs / "vllm_kimi.7.out").write_text("1\n\n2\n3\n  \n4\n5\n")
    (outputs / "vllm_kimi.7.err").write_text(" \n")
    assert book.last_lines(SERVE, 7) == "vllm_kimi.7.out: 2 | 3 | 4 | 5"
    assert book.last_lines(SERVE, 7, most=1) == "vllm_kimi.7.out: 5"
    (outputs / "vllm_kimi.7.err").write_text("bad\n")
    assert book.last_lines(SERVE, 7) == "vllm_kimi.7.err: bad"
