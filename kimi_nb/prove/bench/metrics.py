"""What the engines say of themselves during a run: /metrics of every API, and the devices.

    with metrics.Sampler(urls, key) as seen:
        ...
    seen.result()        # {"running_max": 8, "kv_cache_max": 0.12, "preemptions": 0, ...}

Gauges are the largest sum over the engines (the cache: the fullest engine); counters are what was
added during the run. Where nothing answers, the reason stands in their place.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kimi_nb.prove.bench import device_use as devices
from kimi_nb.service import probe as service

EVERY = 0.5  # seconds between two looks
_SECONDS = 5.0  # for an answer
# Older versions name the cache by the device.
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
_NAMES = (*_GAUGES, *_COUNTERS)


def read(texts: Iterable[str]) -> dict[str, float]:
    """One look at the engines: a value for each name that any of them has."""
    out: dict[str, float] = defaultdict(float)
    for text in texts:
        # An engine tells hundreds of lines; a parser need not read the others.
        mine = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_NAMES))
        for family in text_string_to_metric_families(mine):
            for sample in family.samples:
                name = _GAUGES.get(sample.name) or _COUNTERS.get(sample.name)
                if name == "kv_cache":
                    out[name] = max(out[name], sample.value)
                elif name:
                    out[name] += sample.value
    return dict(out)


def summarise(looks: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The looks of a run, oldest first, as a row: gauges' mean and largest, counters' increase,
    and the shares that follow from them."""
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
    """Looks at /metrics of APIs, and at the devices, twice a second in a thread of its own."""

    def __init__(
        self, urls: Sequence[str], watch: devices.Watch | None = None, every: float = EVERY
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
        """What was seen; under ``why_not`` and ``utilisation_why_not`` the reasons for what was
        not."""
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
            # Many engines take long to ask: then less often, so that looking is no load.
            self._stop.wait(min(10.0, 2 * (time.monotonic() - begun)))

    def _look(self) -> None:
        texts = []
        for url in self._urls:
            status, text = service.metrics(url, _SECONDS)
            if status == 200:
                texts.append(text)
            elif not self._looks:
                self._why = f"{url}/metrics: " + (f"HTTP {status}" if status else "no answer")
        found = read(texts)
        if found:
            self._looks.append(found)
        if self._watch and (usage := self._watch.look()) is not None:
            self._usage.append(usage)
