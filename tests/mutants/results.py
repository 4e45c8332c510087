"""What became of the mutants of a module: read from mutmut, and held against accepted survivors.

>>> change("--- a\\n+++ a\\n@@ -1,2 +1,2 @@\\n def f(x):\\n-    return x + 1\\n+    return x - 1")
('return x + 1', 'return x - 1')
>>> function("kimi_nb.plan.ports.x_kv__mutmut_3")
'kimi_nb.plan.ports.kv'
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

KILLED, SURVIVED, NO_TEST, NOT_RUN = "killed", "survived", "no test", "not run"
# Exit codes of pytest, as mutmut writes them; each other one is a test that failed or a process
# that ended otherwise than it should (a time-out, a signal).
_STATUS = {None: NOT_RUN, 2: NOT_RUN, 0: SURVIVED, 5: NO_TEST, 33: NO_TEST}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One mutant: its status, and the lines that it changes, as a diff of its function."""

    name: str
    status: str
    diff: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The function, and its changed lines before and after."""
        return (function(self.name), *change(self.diff))


@dataclasses.dataclass(frozen=True)
class Accepted:
    """A survivor that may survive, and why."""

    function: str
    before: str
    after: str
    why: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What the key of its mutant is."""
        return self.function, self.before, self.after


def accepted(text: str) -> list[Accepted]:
    """Return the entries of survivors.yaml. Raises ValueError for one that is incomplete or twice."""
    out = []
    for entry in yaml.safe_load(text) or []:
        wanted = {"function", "why", "changes"}
        if set(entry) != wanted or len(str(entry["why"]).split()) < 3:
            raise ValueError(f"survivors.yaml: {entry}: function, why (a sentence), changes wanted")
        for one in entry["changes"]:
            before, after = _lines(one["before"]), _lines(one["after"])
            if before == after:
                raise ValueError(f"survivors.yaml: {entry['function']}: {one} changes nothing")
            out.append(Accepted(entry["function"], before, after, entry["why"]))
    twice = [key for key, n in collections.Counter(one.key for one in out).items() if n > 1]
    if twice:
        raise ValueError(f"survivors.yaml: {twice[0]} stands there twice")
    return out


def function(name: str) -> str:
    """Return module and function of a mutant by its name, with the class of a method."""
    module, _, mangled = name.partition("__mutmut_")[0].rpartition(".")
    # A method is xǁClassǁmethod, a function x_function.
    return f"{module}." + (
        mangled.removeprefix("xǁ").replace("ǁ", ".")
        if "ǁ" in mangled
        else mangled.removeprefix("x_")
    )


def change(diff: str) -> tuple[str, str]:
    """Return the lines that a diff takes out and puts in, without their indentation."""
    lines = [line for line in diff.splitlines() if line[:3] not in ("---", "+++")]
    before, after = (
        "\n".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+"
    )
    return _lines(before), _lines(after)


def _lines(text: str) -> str:
    return "\n".join(line.strip() for line in str(text).strip().splitlines())


def read(tree: Path, module: str) -> dict[str, str]:
    """Return the status of each mutant of a module by its name; empty if mutmut made none yet."""
    path = tree / "mutants" / f"{module}.meta"
    if not path.is_file():
        return {}
    codes: Mapping[str, Any] = json.loads(path.read_text())["exit_code_by_key"]
    return {name: _STATUS.get(code, KILLED) for name, code in codes.items()}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one module.

    Attributes:
        module: Its path.
        mutants: All of them; those that were killed have no diff.
        open: Survivors that are not accepted.
        accepted: How many of the survivors are.
        stale: Accepted survivors that are killed now, or gone.
        finished: Whether every mutant was run.
        todo: How many survivors are known that nobody has looked at.
    """

    module: str
    mutants: Sequence[Mutant]
    open: Sequence[Mutant]
    accepted: int
    stale: Sequence[Accepted]
    finished: bool
    todo: int = 0

    @property
    def fails(self) -> bool:
        """Whether somebody has to do something."""
        return not self.finished or bool(self.stale) or len(self.open) > self.todo

    def row(self) -> list[Any]:
        """Return a row of the table."""
        count = collections.Counter(one.status for one in self.mutants)
        return [
            self.module, len(self.mutants), count[KILLED], count[SURVIVED] + count[NO_TEST],
            self.accepted, count[NO_TEST], self.todo or "",
        ]  # fmt: skip


COLUMNS = ["module", "mutants", "killed", "survived", "accepted", "no test", "todo"]


def outcome(
    module: str, mutants: Sequence[Mutant], listed: Iterable[Accepted], todo: int = 0
) -> Outcome:
    """Hold the survivors of a module against those that are accepted."""
    dotted = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    names = {function(one.name) for one in mutants}
    mine = [
        one
        for one in listed
        if one.function in names or one.function.startswith(f"{dotted}.")
    ]  # fmt: skip
    survivors = [one for one in mutants if one.status in (SURVIVED, NO_TEST)]
    keys = {one.key for one in mine}
    finished = bool(mutants) and all(one.status != NOT_RUN for one in mutants)
    there = {one.key for one in survivors}
    left = [one for one in survivors if one.key not in keys]
    stale = [one for one in mine if finished and one.key not in there]
    return Outcome(module, mutants, left, len(survivors) - len(left), stale, finished, todo)
