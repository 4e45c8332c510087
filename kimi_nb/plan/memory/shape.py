"""The parallelism of an engine and the sizes that decide its memory.

>>> Shape(tp=8, dp=2).expert_ranks
16
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb import catalog
from kimi_nb.core import data_files, numbers
from kimi_nb.params import schema
from kimi_nb.plan.memory.terms import GIB, facts

# Methods of speculative decoding whose draft keeps a layer of cache of its own.
_LAYERED = ("eagle", "eagle3", "mtp", "deepseek_mtp")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Shape:
    """The parallelism of an engine and the sizes that decide its memory.

    ``tp``, ``dp``, ``pp``, ``pcp`` and ``dcp`` are the sizes of tensor, data, pipeline, prefill
    context and decode context parallelism. With ``expert_parallel`` each rank holds whole experts; ``spare_experts`` are
    redundant ones. ``whole_vision`` keeps the vision tower whole on every device, and without
    ``vision`` it is not loaded. ``cache_bytes`` are the bytes of a cache element, ``utilization`` is
    the share of memory that the engine may use, ``buffer_mib`` is HCCL_BUFFSIZE (0 where there is
    no HCCL), ``transfer_mib`` the pool of the connector's own buffers, ``graphs`` whether graphs
    are captured and ``graphs_inside`` whether their memory is taken before the cache is sized.
    ``draft_layers`` are layers of cache that a draft adds, ``draft_tokens`` those of a step that
    take a state of their own, ``fixed_cache`` is the cache in bytes where a setting names it, ``prefix_caching`` whether
    prompts share what they begin with, ``chunked`` whether a step may read a part of a prompt, and the
    other fields limit requests, tokens and context.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    dcp: int = 1
    expert_parallel: bool = False
    spare_experts: int = 0
    vision: bool = True
    whole_vision: bool = False
    cache_bytes: int = 2
    seqs: int = 256
    batched_tokens: int = 8192
    model_len: int | None = None
    utilization: float = 0.9
    buffer_mib: int = 0
    transfer_mib: int = 0
    graphs: bool = True
    graphs_inside: bool = False
    draft_layers: int = 0
    draft_tokens: int = 0
    prefix_caching: bool = True
    chunked: bool = True
    fixed_cache: int | None = None
    vendor: str = "nvidia"
    pcp: int = 1

    @property
    def expert_ranks(self) -> int:
        """The number of ranks that share the routed experts of a layer: dp x pcp x tp.

        With expert parallelism each holds whole experts, otherwise a slice of each (vLLM,
        FusedMoEParallelConfig).
        """
        return self.dp * self.pcp * self.tp

    @property
    def devices(self) -> int:
        """The number of devices of the engine's group."""
        return self.dp * self.pcp * self.tp * self.pp

    @classmethod
    def of(
        cls,
        server: Any,
        engine: catalog.Engine,
        vendor: str = "",
        defaults: Mapping[str, float] | None = None,
    ) -> Shape | None:
        """Return the shape of an `EngineView`; None where a size cannot be read.

        ``vendor`` is that of the devices ("": the usual one of the engine), ``defaults`` are the
        engine's values for flags that are not given.
        """
        known = defaults or {}
        if None in (server.tp, server.dp, server.pp):
            return None
        ascend = engine.package == "vllm-ascend"

        def number(flag: str, default: float) -> float:
            found = server.number(flag)
            return known.get(flag, default) if found is None else found

        table = server.table("additional-config").get("eplb_config") if ascend else None
        table = table if isinstance(table, dict) else server.table("eplb-config")
        spare = table.get("num_redundant_experts", 0)
        buffer = server.env.get("HCCL_BUFFSIZE", "200")
        kind = server.text("kv-cache-dtype") or "auto"
        length = server.number("max-model-len")
        return cls(
            tp=server.tp,
            dp=server.dp,
            pp=server.pp,
            dcp=int(number("decode-context-parallel-size", 1)),
            pcp=max(int(number("prefill-context-parallel-size", 1)), 1),
            expert_parallel=server.flags.get("enable-expert-parallel") is True,
            spare_experts=spare if isinstance(spare, int) else 0,
            vision=server.flags.get("language-model-only") is not True,
            whole_vision=server.flags.get("mm-encoder-tp-mode") == "data",
            cache_bytes=1 if kind.startswith("fp8") else 2,
            seqs=int(number("max-num-seqs", 256)),
            batched_tokens=int(number("max-num-batched-tokens", 8192)),
            model_len=int(length) if length is not None else None,
            utilization=float(number("gpu-memory-utilization", 0.9)),
            buffer_mib=(numbers.whole(buffer) or 0) if ascend else 0,
            transfer_mib=_pool(server) if ascend else 0,
            graphs=_captures(server),
            graphs_inside=_graphs_inside(engine, server.env),
            draft_layers=1
            if server.draft and server.table("speculative-config").get("method") in _LAYERED
            else 0,
            # With --use-replayssm a sequence keeps no state for each token of a draft.
            draft_tokens=0 if server.flags.get("use-replayssm") is True else server.draft,
            prefix_caching=server.flags.get("enable-prefix-caching") is not False,
            chunked=server.flags.get("enable-chunked-prefill") is not False,
            fixed_cache=_fixed(server),
            vendor=vendor or ("ascend" if ascend else "nvidia"),
        )

    def as_served(self, architecture: Mapping[str, Any]) -> Shape:
        """Return the shape with what the engine sets itself, whatever its flags say."""
        for entry in data_files.facts("catalog/versions")["whole_prompts"]:
            if self.vendor in entry["vendors"] and architecture.get(entry["has"]):
                step = max(self.model_len or 0, entry["least_step"])
                return replace(self, chunked=False, prefix_caching=False, batched_tokens=step)
        return self


def defaults(engine: catalog.Engine, hardware: schema.Hardware | None) -> dict[str, float]:
    """Return an engine's own values for flags that are not given, on a hardware."""
    out = {}
    spec = catalog.flag(engine, "gpu-memory-utilization")
    if spec and isinstance(spec.get("default"), float):
        out["gpu-memory-utilization"] = spec["default"]
    for entry in data_files.facts("catalog/versions")["defaults"]:
        if (
            hardware is not None
            and hardware.vendor in entry["vendors"]
            and hardware.devices.memory_gb >= entry["least_memory_gb"]
        ):
            out[entry["flag"]] = entry["value"]
    return out


def _captures(server: Any) -> bool:
    """Return whether an engine captures graphs."""
    mode = server.table("compilation-config").get("cudagraph_mode")
    return server.flags.get("enforce-eager") is not True and mode != "NONE"


def _graphs_inside(engine: catalog.Engine, env: Mapping[str, str]) -> bool:
    """Return whether the graphs' memory is estimated before the cache is sized."""
    if env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == "0":
        return False
    return any(
        row["package"] == engine.package
        and not catalog.earlier(engine.version, row["from"])
        and ("until" not in row or catalog.earlier(engine.version, row["until"]))
        for row in facts()["graphs_inside"]
    )


def _pool(server: Any) -> int:
    """Return the MiB of the connector's buffers: ASCEND_BUFFER_POOL is number:size in MB."""
    if not server.table("kv-transfer-config"):
        return 0
    count, _, size = server.env.get("ASCEND_BUFFER_POOL", "").partition(":")
    return (numbers.whole(count) or 0) * (numbers.whole(size) or 0)


def _fixed(server: Any) -> int | None:
    """Return the bytes of cache that a setting names, None where the engine works it out."""
    given = server.flags.get("kv-cache-memory-bytes", server.flags.get("kv-cache-memory"))
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    if isinstance(given, str) and given[-1:] in _UNITS:
        amount = numbers.whole(given[:-1])
        if amount is not None:
            return amount * _UNITS[given[-1]]
    space = numbers.whole(server.env.get("VLLM_CPU_KVCACHE_SPACE", ""))
    return space * GIB if space else None
