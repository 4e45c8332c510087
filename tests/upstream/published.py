"""The deployments of tests/upstream/golden, which were read apart from our readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from kimi_nb.params import load, schema
from kimi_nb.upstream.counted import Deployment, Role

HERE = Path(__file__).parent / "golden"


def deployments() -> dict[str, Deployment]:
    """Return every published deployment by its id."""
    out = {}
    for path in sorted(HERE.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            given = json.loads(line)
            roles = [
                Role(
                    **{
                        "env": {},
                        **one,
                        "argv": tuple((flag, value) for flag, value in one["argv"]),
                    }
                )
                for one in given.pop("roles")
            ]
            out[given["id"]] = Deployment(**given, roles=tuple(roles))
    return out


def imported() -> Iterator[tuple[str, str, schema.Recipe, str]]:
    """Yield (id, model, recipe, scenario) of every recipe and scenario that was imported."""
    for name in load.names("models"):
        for recipe in load.model(name).recipes:
            if recipe.source.deployment:
                yield recipe.source.deployment, name, recipe, "default"
            for key, row in recipe.scenarios.items():
                if row.source.deployment:
                    yield row.source.deployment, name, recipe, key
