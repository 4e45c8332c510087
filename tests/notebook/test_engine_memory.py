"""What engines told of memory, beside the estimate, after a start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kimi_nb.core.marks import MARK
from kimi_nb.notebook import engine_memory
from kimi_nb.plan import build

LOGS = Path(__file__).parents[1] / "plan" / "engine_logs"


@pytest.fixture
def plan():
    return build.plan(
        "tiny-k2.5", str(LOGS / "cpu-auto.yaml"), "single", pairs=("gpu-memory-utilization=0.15",)
    )


def logs(folder: Path, plan, name: str, text: str = "") -> Path:
    path = folder / "logs" / plan.engines[0].node / "engines.log"
    path.parent.mkdir(parents=True)
    path.write_text(text or (LOGS / name).read_text())
    return folder


def rows(table) -> dict[str, tuple[str, ...]]:
    return {row[1]: row[2:] for row in table.rows}


def test_each_term_stands_beside_what_the_engine_said(plan, tmp_path):
    found = rows(engine_memory.table(plan, logs(tmp_path, plan, "cpu-0.32.0-a.log")))
    estimated, logged, difference = found["cache"]
    assert float(logged) > 0
    assert float(difference) == pytest.approx(float(logged) - float(estimated), abs=0.011)


def test_the_log_of_another_engine_is_refused_with_its_reason(plan, tmp_path):
    found = rows(engine_memory.table(plan, logs(tmp_path, plan, "cpu-0.32.0-b.log")))
    assert "other settings" in found["not compared"][-1]
    assert found["cache"][1] == "-"


def test_a_line_that_is_cut_is_told(plan, tmp_path):
    folder = logs(tmp_path, plan, "", "Available KV cache memory: 46.\n")
    assert "is cut" in rows(engine_memory.table(plan, folder))["not compared"][-1]


def test_stand_ins_are_no_engines(plan, tmp_path):
    folder = logs(tmp_path, plan, "cpu-0.32.0-a.log")
    found = engine_memory.table(plan, folder, MARK)
    assert MARK in found.title
    assert {row[3] for row in found.rows} == {"-"}


def test_without_a_start_the_estimates_stand_alone(plan):
    found = engine_memory.table(plan, None)
    assert found.rows and {row[3] for row in found.rows} == {"-"}


def test_prefill_and_decode_are_told_apart(tmp_path):
    plan = build.plan("k2.5", "a3", "pd")
    for engine in plan.engines:
        path = tmp_path / "logs" / engine.node / "engines.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Available KV cache memory: 1.00 GiB\n")
    found = engine_memory.table(plan, tmp_path)
    assert {row[0] for row in found.rows if row[1] == "not compared"} == {"prefill", "decode"}


def test_a_role_has_only_the_logs_of_its_ranks(plan, tmp_path):
    path = tmp_path / "logs" / "elsewhere" / "engines.log"
    path.parent.mkdir(parents=True)
    shutil.copy(LOGS / "cpu-0.32.0-a.log", path)
    assert {row[3] for row in engine_memory.table(plan, tmp_path).rows} == {"-"}


def test_a_model_without_an_estimate_is_told():
    found = engine_memory.table(build.plan("tiny-llama", "cpu", "dp"), None)
    assert "architecture of tiny-llama" in found.rows[0][-1]
