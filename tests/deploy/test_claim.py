"""One run at a time holds a site, also where two begin at once and the disk is shared."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys

import pytest

from kimi_nb.core import fingerprint
from kimi_nb.deploy import claim


@pytest.fixture
def path(tmp_path):
    return tmp_path / "claim"


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_says_who_can_read_the_holder(path, monkeypatch, umask, mode):
    monkeypatch.setattr(fingerprint.getpass, "getuser", lambda: "me")
    monkeypatch.setattr(claim.socket, "gethostname", lambda: "head")
    old = os.umask(umask)
    try:
        assert claim.take(path, "run-1", "k2.5-h200-single") is None
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    found = claim.holder(path)
    assert (found.run_id, found.who, found.plan) == ("run-1", "me@head", "k2.5-h200-single")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", found.since)
    assert str(found) == f"run run-1 of me@head since {found.since} (k2.5-h200-single)"
    assert path.read_text().endswith("\n") and os.listdir(path.parent) == ["claim"]


def test_a_second_run_is_told_who_holds_it_and_changes_nothing(path):
    claim.take(path, "run-1", "a")
    before = path.read_bytes()
    assert claim.take(path, "run-2", "b") == claim.holder(path)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["claim"]
    assert not claim.release(path, "run-2") and path.exists()
    assert claim.release(path, "run-1") and not path.exists()
    assert not claim.release(path, "run-1") and claim.holder(path) is None


@pytest.mark.parametrize("kind", ["link", "dangling", "file"])
def test_nothing_is_written_into_what_another_user_has_laid_there(path, monkeypatch, kind):
    """Who guesses the name of the file that is made first gains nothing by it."""
    monkeypatch.setattr(claim.secrets, "token_hex", lambda length: "0" * 2 * length)
    aside, laid = path.parent / "aside", path.parent / ".claim.0000000000000000"
    if kind != "dangling":
        aside.write_text("mine\n")
    if kind == "file":
        aside.rename(laid)
    else:
        laid.symlink_to(aside)
    with pytest.raises(FileExistsError):
        claim.take(path, "run-1", "a")
    assert not path.exists()
    assert not aside.exists() if kind == "dangling" else laid.read_text() == "mine\n"


def test_a_claim_that_nobody_may_read_has_a_holder(path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError

    monkeypatch.setattr(type(path), "read_text", refused)
    assert claim.holder(path) == claim.Holder(
        "of somebody else", "another user, who lets nobody read it", "?", str(path)
    )


def test_what_another_has_written_into_a_claim_keeps_to_a_line():
    whole = claim.Holder("r" * 100, "w", "s", "p")
    assert str(whole) == f"run {'r' * 100} of w since s (p)"
    longer = claim.Holder("r" * 101, "w", "s", "p")
    assert str(longer) == f"run {'r' * 100}... of w since s (p)"


def test_a_link_whose_answer_was_lost_counts(path, monkeypatch):
    """NFS repeats a request that it has carried out: the second one finds the file there."""
    link = os.link

    def twice(*given):
        link(*given)
        link(*given)

    monkeypatch.setattr(claim.os, "link", twice)
    assert claim.take(path, "run-1", "a") is None
    assert claim.holder(path).run_id == "run-1"


def test_a_claim_that_went_meanwhile_is_tried_again(path, monkeypatch):
    claim.take(path, "run-1", "a")
    holder = claim.holder

    monkeypatch.setattr(claim, "holder", lambda asked: (asked.unlink(), None)[1])
    assert claim.take(path, "run-2", "b") is None
    assert holder(path).run_id == "run-2"


@pytest.mark.parametrize("text", ["", "run-1", "run-1\nme@head\nnow\nplan\nmore\n", "\xff\n"])
def test_a_claim_that_is_not_whole_is_still_read(path, text):
    path.write_bytes(text.encode("latin-1"))
    lines = [*path.read_text(errors="replace").splitlines(), "", "", "", ""][:4]
    assert claim.holder(path) == claim.Holder(*lines)
    told = str(claim.take(path, "run-2", "b"))
    assert "  " not in told and "()" not in told


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_has_a_number(path, monkeypatch, error):
    def nobody():
        raise error("no name")

    monkeypatch.setattr(fingerprint.getpass, "getuser", nobody)
    claim.take(path, "run-1", "a")
    assert claim.holder(path).who.split("@")[0] == str(os.getuid())


def test_a_folder_that_is_not_there_is_an_error_and_nothing_else(tmp_path):
    with pytest.raises(OSError):
        claim.take(tmp_path / "no" / "claim", "run-1", "a")
    assert os.listdir(tmp_path) == []


def test_the_file_is_made_beside_the_claim_and_hidden(path, monkeypatch):
    """A hard link does not reach another disk."""
    linked, real = [], os.link

    def link(fresh, to):
        linked.append(fresh)
        return real(fresh, to)

    monkeypatch.setattr(claim.os, "link", link)
    claim.take(path, "run-1", "a")
    (fresh,) = linked
    assert fresh.parent == path.parent and fresh.name.startswith(".claim.")
    assert os.listdir(path.parent) == ["claim"]


def test_a_claim_that_another_gave_back_meanwhile_is_no_error(path, monkeypatch):
    monkeypatch.setattr(claim, "holder", lambda asked: claim.Holder("run-1", "", "", ""))
    assert claim.release(path, "run-1")


def test_names_are_utf8_whatever_the_language_of_the_shell(path):
    claim.take(path, "run-0", "a")
    claim.release(path, "run-0")
    code = (
        "import sys; from pathlib import Path; from kimi_nb.deploy import claim\n"
        "assert claim.take(Path(sys.argv[1]), 'r', 'pl\\xe4n') is None\n"
        "assert claim.holder(Path(sys.argv[1])).plan == 'pl\\xe4n'\n"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(path)], env=env, check=True)
    assert "plän" in path.read_bytes().decode("utf-8")


def test_a_file_that_somebody_cleaned_up_meanwhile_is_no_error(path, monkeypatch):
    link = os.link

    def swept(fresh, target):
        link(fresh, target)
        os.unlink(fresh)

    monkeypatch.setattr(claim.os, "link", swept)
    assert claim.take(path, "run-1", "a") is None and path.exists()
