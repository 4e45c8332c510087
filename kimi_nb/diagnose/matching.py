"""Match log lines against signatures, and order the matches: the first cause first.

Example::

    found = [one for one in map(matching.of, lines) if one]
    matching.ordered(found)[0]  # the first cause
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from kimi_nb.diagnose import log_lines, signatures
from kimi_nb.diagnose.signatures import Signature


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log.

    Attributes:
        node: The node that wrote it.
        rank: The rank that wrote it, or None if the log is not that of one rank.
        number: Its number in the file, from 1.
        text: What was written, without what some other program put before every line.
        time: Its time or that of the nearest line before it that has one, or "".
        before: What some other program put before it.
    """

    node: str
    rank: int | None
    file: str
    number: int
    text: str
    time: str
    before: str = ""

    @property
    def whole(self) -> str:
        """The line as it stands in the file."""
        return self.before + self.text


@dataclass(frozen=True, slots=True)
class Match:
    """A line, the signature that matches it, and what the groups of the pattern captured."""

    line: Line
    signature: Signature
    found: dict[str, str]

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for repetitions of the same message."""
        return (
            self.signature.id,
            self.line.rank,
            log_lines.rank_of(self.line.text),
            self.found.get("rank"),
            self.found.get("missing"),
        )


def of(line: Line, among: Collection[int] | None = None) -> Match | None:
    """Return the first signature that matches a line, or None.

    ``among`` are the indices of the signatures to try; by default all are tried.
    """
    all_ = signatures.of_logs()
    here = range(len(all_)) if among is None else sorted(at for at in among if at < len(all_))
    calm = bool(here) and log_lines.told_calmly(line.text)
    for signature in (all_[at] for at in here):
        if calm and not signature.waits:
            continue
        found = signature.find(line.text)
        if found is not None:
            return Match(line, signature, found)
    return None


def ordered(found: Iterable[Match]) -> list[Match]:
    """Return matches with causes before cascades, then by time.

    Of matches in the same second the more informative one comes first, then the lower rank.
    """
    found = list(found)
    # A launcher reports every rank that ended, even those that only lost contact with another.
    lost = {(one.line.node, one.line.rank) for one in found if one.signature.cascade}
    when = times([one.line.time for one in found])

    def order(at: int) -> tuple[Any, ...]:
        one = found[at]
        ended = one.signature.id == "rank-died"
        return (
            ended and (one.line.node, int(one.found["rank"])) in lost,
            one.signature.cascade,
            one.signature.waits,
            one.signature.kind == "rank-died",
            when[at],
            one.line.rank is None,
            one.line.rank or 0,
            one.line.number,
        )

    return [found[at] for at in sorted(range(len(found)), key=order)]


def times(stamps: list[str]) -> list[str]:
    """Return times in a form that can be compared.

    All get the same precision, January follows an adjacent December, and missing times sort last.

    >>> times(["12-31 23:59:59.5", "01-01 00:00:01", ""])
    ['12-31 23:59:59', '13-01 00:00:01', '99']
    """
    there = [stamp for stamp in stamps if stamp]
    exact = all("." in stamp for stamp in there)
    months = {stamp[:2] for stamp in there}
    turns = {"12", "01"} <= months and months <= {"10", "11", "12", "01", "02", "03"}

    def comparable(stamp: str) -> str:
        if not stamp:
            return "99"
        month = f"{int(stamp[:2]) + 12}" if turns and stamp[:2] < "04" else stamp[:2]
        return month + (stamp[2:] if exact else stamp[2:14])

    return list(map(comparable, stamps))
