"""The examples in docstrings: each is run, and gives what it says."""

from __future__ import annotations

import doctest
import functools
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "kimi_nb"
# To import them has effects: the command line runs, gevent patches the standard library.
PROGRAMS = {"kimi_nb.__main__", "kimi_nb.deploy.ssh.ssh_process"}


def modules() -> dict[str, Path]:
    """Return the path of every module by its dotted name; data/ is run elsewhere."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[1] != "data":
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@functools.cache
def run(name: str) -> doctest.TestResults:
    """Run the examples of a module, once."""
    return doctest.testmod(importlib.import_module(name))


@pytest.mark.parametrize("name", sorted(modules().keys() - PROGRAMS))
def test_the_examples_of_a_module_hold(name):
    assert run(name).failed == 0


def test_there_are_examples_and_they_run():
    # In all: a worker of pytest-xdist runs here what the others have run above.
    assert sum(run(name).attempted for name in modules().keys() - PROGRAMS) >= 100


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_have_no_examples(name):
    assert ">>>" not in modules()[name].read_text()


def test_an_example_that_does_not_hold_fails(tmp_path, monkeypatch):
    (tmp_path / "with_a_wrong_example.py").write_text('"""Add.\n\n>>> 1 + 1\n3\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert run("with_a_wrong_example") == (1, 1)
