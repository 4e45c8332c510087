"""What is proved of stand-ins says REHEARSAL: on the screen, in JSON, in files and in the report.

Only some replies of these services are of a stand-in, and nothing else tells: the door drops its
header and lists the models itself.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from testbed.mixed_service import MODEL, MixedService

import kimi_nb
from kimi_nb import report
from kimi_nb.cli import main
from kimi_nb.core import evidence
from kimi_nb.core.errors import BenchError
from kimi_nb.core.marks import MARK
from kimi_nb.plan import build
from kimi_nb.prove.accuracy import ais_bench, evaluation, lm_eval, measure, tool_process
from kimi_nb.prove.accuracy.evaluation import Evaluation, Outcome
from kimi_nb.prove.accuracy.scores import Part, Score
from kimi_nb.prove.bench import baseline, load_programs, results
from kimi_nb.prove.verify import runner
from kimi_nb.report import stage_section
from kimi_nb.report.run_files import Gaps

MIXED = ("engine", "engine", "stand-in")


@pytest.fixture
def run(tmp_path):
    made = kimi_nb.start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path / "run"))
    yield made
    made.close()


@pytest.fixture
def plan(run):
    return build.plan("k2.5", "a3", "single", pairs=[f"served-model-name={MODEL}"])


# Verify -------------------------------------------------------------------------------


@pytest.mark.parametrize(("engines", "mark"), [(MIXED, MARK), (("engine",), "")])
def test_verify_at_a_plain_url(engines, mark, tmp_path, capsys):
    words = ["--only", "api/chat,api/usage,canary/words", "--run-dir", str(tmp_path)]
    with MixedService(*engines) as service:
        main.main(["verify", service.url, *words])
        shown, progress = capsys.readouterr()
        assert (f"  {MARK}: 3 of 3  " in progress) is bool(mark)
        assert shown.startswith(f"{MARK} of " if mark else f"{MODEL} at "), shown
        main.main(["verify", service.url, *words, "--resume", "--json"])
    assert json.loads(capsys.readouterr().out)["mark"] == mark
    lines = evidence.read(tmp_path, runner.FILE)
    last = {one["name"]: one["mark"] for one in lines}
    assert set(last) == {"api/chat", "api/usage", "canary/words"} and set(last.values()) == {mark}
    told = stage_section.contract(tmp_path, Gaps(), tmp_path)
    assert told.mark == mark and len(told.rows) == 3
    assert told.known == ("measured, REHEARSAL" if mark else "measured")


def test_what_was_kept_before_a_stand_in_answered_counts_no_more(tmp_path, capsys):
    """A resumed call asks it again, where the answers of an engine are kept."""
    words = ["--only", "api/chat", "--run-dir", str(tmp_path), "--resume"]
    with MixedService("engine") as service:
        main.main(["verify", service.url, *words])
        asked = service.asked
        main.main(["verify", service.url, *words])
        assert service.asked == asked and "(known)" in capsys.readouterr().err
    with MixedService("stand-in") as service:
        main.main(["verify", service.url, *words])
        asked = service.asked
        main.main(["verify", service.url, *words])
        assert service.asked > asked


def test_the_verifiers_measures_at_a_plain_url(tmp_path, capsys):
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    path = tmp_path / "requests.jsonl"
    path.write_text(
        "".join(
            json.dumps(asked | {"messages": [{"role": "user", "content": f"Hello {at}"}]}) + "\n"
            for at in range(4)
        )
    )
    words = ["--only", "api/models", "--requests", str(path), "--run-dir", str(tmp_path), "--json"]
    with MixedService(*MIXED) as service:
        main.main(["verify", service.url, *words])
        assert json.loads(capsys.readouterr().out)["vendor"]["mark"] == MARK
        # What was answered then is kept, and what a stand-in has answered of it stays that.
        main.main(["verify", service.url, *words, "--resume"])
        assert json.loads(capsys.readouterr().out)["vendor"]["mark"] == MARK


# Benchmark ----------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["kimi_nb", "vllm"])
def test_a_benchmark_of_a_mixed_service(tool, run, plan, monkeypatch, capsys):
    if tool == "vllm":  # whose client keeps the texts and no header
        own = load_programs.Tool.run

        def ran(self, *given):
            raw, argv = own(self, *given)
            del raw["mark"]
            return raw, argv

        monkeypatch.setattr(load_programs.Tool, "run", ran)
    with MixedService(*MIXED) as mixed:
        service = run.serve(plan, url=mixed.url)
        assert service.mark == ""  # nothing tells before the load
        load = run.load(service.plan, "2", prompts=6, input_len=16, output_len=4)
        found = run.bench(service, load)
    assert found.mark == MARK and str(found).startswith(f"{MARK}: ")
    assert f"{MARK}: " in capsys.readouterr().out
    for path in found.files:
        said = json.loads(path.read_text())
        assert said["kimi_nb"]["identity"]["mark"] == MARK and "mark" not in said
    told = report.collect(run.folder).as_dict()["plans"][0]["performance"]
    assert told["mark"] == MARK and {row[-1] for row in told["rows"]} == {"measured, REHEARSAL"}
    with pytest.raises(BenchError, match=f"a {MARK} measures no hardware"):
        baseline.keep(results.load(found.folder), run.folder / "baseline.json")
    with pytest.raises(BenchError, match=f"a {MARK} measures no hardware"):
        baseline.against(results.load(found.folder), run.folder / "baseline.json")


def test_a_benchmark_of_engines_alone_has_no_mark(run, plan):
    with MixedService("engine") as mixed:
        service = run.serve(plan, url=mixed.url)
        found = run.bench(
            service, run.load(service.plan, "2", prompts=4, input_len=16, output_len=4)
        )
    assert found.mark == "" and "REHEARSAL" not in str(found)


# Accuracy -----------------------------------------------------------------------------


def about(plan) -> Evaluation:
    return Evaluation(evaluation.SHIPPED, measure.subject(plan, "http://127.0.0.1:1", ""))


@pytest.mark.parametrize(("text", "mark"), [("REHEARSAL: 12", MARK), ("It is 12.", "")])
def test_what_the_answers_of_an_evaluation_tell(text, mark, plan, tmp_path):
    place = tmp_path / "lm" / "out" / "kimi"
    place.mkdir(parents=True)
    (place / "results_1.json").write_text(
        json.dumps(
            {
                "n-samples": {evaluation.SHIPPED: {"effective": 2}},
                "results": {evaluation.SHIPPED: {"exact_match,none": 0.5}},
            }
        )
    )
    rows = [{"doc_id": at, "resps": [[one]]} for at, one in enumerate(("It is 4.", text))]
    (place / f"samples_{evaluation.SHIPPED}_1.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    assert lm_eval.read(tmp_path / "lm", "", about(plan)).mark == mark
    place = tmp_path / "ais/out/1/predictions" / ais_bench.ABBREVIATION
    place.mkdir(parents=True)
    (place / "a.jsonl").write_text(
        "".join(
            json.dumps({"id": at, "data_abbr": "x", "success": True, "prediction": one}) + "\n"
            for at, one in enumerate(("It is 4.", text))
        )
    )
    assert ais_bench.read(tmp_path / "ais", "", about(plan)).mark == mark


def test_a_score_to_which_a_stand_in_has_answered(run, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(measure.evaluators, "find", lambda tool: "true")
    monkeypatch.setattr(
        tool_process, "run", lambda *_, **__: SimpleNamespace(code=0, log="", seconds=1.0)
    )
    part = Part("exact_match", "", 0.5, 2, 1)
    module = SimpleNamespace(
        files=lambda *_: {},
        prepare=lambda folder: None,
        argv=lambda *_: ["true"],
        environment=lambda *_: {},
        progress=None,
        read=lambda *_: Outcome((part,), 2, 2, mark=MARK),
    )
    asked = about(plan)
    score = Score("lm-eval", "1", asked.task, asked.subject, {}, folder=str(tmp_path))
    service = SimpleNamespace(key="", plan=plan)
    found = measure._run(run, service, module, asked, score, print)
    assert found.mark == MARK and str(found).startswith(f"{MARK}: ")
