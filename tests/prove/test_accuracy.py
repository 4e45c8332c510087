"""Accuracy: what is published, when scores differ, what is not comparable, named faults."""

from __future__ import annotations

import dataclasses
import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import kimi_nb
from kimi_nb.core import environments
from kimi_nb.core.errors import AccuracyError, ParameterError
from kimi_nb.plan import build
from kimi_nb.prove.accuracy import (
    ais_bench,
    evaluation,
    evaluation_faults,
    evaluators,
    lm_eval,
    measure,
    published_scores,
    score_settings,
    statistics,
    tool_process,
)
from kimi_nb.prove.accuracy.scores import Part, Score, Subject

VALUES = published_scores.values()


def test_published_scores_are_whole_numbers_of_their_datasets():
    """A printed share is that of some number of right answers, or a note says that it is none."""
    assert len(VALUES) == 10
    for one in VALUES:
        if one.correct is not None:
            exact = abs(one.correct / one.samples - one.value) <= 0.00005 + 1e-12
            assert exact or "no whole number" in one.note, one


def test_the_printed_standard_error_is_that_of_the_share():
    for one in VALUES:
        if one.stderr:
            wanted = (one.value * (1 - one.value) / (one.samples - 1)) ** 0.5
            assert one.stderr == pytest.approx(wanted, abs=0.00005)


def test_models_of_the_published_scores_exist():
    for one in VALUES:
        assert one.weights in {
            item.id for item in kimi_nb.params.load.model(one.model).weights.values()
        }


@given(
    st.integers(1, 2000),
    st.floats(0, 1),
    st.one_of(st.none(), st.integers(1, 2000)),
    st.floats(0, 1),
)
def test_a_verdict_is_what_its_interval_says(samples, share, others, value):
    correct = round(share * samples)
    said = statistics.verdict(correct, samples, value, others)
    gap = correct / samples - value
    assert -1 <= said.low <= gap + 1e-9 and gap - 1e-9 <= said.high <= 1
    assert (said.word == statistics.BELOW) == (said.high < 0)
    assert (said.word == statistics.ABOVE) == (said.low > 0)
    if said.word == statistics.AGREES:
        assert max(-said.low, said.high) < statistics.MARGIN
    assert f"{correct} of {samples}" in said.sentence


@given(st.integers(0, 400), st.integers(1, 400))
def test_an_interval_holds_its_share_and_shrinks(correct, samples):
    correct = min(correct, samples)
    low, high = statistics.interval(correct, samples)
    assert 0 <= low <= correct / samples <= high <= 1
    wide = statistics.interval(10 * correct, 10 * samples)
    assert wide[1] - wide[0] < high - low


@pytest.mark.parametrize("samples, share", [(30, 0.9), (198, 0.85), (24, 0.5)])
def test_false_alarms_are_rare(samples, share):
    """A service as good as the published one is called different about once in twenty."""
    value = round(share * samples) / samples
    alarms = sum(
        binom.pmf(correct, samples, value)
        for correct in range(samples + 1)
        if statistics.verdict(correct, samples, value, None).word
        in (statistics.BELOW, statistics.ABOVE)
    )
    assert alarms < 0.09


@pytest.mark.parametrize(
    "correct, samples, value, others, word",
    [
        (1186, 1319, 0.8992, 1319, statistics.AGREES),
        (1100, 1319, 0.8992, 1319, statistics.BELOW),
        (1319, 1319, 0.9607, 1319, statistics.ABOVE),
        (27, 30, 0.9, 30, statistics.TOO_FEW),
        (10, 30, 0.9, 30, statistics.BELOW),
        (0, 0, 0.9, 30, statistics.TOO_FEW),
    ],
)
def test_verdicts(correct, samples, value, others, word):
    assert statistics.verdict(correct, samples, value, others).word == word


THINKING = next(one for one in VALUES if one.filter == "strict-match")


def _score(**changes) -> Score:
    about = Subject(
        "k2-thinking",
        THINKING.weights,
        "vllm-ascend",
        "v0.20.2rc1",
        "a3",
        "kimi",
        "http://127.0.0.1:1",
        changes.pop("mark", ""),
    )
    given = {
        "parts": (Part("exact_match", "strict-match", 1115 / 1319, 1319, 1115),),
        "samples": 1319,
        "answered": 1319,
        **changes,
    }
    return Score(
        "lm-eval",
        "0.4.13",
        given.pop("task", "gsm8k"),
        given.pop("about", about),
        given.pop("settings", dict(THINKING.settings)),
        **given,
    )


def test_the_same_settings_have_no_differences():
    score = _score()
    assert score_settings.obstacles(score, score.parts[0], THINKING) == []
    assert score_settings.differences(score, score.parts[0], THINKING) == []
    rows = score_settings.compare(score, (THINKING,)).table().rows
    assert rows[0][1] == "agrees" and rows[0][3] == "none"


def test_every_difference_is_named():
    score = _score(settings={**THINKING.settings, "max_tokens": 256, "seed": 1}, empty=3)
    score = dataclasses.replace(
        score,
        subject=dataclasses.replace(score.subject, hardware="a2", engine_version="v0.21.0rc1"),
    )
    said = "; ".join(score_settings.differences(score, score.parts[0], THINKING))
    for word in (
        "hardware: a2 here, a3",
        "v0.21.0rc1",
        "max_tokens: 256 here, 2048",
        "seed: 1 here, not printed",
        "without content: 3",
    ):
        assert word in said


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"mark": "REHEARSAL"}, "REHEARSAL"),
        ({"mark": "RANDOM WEIGHTS"}, "RANDOM WEIGHTS"),
        ({"task": "aime2025"}, "dataset"),
        ({"fault": "HTTP 500"}, "HTTP 500"),
        ({"parts": (Part("exact_match", "none", 0.5, 10, 5),)}, "filter"),
        ({"parts": (Part("f1", "strict-match", 0.5, 10, None),)}, "no share"),
    ],
)
def test_what_is_not_comparable_gets_no_verdict(changes, word):
    row = score_settings.compare(_score(**changes), (THINKING,)).table().rows[0]
    assert row[1] == "not comparable" and word in row[2]


@pytest.mark.parametrize(
    "changes, baseline, mark",
    [
        ({}, THINKING.value, "measured"),
        ({"mark": "REHEARSAL"}, None, "REHEARSAL"),
        ({"task": "aime2025"}, None, "measured"),
    ],
)
def test_a_published_score_is_drawn_only_beside_one_it_compares_with(changes, baseline, mark):
    (row,) = score_settings.drawn([_score(**changes)], (THINKING,))
    assert (row["baseline"], row["mark"], row["n"]) == (baseline, mark, 1319)
    assert 0 < row["low"] < row["score"] < row["high"] < 1


def test_what_is_no_share_of_right_answers_is_not_drawn():
    f1 = _score(parts=(Part("f1", "strict-match", 0.5, 10, None),))
    assert score_settings.drawn([f1, _score(parts=(), fault="HTTP 500")], (THINKING,)) == []


def test_a_score_is_kept_whole(tmp_path):
    score = _score(notes=("a",), folder=str(tmp_path))
    score.save(tmp_path / "score.json")
    assert Score.load(tmp_path / "score.json") == score
    (tmp_path / "score.json").write_text('{"tool": "cut o')
    assert Score.load(tmp_path / "score.json") is None
    assert "1115 of 1319" in str(score)


@pytest.mark.parametrize(
    "damage",
    [
        {"seconds": "long"},
        {"settings": "none"},
        {"settings": None},
        {"subject": {"model": "k2.5"}},
        {"parts": [{"metric": "f1"}]},
        {"parts": [{"metric": "f1", "filter": "", "value": "1", "samples": 1, "correct": 1}]},
        {"parts": [{"metric": "f1", "filter": "", "value": 1.0, "samples": 1, "correct": 2}]},
        {"parts": [{"metric": "f1", "filter": "", "value": 1.0, "samples": 0, "correct": 0}]},
        {"notes": 1},
    ],
)
def test_a_score_of_other_kinds_is_none(tmp_path, damage):
    (tmp_path / "score.json").write_text(json.dumps(_score().as_dict() | damage))
    assert Score.load(tmp_path / "score.json") is None


@pytest.mark.parametrize(
    "log, word",
    [
        ("API request failed! Status code: 401, Response text: no. Retrying...", "HTTP 401"),
        ("API request failed! Status code: 429, Response text: slow. Retrying...", '"slow"'),
        ("API request failed! Status code: 503, Response text: x. Retrying...", "HTTP 503"),
        ("Internal Server Error", "HTTP 5xx"),
        ("API request failed! Status code: 404, Response text: no model. Retrying...", "HTTP 404"),
        ("ClientConnectorError: Cannot connect to host 127.0.0.1:1", "the service is gone"),
        ("Exception:ServerDisconnectedError('Server disconnected')", "the service is gone"),
        ("Exception:JSONDecodeError('Expecting value')", "no JSON"),
        ("Exception:TimeoutError()", "no answer in"),
        ("ModuleNotFoundError: No module named 'x'", "make tools"),
        ("a\nsome other end", "some other end"),
        ("", "without a word"),
    ],
)
def test_faults_are_named(log, word):
    assert word in evaluation_faults.named(log)


def _evaluation(task=evaluation.SHIPPED, **changes):
    about = Subject("k2.5", "w", "vllm", "1", "a3", "kimi", "http://127.0.0.1:8000", "")
    return evaluation.Evaluation(task, about, **changes)


def test_the_line_of_lm_eval_has_the_reference_settings():
    words = lm_eval.argv("lm_eval", _evaluation("gsm8k", limit=7))
    line = " ".join(words)
    for part in (
        "local-chat-completions",
        "/v1/chat/completions",
        "--num_fewshot 5",
        "--apply_chat_template --fewshot_as_multiturn true",
        "max_gen_toks=2048",
        "temperature=0.0,top_p=1.0",
        "--batch_size 1",
        "--limit 7",
    ):
        assert part in line
    assert "--include_path" not in line and lm_eval.files(_evaluation("gsm8k")) == {}


@pytest.mark.parametrize("task", [*ais_bench.DATASETS, evaluation.SHIPPED])
def test_the_configuration_of_aisbench_is_python_without_a_key(task):
    made = ais_bench.files(_evaluation(task), "/x", keyed=True)
    for name, text in made.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
            assert "api_key" not in text
    assert "KeyedChat" in made[ais_bench.CONFIG] and "8000" in made[ais_bench.CONFIG]


def test_aisbench_samples_as_the_publisher_recommends():
    about = Subject("k2.7-code", "w", "vllm", "0.19.1", "h200", "kimi", "http://127.0.0.1:8000", "")
    asked = evaluation.Evaluation("gsm8k", about)
    made = ais_bench.files(asked)[ais_bench.CONFIG]
    assert "generation_kwargs=dict(temperature=1.0, top_p=0.95)" in made
    told = ais_bench.settings(asked)
    assert (told["temperature"], told["top_p"]) == (1.0, 0.95)
    greedy = ais_bench.files(_evaluation("gsm8k"))[ais_bench.CONFIG]
    assert "generation_kwargs=dict(temperature=0.0)" in greedy


def test_results_of_aisbench(tmp_path):
    """In the form in which AISBench 3.1 left them after a trial against a service."""
    detail = {str(at): {"predictions": ["1"], "correct": [at < 3]} for at in range(4)}
    part = ais_bench.score({"accuracy": 75.0, "details": detail}, 4)
    assert part == Part("accuracy", "", 0.75, 4, 3)
    assert ais_bench.score({"error": "different length"}, 4) is None
    place = tmp_path / "out/1/predictions" / ais_bench.ABBREVIATION
    place.mkdir(parents=True)
    rows = [
        {"data_abbr": "a", "id": 0, "success": True, "prediction": "1"},
        {"data_abbr": "a", "id": 1, "success": True, "prediction": " "},
        {"data_abbr": "a", "id": 2, "success": False, "error_info": "Internal Server Error"},
    ]
    (place / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"cut')
    left = ais_bench.read(tmp_path, "", _evaluation())
    assert (left.samples, left.answered, left.empty) == (3, 2, 1)
    assert left.failed == {"Internal Server Error": 1} and not left.parts
    assert "1 of 3 requests" in evaluation_faults.of_answers(0, dict(left.failed), 3)


@pytest.mark.parametrize("text", ["[]", '{"accuracy": 7', "\x98", "[" * 9000])
def test_a_damaged_result_of_aisbench_is_named(tmp_path, text):
    place = tmp_path / "out/1/results" / ais_bench.ABBREVIATION
    place.mkdir(parents=True)
    (place / "gsm8k.json").write_text(text, encoding="latin-1")
    with pytest.raises(AccuracyError, match=r"gsm8k\.json: is damaged"):
        ais_bench.read(tmp_path, "", _evaluation())


@pytest.mark.parametrize(
    ("accuracy", "details"),
    [(75.0, 4), (75.0, [None, {"correct": []}]), (9e9, {}), (-1, None)],
)
def test_a_result_of_aisbench_without_details(accuracy, details):
    part = ais_bench.score({"accuracy": accuracy, "details": details}, 4)
    assert part.correct == (3 if accuracy == 75.0 else None)
    for value in (float("nan"), float("inf"), 10**400, True, "75"):
        assert ais_bench.score({"accuracy": value}, 4) is None


def test_what_is_no_answer_of_aisbench_is_left_out(tmp_path):
    place = tmp_path / "out/1/predictions" / ais_bench.ABBREVIATION
    place.mkdir(parents=True)
    lines = [
        "null",
        "[]",
        "[" * 9000,
        '{"id": [], "data_abbr": {}, "error_info": "%s"}' % ("x" * 999),
    ]
    (place / "a.jsonl").write_text("\n".join(lines))
    log = tmp_path / "out/1/logs/infer" / ais_bench.ABBREVIATION / "a.out"
    log.parent.mkdir(parents=True)
    log.write_text("Total data num: many, Total data num: " + "9" * 5000)
    left = ais_bench.read(tmp_path, "", _evaluation())
    assert (left.samples, left.answered, left.failed) == (1, 0, {"x" * 200: 1})


_RESULTS = {
    "n-samples": {evaluation.SHIPPED: {"effective": 24}},
    "results": {evaluation.SHIPPED: {"exact_match,none": 0.5}},
}
_SAMPLE = '{"doc_id": 0, "resps": [[" "]]}\n'


@pytest.mark.parametrize(
    ("results", "samples", "named"),
    [
        ('{"n-samples', _SAMPLE, "results_1.json"),
        ("[]", _SAMPLE, "results_1.json"),
        (json.dumps(_RESULTS | {"results": {}}), _SAMPLE, "results_1.json"),
        (json.dumps(_RESULTS | {"n-samples": {evaluation.SHIPPED: 24}}), _SAMPLE, "results_1.json"),
        (json.dumps(_RESULTS), None, "samples_"),
        (json.dumps(_RESULTS), _SAMPLE + '{"doc_', "samples_"),
        (json.dumps(_RESULTS), '{"doc_id": {}, "resps": [[]]}', "samples_"),
        (json.dumps(_RESULTS), '{"doc_id": 1, "resps": []}', "samples_"),
        (json.dumps(_RESULTS), '{"doc_id": 1, "resps": ["an answer"]}', "samples_"),
    ],
)
def test_a_damaged_result_of_lm_eval_is_named(tmp_path, results, samples, named):
    place = tmp_path / "out" / "kimi"
    place.mkdir(parents=True)
    (place / "results_1.json").write_text(json.dumps(_RESULTS))
    (place / f"samples_{evaluation.SHIPPED}_1.jsonl").write_text(_SAMPLE)
    left = lm_eval.read(tmp_path, "", _evaluation())
    assert (left.samples, left.empty, left.parts[0].correct) == (24, 1, 12)
    (place / "results_1.json").write_text(results)
    (place / f"samples_{evaluation.SHIPPED}_1.jsonl").unlink()
    if samples:
        (place / f"samples_{evaluation.SHIPPED}_1.jsonl").write_text(samples)
    with pytest.raises(AccuracyError, match=f"{named}.*: is damaged") as refused:
        lm_eval.read(tmp_path, "", _evaluation())
    assert "an answer" not in str(refused.value)


def test_values_of_lm_eval_that_are_no_shares():
    found = {"a,none": float("nan"), "b,none": 10**400, "c,none": True, "d,none": 7.0}
    assert [(part.metric, part.correct) for part in lm_eval.parts(found, 24)] == [("d", None)]


def test_results_of_lm_eval():
    found = lm_eval.parts(
        {
            "alias": "x",
            "exact_match,strict-match": 0.75,
            "exact_match_stderr,strict-match": 0.1,
            "f1,none": 0.123,
        },
        8,
    )
    assert found == (
        Part("exact_match", "strict-match", 0.75, 8, 6),
        Part("f1", "", 0.123, 8, None),
    )


def test_progress_of_lm_eval(tmp_path):
    log = (
        "Cached requests: 10, Requests remaining: 14\nRequesting API:   0%|  | 0/14 [00:00"
        "\rRequesting API:  50%|##  | 7/14 [00:03<00:03]"
    )
    assert lm_eval.progress(tmp_path, log) == (17, 24)
    assert lm_eval.progress(tmp_path, "") is None


def test_a_secret_is_taken_out(tmp_path):
    (tmp_path / "log").write_bytes(b"wrong key: abc\xff")
    tool_process.scrub(tmp_path, "abc")
    assert (tmp_path / "log").read_bytes() == b"wrong key: ***\xff"
    tool_process.scrub(tmp_path, "")


def test_the_shipped_questions_are_answered_rightly():
    rows = [json.loads(line) for line in evaluation.shipped_files()["test.jsonl"].splitlines()]
    assert len(rows) == len({row["question"] for row in rows}) == 24
    for row in rows:
        words, _, number = row["answer"].partition("\n#### ")
        assert words.rstrip(".").endswith(f"= {number}")


def test_random_weights_are_marked():
    assert measure.subject(build.plan("k2.5", "cpu", "single"), "u", "").mark == "RANDOM WEIGHTS"
    assert measure.subject(build.plan("k2.5", "a3", "single"), "u", "").mark == ""
    assert measure.subject(build.plan("k2.5", "a3", "single"), "u", "REHEARSAL").mark == "REHEARSAL"


@pytest.fixture
def run(tmp_path):
    return kimi_nb.start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path / "run"))


@pytest.mark.parametrize(
    "given, word",
    [
        ({"tool": "lm-evil"}, "did you mean 'lm-eval'"),
        ({"task": "a b"}, "name of a task"),
        ({"tool": "ais-bench", "task": "gsm8"}, "did you mean 'gsm8k'"),
        ({"limit": -1}, "limit -1"),
    ],
)
def test_wrong_parameters(run, given, word):
    with pytest.raises(ParameterError, match=word):
        run.evaluations(**{"tool": "lm-eval", **given})


def test_nothing_is_asked_with_action_plan(run):
    score = run.accuracy(run.serve(run.plan(run.choose("single"))), run.evaluations("lm-eval"))
    assert score.skipped and not score.ok and "skipped" in str(score)
    assert not run.compare(score).comparable
    plan = run.plan(run.choose("single"))
    assert run.draw(plan, score, None).data == ()
    assert (run.folder / plan.name / "pictures" / "accuracy.svg").is_file()


def test_a_tool_that_is_not_there_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluators, "folder", lambda: tmp_path)
    assert evaluators.find("lm-eval") is None and "make tools" in evaluators.reason("lm-eval")
    (tmp_path / "lm-eval.json").write_text('{"reason": "no network"}')
    assert "no network" in evaluators.reason("lm-eval")


def test_an_installation_that_cannot_work_leaves_its_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluators, "folder", lambda: tmp_path)
    monkeypatch.setattr(evaluators.sys, "version_info", (3, 10, 0))
    assert evaluators.main([str(tmp_path)]) == 2
    assert "works with Python 3.11" in capsys.readouterr().err
    assert "works with Python 3.11" in evaluators.reason("ais-bench")


def test_a_complete_tool_is_left_alone_and_a_half_made_one_is_made_again(tmp_path, monkeypatch):
    tool, calls = evaluators.named("lm-eval"), []

    def called(argv, **how):
        calls.append(argv)
        if "venv" in argv:
            (tmp_path / "lm-eval" / "bin").mkdir(parents=True)
            for name in ("python", "lm_eval"):
                (tmp_path / "lm-eval" / "bin" / name).write_text("")
        return subprocess.CompletedProcess(argv, 0, "kimi-nb {}\n", "")

    monkeypatch.setattr(evaluators, "folder", lambda: tmp_path)
    monkeypatch.setattr(environments.subprocess, "run", called)
    place, program = tmp_path / "lm-eval", tmp_path / "lm-eval" / "bin" / "lm_eval"
    assert evaluators.install(tmp_path, tool) == f"{place}: lm-eval 0.4.13"
    assert not any("download" in argv for argv in calls) and evaluators.find("lm-eval") == program
    count = len(calls)
    assert "no change: lm-eval 0.4.13" in evaluators.install(tmp_path, tool)
    # A record as earlier versions of this project wrote it.
    (place / ".kimi-nb-tool.json").write_text(json.dumps(tool.environment.wanted))
    assert "no change: lm-eval 0.4.13" in evaluators.install(tmp_path, tool)
    assert len(calls) == count
    program.unlink()
    assert environments.missing(place, tool.environment) == "bin/lm_eval is missing"
    assert "no change" not in evaluators.install(tmp_path, tool) and len(calls) == 2 * count


def test_a_folder_of_somebody_else_gets_no_tools(tmp_path, capsys):
    (tmp_path / "lm-eval").mkdir()
    (tmp_path / "lm-eval" / "mine").write_text("")
    assert evaluators.main([str(tmp_path)]) == 2
    assert "holds no tools of ours" in capsys.readouterr().err
    assert (tmp_path / "lm-eval" / "mine").exists()


def test_the_commands_have_the_documents_line_and_ours(tmp_path):
    run = kimi_nb.start(hw="a3", model="k2-thinking", run_dir=str(tmp_path / "run"))
    plan = run.plan(run.choose("single"))
    text = run.commands(plan, run.evaluations("lm-eval")).text
    assert "as published" in text and "local-completions" in text
    assert "local-chat-completions" in text and plan.served_name in text
    assert list((tmp_path / "run").glob("*/accuracy/by-hand/ais-bench/*/service.py"))
