"""What produced a result: the commit and its changes, the machine, hashes of names and contents."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
import sys

import pytest

import kimi_nb
from kimi_nb.core import fingerprint, paths


def test_this_program():
    found = fingerprint.of_program()
    assert tuple(found) == fingerprint.OF_PROGRAM
    assert found["package"] == kimi_nb.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["host"] == socket.gethostname()
    assert found["platform"] == platform.platform(terse=True)
    # Somebody may change a file meanwhile.
    assert found["commit"].rstrip("+") == fingerprint._commit(paths.PACKAGE.parent).rstrip("+")


def test_the_catalogs_are_those_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "catalog").mkdir()
    for name, text in (("b.json", "2"), ("a.json", "1"), ("c.yaml", "3")):
        (tmp_path / "catalog" / name).write_text(text)
    monkeypatch.setattr(paths, "DATA", tmp_path)
    fingerprint.of_program.cache_clear()
    try:
        found = fingerprint.of_program()["catalogs"]
    finally:
        fingerprint.of_program.cache_clear()
    assert found == fingerprint.of_texts({"a.json": "1", "b.json": "2"})


def test_texts_are_known_by_names_and_contents():
    # As sha256sum says of "a 1\n1b 2\n23".
    wanted = hashlib.sha256(b"a 1\n1b 2\n23").hexdigest()[:12]
    assert fingerprint.of_texts({"b": "23", "a": "1"}) == wanted
    # The parts cannot be shifted against each other.
    assert fingerprint.of_texts({"a": "1b 2\n23"}) != wanted
    assert fingerprint.of_texts({"é": "ü"}) == hashlib.sha256("é 2\nü".encode()).hexdigest()[:12]


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no username set")])
def test_a_user_without_a_name_is_a_number(monkeypatch, error):
    monkeypatch.setattr(fingerprint.getpass, "getuser", lambda: "me")
    assert fingerprint.user() == "me"

    def none():
        raise error

    monkeypatch.setattr(fingerprint.getpass, "getuser", none)
    assert fingerprint.user() == str(os.getuid())


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one commit."""
    monkeypatch.setattr(fingerprint, "_SECONDS", 60.0)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "a").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "a")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")
    return tmp_path


def git(folder, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_commit_and_whether_tracked_files_were_changed(checkout, monkeypatch):
    head = git(checkout, "rev-parse", "HEAD")
    assert len(head) == 40 and fingerprint._commit(checkout) == head
    (checkout / "untracked").write_text("")
    assert fingerprint._commit(checkout) == head
    (checkout / "a").write_text("2")
    assert fingerprint._commit(checkout) == f"{head}+"
    monkeypatch.setenv("PATH", "/nowhere")
    assert fingerprint._commit(checkout) == ""


def test_git_is_asked_without_a_lock_and_not_without_end(checkout, monkeypatch):
    asked = []

    def run(argv, **how):
        asked.append((argv[:4], how["timeout"]))
        raise subprocess.TimeoutExpired(argv, how["timeout"])

    monkeypatch.setattr(fingerprint.subprocess, "run", run)
    assert fingerprint._commit(checkout) == ""
    assert asked == [(["git", "--no-optional-locks", "-C", str(checkout)], 60.0)]


def test_what_is_no_checkout_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint.subprocess, "run", lambda *_, **__: pytest.fail("git is run"))
    assert fingerprint._commit(tmp_path) == ""


def test_a_checkout_before_its_first_commit_has_none(tmp_path):
    git(tmp_path, "init", "-q")
    assert fingerprint._commit(tmp_path) == ""


def test_a_damaged_checkout_has_no_commit(tmp_path):
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert fingerprint._commit(tmp_path) == ""
