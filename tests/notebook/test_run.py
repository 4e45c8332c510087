"""What the cells of a notebook call, without a notebook."""

from __future__ import annotations

import pytest

import kimi_nb
from kimi_nb.core import evidence
from kimi_nb.core.errors import CheckError
from kimi_nb.notebook import listing
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.subject import Subject
from kimi_nb.plan import tables


@pytest.fixture
def run(tmp_path):
    return kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))


def test_a_plan_with_errors_is_not_written(run, capsys):
    plan = run.plan(run.choose("pd", overrides=["gpu-memory-utilization=0.3"]))
    bundle = run.folder / plan.name / "bundle"
    with pytest.raises(CheckError, match=r"2 errors(?s:.*)force=True"):
        run.write(plan)
    assert not bundle.exists()
    capsys.readouterr()
    assert run.write(plan, force=True).folder == bundle
    assert bundle.is_dir() and "2 errors" in capsys.readouterr().out


def test_as_documented(run):
    choice = run.choose("pd", as_documented=True, errata="k2.5-host=on")
    plan = run.plan(choice)
    assert plan.name == "k2.5-a3-pd-as-documented"
    assert "k2.5-kv-port" in plan.errata_off and "k2.5-host" not in plan.errata_off
    assert choice == run.choose("pd", errata="all=off, k2.5-host=on")
    assert 'errata: str = "all=off,k2.5-host=on"' in choice.lines()


def test_which_version_of_the_engine_and_its_known_faults():
    asked = Choice("k2.6", "a3", "pd")
    subject = Subject.load("k2.6", "a3")
    versions = listing.table("engine-versions", subject, asked)
    assert "0.25.1rc1 as the last release" in versions.title
    (row,) = (row for row in versions.rows if row[0] == "0.26.0rc1")
    assert "error va-k2x-026-oom" in row[2]
    known = {row[0]: row for row in listing.table("known-faults", subject, asked).rows}
    assert "issues/15297" in str(known["va-k2x-026-oom"]) and known["va-k2x-026-oom"][2] == "yes"
    # A hardware with a container and no recipe has no plan to compare.
    bare, nothing = Subject.load("k2.6", "a2"), Choice("k2.6", "a2")
    for topic in ("engine-versions", "known-faults"):
        table = listing.table(topic, bare, nothing)
        assert not len(table) and table.title.startswith("No recipe")


def test_the_evidence_that_is_shown_is_that_of_the_notebook(run):
    """Other notebooks add to the same file meanwhile; what identifies the program is in there."""
    evidence.record(run.folder, "write", plan="of another notebook")
    shown = run.close()
    assert [row[1] for row in shown.rows] == ["start", "close"]
    assert "hardware a3" in str(shown) and "commit" not in str(shown)
    assert len(evidence.read(run.folder)) == 3


def test_deployments_of_one_model_and_hardware_have_these_in_their_title(run):
    mine = run.list("recipes")
    assert mine.title == "Deployments of k2.5 on a3"
    assert mine.headings[0] == "layout" and mine.headings[-1] == "title"


def test_what_decides_most_stands_first_in_each_role(run):
    plan = run.choose("pd").plan()
    rows = tables.settings(plan).rows
    for role in ("prefill", "decode"):
        names = [row[1] for row in rows if row[0] == role]
        assert set(names[:3]) == {
            "--max-model-len",
            "--max-num-seqs",
            "--gpu-memory-utilization",
        }
    assert len(rows) == len(plan.explain())


def test_one_engine_on_one_node_is_no_plural(run):
    assert "1 engine on 1 node" in tables.topology(run.choose("single").plan()).title
    assert "36 engines on 4 nodes" in tables.topology(run.choose("pd").plan()).title


def test_the_largest_deployment_is_drawn_before_anything_is_chosen(run, tmp_path):
    assert "a3-3" in run.example("ranks").alt
    assert not (run.folder / "k2.5-a3-pd").exists()
    bare = kimi_nb.start(hw="a5", model="k2.5", run_dir=str(tmp_path / "bare"))
    assert "Nothing to draw" in bare.example("ranks").alt
