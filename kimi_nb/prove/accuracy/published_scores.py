"""The scores that the documents print (`kimi_nb/data/prove/accuracy.yaml`).

>>> [one.name for one in of("k2-thinking")]
['gsm8k (flexible-extract)', 'gsm8k (strict-match)']
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb import show
from kimi_nb.core import data_files

NOT_PRINTED = "not printed"


@dataclass(frozen=True)
class Published:
    """One printed score.

    Attributes:
        value: The score as a fraction of 1.
        stderr: The printed standard error as a fraction of 1, or None.
        samples: The size of the dataset; None if it is not known, or if the score is not a
            proportion of right answers.
        settings: The settings as printed.
    """

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
        """The number of right answers, as far as the printed digits tell.

        None if the score is not a proportion.
        """
        return None if self.samples is None else round(self.value * self.samples)

    @property
    def name(self) -> str:
        """The dataset and the filter, such as "gsm8k (strict-match)"."""
        return f"{self.dataset} ({self.filter})" if self.filter else self.dataset


@functools.cache
def values() -> tuple[Published, ...]:
    """Return every printed score, in the documents' order."""
    data = data_files.facts("prove/accuracy")
    return tuple(
        Published(
            **{"stderr": None, "note": "", **entry},
            title=data["datasets"][entry["dataset"]]["title"],
            samples=data["datasets"][entry["dataset"]]["samples"],
        )
        for entry in data["values"]
    )


def of(model: str) -> tuple[Published, ...]:
    """Return the printed scores of a model; () if its documents print none."""
    return tuple(one for one in values() if one.model == model)


def table(found: Sequence[Published]) -> show.Table:
    """Return a table of printed scores: what, where and on which hardware."""
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
