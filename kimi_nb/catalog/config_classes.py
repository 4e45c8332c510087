"""The configuration classes behind the JSON flags of ``vllm serve``, and their fields by version."""

from __future__ import annotations

from typing import Any

from kimi_nb import catalog

# The class whose fields are the keys of a JSON flag; the keys of these are refused when unknown.
STRICT = {
    "compilation-config": "CompilationConfig",
    "kv-transfer-config": "KVTransferConfig",
    "eplb-config": "EPLBConfig",
    "speculative-config": "SpeculativeConfig",
}
OTHERS = {
    "attention-config": "AttentionConfig",
    "kv-events-config": "KVEventsConfig",
    "ec-transfer-config": "ECTransferConfig",
    "reasoning-config": "ReasoningConfig",
    "profiler-config": "ProfilerConfig",
    "pooler-config": "PoolerConfig",
    "kernel-config": "KernelConfig",
    "aux-output-config": "AuxOutputConfig",
    "ec-manager-config": "EncoderCacheManagerConfig",
    "engram-config": "EngramConfig",
    "fault-tolerance-config": "FaultToleranceConfig",
    "logging-config": "LoggingConfig",
    "watchdog-config": "WatchdogConfig",
    "watermark-config": "WatermarkConfig",
    "weight-transfer-config": "WeightTransferConfig",
    "structured-outputs-config": "StructuredOutputsConfig",
}
# Keys whose own value is another class.
INNER = {
    ("CompilationConfig", "pass_config"): "PassConfig",
    ("CompilationConfig", "dynamic_shapes_config"): "DynamicShapesConfig",
}
# Plain flags whose value a field of another name or class judges.
FIELDS = {
    "attention-backend": ("AttentionConfig", "backend"),
    "mamba-backend": ("MambaConfig", "backend"),
    "spec-tokens": ("SpeculativeConfig", "num_speculative_tokens"),
    "tensor-parallel-size": ("ParallelConfig", "tensor_parallel_size"),
    "video-pruning-rate": ("MultiModalConfig", "video_pruning_rate"),
}
ASCEND_INNER = {
    "ascend_compilation_config": "AscendCompilationConfig",
    "ascend_fusion_config": "AscendFusionConfig",
    "ascend_scheduler_config": "AscendSchedulerConfig",
    "eplb_config": "EplbConfig",
    "finegrained_tp_config": "FinegrainedTPConfig",
    "npugraph_ex_config": "NpugraphExConfig",
    "rejection_sampler_config": "RejectionSamplerConfig",
    "torchair_graph_config": "TorchairGraphConfig",
    "weight_prefetch_config": "WeightPrefetchConfig",
    "xlite_graph_config": "XliteGraphConfig",
}


def of_flag(flag: str) -> str | None:
    """Return the class behind a JSON flag, None if there is none that the catalog knows."""
    return STRICT.get(flag) or OTHERS.get(flag)


def refuses_unknown(name: str, row: str) -> bool:
    """Return whether a class refuses keys that it does not know, at a version (``row``)."""
    runs = catalog.tables("vllm")["configs"].get(name, {}).get("*", [])
    return name in STRICT.values() or catalog.active(runs, row) is not None


def fields(name: str, row: str) -> dict[str, Any]:
    """Return the fields of a configuration class at a vLLM version of the catalog (``row``)."""
    table = catalog.tables("vllm")["configs"].get(name, {})
    return {key: runs for key, runs in table.items() if key != "*" and catalog.active(runs, row)}
