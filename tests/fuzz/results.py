"""What stages and tools leave: evidence, measurements, scores, the catalog of an installed engine."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz import change, guard
from fuzz.targets import Target, command, instead, screen, written
from kimi_nb.plan import build
from kimi_nb.prove import verify
from kimi_nb.prove.accuracy import (
    ais_bench,
    lm_eval,
    measure,
    published_scores,
    score_settings,
    scores,
)
from kimi_nb.prove.accuracy.evaluation import SHIPPED, Evaluation
from kimi_nb.prove.bench import compare, results
from kimi_nb.prove.tune import advice
from kimi_nb.prove.verify import target
from kimi_nb.service import http_client, installed_engine


def _run(data: bytes, folder: Path) -> str:
    """A run's folder, as a mapping of paths to texts or values in JSON."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        tree = {"evidence.jsonl": data.decode("utf-8", "replace")}
    if not isinstance(tree, dict):
        return ""
    root = folder / "run"
    root.mkdir()
    for name, value in tree.items():
        if name in _NAMES:
            text = (
                value
                if isinstance(value, str)
                else "".join(f"{json.dumps(one)}\n" for one in value)
                if name.endswith("jsonl") and isinstance(value, list)
                else json.dumps(value)
            )
            written(root, name, text.encode("utf-8", "surrogatepass"))
    return command("report", root, "--json") + _sections(root)


_PLAN = "k2.5-a3-single"
_NAMES = (
    "evidence.jsonl", "00_start.ipynb", f"{_PLAN}/bundle/plan.json", f"{_PLAN}/findings.json",
    f"{_PLAN}/verify.jsonl", f"{_PLAN}/bench/c1-r1-x.json", f"{_PLAN}/accuracy/001/score.json",
    f"{_PLAN}/accuracy/001/published.json", f"{_PLAN}/limits.json",
    f"{_PLAN}/rehearsals/001/evidence.jsonl", f"{_PLAN}/rehearsals/001/rehearsal.json",
    f"{_PLAN}/deployments/001/state.json", f"{_PLAN}/deployments/001/evidence.jsonl",
)  # fmt: skip


def _sections(root: Path) -> str:
    """What the cells of notebook 11 show."""
    from kimi_nb import report
    from kimi_nb.report.sections import Sections

    shown: list[str] = []
    with guard.refusals(shown):
        made = Sections(report.collect(root))
        names = [name for name, value in vars(Sections).items() if isinstance(value, property)]
        for value in (getattr(made, name) for name in names if name[0] != "_"):
            shown.append(str(value))
            assert guard.SECRET not in value._repr_html_(), "a secret is on the page"
    return screen(*shown)


def _bench(data: bytes, folder: Path) -> str:
    """A measurement beside a good one."""
    written(folder, "c1-r1-a.json", _GOOD)
    written(folder, "c1-r2-b.json", data)
    shown: list[str] = []
    with guard.refusals(shown):
        found = results.load(folder)
        shown += [str(found.table()), str(found.goodput(500.0)), str(found.definitions())]
        shown += [str(found.metrics()), json.dumps(found.as_dict()), found.mark]
        shown.append(str(compare.with_published(found)))
        shown.append(str(advice.of(build.plan("k2.5", "a3", "single"), found)))
    return screen(*shown)


_GOOD = (Path(__file__).parent / "corpus" / "bench" / "good-measurement.json").read_bytes()


def _kept(data: bytes, folder: Path) -> str:
    """Results of checks that were kept, when a verification goes on."""
    written(folder, verify.runner.FILE, data)
    asked = target.at("http://127.0.0.1:9", "kimi", seconds=1.0, pauses=())
    gone = http_client.Reply(0, "", 0.0, "no", fault=http_client.Fault.UNREACHABLE)
    with (
        instead(http_client, "send", lambda *a, **more: gone),
        instead(http_client, "stream", lambda *a, **more: gone),
        instead(http_client, "listens", lambda *a: False),
    ):
        return screen(verify.verify(asked, folder=folder, resume=True))


def _lm_eval(data: bytes, folder: Path) -> str:
    """The results file of lm-eval, and the answers beside it."""
    written(folder / "out" / "kimi", "results_1.json", data)
    written(folder / "out" / "kimi", f"samples_{SHIPPED}_1.jsonl", data)
    return _outcome(lm_eval, data, folder)


def _ais_bench(data: bytes, folder: Path) -> str:
    """The results file of AISBench, and the answers beside it."""
    written(folder / "out" / "1" / "results" / ais_bench.ABBREVIATION, "gsm8k.json", data)
    written(folder / "out" / "1" / "predictions" / "kimi", "gsm8k.jsonl", data)
    written(folder / "out" / "1" / "logs" / "infer" / "kimi", "gsm8k.out", data)
    return _outcome(ais_bench, data, folder)


def _outcome(module, data: bytes, folder: Path) -> str:
    plan = build.plan("k2.5", "a3", "single")
    about = Evaluation(SHIPPED, measure.subject(plan, "http://127.0.0.1:9", ""), 0, 64)
    shown: list[str] = []
    with guard.refusals(shown):
        shown.append(str(module.read(folder, data.decode("utf-8", "replace"), about)))
    return screen(*shown)


def _score(data: bytes, folder: Path) -> str:
    """A score that was saved."""
    found = scores.Score.load(written(folder, "score.json", data))
    if found is None:
        return ""
    return screen(found, score_settings.compare(found, published_scores.of("k2.5")))


def _dump(data: bytes, folder: Path) -> str:
    """What the script prints that looks into an installed vLLM."""
    told = data.decode("utf-8", "replace")
    with instead(installed_engine, "_run", lambda argv: (0, told, "")):
        return command("catalog", "dump", "--compare")


TARGETS = (
    Target("run", _run, (), change.json_values),
    Target("bench", _bench, (), change.json_values),
    Target("kept-checks", _kept, (), change.json_lines),
    Target("lm-eval", _lm_eval, (), change.json_values),
    Target("ais-bench", _ais_bench, (), change.json_values),
    Target("score", _score, (), change.json_values),
    Target("dump", _dump, (), change.json_values),
)  # fmt: skip
