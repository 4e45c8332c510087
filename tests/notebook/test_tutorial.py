"""The notebooks as a tutorial: said once, linked, asked and answered, and each port explained."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from kimi_nb.check import judge
from kimi_nb.core import data_files
from kimi_nb.core.errors import KimiError
from kimi_nb.notebook import page_links, runbook
from kimi_nb.notebook.choice import Choice
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.tune import design

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MANIFEST = data_files.facts("notebook/notebooks")
EXERCISES = yaml.safe_load(Path(__file__).with_name("exercises.yaml").read_text("utf-8"))
_COPIES = 0.10
_SERVING = [name for name, entry in MANIFEST.items() if entry["layout"]]
_ANSWER = re.compile(
    r"^\d\. (.*?)<details><summary>Answer</summary>\n\n(.*?)\n\n</details>", re.M | re.S
)


def cells(name: str, kind: str = "") -> list[str]:
    book = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))
    return ["".join(one["source"]) for one in book["cells"] if kind in ("", one["cell_type"])]


def text(name: str) -> str:
    return "\n\n".join(cells(name, "markdown"))


def test_what_stands_in_two_notebooks_stands_once():
    """Fewer than a tenth of all cells are copies of one another."""
    every = [" ".join(source.split()) for path in NOTEBOOKS for source in cells(path.stem)]
    counted = Counter(every)
    copies = [one for one in every if counted[one] > 1]
    assert len(copies) < _COPIES * len(every), counted.most_common(10)
    prose = Counter(source for path in NOTEBOOKS for source in cells(path.stem, "markdown"))
    assert max(prose.values()) == 1, "a text that stands in two notebooks"


@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS if path.stem != "11_report"])
def test_a_notebook_ends_with_the_way_to_another(name):
    last = cells(name, "markdown")[-1]
    others = {stem for stem in MANIFEST if stem != name}
    assert last.startswith("## Next") and any(f"]({stem}.ipynb" in last for stem in others)


@pytest.mark.parametrize("name", _SERVING)
def test_what_serves_says_what_may_fail_and_asks_the_reader(name):
    headings = re.findall(r"^## (.*)$", text(name), re.M)
    assert "If it fails" in headings and headings[-2:] == ["Exercises", "Next"]
    assert re.search(r"\]\(\.\./docs/rules/\w+/[\w-]+\.md\)", text(name)), "no link to a rule"


@pytest.mark.parametrize("name", list(MANIFEST))
def test_links_stand_where_a_reader_needs_them(name):
    if name in ("11_report", "10_faq", "12_drills"):
        pytest.skip("it lists what others explain")
    found = re.findall(r"\]\(([^)]+)\)", text(name))
    assert any(".ipynb" in one for one in found), "no other notebook"
    assert any(one.startswith("../docs/") for one in found), "no page of the documents"
    if name not in ("04_multi_node_dp", "01_prerequisites", "02_install"):
        assert any("glossary.md#" in one for one in found), "no word of the glossary"
    assert any(one.startswith("https://") for one in found), "no public page"


def test_only_the_plan_and_its_notebooks_have_a_panel():
    """It is at home in notebook 00; elsewhere it stands below the plan that it shows."""
    for path in NOTEBOOKS:
        code = cells(path.stem, "code")
        at = [n for n, source in enumerate(code) if "run.panel(" in source]
        assert len(at) <= 1
        if at and path.stem != "00_start":
            assert any("run.plan(" in source for source in code[: at[0]]), path.stem


# Exercises ----------------------------------------------------------------------------------


def asked(name: str) -> list[tuple[str, str]]:
    """Question and answer of each exercise of a notebook."""
    part = text(name).partition("## Exercises")[2].partition("## Next")[0]
    return _ANSWER.findall(part)


def test_each_exercise_has_its_answer():
    assert list(EXERCISES) == _SERVING
    for name, kept in EXERCISES.items():
        assert 2 <= len(asked(name)) == len(kept) <= 3, name


def choice(given: dict[str, str]) -> Choice:
    names = ("layout", "overrides", "features", "scenario")
    return Choice("k2.5", given["hw"], **{name: given.get(name, "") for name in names})


def refusal(given: dict[str, str]) -> str:
    """What is said where a choice, or a setting of its sweep, is refused."""
    try:
        plan = choice(given).plan()
        return str(design.of(plan, given["sweep"]).refused) if "sweep" in given else ""
    except KimiError as error:
        return str(error)


def flag(plan: Plan, role: str, name: str) -> str:
    argv = plan.first(role).argv
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize(
    "name, at", [(name, at) for name, kept in EXERCISES.items() for at in range(len(kept))]
)
def test_an_exercise_comes_to_its_answer(name, at):
    given, (question, answer) = EXERCISES[name][at], asked(name)[at]
    for key in ("overrides", "features", "scenario", "sweep"):
        assert given.get(key, "") in question
    if "refused" in given:
        assert given["refused"] in refusal(given) and given["refused"] in answer
        return
    plan = choice(given).plan()
    if "rule" in given:
        found = judge.plan(plan)
        assert given["rule"] in {one.rule for one in (*found.errors, *found.of("warning"))}
        assert f"[{given['rule']}](../docs/rules/{given['rule']}.md)" in answer
    elif "flag" in given:
        word, _, value = given["flag"].partition(" ")
        assert flag(plan, given["role"], word) == value and f"`{given['flag']}`" in answer
    elif "router" in given:
        assert plan.router and plan.router.kind == given["router"] and given["router"] in answer
    else:
        ranks = [one for one in plan.engines if one.role == given["role"]]
        places = int(flag(plan, given["role"], "--max-num-seqs"))
        assert places * len(ranks) == given["at_once"] and str(given["at_once"]) in answer


# Ports --------------------------------------------------------------------------------------

# What a row of the table of ports begins with, for each port that a plan has.
_PORTS = {
    "http_port": r"front door|HTTP port of an engine",
    "kv_port": r"`kv_port`",
    "rpc_port": r"`--data-parallel-rpc-port`",
    "side_channel_port": r"side channel",
}


@pytest.mark.parametrize(
    "name, choices",
    [
        ("00_start", [("a3", "single"), ("a2", "dp"), ("a3", "pd"), ("h200", "pd")]),
        ("03_single_node", [("a3", "single"), ("h200", "single")]),
        ("05_pd", [("a3", "pd"), ("h200", "pd")]),
    ],
)
def test_a_reader_knows_what_each_port_is_for(name, choices):
    """A row of a table: the port, who connects to it, and what for."""
    rows = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text(name))
        .partition("## Which port is for what")[2]
        .partition("\n## ")[0]
        .splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["port", "who connects", "what for"]
    assert all(len(row) == 3 and all(row) for row in rows)
    for hardware, layout in choices:
        plan = Choice("k2.5", hardware, layout).plan()
        for port, words in _PORTS.items():
            if any(getattr(engine, port) for engine in plan.engines):
                assert any(re.search(words, row[0]) for row in rows), (hardware, layout, port)
        assert any(row[0].startswith("front door") for row in rows) and plan.url


# Pages --------------------------------------------------------------------------------------


def test_links_of_a_page_lead_to_pages_and_documents(tmp_path):
    text = (
        "[a](05_pd.ipynb#Plan) [b](04_multi_node_dp.ipynb) [c](../docs/glossary.md#what-is-done) "
        "[d](#Next) [e](https://docs.vllm.ai/x) [f](none.ipynb)"
    )
    found = re.findall(
        r"\]\(([^)]+)\)", page_links.on_page(text, tmp_path, ["05_pd"], ROOT / "notebooks")
    )
    assert found[0] == "05_pd.html#Plan" and found[3:] == [
        "#Next",
        "https://docs.vllm.ai/x",
        "none.ipynb",
    ]
    assert (tmp_path / found[1]).resolve() == ROOT / "notebooks" / "04_multi_node_dp.ipynb"
    path, _, anchor = found[2].partition("#")
    assert (tmp_path / path).resolve() == ROOT / "docs" / "glossary.md" and anchor == "what-is-done"


def test_the_pages_of_a_run_are_linked_to_one_another(tmp_path):
    outcome = runbook.run("k2.5", "a3", only="00,01", run_dir=str(tmp_path / "run"))
    page = (outcome.folder / "00_start.html").read_text()
    assert 'href="01_prerequisites.html"' in page and 'href="../docs/' not in page
    for target in re.findall(r'href="([^":#]+)[#"]', page):
        assert (outcome.folder / target).exists(), target
