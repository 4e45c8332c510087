"""What vllm-ascend's own nightly and weekly runs start with Kimi models must fit the memory model.

tests/check/upstream_ci.yaml: one row for each engine with other settings.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kimi_nb.check import public_engines
from kimi_nb.check.findings import ERROR
from kimi_nb.check.rules import capacity, registry

ROWS = yaml.safe_load((Path(__file__).parent / "upstream_ci.yaml").read_text(encoding="utf-8"))


def deployment(row: dict, *more: str):
    engine = {"package": "vllm-ascend", "version": "last"}
    return public_engines.of({**row, "engine": engine, "words": [*row["words"], *more]})


def refused(made) -> set[str]:
    """Return the errors about memory that a check has for an engine."""
    found = registry.check(made).findings
    return {one.rule for one in found if one.severity == ERROR and one.rule.startswith("capacity/")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_what_upstream_runs_fits(row):
    made = deployment(row)
    found = capacity.fit_of(made, made.servers[0])
    assert found is not None and found.headroom > 0
    assert not refused(made)
    assert found.high >= found.shape.model_len
    assert (found.tokens < found.shape.model_len) == ("short" in row)
    drafts = made.servers[0].table("speculative-config")
    assert bool(drafts) == bool(capacity.draft_parameters(made, made.servers[0]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_it_does_not_fit_a_third_of_the_device(row):
    """What fits does so because of its size, not because nothing is refused."""
    assert refused(deployment(row, "--gpu-memory-utilization", "0.3"))


def test_every_engine_of_upstream_is_there_once():
    assert sum(row.get("engines", 1) for row in ROWS) == 38
    assert len({row["id"] for row in ROWS}) == len(ROWS) == 31
    assert sum("short" in row for row in ROWS) == 2
