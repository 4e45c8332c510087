"""A score, as it is shown and kept, and what keeps it from a published one."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kimi_nb.prove.accuracy import score_settings, scores, statistics
from kimi_nb.prove.accuracy.published_scores import NOT_PRINTED, Published
from kimi_nb.prove.accuracy.score_settings import NOT_COMPARABLE, Verdict, Verdicts
from kimi_nb.prove.accuracy.scores import Part, Score, Subject

SUBJECT = Subject("k2", "org/K2", "vllm", "0.20", "a3", "kimi", "http://127.0.0.1:1", "")
PART = Part("exact_match", "strict", 0.8, 1000, 800)
SCORE = Score(
    "lm-eval", "0.4", "gsm8k", SUBJECT, {"max_tokens": 2048, "seed": 1}, (PART,), 1000, 1000,
    seconds=61.0,
)  # fmt: skip
PUBLISHED = {
    "dataset": "gsm8k",
    "model": "k2",
    "weights": "org/k2",
    "metric": "exact_match",
    "filter": "strict",
    "samples": 1000,
    "value": 0.81,
    "hardware": "a3",
    "engine": "vllm",
    "engine_version": "0.20",
    "runner": "lm-eval",
    "settings": {"max_tokens": 2048, "seed": 1},
}


def published(**more) -> Published:
    given = PUBLISHED | more
    names = {one.name: one for one in dataclasses.fields(Published)}
    rest = {
        name: ""
        for name, one in names.items()
        if name not in given
        and one.default is dataclasses.MISSING
        and one.default_factory is dataclasses.MISSING
    }
    return Published(**rest, **{name: value for name, value in given.items() if name in names})


def score(**more) -> Score:
    about = {name: more.pop(name) for name in [*more] if hasattr(SUBJECT, name)}
    return dataclasses.replace(SCORE, subject=dataclasses.replace(SUBJECT, **about), **more)


# What keeps one from the other ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        ({}, {}, []),
        ({"mark": "REHEARSAL", "model": "x"}, {}, ["REHEARSAL: the figure says nothing of a model"]),
        ({"task": "aime", "model": "x"}, {}, ["dataset: aime here, gsm8k published"]),
        ({"model": "k3"}, {}, ["model: k3 here, k2 published"]),
        ({"weights": "ORG/k2"}, {}, []),
        ({"weights": "org/K3"}, {}, ["weights: org/k3 here, org/k2 published"]),
        ({}, {"metric": "f1"}, ["metric: exact_match here, f1 published"]),
        ({}, {"filter": ""}, ["filter: strict here, none published"]),
        ({"fault": "HTTP 500"}, {}, ["HTTP 500"]),
        ({"parts": (), "skipped": "no tool"}, {}, ["no tool"]),
        ({"parts": ()}, {}, ["there is no score"]),
    ],
)  # fmt: skip
def test_why_two_scores_cannot_be_compared(mine, theirs, why):
    assert score_settings.obstacles(score(**mine), PART, published(**theirs)) == why


def test_a_filter_that_none_of_them_has_is_no_obstacle():
    part = dataclasses.replace(PART, filter="")
    assert score_settings.obstacles(score(), part, published(filter="")) == []
    assert score_settings.obstacles(score(), part, published()) == [
        "filter: none here, strict published"
    ]


def test_without_a_number_of_right_answers_there_is_no_sampling_error():
    why = (
        "the score is no share of right answers of a known number, so that its "
        "sampling error is not known"
    )
    part = dataclasses.replace(PART, correct=None)
    assert score_settings.obstacles(score(), part, published()) == [why]
    assert score_settings.obstacles(score(), PART, published(samples=None)) == [why]
    assert score_settings.obstacles(score(fault="x"), part, published(model="k3")) == [
        "model: k2 here, k3 published",
        why,
        "x",
    ]


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        ({}, {}, []),
        ({"hardware": "a2"}, {}, ["hardware: a2 here, a3 published"]),
        ({"engine": "x"}, {}, ["engine: x 0.20 here, vllm 0.20 published"]),
        ({"engine_version": "1"}, {}, ["engine: vllm 1 here, vllm 0.20 published"]),
        ({}, {"runner": "y"}, ["tool: lm-eval here, y published"]),
        ({"settings": {"seed": 1}}, {}, ["max_tokens: not set here, 2048 published"]),
        ({"settings": {"max_tokens": 9, "seed": 1}}, {}, ["max_tokens: 9 here, 2048 published"]),
        ({}, {"settings": {"max_tokens": 2048}}, [f"seed: 1 here, {NOT_PRINTED}"]),
        ({}, {"samples": 999}, ["samples: 1000 here, 999 in the dataset"]),
        ({}, {"samples": 0}, []),
        ({"empty": 3}, {}, ["answers without content: 3 here, counted as wrong"]),
        ({"empty": 1}, {}, ["answers without content: 1 here, counted as wrong"]),
    ],
)
def test_what_to_know_beside_a_verdict(mine, theirs, said):
    assert score_settings.differences(score(**mine), PART, published(**theirs)) == said


# Verdicts -------------------------------------------------------------------------------------


def test_a_score_is_held_against_those_of_its_dataset():
    others = (published(dataset="aime"), published(), published(filter="z", model="x"))
    found = score_settings.compare(score(empty=2), others)
    said = statistics.verdict(800, 1000, 0.81, 1000)
    assert found == Verdicts(
        "gsm8k against 2 published scores",
        (
            Verdict(
                "gsm8k (strict)",
                said.word,
                said.sentence,
                "answers without content: 2 here, counted as wrong",
            ),
            Verdict(
                "gsm8k (z)",
                NOT_COMPARABLE,
                "model: k2 here, x published; filter: strict here, z published",
                None,
            ),
        ),
    )
    assert (
        found.words == {"gsm8k (strict)": said.word, "gsm8k (z)": NOT_COMPARABLE}
        and found.comparable
    )
    assert not score_settings.compare(score(), others[2:]).comparable
    other_way = score_settings.compare(score(), others[::-1])
    assert [*other_way.words.values()] == [NOT_COMPARABLE, said.word]
    assert score_settings.compare(score(), others[1:2]).verdicts[0].differing == "none"
    both = score_settings.compare(score(empty=2, hardware="a2"), others[1:2]).verdicts[0].differing
    assert both == (
        "hardware: a2 here, a3 published; answers without content: 2 here, counted as wrong"
    )
    blocked = score_settings.compare(score(model="y", weights="z"), others[1:2]).verdicts[0].figures
    assert blocked == "model: y here, k2 published; weights: z here, org/k2 published"


def test_without_one_of_its_dataset_all_say_why():
    found = score_settings.compare(score(mark="REHEARSAL"), (published(dataset="aime"),))
    assert found.title == "REHEARSAL: gsm8k against 1 published score"
    assert found.words == {"aime (strict)": NOT_COMPARABLE}
    assert score_settings.compare(score(), ()).title == "gsm8k against 0 published scores"


def test_the_part_of_the_same_filter_is_compared():
    flexible = Part("exact_match", "flexible", 0.5, 1000, 500)
    both = score(parts=(flexible, PART))
    of = statistics.verdict
    found = score_settings.compare(both, (published(), published(filter="flexible")))
    assert [one.figures for one in found.verdicts] == [
        of(800, 1000, 0.81, 1000).sentence,
        of(500, 1000, 0.81, 1000).sentence,
    ]
    none = score_settings.compare(both, (published(filter="z"),)).verdicts[0]
    assert none.figures == "filter: flexible here, z published"
    nothing = score_settings.compare(score(parts=(), fault="HTTP 500"), (published(),))
    assert nothing.verdicts[0].figures == (
        "metric: none here, exact_match published; filter: none here, strict published; "
        "the score is no share of right answers of a known number, so that its sampling error is "
        "not known; HTTP 500"
    )


def test_verdicts_as_a_table_and_as_values():
    found = Verdicts(
        "t", (Verdict("a", "agrees", "f", "none"), Verdict("b", NOT_COMPARABLE, "g", None))
    )
    table = found.table()
    assert (table.title, table.headings) == (
        "t",
        ("published", "verdict", "figures", "differing settings"),
    )
    assert table.rows == (("a", "agrees", "f", "none"), ("b", "not comparable", "g", None))
    assert found.as_dict() == {
        "verdicts": [
            {"published": "a", "verdict": "agrees", "figures": "f", "differing settings": "none"},
            {
                "published": "b",
                "verdict": "not comparable",
                "figures": "g",
                "differing settings": None,
            },
        ]
    }


def test_the_rows_of_the_picture():
    f1 = Part("f1", "strict", 0.5, 10, None)
    low, high = statistics.interval(800, 1000)
    bare = dataclasses.replace(PART, filter="", value=0.80004)
    rows = score_settings.drawn(
        [score(parts=(f1, PART)), score(parts=(bare,), mark="REHEARSAL")],
        (published(model="x", value=0.1), published(), published(value=0.2)),
    )
    first = {
        "name": "gsm8k strict, lm-eval",
        "score": 0.8,
        "low": round(low, 4),
        "high": round(high, 4),
        "n": 1000,
        "baseline": 0.81,
        "mark": "measured",
    }
    other = {"name": "gsm8k, lm-eval", "baseline": None, "mark": "REHEARSAL"}
    assert rows == [first, first | other]


# A score itself -------------------------------------------------------------------------------


def test_a_score_says_its_value_and_mark():
    assert SCORE.ok and SCORE.value == 0.8 and SCORE.mark == ""
    assert not score(fault="x").ok and not score(parts=()).ok and score(parts=()).value is None
    assert score(mark="REHEARSAL").mark == "REHEARSAL"


def test_a_score_is_kept_as_json(tmp_path):
    path = tmp_path / "score.json"
    kept = score(notes=("é",))
    kept.save(path)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(kept.as_dict())) and "é" in text
    assert text.startswith('{\n  "tool": "lm-eval",') and text.endswith("}\n")
    assert [*tmp_path.iterdir()] == [path] and Score.load(path) == kept
    assert Score.load(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("correct", "samples", "whole"),
    [(0, 1, True), (1, 1, True), (None, 0, True), (2, 1, False), (0, 0, False), (-1, 1, False)],
)
def test_right_answers_are_some_of_all(tmp_path, correct, samples, whole):
    path = tmp_path / "score.json"
    part = dataclasses.replace(PART, correct=correct, samples=samples)
    score(parts=(PART, part)).save(path)
    assert (Score.load(path) is not None) == whole


def test_a_number_that_is_a_text_is_none(tmp_path):
    path = tmp_path / "score.json"
    SCORE.save(path)
    path.write_text(path.read_text().replace('"value": 0.8', '"value": "0.8"'))
    assert Score.load(path) is None


def test_a_score_as_a_table():
    table = score(notes=("n1", "n2"), folder="/f", empty=4).table()
    assert (table.title, table.headings) == ("gsm8k by lm-eval 0.4", ("what", "is"))
    assert table.rows == (
        ("exact_match, strict", scores.share(PART)),
        ("answers without content", 4),
        ("took", "61.0 s"),
        ("settings", "max_tokens 2048, seed 1"),
        ("mark", "none: measured"),
        ("note", "n1"),
        ("note", "n2"),
        ("folder", "/f"),
    )


def test_a_table_without_a_score_says_why():
    table = score(
        parts=(), fault="HTTP 500", skipped="no tool", answered=7, samples=0, mark="REHEARSAL",
        tool_version="", settings={},
    ).table()  # fmt: skip
    assert table.title == "REHEARSAL: gsm8k by lm-eval"
    assert table.rows == (
        ("skipped", "no tool"),
        ("fault", "HTTP 500"),
        ("answered before", "7 of an unknown number"),
        ("settings", ""),
        ("mark", "REHEARSAL"),
    )
    assert ("answered before", "7 of 9") in score(fault="x", answered=7, samples=9).table().rows
    bare = score(parts=(dataclasses.replace(PART, filter=""),)).table()
    assert bare.rows[0][0] == "exact_match"


def test_a_share_with_its_interval():
    low, high = statistics.interval(800, 1000)
    assert scores.share(PART) == (
        f"800 of 1000, 80.0 % ({100 * low:.1f} % to {100 * high:.1f} % at 95%)"
    )
    assert scores.share(dataclasses.replace(PART, correct=None, value=0.5)) == "0.5000 over 1000"
