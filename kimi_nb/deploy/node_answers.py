"""What nodes answer, whatever carried the question there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kimi_nb.deploy.node_call import Line

__all__ = ["Answer", "Line", "Nodes"]


@dataclass(frozen=True)
class Answer:
    """The lines of one node, or why there are none."""

    lines: tuple[Line, ...]
    error: str = ""

    def of(self, *kinds: str) -> list[Line]:
        """The lines of these kinds."""
        return [line for line in self.lines if line.kind in kinds]


class Nodes(Protocol):
    """Where a node's script can be run. ``unreachable``: why, by the name of each node that is."""

    unreachable: dict[str, str]

    def look(self, texts: Mapping[str, str]) -> dict[str, Answer]:
        """Ask nodes by name; nothing is changed there."""

    def change(self, texts: Mapping[str, str], verb: str) -> dict[str, Answer]:
        """Carry out a verb on nodes by name."""

    def close(self) -> None:
        """Let go of the nodes; what runs there goes on."""
