"""What lies beside torch: buffers of collectives, of the connector, and the driver's contexts."""

from __future__ import annotations

from kimi_nb.plan.memory.shape import Shape
from kimi_nb.plan.memory.terms import GIB, MIB, Term, facts, figure

# HCCL buffer of a communicator for which vllm-ascend does not use HCCL_BUFFSIZE.
OTHER_BUFFER_MIB = 200


def buffer_bytes(shape: Shape) -> float:
    """Return the size of the HCCL buffers in bytes.

    A communicator takes twice the size of its buffer, for sending and for receiving (CANN,
    environment variable reference). vllm-ascend leaves HCCL_BUFFSIZE to the communicator that
    dispatches tokens to experts, and gives 200 MB to the others, of which those of tensor and of
    expert parallelism are counted (0.18.0 to 0.22.1, get_hccl_config_for_pg_options).

    >>> buffer_bytes(Shape(expert_parallel=True, buffer_mib=2200)) / MIB
    5200.0
    """
    dispatch = shape.buffer_mib if shape.expert_parallel else 0
    return 2 * (dispatch + 2 * OTHER_BUFFER_MIB) * MIB


def terms(shape: Shape, precision: str = "") -> list[Term]:
    """Return the terms of collectives, connector and contexts of an engine.

    The workspace of the experts' kernels comes with the first step, outside of the engine's share.
    """
    out = []
    if shape.vendor in facts()["expert_workspace"].get(precision, ()):
        out.append(
            figure("expert_workspace", precision, shape.vendor).term(
                "expert workspace", GIB, "workspace of the experts' kernels", inside=False
            )
        )
    if shape.buffer_mib and shape.devices > 1:
        size = buffer_bytes(shape)
        out.append(
            Term(
                "buffers",
                size,
                0.8 * size,
                1.15 * size,
                "2 x (HCCL_BUFFSIZE + 2 x 200 MB)",
                "CANN, environment variables; 3.15 GiB beside torch logged at 1024 MB, Mooncake "
                "issue 2827",
            )
        )
    if shape.transfer_mib:
        size = shape.transfer_mib * MIB
        out.append(
            Term("connector", size, 0, 2 * size, "ASCEND_BUFFER_POOL", "Mooncake, transfer engine")
        )
    alone = shape.devices == 1 and shape.vendor in facts()["contexts_alone"]
    contexts = figure("contexts_alone" if alone else "contexts", shape.vendor)
    return [*out, contexts.term("contexts", GIB, "driver, libraries and communicators")]


# HCCL_BUFFSIZE ------------------------------------------------------------------------------
#
# The operators that dispatch tokens to experts (MC2) write what they exchange into the buffer of
# their communicator, and refuse a step for which it is too small. `tokens` is the largest step of
# one rank.


def up(value: int, to: int) -> int:
    """Return ``value`` rounded up to a multiple of ``to``.

    >>> up(13, 8)
    16
    """
    return -(-value // to) * to


def buffer_need_a3(
    tokens: int, hidden: int, expert_ranks: int, local_experts: int, experts_per_token: int
) -> tuple[int, str]:
    """Return (MiB needed in HCCL_BUFFSIZE, the arithmetic) for dispatch and combine on Atlas A3.

    The need is ((tokens x dispatch x expert ranks x local experts) + (tokens x combine x k)) x 2,
    with dispatch = hidden x 2 B rounded to 32, + 44, rounded to 512, and combine = hidden x 2 B
    rounded to 512. That is how MoeDistributeDispatchV2 checks its window (CheckWinSize, equal in
    CANN ops-transformer 8.5.0, 9.0.0 and 9.1.0-beta.3). It counts 2 B for each element although
    dispatch may send 1 B, and the window is HCCL_BUFFSIZE, not twice that. vllm-ascend keeps
    shared experts out of the operator, which then counts none.

    A public log of that check names 294 MB (vllm-ascend issue 4051), and vllm-ascend's own tests
    of dp32 tp1 with 160 tokens set 1200 for DeepSeek-V3.1 and 1800 for Kimi-K2.5:

    >>> buffer_need_a3(64, 2048, 4, 128, 10)[0]
    294
    >>> buffer_need_a3(160, 7168, 32, 8, 8)[0], buffer_need_a3(160, 7168, 32, 12, 8)[0]
    (1196, 1776)
    """
    dispatch = up(up(hidden * 2, 32) + 44, 512)
    combine = up(hidden * 2, 512)
    received = tokens * dispatch * expert_ranks * local_experts
    need = (received + tokens * combine * experts_per_token) * 2 // MIB + 1
    return need, (
        f"({tokens} tokens x {dispatch} B x {expert_ranks} ranks x {local_experts} "
        f"experts + {tokens} x {combine} B x {experts_per_token}) x 2 = {need} MB"
    )


def buffer_need_hierarchy(
    tokens: int, hidden: int, experts: int, experts_per_token: int
) -> tuple[int, str]:
    """Return (MiB, the arithmetic) for the same on Atlas A3 with enable_mc2_hierarchy_comm.

    experts x tokens x (hidden x 2 B + 4 x (3 x (k + 7) rounded down to 8) + 64) + 404 MB
    (CheckActualWinSize of ops-transformer 9.0.0; no public log or test of it is known).

    >>> buffer_need_hierarchy(32, 7168, 384, 8)[0]
    575
    """
    row = hidden * 2 + 4 * (3 * (experts_per_token + 7) // 8 * 8) + 64
    need = experts * tokens * row // MIB + 404 + 1
    return need, f"{experts} experts x {tokens} tokens x {row} B + 404 MB = {need} MB"


def buffer_need_a2(
    tokens: int, hidden: int, experts: int, experts_per_token: int
) -> tuple[int, str]:
    """Return (MiB, the arithmetic) for dispatch and combine between nodes on Atlas A2.

    experts x tokens x (hidden x 2 B + 16 x k rounded to 8) + 104 MB (documentation of
    aclnnMoeDistributeDispatchV2, CANN 8.5.0, hierarchy; that of 9.0.0 asks for 96 MB less).

    >>> buffer_need_a2(16, 7168, 384, 8)[0]
    189
    """
    row = hidden * 2 + 16 * up(experts_per_token, 8)
    need = -(-experts * tokens * row // MIB) + 104
    return need, f"{experts} experts x {tokens} tokens x {row} B + 104 MB = {need} MB"
