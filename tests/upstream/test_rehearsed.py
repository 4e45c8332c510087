"""A deployment of each kind that was imported is rehearsed: ready, and an answer.

A kind is a publisher's strategy on the hardware of one vendor; the others differ from it in numbers
of devices and in settings, which test_imported compares one by one. With EVERY=1 it is each of them
(`make test-recipes`).
"""

from __future__ import annotations

import os

import pytest
from upstream import published

from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal

KINDS = {
    (
        one.partition(":")[0],
        recipe.layout,
        recipe.variant.removeprefix("nvfp4-").removeprefix("mxfp4-"),
        load.hardware(recipe.hardware).vendor,
    ): (model, recipe.hardware, recipe.layout, recipe.variant, row)
    for one, model, recipe, row in sorted(published.imported(), key=lambda found: found[0])
}


EACH = (
    sorted(
        (model, recipe.hardware, recipe.layout, recipe.variant, row)
        for _, model, recipe, row in published.imported()
    )
    if os.environ.get("EVERY")
    else [*KINDS.values()]
)


@pytest.mark.long
@pytest.mark.parametrize("names", EACH, ids="-".join)
def test_a_published_deployment_is_rehearsed(names, tmp_path):
    model, hardware, layout, variant, row = names
    plan = build.plan(model, hardware, layout, variant=variant, scenario=row)
    found = rehearsal.rehearse(plan, tmp_path)
    assert found.ok, str(found)
