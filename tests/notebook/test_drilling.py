"""Drills in a notebook: the answer of a parameter or of the form, and nothing told before it."""

from __future__ import annotations

import json
import shutil
import types
from pathlib import Path

import nbformat
import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.diagnose import doctor
from kimi_nb.drill import record
from kimi_nb.notebook import drilling
from kimi_nb.plan import build
from kimi_nb.rehearse.fault_names import FaultName

ROOT = Path(__file__).resolve().parents[2]
RIGHT = "a3-3 rank 31 out of memory under load"


@pytest.fixture
def drill(tmp_path) -> record.Drill:
    """A drill made of the sample logs: rank 31 of a3-3 runs out of memory."""
    folder = tmp_path / "drills" / "001"
    shutil.copytree(doctor.SAMPLE, folder / "logs")
    (folder / "plan.json").write_text(build.plan("k2.5", "a3", "pd").as_json())
    (folder / record.CLIENT).write_text("REHEARSAL 11-21 10:00:00 0 of 36 engines ready\n")
    truth = record.Truth(
        fault="out-of-memory-under-load",
        node="a3-3",
        ranks=(31,),
        whole=False,
        cause="out of memory under load",
        evidence="",
        help="",
        in_logs=True,
    )
    return record.write(folder, plan="k2.5-a3-pd", asked="", seed=7, truth=truth)


@pytest.fixture
def session(tmp_path):
    """What a drill needs of the run of a notebook, with what it has recorded."""
    kept: list[tuple[str, dict]] = []
    return types.SimpleNamespace(
        action="rehearse",
        folder=tmp_path,
        kept=kept,
        record=lambda stage, **facts: kept.append((stage, facts)),
    )


def test_nothing_is_told_to_who_has_not_answered(drill, session):
    told = drilling.verdict(session, drill, "", False)
    assert "Not answered yet" in str(told) and "memory" not in str(told) and not session.kept
    shown = drilling.verdict(session, drill, "", True)
    assert shown.fault == "out-of-memory-under-load" and not shown.parts


def test_a_parameter_s_answer_is_judged_and_recorded(drill, session):
    found = drilling.verdict(session, drill, RIGHT, False)
    assert found.ok and found.rank == "31" and "out of memory" in found.cause
    ((stage, facts),) = session.kept
    assert stage == "answer" and facts["right"] and facts["said"] == RIGHT
    json.dumps(facts, default=str)


def test_the_form_asks_judges_and_is_remembered(drill, session):
    box = drilling.widgets(drill)
    node, rank, cause, words, button, told = box.children
    assert list(node.options) == ["not sure", *drill.nodes]
    assert [value for _, value in cause.options] == ["", *FaultName]
    button.click()
    assert told.value == "Say one of the three at least."
    assert not (drill.folder / record.VERDICT).exists(), "which would tell it"
    words.value = "the tide"
    button.click()
    assert "is not known" in told.value and "out-of-memory-under-load:" not in told.value
    node.value, rank.value, words.value = "a3-3", "31", "OOM under load"
    button.click()
    assert "3 of 3 right" in told.value
    assert drilling.verdict(session, drill, "", False).ok  # the form's answer counts


def test_without_a_person_the_form_is_a_sentence(drill):
    form = drilling.Form(drill)
    assert "parameter answer" in str(form) and [*form._repr_mimebundle_()] == ["text/plain"]


def test_a_drill_is_a_rehearsal(session):
    session.action = "plan"
    with pytest.raises(ParameterError, match="choose action rehearse"):
        drilling.make(session, build.plan("k2.5", "a3", "single"), "", 0)


@pytest.mark.long
def test_the_notebook_tells_nothing_before_the_answer(tmp_path):
    import papermill

    papermill.execute_notebook(
        str(ROOT / "notebooks" / "12_drills.ipynb"),
        str(tmp_path / "o.ipynb"),
        parameters={
            "layout": "pd",
            "seed": 20,
            "answer": "a node's docker image has a wrong tag",
            "run_dir": str(tmp_path / "run"),
        },
        kernel_name="python3",
        progress_bar=False,
    )
    truth = record.find(tmp_path / "run").truth
    cells = nbformat.read(tmp_path / "o.ipynb", as_version=4).cells
    at = next(i for i, cell in enumerate(cells) if "run.verdict(" in cell.source)
    begins = next(i for i, cell in enumerate(cells) if "run.drill(" in cell.source)
    before = json.dumps([cell.get("outputs", []) for cell in cells[begins:at]])
    after = json.dumps(cells[at].outputs)
    assert truth.fault not in before and "REHEARSAL" in before
    assert truth.fault in after and " of 3 right" in after
