"""A term of the memory account: what takes memory of a device, how much, and how that is known.

>>> Term("graphs", 2.0 * GIB, 1.0 * GIB, 3.0 * GIB, "constant", "a log").gib
2.0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kimi_nb.core import data_files

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Term:
    """Bytes of one device, with the least and the most that they may come to.

    Attributes:
        formula: How the bytes are computed.
        source: Where the formula or the figure is from, at which version.
        inside: Whether it is taken out of what --gpu-memory-utilization allows; otherwise it comes
            after the cache, from what that leaves.
        mark: How the figure is known: derived, estimated, or measured with where and when.
    """

    name: str
    bytes: float
    low: float
    high: float
    formula: str
    source: str
    inside: bool = True
    mark: str = "estimated"

    @property
    def gib(self) -> float:
        """The size in GiB, rounded for people."""
        return round(self.bytes / GIB, 3)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, sizes in GiB."""
        return {
            "name": self.name,
            "gib": self.gib,
            "low_gib": round(self.low / GIB, 3),
            "high_gib": round(self.high / GIB, 3),
            "inside": self.inside,
            "formula": self.formula,
            "source": self.source,
            "mark": self.mark,
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of data/plan/memory.yaml: its value, the range that was seen, and the evidence."""

    value: float
    low: float
    high: float
    evidence: str

    def term(
        self,
        name: str,
        unit: float,
        formula: str,
        *,
        source: str = "",
        inside: bool = True,
    ) -> Term:
        """Return a term of this figure times ``unit`` bytes."""
        return Term(
            name,
            self.value * unit,
            self.low * unit,
            self.high * unit,
            formula,
            source or self.evidence,
            inside,
        )


def facts() -> dict[str, Any]:
    """Return the tables of data/plan/memory.yaml."""
    return data_files.facts("plan/memory")


def figure(*path: str) -> Figure:
    """Return the figure at a path of data/plan/memory.yaml.

    Raises KeyError if there is none.
    """
    found: Any = facts()
    for key in path:
        found = found[key]
    return Figure(found["value"], found["low"], found["high"], found["evidence"])


def spread(terms: Iterable[Term]) -> tuple[float, float]:
    """Return (how much less, how much more) the sum of the terms may be, in bytes.

    The terms are taken to err independently, so their ranges add up as squares.
    """
    less = more = 0.0
    for one in terms:
        less += (one.bytes - one.low) ** 2
        more += (one.high - one.bytes) ** 2
    return less**0.5, more**0.5
