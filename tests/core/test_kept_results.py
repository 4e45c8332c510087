"""What follows from the project's own files: found out once for each state of them."""

from __future__ import annotations

import os
import sys

import pytest

from kimi_nb.core import kept_results, paths


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A package and its params/, each with a file."""
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "kimi_nb")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for folder in ("kimi_nb/data", "params"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.yaml").write_text("a: 1\n")
    return tmp_path


def asked(value):
    """What is kept, and whether it had to be found out."""
    calls = []
    return kept_results.of("some", lambda: calls.append(1) or value), bool(calls)


def test_the_second_time_nothing_is_found_out(project):
    assert asked({"rows": [1, "x"]}) == ({"rows": [1, "x"]}, True)
    assert asked(None) == ({"rows": [1, "x"]}, False)


@pytest.mark.parametrize("place", ["kimi_nb/data/a.yaml", "kimi_nb/new.py", "params/a.yaml"])
def test_a_file_that_is_changed_or_new_counts(project, place):
    asked(1)
    (project / place).write_text("a: 22\n")
    assert asked(2) == (2, True)


def test_a_file_of_another_time_or_one_that_is_gone_counts(project):
    asked(1)
    os.utime(project / "params" / "a.yaml", ns=(1, 1))
    assert asked(2) == (2, True)
    (project / "params" / "a.yaml").unlink()
    assert asked(3) == (3, True)


def test_bytecode_is_no_change(project):
    asked(1)
    (project / "kimi_nb" / "data" / "__pycache__").mkdir()
    (project / "kimi_nb" / "data" / "__pycache__" / "a.pyc").write_text("x")
    assert asked(2) == (1, False)


def test_another_version_counts(project, monkeypatch):
    asked(1)
    monkeypatch.setattr(kept_results, "__version__", "other")
    assert asked(2) == (2, True)


def test_nothing_is_a_result_too(project):
    assert [asked(None), asked(1)] == [(None, True), (None, False)]


def test_without_bytecode_nothing_is_kept(project, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert [asked(1), asked(2)] == [(1, True), (2, True)]


def test_a_folder_that_is_not_there_is_no_error(project, monkeypatch):
    monkeypatch.setattr(paths, "PACKAGE", project / "nowhere")
    assert [asked(1), asked(2)] == [(1, True), (2, True)]


def test_what_lies_behind_a_linked_folder_is_not_looked_at(project, tmp_path_factory):
    """A folder that links to one above it would have no end."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (project / "params" / "linked").symlink_to(elsewhere)
    asked(1)
    before = elsewhere.stat()
    (elsewhere / "a.yaml").write_text("a: 1\n")
    os.utime(elsewhere, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert asked(2) == (1, False)
