"""What README, CONTRIBUTING and docs/ print: commands that can be called, names that exist."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from markdown_it import MarkdownIt
from pydantic import BaseModel

from kimi_nb.cli.main import main
from kimi_nb.deploy import lifecycle
from kimi_nb.params import schema
from kimi_nb.plan import build

ROOT = Path(__file__).resolve().parents[2]
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
PAGES = sorted(ROOT.glob("docs/*.md"))
SITE = "my-cluster.yaml"  # what the documents call the site file of the A3 nodes


def commands(program: str) -> list[tuple[str, ...]]:
    """Every different call of a program in the code blocks, as words behind its name."""
    out: dict[tuple[str, ...], None] = {}
    for path in (README, CONTRIBUTING, *PAGES):
        for token in MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8")):
            text = token.content.replace("\\\n", " ")  # a line that goes on
            for line in text.splitlines() if token.type == "fence" else ():
                words = shlex.split(line, comments=True)
                for at, word in enumerate(words):
                    if word.split("/")[-1] == program and (at == 0 or words[at - 1] == "|"):
                        out[tuple(words[at + 1 :])] = None
    return list(out)


def options(words: tuple[str, ...]) -> dict[str, str]:
    """--name value of a call; "" where no value follows."""
    following = (*words[1:], "--")
    return {
        word: "" if value.startswith("--") else value
        for word, value in zip(words, following, strict=True)
        if word.startswith("--")
    }


def parameters(words: tuple[str, ...]) -> dict[str, str]:
    """-p name value of a call of papermill."""
    return {words[at + 1]: words[at + 2] for at, word in enumerate(words) if word in ("-p", "-r")}


# Commands ---------------------------------------------------------------------------------------

KIMI_NB, PAPERMILL = commands("kimi-nb"), commands("papermill")


def test_there_are_commands_of_each_kind():
    named = {words[0] for words in KIMI_NB}
    assert named == set(re.findall(r"`([a-z]+)`", _first_column("command-line.md")))
    assert len(KIMI_NB) > 30 and len(PAPERMILL) > 5 and len(commands("make")) > 5


def _first_column(page: str) -> str:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return "\n".join(rows)


@pytest.mark.parametrize("words", KIMI_NB, ids=shlex.join)
def test_kimi_nb_has_the_options_of_a_command(words, capsys):
    """Asked of its own help."""
    named = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    named = named[: 2 if named[0] in ("catalog", "site") else 1]
    with pytest.raises(SystemExit) as end:
        main([*named, "--help"])
    assert end.value.code == 0
    assert set(options(words)) <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.parametrize("words", PAPERMILL, ids=shlex.join)
def test_a_notebook_has_the_parameters_of_a_command(words):
    notebook = nbformat.read(ROOT / words[0], as_version=4)
    cell = next(
        cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())
    )
    given = parameters(words)
    assert set(given) <= set(re.findall(r"^(\w+):", cell, re.MULTILINE))
    if given.get("action") == "deploy":
        site = str(ROOT / "params/sites/cpu.yaml") if given["hw"] == "cpu" else given["site"]
        name = "local" if given["hw"] == "cpu" else Path(SITE).stem
        assert given["confirm"] == name and (given["hw"] == "cpu" or Path(site).name == SITE)


def test_make_has_the_targets_of_a_command():
    targets = set(re.findall(r"^([a-z0-9-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {words[0] for words in commands("make")} <= targets


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """A folder with the site files that the documents' own commands write."""
    monkeypatch.chdir(tmp_path)
    for words in KIMI_NB:
        if words[:2] == ("site", "new"):
            assert main([*words, "--force"]) == 0
    assert SITE in {path.name for path in tmp_path.iterdir()}
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        words
        for words in KIMI_NB
        if words[0] in ("plan", "list") or (words[0] == "check" and words[1].startswith("-"))
        if "--fix" not in words
    ],
    ids=shlex.join,
)
def test_a_command_that_needs_nothing_else_does_what_it_says(words, here, capsys):
    expected = 1 if "--as-documented" in words else 0  # the document has errors
    assert main(words) == expected, capsys.readouterr().err
    if "--out" in words:
        assert (here / options(words)["--out"] / "plan.json").is_file()


@pytest.mark.parametrize("words", [one for one in KIMI_NB if "--confirm" in one], ids=shlex.join)
def test_what_confirms_is_the_name_of_the_site(words, here):
    given = options(words)
    plan = build.plan(
        given["--model"],
        given["--hw"],
        given.get("--layout"),
        variant=given.get("--variant", ""),
        site=given.get("--site", ""),
    )
    lifecycle.check_confirmed(plan, given["--confirm"])  # raises for another name


def test_every_test_that_the_threat_model_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/security.md").read_text())
    assert len(named) >= 30
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        assert name in functions, f"docs/security.md: {file}::{name} does not exist"


def test_every_stranger_of_the_threat_model_has_a_test():
    """And no row says that something is held without a test that holds it."""
    text = (ROOT / "docs/security.md").read_text()
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(parts) == 6
    for part in parts:
        rows = [line for line in part.splitlines() if line.startswith("| to ")]
        assert rows and all("::test_" in row for row in rows), part.splitlines()[0]


# Names and numbers ------------------------------------------------------------------------------


def test_the_first_page_stays_short():
    assert README.stat().st_size < 10_000
    assert (ROOT / "README.zh-CN.md").stat().st_size < 10_000
    assert CONTRIBUTING.stat().st_size < 8_000


def test_every_page_can_be_reached_from_the_readme():
    seen, ahead = set(), [README]
    while ahead:
        path = ahead.pop()
        if path not in seen:
            seen.add(path)
            links = re.findall(r"\]\(([^):#]+\.md)", path.read_text(encoding="utf-8"))
            ahead += [(path.parent / link).resolve() for link in links]
    assert set(ROOT.glob("docs/**/*.md")) <= seen


def test_the_rooms_are_listed():
    rooms = re.findall(r"^\| `kimi_nb/(\w+)/` \|", CONTRIBUTING.read_text(), re.MULTILINE)
    assert sorted(rooms) == sorted(
        path.name for path in (ROOT / "kimi_nb").iterdir() if path.is_dir() and path.name[0] != "_"
    )


def test_every_key_of_a_site_file_is_explained():
    told = set(re.findall(r"`([a-z_.]+)`", _first_column("deploy.md")))
    nodes = {"nodes.name", "nodes.address", "nodes.nic"}
    assert told == set(_keys(schema.Site)) | nodes


TABLES = (
    schema.Ssh,
    schema.Slurm,
    schema.Kubernetes,
    schema.JobContainer,
    schema.Paths,
    schema.Network,
)


def _keys(table: type[BaseModel], before: str = "") -> Iterator[str]:
    """The dotted keys of a table; a list and the engine's own settings count as one key."""
    for name, part in table.model_fields.items():
        kinds = (part.annotation, *typing.get_args(part.annotation))
        inner = [kind for kind in kinds if kind in TABLES]
        yield from _keys(inner[0], f"{before}{name}.") if inner else [before + name]


def test_the_glossary_names_what_there_is():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\|.*\| (`[^|]*`) \|$", text, re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    assert len(names) > 30
    for name in sorted(names):
        module, _, kind = name.rpartition(".")
        if kind[0].isupper():
            assert hasattr(importlib.import_module(f"kimi_nb.{module}"), kind), name
        else:
            importlib.import_module(f"kimi_nb.{name}")
