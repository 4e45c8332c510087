"""The tables of what there is of each model on each hardware, and the list that is kept of it."""

from __future__ import annotations

import dataclasses

import pytest

from kimi_nb.core import kept_results
from kimi_nb.params import recipes
from kimi_nb.plan import combinations, derivation, known_combinations
from kimi_nb.plan.combinations import Verdict
from kimi_nb.show import Quote

ROW = {
    "model": "k2.5",
    "hardware": "a3",
    "layout": "dp",
    "variant": "docker",
    "scenario": "long context",
    "documented": True,
    "source": "a page 3",
    "title": "On two nodes",
    "tried": True,
    "more": "that no column shows",
}
CELLS = [
    Verdict("k2.5", "a3", "single", "impossible", "too small"),
    Verdict("k2.5", "a3", "dp", "documented", "a page 3"),
    Verdict("k2.6", "a3", "single", "derived", "from k2.5 a3"),
    Verdict("k2.6", "a3", "dp", "undocumented", "ours"),
]


@pytest.mark.parametrize(
    ("documented", "tried", "word"),
    [
        (True, True, True),
        (True, False, "untried"),
        (False, False, False),
        (False, True, False),
    ],
)
def test_what_nobody_has_run_is_untried(documented, tried, word):
    table = combinations.recipes([ROW | {"documented": documented, "tried": tried}])
    assert table.title == "Deployments"
    assert table.headings == (
        *("model", "hardware", "layout", "variant", "scenario", "documented", "source", "title"),
    )
    scenario = Quote("long context")
    assert table.rows == (
        ("k2.5", "a3", "dp", "docker", scenario, word, "a page 3", "On two nodes"),
    )


def test_those_of_one_model_and_hardware_have_these_in_the_title():
    table = combinations.recipes([ROW], ("k2.5", "a3"))
    assert table.title == "Deployments of k2.5 on a3"
    assert table.headings == (*("layout", "variant", "scenario", "documented", "source", "title"),)
    assert table.rows == (
        ("dp", "docker", Quote("long context"), True, "a page 3", "On two nodes"),
    )


def test_the_table_has_a_row_for_each_model_and_hardware():
    table = combinations.matrix(CELLS)
    title = "What there is: documented, derived (--derive) or impossible (kimi-nb list --why)"
    assert table.title == title
    assert table.headings == ("model", "hardware", "single", "dp")
    assert table.rows == (
        ("k2.5", "a3", "impossible", "documented"),
        ("k2.6", "a3", "derived", "undocumented"),
    )


def test_the_reasons_have_a_row_for_each_cell():
    table = combinations.reasons(CELLS)
    assert table.title == "Why"
    assert table.headings == ("model", "hardware", "layout", "is", "why")
    assert table.rows[0] == ("k2.5", "a3", "single", "impossible", "too small")
    assert len(table.rows) == 4 and table.rows[3][4] == "ours"


def test_what_is_kept_is_what_would_be_found(monkeypatch):
    """It is found out here as on the first call: nothing kept from another run stands in for it."""
    asked = []

    def of(name, make):
        asked.append(name)
        return make()

    rows = [{"model": "k2.5"}]
    monkeypatch.setattr(kept_results, "of", of)
    monkeypatch.setattr(recipes, "listing", lambda: rows)
    monkeypatch.setattr(derivation, "cells", lambda: CELLS)
    assert known_combinations.everything() == {
        "recipes": rows,
        "cells": [dataclasses.asdict(one) for one in CELLS],
    }
    assert known_combinations.verdicts() == CELLS
    assert asked == ["combinations"] * 2
