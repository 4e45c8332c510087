"""Rules on the buffers of collective communication: HCCL_BUFFSIZE on Ascend."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.core import numbers
from kimi_nb.plan import memory


@rule(
    "capacity/hccl-buffer",
    ERROR,
    "HCCL_BUFFSIZE holds a full decode step.",
    "Raise HCCL_BUFFSIZE to the need, or lower the largest graph, max-num-seqs or the draft. The "
    "operator names its need (NEEDED_HCCL_BUFFSIZE) when it refuses.",
    "CANN ops-transformer 8.5.0 to 9.1.0, moe_distribute_dispatch_v2 (kimi_nb/plan/memory/buffers.py); "
    "vllm-ascend issues 2674, 4051, 5287",
    needs=("ascend", "model", "hardware"),
)
def buffer_holds_step(d: Deployment) -> Iterator[Problem]:
    """'HCCL_BUFFSIZE is too SMALL' stops the engine in its profile run, while it captures graphs,
    or at the first full batch."""
    for server, _ in d.profiles():
        shape = memory.Shape.of(server, d.engine)
        text = server.env.get("HCCL_BUFFSIZE", "200")
        size = numbers.whole(text)
        if (
            shape is None
            or size is None
            or server.role == "prefill"
            or not dispatches(d, server, shape)
        ):
            continue
        tokens, how = step_tokens(server, shape)
        need, working, severity, sure = buffer_need(d, server, shape, tokens)
        if need > size:
            said = (
                f"HCCL_BUFFSIZE is {text}"
                if "HCCL_BUFFSIZE" in server.env
                else "HCCL_BUFFSIZE is not set (200)"
            )
            yield Problem(
                server.env_at("HCCL_BUFFSIZE"),
                f"{said}, a full step needs {need} MB: {how}; {working}; {sure}",
                "",
                severity,
            )


def buffer_need(
    d: Deployment, server: EngineView, shape: memory.Shape, tokens: int
) -> tuple[int, str, str, str]:
    """Return the need in MiB, its arithmetic, the severity of a lack, and how sure the need is."""
    assert d.model is not None and d.hardware is not None
    arch = d.model.architecture
    # Latent experts are sent rows of their own width.
    hidden = arch.get("latent_moe_size", arch["hidden_size"])
    experts, chosen = arch["experts"], arch["experts_per_token"]
    experts += shape.spare_experts
    if d.hardware.dispatch == "a2":
        need, working = memory.buffer_need_a2(tokens, hidden, experts, chosen)
        return need, working, WARNING, "published (CANN's documentation), not seen in a log"
    if server.table("additional-config").get("enable_mc2_hierarchy_comm"):
        need, working = memory.buffer_need_hierarchy(tokens, hidden, experts, chosen)
        return need, working, WARNING, "derived from the operator's source, not seen in a log"
    local = -(-experts // shape.expert_ranks)
    need, working = memory.buffer_need_a3(tokens, hidden, shape.expert_ranks, local, chosen)
    sure = "derived from the operator's source, agrees with a public log and vllm-ascend's tests"
    return need, working, ERROR, sure


def dispatches(d: Deployment, server: EngineView, shape: memory.Shape) -> bool:
    """Return whether decode steps use the dispatch and combine operators (MC2).

    On Atlas A2 they need 16 ranks with 24 experts each at most; of hardware whose form of them is not
    known nothing is judged. With fused MC2 the experts run in
    an operator that has a buffer need of its own, which is not judged here (vllm-ascend 0.18.0 to
    0.25.1, select_moe_comm_method).
    """
    assert d.model is not None and d.hardware is not None
    ranks = shape.expert_ranks
    fused = server.table("additional-config").get("enable_fused_mc2", 0)
    if not d.hardware.dispatch or not shape.expert_parallel or shape.tp < 1 or ranks < 2:
        return False
    if fused not in (0, False) or server.env.get("VLLM_ASCEND_ENABLE_FUSED_MC2", "0") != "0":
        return False
    if d.hardware.dispatch == "a2":
        return ranks >= 16 and d.model.architecture["experts"] // ranks <= 24
    return True


def step_tokens(server: EngineView, shape: memory.Shape) -> tuple[int, str]:
    """Return the tokens of a decode step on one rank, and how they were computed.

    The step is the largest captured graph, or else every sequence with its draft up to 512 tokens
    (the default of vllm-ascend, which leaves out vLLM's factor 2); none is larger than
    max-num-batched-tokens. Larger steps do not use the operator. The tp ranks share the step
    (vllm-ascend 0.18.0 to 0.23.0, set_mc2_tokens_capacity).
    """
    sizes = graph_sizes(server, shape)
    if sizes:
        whole, what = max(sizes), f"largest graph {max(sizes)}"
    else:
        whole = min(shape.seqs * (server.draft + 1), 512, shape.batched_tokens)
        what = f"{shape.seqs} sequences x ({server.draft} + 1)"
        if whole < shape.seqs * (server.draft + 1):
            what += f", at most {whole}"
    return -(-whole // shape.tp), f"{what} / tp {shape.tp}"


def graph_sizes(server: EngineView, shape: memory.Shape) -> list[int]:
    """Return the sizes of graphs that an engine is told to capture; none if it is not told."""
    if server.flags.get("enforce-eager"):
        return []
    config = server.table("compilation-config")
    given = config.get("cudagraph_capture_sizes") or [config.get("max_cudagraph_capture_size")]
    if not isinstance(given, list) or not all(isinstance(size, int) for size in given):
        return []
    return [size for size in given if size <= shape.batched_tokens]
