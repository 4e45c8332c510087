"""Intervals against published figures, and each verdict at its bounds."""

from __future__ import annotations

import math

import pytest

from kimi_nb.prove.accuracy import statistics as s


@pytest.mark.parametrize(
    ("correct", "samples", "method", "low", "high"),
    [
        # Exact bounds: of no success 0 and 1 - (a/2)^(1/n); of all of them the mirror.
        (0, 10, "exact", 0.0, 1 - 0.025**0.1),
        (10, 10, "exact", 0.025**0.1, 1.0),
        # Newcombe 1998, Statistics in Medicine 17, 857-872, table I: 81 of 263.
        (81, 263, "exact", 0.2527, 0.3676),
        (81, 263, "wilson", 0.2553, 0.3662),
    ],
)
def test_intervals_of_one_proportion(correct, samples, method, low, high):
    assert s.interval(correct, samples, method=method) == pytest.approx((low, high), abs=5e-5)


def test_without_samples_everything_is_possible():
    assert s.interval(0, 0) == (0.0, 1.0)
    assert s.difference(0, 0, 0.9, 100) == (-1.0, 1.0)


def test_the_exact_interval_is_what_is_used_unless_another_is_named():
    assert s.interval(81, 263) == s.interval(81, 263, 0.95, "exact")
    assert s.interval(81, 263) != s.interval(81, 263, 0.95, "wilson")
    assert s.interval(81, 263, 0.99)[0] < s.interval(81, 263, 0.95)[0]


def test_too_many_right_answers_are_refused():
    with pytest.raises(ValueError):
        s.interval(11, 10)


@pytest.mark.parametrize(
    ("mine", "theirs", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17, 873-890, table II, method 10. The sides differ,
        # so that an interval the wrong way round is another one.
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((5, 56), (0, 29), -0.0381, 0.1926),
    ],
)
def test_intervals_of_a_difference(mine, theirs, low, high):
    found = s.difference(*mine, theirs[0] / theirs[1], theirs[1])
    assert found == pytest.approx((low, high), abs=5e-5)


def test_a_published_figure_of_unknown_size_has_no_error_of_its_own():
    low, high = s.interval(56, 70, method="wilson")
    for unknown in (None, 0):
        assert s.difference(56, 70, 0.6, unknown) == pytest.approx((low - 0.6, high - 0.6))


def test_the_confidence_reaches_both_proportions():
    near, far = (s.difference(56, 70, 0.6, 80, level) for level in (0.8, 0.99))
    assert far[0] < near[0] < 0.2 < near[1] < far[1]
    only_mine = s.interval(56, 70, 0.99, "wilson")
    theirs = s.interval(48, 80, 0.99, "wilson")
    assert far[0] == pytest.approx(0.2 - math.hypot(0.8 - only_mine[0], theirs[1] - 0.6))


def test_a_difference_stays_within_one():
    assert s.difference(0, 1, 1.0, None) == (-1.0, pytest.approx(-0.2065, abs=1e-3))
    assert s.difference(1, 1, 0.0, None) == (pytest.approx(0.2065, abs=1e-3), 1.0)
    assert s.difference(0, 3, 1.0, 3)[0] == -1.0 and s.difference(3, 3, 0.0, 3)[1] == 1.0


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-0.2, -0.01, s.BELOW),
        (-0.2, 0.0, s.TOO_FEW),
        (0.01, 0.2, s.ABOVE),
        (0.0, 0.2, s.TOO_FEW),
        (-0.049, 0.049, s.AGREES),
        (-0.05, 0.04, s.TOO_FEW),
        (-0.04, 0.05, s.TOO_FEW),
        (-0.04, 0.06, s.TOO_FEW),
        (-0.06, 0.04, s.TOO_FEW),
        (-0.01, 0.0, s.AGREES),
        (0.0, 0.01, s.AGREES),
    ],
)
def test_a_verdict_follows_the_bounds_of_its_interval(monkeypatch, low, high, word):
    monkeypatch.setattr(s, "difference", lambda *given: (low, high))
    said = s.verdict(9, 10, 0.9, 10)
    assert (said.word, said.low, said.high) == (word, low, high)


def test_the_sentence_has_the_figures():
    assert s.verdict(1150, 1319, 0.8992, 1319).sentence == (
        "below what was published (1150 of 1319 right, 87.2 % (85.3 % to 88.9 % at 95%); published "
        "89.9 % of 1319; difference -5.2 to -0.3 points)"
    )
    assert s.verdict(1319, 1319, 0.9, None).sentence == (
        "above what was published (1319 of 1319 right, 100.0 % (99.7 % to 100.0 % at 95%); "
        "published 90.0 %, of how many is not known; difference +9.7 to +10.0 points)"
    )
    assert s.verdict(1186, 1319, 0.8992, 1319).sentence.startswith(
        "agrees: a difference of 5 points is ruled out (1186 of 1319 right"
    )
    assert s.verdict(0, 0, 0.9, 30).sentence == (
        "too few samples to tell: a difference of 5 points would not show (0 of 0 right; published "
        "90.0 % of 30; difference -100.0 to +100.0 points)"
    )
    assert s.verdict(5, 10, 0.5, 10, 0.8, 0.02).sentence.startswith(
        "too few samples to tell: a difference of 2 points would not show (5 of 10 right, 50.0 % "
        "(26.7 % to 73.3 % at 80%)"
    )


def test_a_verdict_is_as_sure_as_is_asked():
    """A difference of 2.5 points in 1,319 answers is one at 80 %, and none at 99.9 %."""
    sure = {c: s.verdict(1153, 1319, 0.8992, None, confidence=c) for c in (0.8, 0.999)}
    assert sure[0.8].word == s.BELOW and sure[0.999].word != s.BELOW
    assert (sure[0.8].low, sure[0.8].high) == s.difference(1153, 1319, 0.8992, None, 0.8)


@pytest.mark.parametrize("published", [None, 1, 10, 1319])
@pytest.mark.parametrize(("correct", "value"), [(0, 1.0), (10, 0.0), (5, 0.5), (0, 0.0)])
def test_a_difference_of_proportions_stays_between_minus_one_and_one(correct, value, published):
    low, high = s.difference(correct, 10, value, published)
    assert -1 <= low <= high <= 1
