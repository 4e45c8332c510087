"""What differs between a measured and a published score. Pure.

Usage::

    score_settings.obstacles(score, part, published)  # why they cannot be compared; [] if they can
    score_settings.differences(score, part, published)  # what to know beside a verdict
    score_settings.drawn(scores, published)  # the rows of the picture
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.prove.accuracy import statistics
from kimi_nb.prove.accuracy.published_scores import NOT_PRINTED, Published
from kimi_nb.prove.accuracy.scores import Part, Score

NOT_COMPARABLE = "not comparable"
PUBLISHED = "published.json"  # next to score.json: the verdicts


def obstacles(score: Score, part: Part, published: Published) -> list[str]:
    """Return why two scores cannot be compared, a sentence for each reason; [] if they can."""
    if score.mark:
        return [f"{score.mark}: the figure says nothing of a model"]
    if score.task != published.dataset:
        return [f"dataset: {score.task} here, {published.dataset} published"]
    found = [
        f"{what}: {here} here, {there} published"
        for what, here, there in (
            ("model", score.subject.model, published.model),
            ("weights", _repository(score.subject.weights), _repository(published.weights)),
            ("metric", part.metric, published.metric),
            ("filter", part.filter or "none", published.filter or "none"),
        )
        if here != there
    ]
    if part.correct is None or published.correct is None:
        found.append(
            "the score is no share of right answers of a known number, so that its "
            "sampling error is not known"
        )
    if not score.ok:
        found.append(score.fault or score.skipped or "there is no score")
    return found


def differences(score: Score, part: Part, published: Published) -> list[str]:
    """Return what else differs, or is not known to be the same, a sentence for each."""
    found = [
        f"{what}: {here} here, {there} published"
        for what, here, there in (
            ("hardware", score.subject.hardware, published.hardware),
            (
                "engine",
                f"{score.subject.engine} {score.subject.engine_version}",
                f"{published.engine} {published.engine_version}",
            ),
            ("tool", score.tool, published.runner),
        )
        if here != there
    ]
    for name in dict.fromkeys((*score.settings, *published.settings)):
        here = score.settings.get(name, "not set")
        there = published.settings.get(name, NOT_PRINTED)
        if here != there:
            found.append(
                f"{name}: {here} here, {there}" + ("" if there == NOT_PRINTED else " published")
            )
    if published.samples and part.samples != published.samples:
        found.append(f"samples: {part.samples} here, {published.samples} in the dataset")
    if score.empty:
        found.append(f"answers without content: {score.empty} here, counted as wrong")
    return found


@dataclass(frozen=True)
class Verdict:
    """A score against one published score.

    Attributes:
        published: The name of the published score.
        word: The verdict of `statistics.verdict`, or "not comparable".
        figures: The verdict with its figures, or why the scores cannot be compared.
        differing: What else differs; None if they cannot be compared.
    """

    published: str
    word: str
    figures: str
    differing: str | None


@dataclass(frozen=True, repr=False)
class Verdicts(show.Shown):
    """A score against every published score that may concern it."""

    title: str
    verdicts: tuple[Verdict, ...]

    @property
    def words(self) -> dict[str, str]:
        """The verdict by the name of the published score."""
        return {one.published: one.word for one in self.verdicts}

    @property
    def comparable(self) -> bool:
        """Whether any published score can be compared."""
        return any(one.word != NOT_COMPARABLE for one in self.verdicts)

    def table(self) -> show.Table:
        """Return a table with a row for each published score."""
        return show.Table(
            self.title,
            ("published", "verdict", "figures", "differing settings"),
            tuple((one.published, one.word, one.figures, one.differing) for one in self.verdicts),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the verdicts as plain values, as they are saved in the run's folder."""
        table = self.table()
        rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
        return {"verdicts": rows}


def compare(score: Score, values: tuple[Published, ...]) -> Verdicts:
    """Compare a score with the published scores of the same dataset.

    If there are none, it is compared with all of them, which says why they cannot be compared.
    """
    mine = [one for one in values if one.dataset == score.task] or list(values)
    found: list[Verdict] = []
    for one in mine:
        part = next((part for part in score.parts if part.filter == one.filter), None) or (
            score.parts[0] if score.parts else Part("none", "", 0.0, 0, None)
        )
        blocked = obstacles(score, part, one)
        if blocked:
            found.append(Verdict(one.name, NOT_COMPARABLE, "; ".join(blocked), None))
            continue
        assert part.correct is not None
        said = statistics.verdict(part.correct, part.samples, one.value, one.samples)
        settings = "; ".join(differences(score, part, one)) or "none"
        found.append(Verdict(one.name, said.word, said.sentence, settings))
    return Verdicts(
        f"{score.mark + ': ' if score.mark else ''}{score.task} against "
        f"{len(mine)} published score{'s' * (len(mine) != 1)}",
        tuple(found),
    )


def drawn(scores: Iterable[Score], values: tuple[Published, ...]) -> list[dict[str, Any]]:
    """Return the rows of `kimi_nb.notebook.pictures.score_intervals.picture`.

    Each proportion of right answers is a row. It has the published score as a baseline only if the
    two can be compared.
    """
    rows = []
    for score in scores:
        for part in score.parts:
            if part.correct is None:
                continue
            low, high = statistics.interval(part.correct, part.samples)
            theirs = next((one for one in values if not obstacles(score, part, one)), None)
            rows.append(
                {
                    "name": f"{score.task} {part.filter}".rstrip() + f", {score.tool}",
                    "score": round(part.value, 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                    "n": part.samples,
                    "baseline": theirs.value if theirs else None,
                    "mark": score.mark or "measured",
                }
            )
    return rows


def _repository(name: str) -> str:
    """Fold the case of a repository's name: model hubs do not distinguish it."""
    return name.casefold()
