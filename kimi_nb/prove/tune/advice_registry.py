"""The rules of advice by name, what they are given, and what they return.

A rule is a small pure function of `Cell` values (one for each load, with medians over repetitions)
and the `Facts` of a plan. All rules are in `advice_rules`.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """The measurements of one load.

    Throughput is in output tokens a second, times are in ms. A value is None if it was not sampled.

    Attributes:
        spread: (max - min) / median of the throughput over the repetitions.
        waiting: The most requests waiting at once.
        running: The most requests running at once.
        cache: The largest usage of the KV cache, as a fraction of 1.
        acceptance: Accepted draft tokens, as a fraction of all draft tokens.
    """

    concurrency: int
    input_len: int
    output_len: int
    throughput: float
    ttft_ms: float
    tpot_ms: float
    failed: int = 0
    spread: float = 0.0
    waiting: float | None = None
    running: float | None = None
    cache: float | None = None
    preemptions: float | None = None
    acceptance: float | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """Return the cell of a row of a benchmark's summary, or of a published table."""

        def seen(name: str) -> float | None:
            value = row.get(name)
            return None if value is None or math.isnan(value) else float(value)

        return cls(
            int(row["concurrency"]),
            int(row["input_len"]),
            int(row["output_len"]),
            float(row["output_throughput"]),
            float(row["mean_ttft_ms"]),
            float(row["mean_tpot_ms"]),
            int(row.get("failed", 0)),
            seen("output_throughput_spread") or 0.0,
            seen("seen_waiting_max"),
            seen("seen_running_max"),
            seen("seen_kv_cache_max"),
            seen("seen_preemptions"),
            seen("seen_spec_acceptance"),
        )


@dataclass(frozen=True)
class Facts:
    """What the rules need to know about a plan.

    Ranks are counted over all groups of a role.

    Attributes:
        seqs: max-num-seqs of a decode rank.
        ranks: The number of decode ranks.
        batched_tokens: max-num-batched-tokens of a prefill rank.
        prefill_ranks: The number of prefill ranks.
        drafts: Draft tokens of a decode step.
        cache_tokens: Tokens that the cache of a decode rank holds, estimated; None if not known.
        utilization: gpu-memory-utilization of a decode rank.
        decode: The prefix of the decode role's flags, such as "decode."; "" in a single-role
            layout.
        prefill: The prefix of the prefill role's flags.
    """

    seqs: int
    ranks: int
    batched_tokens: int
    prefill_ranks: int
    drafts: int = 0
    cache_tokens: int | None = None
    utilization: float | None = None
    decode: str = ""
    prefill: str = ""

    @property
    def places(self) -> int:
        """How many requests run at once: max-num-seqs on every rank."""
        return self.seqs * self.ranks


@dataclass(frozen=True)
class Advice:
    """One piece of advice.

    Attributes:
        flag: The flag to change; ``concurrency`` is a setting of the client.
        now: Its value.
        try_next: The value to try next.
        effect: What to expect of the change.
        figures: The measurements behind the advice.
    """

    rule: str
    flag: str
    now: Any
    try_next: Any
    effect: str
    figures: str

    @property
    def pair(self) -> str:
        """The change as --set takes it; "" if it is not a setting of the service."""
        return "" if self.flag == "concurrency" else f"{self.flag}={self.try_next}"


Find = Callable[[tuple[Cell, ...], Facts], Iterator[Advice]]
_RULES: dict[str, Find] = {}


def rule(name: str) -> Callable[[Find], Find]:
    """Register a function as a rule."""
    assert name not in _RULES, name

    def register(find: Find) -> Find:
        _RULES[name] = find
        return find

    return register


@functools.cache
def rules() -> Mapping[str, Find]:
    """Return all rules by name."""
    importlib.import_module("kimi_nb.prove.tune.advice_rules")
    return dict(_RULES)
