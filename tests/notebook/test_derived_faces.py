"""A derived plan says DERIVED in every face: screen, files, pictures, panel, notebooks, report, JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import kimi_nb
from kimi_nb.bundle import node_files, scripts
from kimi_nb.check import formats, judge
from kimi_nb.cli import main
from kimi_nb.core.errors import NoRecipeError, ParameterError
from kimi_nb.deploy.journal import Journal
from kimi_nb.notebook import running
from kimi_nb.notebook.panel import choices
from kimi_nb.notebook.pictures import topology_picture
from kimi_nb.plan import build, derivation, tables
from kimi_nb.report import collect
from kimi_nb.report.sections import Sections

# A model and hardware of which one layout is documented and another one is derived.
CELLS = {(one.model, one.hardware, one.layout): one for one in derivation.cells()}
CELL = next(
    one
    for (model, chip, _), one in CELLS.items()
    if one.word == "derived" and CELLS[model, chip, "single"].word == "documented"
)
NAMES = (CELL.model, CELL.hardware, CELL.layout)
SINGLE = next(one for one in CELLS.values() if one.word == "derived" and one.layout == "single")
WORDS = ("--model", CELL.model, "--hw", CELL.hardware, "--layout", CELL.layout, "--derive")
BASE = CELL.why.removeprefix("from ")


@pytest.fixture
def derived():
    return build.plan(*NAMES, derive=True)


@pytest.fixture
def run(tmp_path):
    return kimi_nb.start(
        hw=CELL.hardware, model=CELL.model, run_dir=str(tmp_path / "run"), derive=True
    )


def said(capsys, *words: str) -> str:
    assert main.main(list(words)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_on_the_command_line(capsys):
    assert f"DERIVED from {BASE}, published by nobody" in said(capsys, "plan", *WORDS)
    told = said(capsys, "plan", *WORDS, "--explain")
    assert "by the rule" in told and "engine version" in told
    plan = json.loads(said(capsys, "plan", *WORDS, "--json"))
    assert plan["derived"]["base"] == BASE and plan["name"].endswith("-derived")
    assert f"note: DERIVED from {BASE}" in said(capsys, "check", *WORDS)
    checked = json.loads(said(capsys, "check", *WORDS, "--json"))
    assert "truth/derived" in {one["rule"] for one in checked["findings"]}
    assert "-derived" in said(capsys, "memory", *WORDS, "--json")
    single = (*WORDS[:4], "--layout", "single", "--derive")
    assert "DERIVED" not in said(capsys, "plan", *single)


def test_in_findings_for_other_programs(derived):
    found = judge.plan(derived)
    told = json.dumps(formats.sarif(found))
    assert "truth/derived" in told and "DERIVED from " in told


def test_in_every_script_for_people(derived):
    for plan in (derived, build.plan(SINGLE.model, SINGLE.hardware, "single", derive=True)):
        files = scripts.files(plan)
        started = [
            name
            for name, text in files.items()
            if text.startswith("#!") and name.partition("/")[0] in plan.nodes
        ]
        started = [name for name in started if name.rpartition("/")[2] not in node_files.static()]
        readmes = [name for name in files if name.endswith(("README.md", "DAY.md"))]
        assert started and len(readmes) >= 2 + len(plan.nodes)
        for name in (*started, *readmes):
            assert "DERIVED from " in files[name], name
        assert files["README.md"].startswith("# DERIVED ")
        assert "--derive" in files["DAY.md"] and "-p derive True" in files["DAY.md"]
        assert json.loads(files["plan.json"])["derived"]


def test_the_day_s_words_make_the_same_plan(derived):
    line = scripts.files(derived)["DAY.md"].partition("PLAN=(")[2].partition(")")[0].split()
    again = build.plan(line[1], line[3], line[5], variant=line[7], derive="--derive" in line)
    assert again.engines == derived.engines


def test_in_pictures_and_tables(derived):
    picture = topology_picture.picture(derived)
    assert picture.title.startswith(f"DERIVED {derived.name}: ") and "DERIVED from " in picture.alt
    assert tables.topology(derived).title.startswith("DERIVED ")
    assert tables.derivation(derived).title == f"DERIVED from {BASE}"
    assert len(tables.derivation(build.plan(CELL.model, CELL.hardware, "single"))) == 0


def test_in_notebooks(run, capsys):
    choice = run.choose(CELL.layout)
    assert choice.derive == "yes" and "derive: bool = True" in choice.lines()
    assert ("derive", "yes") in choice.table().rows
    plan = run.plan(choice)
    assert plan.derived and "DERIVED" in capsys.readouterr().out
    assert len(run.explain(plan, "derivation")) == len(plan.derived["steps"])
    assert {row[3] for row in run.list("why").rows} >= {"documented", "derived"}
    assert "DERIVED" in str(run.scenarios(choice))
    run.write(plan)
    section = Sections(collect(run.folder)).plans
    assert "DERIVED" in str(section)
    facts = dict(collect(run.folder).plans[0].facts)
    assert facts["DERIVED"] == f"from {BASE}; published by nobody"


def test_what_is_asked_of_a_notebook(tmp_path):
    folder = str(tmp_path / "run")
    with pytest.raises(ParameterError, match="derive: True or False is wanted, found 'yes'"):
        kimi_nb.start(hw=CELL.hardware, model=CELL.model, run_dir=folder, derive="yes")
    plain = kimi_nb.start(hw=CELL.hardware, model=CELL.model, run_dir=folder)
    with pytest.raises(NoRecipeError, match="--derive makes one from "):
        plain.choose(CELL.layout).plan()


def test_in_the_panel(run):
    given = run.choose("single")
    assert CELL.layout in choices.allowed(given)["layout"]
    made, _ = choices.choose(given, layout=CELL.layout)
    rows = dict(choices.look(made).table().rows)
    assert rows["this is"] == f"derived (from {BASE})" and rows["plan"].startswith("DERIVED from ")
    plain, notes = choices.choose(made, derive="")
    assert plain.layout == "single" and f"{CELL.layout} is not there" in notes[0]
    assert dict(choices.look(plain).table().rows)["this is"].startswith("documented (")


def test_a_deployment_keeps_what_was_derived(derived, tmp_path, run):
    journal = Journal.open(tmp_path / "run" / derived.name, derived)
    journal.keep(derived)
    kept = journal.kept_plan()
    assert kept.engines == derived.engines and kept.name == derived.name
    assert kept.derived["base"] == BASE and kept.title == derived.title
    journal.set("up")
    assert running.choice(run, derived.site).derive == "yes"


def test_the_command_says_it_as_a_program():
    layout = ("--layout", "single")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "kimi_nb",
            "plan",
            "--model",
            "k2.5",
            "--hw",
            "a2",
            *layout,
            "--derive",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "Nothing can be derived for Kimi-K2.5 on a2" in done.stderr
    assert "GiB are missing" in done.stderr
