"""Things that are no logs: what quotes or describes failures has not failed."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.cli import main
from kimi_nb.core import paths
from kimi_nb.diagnose import doctor
from kimi_nb.plan import build

ROOT = Path(__file__).resolve().parents[2]
OOM = "RuntimeError: NPU out of memory. Tried to allocate 1.31 GiB (NPU 3; 64.00 GiB in all)"
LINE = f"(EngineCore_DP3 pid=7) ERROR 11-22 05:49:28 [core.py:1136] {OOM}"


def picture() -> bytes:
    """A PNG of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(range(256)) * 4)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def told(path: Path, capsys) -> tuple[int, str]:
    code = main.main(["doctor", str(path)])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


@pytest.mark.parametrize(
    "name, words",
    [
        ("notebooks/10_faq.ipynb", "is no log: a notebook"),
        ("kimi_nb/data/diagnose/signatures.yaml", "is no log: data"),
        ("kimi_nb/data/catalog/vllm.json", "is no log: data"),
        ("pyproject.toml", "is no log: data"),
        ("kimi_nb/data/bundle/node.sh", "is no log: the source of a program"),
    ],
)
def test_a_file_of_this_project_is_no_log(name, words, capsys):
    """Some of them name every failure that is known."""
    code, said = told(ROOT / name, capsys)
    assert code == 2 and words in said and "Name the logs of engines" in said


@pytest.mark.parametrize("name", ["README.md", "docs/doctor.md", "docs/glossary.md"])
def test_a_document_is_read_and_nothing_found(name, capsys):
    """A log is pasted into documents, too, such as the text of an issue."""
    code, said = told(ROOT / name, capsys)
    assert code == 0 and "no known failure was found" in said
    assert "nothing looked like an engine's log" in said


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("x.png", picture(), "is no log: binary"),
        ("x.log", b"", "is empty: nothing to judge"),
        ("x.html", f"<!DOCTYPE html>\n<pre>{OOM}</pre>".encode(), "is no log: a page of the web"),
        ("x.json", json.dumps({"cause": OOM}).encode(), "is no log: data"),
        ("x.log", json.dumps({"cause": OOM}, indent=2).encode(), "is no log: data"),
        ("x", f'{{\n "cells": ["{OOM}"],\n "nbformat": 4\n}}'.encode(), "is no log: a notebook"),
    ],
)
def test_what_looks_like_none_is_told(name, data, words, tmp_path, capsys):
    (tmp_path / name).write_bytes(data)
    code, said = told(tmp_path / name, capsys)
    assert code == 2 and words in said, said


def test_no_script_of_a_bundle_is_a_log(tmp_path, capsys):
    plan = build.plan("k2.5", "h200", "single", variant="slurm")
    for name, text in scripts.files(plan).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        code, said = told(path, capsys)
        assert "is no log" in said or "no known failure was found" in said, (name, said)
        assert code != 1, (name, said)
    code, said = told(tmp_path, capsys)
    assert code == 2 and "no logs below this folder" in said


def test_a_folder_without_logs_says_what_was_looked_for(tmp_path, capsys):
    (tmp_path / "README.md").write_text(OOM)
    code, said = told(tmp_path, capsys)
    assert code == 2 and "looked for *.log, *.out, *.err" in said


def test_beside_a_log_it_is_a_note(tmp_path):
    (tmp_path / "rank_3.log").write_text("INFO 11-22 05:49:28 [x.py:1] fine\n")
    (tmp_path / "x.json").write_text(json.dumps({"cause": OOM}))
    found = doctor.examine(sorted(tmp_path.iterdir()))
    assert found.ok and "x.json is no log: data" in found.notes[0]


@pytest.mark.parametrize(
    "name, text",
    [
        ("issue.md", f"## What happens\n\n```\n{LINE}\n```\n"),
        ("a-json.log", json.dumps({"log": LINE + "\n", "stream": "stderr"})),
        ("a.json", json.dumps({"log": LINE + "\n", "stream": "stderr"})),
        ("pod.yaml", "apiVersion: v1\nkind: Pod\nstatus:\n  reason: OOMKilled\n  exitCode: 137\n"),
        (
            "pod.json",
            json.dumps({"apiVersion": "v1", "status": {"reason": "OOMKilled"}}, indent=1),
        ),
        ("list.log", f"[\n{LINE}\n"),
    ],
)
def test_what_may_hold_a_log_is_read(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    found = doctor.examine(tmp_path / name)
    assert found.first is not None and found.first.component in ("memory", "host-memory")


def test_the_sample_is_one():
    assert not doctor.examine(paths.DATA / "diagnose" / "sample_logs").ok
