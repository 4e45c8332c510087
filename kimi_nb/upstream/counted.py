"""What others publish of one deployment, read from their files: roles, shapes, flags and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Role:
    """The engines that share a command line, such as all prefill engines.

    Attributes:
        name: mixed, prefill or decode; ``worker1`` is what the second node of a group runs.
        argv: (flag, value) in the order of the command line, JSON parsed, bare flags True.
        nodes: The nodes of one group.
        tp: Tensor parallel size; ``dp``, ``pp`` likewise. They may stand in no flag of ``argv``.
        ports: First ports by kind (http, rpc, kv, side_channel, master), where they are known.
        per_rank: Whether each data parallel rank is a process of its own.
    """

    name: str
    argv: tuple[tuple[str, Any], ...]
    env: Mapping[str, str]
    nodes: int = 1
    groups: int = 1
    tp: int = 1
    dp: int = 1
    pp: int = 1
    ports: Mapping[str, int] = field(default_factory=dict)
    per_rank: bool = False


@dataclass(frozen=True)
class Deployment:
    """One published deployment.

    Attributes:
        id: A name that stays the same from commit to commit, such as
            ``recipes:Kimi-K2.7-Code:h200:pd_cluster``.
        model: The id of the checkpoint on its hub.
        version: The engine's version as published: ``>=0.19.1``, an image or a branch.
        verified: Whether the publisher says that it was run on this hardware.
    """

    id: str
    model: str
    hardware: str
    version: str
    verified: bool
    roles: tuple[Role, ...]
