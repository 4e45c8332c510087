"""Derived plans, rehearsed: stand-ins of engines and tools take what the rules have made."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from leftovers import left

from kimi_nb.plan import build, derivation
from kimi_nb.rehearse import rehearsal
from kimi_nb.rehearse.host_programs import path_folder

CELLS = [one for one in derivation.cells() if one.word == "derived"]
# In `make test` the one with the fewest engines.
FIRST = next(one for one in CELLS if one.layout == "single")


@pytest.mark.parametrize(
    "cell",
    [pytest.param(one, marks=[] if one is FIRST else pytest.mark.long) for one in CELLS],
    ids=lambda one: f"{one.model}-{one.hardware}-{one.layout}",
)
def test_a_derived_plan_is_rehearsed(cell, tmp_path):
    plan = build.plan(cell.model, cell.hardware, cell.layout, derive=True)
    found = rehearsal.rehearse(plan, tmp_path)
    assert found.ok, found
    assert found.ready == found.engines == len(plan.engines)
    assert not left(tmp_path)


def test_nodes_of_one_folder_install_at_the_same_time(tmp_path):
    """Two nodes of a rehearsal write the same stand-in: neither stumbles over the other's."""
    path = tmp_path / "vllm-router"
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(path_folder.script, path, "exit 0") for _ in range(400)]:
            done.result()
    assert path.read_text() == "#!/bin/sh\nexit 0\n" and os.access(path, os.X_OK)
    assert list(tmp_path.iterdir()) == [path]
