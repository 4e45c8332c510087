"""Which flags and variables must be alike on every node of a data parallel group."""

from __future__ import annotations

import re

# Flags that mean nothing, or something of the node's own, where there is no API.
API_FLAGS = frozenset(
    {
        "served-model-name",
        "tool-call-parser",
        "reasoning-parser",
        "enable-auto-tool-choice",
        "api-key",
        "uvicorn-log-level",
        "disable-log-stats",
        "enable-log-requests",
        "disable-log-requests",
        "chat-template",
        "download-dir",
        "allowed-origins",
        "allowed-local-media-path",
        "allowed-media-domains",
        "middleware",
        "ssl-keyfile",
        "ssl-certfile",
        "root-path",
        "enable-prompt-tokens-details",
        "default-chat-template-kwargs",
    }
)


def is_shared(name: str) -> bool:
    """Return whether a variable belongs to the engine or its libraries, and not to the node."""
    if name in (
        "NCCL_IB_HCA",
        "NCCL_DEBUG",
        "VLLM_API_KEY",
        "UCX_NET_DEVICES",
        "NCCL_IB_GID_INDEX",
    ) or re.search(r"LOG|CACHE|PATH|PROFILE|_DIR|_ROOT", name):
        return False  # each node's own
    return name.startswith(
        (
            "VLLM_",
            "HCCL_",
            "NCCL_",
            "ASCEND_",
            "PYTORCH_",
            "TASK_QUEUE",
            "OMP_",
            "UCX_",
            "MOONCAKE_",
        )
    )
