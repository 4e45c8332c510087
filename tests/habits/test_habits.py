"""The habits of the project: what make lint says of planted faults, and what is never stale."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from habits import links, notebook_form, readme

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


# The form of notebooks ------------------------------------------------------------------------


@pytest.fixture
def notebook():
    return nbformat.read(ROOT / "notebooks" / "05_pd.ipynb", as_version=4)


def lint(notebook, folder):
    """What the lint says of a notebook, a line each."""
    path = folder / "planted.ipynb"
    path.write_text(json.dumps(notebook))
    return [str(flaw).removeprefix(str(path)) for flaw in notebook_form.flaws(path)]


def test_a_good_notebook_has_no_flaws(notebook, tmp_path):
    assert lint(notebook, tmp_path) == []


def code(notebook, source, at=7):
    """Replace the source of a code cell, counted from 1."""
    assert notebook.cells[at - 1].cell_type == "code"
    notebook.cells[at - 1].source = source


def edit(notebook, old, new):
    """Replace a text wherever it stands."""
    found = [cell for cell in notebook.cells if old in cell.source]
    assert found, old
    for cell in found:
        cell.source = cell.source.replace(old, new)


def swap(notebook, one, other):
    """Exchange two headings."""
    edit(notebook, f"## {one}\n", "## (swapped)\n")
    edit(notebook, f"## {other}\n", f"## {one}\n")
    edit(notebook, "## (swapped)\n", f"## {other}\n")


@pytest.mark.parametrize(
    "plant, where, wanted",
    [
        (lambda nb: code(nb, "!ls"), ", cell 7: ", "a line with !"),
        (lambda nb: code(nb, "files = !ls"), ", cell 7: ", "a line with !"),
        (lambda nb: code(nb, "%time run"), ", cell 7: ", "a line with %"),
        (lambda nb: code(nb, "run run"), ", cell 7: ", "not Python: invalid syntax, line 1"),
        (lambda nb: code(nb, "def f():\n    pass"), ", cell 7: ", "it has a def"),
        (lambda nb: code(nb, "async def f():\n    pass"), ", cell 7: ", "it has a async def"),
        (lambda nb: code(nb, "class A:\n    pass"), ", cell 7: ", "it has a class"),
        (lambda nb: code(nb, "f = lambda: 0"), ", cell 7: ", "it has a lambda"),
        (lambda nb: code(nb, "run\n" * 6), ", cell 7: ", "6 lines. 1 to 5"),
        (lambda nb: code(nb, ""), ", cell 7: ", "0 lines. 1 to 5"),
        (lambda nb: nb.cells[6].update(execution_count=1), ", cell 7: ", "outputs of a run"),
        (
            lambda nb: nb.cells[6].outputs.append(nbformat.v4.new_output("stream", text="x")),
            ", cell 7: ",
            "outputs of a run",
        ),
        (lambda nb: nb.cells.pop(27), ", cell 28: ", "no sentence above"),
        (
            lambda nb: edit(nb, "| :--- | :--- | :--- |\n", "| :--- | --- | :--- |\n"),
            ", cell 10: ",
            "JupyterLab centres",
        ),
        (
            lambda nb: edit(nb, "OK is no `fail`", "No `fail`. BROKEN."),
            ", cell 23: ",
            "what OK looks",
        ),
        (lambda nb: nb.cells[0].update(source="05"), ", cell 1: ", "no title"),
        (lambda nb: nb.metadata.kernelspec.update(name="ir"), ": ", "the kernel is 'ir'"),
        (lambda nb: nb.metadata.pop("kernelspec"), ": ", "the kernel is None"),
        (
            lambda nb: nb.cells.extend(map(nbformat.v4.new_markdown_cell, "abcdefgh")),
            ": ",
            "41 cells",
        ),
        (lambda nb: edit(nb, "## Act\n", "## Act\n" + "word " * 1500), ": ", "words. At most 1500"),
        (lambda nb: nb.cells[6].metadata.update(tags=["parameters"]), ": ", "2 cells are tagged"),
        (
            lambda nb: nb.cells[2].metadata.clear(),
            ": ",
            "0 cells are tagged parameters. Exactly one",
        ),
        (
            lambda nb: edit(nb, "hw: str = ", "chip: str = "),
            ", cell 3: ",
            "it begins with chip, model",
        ),
        (
            lambda nb: edit(nb, 'confirm: str = ""', "confirm: str = str()"),
            ", cell 3: ",
            "no literal",
        ),
        (lambda nb: edit(nb, 'confirm: str = ""', "confirm: str = None"), ", cell 3: ", "no value"),
        (lambda nb: edit(nb, 'confirm: str = ""', "confirm: str = 3"), ", cell 3: ", "is a int"),
        (lambda nb: edit(nb, "confirm: str = ", "confirm = "), ", cell 3: ", "has no type"),
        (
            lambda nb: edit(nb, "# where results go; empty: runs/<model>-<hw>", "# x"),
            ", cell 3: ",
            "does not say what it is for",
        ),
        (
            lambda nb: edit(nb, 'confirm: str = ""  #', 'confirm: str = ""\nimport os  #'),
            ", cell 3: ",
            "does not say what it is for",
        ),
        (
            lambda nb: swap(nb, "Findings", "Write"),
            ": ",
            "the headings are Parameters, Start, Plan, Write, Findings",
        ),
        (lambda nb: edit(nb, "## Gate\n", "### Gate\n"), ": ", "no heading Gate"),
        (lambda nb: edit(nb, "## Next\n", "## The end\n"), ": ", "no heading Next"),
        (
            lambda nb: edit(nb, "## Start\n", "## More\n\n## Start\n"),
            ": ",
            "begin with Parameters, More",
        ),
    ],
)
def test_a_fault_in_a_notebook_is_told_with_its_cell(plant, where, wanted, notebook, tmp_path):
    plant(notebook)
    told = lint(notebook, tmp_path)
    assert any(line.startswith(where) and wanted in line for line in told), told


def test_the_report_has_a_form_of_its_own(tmp_path):
    """It closes a run: nothing comes next, and it leaves no evidence; the rest is that of any."""
    path = ROOT / "notebooks" / "11_report.ipynb"
    planted = tmp_path / path.name
    book = nbformat.read(path, as_version=4)
    planted.write_text(json.dumps(book))
    assert notebook_form.flaws(planted) == []
    assert any("no heading Next" in line for line in lint(book, tmp_path)), "that of a stage"
    edit(book, "## Verdict\n", "## Something else\n")
    edit(book, "OK is 0 errors", "0 errors is good")
    planted.write_text(json.dumps(book))
    told = "\n".join(map(str, notebook_form.flaws(planted)))
    assert "no heading Verdict" in told and "does not say what OK looks like" in told


def test_what_papermill_reads_is_what_stands_there(notebook, tmp_path):
    """papermill takes a help that begins with type: for a type, and shows none."""
    edit(
        notebook,
        "# the name of the site, where an action changes machines",
        "# type: the-name-of-the-site",
    )
    told = lint(notebook, tmp_path)
    assert len(told) == 1 and told[0].startswith(", cell 3: papermill reads"), told


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cells": 3}', "no JSON"])
def test_what_is_no_notebook_is_told(text, tmp_path):
    path = tmp_path / "broken.ipynb"
    path.write_text(text)
    assert "cannot be read as a notebook" in str(notebook_form.flaws(path)[0])


def test_the_lint_as_a_program(tmp_path, capsys):
    assert notebook_form.main([str(ROOT / "notebooks" / "00_start.ipynb")]) == 0
    assert notebook_form.main([str(tmp_path / "none.ipynb")]) == 1
    assert notebook_form.main([]) == 2
    assert "none.ipynb: cannot be read" in capsys.readouterr().out


# Links ----------------------------------------------------------------------------------------


def test_web_addresses_are_listed_for_a_person_to_open(tmp_path, capsys):
    page = tmp_path / "a.md"
    page.write_text(
        "[x](https://b.example/2) [y](https://a.example/1) [z](https://b.example/2) [w](#a)"
    )
    assert links.main(["--outer", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"https://a.example/1  ({page})", f"https://b.example/2  ({page})"]


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("[a](b.md)", "b.md is not there"),
        ("![a](b.png)", "b.png is not there"),
        ("[a](#none)", "has no heading #none; it has a-title, a-title-1"),
        ("[a](other.md#none)", "has no heading #none; it has other-words"),
        ("[a](https://host)", "no web address"),
        ("[a](https://me@host.org/x)", "no web address"),
        ("[a](https://" + "py" + "pi.org/project/x)", "a registry"),
        ("[a](file:///etc/hosts)", "neither https nor relative"),
        ("[a](/etc/hosts)", "neither https nor relative"),
        ("`kimi_nb/none.py`", "is not there"),
        ("`docs/none.md`", "is not there"),
        ("| a |\n| --- |\n| [a](b.md) |", "b.md is not there"),
        ("[a](#a-title) [a](#a-title-1) [b](other.md) [c](other.md#other-words)", ""),
        ("[a](https://host.org/x#y) <https://host.org> `kimi_nb/mine.py` `kimi_nb/*.py`", ""),
        ("```\n[a](b.md) `kimi_nb/none.py`\n```", ""),
    ],
)
@pytest.mark.parametrize("suffix", [".md", ".ipynb"])
def test_a_link_that_leads_nowhere_is_told(text, wanted, suffix, tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "kimi_nb").mkdir()
    (tmp_path / "kimi_nb" / "mine.py").touch()
    (tmp_path / "other.md").write_text("# `Other`, words!\n")
    path = tmp_path / f"it{suffix}"
    text = f"# A title\n\n## A title\n\n{text}\n"
    if suffix == ".ipynb":
        text = text.replace("#a-title", "#A-title")
        wanted = wanted.replace("a-title", "A-title")
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
        path.write_text(json.dumps(notebook))
    else:
        path.write_text(text)
    found = links.faults(path)
    assert [wanted in fault for fault in found] == ([True] if wanted else []), found


def test_no_link_of_ours_leads_nowhere():
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    assert [fault for path in paths for fault in links.faults(path)] == []


# What is generated ----------------------------------------------------------------------------


def test_generated_parts_are_current(capsys):
    """`make readme` writes them."""
    assert readme.main(["--check"]) == 0, capsys.readouterr().out


def test_a_document_keeps_its_own_words():
    text = "a\n<!-- generated: one -->\nold\n<!-- end -->\nb\n"
    new = readme.renewed(text, {"one": lambda: "new"})
    assert new == "a\n<!-- generated: one -->\n\nnew\n\n<!-- end -->\nb\n"
    assert readme.renewed(new, {"one": lambda: "new"}) == new
    for parts in ({}, {"two": str}, {"one": str, "two": str}):
        with pytest.raises(ValueError, match="generated parts: found one; wanted"):
            readme.renewed(text, parts)


def test_the_pages_of_the_rules_come_and_go(tmp_path, monkeypatch, capsys):
    """A page that is missing, out of date, or of a rule that is no more."""
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "PARTS", {})
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0
    pages = tmp_path / readme.RULES
    missing, old, gone = (pages / f"topology/{name}.md" for name in ("ranks", "ports", "gone"))
    missing.unlink()
    old.write_text("old\n")
    gone.write_text("gone\n")
    capsys.readouterr()
    assert readme.main(["--check"]) == 1
    told = capsys.readouterr().out
    assert [path.stem for path in (missing, old, gone) if path.name in told] == [
        "ranks",
        "ports",
        "gone",
    ]
    assert len(told.splitlines()) == 3
    assert readme.main([]) == 0
    assert missing.exists() and old.read_text() != "old\n" and not gone.exists()


def test_the_matrix_says_what_can_be_planned():
    """Held against the plans themselves, not against the code that writes it."""
    from kimi_nb.core.errors import NoRecipeError
    from kimi_nb.params import load, recipes
    from kimi_nb.plan import build

    head, _, *rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in readme.matrix().splitlines()
    ]
    assert head[1:] == [name for name in recipes.models() if "tiny" not in name]
    assert [row[0] for row in rows] == load.names("hardware")
    for chip, *cells in rows:
        for model, cell in zip(head[1:], cells, strict=True):
            told = {
                layout: part.split()[-1]
                for part in cell.split("; ")
                for layout in part.replace(",", "").split()[:-1]
            }
            if "all" in told:  # of the three layouts, in one word
                told = dict.fromkeys(("single", "dp", "pd"), told.pop("all")) | told
            assert sorted(told) == ["dp", "pd", "single"]
            for layout, word in told.items():
                if word in ("documented", "undocumented", "(tiny)"):
                    plan = build.plan(model, chip, layout)
                    assert (plan.model != model) == (word == "(tiny)")
                    continue
                with pytest.raises(NoRecipeError):
                    build.plan(model, chip, layout)
                if word == "derived":
                    assert build.plan(model, chip, layout, derive=True).derived
                else:
                    assert word == "impossible"


def test_a_notebook_without_words_for_the_index_is_told(monkeypatch):
    monkeypatch.setattr(
        readme.data_files, "facts", lambda name: {"11_more": {"title": "More", "layout": ""}}
    )
    with pytest.raises(ValueError, match=r"notebooks\.yaml, 11_more: about: is missing"):
        readme.notebooks()
    with pytest.raises(ValueError, match=r"notebooks\.yaml, 11_more: about_zh: is missing"):
        readme.notebooks("zh")


# The Makefile, the hooks, CI ------------------------------------------------------------------


def targets() -> dict[str, list[str]]:
    """target: what it needs, of those that people call."""
    return {
        name: needs.split()
        for name, needs in re.findall(r"^([a-z][a-z0-9-]*):(?!=)(.*)$", MAKEFILE, re.MULTILINE)
    }


def test_make_help_names_every_target_with_a_sentence():
    done = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = dict(re.findall(r"^make ([a-z0-9-]+) +(\S.{4,})$", done.stdout, re.MULTILINE))
    assert len(told) == len(done.stdout.splitlines())
    assert sorted(told) == sorted(targets())


def test_no_test_is_named_after_what_was_packed(request):
    # Gzip notes the second: two workers that collect in two of them would not have the same tests.
    names = [item.nodeid for item in request.session.items]
    assert names and not [name for name in names if "\\x1f\\x8b" in name]


def test_every_target_is_phony():
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[1]
    assert sorted(phony.replace("\\", "").split()) == sorted(targets())


def test_hooks_are_what_make_lint_runs():
    """And nothing that is fetched from elsewhere."""
    hooked = [hook["entry"].removeprefix("make -s ") for hook in HOOKS]
    assert hooked == ["strip", *targets()["lint"]]
    assert all(hook["language"] == "system" for hook in HOOKS)
    assert "lint" in targets()["test"]


def test_the_licence_is_the_text_of_apache_2():
    """The sum of the text that the foundation publishes."""
    assert (
        hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
        == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    )


def test_the_changelog_has_the_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head) for head in heads[1:])
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert kinds
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# The hooks on planted faults ------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the project in a repository of its own, with this interpreter as its .venv."""
    tree = tmp_path_factory.mktemp("checkout") / "tree"
    shutil.copytree(
        ROOT,
        tree,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", ".engine", "runs", "__pycache__", ".pytest_cache", ".hypothesis"
        ),
    )
    (tree / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        (tree / ".venv" / path.name).symlink_to(path)
    (tree / ".venv" / ".stamp").unlink(missing_ok=True)
    (tree / ".venv" / ".stamp").touch()  # made just now: make has nothing to install
    git(tree, "init", "-q")
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "all")
    return tree


def git(tree, *words):
    subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)


def hook(tree, *words):
    """Run hooks as a commit would; (exit code, what they say)."""
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", *words],
        cwd=tree,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env={
            **os.environ,
            "PRE_COMMIT_HOME": str(tree.parent / "home"),
            "PYTHONPATH": str(tree),
            "SKIP": "",
        },
    )
    return done.returncode, done.stdout


@pytest.mark.long
def test_every_hook_passes_on_the_project(checkout):
    code, told = hook(checkout)
    assert code == 0, told
    assert told.count("Passed") == len(HOOKS)


def _append(path, text):
    path.write_text(path.read_text() + text)


def _replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def _output(path):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[6].execution_count = 3
    nbformat.write(notebook, path)


@pytest.mark.parametrize(
    "name, file, plant, wanted",
    [
        ("strip", "notebooks/00_start.ipynb", _output, "files were modified by this hook"),
        ("lint-code", "kimi_nb/core/shell.py", lambda path: _append(path, "import os\n"), "F401"),
        (
            "lint-code",
            "notebooks/00_start.ipynb",
            lambda path: _replace(path, '"import kimi_nb', '"import os\\n", "import kimi_nb'),
            "F401",
        ),
        ("lint-notebooks", "notebooks/00_start.ipynb", _output, "would have stripped"),
        (
            "lint-notebooks",
            "notebooks/05_pd.ipynb",
            lambda path: _replace(path, "## Gate", "## Gates"),
            "no heading Gate",
        ),
        ("lint-docs", "README.md", lambda path: _append(path, "[x](none.md)\n"), "is not there"),
        ("lint-docs", "docs/check.md", lambda path: _append(path, "[x](#no)\n"), "no heading"),
        (
            "lint-docs",
            "params/models/k2.6.yaml",
            lambda path: _replace(path, "hardware: a3", "hardware: a2"),
            "Run: make readme",
        ),
        (
            "lint-types",
            "kimi_nb/core/shell.py",
            lambda path: _append(path, "\nPORT: int = 'a'\n"),
            "[assignment]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value else None,
)
def test_a_planted_fault_fails_its_hook(name, file, plant, wanted, checkout):
    plant(checkout / file)
    try:
        code, told = hook(checkout, name)
        assert code == 1 and wanted in told, told
    finally:
        git(checkout, "checkout", "-q", "--", ".")
