"""What a notebook imports is no work for the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from kimi_nb.core import lean_imports


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_and_is_afterwards_as_it_was(enabled, monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with lean_imports.uncollected():
            assert not gc.isenabled() and not frozen
        assert gc.isenabled() is enabled and frozen == [False]
        with pytest.raises(ImportError), lean_imports.uncollected():
            raise ImportError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_notebook_s_first_cell_leaves_its_modules_out_of_collections():
    code = (
        "import gc, kimi_nb\nkimi_nb.start\nprint(gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "True"]
