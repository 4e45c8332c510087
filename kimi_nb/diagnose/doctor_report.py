"""Report what the doctor found: the first failure, its consequences, and unknown errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.diagnose import (
    components,
)

_ROWS = 12  # rows of one kind in a table
_UNKNOWN = 4  # ranks with errors that nobody knows, each with several lines


@dataclass(frozen=True)
class Finding:
    """One failure.

    Attributes:
        rank: The rank's number, or its name as it is logged where it has no other ("TP4"), or is one
            of the several workers of a data parallel rank ("DP0_TP3_EP3") and no plan is known. Of
            one without a name its host ("ip=192.0.2.7") or its number there ("pid=412").
        devices: The devices of the rank on its node, if a plan is known.
        line: The number of the line in ``file``.
        time: The time as "MM-DD HH:MM:SS".
        component: The part of the system that failed, an id of components.yaml, or "".
        confidence: "known" (a signature), "component" (its part or code) or "seen" (the log's
            own words only).
        exception: The type of the exception, or "".
        code: The vendor's code, or ""; ``means`` says what it means, ``page`` where that stands.
        label: The place of the process as it is logged, "DP3 TP2", or what it is called,
            "RayWorkerWrapper pid=412".
    """

    signature: str
    kind: str
    cause: str
    node: str
    rank: int | str | None
    devices: tuple[int, ...]
    file: str
    line: int
    time: str
    text: str
    help: str
    refs: tuple[str, ...]
    see: str
    component: str = ""
    confidence: str = "known"
    exception: str = ""
    code: str = ""
    means: str = ""
    page: str = ""
    label: str = ""

    def __str__(self) -> str:
        return (
            f"{self.who}: {self.cause}.\n  seen: {self.file}:{self.line}: {self.text}\n"
            f"  next: {self.help}"
        )

    @property
    def who(self) -> str:
        """Node, rank and devices in words."""
        out = self.node + ("" if self.rank is None else f", rank {self.rank}")
        return out + (f", devices {show.spans(self.devices)}" if self.devices else "")


@dataclass(frozen=True)
class Unknown:
    """The first error lines of a rank for which no cause is known; ``rank`` as `Finding` has it."""

    node: str
    rank: int | str | None
    devices: tuple[int, ...]
    file: str
    line: int
    time: str
    lines: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Report(show.Shown):
    """The result of an examination.

    Attributes:
        first: The first failure, or None.
        also: Other failures with causes of their own.
        cascade: Failures that followed from others.
        unknown: Errors that match no signature.
        notes: What was not judged, and why.
        engines: Whether anything looked like the log of an engine or of a program around it.
    """

    first: Finding | None
    also: tuple[Finding, ...]
    cascade: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    files: int
    bytes: int
    notes: tuple[str, ...] = ()
    engines: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.first is None

    @property
    def verdict(self) -> str:
        """What is said where nothing was found."""
        if self.engines:
            return "nothing is wrong"
        return "no known failure was found, and nothing looked like an engine's log"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)

    def table(self) -> show.Table:
        """Return a table: the first cause, what to do, and what followed."""
        title = f"{self.files} log{'s' * (self.files != 1)}, {self.bytes / 1e6:.1f} MB"
        if self.first is None:
            return show.Table(
                f"{title}: {self.verdict}", ("what", "is"), tuple(_grouped("note", self.notes))
            )
        first = self.first
        rows: list[tuple[str, Any]] = [
            ("first", first.who),
            ("cause", first.cause),
            ("part", components.by_id(first.component).title if first.component else ""),
            ("means", f"{first.means} ({first.page})" if first.means else ""),
            ("time", first.time),
            ("seen", f"{first.file}:{first.line}: {first.text}"),
            ("next", first.help),
            ("go to", first.see.replace("#", ", ")),
            ("known as", ", ".join(first.refs)),
        ]
        rows += _grouped("also", [f"{one.who}: {one.cause}" for one in self.also])
        rows += _grouped("followed", [f"{one.who}: {one.cause}" for one in self.cascade])
        for one in self.unknown[:_UNKNOWN]:
            who = one.node + ("" if one.rank is None else f", rank {one.rank}")
            rows += [
                ("unknown", f"{who}, {one.file}:{one.line}"),
                *(("", line) for line in one.lines),
            ]
        if len(self.unknown) > _UNKNOWN:
            rows.append(("", f"and {len(self.unknown) - _UNKNOWN} more, in --json"))
        rows += _grouped("note", self.notes)
        return show.Table(title, ("what", "is"), tuple(row for row in rows if row[1]))


def _grouped(name: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    rows = [(name if not at else "", text) for at, text in enumerate(texts[:_ROWS])]
    if len(texts) > _ROWS:
        rows.append(("", f"and {len(texts) - _ROWS} more, in --json"))
    return rows
