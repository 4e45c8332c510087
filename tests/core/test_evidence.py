"""What is recorded is on the disk before the call returns, and whole."""

from __future__ import annotations

import errno
import json
import os

import pytest

from kimi_nb.core import evidence, scratch
from kimi_nb.core.errors import WriteError
from kimi_nb.deploy.slurm import job_book
from kimi_nb.prove.bench import measurements


@pytest.fixture
def synced(monkeypatch):
    """What each file held when it was flushed to disk."""
    found: list[bytes] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        with open(f"/proc/self/fd/{handle}", "rb") as file:
            found.append(file.read())
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_line_of_evidence_is_flushed_whole(tmp_path, synced):
    for number in (1, 2):
        evidence.record(tmp_path, "x", n=number)
        assert synced[number - 1] == (tmp_path / evidence.FILE).read_bytes()
        assert synced[number - 1].count(b"\n") == number


def test_the_record_of_jobs_is_flushed_before_it_takes_the_place_of_the_last(tmp_path, synced):
    book = job_book.Book(tmp_path, "run-1", tmp_path, ())
    book.note("one", id=7)
    assert synced == [(tmp_path / "jobs.json").read_bytes()] and b"7" in synced[0]


def test_a_measurement_is_flushed_before_it_has_its_name(tmp_path, synced):
    measurements.write(tmp_path / "x.json", {"a": 1})
    assert synced == [(tmp_path / "x.json").read_bytes()] == [b'{"a": 1}']


def test_what_is_half_a_character_is_kept(tmp_path):
    evidence.record(tmp_path, "x", model="\ud800")
    evidence.write_json(tmp_path / "x.json", {"model": "\ud800"})
    assert evidence.read(tmp_path)[0]["model"] == "\ud800"
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {"model": "\ud800"}


def test_only_what_is_an_entry_is_read(tmp_path):
    lines = ["null", "[1]", '"a"', "[" * 5000, '{"cut', '{"stage": "x"}']
    (tmp_path / evidence.FILE).write_text("\n".join(lines))
    assert evidence.read(tmp_path) == [{"stage": "x"}]


def test_a_folder_that_takes_nothing_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=f"{tmp_path}/file.*cannot be written"):
        evidence.record(tmp_path / "file", "x")


def _full_after(monkeypatch, room: int) -> None:
    """Make os.write take some bytes and then say what a full disk says."""
    real, left = os.write, [room]

    def write(handle, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(handle, bytes(data)[: left[0]])
        left[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write)


def test_a_line_that_a_full_disk_cuts_off_is_told_and_taken_back(tmp_path, monkeypatch):
    evidence.record(tmp_path, "first")
    before = (tmp_path / evidence.FILE).read_bytes()
    with monkeypatch.context() as patch:
        _full_after(patch, 10)
        with pytest.raises(WriteError, match="No space left"):
            evidence.record(tmp_path, "second")
    assert (tmp_path / evidence.FILE).read_bytes() == before
    evidence.record(tmp_path, "third")
    assert [one["stage"] for one in evidence.read(tmp_path)] == ["first", "third"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_what_cannot_be_written_leaves_no_scratch_file(tmp_path, monkeypatch, error):
    (tmp_path / "a.json").write_text("{}")

    def fail(path, text, *more):
        path.touch()
        raise error

    monkeypatch.setattr(scratch, "write", fail)
    with pytest.raises(WriteError if isinstance(error, OSError) else KeyboardInterrupt):
        evidence.write_text(tmp_path / "a.json", "[]")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
