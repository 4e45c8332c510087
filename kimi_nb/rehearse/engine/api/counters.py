"""Count what a stand-in engine does, under the names of vLLM's /metrics (Prometheus text).

The families with their texts and buckets are in ``data/rehearse/metrics.yaml``. Times are those of
the stand-in. Nothing is cached, preempted or put to sleep: such families stay at their first values.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from kimi_nb.core import data_files
from kimi_nb.core.marks import MARK


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

    def histogram(self, name: str, buckets: list[float], labels: str) -> list[str]:
        """Return the rows of a histogram."""
        counts, total = [0] * (len(buckets) + 1), 0.0
        for value, times in self.seen.get(name, Counter()).items():
            counts[bisect_left(buckets, value)] += times
            total += value * times
        out, sofar = [], 0
        for edge, count in zip((*map(str, buckets), "+Inf"), counts, strict=True):
            sofar += count
            out.append(f'{name}_bucket{{{labels},le="{edge}"}} {float(sofar)}')
        return [
            *out,
            f"{name}_count{{{labels}}} {float(sofar)}",
            f"{name}_sum{{{labels}}} {total}",
        ]


def text(ranks: dict[int, Metrics], model: str, connector: str, version: str) -> str:
    """Return the answer to GET /metrics."""
    lines = [f"# {MARK}: counts of a stand-in engine, no measurement of any hardware"]
    for family in families(version):
        if family.get("connector", "") not in connector:
            continue
        name, kind = family["name"], family["type"]
        lines += [f"# HELP {name} {family['help']}", f"# TYPE {name} {kind}"]
        for rank, metrics in ranks.items():
            own = f'engine="{rank}",model_name="{model}"'
            if kind == "histogram":
                lines += metrics.histogram(name, [float(one) for one in family["buckets"]], own)
                continue
            key, labels = next(iter(family.get("labels", {}).items()), ("", [""]))
            for label in labels:
                more = f',{key}="{label}"' if key else ""
                lines.append(f"{name}{{{own}{more}}} {metrics.value(name, label)}")
    return "\n".join(lines) + "\n"
