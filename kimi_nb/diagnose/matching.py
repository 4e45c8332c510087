"""Lines that a signature knows: causes before what followed from them, the first first.

found = [one for one in map(matches.of, lines) if one]
matches.ordered(found)[0]      # the first cause
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from kimi_nb.diagnose import log_lines, signatures
from kimi_nb.diagnose.signatures import Signature


@dataclass(frozen=True)
class Line:
    """A line of a log: of a node, and of one rank on it (None: of all). ``number`` counts from 1;
    ``time`` is its own or that of the nearest line before it, "" where there is none."""

    node: str
    rank: int | None
    file: str
    number: int
    text: str
    time: str


@dataclass(frozen=True)
class Match:
    """A line, the signature that knows it, and what its pattern's groups found."""

    line: Line
    signature: Signature
    found: dict[str, str]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same thing, said again."""
        return (
            self.signature.id,
            self.line.rank,
            log_lines.rank_of(self.line.text),
            self.found.get("rank"),
            self.found.get("missing"),
        )


def of(line: Line, among: Collection[int] | None = None) -> Match | None:
    """The first signature (``among`` those of these indices) that knows a line; None where none
    does."""
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
    """Causes before cascades, then by time, then where two have the same second: the more telling
    one, and the lower rank."""
    found = list(found)
    # A launcher tells of every rank that ended, also of those that lost another one.
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
    """Times that compare: the same precision for all, January after the December beside it, and
    what has none behind all others."""
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
