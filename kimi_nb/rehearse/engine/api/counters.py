"""Count what a stand-in engine does, under the names of vLLM's /metrics (Prometheus text)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kimi_nb.core.marks import MARK

_TYPES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
}
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


@dataclass
class Metrics:
    """The counts of one rank."""

    running: int = 0
    waiting: int = 0
    prompt: Counter[str] = field(default_factory=Counter)
    generated: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    moved: Counter[str] = field(default_factory=Counter)

    def rows(self, connector: str) -> list[tuple[str, str, float]]:
        """Return the name, labels and value of every series."""
        out: list[tuple[str, str, float]] = [
            ("vllm:num_requests_running", "", self.running),
            ("vllm:num_requests_waiting", "", self.waiting),
            ("vllm:kv_cache_usage_perc", "", 0.0),
            ("vllm:num_preemptions_total", "", self.preemptions),
            ("vllm:prompt_tokens_total", "", sum(self.prompt.values())),
            ("vllm:generation_tokens_total", "", self.generated),
        ]
        out += [
            ("vllm:prompt_tokens_by_source_total", f'source="{source}"', self.prompt[source])
            for source in _SOURCES
        ]
        out += [
            ("vllm:request_success_total", f'finished_reason="{reason}"', self.finished[reason])
            for reason in ("stop", "length", "abort", "error")
        ]
        if "ixl" in connector:
            out += [
                ("vllm:nixl_bytes_transferred_sum", "", self.moved["bytes"]),
                ("vllm:nixl_bytes_transferred_count", "", self.moved["transfers"]),
            ]
        return out


def text(ranks: dict[int, Metrics], model: str, connector: str) -> str:
    """Return the answer to GET /metrics."""
    by_name: dict[str, list[str]] = {}
    for rank, metrics in ranks.items():
        for name, labels, value in metrics.rows(connector):
            own = f'engine="{rank}",model_name="{model}"' + (f",{labels}" if labels else "")
            by_name.setdefault(name, []).append(f"{name}{{{own}}} {float(value)}")
    lines = [f"# {MARK}: counts of a stand-in engine, no measurement of any hardware"]
    for name, rows in by_name.items():
        kind = _TYPES.get(name, "counter")
        lines += [
            f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {kind}",
            *rows,
        ]
    return "\n".join(lines) + "\n"
