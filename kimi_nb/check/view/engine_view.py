"""One ``vllm serve`` process as the rules see it, read from its command line and its variables.

>>> from kimi_nb import catalog
>>> from kimi_nb.check.view import engine_view
>>> engine = catalog.engine("vllm", "0.19.1")
>>> engine_view.of(engine, ["vllm", "serve", "m", "-tp", "8"], {}, engine_view.Spot("run.sh:3")).tp
8
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import arguments, fill_ins
from kimi_nb.plan import ports

_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
_EVERYWHERE = ("", "0.0.0.0", "::", "[::]")
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
# What the ranks of one group have of their own.
OWN = arguments.OWN
OWN_ENV = frozenset(
    {
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "VLLM_NIXL_SIDE_CHANNEL_PORT",
        "HCCL_IF_IP",
        "VLLM_HOST_IP",
        "CUDA_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "VLLM_DP_RANK",
        "VLLM_DP_RANK_LOCAL",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "HCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "VLLM_PORT",
        "MASTER_ADDR",
        "MOONCAKE_CONFIG_PATH",
    }
)
# From here on --data-parallel-start-rank 0 counts as given: vLLM pull request 47692.
_ZERO_COUNTS = "0.28.0"
_VISIBLE = (
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)


@dataclass(frozen=True, slots=True)
class Spot:
    """A place: a name for people (engine, node or document), and the file and line."""

    name: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class EngineView:
    """One ``vllm serve`` process.

    ``rank`` is its first data parallel rank, ``ranks`` how many it runs; ``single`` is whether it
    is started for one rank (--data-parallel-rank). A number is None if a shell variable hides it.
    ``kv_port`` is the first port of its KV cache connector. ``group`` is equal for the engines that
    form one group. ``certain`` is False for a command in a branch, a loop or an alternative, which
    may not run together with the others. ``lines`` holds the line of each word of ``argv``, and
    ``start`` is the index at which the arguments of ``vllm serve`` begin. ``assumed`` is whether only
    a launch line is known of it: its place in the group, and none of its settings. ``filled`` are the
    indices of the words of ``argv`` that came out of variables.
    """

    spot: Spot
    node: str
    address: str
    role: str
    group: Any
    argv: tuple[str, ...]
    env: Mapping[str, str]
    parsed: arguments.Parsed
    tp: int | None
    pp: int | None
    dp: int | None
    rank: int | None
    ranks: int | None
    single: bool
    devices: tuple[int, ...] | None
    http_port: int | None
    kv_port: int | None
    rpc_port: int | None
    side_channel_port: int | None
    headless: bool
    certain: bool = True
    lines: tuple[int, ...] = ()
    start: int = 0
    env_lines: Mapping[str, int] = field(default_factory=dict)
    assumed: bool = False
    filled: frozenset[int] = frozenset()

    def is_filled(self, index: int) -> bool:
        """Return whether a word, counted from the first after ``vllm serve``, was a variable's."""
        return self.start + index in self.filled

    @property
    def given(self) -> tuple[arguments.Given, ...]:
        """Its options as they were given."""
        return self.parsed.given

    @property
    def flags(self) -> Mapping[str, Any]:
        """The typed values of its flags, by their long names."""
        return self.parsed.flags

    @property
    def positional(self) -> tuple[tuple[int, str], ...]:
        """Its positional words, as (index, word)."""
        return self.parsed.positional

    @property
    def stray(self) -> tuple[tuple[int, str], ...]:
        """The words that belong to no flag, as (index, word)."""
        return self.parsed.stray

    @property
    def shared(self) -> tuple[Any, ...]:
        """The settings that it has in common with the other ranks of its kind."""
        return self.parsed.shared

    def env_at(self, name: str) -> Spot:
        """Return the spot where a variable was set."""
        return Spot(self.spot.name, self.spot.file, self.env_lines.get(name, self.spot.line))

    def at(self, index: int) -> Spot:
        """Return the spot of a word, counted from the first one after ``vllm serve``."""
        place = self.start + index
        line = self.lines[place] if place < len(self.lines) else self.spot.line
        return Spot(self.spot.name, self.spot.file, line)

    def of(self, flag: str) -> Spot:
        """Return the spot of a flag, or that of the server if the flag is not given."""
        for given in reversed(self.given):
            if given.name == flag:
                return self.at(given.index)
        return self.spot

    def number(self, flag: str) -> int | float | None:
        """Return the number that a flag holds, None if it is absent or cannot be read."""
        value = self.flags.get(flag)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def table(self, flag: str) -> Mapping[str, Any]:
        """Return the object that a JSON flag holds, empty if it is absent or cannot be read."""
        value = self.flags.get(flag)
        return value if isinstance(value, dict) else {}

    def text(self, flag: str) -> str | None:
        """Return the text that a flag holds, None if it is absent or cannot be read."""
        value = self.flags.get(flag)
        return value if isinstance(value, str) else None

    def told_its_first(self, version: str) -> bool:
        """Return whether it balances over its own ranks because it is told the first of them.

        ``version`` is that of the engine. A headless follower is told it without that meaning.
        """
        first = self.number("data-parallel-start-rank")
        local = self.number("data-parallel-size-local")
        if self.headless or first is None or local in (None, self.dp):
            return False
        return first > 0 or not catalog.earlier(version, _ZERO_COUNTS)

    @property
    def pcp(self) -> int | None:
        """The prefill context parallel size; None if a shell variable hides it."""
        return _whole(self.flags.get("prefill-context-parallel-size", 1))

    @property
    def world(self) -> int | None:
        """The devices of one data parallel rank (tp x pp x pcp); None if a size is hidden."""
        return _product(self.tp, self.pp, self.pcp)

    @property
    def span(self) -> int:
        """How many nodes one rank has, as vLLM counts them (nnodes_within_dp)."""
        nodes = _nodes(self.flags)
        return max(nodes // max((self.dp or 1) // max(self.ranks or 1, 1), 1), 1)

    @property
    def part(self) -> int:
        """Which node of its rank it is; the first answers for the others."""
        return int(self.number("node-rank") or 0) % self.span

    @property
    def needs(self) -> int | None:
        """The devices that it takes on its node; None if a size is hidden."""
        if self.world is None or self.ranks is None:
            return None
        return self.ranks * self.world // self.span

    @property
    def model(self) -> str:
        """The model that is served, from the positional word or --model; "" if neither is given."""
        return self.positional[0][1] if self.positional else self.text("model") or ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it serves the model."""
        value = self.flags.get("served-model-name")
        if isinstance(value, list):
            return tuple(str(name) for name in value)
        return (self.model,) if self.model else ()

    @property
    def transfers(self) -> tuple[Mapping[str, Any], ...]:
        """The tables of its KV connectors: its own, and those inside a MultiConnector."""
        return transfers(self.flags.get("kv-transfer-config"))

    @property
    def draft(self) -> int:
        """The number of tokens that a draft proposes in each step; 0 without a draft."""
        found = self.table("speculative-config").get("num_speculative_tokens")
        # A number below 0 is no draft: the rule on values refuses it.
        return max(found, 0) if isinstance(found, int) and not isinstance(found, bool) else 0

    @property
    def everywhere(self) -> bool:
        """Whether its API listens on every interface."""
        host = self.flags.get("host")
        return host is None or host in _EVERYWHERE


def of(
    engine: catalog.Engine,
    argv: Sequence[str],
    env: Mapping[str, str],
    spot: Spot,
    node: str = "",
    start: int = 2,
    lines: tuple[int, ...] = (),
    certain: bool = True,
    group: Any = None,
    role: str = "",
    address: str = "",
    devices: Iterable[int] | None = None,
    env_lines: Mapping[str, int] | None = None,
    like: EngineView | None = None,
) -> EngineView:
    """Read the engine that ``argv`` starts; its own arguments begin at index ``start``.

    ``like`` is an engine that probably differs in a few values only. It saves time, because the
    ranks of a group are read thousands of times.
    """
    parsed = arguments.parse(
        engine, argv[start:] if start else argv, like=like.parsed if like else None
    )
    flags = parsed.flags
    kv = flags.get("kv-transfer-config")
    kv = kv if isinstance(kv, dict) else {}
    dp = _whole(flags.get("data-parallel-size", 1))
    single = "data-parallel-rank" in flags
    nodes = _nodes(flags)
    tp, pp = (_whole(flags.get(f"{kind}-parallel-size", 1)) for kind in ("tensor", "pipeline"))
    world = _product(tp, pp, _whole(flags.get("prefill-context-parallel-size", 1)))
    inferred, local = _by_node(flags, nodes, world, dp)
    if single or (flags.get("headless") and local is None):
        local = 1
    local = flags.get("data-parallel-size-local", local)
    first = flags.get("data-parallel-rank", flags.get("data-parallel-start-rank") or inferred)
    meets = flags.get("data-parallel-address")
    if group is None and nodes > 1:
        group = ("tp", str(flags.get("master-addr")), _whole(flags.get("master-port")))
    elif group is None and dp is not None and dp > 1:
        meets = meets if isinstance(meets, str) else _same(meets, spot)
        group = meets and (meets, _whole(flags.get("data-parallel-rpc-port")), dp)
    if devices is None:
        devices = visible(env)
    rank = _whole(first)
    kv_port = next((port for one in transfers(kv) if (port := _port(one.get("kv_port")))), None)
    ranks = 1 if single else _whole(local) if local is not None else dp
    if kv_port is not None:
        kv_port = None if rank is None or world is None else ports.kv(kv_port, rank, world).start
    side = _port(env.get("VLLM_NIXL_SIDE_CHANNEL_PORT"))
    if side is not None:
        side = None if rank is None else ports.side_channel(side, rank).start
    return EngineView(
        spot,
        node,
        address or _text(flags.get("host")),
        role or _ROLES.get(str(kv.get("kv_role")), "mixed"),
        group,
        tuple(argv),
        env,
        parsed,
        tp,
        pp,
        dp,
        rank,
        ranks,
        single,
        tuple(devices) if devices is not None else None,
        None
        if flags.get("headless") or ("config" in flags and "port" not in flags)
        else _whole(flags.get("port", 8000)),
        kv_port,
        _whole(flags.get("data-parallel-rpc-port")),
        side,
        flags.get("headless") is True,
        certain,
        lines,
        start,
        env_lines or {},
    )


def _nodes(flags: Mapping[str, Any]) -> int:
    """Return the value of --nnodes, at least 1; a rule on values refuses 0."""
    return max(_whole(flags.get("nnodes", 1)) or 1, 1)


def _product(*sizes: int | None) -> int | None:
    out = 1
    for size in sizes:
        if size is None:
            return None
        out *= size
    return out


def _by_node(
    flags: Mapping[str, Any], nodes: int, world: int | None, dp: int | None
) -> tuple[Any, int | None]:
    """Return (the first rank, how many) that vLLM works out from --node-rank, where it does.

    Without --nnodes the rank is 0 and the number not known from it (create_engine_config).
    """
    node = flags.get("node-rank", 0)
    if nodes == 1 or not world or not dp:
        return 0, None
    here = dp * world // nodes
    return (node * here // world if _whole(node) is not None else node), max(here // world, 1)


def _same(address: Any, spot: Spot) -> Any:
    """Return what is equal for equal fill-ins, None if nothing is known of an address.

    A placeholder of a name is one value everywhere, an unset variable in its own file only.
    """
    if not isinstance(address, arguments.Unknown):
        return None
    if re.fullmatch(rf"{fill_ins.MARK[0]}[^{fill_ins.MARK[1]}]+{fill_ins.MARK[1]}", address.text):
        return address.text
    return (spot.file, address.text) if re.fullmatch(r"\$\{?\w+\}?", address.text) else None


def transfers(kv: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the table of a KV connector, and those of the connectors inside it."""
    if not isinstance(kv, dict) or not kv:
        return ()
    extra = kv.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, dict) else None
    listed = inner if isinstance(inner, list) else ()
    return (kv, *(one for one in listed if isinstance(one, dict)))


def visible(env: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the devices that the variables make visible, None if no variable says it."""
    for name in _VISIBLE:
        parts = env.get(name, "").split(",")
        if parts != [""] and all(part.strip().isdecimal() and len(part) < 6 for part in parts):
            return tuple(int(part) for part in parts)
    return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _port(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 6:
        return int(value)
    return _whole(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
