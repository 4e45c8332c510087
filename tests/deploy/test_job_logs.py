"""Logs of jobs on the shared file system: what is read, copied and followed."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from kimi_nb.deploy.slurm import job_logs
from kimi_nb.deploy.slurm.job_logs import SLURM, JobLogs
from kimi_nb.diagnose.first_failure import Log


class Site:
    """A folder to which jobs write, and the copies that a process keeps of it."""

    def __init__(self, root: Path) -> None:
        self.jobs, self.copies = root / "jobs", root / "run" / "logs"
        self.jobs.mkdir()
        self.files: dict[Path, str] = {}
        self.word = ""

    def logs(self) -> JobLogs:
        return JobLogs(self.copies, lambda: self.files, lambda: self.word)

    def write(self, name: str, node: str, text: str) -> Path:
        path = self.jobs / name
        with path.open("ab") as file:
            file.write(text.encode())
        self.files[path] = node
        return path

    def copied(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.copies)): path.read_bytes().decode()
            for path in self.copies.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def coded(monkeypatch):
    """The encodings with which text is opened."""
    seen, opens = [], Path.open

    def noted(path, mode="r", *given, **more):
        if "b" not in mode:
            seen.append((mode, str(more.get("encoding")).lower()))
        return opens(path, mode, *given, **more)

    monkeypatch.setattr(Path, "open", noted)
    return seen


# Copies ---------------------------------------------------------------------------------------


def test_what_is_new_is_copied_into_the_folder_of_its_node(site, coded):
    logs = site.logs()
    out = site.write("vllm_kimi.7.out", "n1", "")
    site.write("vllm_kimi.7.err", "n1", "one\ntw")
    site.write("vllm_kimi.7.node1.err", "n2", "zu groß\n")
    logs.read()
    assert site.copied() == {
        "n1/vllm_kimi.7.err": "one\n",
        "n2/vllm_kimi.7.node1.err": "zu groß\n",
    }
    site.write("vllm_kimi.7.err", "n1", "o\nthree\n")
    logs.read()
    logs.read()
    assert site.copied()["n1/vllm_kimi.7.err"] == "one\ntwo\nthree\n"
    assert logs.progress == 4 and out in site.files
    assert {encoding for _, encoding in coded} == {"utf-8"}


def test_another_process_begins_its_copy_afresh(site):
    site.write("vllm_kimi.7.err", "n1", "one\ntwo\n")
    site.logs().read()
    site.write("vllm_kimi.7.err", "n1", "three\n")
    again = site.logs()
    again.read()
    assert site.copied() == {"n1/vllm_kimi.7.err": "one\ntwo\nthree\n"}
    assert again.progress == 3


def test_no_secret_is_copied(site, monkeypatch):
    monkeypatch.setenv("KIMI_API_KEY", "correct-horse-battery")
    path = site.write("vllm_kimi.7.err", "n1", "a\nkey correct-horse-battery\n")
    site.logs().read()
    site.logs().keep({path: ""})
    assert len(site.copied()) == 2
    for text in site.copied().values():
        assert text.startswith("a\nkey ") and "horse" not in text and text.count("\n") == 2


def test_what_jobs_have_written_is_kept_at_the_end(site, coded):
    err = site.write("install.5.err", "n1", "half a line")
    (site.jobs / "install.5.out").write_bytes(b"\xff\r\nend\n")
    never = site.jobs / "download.6.out"
    site.logs().keep({never: "", err: "", site.jobs / "install.5.out": "n1"})
    assert site.copied() == {
        "install.5.err": "half a line",
        "n1/install.5.out": "\ufffd\nend\n",
    }
    assert set(coded) >= {("r", "utf-8"), ("w", "utf-8")} and len(set(coded)) == 2
    err.write_text("anew\n")
    site.logs().keep({err: ""})
    assert site.copied()["install.5.err"] == "anew\n"


@pytest.mark.parametrize(
    ("node", "folder"),
    [
        ("", ""),
        ("dgx-01.rack_2", "dgx-01.rack_2"),
        ("..", "_"),
        ("../../etc", "__.._etc"),
        ("/etc", "_etc"),
        (".ssh", "_ssh"),
        ("n1\n2 3", "n1_2_3"),
    ],
)
def test_a_node_names_no_folder_outside(node, folder, site, tmp_path):
    site.files = {site.jobs / "vllm_kimi.7.err": node}
    site.write("vllm_kimi.7.err", node, "x\n")
    site.logs().read()
    assert site.copied() == {f"{folder}/vllm_kimi.7.err".lstrip("/"): "x\n"}
    assert {path.name for path in tmp_path.iterdir()} == {"jobs", "run"}


def test_the_copies_of_a_job_that_was_replaced_are_set_aside(site):
    for name in ("vllm_kimi.7.err", "vllm_kimi.7.node0.out", "vllm_kimi.70.out", "install.7.err"):
        site.write(name, "n1", f"{name}\n")
    site.logs().keep({path: "n1" for path in site.files if ".70." not in path.name})
    (site.copies / "n1" / "vllm_kimi.6-err.before").write_text("old\n")
    (site.copies / "n1" / "vllm_kimi.6.log").write_text("a person's\n")
    kept = {
        "vllm_kimi.6-err.before": "old\n",
        "vllm_kimi.6.log": "a person's\n",
        "install.7.err": "install.7.err\n",
    }
    copied = {name.removeprefix("n1/"): text for name, text in site.copied().items()}
    same = {name: f"{name}\n" for name in ("vllm_kimi.7.err", "vllm_kimi.7.node0.out")}
    assert copied == kept | same
    site.logs().keep({site.jobs / "vllm_kimi.70.out": "n1"})
    assert {name.removeprefix("n1/"): text for name, text in site.copied().items()} == kept | {
        "vllm_kimi.7-err.before": "vllm_kimi.7.err\n",
        "vllm_kimi.7.node0-out.before": "vllm_kimi.7.node0.out\n",
        "vllm_kimi.70.out": "vllm_kimi.70.out\n",
    }


# What is told ---------------------------------------------------------------------------------


@pytest.fixture
def told(site):
    """Logs of a job on two nodes, of which one task has said nothing."""
    for name, node, text in (
        ("vllm_kimi.7.out", "n1", "out 1\nout 2\n"),
        ("vllm_kimi.7.err", "n1", "srun 1\n\nsrun 2\nsrun 3\nsrun 4\n \n"),
        ("vllm_kimi.7.node1.out", "n2", "task out\n"),
        ("vllm_kimi.7.node1.err", "n2", "\n"),
    ):
        site.write(name, node, text)
    return site.logs()


def test_everything_read_so_far(site, told):
    assert [list(log.lines) for log in told.all()] == [[], [], [], []]
    told.read()
    logs = told.all()
    assert [(log.node, log.rank, log.file) for log in logs] == [
        ("n1", None, "vllm_kimi.7.out"),
        ("n1", None, "vllm_kimi.7.err"),
        ("n2", None, "vllm_kimi.7.node1.out"),
        ("n2", None, "vllm_kimi.7.node1.err"),
    ]
    assert list(logs[0].lines) == ["out 1", "out 2"]
    site.word = "JobState=FAILED"
    assert len(told.all()) == 4  # as of the last look
    told.read()
    assert told.all()[4:] == [Log("n1", None, SLURM, ["JobState=FAILED"])]
    site.files.clear()
    assert told.all() == [Log("", None, SLURM, ["JobState=FAILED"])]


def test_the_last_line_of_a_node(site, told):
    told.read()
    assert told.last("n1", 0) == told.last("n1", 9) == ("vllm_kimi.7.err", "srun 4")
    assert told.last("n2", 8) == ("vllm_kimi.7.node1.out", "task out")
    site.word = "JobState=FAILED"
    told.read()
    assert told.last("n1", 0) == ("vllm_kimi.7.err", f"{SLURM}: JobState=FAILED | srun 4")


def test_how_a_program_ended(site, told):
    assert told.last_of("n1 engines") == ("", "no log")
    told.read()
    assert told.last_of("n1 engines") == ("vllm_kimi.7.err", "srun 2 | srun 3 | srun 4")
    assert told.last_of("n2 engines") == ("vllm_kimi.7.node1.out", "task out")
    # The router has no node of its own here.
    assert told.last_of("router") == told.last_of("n1 engines")
    site.files[site.jobs / "vllm_kimi.7.node1.out"] = "router"
    assert told.last_of("router") == ("vllm_kimi.7.node1.out", "task out")
    site.word = "JobState=FAILED"
    site.files.clear()
    told.read()
    assert told.last_of("router") == ("", f"{SLURM}: JobState=FAILED | no log")


# Following ------------------------------------------------------------------------------------


def test_the_source_of_a_line():
    assert job_logs.source("dgx-01", Path("/w/vllm_kimi.7.node0.err")) == "dgx-01 vllm_kimi"
    assert job_logs.source("", Path("/w/install.5.out")) == "install"


def test_lines_are_followed_until_the_end(site, monkeypatch):
    slept, looks = [], []
    first = site.write("install.5.out", "install", "one\n")

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 1:
            site.write("vllm_kimi.7.err", "n1 vllm_kimi", "three\n")
            first.write_text("one\ntwo\n")
        if len(slept) == 3:
            site.write("vllm_kimi.7.err", "n1 vllm_kimi", "four\nhalf")

    monkeypatch.setattr(job_logs, "time", types.SimpleNamespace(sleep=sleep))

    def stop():
        looks.append(len(slept))
        return len(slept) == 3

    found = list(job_logs.follow(lambda: site.files, stop))
    # What was written before the end is told, also by the look after it.
    assert found == [
        ("install", "one"),
        ("install", "two"),
        ("n1 vllm_kimi", "three"),
        ("n1 vllm_kimi", "four"),
    ]
    assert slept == [0.3] * 3 and looks == [0, 1, 2, 3]
    assert next(job_logs.follow(lambda: site.files, lambda: True, wait=9.0)) == found[0]
    assert len(slept) == 3


def test_following_for_days_fills_no_memory(site, monkeypatch):
    made = []

    class Noted(job_logs.Tails):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(job_logs, "Tails", Noted)
    site.write("install.5.out", "install", "one\n" * 1000)
    following = job_logs.follow(lambda: site.files, lambda: True)
    assert next(following) == ("install", "one")
    assert [len(lines) for lines in made[0].lines.values()] == [0]
    assert sum(1 for _ in following) == 999
