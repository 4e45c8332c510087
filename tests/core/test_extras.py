"""Extras: every import belongs to the base or to an extra of its room; a lack is told, not traced."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kimi_nb.core import extras
from kimi_nb.core.errors import KimiError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What people start and no module imports.
FOR_PEOPLE = {"jupyterlab"}
STAGES = ("rehearse", "deploy", "prove")
# The extras with which a room is used: what it imports is in each of them, or in the base.
ROOMS = {
    **dict.fromkeys(
        ("i18n", "show", "params", "catalog", "plan", "check", "bundle", "diagnose"), ("",)
    ),
    **dict.fromkeys(("core", "service", "report"), STAGES),
    **{stage: (stage,) for stage in STAGES},
    **dict.fromkeys(("notebook", "cli"), ("notebook",)),
}
# In a function that only such an extra calls, or with another way where the package is missing.
LATE = {
    ("show", "matplotlib"): "prove",
    ("show", "IPython"): "notebook",
    ("diagnose", "numpy"): "prove",
}


def declared(extra: str) -> set[str]:
    """The packages of an extra (of the base: "") in pyproject.toml, those of its extras too."""
    found = set()
    for line in PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]:
        requirement = Requirement(line)
        if requirement.name == "kimi_nb":
            found |= set().union(*map(declared, requirement.extras))
        else:
            found.add(requirement.name)
    return found


@functools.cache
def modules(extra: str) -> set[str]:
    """What the packages of an extra, and of the base below it, are imported as."""
    return set(map(extras.module, declared(extra) | declared("")))


def imported(tree: ast.AST) -> Iterator[str]:
    """Each top name that a module imports; not what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("quickly", "import_module")
        ):
            names = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from (name.partition(".")[0] for name in names)
        yield from imported(node)


def test_the_table_is_that_of_pyproject():
    assert set(extras.BASE) == declared("")
    for stage in STAGES:
        assert set(extras.EXTRAS[stage]) == declared(stage)
    below = set().union(*map(declared, STAGES))
    assert {*extras.EXTRAS["notebook"], *FOR_PEOPLE} == declared("notebook") - below
    assert below < declared("notebook") == declared("all") < declared("test")
    assert not declared("check")


def test_every_import_belongs_to_the_base_or_to_the_extra_of_its_room():
    """And each package that they have is imported, or used by its name."""
    seen = set()
    for path in sorted((ROOT / "kimi_nb").rglob("*.py")):
        room = path.relative_to(ROOT / "kimi_nb").parts[0]
        if room == "data":  # runs on nodes and beside engines, with what is there
            continue
        for name in imported(ast.parse(path.read_text())):
            if name in sys.stdlib_module_names or name in ("kimi_nb", "node_steps"):
                continue
            seen.add(name)
            wanted = ROOMS.get(room, ("",))
            if (room, name) in LATE:
                wanted = (LATE[room, name],)
            missing = [extra for extra in wanted if name not in modules(extra)]
            assert not missing, f"{path}: {name} is in no dependency of {missing}"
    unused = modules("all") - seen - FOR_PEOPLE
    assert unused == {"ipykernel", "vllm_router"}  # chosen or started by name


@pytest.fixture
def without(tmp_path):
    """Run Python where some packages are not found."""

    def run(hidden: set[str], *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "sitecustomize.py").write_text(
            "from importlib.machinery import PathFinder\n"
            "find = PathFinder.find_spec\n"
            "PathFinder.find_spec = lambda name, path=None, target=None: (\n"
            f"    None if name.partition('.')[0] in {hidden!r} else find(name, path, target))\n"
        )
        return subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


KIMI = ("-m", "kimi_nb")
PLAN = ("--model", "k2.5", "--hw", "a3", "--layout", "pd")
LOGS = str(ROOT / "kimi_nb" / "data" / "diagnose" / "sample_logs")


@pytest.mark.parametrize(
    "words, code",
    [
        (("list",), 0),
        (("list", "--faults"), 0),
        (("plan", *PLAN, "--json"), 0),
        (("check", *PLAN), 0),
        (("check", str(ROOT / "README.md")), 0),
        (("catalog", "diff", "0.18.0", "0.20.2"), 0),
        (("doctor", LOGS), 1),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_the_base_is_enough(words, code, without):
    done = without(modules("all") - modules(""), *KIMI, *words)
    assert done.returncode == code and done.stderr == ""


@pytest.mark.parametrize(
    "words, extra",
    [
        (("rehearse", *PLAN), "rehearse"),
        (("up", *PLAN), "deploy"),
        (("status",), "deploy"),
        (("logs",), "deploy"),
        (("down",), "deploy"),
        (("verify", "http://127.0.0.1:9"), "prove"),
        (("run", "--model", "k2.5", "--hw", "a3"), "notebook"),
        (("report",), "notebook"),
        (("report", "--json"), "rehearse"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_command_without_its_extra_names_it(words, extra, without):
    done = without(modules("all") - modules(""), *KIMI, *words)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kimi-nb: {words[0]} needs ")
    assert line.endswith(f": pip install 'kimi_nb[{extra}]'")


def test_what_only_a_process_of_a_command_imports_is_missed_before_it_starts(without):
    done = without({"uvicorn", "vllm_router"}, *KIMI, "rehearse", *PLAN)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "kimi-nb: rehearse needs uvicorn, vllm-router: pip install 'kimi_nb[rehearse]'"
    ]


def test_a_broken_base_is_told(without):
    done = without({"pydantic"}, *KIMI, "plan", "--model", "k2.5", "--hw", "a3")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["kimi-nb: plan needs pydantic: pip install kimi_nb"]


def test_the_package_says_what_its_names_need(without):
    code = (
        "import kimi_nb\n"
        "print(kimi_nb.Plan.__name__)\n"
        "try:\n"
        "    kimi_nb.start\n"
        "except kimi_nb.KimiError as error:\n"
        "    print(error)\n"
    )
    done = without(modules("all") - modules(""), "-c", code)
    assert done.stdout.splitlines() == [
        "Plan",
        "kimi_nb.start needs pysocks: pip install 'kimi_nb[notebook]'",
    ], done.stderr


def test_what_is_no_package_of_ours_is_a_fault_of_ours():
    with pytest.raises(ModuleNotFoundError, match="none_of_ours"), extras.imports("x"):
        __import__("none_of_ours")
    wanted = r"^x needs pandas: pip install 'kimi_nb\[prove\]'$"
    with pytest.raises(KimiError, match=wanted), extras.imports("x"):
        raise ModuleNotFoundError(name="pandas.core")
