"""What engines and devices report during a run: /metrics of every API, and the utilisation.

Usage::

    with metrics.Sampler(urls, device_use.watch(plan, mark)) as seen:
        ...
    seen.result()  # {"running_max": 8, "kv_cache_max": 0.12, "preemptions": 0, ...}

A gauge is summed over the engines at each look, except the cache usage, which is that of the
fullest engine; the result has its mean and maximum. A counter is its increase during the run. If
nothing answers, the reason is given instead.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from kimi_nb.prove.bench import device_use
from kimi_nb.service import probe

EVERY = 0.5  # seconds between two samples
_SECONDS = 5.0  # seconds to wait for an answer
# Older versions of vLLM name the cache after the device.
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache",
    "vllm:gpu_cache_usage_perc": "kv_cache",
}
_COUNTERS = {
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
}
FAMILIES = (*_GAUGES, *_COUNTERS)  # those that are read


def read(texts: Iterable[str]) -> dict[str, float]:
    """Return the values of one look at all engines, for each name that any of them reports.

    Raises ValueError if a text is not in the format.

    >>> read(["vllm:num_requests_running 3.0", "vllm:num_requests_running 5.0"])
    {'running': 8.0}
    """
    out: dict[str, float] = defaultdict(float)
    for text in texts:
        # An engine reports hundreds of lines; parse only those of interest.
        mine = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(FAMILIES))
        for family in _families(mine):
            for sample in family.samples:
                name = _GAUGES.get(sample.name) or _COUNTERS.get(sample.name)
                if name == "kv_cache":
                    out[name] = max(out[name], _number(sample.value))
                elif name:
                    out[name] += _number(sample.value)
    return dict(out)


def _number(value: float) -> float:
    """Return a value as a float. Raises ValueError for a whole number that none can hold."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number of hundreds of digits") from None


def _families(text: str) -> Iterable[Metric]:
    """Parse the answer of an engine. Raises ValueError, also where the parser loses its way."""
    try:
        yield from text_string_to_metric_families(text)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__} of the parser") from error


def summarise(looks: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Summarise the looks of a run, oldest first, in one row.

    The row has the mean and the maximum of gauges, the increase of counters, and the rates that
    follow from them.

    >>> summarise([{"running": 2.0, "preemptions": 1.0}, {"running": 4.0, "preemptions": 3.0}])
    {'running_max': 4.0, 'running_mean': 3.0, 'preemptions': 2.0}
    """
    out: dict[str, Any] = {}
    for name in dict.fromkeys(_GAUGES.values()):
        values = [look[name] for look in looks if name in look]
        if values:
            out[f"{name}_max"] = max(values)
            out[f"{name}_mean"] = sum(values) / len(values)
    added = {
        name: looks[-1][name] - looks[0].get(name, 0.0)
        for name in _COUNTERS.values()
        if looks and name in looks[-1]
    }
    out |= {
        name: added[name]
        for name in ("preemptions", "prompt_tokens", "generation_tokens")
        if name in added
    }
    for share, part, whole in (
        ("prefix_hit_rate", "prefix_hits", "prefix_queries"),
        ("spec_acceptance", "accepted_tokens", "draft_tokens"),
    ):
        if added.get(whole):
            out[share] = added.get(part, 0.0) / added[whole]
    return out


class Sampler:
    """Samples /metrics of the APIs and the devices twice a second, in its own thread."""

    def __init__(
        self, urls: Sequence[str], watch: device_use.Watch | None = None, every: float = EVERY
    ) -> None:
        self._urls, self._watch, self._every = tuple(dict.fromkeys(urls)), watch, every
        self._looks: list[dict[str, float]] = []
        self._usage: list[float] = []
        self._why = "" if self._urls else "no engine's address is known"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Sampler:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(2 * _SECONDS)
        self._look()

    def result(self) -> dict[str, Any]:
        """Return what was sampled.

        The reasons for missing values are under ``why_not`` and ``utilisation_why_not``.
        """
        out: dict[str, Any] = {"looks": len(self._looks), **summarise(self._looks)}
        if not self._looks:
            out["why_not"] = self._why
        if self._usage:
            out |= {
                "utilisation_mean": sum(self._usage) / len(self._usage),
                "utilisation_max": max(self._usage),
                "utilisation_of": self._watch.what if self._watch else "",
            }
        else:
            out["utilisation_why_not"] = self._watch.why if self._watch else "nobody looked"
        return out

    def _work(self) -> None:
        while not self._stop.wait(self._every):
            begun = time.monotonic()
            self._look()
            # Asking many engines takes long; sample less often then, so that sampling is no load.
            self._stop.wait(min(10.0, 2 * (time.monotonic() - begun)))

    def _look(self) -> None:
        texts = []
        for url in self._urls:
            reply = probe.metrics(url, _SECONDS)
            if reply.good:
                texts.append(reply.text)
            elif not self._looks:
                self._why = f"{url}/metrics: {reply.error or f'HTTP {reply.status}'}"
        try:
            found = read(texts)
        except ValueError as error:
            found, self._why = {}, f"/metrics: not readable: {str(error)[:100]}"
        if found:
            self._looks.append(found)
        if self._watch and (usage := self._watch.look()) is not None:
            self._usage.append(usage)
