"""A YAML file is read, or refused with its place and what to do."""

from __future__ import annotations

import os
import re

import pytest

from kimi_nb.core import data_files, paths
from kimi_nb.core.errors import ParameterError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.yaml"


def refused(path) -> str:
    with pytest.raises(ParameterError) as told:
        data_files.read_yaml(path)
    return str(told.value)


def test_keys_and_values_are_read(path):
    path.write_text("a: [1, é]\nb: {c: true}\n", encoding="utf-8")
    assert data_files.read_yaml(path) == {"a": [1, "é"], "b": {"c": True}}


def test_what_is_no_file(path, tmp_path):
    assert refused(path) == (
        f"{path}: no such file. Write it, or name one that exists "
        "(kimi-nb list shows what ships with the project)."
    )
    long = tmp_path / ("a/" * 400)
    assert refused(long).startswith(f"{str(long)[:300]}...: no such file.")
    assert refused(tmp_path) == f"{tmp_path}: not a file."
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == f"{tmp_path}/pipe: not a file."
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refused(tmp_path / "loop").startswith(f"{tmp_path}/loop: cannot be read: ")


def test_a_file_has_a_bound(path):
    path.write_bytes(b"a: 1\n" + b"#" * (4 * 1024 * 1024 - 5))
    assert data_files.read_yaml(path) == {"a": 1}
    with path.open("ab") as file:
        file.write(b"#")
    assert refused(path) == f"{path}: larger than 4 MB; a parameter file is a few KB."


def test_of_a_file_without_end_no_more_than_the_bound_is_read(path):
    with path.open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert refused(path) == f"{path}: larger than 4 MB; a parameter file is a few KB."


def test_what_is_no_text(path):
    path.write_bytes(b"a: \xff\n")
    assert refused(path) == f"{path}: not a text file in UTF-8."


def test_what_is_wrong_is_told_with_its_place(path):
    path.write_text("a: 1\na: 2\n")
    assert refused(path) == f"{path}, line 2, column 1: the key 'a' is given twice."
    path.write_text("a: " + "[" * 65 + "]" * 65)
    assert refused(path) == f"{path}: nested more than 64 levels deep."


@pytest.mark.parametrize(
    ("text", "found"),
    [("- 1\n", "a list"), ("", "nothing"), ("word\n", "'word'"), ("7\n", "7")],
)
def test_what_are_no_keys(path, text, found):
    path.write_text(text)
    assert refused(path) == f"{path}: keys and values are wanted (key: value), found {found}."


def test_only_what_parses_deep_is_too_deep():
    deep = "nested more than 64 levels deep"
    for left, right in ("[]", "{}"):
        assert data_files.too_deep(left * 64 + right * 64) == ""
        assert data_files.too_deep(left * 65 + right * 65) == deep
        assert data_files.too_deep((left + right) * 99) == ""
        assert data_files.too_deep((left * 40 + right * 40) * 2) == ""
        assert data_files.too_deep(left * 60 + right * 40 + left * 45) == deep
    assert data_files.too_deep("a:\n" + " " * 199 + "b: 1\n") == ""
    assert data_files.too_deep("a:\n" + " " * 200 + "b: 1\n") == deep
    assert data_files.too_deep("a: b" + " " * 200 + "c\n") == ""
    for sign in "-?":
        assert data_files.too_deep(f"a:\n  {f'{sign} ' * 31}b") == ""
        assert data_files.too_deep(f"a:\n  {f'{sign} ' * 32}b") == deep


def test_a_value_is_shown_in_60_characters():
    assert data_files.shown(None) == "nothing"
    assert data_files.shown("a" * 58) == repr("a" * 58)
    assert data_files.shown("a" * 59) == f"'{'a' * 56}..."
    assert data_files.shown([1]) == "[1]"


def test_the_facts_of_the_package_are_read_once():
    assert data_files.facts("params/errata")["errata"]
    assert data_files.facts("params/errata") is data_files.facts("params/errata")
    with pytest.raises(ParameterError, match=re.escape(f"{paths.DATA}/none.yaml: no such file")):
        data_files.facts("none")
