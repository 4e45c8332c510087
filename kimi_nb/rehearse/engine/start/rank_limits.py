"""Refuse nodes and devices that vLLM refuses for the ranks of a start."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.rehearse.engine.start.argument_parser import Refusal, raised
from kimi_nb.rehearse.engine.start.config_checks import invalid
from kimi_nb.rehearse.engine.start.start_facts import Start

_NIXL_LOOKED_AT = "0.32.0"  # the version whose checks of sizes were read


def nodes(start: Start) -> Iterator[Refusal]:
    """Check the assertions of create_engine_config."""
    size, node = start.dp * start.world_size, start.whole("node-rank", 0)
    if start.nodes > 1:
        if size % start.nodes:
            yield raised(
                "AssertionError", f"world_size={size} must be divisible by nnodes={start.nodes}."
            )
        if node >= start.nodes:
            yield raised(
                "AssertionError", f"node_rank={node} must be less than nnodes={start.nodes}."
            )
        yield from _spread_evenly(start)
    elif start.on("data-parallel-external-lb") and start.given("data-parallel-rank") is None:
        yield raised(
            "AssertionError",
            "data_parallel_rank or node_rank must be specified if "
            "data_parallel_external_lb is enable.",
        )
    if start.external and start.given("data-parallel-size-local") not in (1, None):
        yield raised(
            "AssertionError",
            "data_parallel_size_local must be 1 or None when data_parallel_rank is set",
        )
    if start.on("data-parallel-hybrid-lb"):
        yield from _hybrid(start)


def _spread_evenly(start: Start) -> Iterator[Refusal]:
    """Check that ranks lie on whole nodes (ParallelConfig.nnodes_within_dp of 0.32.0)."""
    local = start.ranks[1]
    groups = start.dp // max(local, 1)
    if not start.external and groups and start.nodes % groups:
        yield invalid(
            "ParallelConfig",
            f"Invalid data parallel configuration: nnodes ({start.nodes}) must be divisible by the "
            f"number of data parallel node groups ({groups} = data_parallel_size {start.dp} / "
            f"data_parallel_size_local {local})",
        )


def _hybrid(start: Start) -> Iterator[Refusal]:
    """Check what create_engine_config checks of --data-parallel-hybrid-lb, in the words of 0.32.0."""
    if start.on("headless"):
        yield raised("AssertionError", "data_parallel_hybrid_lb is not applicable in headless mode")
    if start.nodes == 1 and start.given("data-parallel-size-local") is None:
        yield raised(
            "ValueError",
            "Invalid data-parallel launch options: `--data-parallel-hybrid-lb` requires "
            "`--data-parallel-size-local`. Set it to the number of data-parallel ranks on this node.",
        )


def transfer(start: Start) -> Iterator[Refusal]:
    """Check what VllmConfig and the NIXL connector check of the sizes (0.32.0)."""
    if catalog.earlier(start.engine.vllm, _NIXL_LOOKED_AT):
        return
    connectors = [str(one.get("kv_connector")) for one in start.server.transfers]
    dcp = start.whole("decode-context-parallel-size", 1)
    whole = max(start.tp, start.whole("prefill-context-parallel-size", 1))
    if "NixlConnector" in connectors and dcp not in (1, whole):
        yield raised(
            "AssertionError",
            f"decode_context_parallel_size={dcp} must be 1 or equal to the NIXL transfer parallel "
            f"size={whole}.",
        )
    if (
        any(name.startswith("Nixl") for name in connectors)
        and start.server.role == "decode"
        and start.whole("pipeline-parallel-size", 1) > 1
    ):
        yield raised(
            "NotImplementedError",
            "NixlPushConnector consumer (decode) does not support pipeline_parallel_size > 1.",
        )


def parallel(start: Start) -> Iterator[Refusal]:
    """Check what ParallelConfig checks."""
    (rank, local), dp, tp = start.ranks, start.dp, start.tp
    if (dp > 1 or local == 0) and not 0 <= rank < dp:
        yield invalid(
            "ParallelConfig", f"data_parallel_rank ({rank}) must be in the range [0, {dp})"
        )
    if (
        start.site.vendor == "nvidia"
        and start.nodes == 1
        and not start.spread
        and start.server.flags.get("distributed-executor-backend") is None
        and start.world_size * dp > 1
        and start.devices < start.world_size
    ):
        yield invalid(
            "ParallelConfig",
            (
                f"World size ({start.world_size}) is larger than the number of available GPUs "
                f"({start.devices}) in this node. If this is intentional and you are using:\n"
                "- ray, set '--distributed-executor-backend ray'.\n"
                "- multiprocessing, set '--nnodes' appropriately."
            ),
        )
    if local > dp:
        yield invalid(
            "ParallelConfig",
            f"data_parallel_size_local ({local}) must be <= data_parallel_size ({dp})",
        )
    if dp <= 1 and start.external:
        yield invalid(
            "ParallelConfig",
            "data_parallel_external_lb can only be set when data_parallel_size > 1",
        )
    redundant = start.server.table("eplb-config").get("num_redundant_experts", 0)
    if not start.on("enable-eplb"):
        if redundant:
            yield invalid(
                "ParallelConfig",
                f"num_redundant_experts is set to {redundant} but EPLB "
                "is not enabled. Either enable EPLB or unset num_redundant_experts.",
            )
    elif not start.on("enable-expert-parallel"):
        yield invalid("ParallelConfig", "enable_expert_parallel must be True to use EPLB.")
    elif tp * dp <= 1:
        yield invalid(
            "ParallelConfig",
            "EPLB requires tensor_parallel_size or data_parallel_size "
            f"to be greater than 1, but got TP={tp},DP={dp}.",
        )
    dcp = start.whole("decode-context-parallel-size", 1)
    if dcp == 0:
        yield raised("ZeroDivisionError", "integer modulo by zero")
    pcp = start.whole("prefill-context-parallel-size", 1)
    if dcp and pcp == 1 and tp % dcp:
        yield invalid("ParallelConfig", f"tp_size={tp} must be divisible bydcp_size={dcp}.")
    elif pcp > 1 and dcp not in (1, pcp, tp * pcp):
        yield invalid(
            "ParallelConfig",
            "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP "
            f"axis. Got TP={tp}, PCP={pcp}, DCP={dcp}; valid DCP sizes are "
            f"{sorted({1, pcp, tp * pcp})}.",
        )


def devices(start: Start) -> Iterator[Refusal]:
    """Check what the workers check when they take their devices, before anything loads.

    The texts for Ascend and for a missing device are our own: no start on an NPU was recorded.
    """
    if start.spread:
        return
    if start.site.vendor == "ascend":
        outside = [name for name in start.visible or () if not start.exists(name)]
        need = _needed(start)
        if outside or need > start.devices:
            yield raised(
                "RuntimeError",
                (
                    "Initialize: NPU function error: aclrtSetDevice, error code is 107001 [Error]: "
                    "Invalid device ID. Set device failed, invalid device, set device="
                    f"{outside[0] if outside else start.devices}, valid device range is [0, "
                    f"{start.site.devices if outside else start.devices})"
                ),
            )
    elif start.devices == 0:
        yield raised("RuntimeError", "No CUDA GPUs are available")
    elif start.nodes > 1 or start.ranks[1] == 1:
        if _needed(start) > start.devices:
            yield raised(
                "AssertionError",
                f"local_world_size ({_needed(start)}) must be less than "
                f"or equal to the number of visible devices ({start.devices}).",
            )
    elif _needed(start) > start.devices:
        yield raised("AssertionError", f"DP adjusted local rank {start.devices} is out of bounds. ")


def _needed(start: Start) -> int:
    """Return how many devices the ranks of this process take on this node."""
    if start.nodes > 1:
        return start.dp * start.world_size // start.nodes
    return start.ranks[1] * start.world_size
