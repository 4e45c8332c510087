"""What was not the same on the two sides of a comparison. Pure.

settings.obstacles(score, part, published)      # why nothing can be said; [] is good
settings.differences(score, part, published)    # what to know beside a verdict
settings.drawn(scores, published)               # rows of the picture
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kimi_nb.prove.accuracy import statistics
from kimi_nb.prove.accuracy.published_scores import NOT_PRINTED, Published
from kimi_nb.prove.accuracy.scores import Part, Score
from kimi_nb.show import values as show


def obstacles(score: Score, part: Part, published: Published) -> list[str]:
    """What makes two figures different things; each as a sentence."""
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
    """What else was not the same, or cannot be known to be; each as a sentence."""
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


def compare(score: Score, values: tuple[Published, ...]) -> show.Table:
    """A row for each published value of the score's dataset, or for all where it is of none."""
    mine = [one for one in values if one.dataset == score.task] or list(values)
    rows: list[tuple[str, str, str, str | None]] = []
    for one in mine:
        part = next((part for part in score.parts if part.filter == one.filter), None) or (
            score.parts[0] if score.parts else Part("none", "", 0.0, 0, None)
        )
        blocked = obstacles(score, part, one)
        if blocked:
            rows.append((one.name, "not comparable", "; ".join(blocked), None))
            continue
        assert part.correct is not None
        said = statistics.verdict(part.correct, part.samples, one.value, one.samples)
        rows.append(
            (one.name, said.word, said.sentence, "; ".join(differences(score, part, one)) or "none")
        )
    return show.Table(
        f"{score.mark + ': ' if score.mark else ''}{score.task} against "
        f"{len(mine)} published score{'s' * (len(mine) != 1)}",
        ("published", "verdict", "figures", "differing settings"),
        tuple(rows),
    )


def drawn(scores: Iterable[Score], values: tuple[Published, ...]) -> list[dict[str, Any]]:
    """What `pictures.accuracy` draws: a row for each share of right answers, with the published
    value as baseline only where the two can be compared."""
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
    """Hubs do not tell upper and lower case apart."""
    return name.casefold()
