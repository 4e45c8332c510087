"""The names of the faults that a rehearsal can simulate.

Apart from `faults`, which changes a simulated site: the site itself and the stand-ins ask for a
fault by its name.
"""

from __future__ import annotations

import enum


class FaultName(enum.StrEnum):
    """A fault as the user writes it, ``--fault port-taken``."""

    RANK_DIES_AT_START = "rank-dies-at-start"
    RANK_DIES_WHILE_SERVING = "rank-dies-while-serving"
    PORT_TAKEN = "port-taken"
    WRONG_RANK = "wrong-rank"
    MISSING_RANK = "missing-rank"
    DEVICE_TWICE = "device-twice"
    UNEQUAL_SETTINGS = "unequal-settings"
    KV_PORT_BLOCKED = "kv-port-blocked"
    WRONG_KV_SIZES = "wrong-kv-sizes"
    NO_KV_PARAMS = "no-kv-params"
    EMPTY_200 = "empty-200"
    ENGINE_HANGS = "engine-hangs"
    FIRST_CHAT_500 = "first-chat-500"
    GARBLED_OUTPUT = "garbled-output"
    REASONING_LEAKS = "reasoning-leaks"
    TOOL_CALL_LEAKS = "tool-call-leaks"
    SLOW_START = "slow-start"
    NODE_UNREACHABLE = "node-unreachable"
    STORE_MASTER_DIES = "store-master-dies"
    DISK_FULL = "disk-full"
    WEIGHTS_MISSING = "weights-missing"
    DRAFT_MISSING = "draft-missing"
    OUT_OF_MEMORY_AT_LOAD = "out-of-memory-at-load"
    OUT_OF_MEMORY_UNDER_LOAD = "out-of-memory-under-load"
    WRONG_IMAGE_TAG = "wrong-image-tag"
    HOST_TUNING_REFUSED = "host-tuning-refused"
    POD_EVICTED = "pod-evicted"
    IMAGE_NOT_PULLED = "image-not-pulled"
    PROBE_TOO_EARLY = "probe-too-early"
    QUOTA_EXCEEDED = "quota-exceeded"
    NODE_DRAINED = "node-drained"
    GROUP_RESTART = "group-restart"


def missing(checkpoint: str) -> str:
    """Return the name under which a site keeps that a node has lost this checkpoint."""
    return f"missing:{checkpoint}"


# What only a cluster does to pods.
ON_PODS = (
    FaultName.POD_EVICTED,
    FaultName.IMAGE_NOT_PULLED,
    FaultName.PROBE_TOO_EARLY,
    FaultName.QUOTA_EXCEEDED,
    FaultName.NODE_DRAINED,
    FaultName.GROUP_RESTART,
)
