"""The memory model, held against what public logs say."""

from __future__ import annotations

import pytest

from kimi_nb.check import memory_evidence
from kimi_nb.core import data_files

ROWS = memory_evidence.rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.id}-{row.quantity}")
def test_the_model_agrees_with_a_public_statement(row):
    if row.ours is None:
        assert row.use == "none" and row.reason
        return
    assert abs(row.error) <= row.within
    assert row.within <= memory_evidence.WITHIN or row.reason


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.low is not None],
    ids=lambda row: f"{row.id}-{row.quantity}",
)
def test_what_was_said_lies_within_the_range_that_is_shown(row):
    """But for what the plans of this project cannot hold, which says so."""
    assert row.low <= row.said <= row.high or "no recipe has" in row.reason


def test_most_statements_about_kimi_were_not_used_to_set_a_figure():
    kimi = [row for row in ROWS if row.id.startswith("k2") and row.ours is not None]
    assert len(kimi) >= 12
    assert sum(row.use == "hold" for row in kimi) > len(kimi) / 2


def test_every_statement_names_its_source():
    for row in ROWS:
        assert len(row.source) > 12 and row.use in ("fit", "hold", "none")
    known = {row["id"] for row in data_files.facts("plan/memory_evidence")["rows"]}
    assert known == {row.id for row in ROWS}


def test_the_table_shows_what_was_said_and_what_we_say():
    text = str(memory_evidence.table())
    assert "715,072" in text and "hold" in text and "Kimi-K2-Think.md" in text
