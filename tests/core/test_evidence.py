"""What is recorded is on the disk before the call returns, and whole."""

from __future__ import annotations

import datetime
import errno
import json
import os
import stat
import time
from pathlib import Path

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


def test_a_line_says_when_what_and_no_secret(tmp_path):
    entry = evidence.record(
        tmp_path / "new" / "run", "verify", path=tmp_path, text="é", key="password=hunter2"
    )
    at = entry.pop("time")
    assert at.endswith("Z") and datetime.datetime.strptime(at, evidence.FORM)
    assert entry == {
        "stage": "verify",
        "path": str(tmp_path),
        "text": "é",
        "key": "password=[redacted]",
    }
    raw = (tmp_path / "new" / "run" / "evidence.jsonl").read_bytes()
    assert raw.endswith(b"}\n") and "é".encode() in raw and b"hunter2" not in raw
    assert evidence.read(tmp_path / "new" / "run") == [{"time": at, **entry}]
    assert stat.S_IMODE((tmp_path / "new" / "run" / evidence.FILE).stat().st_mode) & 0o133 == 0
    assert evidence.record(tmp_path, "a", file="other.jsonl")["stage"] == "a"
    assert [one["stage"] for one in evidence.read(tmp_path, "other.jsonl")] == ["a"]
    assert evidence.read(tmp_path) == []


def test_the_time_is_that_of_utc(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        before = datetime.datetime.now(datetime.UTC).replace(microsecond=0, tzinfo=None)
        seen = datetime.datetime.strptime(evidence.now(), evidence.FORM)
        after = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert before <= seen <= after


def test_a_line_that_was_cut_off_does_not_take_the_next_one(tmp_path):
    (tmp_path / evidence.FILE).write_text('{"stage": "a"}\n{"stage": "cut')
    evidence.record(tmp_path, "b")
    evidence.record(tmp_path, "c")
    assert [one["stage"] for one in evidence.read(tmp_path)] == ["a", "b", "c"]
    assert (tmp_path / evidence.FILE).read_text().count("\n") == 4
    assert not (tmp_path / evidence.FILE).read_text().startswith("\n")


def test_one_letter_that_was_left_is_a_line_of_its_own(tmp_path):
    (tmp_path / evidence.FILE).write_text("{")
    evidence.record(tmp_path, "b")
    assert [one["stage"] for one in evidence.read(tmp_path)] == ["b"]


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / evidence.FILE).symlink_to(tmp_path / "theirs")
    with pytest.raises(WriteError) as told:
        evidence.record(tmp_path, "a")
    assert str(told.value) == (
        f"{tmp_path / evidence.FILE}: is a symbolic link, through which no evidence is written. "
        "Remove it, or choose another run_dir."
    )
    assert not (tmp_path / "theirs").exists()


def test_what_cannot_be_written_is_told_with_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    advice = "Choose another run_dir or mend its permissions."
    with pytest.raises(WriteError) as told:
        evidence.record(tmp_path / "file" / "run", "x")
    assert str(told.value) == (f"{tmp_path}/file/run: cannot be written: Not a directory. {advice}")
    with pytest.raises(WriteError) as told:
        evidence.write_text(tmp_path / "file" / "a", "x")
    assert str(told.value) == f"{tmp_path}/file/a: cannot be written: File exists. {advice}"


def test_a_line_that_others_have_written_behind_is_left(tmp_path, monkeypatch):
    """A part of ours stays then, rather than that a line of theirs goes."""
    evidence.record(tmp_path, "first")
    real, calls = os.write, []

    def write(handle, data):
        calls.append(bytes(data))
        if len(calls) == 1:
            taken = real(handle, bytes(data)[:5])
            with (tmp_path / evidence.FILE).open("ab") as other:
                other.write(b'\n{"stage": "theirs"}\n')
            return taken
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(WriteError, match="No space left"):
            evidence.record(tmp_path, "second")
    assert calls[1] == calls[0][5:]
    assert [one["stage"] for one in evidence.read(tmp_path)] == ["first", "theirs"]


def test_a_disk_that_takes_a_line_in_parts_has_it_whole(tmp_path, monkeypatch):
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: real(handle, bytes(data)[:7]))
        evidence.record(tmp_path, "a", text="x" * 40)
    (entry,) = evidence.read(tmp_path)
    assert entry["text"] == "x" * 40


def test_a_file_is_written_whole_in_a_folder_that_is_made(tmp_path):
    path = tmp_path / "new" / "folder" / "a.json"
    evidence.write_json(path, {"b": "é", "a": tmp_path, "key": "password=hunter2"})
    text = path.read_text(encoding="utf-8")
    assert text == (f'{{\n "b": "é",\n "a": "{tmp_path}",\n "key": "password=[redacted]"\n}}\n')
    evidence.write_text(path, "\udcff")
    assert path.read_bytes() == b"\xff" and [*path.parent.iterdir()] == [path]


def test_evidence_is_read_as_utf8_with_what_is_none(tmp_path, monkeypatch):
    coded, read = [], Path.read_text

    def noted(path, *given, **more):
        coded.append(str(more.get("encoding")).lower())
        return read(path, *given, **more)

    monkeypatch.setattr(Path, "read_text", noted)
    (tmp_path / evidence.FILE).write_bytes('{"stage": "é"}\n{"a": "'.encode() + b'\xff"}\n')
    assert evidence.read(tmp_path) == [{"stage": "é"}, {"a": "\ufffd"}]
    assert coded == ["utf-8"]  # whatever the language of the shell
    with pytest.raises(NotADirectoryError):
        evidence.read(tmp_path / evidence.FILE)
