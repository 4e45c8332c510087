"""The scores that the documents print (`kimi_nb/data/accuracy.yaml`).

published.of("k2.5")              # of one model, in the documents' order
published.table(values)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.params import load as params
from kimi_nb.show import values as show

NOT_PRINTED = "not printed"


@dataclass(frozen=True)
class Published:
    """One printed score. ``value`` and ``stderr`` are shares of 1; ``samples`` is the size of the
    dataset, None where it is not known or the score is no share of right answers; ``settings`` as
    printed."""

    model: str
    weights: str
    dataset: str
    title: str
    metric: str
    filter: str
    value: float
    stderr: float | None
    samples: int | None
    engine: str
    engine_version: str
    hardware: str
    nodes: str
    runner: str
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def correct(self) -> int | None:
        """Right answers, as far as the printed digits tell; None where no share is printed."""
        return None if self.samples is None else round(self.value * self.samples)

    @property
    def name(self) -> str:
        """gsm8k (strict-match)"""
        return f"{self.dataset} ({self.filter})" if self.filter else self.dataset


@functools.cache
def values() -> tuple[Published, ...]:
    """Every printed score, in the documents' order."""
    data = params.data("accuracy")
    return tuple(
        Published(
            **{"stderr": None, "note": "", **entry},
            title=data["datasets"][entry["dataset"]]["title"],
            samples=data["datasets"][entry["dataset"]]["samples"],
        )
        for entry in data["values"]
    )


def of(model: str) -> tuple[Published, ...]:
    """The printed scores of a model; () where its documents print none."""
    return tuple(one for one in values() if one.model == model)


def table(found: Sequence[Published]) -> show.Table:
    """What was printed, where, and of which hardware."""
    return show.Table(
        f"{len(found)} published score{'s' * (len(found) != 1)}",
        (
            "dataset",
            "score",
            "stderr",
            "samples",
            "metric",
            "engine",
            "hardware",
            "tool",
            "source",
            "note",
        ),
        tuple(
            (
                one.title + (f", {one.filter}" if one.filter else ""),
                f"{100 * one.value:.2f} %",
                f"{100 * one.stderr:.2f} %" if one.stderr else None,
                one.samples or "not known",
                one.metric,
                f"{one.engine} {one.engine_version}",
                one.nodes,
                one.runner,
                one.source,
                one.note,
            )
            for one in found
        ),
    )
