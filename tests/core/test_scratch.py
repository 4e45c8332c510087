"""What a writer that was killed leaves is removed by the next writer of the same file."""

from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kimi_nb.bundle import writer
from kimi_nb.check.rewriting import result
from kimi_nb.cli import size
from kimi_nb.core import evidence, redacted_files, scratch
from kimi_nb.prove.accuracy import scores
from kimi_nb.prove.bench import measurements
from kimi_nb.show.picture import Picture


def _old(path: Path) -> Path:
    """Let a file be half an hour old."""
    os.utime(path, (path.stat().st_mtime - 1800,) * 2)
    return path


@pytest.fixture
def dead(tmp_path: Path) -> int:
    """A process that was killed while it wrote TMP_PATH/a.json."""
    words = "import sys, os, signal\nfrom pathlib import Path\nfrom kimi_nb.core import evidence\n"
    words += "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    words += "evidence.write_json(Path(sys.argv[1]), {'a': 1})\n"
    with subprocess.Popen([sys.executable, "-c", words, str(tmp_path / "a.json")]) as process:
        process.wait(60)
    assert process.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name == f".a.json.{process.pid}.new"
    _old(left)
    return process.pid


def test_what_a_dead_writer_left_goes_with_the_next_one(dead: int, tmp_path: Path) -> None:
    evidence.write_json(tmp_path / "a.json", {"a": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_measurement_removes_it_too(dead: int, tmp_path: Path) -> None:
    left = tmp_path / f".c1-r1-x.json.{dead}.new"
    left.write_text("{")
    _old(left)
    measurements.write(tmp_path / "c1-r1-x.json", {})
    assert not left.exists() and json.loads((tmp_path / "c1-r1-x.json").read_text()) == {}


def test_all_others_stay(dead: int, tmp_path: Path) -> None:
    """One that lives, one of another machine that was just written, and those of other files."""
    with subprocess.Popen(["sleep", "60"]) as living:
        kept = [
            _old(_made(tmp_path / f".a.json.{living.pid}.new")),
            _made(tmp_path / f".b.json.{dead}.new"),
            _old(_made(tmp_path / f".xa.json.{dead}.new")),
            _old(_made(tmp_path / f".a.json.{dead}.newer")),
            _old(_made(tmp_path / ".a.json.x.new")),
        ]
        scratch.beside(tmp_path / "b.json")
        new = scratch.beside(tmp_path / "a.json")
        living.kill()
    assert living.returncode == -signal.SIGKILL, "it was only looked at"
    assert new == tmp_path / f".a.json.{os.getpid()}.new"
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert scratch.beside(tmp_path / "none" / "a.json").parent == tmp_path / "none"


def test_a_dead_writer_of_a_shared_disk_may_live_elsewhere(
    dead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was last written more than a minute ago goes."""
    left = tmp_path / f".a.json.{dead}.new"
    os.utime(left, (1000, 1000))
    for now, stays in ((1060.0, True), (1060.5, False)):
        monkeypatch.setattr(scratch, "time", SimpleNamespace(time=lambda now=now: now))
        scratch.beside(tmp_path / "a.json")
        assert left.exists() == stays


def test_nobody_writes_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a process in another container may be that of a process here."""
    with subprocess.Popen(["sleep", "60"]) as living:
        left = _made(tmp_path / f".a.json.{living.pid}.new")
        os.utime(left, (1000, 1000))
        for now, stays in ((4600.0, True), (4600.5, False)):
            monkeypatch.setattr(scratch, "time", SimpleNamespace(time=lambda now=now: now))
            scratch.beside(tmp_path / "a.json")
            assert left.exists() == stays
        living.kill()


def test_a_text_is_written_with_the_mode_of_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    before = os.umask(0)
    try:
        scratch.write(tmp_path / "a", "é\n")
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa9\n" and synced == []
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666
    with pytest.raises(UnicodeEncodeError):
        scratch.write(tmp_path / "a", "\udcff")
    scratch.write(tmp_path / "a", "\udcff.", "surrogateescape", sync=True)
    assert (tmp_path / "a").read_bytes() == b"\xff." and synced == [2]


def test_what_cannot_be_removed_is_left(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "folder").mkdir()
    for name in ("a", "none", "folder"):
        scratch.remove(tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def _made(path: Path) -> Path:
    path.write_text("{")
    return path


@pytest.mark.parametrize("name", ["x.log.gz", "x" * 248 + ".log.gz"])
def test_a_packed_log_that_is_redacted_leaves_nothing(name: str, tmp_path: Path) -> None:
    """Neither what a killed one left, nor a file of its own; also beside a name of full length."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"password=hunter2"))
    left = _killed("redacted_files.redact(path, [])", path)
    assert b"hunter2" in gzip.decompress(path.read_bytes()) and _old(left).exists()
    assert redacted_files.redact(path, [])
    assert gzip.decompress(path.read_bytes()) == b"password=*******"
    assert list(tmp_path.iterdir()) == [path]


def test_a_script_that_is_rewritten_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text("old\n")
    path.chmod(0o600)
    left = _killed("result.save(path, result.Rewritten('', 'old\\n', 'new\\n', (), ()))", path)
    assert path.read_text() == "old\n" and stat.S_IMODE(_old(left).stat().st_mode) == 0o600
    result.save(path, result.Rewritten("", "old\n", "new\n", (), ()))
    assert path.read_text() == "new\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = [tmp_path / "serve.sh.orig", tmp_path / "serve.sh.orig2"]
    assert sorted(tmp_path.iterdir()) == [path, *kept]
    # The key in a script of one's own stays one's own.
    assert {stat.S_IMODE(one.stat().st_mode) for one in kept} == {0o600}


def _killed(call: str, path: Path) -> Path:
    """What a process leaves that is killed while it puts a new file in the place of a path."""
    words = "import os, signal, sys\nfrom pathlib import Path\n"
    words += "from kimi_nb.check.rewriting import result\nfrom kimi_nb.core import redacted_files\n"
    words += "die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    words += f"os.replace = Path.replace = die\npath = Path(sys.argv[1])\n{call}\n"
    done = subprocess.run([sys.executable, "-c", words, str(path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = path.parent.glob(".*")
    return left


def test_a_scratch_file_goes_through_no_link_and_is_private(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    new = scratch.beside(tmp_path / "a")
    new.symlink_to(tmp_path / "theirs")
    with scratch.opened(new) as file:
        file.write(b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs" and new.read_bytes() == b"ours"
    assert stat.S_IMODE(new.stat().st_mode) == 0o600


def test_half_a_bundle_goes_with_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".bundle.0123abcd.new"
    left.mkdir()
    (left / "plan.json").write_text("{")
    writer._write({"plan.json": '{"files": ["plan.json"]}'}, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("name", ["evidence", "measurement", "picture", "score", "sizes"])
def test_nothing_is_written_through_a_link_that_lay_there(name: str, tmp_path: Path) -> None:
    """Who may write into the folder knows the name of the next scratch file."""
    mine = tmp_path / "mine"
    mine.write_text("as it was")
    place = tmp_path / "run"
    place.mkdir()
    pid, wanted = os.getpid(), {"picture": "a.svg", "sizes": "answer.json"}.get(name, "a.json")
    planted = {"picture": ".a.svg.new", "score": "a.partial"}.get(name, f".{wanted}.{pid}.new")
    (place / planted).symlink_to(mine)
    if name == "sizes":
        (place / wanted).symlink_to(mine)
    writers = {
        "evidence": lambda: evidence.write_json(place / "a.json", {"a": 1}),
        "measurement": lambda: measurements.write(place / "a.json", {"a": 1}),
        "picture": lambda: Picture("a", "a", "<svg></svg>", "a", ()).save(place),
        "score": lambda: scores.Score("t", "1", "a", scores.Subject(*"abcdefgh"), {}).save(
            place / "a.json"
        ),
        "sizes": lambda: size._write(_Sizes(), str(place)),
    }
    writers[name]()
    assert mine.read_text() == "as it was"
    written = place / wanted
    assert written.is_file() and not written.is_symlink() and written.stat().st_size


class _Sizes:
    """An answer without candidates."""

    candidates = front = ()

    def as_dict(self) -> dict[str, int]:
        return {"considered": 1}
