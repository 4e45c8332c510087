"""Change the code in small ways, one at a time, and list the changes that no test notices.

Example::

    python tests/mutants/run.py                           # what changed since origin/main
    python tests/mutants/run.py --since HEAD~3
    python tests/mutants/run.py kimi_nb/plan/ports.py --budget 600

The changes are mutmut's. They are made in a copy of the tree, in a temporary folder. groups.yaml
says which tests hold which modules; survivors.yaml lists the survivors that are accepted, each
with its reason. The exit code is 1 if another one survives, if one that is listed does not, or if
a module could not be finished within the budget.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
# tests/ is not on the path of a script.
sys.path.insert(0, str(ROOT / "tests"))

from mutants import results  # noqa: E402

HERE = Path(__file__).resolve().parent
BUDGET = 1800  # seconds
_SPINNER = ("", *"⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")  # how a line of mutmut's progress begins
# Prints the diffs of the mutants on standard input, with mutmut's own functions.
_DIFFS = """
import json, sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
path, names = json.load(sys.stdin)
print(json.dumps({name: get_diff_for_mutant(name, path=path) for name in names}))
"""
# Keeps what the YAML files say beside them. No mutant writes there, and each would parse them again.
_COPIES = """
import contextlib, pathlib
from kimi_nb.core import data_files, errors
for folder in ("kimi_nb/data", "params"):
    for path in pathlib.Path(folder).resolve().rglob("*.yaml"):
        with contextlib.suppress(errors.KimiError):
            data_files.read_yaml(path)
"""


@dataclasses.dataclass(frozen=True)
class Group:
    """Modules, by patterns of their paths, and the test files that hold them.

    ``but`` are words of test names that take too long to be run for each mutant.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    but: str = ""

    def holds(self, module: str) -> bool:
        """Return whether a module is one of the group."""
        return any(fnmatch.fnmatchcase(module, pattern) for pattern in self.modules)


@dataclasses.dataclass(frozen=True)
class Groups:
    """groups.yaml: groups, the most important first, and the modules that are yet to be done.

    ``todo`` has, by module, how many survivors nobody has looked at; ``never_run`` how many mutants
    were never run.
    """

    groups: tuple[Group, ...]
    todo: dict[str, int]
    never_run: dict[str, int]

    @classmethod
    def read(cls, text: str) -> Groups:
        """Read groups.yaml."""
        said = yaml.safe_load(text)
        made = [
            Group(name, tuple(one["modules"]), tuple(one["tests"]), one.get("but", ""))
            for name, one in said["groups"].items()
        ]
        return cls(tuple(made), dict(said["todo"] or {}), dict(said["never_run"] or {}))

    def of(self, modules: Iterable[str]) -> dict[str, list[str]]:
        """Return the modules by the name of their group; "" is the name for those of none."""
        out: dict[str, list[str]] = {group.name: [] for group in self.groups} | {"": []}
        for module in sorted(set(modules)):
            out[next((one.name for one in self.groups if one.holds(module)), "")].append(module)
        return out


# The tree ---------------------------------------------------------------------------------------


def _git(*words: str, root: Path = ROOT) -> list[str]:
    done = subprocess.run(
        ["git", *words], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    return [line for line in done.stdout.split("\0" if "-z" in words else "\n") if line]


def modules(root: Path = ROOT) -> list[str]:
    """Return the modules of the package that run here, by their paths."""
    return [
        name
        for name in _files(root)
        if name.startswith("kimi_nb/") and name.endswith(".py") and "/data/" not in name
    ]


def _files(root: Path) -> list[str]:
    """Return the files that are tracked, or could be."""
    found = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", root=root)
    return [name for name in found if (root / name).is_file()]


def changed(since: str | None) -> list[str]:
    """Return the modules that changed since a commit, or since this branch left origin/main."""
    names = _git("diff", "--name-only", "-z", since or _branch_point(), "--", "kimi_nb")
    names += _git("ls-files", "-z", "--others", "--exclude-standard", "--", "kimi_nb")
    return sorted(set(names) & set(modules()))


def _branch_point() -> str:
    with contextlib.suppress(subprocess.CalledProcessError):
        (base,) = _git("merge-base", "HEAD", "origin/main")
        if [base] != _git("rev-parse", "HEAD"):
            return base
    return "HEAD~1"


@contextlib.contextmanager
def copy(root: Path = ROOT) -> Iterator[Path]:
    """Copy the tree into a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kimi-mutants-") as folder:
        for name in _files(root):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)
        here = {**os.environ, "PYTHONPATH": folder}
        here.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([sys.executable, "-c", _COPIES], cwd=folder, env=here, check=True)
        yield Path(folder)


def _settings(tree: Path, only: Sequence[str], tests: Sequence[str], but: str) -> str:
    """Return the settings of mutmut, as a table of pyproject.toml."""
    beside = sorted(path.name for path in tree.iterdir() if path.name not in ("kimi_nb", "mutants"))
    without = ["-k", f"not ({but.replace(' ', ' or ')})"] if but else []
    said: dict[str, Any] = {
        "source_paths": ["kimi_nb"],
        "only_mutate": list(only),
        "also_copy": beside,
        "pytest_add_cli_args_test_selection": list(tests),
        # What is only reported is not looked for: unraisableexception collects garbage five times.
        "pytest_add_cli_args": [
            "-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "mutants.fresh_caches",
            "-m", "not long", *without,
        ],
        # A process that has run no test forks one for each mutant: no cache, no thread, no loop of
        # gevent comes with it.
        "process_isolation": "forkserver",
        "use_git_change_detection": False,
    }  # fmt: skip
    # JSON is TOML too, for strings, lists of them and booleans.
    return "\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(it)}\n" for key, it in said.items())


# One run of mutmut ------------------------------------------------------------------------------


def mutate(
    tree: Path, only: Sequence[str], tests: Sequence[str], seconds: float, but: str = ""
) -> tuple[dict[str, list[results.Mutant]], str]:
    """Run mutmut on modules of a copy and return their mutants, and what went wrong ("" if nothing).

    After ``seconds`` it is stopped; mutants that were not run then say so.
    """
    project = tree / "pyproject.toml"
    before = project.read_text()
    shutil.rmtree(tree / "mutants", ignore_errors=True)
    (tree / "mutants").mkdir()
    project.write_text(before + _settings(tree, only, tests, but))
    try:
        wrong = _mutmut(tree, seconds)
        return {module: _mutants(tree, module) for module in only}, wrong
    finally:
        project.write_text(before)


def _environment(tree: Path) -> dict[str, str]:
    # The copy comes before the checkout, also for the programs that a test starts.
    path = os.pathsep.join([str(tree / "mutants"), str(tree / "tests")])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _mutmut(tree: Path, seconds: float) -> str:
    log = tree / "mutmut.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mutmut", "run", "--max-children", "1"],
            cwd=tree,
            env=_environment(tree),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            return "the budget was used up"
        finally:
            _stop(process)
    lines = log.read_text(errors="replace").replace("\r", "\n").splitlines()
    said = [line for line in lines if line.strip()[:1] not in _SPINNER]
    return "" if code == 0 else "\n".join([f"mutmut ended with {code}", *said[-40:]])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop mutmut and its workers, which are one process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _mutants(tree: Path, module: str) -> list[results.Mutant]:
    statuses = results.read(tree, module)
    alive = [name for name, status in statuses.items() if status != results.KILLED]
    done = subprocess.run(
        [sys.executable, "-c", _DIFFS],
        cwd=tree,
        env=_environment(tree),
        input=json.dumps([module, alive]),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    diffs = json.loads(done.stdout)
    return [results.Mutant(name, it, diffs.get(name, "")) for name, it in statuses.items()]


# All of it --------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Run the groups of the modules and print what became of them."""
    args = _arguments().parse_args(words)
    groups = Groups.read((HERE / "groups.yaml").read_text())
    listed = results.accepted((HERE / "survivors.yaml").read_text())
    wanted = args.modules or changed(args.since)
    unknown = sorted(set(wanted) - set(modules()))
    by_group = groups.of(wanted)
    if unknown or (args.modules and by_group[""]):
        print(f"{', '.join(unknown or by_group[''])}: no module of a group in {HERE}/groups.yaml")
        return 2
    if by_group[""]:
        print("not mutated, because no group has them: " + ", ".join(by_group[""]))
    end = time.monotonic() + args.budget
    found: list[results.Outcome] = []
    with copy() as tree:
        for group in groups.groups:
            if mine := by_group[group.name]:
                found += _run(tree, group, mine, end, listed, groups.todo, args.verbose)
    return _report(found)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests/mutants/run.py",
        description="List the changes of the code that no test notices.",
    )
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="such as kimi_nb/plan/ports.py"
    )
    parser.add_argument("--since", metavar="REF", help="the modules changed since this commit")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="the survivors of todo too")
    return parser


def _run(
    tree: Path,
    group: Group,
    mine: Sequence[str],
    end: float,
    listed: Sequence[results.Accepted],
    todo: dict[str, int],
    verbose: bool,
) -> list[results.Outcome]:
    """Run one group, print its survivors, and return what became of its modules."""
    print(f"{group.name}: {', '.join(mine)}", flush=True)
    mutants, wrong = mutate(tree, mine, group.tests, end - time.monotonic(), group.but)
    if wrong:
        print(f"{group.name}: {wrong}", flush=True)
    out = []
    for module in mine:
        one = results.outcome(module, mutants[module], listed, todo.get(module, 0))
        out.append(one)
        if verbose or len(one.open) > one.todo:
            for mutant in one.open:
                print(f"\n{mutant.status}: {results.function(mutant.name)}\n{mutant.diff}")
        for it in one.stale:
            print(
                f"\nsurvivors.yaml: {it.function}: this one is killed now, or gone; take it out:\n"
                f"-{it.before}\n+{it.after}"
            )
    return out


def _report(found: Sequence[results.Outcome]) -> int:
    if not found:
        print("no module of a group changed")
        return 0
    print("\n" + tabulate([one.row() for one in found], results.COLUMNS))
    for one in found:
        if not one.finished:
            print(f"{one.module}: not finished; give it more --budget, or run it alone")
        elif len(one.open) < one.todo:
            print(f"{one.module}: write {len(one.open)} into todo of groups.yaml")
    return int(any(one.fails for one in found))


if __name__ == "__main__":
    # Whoever ends this program ends mutmut too, and leaves no folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
