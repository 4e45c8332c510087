"""Count what a stand-in engine does, under the names of vLLM's /metrics (Prometheus text).

The families with their texts and buckets are in ``data/rehearse/metrics.yaml``. Times are those of
the stand-in. Nothing is cached, drafted, preempted, estimated or put to sleep, and no queue is
limited: such families stay at their first values. `server_counters` counts what is not vLLM's own.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from kimi_nb.core import data_files
from kimi_nb.rehearse.engine.api.exposition import Family, bucket

_NO_CACHE = "None"  # the cache of a stand-in has no size, no blocks and no kind


@functools.cache
def families(version: str) -> tuple[dict[str, Any], ...]:
    """Return the families of a version of vLLM."""
    return tuple(
        one
        for one in data_files.facts("rehearse/metrics")["families"]
        if Version(str(one.get("first", "0"))) <= Version(version)
    )


@dataclass
class Times:
    """When a request came, left the queue, had its prompt computed, and ended; seconds of a clock."""

    came: float
    begun: float = 0.0
    prompted: float = 0.0
    ended: float = 0.0


@dataclass
class Metrics:
    """The counts of one rank."""

    running: int = 0
    waiting: int = 0
    prompt: Counter[str] = field(default_factory=Counter)
    generated: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    seen: dict[str, Counter[float]] = field(default_factory=dict)
    began: float = field(default_factory=time.time)

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Note a value of the histogram ``vllm:NAME``, so often, to a thousandth."""
        if times > 0:
            counts = self.seen.setdefault(f"vllm:{name}", Counter())
            counts[round(value, 3)] += times

    def request(
        self, times: Times, prompt: int, made: int, n: int, limit: int, step: float
    ) -> None:
        """Note a request that has ended: its times, its lengths and what it asked for.

        ``step`` is the time of a step; the first token comes with the first one.
        """
        steps = made // max(1, n)
        first = times.prompted + step
        decoding = max(0.0, times.ended - first)
        each = decoding / (steps - 1) if steps > 1 else 0.0
        for name, value in (
            ("request_prompt_tokens", prompt),
            ("request_generation_tokens", made),
            ("request_max_num_generation_tokens", steps),
            ("request_params_n", n),
            ("request_params_max_tokens", limit),
            ("time_to_first_token_seconds", first - times.came),
            ("e2e_request_latency_seconds", max(first, times.ended) - times.came),
            ("request_queue_time_seconds", times.begun - times.came),
            ("request_inference_time_seconds", times.ended - times.begun),
            ("request_prefill_time_seconds", first - times.begun),
            ("request_decode_time_seconds", decoding),
            ("request_time_per_output_token_seconds", each),
            ("request_num_preemptions", 0),
            ("request_prefill_kv_computed_tokens", prompt),
        ):
            self.observe(name, value)
        self.observe("inter_token_latency_seconds", each, steps - 1)
        self.observe("iteration_tokens_total", prompt)
        self.observe("iteration_tokens_total", n, steps)

    def value(self, name: str, label: str) -> float:
        """Return the value of a series that is no histogram."""
        prompts = sum(self.prompt.values())
        computed = prompts - self.prompt["external_kv_transfer"]
        outside = self.prompt["external_kv_transfer"]
        return float(
            {
                "vllm:num_requests_running": self.running,
                "vllm:num_requests_waiting": self.waiting,
                "vllm:num_requests_waiting_by_reason": self.waiting * (label == "capacity"),
                "vllm:engine_sleep_state": label == "awake",
                "vllm:prefix_cache_queries_total": computed,
                "vllm:external_prefix_cache_queries_total": outside,
                "vllm:external_prefix_cache_hits_total": outside,
                "vllm:num_preemptions_total": self.preemptions,
                "vllm:prompt_tokens_total": prompts,
                "vllm:prompt_tokens_by_source_total": self.prompt[label],
                "vllm:prompt_tokens_cached_total": outside,
                "vllm:prompt_tokens_cached_by_source_total": outside
                * (label == "external_unspecified"),
                "vllm:generation_tokens_total": self.generated,
                "vllm:request_success_total": self.finished[label],
            }.get(name, 0)
        )

    def histogram(self, name: str, edges: list[float]) -> tuple[list[int], float]:
        """Return the count of each bucket of a histogram, and the sum of its values."""
        counts, total = [0] * (len(edges) + 1), 0.0
        for value, times in self.seen.get(name, Counter()).items():
            counts[bucket(edges, value)] += times
            total += value * times
        return counts, total


@dataclass(frozen=True)
class Origin:
    """Whose metrics they are.

    Attributes:
        model: The served model name.
        version: The version of vLLM.
        context: The context length in tokens, which sets the buckets of lengths.
        connector: The KV cache connector; "" for none.
        drafts: How many tokens are drafted in a step; 0 without speculative decoding.
    """

    model: str
    version: str
    context: int
    connector: str = ""
    drafts: int = 0


def text(ranks: Mapping[int, Metrics], origin: Origin) -> list[str]:
    """Return the lines of vLLM's own families in the answer to GET /metrics."""
    lines = []
    for family in families(origin.version):
        if _has(family, origin):
            lines += _family(family, ranks, origin).lines()
    return lines


def _has(family: Mapping[str, Any], origin: Origin) -> bool:
    if family.get("connector", "") not in origin.connector:
        return False
    return bool(origin.drafts) or not family.get("drafts")


def _family(family: Mapping[str, Any], ranks: Mapping[int, Metrics], origin: Origin) -> Family:
    name, kind = family["name"], family["type"]
    created = min(metrics.began for metrics in ranks.values())
    out = Family(name, kind, family["help"], created)
    if family.get("of_server"):
        for labels in _combined(family, origin):
            out.add({"model_name": origin.model, **labels}, 0.0)
        return out
    for rank, metrics in ranks.items():
        own = {"engine": str(rank), "model_name": origin.model}
        if kind == "histogram":
            edges = _edges(family["buckets"], origin.context)
            out.histogram(own, edges, *metrics.histogram(name, edges))
        elif family.get("info"):
            out.add({"engine": str(rank), **_about(family["info"], origin.version)}, 1.0)
        else:
            for labels in _combined(family, origin):
                value = metrics.value(name, next(iter(labels.values()), ""))
                out.add({**own, **labels}, value)
    return out


def _about(info: Mapping[str, list[str]], version: str) -> dict[str, str]:
    """Return the labels that a version has, with their values."""
    return {
        label: _NO_CACHE
        for first, labels in info.items()
        if Version(str(first)) <= Version(version)
        for label in labels
    }


def _combined(family: Mapping[str, Any], origin: Origin) -> Iterator[dict[str, str]]:
    """Yield each combination of the values of a family's own labels; {} if it has none."""
    values = dict(family.get("labels", {}))
    if family.get("drafts") == "positions":
        values["position"] = [str(place) for place in range(origin.drafts)]
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _edges(given: list[float] | str, context: int) -> list[float]:
    """Return the edges of buckets; "lengths" are 1, 2, 5, 10 and so on up to the context."""
    if given != "lengths":
        return [float(edge) for edge in given]
    every = (float(digit * 10**power) for power in range(len(str(context))) for digit in (1, 2, 5))
    return [edge for edge in every if edge <= context]
