"""The model of time against figures that others have published and that no factor is fitted to."""

from __future__ import annotations

import math

import published_observations as published
import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.sizing import factor_fit, factors, search
from kimi_nb.sizing.factor_fit import Observation
from kimi_nb.sizing.points import Bounds


def test_throughput_that_no_factor_has_seen_is_near_and_in_order():
    """Half of the held-out figures within a quarter, ranked as they were measured."""
    found = [pair[:2] for pair in published.compared(held_out=True)["throughput"]]
    median, tenth, order = published.summary(found)
    assert len(found) >= 12
    assert median < 1.3 and tenth < 2.0 and order > 0.85


def test_held_out_series_are_whole_and_no_factor_names_one():
    told = {row.figure.id for row in published.rows() if row.held_out}
    fitted = {row.figure.id for row in published.rows() if not row.held_out}
    assert told and fitted and not told & fitted
    for table in factors.facts()["factors"].values():
        for one in table.values():
            assert not any(name in one["source"].split() for name in told)


def test_a_figure_lies_within_its_interval_more_often_than_not():
    """Of held-out throughput, with all factors at their least and at their most."""
    inside = 0
    found = [row for _, _, row in published.compared(held_out=True)["throughput"]]
    for row in found:
        table = factors.of(row.kind.hardware.vendor, row.kind.precision)
        ends = []
        for best in (False, True):
            moved = {}
            for name, one in table.items():
                larger = best == (not name.endswith("_s"))
                moved[name] = one.scaled(
                    (one.high if larger else one.low) / one.value, "x", "x", 1.0
                )
            ends.append(published.said(row, moved))
        low, high = (one if one is not None else math.nan for one in ends)
        inside += (math.isnan(low) or low <= row.figure.value) and row.figure.value <= high
    assert inside > len(found) / 2


def observations():
    """Figures that the model itself makes with other factors than the vendor's."""
    row = next(row for row in published.rows() if row.figure.id == "k2.5-b200-inferencex")
    table = dict(factors.of("nvidia", "INT4"))
    table["weights"] = table["weights"].scaled(0.8, "x", "x", 1.0)
    table["layer_s"] = table["layer_s"].scaled(1.5, "x", "x", 1.0)
    seen = []
    for many in (1, 4, 16, 64):
        for name in ("mean_tpot_ms", "output_throughput"):
            one = Observation(row.kind, row.load, many, name, 1.0)
            value = factor_fit.predicted(one, table)
            seen.append(Observation(row.kind, row.load, many, name, value))
    return seen


def test_a_site_s_own_results_calibrate():
    seen, prior = observations(), factors.of("nvidia", "INT4")
    found = factor_fit.fitted(seen, prior, "calibrated", "results of a site")
    before, after = (sum(map(abs, factor_fit.errors(seen, one))) for one in (prior, found))
    assert after < before / 2
    moved = [one for name, one in found.items() if one is not prior[name]]
    assert moved and all(one.mark == "calibrated" for one in moved)
    assert all(one.low < one.value < one.high for one in moved)
    assert found == factor_fit.fitted(seen, prior, "calibrated", "results of a site")


def test_calibrated_factors_are_those_of_the_answer():
    seen, prior = observations(), factors.of("nvidia", "INT4")
    found = factor_fit.fitted(seen, prior, "calibrated", "results of a site")
    told = search.answer("k2.5", "b200", 1, seen[0].load, Bounds(), layout="single", table=found)
    marks = {term["mark"] for term in told.candidates[0].terms}
    assert "calibrated" in marks


def test_a_calibration_without_measurements_is_refused():
    with pytest.raises(ParameterError, match="no measurement"):
        factor_fit.fitted([], factors.of("nvidia"), "calibrated", "x")
    one = observations()[0]
    wrong = Observation(one.kind, one.load, 1, "mean_tpot", 1.0)
    with pytest.raises(ParameterError, match="did you mean"):
        factor_fit.fitted([wrong], factors.of("nvidia"), "calibrated", "x")
