"""Define what nodes answer, independently of how they are reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kimi_nb.deploy.node_call import Line

__all__ = ["Answer", "Line", "Nodes"]


@dataclass(frozen=True)
class Answer:
    """The lines that a node answered, or the error that explains why there are none."""

    lines: tuple[Line, ...]
    error: str = ""

    def of(self, *kinds: str) -> list[Line]:
        """Return the lines of these kinds."""
        return [line for line in self.lines if line.kind in kinds]


class Nodes(Protocol):
    """A way to run scripts on nodes; ``unreachable`` maps node names to reasons."""

    unreachable: dict[str, str]

    def look(self, texts: Mapping[str, str]) -> dict[str, Answer]:
        """Run read-only verbs; ``texts`` are the scripts by name of the node."""

    def change(self, texts: Mapping[str, str], verb: str) -> dict[str, Answer]:
        """Run a verb that changes nodes; ``texts`` are the scripts by name of the node."""

    def close(self) -> None:
        """Close the connections; what runs on the nodes continues."""
