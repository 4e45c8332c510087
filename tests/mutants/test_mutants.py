"""The list of accepted survivors, held against diffs; and a run of two lines."""

from __future__ import annotations

import fnmatch
import shutil
from pathlib import Path

import pytest

from mutants import results, run

ROOT = Path(__file__).resolve().parents[2]
ENTRY = """
- function: kimi_nb.a.f
  why: no caller has another one
  changes:
    - {before: "return x + 1", after: "return x - 1"}
"""


def diff(before: str, after: str) -> str:
    return f"--- kimi_nb/a.py\n+++ kimi_nb/a.py\n@@ -1,2 +1,2 @@\n def f(x):\n-    {before}\n+    {after}"


def survivor(
    before: str, after: str, status: str = results.SURVIVED, at: int = 1
) -> results.Mutant:
    return results.Mutant(f"kimi_nb.a.x_f__mutmut_{at}", status, diff(before, after))


KILLED = results.Mutant("kimi_nb.a.x_f__mutmut_9", results.KILLED)
LISTED = results.accepted(ENTRY)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("kimi_nb.a.x_f__mutmut_12", "kimi_nb.a.f"),
        ("kimi_nb.a.x__f__mutmut_1", "kimi_nb.a._f"),
        ("kimi_nb.a.b.xǁThingǁname_x__mutmut_1", "kimi_nb.a.b.Thing.name_x"),
        ("kimi_nb.a.xǁThingǁ_of__mutmut_1", "kimi_nb.a.Thing._of"),
    ],
)
def test_a_mutant_names_its_function(name, function):
    assert results.function(name) == function


def test_an_accepted_survivor_is_known_by_its_change_wherever_it_stands():
    one = survivor("return x + 1", "return x - 1", at=77)
    found = results.outcome("kimi_nb/a.py", [one, KILLED], LISTED)
    assert (found.accepted, found.open, found.stale, found.fails) == (1, [], [], False)


@pytest.mark.parametrize("status", [results.SURVIVED, results.NO_TEST])
def test_another_survivor_fails(status):
    other = survivor("return x + 1", "return x + 2", status)
    same = survivor("return x + 1", "return x - 1", at=2)
    found = results.outcome("kimi_nb/a.py", [other, same], LISTED)
    assert found.open == [other] and found.accepted == 1 and found.fails
    assert results.outcome("kimi_nb/a.py", [other, same], LISTED, todo=1).fails is False


@pytest.mark.parametrize("mutants", [[KILLED], [survivor("return x", "return None")]])
def test_an_entry_that_is_killed_or_gone_is_named(mutants):
    found = results.outcome("kimi_nb/a.py", mutants, LISTED)
    assert [one.function for one in found.stale] == ["kimi_nb.a.f"] and found.fails
    assert results.outcome("kimi_nb/ab.py", [KILLED], []).stale == []


def test_what_was_not_finished_fails_and_says_nothing_of_the_list():
    found = results.outcome("kimi_nb/a.py", [KILLED, survivor("a", "b", results.NOT_RUN)], LISTED)
    assert not found.finished and found.fails and found.stale == []
    assert results.outcome("kimi_nb/a.py", [], []).fails


@pytest.mark.parametrize(
    "text",
    [
        ENTRY.replace("no caller has another one", "because"),
        ENTRY.replace("  why: no caller has another one\n", ""),
        ENTRY.replace("x - 1", "x + 1"),
        ENTRY + ENTRY,
    ],
)
def test_an_entry_without_a_reason_or_a_change_is_refused(text):
    with pytest.raises(ValueError, match=r"survivors\.yaml"):
        results.accepted(text)


def test_the_lists_fit_the_tree():
    groups = run.Groups.read((run.HERE / "groups.yaml").read_text())
    there = run.modules()
    for group in groups.groups:
        for pattern in group.modules:
            assert fnmatch.filter(there, pattern), pattern
        assert all((ROOT / test).is_file() for test in group.tests), group.tests
    of_none = groups.of([*groups.todo, *groups.never_run])[""]
    assert of_none == [] and set(groups.todo) | set(groups.never_run) <= set(there)
    assert not set(groups.todo) & set(groups.never_run)
    dotted = {name.removesuffix(".py").replace("/", ".") for name in there}
    for one in results.accepted((run.HERE / "survivors.yaml").read_text()):
        assert any(one.function.startswith(f"{name}.") for name in dotted), one.function


@pytest.mark.long
def test_a_run_of_two_lines(tmp_path):
    """One change is noticed, one is not, and one function has no test; nothing is left behind."""
    tree = tmp_path / "tree"
    files = {
        "kimi_nb/__init__.py": "",
        "kimi_nb/a.py": (
            "import functools\n\n\ndef half(x):\n    return _half(x)\n\n\n"
            "@functools.lru_cache\ndef _cached(x):\n    return half(x)\n\n\n"
            "def _half(x):\n    return x // 2 + 0 * x\n\n\ndef other():\n    return 1\n"
        ),
        "tests/test_a.py": (
            "from kimi_nb import a\n\nSEEN = a._cached(9)\n\n\n"
            "def test_half():\n    assert a._cached(9) == 4\n"
        ),
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["tests"]\n'
        'markers = ["long: x"]\n',
    }
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copytree(run.HERE, tree / "tests" / "mutants", ignore=lambda *_: ["test_mutants.py"])
    found, wrong = run.mutate(tree, ["kimi_nb/a.py"], ["tests/test_a.py"], 300)
    assert wrong == ""
    by_function = {}
    for one in found["kimi_nb/a.py"]:
        by_function.setdefault(results.function(one.name), []).append(one)
    assert {one.status for one in by_function["kimi_nb.a.half"]} == {results.KILLED}
    assert {one.status for one in by_function["kimi_nb.a.other"]} == {results.NO_TEST}
    alive = {
        one.key[1:] for one in by_function["kimi_nb.a._half"] if one.status == results.SURVIVED
    }
    assert ("return x // 2 + 0 * x", "return x // 2 - 0 * x") in alive
    assert not [after for _, after in alive if "//" not in after]
    assert (tree / "pyproject.toml").read_text() == files["pyproject.toml"]
    late, wrong = run.mutate(tree, ["kimi_nb/a.py"], ["tests/test_a.py"], 0)
    assert "budget" in wrong
    assert not results.outcome("kimi_nb/a.py", late["kimi_nb/a.py"], []).finished
