"""Files that cannot be read: each is named with the reason, and the others are checked."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kimi_nb.check import judge
from kimi_nb.check.reading import files
from kimi_nb.cli.main import main
from kimi_nb.core.errors import ParameterError

SCRIPT = "vllm serve m --tensor-paralel-size 8\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A deployment, and beside it what nobody can read."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "binary.sh").write_bytes(b"\x7fELF\0\1" * 50)
    (tmp_path / "latin.sh").write_bytes("# für\n".encode("latin-1"))
    (tmp_path / "large.sh").write_bytes(b"x" * (files.LARGEST + 1))
    (tmp_path / "gone.sh").symlink_to("nowhere")
    (tmp_path / "loop.sh").symlink_to("loop.sh")
    (tmp_path / "device.sh").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo.sh")
    (tmp_path / "secret.sh").write_text(SCRIPT)
    really = os.open

    def refuse(path, *more, **how):  # root reads everything
        if Path(path).name == "secret.sh":
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *more, **how)

    monkeypatch.setattr(files.os, "open", refuse)
    return tmp_path


UNREAD = {
    "binary.sh": "a binary file",
    "latin.sh": "not a text in UTF-8",
    "large.sh": "larger than 256 KB",
    "device.sh": "not a regular file",
    "fifo.sh": "not a regular file",
    "secret.sh": "cannot be read: Permission denied",
}
LINKS = {"gone.sh": "a link that leads nowhere", "loop.sh": "a link that leads nowhere"}


def unread(found) -> dict[str, str]:
    return {Path(spot["file"]).name: spot["reason"] for spot in found.unread}


def held(found, wanted) -> None:
    told = unread(found)
    assert set(told) == set(wanted)
    for name, reason in wanted.items():
        assert reason in told[name]
    assert [one.rule for one in found.errors] == ["engine/flag-unknown"]


def test_a_folder_is_read_around_them(folder):
    held(judge.files([folder], engine="vllm", version="0.19.1"), {**UNREAD, **LINKS})


def test_so_are_named_files(folder):
    named = [folder / name for name in ("run.sh", *UNREAD)]
    held(judge.files(named, engine="vllm", version="0.19.1"), UNREAD)


def test_a_folder_that_cannot_be_listed_is_named(folder, monkeypatch):
    really = os.scandir
    (folder / "closed").mkdir()

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = judge.files([folder], engine="vllm", version="0.19.1")
    held(found, {**UNREAD, **LINKS, "closed": "cannot be read: Permission denied"})


@pytest.mark.parametrize("name", UNREAD)
def test_where_nothing_can_be_read_that_is_a_mistake(folder, name, capsys):
    assert main(["check", str(folder / name)]) == 2
    said = capsys.readouterr().err
    assert UNREAD[name] in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["gone.sh", "loop.sh", "nothing.sh", "x" * 5000, "a\0b"])
def test_a_name_of_nothing_is_a_mistake(folder, name):
    with pytest.raises(ParameterError, match="no such file or folder"):
        judge.files([folder / "run.sh", folder / name])


def test_they_are_told_in_every_format(folder, capsys):
    for form in ("text", "json", "sarif", "github"):
        assert main(["check", str(folder), "--engine-version", "0.19.1", "--format", form]) == 1
        said = capsys.readouterr().out
        for name, reason in {**UNREAD, **LINKS}.items():
            assert name in said and reason in said


def test_a_long_list_of_flags_takes_no_square_of_its_length(tmp_path):
    (tmp_path / "README.md").write_text("```bash\n" + "--flag-a x\n" * 8000 + "```\n")
    started = time.process_time()
    assert judge.files([tmp_path / "README.md"]).ok
    assert time.process_time() - started < 20


@pytest.mark.parametrize("inner", ['{"connectors": 7}', '{"connectors": [7]}', "[]", '"x"'])
def test_connectors_of_a_wrong_type_are_no_crash(tmp_path, inner):
    """Their names are judged as far as they are there."""
    kv = f'{{"kv_connector": "MultiConnector", "kv_connector_extra_config": {inner}}}'
    (tmp_path / "run.sh").write_text(f"vllm serve m --kv-transfer-config '{kv}'\n")
    assert main(["check", str(tmp_path / "run.sh")]) in (0, 1)


def test_lists_in_lists_without_end_are_no_crash(tmp_path):
    """In the JSON form of a Dockerfile, and in what looks like JSON between quotes."""
    deep = "[" * 4000
    (tmp_path / "Dockerfile").write_text(f'FROM vllm/vllm-openai:v0.18.0\nCMD ["vllm", {deep}]\n')
    text = f'{{\n  "a": 1,\n  "b": {deep}\n}}'
    (tmp_path / "run.sh").write_text(f"{SCRIPT}cat > a.json <<< '{text}'\n")
    found = judge.files([tmp_path])
    assert [one.rule for one in found.errors if "run.sh" in one.file] == ["engine/flag-unknown"]


@pytest.mark.parametrize("value", ['!!int ""', '!!bool "x"', '!!timestamp "x"', "2001-99-99"])
def test_tags_that_do_not_fit_their_values_are_no_crash(tmp_path, value):
    """The scripts beside such a manifest and such values of a chart are checked all the same."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "group.yaml").write_text(f"kind: LeaderWorkerSet\nspec: {value}\n")
    (tmp_path / "templates").mkdir()
    (tmp_path / "values.yaml").write_text(f"image: {value}\n")
    (tmp_path / "templates" / "pod.yaml").write_text("kind: Pod\nspec: {{ .Values.image.tag }}\n")
    found = judge.files([tmp_path])
    assert [one.rule for one in found.errors if "run.sh" in one.file] == ["engine/flag-unknown"]
