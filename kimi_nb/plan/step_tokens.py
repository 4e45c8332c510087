"""How many tokens a step must hold, as the scheduler's own configuration check counts them.

>>> from kimi_nb import catalog
>>> engine = catalog.engine("vllm-ascend", "0.20.2rc1")
>>> slots(engine, "dflash", tokens=15, sequences=8)
112
>>> needed(engine, "dflash", tokens=15, sequences=8)
240
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from kimi_nb import catalog
from kimi_nb.core import data_files
from kimi_nb.core.errors import PlanError


def slots(engine: catalog.Engine, method: Any, tokens: int, sequences: int) -> int:
    """Return how many tokens of a step a draft takes for itself: vLLM schedules that many less.

    Source: vLLM's VllmConfig._set_max_num_scheduled_tokens and
    SpeculativeConfig.max_num_new_slots_for_drafting.
    """
    for row in data_files.facts("catalog/versions")["draft_slots"]:
        if method in row["methods"] and catalog.active([row], engine.known):
            each = max(tokens - row["less"], 0)
            return each * sequences if row["each"] == "sequence" else each
    return 0


def needed(engine: catalog.Engine, method: Any, tokens: int, sequences: int) -> int:
    """Return the tokens of a step in which every sequence has its token and all its drafts."""
    return sequences * (tokens + 1) + slots(engine, method, tokens, sequences)


def check(engine: catalog.Engine, role: str, flags: Mapping[str, Any], word: str) -> None:
    """Refuse a role whose step holds no prompt, or nothing beside its drafts.

    ``flags`` are its values by dotted name, ``word`` is what its --set pairs begin with. Raises
    PlanError with a value that is enough.
    """
    step, longest = flags.get("max-num-batched-tokens"), flags.get("max-model-len")
    if not _is_count(step):
        return
    if flags.get("enable-chunked-prefill") is False and _is_count(longest) and step < longest:
        raise PlanError(
            f"{role}: without chunked prefill a step holds a whole prompt: max-num-batched-tokens "
            f"{step} is less than max-model-len {longest}, and the engine does not start. Leave "
            f"chunked prefill on, or --set {word}max-num-batched-tokens={longest}, or lower "
            "max-model-len."
        )
    method, sequences = flags.get("speculative-config.method"), flags.get("max-num-seqs")
    tokens = flags.get("speculative-config.num_speculative_tokens")
    if not _is_count(tokens) or not _is_count(sequences):
        return
    taken = slots(engine, method, tokens, sequences)
    if taken and step <= taken:
        raise PlanError(
            f"{role}: {method} takes {taken} tokens of each step for its drafts, "
            f"max-num-batched-tokens is {step}: nothing is left to schedule, and the engine does "
            f"not start. --set {word}max-num-batched-tokens="
            f"{needed(engine, method, tokens, sequences)} holds {sequences} sequences with "
            f"{tokens} drafts each; fewer drafts or a smaller max-num-seqs need less."
        )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
