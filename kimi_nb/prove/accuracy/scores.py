"""A measured score: how many answers were right, of how many, and under which settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kimi_nb import show
from kimi_nb.core import scratch
from kimi_nb.prove.accuracy import statistics


@dataclass(frozen=True)
class Part:
    """One metric of an evaluation, after one filter on the answers.

    Attributes:
        correct: The number of right answers; None if the score is not a proportion of them.
    """

    metric: str
    filter: str
    value: float
    samples: int
    correct: int | None


@dataclass(frozen=True)
class Subject:
    """The service that was asked: the model and engine of its plan, and its URL."""

    model: str
    weights: str
    engine: str
    engine_version: str
    hardware: str
    served: str
    url: str
    mark: str


@dataclass(frozen=True, repr=False)
class Score(show.Shown):
    """The result of an evaluation.

    Attributes:
        answered: Answers on disk.
        empty: Answers without content, which the tools count as wrong.
        fault: Why there is no score; "" if there is one.
        skipped: Why nothing was asked; "" if something was.
    """

    tool: str
    tool_version: str
    task: str
    subject: Subject
    settings: Mapping[str, Any]
    parts: tuple[Part, ...] = ()
    samples: int = 0
    answered: int = 0
    empty: int = 0
    seconds: float = 0.0
    fault: str = ""
    skipped: str = ""
    folder: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether there is a score."""
        return bool(self.parts) and not self.fault

    @property
    def mark(self) -> str:
        """REHEARSAL or RANDOM WEIGHTS; "" if the score says something about a model."""
        return self.subject.mark

    @property
    def value(self) -> float | None:
        """The first part's score; None without one."""
        return self.parts[0].value if self.parts else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as they are saved."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write the score to a file, completely or not at all."""
        partial = path.with_suffix(".partial")
        scratch.write(partial, json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Score | None:
        """Read a saved score; return None if there is none or it cannot be read."""
        try:
            score = TypeAdapter(cls).validate_json(path.read_bytes(), strict=True)
        except (OSError, ValueError):
            return None
        numbers = ((part.correct, part.samples) for part in score.parts if part.correct is not None)
        return score if all(0 <= correct <= of and of for correct, of in numbers) else None

    def table(self) -> show.Table:
        """Return a table of the score with its confidence interval, or why there is none."""
        rows: list[tuple[str, Any]] = []
        if self.skipped:
            rows.append(("skipped", self.skipped))
        if self.fault:
            rows += [
                ("fault", self.fault),
                ("answered before", f"{self.answered} of {self.samples or 'an unknown number'}"),
            ]
        for part in self.parts:
            name = part.metric + (f", {part.filter}" if part.filter else "")
            rows.append((name, share(part)))
        if self.parts:
            rows += [("answers without content", self.empty), ("took", show.seconds(self.seconds))]
        rows += [
            ("settings", ", ".join(f"{key} {value}" for key, value in self.settings.items())),
            ("mark", self.mark or "none: measured"),
            *(("note", note) for note in self.notes),
        ]
        if self.folder:
            rows.append(("folder", self.folder))
        return show.Table(
            f"{self.mark + ': ' if self.mark else ''}{self.task} by {self.tool} "
            f"{self.tool_version}".rstrip(),
            ("what", "is"),
            tuple(rows),
        )


def share(part: Part) -> str:
    """Format a score with its confidence interval.

    >>> share(Part("exact_match", "", 20 / 24, 24, 20))
    '20 of 24, 83.3 % (62.6 % to 95.3 % at 95%)'
    """
    if part.correct is None:
        return f"{part.value:.4f} over {part.samples}"
    low, high = statistics.interval(part.correct, part.samples)
    return (
        f"{part.correct} of {part.samples}, {100 * part.value:.1f} % ({100 * low:.1f} % to "
        f"{100 * high:.1f} % at {statistics.CONFIDENCE:.0%})"
    )
