"""The YAML of vllm-ascend's end-to-end tests: cases on one node, and services over several.

>>> Config.model_validate({"test_cases": [{"name": "a", "model": "o/m"}]}).test_cases[0].server_cmd
()

Of the keys, those that decide the commands are kept; the others are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from kimi_nb.upstream.recipe_pages import Env, Scalar, Table

Words = Annotated[tuple[Scalar, ...], Field(max_length=500)]
Index = Annotated[int, Field(ge=0, le=100_000)]


class Case(Table):
    """A case on one node; ``server_cmd_extra`` follows ``server_cmd``."""

    name: str
    model: str
    envs: Env = Field(default_factory=dict)
    server_cmd: Words = ()
    server_cmd_extra: Words = ()
    benchmarks: dict[str, Any] = Field(default_factory=dict)


class Part(Table):
    """One node of a service whose engines share out the ranks themselves."""

    envs: Env = Field(default_factory=dict)
    server_cmd: Annotated[str, Field(max_length=20_000)]


class Ranks(Table):
    """The data parallel ranks of one node, each of which is started by a command of its own."""

    node_index: Index
    port_start: Index = 0
    dp_rpc_port: Index = 0
    dp_size: Index = 1
    dp_size_local: Index = 1
    dp_rank_start: Index = 0
    tp_size: Index = 1

    def fill(self, word: Scalar) -> Scalar:
        """Return a word with the sizes of the node in it."""
        known = {
            "${DP_SIZE}": self.dp_size,
            "${DP_SIZE_LOCAL}": self.dp_size_local,
            "${DP_RPC_PORT}": self.dp_rpc_port,
            "${TP_SIZE}": self.tp_size,
        }
        return known.get(word, word) if isinstance(word, str) else word


class Template(Table):
    """The command of the ranks of one node."""

    node_index: Index
    envs: Env = Field(default_factory=dict)
    server_cmd_template: Words


class Groups(Table):
    """The nodes of each pool."""

    prefiller: Annotated[tuple[Index, ...], Field(max_length=1000)] = ()
    decoder: Annotated[tuple[Index, ...], Field(max_length=1000)] = ()


class Routing(Table):
    """How requests reach the nodes."""

    type: str = ""
    groups: Groups = Groups()

    def pool(self, node: int) -> str:
        """Return whether a node is for prefill, for decode, or "" for both."""
        if node in self.groups.prefiller:
            return "prefill"
        return "decode" if node in self.groups.decoder else ""


class Config(Table):
    """One file: ``test_cases``, or a service of several nodes in one of two forms."""

    test_name: str = ""
    model: str = ""
    num_nodes: Annotated[int, Field(ge=1, le=1000)] = 1
    npu_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    test_cases: Annotated[tuple[Case, ...], Field(max_length=500)] = ()
    deployment: Annotated[tuple[Part, ...], Field(max_length=1000)] = ()
    routing: Routing = Routing()
    config: Annotated[tuple[Ranks, ...], Field(max_length=1000)] = ()
    templates: Annotated[tuple[Template, ...], Field(max_length=1000)] = ()
    benchmarks: dict[str, Any] = Field(default_factory=dict)
