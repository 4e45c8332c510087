"""Look up what the published config.json of a checkpoint says (data/rehearse/checkpoints.yaml).

>>> config("Eco-Tech/Kimi-K2.5-W4A8")["architectures"]
['KimiK25ForConditionalGeneration']
>>> language("/data/models/kimi-k2.5")["n_routed_experts"]
384

Nothing here is known to the planner.
"""

from __future__ import annotations

from typing import Any

from kimi_nb.core import data_files

# The keys of config.json, and the same in the architecture of a model of ours.
NAMES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "moe_intermediate_size": "moe_intermediate_size",
    "n_routed_experts": "experts",
    "n_shared_experts": "shared_experts",
    "num_experts_per_tok": "experts_per_token",
}


def config(checkpoint: str) -> dict[str, Any] | None:
    """Return the configuration of a checkpoint, by its id or folder; None if it is not known."""
    name = checkpoint.rstrip("/").rpartition("/")[2].lower()
    for row in data_files.facts("rehearse/checkpoints")["checkpoints"]:
        if row["part"] in name and "eagle" not in name and "dflash" not in name:
            return dict(row["config"])
    return None


def language(checkpoint: str) -> dict[str, Any] | None:
    """Return the part of the configuration that describes the language model."""
    found = config(checkpoint)
    return None if found is None else dict(found.get("text_config", found))
