"""The panel without a browser: choices, what they lead to, a rehearsal in the background."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from leftovers import wait_gone

from kimi_nb.core import evidence
from kimi_nb.core.errors import ParameterError, ServiceError
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import choices, work
from kimi_nb.params import recipes
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal

ROOT = Path(__file__).resolve().parents[2]
PD = Choice("k2.5", "a3", "pd")


@pytest.mark.parametrize(
    "model, hardware", sorted({(row["model"], row["hardware"]) for row in recipes.listing()})
)
def test_whatever_is_offered_can_be_planned(model, hardware):
    given, _ = choices.choose(Choice("k2.5", "a3", "single"), model=model, hw=hardware)
    assert given.layout in choices.allowed(given)["layout"]
    for variant in choices.allowed(given)["variant"]:
        made, _ = choices.choose(given, variant=variant)
        for scenario in choices.allowed(made)["scenario"]:
            found = choices.look(choices.choose(made, scenario=scenario)[0])
            assert found.plan is not None, found.error
            assert found.parts
            # Nothing is wrong but what is known of the engine itself, and that is shown.
            assert {one.rule for one in found.findings.errors} <= {"truth/known-fault"}
            shown = [what for kind, what in found.table().rows if kind == "error"]
            assert shown == [one.message for one in found.findings.errors]


def test_what_does_not_fit_any_more_follows_and_says_so():
    given = Choice("k2.5", "a3", "pd", engine_version="0.18.0", site="./mine.yaml")
    made, notes = choices.choose(given, hw="h100")
    assert (made.layout, made.site, made.engine_version) == ("dp", "", "")
    assert [note.split(" ")[0] for note in notes] == ["site", "engine_version", "layout"]
    made, notes = choices.choose(PD, model="k2-thinking")
    assert made.hw in choices.allowed(made)["hw"] and choices.look(made).plan is not None
    assert choices.choose(PD, hw="a3") == (PD, ())


@pytest.mark.parametrize(
    "change, wanted",
    [
        ({"hw": "a9"}, "Allowed: a2, a3"),
        ({"layout": "dpp"}, "Allowed: single"),
        ({"scenario": "fast"}, "scenario 'fast'"),
        ({"colour": "red"}, "Allowed: model, hw"),
    ],
)
def test_a_choice_that_there_is_not(change, wanted):
    with pytest.raises(ParameterError, match=wanted):
        choices.choose(PD, **change)


def test_a_mistake_is_shown_and_not_raised():
    found = choices.look(choices.choose(PD, overrides="max-num-seq=3")[0])
    assert found.plan is None and "did you mean 'max-num-seqs'" in found.error
    assert ("plan", found.error) in found.table().rows and not found.parts
    found = choices.look(choices.choose(PD, site="/nowhere.yaml")[0])
    assert "/nowhere.yaml" in found.error


def test_the_lines_to_copy_make_the_same_plan():
    given = Choice(
        "k2.5",
        "a3",
        "pd",
        engine_version="0.18.0",
        overrides="decode.max-num-seqs=9",
        features="",
        site="",
    )
    values: dict[str, str] = {}
    exec(given.lines(), values)
    assert [line.split(":")[0] for line in given.lines().splitlines()][:3] == [
        "hw",
        "model",
        "site",
    ]
    plan = build.plan(
        values["model"],
        values["hw"],
        "pd",
        site=values["site"],
        pairs=values["overrides"].split(";"),
        engine_version=values["engine_version"],
    )
    assert plan == choices.look(given).plan


def test_the_plain_twin_has_the_facts(run):
    panel = run.panel(run.choose("pd", overrides="decode.max-num-seqs=9"))
    plan = panel.look.plan
    said = " ".join(str(panel).split())
    for fact in (
        "k2.5",
        "a3",
        "pd",
        plan.url,
        "36 engines on 4 nodes",
        panel.look.findings.verdict[:30],
        plan.engine_version,
        "decode.max-num-seqs=9",
        "a3-0, a3-1",
    ):
        assert fact in said, fact
    assert set(panel._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert "h200" in str(panel.choose(hw="h200", overrides=""))


def test_rehearse_verify_stop(run):
    panel = run.panel(run.choose("single"))
    seen: list[tuple[str, str]] = []
    panel.work.changed = lambda: seen.append((panel.work.state, panel.work.said))
    with pytest.raises(ServiceError, match="press Rehearse"):
        panel.work.verify()
    panel.work.rehearse(panel.look.plan)
    assert panel.work.wait(60) and panel.work.state == work.UP, panel.work.said
    name = panel.look.plan.name
    assert panel.work.said.startswith(f"{name}: REHEARSAL: up, 1 of 1 engines ready after ")
    told = f"{name}: REHEARSAL: 0 of 1 engines ready"
    assert any(state == work.STARTING and said.startswith(told) for state, said in seen)
    assert seen[0][1] == f"{name}: REHEARSAL: writes the scripts and starts them"
    begun = time.monotonic()
    panel.work.verify()
    assert time.monotonic() - begun < 2 and panel.work.checks.running
    with pytest.raises(ServiceError, match=f"{name} is being verified"):
        panel.work.verify()
    assert panel.work.checks.wait(60)
    asked = panel.work.checks.contract
    assert asked.ok and asked.mark == "REHEARSAL", asked
    assert panel.work.checks.done == panel.work.checks.total > 30
    assert f"verified: {asked.counts['pass']} pass" in panel.work.said
    assert any("verifies: 3 of" in said for _, said in seen)
    panel.work.stop()
    panel.work.stop()
    assert panel.work.state == work.STOPPED and seen[-1][0] == work.STOPPED
    assert not wait_gone(run.folder)
    line = next(one for one in evidence.read(run.folder) if one["stage"] == "panel")
    assert line["mark"] == "REHEARSAL" and line["ready"] == 1
    assert json.loads((panel.work.result.folder / "rehearsal.json").read_text())["times"]


def test_stop_while_it_starts(run):
    panel = run.panel(run.choose("pd"))
    panel.work.rehearse(panel.look.plan)
    while panel.work.progress is None and panel.work.busy:
        time.sleep(0.05)
    begun = time.monotonic()
    panel.work.stop()
    assert time.monotonic() - begun < 20 and panel.work.state == work.STOPPED
    assert not wait_gone(run.folder)


def test_stop_while_it_is_verified(run):
    """What was not checked has not failed, and no result is recorded."""
    panel = run.panel(run.choose("single"))
    panel.work.rehearse(panel.look.plan)
    assert panel.work.wait(60)
    panel.work.verify()
    while panel.work.checks.done < 2:
        time.sleep(0.02)
    begun = time.monotonic()
    panel.work.stop(wait=False)
    assert time.monotonic() - begun < 0.5 and panel.work.stopping and panel.work.busy
    assert "is being stopped" in panel.work.said and not panel.work.stoppable
    panel.work.stop()
    assert time.monotonic() - begun < 20 and panel.work.state == work.STOPPED
    assert panel.work.checks.contract is None and not panel.work.checks.running
    assert "verification: ended after" in panel.work.said
    assert not wait_gone(run.folder)
    assert "verify" not in [one["stage"] for one in evidence.read(run.folder)]


def test_a_fault_is_named_and_an_error_too(run, monkeypatch):
    panel = run.panel(run.choose("single"))
    panel.work.rehearse(panel.look.plan, fault="rank-dies-at-start")
    assert panel.work.wait(60) and panel.work.state == work.FAILED
    assert "rank died at start" in panel.work.said and panel.work.result.events
    monkeypatch.setattr(rehearsal, "start", lambda *_, **__: 1 / 0)
    panel.work.rehearse(panel.look.plan)
    assert panel.work.wait(60) and "ZeroDivisionError" in panel.work.said


def test_the_cell_run_again_and_the_end_of_the_run_stop_it(run):
    panel = run.panel(run.choose("single"))
    panel.work.rehearse(panel.look.plan)
    assert panel.work.wait(60)
    run.panel(run.choose("single"))
    assert panel.work.state == work.STOPPED and not wait_gone(run.folder)


def test_the_notebook_of_a_layout():
    assert choices.notebook("single") == "03_single_node" and choices.notebook("pd") == "05_pd"
    assert choices.notebook("") == choices.notebook("any one") == ""
