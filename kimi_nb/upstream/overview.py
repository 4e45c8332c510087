"""Read several checkouts, and show what was found as a table.

For example::

    print(read([Path("recipes")], "k2.6"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb import show
from kimi_nb.core.errors import ParameterError
from kimi_nb.upstream import vllm_ascend, vllm_recipes
from kimi_nb.upstream.checkout import RECIPES, Checkout, open_checkout
from kimi_nb.upstream.published import Deployment

_MOST_SHOWN = 20


@dataclass(frozen=True)
class Found(show.Shown):
    """The deployments of some checkouts; ``model`` is the word that their names have."""

    checkouts: tuple[Checkout, ...]
    deployments: tuple[Deployment, ...]
    model: str

    @property
    def unread(self) -> list[str]:
        """A sentence for each file that was left out."""
        return [f"{one.root}/{said}" for one in self.checkouts for said in one.unread]

    def table(self) -> show.Table:
        """Count the deployments by model, hardware and where they stand."""
        groups: dict[tuple[str, str, str, str], list[Deployment]] = {}
        for one in self.deployments:
            kind = one.id.partition(":")[0]
            groups.setdefault((one.model, one.hardware, kind, one.status), []).append(one)
        rows = [
            (*key, len(group), ", ".join(dict.fromkeys(one.strategy for one in group)))
            for key, group in sorted(groups.items())
        ]
        headings = ("model", "hardware", "from", "status", "deployments", "strategies")
        return show.Table("", headings, tuple(rows))

    def notes(self) -> list[str]:
        """Say what was read, from which commit, and what was left out."""
        out = [f"{one.root}: {one.repo}, commit {one.commit}." for one in self.checkouts]
        many = len(self.unread) - _MOST_SHOWN
        rest = [f"... and {many} more; --json lists all."] if many > 0 else []
        left = [f"left out: {said}" for said in self.unread[:_MOST_SHOWN]]
        return [*out, f"{len(self.deployments)} deployments.", *left, *rest]

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as JSON knows it."""
        return {
            "checkouts": [
                {"folder": str(one.root), "repo": one.repo, "commit": one.commit}
                for one in self.checkouts
            ],
            "deployments": [one.as_dict() for one in self.deployments],
            "unread": self.unread,
        }


def read(folders: Sequence[Path], model: str = "") -> Found:
    """Return the deployments in some checkouts whose names have ``model`` in them, in any case.

    Raises ParameterError for a folder that is no checkout, and if nothing is found.
    """
    checkouts = tuple(map(open_checkout, folders))
    found: list[Deployment] = []
    for one in checkouts:
        reader = vllm_recipes if one.repo == RECIPES else vllm_ascend
        found += reader.read(one, model)
    if not found:
        said = " ".join(line for one in checkouts for line in one.unread[:3])
        raise ParameterError(
            f"No deployment of a model with {model!r} in its name in "
            f"{', '.join(str(one.root) for one in checkouts)}. --model takes a part of the name on "
            f"the hub, such as k2.6; --model '' takes every model.{f' Left out: {said}' if said else ''}"
        )
    return Found(checkouts, tuple(found), model)
