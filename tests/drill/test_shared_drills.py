"""A drill that somebody else hands over: what it holds is checked, and nothing outside is read."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.drill import record, verdict

TRUTH: dict[str, Any] = {
    "fault": "garbled-output", "node": "a3-0", "ranks": [0], "whole": False, "cause": "garbled",
    "evidence": "client.log: x", "help": "less", "in_logs": False,
}  # fmt: skip
ENGINE = {
    "name": "mixed0-rank0", "node": "a3-0", "address": "192.0.2.1", "role": "mixed", "group": 0,
    "rank": 0, "ranks": 1, "dp_size": 1, "tp_size": 1, "devices": [0], "http_port": 8000,
    "kv_port": None, "rpc_port": None, "side_channel_port": None, "headless": False, "env": {},
    "argv": ["vllm", "serve"],
}  # fmt: skip


def packed(facts: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(facts).encode())).decode()


def drill(folder: Path, sealed: str = "", **changed: object) -> Path:
    facts = {"mark": "REHEARSAL", "plan": "p", "asked": "", "seed": 1}
    facts["sealed"] = sealed or packed({**TRUTH, **changed})
    (folder / "logs/a3-0").mkdir(parents=True)
    (folder / "logs/a3-0/rank_0.log").write_text("RuntimeError: NPU out of memory.\n")
    (folder / record.FILE).write_text(json.dumps(facts))
    (folder / "plan.json").write_text(json.dumps({"engines": [ENGINE]}))
    return folder


def test_a_good_one_is_judged(tmp_path):
    found = record.read(drill(tmp_path))
    assert verdict.judge(found, "a3-0 rank 0 garbled-output").ok


@pytest.mark.parametrize(
    "changed",
    [
        {"fault": "no such"},
        {"fault": ["garbled-output"]},
        {"node": "elsewhere"},
        {"node": None},
        {"ranks": ["0"]},
        {"ranks": 7},
        {"in_logs": "yes"},
        {"evidence": 5},
        {"more": 1},
    ],
)
def test_what_is_sealed_has_its_form(tmp_path, changed):
    with pytest.raises(ParameterError, match="cannot be read"):
        record.read(drill(tmp_path, **changed))


def test_what_is_sealed_has_a_bound(tmp_path):
    bomb = base64.b64encode(zlib.compress(b" " * (64 << 20))).decode()
    with pytest.raises(ParameterError, match="cannot be read"):
        record.read(drill(tmp_path, bomb))


def test_the_facts_have_a_bound(tmp_path):
    with (drill(tmp_path) / record.FILE).open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(ParameterError, match="cannot be read"):
        record.read(tmp_path)


def test_the_line_of_evidence_is_looked_for_in_no_other_folder(tmp_path):
    (tmp_path / "secret.txt").write_text("one\ntwo\n")
    for name in (f"{tmp_path}/secret.txt", "../secret.txt", "link.txt"):
        folder = tmp_path / name.replace("/", "-")
        one = drill(folder, evidence=f"{name}: two")
        (one / "link.txt").symlink_to(tmp_path / "secret.txt")
        assert verdict.judge(record.read(one)).line == f"{name}: two", "without its number"


@pytest.mark.parametrize("name", ["9" * 5000, "a/" * 3000, "nul\0"])
def test_the_line_of_evidence_of_a_name_that_no_file_can_have(tmp_path, name):
    one = record.read(drill(tmp_path, evidence=f"logs/{name}: two"))
    told = verdict.judge(one)
    assert told.line.startswith(f"logs/{name[:100]}")


def test_a_log_that_leads_elsewhere_is_no_log_of_it(tmp_path):
    (tmp_path / "secret.log").write_text("open sesame\n")
    one = drill(tmp_path / "drill")
    (one / "logs/a3-0/other.log").symlink_to(tmp_path / "secret.log")
    (one / "logs/a3-0/none.log").symlink_to("nowhere")
    found = record.read(one)
    assert [row[0] for row in found.logs.rows] == ["a3-0/rank_0.log"]
    assert len(found.search("sesame").rows) == 0
    with pytest.raises(ParameterError, match="log"):
        found.log("a3-0/other.log")
