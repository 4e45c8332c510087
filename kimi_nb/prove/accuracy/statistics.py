"""When two shares of right answers differ, and when that cannot be told.

    statistics.interval(1186, 1319)                   # (0.8817, 0.9150), exact
    statistics.verdict(1150, 1319, 0.8992, 1319).word   # "below"

Pure. The interval of one share is the exact binomial one (Clopper, Pearson 1934); that of a
difference is Newcombe's (1998, method 10), from the Wilson interval of either share. Both take the
questions as drawn at random from all of their kind; where both sides had the same questions the
difference is known better than is said here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CONFIDENCE = 0.95
# A difference that matters. Shares "agree" where it is ruled out, not where none was seen.
MARGIN = 0.05

AGREES, BELOW, ABOVE = "agrees", "below", "above"
TOO_FEW = "too few samples to tell"


@dataclass(frozen=True)
class Verdict:
    """``word`` is agrees, below, above or too few samples to tell; ``low`` and ``high`` bound the
    difference, measured less published, as shares of 1; ``sentence`` says it with the figures."""

    word: str
    low: float
    high: float
    sentence: str


def interval(
    correct: int, samples: int, confidence: float = CONFIDENCE, method: str = "exact"
) -> tuple[float, float]:
    """Bounds of the share behind ``correct`` of ``samples``; (0, 1) of no samples. Raises
    ValueError where correct is not in [0, samples]."""
    from scipy.stats import binomtest

    if not samples:
        return 0.0, 1.0
    found = binomtest(correct, samples).proportion_ci(confidence, method)
    return float(found.low), float(found.high)


def difference(
    correct: int, samples: int, value: float, published: int | None, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Bounds of the difference of a measured share and a printed one, which has a sampling error
    of its own where its number of samples is known."""
    if not samples:
        return -1.0, 1.0
    share = correct / samples
    low, high = interval(correct, samples, confidence, "wilson")
    below = above = 0.0
    if published:
        bounds = interval(round(value * published), published, confidence, "wilson")
        # Printed digits are rounded: the printed value lies a little beside the whole number.
        below, above = max(0.0, value - bounds[0]), max(0.0, bounds[1] - value)
    gap = share - value
    return (
        max(-1.0, gap - math.hypot(share - low, above)),
        min(1.0, gap + math.hypot(high - share, below)),
    )


def verdict(
    correct: int,
    samples: int,
    value: float,
    published: int | None,
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
) -> Verdict:
    """Whether a measured share is that which was printed, with the figures that say so."""
    low, high = difference(correct, samples, value, published, confidence)
    word = (
        BELOW
        if high < 0
        else ABOVE
        if low > 0
        else AGREES
        if -margin < low and high < margin
        else TOO_FEW
    )
    mine = interval(correct, samples, confidence)
    figures = (
        f"{correct} of {samples} right"
        + (
            f", {_percent(correct / samples)} ({_percent(mine[0])} to {_percent(mine[1])} at "
            f"{confidence:.0%})"
            if samples
            else ""
        )
        + f"; published {_percent(value)}"
        + (f" of {published}" if published else ", of how many is not known")
        + f"; difference {100 * low:+.1f} to {100 * high:+.1f} points"
    )
    meaning = {
        BELOW: "below what was published",
        ABOVE: "above what was published",
        AGREES: f"agrees: a difference of {100 * margin:g} points is ruled out",
        TOO_FEW: f"{TOO_FEW}: a difference of {100 * margin:g} points would not show",
    }[word]
    return Verdict(word, low, high, f"{meaning} ({figures})")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
