"""Adding is one place: what CONTRIBUTING.md tells to add is added to a copy, whose own tests run.

Each test writes the files that "To add something" names, and no others; `make readme` does the
rest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = "tests/habits/readme.py"
# What holds of the documents, whatever was added.
DOCUMENTS = (
    "tests/habits/test_habits.py::test_generated_parts_are_current",
    "tests/habits/test_habits.py::test_no_link_of_ours_leads_nowhere",
    "tests/habits/test_readme.py::test_both_languages_say_the_same",
    "tests/habits/test_readme.py::test_every_paragraph_is_chinese",
)
PARAMETERS = (
    "tests/params/test_params.py::test_everything_that_ships_is_valid",
    "tests/params/test_params.py::test_sites_have_documentation_addresses",
    "tests/plan/test_plan.py::test_cells_cover_every_combination",
    "tests/habits/test_habits.py::test_the_matrix_says_what_can_be_planned",
)
ROOMS = (
    "tests/habits/test_rooms.py::test_an_id_begins_with_its_module",
    "tests/habits/test_rooms.py::test_a_module_s_name_means_one_thing",
    "tests/habits/test_rooms.py::test_no_cycle_between_modules",
)


class Tree:
    """A copy of the project, and programs that run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        kept = ("*.md", "*.toml", "*.txt", "*.yml", "*.yaml", "Makefile")
        for path in (path for pattern in kept for path in ROOT.glob(pattern)):
            shutil.copy2(path, root)
        leave = shutil.ignore_patterns("runs", ".*")  # compiled modules are taken along
        for name in ("kimi_nb", "params", "notebooks", "tests", "docs", "benchmarks"):
            shutil.copytree(ROOT / name, root / name, ignore=leave)
        for name in (".github", ".ci"):
            shutil.copytree(ROOT / name, root / name)
        self.add("LICENSE", (ROOT / "LICENSE").read_text())

    def add(self, name: str, text: str) -> None:
        """Write a new file."""
        path = self.root / name
        assert not path.exists(), name
        path.write_text(text, encoding="utf-8")

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def enter(self, name: str, text: str, before: str = "") -> None:
        """Write an entry into a file: at its end, or before a text that it has once."""
        old = self.text(name)
        assert not before or old.count(before) == 1, before
        new = old.replace(before, text + before) if before else old + text
        (self.root / name).write_text(new, encoding="utf-8")

    def python(self, *words: str, code: int = 0) -> str:
        """What Python prints in the copy."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": f"{self.root}:{self.root / 'tests'}"},
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def kimi(self, *words: str, code: int = 0) -> str:
        """What ``kimi-nb`` prints."""
        return self.python("-m", "kimi_nb", *words, code=code)

    def test(self, *ids: str) -> None:
        """Renew what is generated and run tests of the copy; none of them may be skipped."""
        self.python(README)
        told = self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *ids)
        assert "skipped" not in told, told


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_hardware(tree):
    """One that is like another, and one that nothing is known of but its vendor."""
    tree.add(
        "params/hardware/h800.yaml",
        "extends: h200\nname: h800\ntitle: HGX H800 (8 GPUs of 80 GB)\ndevices: {memory_gb: 80, model: NVIDIA H800}\n",
    )
    old = tree.text("params/hardware/h200.yaml")
    tree.add(
        "params/hardware/b100.yaml",
        old.replace("name: h200", "name: b100").replace("title: DGX H200", "title: B100"),
    )
    for name in ("h800", "b100"):
        site = tree.text("params/sites/h200.yaml")
        site = site.replace("hardware: h200", f"hardware: {name}")
        tree.add(f"params/sites/{name}.yaml", site.replace("h200-example", f"{name}-example"))
    listed = json.loads(tree.kimi("list", "--json"))
    mine = {row["layout"]: row["documented"] for row in listed["recipes"] if is_h800(row)}
    assert mine == {"single": False, "dp": False, "pd": False}
    words = {row["layout"]: row["word"] for row in listed["cells"] if is_h800(row)}
    assert words["single"] == "documented" and set(words) == {"single", "dp", "pd"}
    assert set(words.values()) <= {"documented", "derived"}
    words = ("plan", "--model", "k2.5", "--layout", "single", "--json", "--hw")
    plan = json.loads(tree.kimi(*words, "h800"))
    assert (plan["hardware"], plan["site"], plan["documented"]) == ("h800", "h800-example", False)
    assert "No document describes Kimi-K2.5 on b100" in tree.kimi(*words, "b100", code=2)
    looks = "tests/rehearse/test_rehearsal_tools.py::test_every_check_of_a_node_passes[h800]"
    tree.test(*PARAMETERS, *DOCUMENTS, looks)
    assert "\n| h800 |" in tree.text("README.md") and "\n| b100 |" in tree.text("README.zh-CN.md")


def is_h800(row):
    return (row["model"], row["hardware"]) == ("k2.5", "h800")


@pytest.mark.long
def test_a_model(tree):
    old = tree.text("params/models/k2-thinking.yaml")
    tree.add(
        "params/models/k9.yaml",
        old.replace("name: k2-thinking", "name: k9").replace(
            "title: Kimi-K2-T", "title: Kimi-K9-T"
        ),
    )
    plan = json.loads(tree.kimi("plan", "--model", "k9", "--hw", "a3", "--json"))
    assert (plan["model"], plan["layout"]) == ("k9", "single")
    scripts = "tests/rehearse/test_rehearsal.py::test_the_scripts_are_those_of_the_plan"
    tree.test(*PARAMETERS, *DOCUMENTS, f"{scripts}[k9-a3-single-docker-default]")
    assert "| `k9` |" in tree.text("README.md")


RULE = '''

@rule(
    "{id}",
    NOTE,
    "No server listens at odd.",
    "Choose another name.",
    "this test",
)
def odd_name(d: Deployment) -> Iterator[Problem]:
    """Nobody remembers it."""
    for server, _ in d.profiles():
        if server.text("host") == "odd":
            yield Problem(server.of("host"), "a server listens at odd")
'''
CASE = """
{id}:
  fails:
    files: {{serve.sh: "vllm serve moonshotai/Kimi-K2.5 --host odd\\n"}}
  passes:
    files: {{serve.sh: "vllm serve moonshotai/Kimi-K2.5 --host even\\n"}}
"""
FAMILY = '''"""Rules of a family that nothing else knows."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb.check.findings import NOTE
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
'''


def rules(tree) -> list[str]:
    return [one["rule"] for one in json.loads(tree.kimi("list", "--rules", "--json"))]


def test_a_rule_and_a_family_of_rules(tree):
    before = rules(tree)
    tree.enter("kimi_nb/check/rules/security.py", RULE.format(id="security/odd-name"))
    tree.enter("kimi_nb/data/check/rules/security.yaml", CASE.format(id="security/odd-name"))
    tree.add("kimi_nb/check/rules/names.py", FAMILY + RULE.format(id="names/odd-name"))
    tree.add("kimi_nb/data/check/rules/names.yaml", CASE.format(id="names/odd-name"))
    after = rules(tree)
    assert after[-1] == "names/odd-name"
    assert [one for one in after if not one.endswith("/odd-name")] == before
    cases = "tests/check/test_rules.py"
    tree.test(
        *DOCUMENTS,
        *ROOMS,
        f"{cases}::test_every_rule_has_its_case",
        *(
            f"{cases}::{test}"
            for id in ("security/odd-name", "names/odd-name")
            for test in (
                f"test_rule[{id}-fails-0]",
                f"test_rule[{id}-passes-0]",
                f"test_a_rule_explains_itself[{id}]",
            )
        ),
    )


@pytest.mark.long
def test_a_signature(tree):
    tree.enter(
        "kimi_nb/data/diagnose/signatures.yaml",
        """
clock-skew:
  topic: platform
  pattern: "clock of (?P<host>\\\\S+) is \\\\d+ s behind"
  cause: "the clock of {host} is behind"
  help: "Start chronyd on every node."
  see: "01_prerequisites#Devices, driver, disk, network"
  example: "RuntimeError: the clock of node7 is 90 s behind"
""",
    )
    tree.add("serve.log", "RuntimeError: the clock of node7 is 90 s behind\n")
    assert "the clock of node7 is behind" in tree.kimi("doctor", "serve.log", code=1)
    tree.test(*DOCUMENTS, "tests/diagnose/test_doctor_signatures.py")


@pytest.mark.long
def test_a_fault(tree):
    """Its kind is that of a signature, which the logs show."""
    tree.enter(
        "kimi_nb/rehearse/fault_names.py",
        '    ARGUMENT_REFUSED = "argument-refused"\n',
        before="\n\ndef missing(",
    )
    tree.enter(
        "kimi_nb/rehearse/faults.py",
        """    FaultName.ARGUMENT_REFUSED: Kind(
        "a rank is given a flag's value that the engine refuses",
        files=lambda plan, files, target: _flag(
            files, _script(plan, files, target), "max-num-seqs", _for_rank(target, "many")
        ),
        needs="a launcher's template",
    ),
""",
        before="}\n\n\ndef table()",
    )
    assert "argument-refused" in json.loads(tree.kimi("list", "--faults", "--json"))
    tree.test(
        *DOCUMENTS,
        "tests/rehearse/test_rehearsal.py::test_what_is_said_is_of_faults",
        "tests/rehearse/test_rehearsal.py::test_a_fault_is_named[argument-refused]",
    )


@pytest.mark.parametrize("name", [pytest.param("13_more", marks=pytest.mark.long), "20_more"])
def test_a_notebook(tree, name):
    old = tree.text("notebooks/10_faq.ipynb")
    tree.add(f"notebooks/{name}.ipynb", old.replace("# 10 FAQ and doctor", f"# {name[:2]} More"))
    tree.enter(
        "kimi_nb/data/notebook/notebooks.yaml",
        f'{name}: {{title: More, layout: pd, about: "what else there is", about_zh: "其他内容"}}\n',
    )
    made = subprocess.run(
        ["make", "-n", "test", "BIN=bin"], cwd=tree.root, capture_output=True, text=True, check=True
    )
    assert f"notebooks/{name}.ipynb" in made.stdout
    tests = "tests/notebook/test_notebooks.py"
    tree.test(
        *DOCUMENTS,
        f"{tests}::test_the_manifest_lists_every_notebook",
        f"{tests}::test_form[{name}]",
        f"{tests}::test_only_and_what_applies",
        "tests/notebook/test_panel.py::test_the_notebook_of_a_layout",
    )
    assert f"notebooks/{name}.ipynb" in tree.text("README.zh-CN.md")
    if name == "13_more":
        tree.kimi("run", "--model", "k2.5", "--hw", "a3", "--only", "13", "--run-dir", "r")
        assert (tree.root / "r" / f"{name}.html").is_file()


@pytest.mark.long
def test_a_command(tree):
    tree.add(
        "kimi_nb/cli/ports.py",
        '''"""``kimi-nb ports``: print the port of an engine."""

from __future__ import annotations

import argparse

from kimi_nb.cli import options


def add(commands: options.Commands) -> None:
    """Declare the command."""
    commands.add_parser("ports", help="the port of an engine")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    print(8000)
    return 0
''',
    )
    tree.enter("kimi_nb/cli/main.py", '    "ports",\n', before=")\n\n\ndef main(")
    assert tree.kimi("ports") == "8000\n"
    tests = "tests/cli/test_cli.py"
    tree.test(
        *DOCUMENTS,
        *ROOMS,
        f"{tests}::test_every_command_is_a_module_of_one_shape",
        f"{tests}::test_help_loads_no_room_that_works",
    )
