"""Look up what the published config.json of a checkpoint says (data/rehearse/checkpoints.yaml).

>>> config("Eco-Tech/Kimi-K2.5-W4A8")["architectures"]
['KimiK25ForConditionalGeneration']
>>> sizes("/data/models/kimi-k2.5")["experts"], sizes("moonshotai/Kimi-K3")["experts"]
(384, 896)

Nothing here is known to the planner.
"""

from __future__ import annotations

from typing import Any

from kimi_nb.core import data_files

# The keys of config.json, by model family, and the same in the architecture of a model of ours.
NAMES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "moe_intermediate_size": "moe_intermediate_size",
    "n_routed_experts": "experts",
    "num_experts": "experts",
    "n_shared_experts": "shared_experts",
    "num_shared_experts": "shared_experts",
    "num_experts_per_tok": "experts_per_token",
    "num_experts_per_token": "experts_per_token",
    "routed_expert_hidden_size": "latent_moe_size",
}
# What is in the name of a draft, and of no model.
_DRAFTS = ("eagle", "dflash", "dspark")


def config(checkpoint: str) -> dict[str, Any] | None:
    """Return the configuration of a checkpoint, by its id or folder; None if it is not known."""
    name = checkpoint.rstrip("/").rpartition("/")[2].lower()
    for row in data_files.facts("rehearse/checkpoints")["checkpoints"]:
        if row["part"] in name and not any(word in name for word in _DRAFTS):
            return dict(row["config"])
    return None


def sizes(checkpoint: str) -> dict[str, int] | None:
    """Return the sizes of a checkpoint's language model, by our own names; None if not known."""
    found = config(checkpoint)
    if found is None:
        return None
    text = found.get("text_config", found)
    return {mine: text[name] for name, mine in NAMES.items() if name in text}
