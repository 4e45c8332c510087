"""Whole numbers of texts: those of 18 digits at most, and nothing else."""

from __future__ import annotations

import pytest

from kimi_nb.core import numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("8000", 8000),
        ("9" * 18, 10**18 - 1),
        ("1" + "0" * 18, None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("1e3", None),
        (" 1", None),
        ("1\n", None),
        ("1_000", None),
        ("0x8", None),
        ("²", None),
        ("٣", None),
    ],
)
def test_a_whole_number_or_none(text, number):
    assert numbers.whole(text) == number
