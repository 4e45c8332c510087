"""Refuse an HCCL_BUFFSIZE into which the tokens of a step do not fit, as the operator does on Atlas A3.

The arithmetic is that which the operator prints when it refuses (vllm-ascend issue 4051), and its
sizes are those of data/rehearse/checkpoints.yaml: nothing is shared with the planner.

>>> needed(64, 2048, 4, 128, 10)
(4608, 4096, 294)

Not judged, as their needs are not known from a log: Atlas A2, hierarchical communication, and the
fused operator.
"""

from __future__ import annotations

import os

from kimi_nb.rehearse import checkpoint_facts
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.stand_in_call import Call

_DEFAULT = 200  # MB, of HCCL
_MB = 1 << 20


def needed(
    tokens: int, hidden: int, ranks: int, local_experts: int, chosen: int
) -> tuple[int, int, int]:
    """Return the bytes of a token to dispatch and to combine, and the MB of the whole buffer.

    ``tokens`` are those of a step on one rank, ``local_experts`` those of each of the ``ranks``,
    ``chosen`` the experts of a token.
    """
    combine = -(-2 * hidden // 512) * 512
    # 44 bytes of scales and places stand behind each token.
    dispatch = -(-(-(-2 * hidden // 32) * 32 + 44) // 512) * 512
    whole = 2 * (tokens * dispatch * ranks * local_experts + tokens * combine * chosen)
    return dispatch, combine, whole // _MB + 1


def short(call: Call, mine: Settings) -> str:
    """Return what the operator says of a buffer that is too small; "" if it is not."""
    config = checkpoint_facts.sizes(mine.model)
    ranks = mine.tp * mine.dp
    if (
        call.site.dispatch != "a3"
        or config is None
        or not mine.expert_parallel
        or ranks < 2
        or mine.other_dispatch
        # Prefill steps are larger than those that use the operator.
        or (mine.transfer is not None and mine.transfer.role == "kv_producer")
    ):
        return ""
    told = call.env.get("HCCL_BUFFSIZE", "")
    there = int(told) if told.isdecimal() else _DEFAULT
    tokens = -(-mine.largest_step // mine.tp)
    hidden, chosen = (
        config.get("latent_moe_size", config["hidden_size"]),
        config["experts_per_token"],
    )
    local = -(-(config["experts"] + mine.spare_experts) // ranks)
    dispatch, combine, need = needed(tokens, hidden, ranks, local, chosen)
    if need <= there:
        return ""
    return (
        f"EZ9999[PID: {os.getpid()}] (EZ9999):  HCCL_BUFFSIZE is too SMALL, maxBs = {tokens}, h = "
        f"{hidden}, epWorldSize = {ranks}, localMoeExpertNum = {local}, sharedExpertNum = 0, "
        f"tokenNeedSizeDispatch = {dispatch}, tokenNeedSizeCombine = {combine}, k = {chosen}, "
        "NEEDED_HCCL_BUFFSIZE(((maxBs * tokenNeedSizeDispatch * ep_worldsize * localMoeExpertNum) + "
        "(maxBs * tokenNeedSizeCombine * (k + sharedExpertNum))) * 2) = "
        f"{need}MB, HCCL_BUFFSIZE={there}MB."
    )
