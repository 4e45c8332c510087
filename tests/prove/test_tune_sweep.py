"""Sweeps: the runner on real rehearsals, what is kept, what wins, and the winner's file."""

from __future__ import annotations

import json
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kimi_nb import show
from kimi_nb.check import judge
from kimi_nb.core import evidence
from kimi_nb.core.errors import BenchError, ParameterError, PlanError, ServiceError
from kimi_nb.notebook import start as session
from kimi_nb.notebook.run import Run
from kimi_nb.notebook.subject import Subject
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.prove.bench import bench_pictures, identity, load_programs
from kimi_nb.prove.bench import measurements as bench
from kimi_nb.prove.bench.results import BenchResult
from kimi_nb.prove.bench.workload import Load
from kimi_nb.prove.tune import advice, design, sweep, winner
from kimi_nb.service.handle import Service


def plan_of(*pairs: str, layout: str = "single", **more: str):
    return build.plan("k2.5", "a3", layout, pairs=pairs, **more)


def measured(folder: Path, plan, cells: dict[int, tuple[float, float, float]]) -> list[Path]:
    """Result files as a benchmark writes them: concurrency -> throughput, TTFT, TPOT."""
    out = []
    for concurrency, (throughput, ttft, tpot) in cells.items():
        load = Load(concurrency, 64, 32, 4 * concurrency)
        about = identity.of(plan, load.seeded(1), 1, tool="kimi_nb", tool_version="1")
        path = folder / bench.file_name(about)
        figures = {
            f"{kind}_{name}_ms": value
            for name, value in (("ttft", ttft), ("tpot", tpot), ("itl", tpot), ("e2el", ttft))
            for kind in ("mean", "median", "std", "p50", "p90", "p99")
        }
        bench.write(
            path,
            {
                "completed": load.prompts,
                "failed": 0,
                "duration": 1.0,
                "output_throughput": throughput,
                "request_throughput": 1.0,
                **figures,
                "kimi_nb": {"identity": about, "time": "", "errors": {}, "metrics": {}},
            },
        )
        out.append(path)
    return out


def swept(folder: Path, text: str, cells: dict[str, dict], **slo: float) -> sweep.Sweep:
    """A sweep whose results are given: setting -> cells."""
    made = design.of(plan_of(), text, input_len=64, output_len=32)
    files = [
        path
        for group in made.groups
        for path in measured(folder, group.plan, cells.get(group.title, {}))
    ]
    run = Run("k2.5", "a3", "", "deploy", "", folder, Subject.load("k2.5", "a3"))
    bounds = {"slo_ttft_ms": 0, "slo_tpot_ms": 0, **slo}
    return sweep.Sweep(made, BenchResult(folder, tuple(files)), {}, session=run, **bounds)


CELLS = {
    "max-num-seqs=8": {1: (10, 100, 20), 4: (35, 200, 25)},
    "max-num-seqs=16": {1: (10, 110, 20), 4: (40, 900, 30)},
}
TEXT = "max-num-seqs: [8, 16]; concurrency: [1, 4]"


# What wins --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slo, setting, concurrency",
    [
        ({}, "max-num-seqs=16", 4),
        ({"slo_ttft_ms": 500}, "max-num-seqs=8", 4),
        ({"slo_tpot_ms": 22}, "max-num-seqs=8", 1),
        ({"slo_ttft_ms": 105}, "max-num-seqs=8", 1),
    ],
)
def test_the_best_keeps_the_bounds(tmp_path, slo, setting, concurrency):
    best = swept(tmp_path, TEXT, CELLS, **slo).best()
    assert (best.group.title, best.cell["concurrency"]) == (setting, concurrency)


def test_nothing_within_the_bounds_is_no_winner(tmp_path):
    found = swept(tmp_path, TEXT, CELLS, slo_ttft_ms=1)
    assert found.best() is None and "no file" in str(found.write())
    assert not (tmp_path / "tuned.yaml").exists()
    assert {row[-1] for row in found.table().rows} == {"no"}


def test_failed_requests_never_win(tmp_path):
    found = swept(tmp_path, TEXT, CELLS)
    path = next(
        path
        for path in found.result.files
        if json.loads(path.read_text())["output_throughput"] == 40
    )
    bench.write(path, json.loads(path.read_text()) | {"failed": 3})
    again = sweep.Sweep(
        found.design, BenchResult(tmp_path, found.result.files), {}, 0, 0, found.session
    )
    assert again.best().cell["output_throughput"] == 35


def test_a_sweep_shows_itself(tmp_path):
    found = swept(tmp_path, TEXT, CELLS)
    rows = found.table().rows
    assert [row[-1] for row in rows].count("best") == 1 and rows[0][0] == "max-num-seqs=16"
    drawn = found.pareto()
    assert {path.suffix for path in tmp_path.glob(f"pictures/{drawn.name}.*")} == {
        ".svg",
        ".png",
        ".csv",
    } and "max-num-seqs" in drawn.alt
    assert found.advice().kind == "measured" and "bandwidth limit" in str(found.advice())
    assert json.dumps(found.as_dict())


def test_results_of_other_settings_give_no_advice(tmp_path):
    result = BenchResult(tmp_path, tuple(measured(tmp_path, plan_of(), {1: (10, 100, 20)})))
    assert advice.of(plan_of(), result).kind == "measured"
    with pytest.raises(ParameterError, match="settings of this plan"):
        advice.of(plan_of("max-num-seqs=7"), result)


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=12))
def test_the_front_beats_all_others_and_none_of_it_another(points):
    cells = pd.DataFrame(points, columns=["per_user", "per_device"])
    front = bench_pictures.front(cells)
    on = list(front.itertuples(index=False))

    def beats(one, other):
        return (
            one.per_user >= other.per_user
            and one.per_device >= other.per_device
            and (one.per_user, one.per_device) != (other.per_user, other.per_device)
        )

    assert on and not any(beats(one, other) for one in on for other in on)
    for row in cells.drop(front.index).itertuples(index=False):
        assert any(beats(one, row) or one == row for one in on)


# The winner's file ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout, pairs, more",
    [
        ("single", ("max-num-seqs=7",), {}),
        ("single", ("max-num-seqs=7", "env.HCCL_BUFFSIZE=900"), {"scenario": "throughput"}),
        ("single", ("mixed.dp=2", "tensor-parallel-size=8"), {"chosen": ["prefix-caching"]}),
        (
            "pd",
            (
                "decode.max-num-seqs=32",
                "speculative-config.num_speculative_tokens=2",
                "decode.port=7300",
                "router=vllm-router",
            ),
            {"dropped": ["jemalloc"]},
        ),
        ("single", ("groups=2", "router=vllm-router", "router.port=1998"), {}),
    ],
)
def test_the_winner_is_planned_from_its_file(layout, pairs, more, tmp_path):
    plan = plan_of(*pairs, layout=layout, **more)
    path = winner.write(plan, tmp_path / "tuned.yaml", title="Best of a sweep", figures="measured")
    made = build.plan(str(path), "a3", layout, scenario=winner.SCENARIO)
    assert build.plan(str(path), "a3", layout), "the recipe without the scenario"
    assert made.engines == plan.engines and made.router == plan.router
    assert judge.plan(made).ok and made.name.endswith("-tuned")
    assert [one.name for one in tmp_path.iterdir()] == ["tuned.yaml"]


SEVERAL = st.lists(
    st.sampled_from(
        [
            "max-num-seqs=7",
            "mixed.max-num-seqs=9",
            "max-num-seqs=null",
            "mixed.kv-cache-dtype=fp8",
            "speculative-config.num_speculative_tokens=2",
            "speculative-config=null",
            "compilation-config.cudagraph_mode=FULL_DECODE_ONLY",
            "mixed.compilation-config=null",
            "env.HCCL_BUFFSIZE=900",
            "mixed.env.HCCL_BUFFSIZE=null",
            "mixed.tp=4",
        ]
    ),
    max_size=7,
)


@settings(max_examples=25, deadline=None)
@given(SEVERAL)
@example(["mixed.max-num-seqs=7", "mixed.kv-cache-dtype=fp8", "mixed.max-num-seqs=9"])
def test_a_change_that_is_given_again_is_in_the_file_as_in_the_plan(pairs):
    """A proposed size, then a sweep's own value: only the order of the flags may differ."""
    plan = plan_of(*pairs)
    with tempfile.TemporaryDirectory() as folder:
        path = winner.write(plan, Path(folder) / "tuned.yaml", title="x", figures="measured")
        made = build.plan(str(path), "a3", "single", scenario="tuned")
    assert [sorted(one.argv) for one in made.engines] == [sorted(one.argv) for one in plan.engines]
    assert [one.env for one in made.engines] == [one.env for one in plan.engines]


def test_the_winner_with_errata_off_is_planned_with_them_off(tmp_path):
    plan = plan_of(erratum=["k2.5-moved-variables=off"])
    made = design.of(plan, "max-num-seqs: [8, 16]", input_len=64, output_len=32)
    assert {group.plan.errata_off for group in made.groups} == {("k2.5-moved-variables",)}
    files = measured(tmp_path, made.groups[1].plan, {1: (10, 100, 20)})
    run = Run("k2.5", "a3", "", "deploy", "", tmp_path, Subject.load("k2.5", "a3"))
    found = sweep.Sweep(made, BenchResult(tmp_path, tuple(files)), {}, 0, 0, run)
    shown = str(found.write())
    assert "--erratum k2.5-moved-variables=off" in shown
    assert "errata = 'k2.5-moved-variables=off'" in shown
    again = build.plan(
        str(tmp_path / "tuned.yaml"),
        "a3",
        "single",
        scenario="tuned",
        erratum=["k2.5-moved-variables=off"],
    )
    assert again.engines == made.groups[1].plan.engines


def test_a_model_of_ones_own_is_written_whole(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("extends: k2.5\nnotes: [mine]\n")
    plan = build.plan(str(own), "a3", "single", pairs=["max-num-seqs=5"])
    path = winner.write(plan, tmp_path / "sub" / "tuned.yaml", title="x", figures="measured")
    assert load.model(str(path)).notes == ("mine",)
    assert build.plan(str(path), "a3", "single", scenario="tuned").engines == plan.engines


def test_a_file_that_would_plan_something_else_is_not_left(tmp_path, monkeypatch):
    monkeypatch.setattr(
        winner,
        "_scenario",
        lambda asked, title, figures: {"title": title, "source": {"document": "sweep"}},
    )
    with pytest.raises(PlanError, match="--set"):
        winner.write(plan_of("max-num-seqs=5"), tmp_path / "t.yaml", title="x", figures="measured")
    assert not list(tmp_path.iterdir())


# The runner -------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    made = session.start(hw="a3", model="k2.5", action="rehearse", run_dir=str(tmp_path / "run"))
    yield made
    made.close()


def starts(run: Run) -> int:
    return sum(one["stage"] == "rehearse" for one in evidence.read(run.folder))


def test_a_sweep_on_real_rehearsals(run):
    """Two settings, each started once; a second call starts nothing; a lost result is measured
    again, alone."""
    made = run.design(
        plan_of(), "max-num-seqs: [8, 16]; concurrency: [1, 2]", input_len=16, output_len=4
    )
    found = run.sweep(made, repetitions=1)
    assert starts(run) == 2 and len(found.result.files) == 4 and not found.failed
    assert found.result.mark == "REHEARSAL" and str(found).startswith("REHEARSAL")
    under = found.advice().shares
    assert len(under) and {(row[1], row[3], row[5]) for row in under.rows} == {
        ("-", "-", "none: a stand-in is no device")
    }
    shown = str(found.write())
    assert "REHEARSAL" in shown and "--scenario tuned" in shown
    path = found.result.folder / "tuned.yaml"
    assert load.model(str(path)).recipes[0].scenarios["tuned"].figures == "rehearsal"
    before = {path: path.stat().st_mtime_ns for path in found.result.files}
    again = run.sweep(made, repetitions=1)
    assert starts(run) == 2 and again.best().title == found.best().title
    lost = found.result.files[0]
    lost.unlink()
    third = run.sweep(made, repetitions=1)
    assert starts(run) == 3 and len(third.result.files) == 4 and lost.exists()
    assert [path for path, at in before.items() if path.stat().st_mtime_ns != at] == [lost]


def test_a_setting_that_does_not_start_is_told_and_the_others_go_on(run, monkeypatch, tmp_path):
    made = run.design(plan_of(), "max-num-seqs: [8, 16]")
    started = []

    def serve(self, plan, **_):
        started.append(plan)
        if len(started) == 1:
            raise ServiceError("a3-0, rank 2: out of memory at load.\n  logs: here")
        return Service(self, plan, None)

    monkeypatch.setattr(Run, "serve", serve)
    monkeypatch.setattr(
        bench,
        "measure",
        lambda served, loads, folder, **_: BenchResult(
            folder, tuple(measured(tmp_path, served.plan, {1: (10, 100, 20)}))
        ),
    )
    found = run.sweep(made, repetitions=1)
    assert found.failed == {"max-num-seqs=8": "a3-0, rank 2: out of memory at load."}
    assert found.best().group.title == "max-num-seqs=16" and len(started) == 2
    assert "failed: a3-0" in str(found)
    told = [one for one in evidence.read(run.folder) if one["stage"] == "sweep-failed"]
    assert "logs: here" in told[0]["error"]


def test_what_a_sweep_has_deployed_it_stops(tmp_path, monkeypatch):
    """Each setting, also one that answers no request; nothing is left to decide at the end."""
    made = session.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    run = replace(made, action="deploy")
    up: list[str] = []
    started: list[str] = []

    class Live:
        def __init__(self, plan):
            self.plan = plan
            self.result = SimpleNamespace(
                mark="measured",
                plan=plan.name,
                ready=len(plan.engines),
                engines=len(plan.engines),
                folder=tmp_path,
                table=lambda: show.Table("", (), ()),
            )
            self.up, self.key, self.url = True, "", plan.url
            assert not up  # one after the other
            up.append(identity.flags_hash(plan))
            started.append(up[0])

        def stop(self):
            self.up = False
            up.clear()

    def measure(served, loads, folder, **_):
        if len(started) == 1:
            raise BenchError("no request was answered")
        return BenchResult(folder, tuple(measured(tmp_path, served.plan, {1: (10, 100, 20)})))

    monkeypatch.setattr(Run, "serve", lambda self, plan, **_: Service(self, plan, Live(plan)))
    monkeypatch.setattr(bench, "measure", measure)
    found = run.sweep(run.design(plan_of(), "max-num-seqs: [8, 16]"), repetitions=1)
    assert found.best() and list(found.failed) == ["max-num-seqs=8"]
    assert "Nothing of the sweep runs" in str(found.clean_up())
    assert len(started) == 2 and not up
    assert [one["stage"] for one in evidence.read(run.folder)].count("stop") == 2


def test_the_results_of_a_deployment_have_the_mark_of_its_replies(tmp_path, monkeypatch, capsys):
    """Those of stand-ins that were deployed are kept for the next sweep; those of a rehearsal are
    none of a deployment."""
    made = session.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    run = replace(made, action="deploy")
    started: list[str] = []

    def serve(self, plan, **_):
        started.append(plan.name)
        self.record("deploy", plan=plan.name, mark="REHEARSAL")
        result = SimpleNamespace(
            mark="REHEARSAL", plan=plan.name, table=lambda: show.Table("", (), ())
        )
        return Service(self, plan, SimpleNamespace(plan=plan, result=result, up=False, key=""))

    def measure(served, loads, folder, *, mark="", **_):
        out = []
        for cell in loads.cells:
            about = identity.of(
                served.plan,
                cell.seeded(1),
                1,
                tool="kimi_nb",
                tool_version=load_programs.__version__,
                mark=mark or served.mark,
            )
            (made,) = measured(tmp_path / "x", served.plan, {cell.concurrency: (10, 100, 20)})
            result = json.loads(made.read_text())
            out.append(folder / bench.file_name(about))
            bench.write(out[-1], {**result, "kimi_nb": {**result["kimi_nb"], "identity": about}})
        return BenchResult(folder, tuple(out))

    monkeypatch.setattr(Run, "serve", serve)
    monkeypatch.setattr(bench, "measure", measure)
    design_ = run.design(plan_of(), "concurrency: [1]")
    folder = run.folder / design_.plan.name / "sweep"
    (group,) = design_.groups
    measure(SimpleNamespace(plan=group.plan), group.loads, folder, mark="REHEARSAL")
    first = run.sweep(design_, repetitions=1)  # what was rehearsed before is measured
    assert len(started) == 1 and first.result.mark == "REHEARSAL"
    again = run.sweep(design_, repetitions=1)
    assert len(started) == 1 and again.result.mark == "REHEARSAL" and again.best()
    assert "REHEARSAL: all 1 results are there already" in capsys.readouterr().out
    run.record("deploy", plan=design_.plan.name, mark="measured")  # on engines, since then
    run.sweep(design_, repetitions=1)
    assert len(started) == 2


def test_a_mistake_in_what_was_asked_stops_the_sweep(run, monkeypatch):
    def serve(self, plan, **_):
        raise ParameterError("confirm: the site's name is wanted.")

    monkeypatch.setattr(Run, "serve", serve)
    with pytest.raises(ParameterError, match="confirm"):
        run.sweep(run.design(plan_of(), "max-num-seqs: [8, 16]"), repetitions=1)


def test_a_service_that_is_there_keeps_its_flags(run):
    made = run.design(plan_of(), "max-num-seqs: [8, 16]")
    with pytest.raises(ParameterError, match="keeps its flags"):
        run.sweep(made, url="http://127.0.0.1:1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    found = run.sweep(run.design(plan_of(), "concurrency: [1, 2]"), url=url, repetitions=1)
    assert "nobody takes connections" in found.failed["as planned"] and not found.result.files
    assert "nothing was measured" in str(found.pareto()) and found.best() is None


def test_action_plan_starts_nothing(tmp_path):
    made = session.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    found = made.sweep(made.design(plan_of(), "max-num-seqs: [8, 16]"), repetitions=1)
    assert not found.result.files and "nothing was measured" in str(found.write())
    assert len(found.cells) == 0 and not found.advice().advices


@pytest.mark.parametrize("slo", [-1, "5", True])
def test_bounds_that_are_none(run, slo):
    with pytest.raises(ParameterError, match="slo_ttft_ms"):
        run.sweep(run.design(plan_of(), "concurrency: 1"), slo_ttft_ms=slo)
