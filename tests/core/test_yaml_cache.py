"""Copies of what the project's own YAML files say: used where the source is the same, only there."""

from __future__ import annotations

import os
import sys

import pytest

from kimi_nb.core import compiled_copies, data_files, paths, strict_yaml, yaml_cache
from kimi_nb.core.errors import ParameterError

SAID = {"a": 1, 2: [None, 1.5, "x"], "on": {"b": True}}
TEXT = "a: 1\n2: [null, 1.5, x]\n'on': {b: true}\n"


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """A YAML file that is one of the project's own."""
    monkeypatch.setattr(paths, "DATA", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "some.yaml"
    path.write_text(TEXT)
    return path


def copy_of(path):
    (found,) = (path.parent / "__pycache__").iterdir()
    return found


def test_the_second_reading_parses_nothing(ours, monkeypatch):
    assert data_files.read_yaml(ours) == SAID
    monkeypatch.delattr(strict_yaml, "load")
    assert data_files.read_yaml(ours) == SAID


def test_what_was_read_is_the_caller_s_own(ours):
    data_files.read_yaml(ours)["a"] = 2
    data_files.read_yaml(ours)["on"]["b"] = False
    assert data_files.read_yaml(ours) == SAID


def test_a_changed_file_is_parsed_again_though_its_time_is_the_same(ours):
    data_files.read_yaml(ours)
    before = ours.stat()
    ours.write_text(TEXT.replace("a: 1", "a: 7"))
    os.utime(ours, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert data_files.read_yaml(ours) == SAID | {"a": 7}


def test_a_file_that_has_become_wrong_is_refused(ours):
    data_files.read_yaml(ours)
    ours.write_text("a: 1\na: 2\n")
    with pytest.raises(ParameterError, match="given twice"):
        data_files.read_yaml(ours)


@pytest.mark.parametrize("torn", [b"", b"\xff", b"N", "cut"])
def test_a_torn_copy_is_made_again(ours, torn):
    data_files.read_yaml(ours)
    whole = copy_of(ours).read_bytes()
    copy_of(ours).write_bytes(whole[:-9] if torn == "cut" else torn)
    assert data_files.read_yaml(ours) == SAID
    assert copy_of(ours).read_bytes() == whole


def test_a_folder_that_cannot_be_written_has_no_copies(ours):
    (ours.parent / "__pycache__").write_text("a file in the way")
    assert data_files.read_yaml(ours) == SAID


def test_without_bytecode_there_are_no_copies(ours, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    data_files.read_yaml(ours)
    assert [one.name for one in ours.parent.iterdir()] == ["some.yaml"]


def test_copies_lie_where_bytecode_does(ours, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("pyc")
    monkeypatch.setattr(sys, "pycache_prefix", str(elsewhere))
    data_files.read_yaml(ours)
    assert [one.name for one in ours.parent.iterdir()] == ["some.yaml"]
    assert [one for one in elsewhere.rglob("some.yaml.*") if one.is_file()]


def test_a_user_s_file_has_no_copy_beside_it(ours, tmp_path_factory):
    theirs = tmp_path_factory.mktemp("theirs") / "site.yaml"
    theirs.write_text(TEXT)
    assert data_files.read_yaml(theirs) == SAID
    assert [one.name for one in theirs.parent.iterdir()] == ["site.yaml"]


def test_a_value_that_cannot_be_kept_is_read_each_time(ours):
    ours.write_text("day: 2026-01-31\n")
    assert data_files.read_yaml(ours) == data_files.read_yaml(ours)
    assert yaml_cache.read(ours, ours.read_bytes()) is None


def test_a_copy_beside_a_user_s_file_is_not_read(ours, tmp_path_factory):
    theirs = tmp_path_factory.mktemp("theirs") / "site.yaml"
    theirs.write_text(TEXT)
    compiled_copies.keep(theirs, TEXT.encode(), {"planted": True})
    assert compiled_copies.read(theirs, TEXT.encode()) == {"planted": True}
    assert data_files.read_yaml(theirs) == SAID


def test_files_of_params_have_copies_too(ours, monkeypatch, tmp_path_factory):
    project = tmp_path_factory.mktemp("project")
    monkeypatch.setattr(paths, "root", lambda: project)
    for folder, copied in (("params", True), ("PARAMS", False), ("other", False)):
        (project / folder).mkdir()
        (project / folder / "a.yaml").write_text(TEXT)
        assert data_files.read_yaml(project / folder / "a.yaml") == SAID
        assert (project / folder / "__pycache__").is_dir() == copied
