"""Efficiency factors: how far engines stay behind the peaks of their devices, as data with sources.

>>> found = of("nvidia")["weights"]
>>> found.low < found.value < found.high
True
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb.core import data_files

MARKS = ("estimated", "published", "calibrated", "measured")
UNPUBLISHED = "no public figure"  # in the source of what nobody has published


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor: a share of a peak (0 to 1) or seconds, the least and the most it is taken to be.

    Attributes:
        mark: How it is known: one of `MARKS`.
        source: Where it is from.
    """

    name: str
    value: float
    low: float
    high: float
    mark: str
    source: str

    def scaled(self, factor: float, mark: str, source: str, width: float) -> Factor:
        """Return the factor times ``factor``, known to within ``width`` times of itself."""
        value = self.value * factor
        return replace(
            self, value=value, low=value / width, high=value * width, mark=mark, source=source
        )


Factors = Mapping[str, Factor]


def facts() -> dict[str, Any]:
    """Return the tables of data/sizing/factors.yaml."""
    return data_files.facts("sizing/factors")


@functools.cache
def of(vendor: str, precision: str = "") -> Factors:
    """Return every factor for the devices of a vendor and weights of a number format."""
    return {
        name: Factor(
            name=name,
            **table.get(f"{vendor} {precision}", table.get(vendor, table["default"])),
        )
        for name, table in facts()["factors"].items()
    }
