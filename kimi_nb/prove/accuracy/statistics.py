"""Whether two proportions of right answers differ, or whether that cannot be told.

>>> low, high = interval(1186, 1319)
>>> print(f"{low:.4f} to {high:.4f}")
0.8816 to 0.9149
>>> verdict(1150, 1319, 0.8992, 1319).word
'below'

Pure. The interval of one proportion is the exact binomial one (Clopper and Pearson 1934), that of
a difference is Newcombe's (1998, method 10), from the Wilson intervals of the two proportions.
Both treat the questions as a random sample of all questions of their kind. If both sides had the
same questions, the difference is known more precisely than stated here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CONFIDENCE = 0.95
# The smallest difference that matters: proportions agree only if it is ruled out. That no
# difference was seen is not enough.
MARGIN = 0.05

AGREES, BELOW, ABOVE = "agrees", "below", "above"
TOO_FEW = "too few samples to tell"


@dataclass(frozen=True)
class Verdict:
    """How a measured proportion relates to a published one.

    Attributes:
        word: "agrees", "below", "above" or "too few samples to tell".
        low: Lower bound of the difference, measured minus published, as a fraction of 1.
        high: Upper bound of the difference.
        sentence: The verdict in words, with the figures.
    """

    word: str
    low: float
    high: float
    sentence: str


def interval(
    correct: int, samples: int, confidence: float = CONFIDENCE, method: str = "exact"
) -> tuple[float, float]:
    """Return the confidence interval of the proportion behind ``correct`` of ``samples``.

    It is (0, 1) without samples. ``method`` is one of scipy's `BinomTestResult.proportion_ci`.

    Raises:
        ValueError: If ``correct`` is not in [0, samples].
    """
    from scipy.stats import binomtest  # start-up: only for an interval

    if not samples:
        return 0.0, 1.0
    found = binomtest(correct, samples).proportion_ci(confidence, method)
    return float(found.low), float(found.high)


def difference(
    correct: int, samples: int, value: float, published: int | None, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the confidence interval of a measured proportion minus a published one.

    ``published`` is the number of samples behind the published ``value``; if it is known, that
    value has a sampling error too.
    """
    if not samples:
        return -1.0, 1.0
    share = correct / samples
    low, high = interval(correct, samples, confidence, "wilson")
    below = above = 0.0
    if published:
        bounds = interval(round(value * published), published, confidence, "wilson")
        # The printed digits are rounded, so the value is not exactly the proportion that these
        # bounds are computed from.
        below, above = max(0.0, value - bounds[0]), max(0.0, bounds[1] - value)
    gap = share - value
    # Never beyond -1 and 1: share - low is at most the share, and above at most 1 - value.
    return gap - math.hypot(share - low, above), gap + math.hypot(high - share, below)


def verdict(
    correct: int,
    samples: int,
    value: float,
    published: int | None,
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
) -> Verdict:
    """Decide whether a measured proportion agrees with a published one, and say on which figures.

    They agree if a difference of ``margin`` or more is ruled out.
    """
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
