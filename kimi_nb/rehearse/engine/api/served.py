"""What a stand-in engine serves: names, context, parsers, version."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_nb.rehearse.engine.api import versions
from kimi_nb.rehearse.fault_names import FaultName


@dataclass(frozen=True, slots=True)
class Served:
    """What a server offers.

    Attributes:
        names: The served model names; answers carry the first one.
        root: The model as named on the command line.
        max_model_len: The context length, in tokens.
        reasoning_parser: The name of the parser; "" for none.
        tool_parser: The name of the parser; "" for none.
        dp_size: The number of ranks that a client can choose from.
        flaw: The fault of its words, if any.
        thinking: Whether the model thinks unless a request says otherwise.
        text_only: Whether it was started without its eyes (--language-model-only).
    """

    names: tuple[str, ...]
    root: str
    max_model_len: int
    reasoning_parser: str
    tool_parser: str
    auto_tools: bool
    multimodal: bool
    version: str
    dp_size: int = 1
    flaw: FaultName | None = None
    thinking: bool = True
    text_only: bool = False

    @property
    def changes(self) -> frozenset[str]:
        """How the API of its version differs from earlier ones."""
        return versions.changes(self.version)

    @property
    def calls_tools(self) -> bool:
        """Whether there is a tool parser; vLLM creates it only with --enable-auto-tool-choice."""
        return bool(self.auto_tools and self.tool_parser)

    @property
    def blind(self) -> str:
        """The name of a model that accepts no images, else ""."""
        return "" if self.multimodal else self.root
