"""One ``vllm serve`` process as the rules see it, from its command line and its variables.

server(engine, ["vllm", "serve", "m", "-tp", "8"], {}, Spot("run.sh:3")).tp       # 8
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.catalog import arguments
from kimi_nb.catalog import engine_catalog as catalog

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
    }
)
_VISIBLE = (
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where something stands: a name for people (engine, node, document), and file and line."""

    name: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """One ``vllm serve`` process.

    ``flags`` are typed by the catalog; ``rank`` is the first data parallel rank, ``ranks`` how
    many it runs, None where a shell variable hides it; ``kv_port`` the first of the ports of its
    KV cache connector; ``group`` equals that of the engines it forms one group with. ``certain``
    is False for a command in a branch, a loop or an alternative, which may not run with the
    others. ``lines`` tells the line of each word.
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

    @property
    def given(self) -> tuple[arguments.Given, ...]:
        """Its options as they were given."""
        return self.parsed.given

    @property
    def flags(self) -> Mapping[str, Any]:
        """Its flags, typed, by their long names."""
        return self.parsed.flags

    @property
    def positional(self) -> tuple[tuple[int, str], ...]:
        """Its positional words: (index, word)."""
        return self.parsed.positional

    @property
    def stray(self) -> tuple[tuple[int, str], ...]:
        """Words that belong to nothing: (index, word)."""
        return self.parsed.stray

    @property
    def shared(self) -> tuple[Any, ...]:
        """What it has in common with the other ranks of its kind."""
        return self.parsed.shared

    def env_at(self, name: str) -> Spot:
        """The spot where a variable was set."""
        return Spot(self.spot.name, self.spot.file, self.env_lines.get(name, self.spot.line))

    def at(self, index: int) -> Spot:
        """The spot of one of the words after ``vllm serve``."""
        place = self.start + index
        line = self.lines[place] if place < len(self.lines) else self.spot.line
        return Spot(self.spot.name, self.spot.file, line)

    def of(self, flag: str) -> Spot:
        """The spot of a flag; that of the server where it is not given."""
        for given in reversed(self.given):
            if given.name == flag:
                return self.at(given.index)
        return self.spot

    def number(self, flag: str) -> int | float | None:
        """A flag's number, None where it is absent or cannot be read."""
        value = self.flags.get(flag)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def table(self, flag: str) -> Mapping[str, Any]:
        """A JSON flag's object; empty where it is absent or cannot be read."""
        value = self.flags.get(flag)
        return value if isinstance(value, dict) else {}

    def text(self, flag: str) -> str | None:
        """A flag's text."""
        value = self.flags.get(flag)
        return value if isinstance(value, str) else None

    @property
    def model(self) -> str:
        """What is served: the positional, or --model; "" where neither is given."""
        return self.positional[0][1] if self.positional else self.text("model") or ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it answers to."""
        value = self.flags.get("served-model-name")
        if isinstance(value, list):
            return tuple(str(name) for name in value)
        return (self.model,) if self.model else ()

    @property
    def draft(self) -> int:
        """Tokens that a draft proposes for each step; 0 without one."""
        found = self.table("speculative-config").get("num_speculative_tokens")
        return found if isinstance(found, int) and not isinstance(found, bool) else 0

    @property
    def everywhere(self) -> bool:
        """Whether its API listens on every interface."""
        host = self.flags.get("host")
        return host is None or host in _EVERYWHERE


def server(
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
    like: Server | None = None,
) -> Server:
    """The engine that ``argv`` starts; its own words begin at ``start``. ``like`` is one that is
    likely to differ in a few values only: ranks of a group are read thousands of times."""
    parsed = arguments.parse(
        engine, argv[start:] if start else argv, like=like.parsed if like else None
    )
    flags = parsed.flags
    kv = flags.get("kv-transfer-config")
    kv = kv if isinstance(kv, dict) else {}
    dp = _whole(flags.get("data-parallel-size", 1))
    single = "data-parallel-rank" in flags
    local = flags.get("data-parallel-size-local", 1 if single or flags.get("headless") else None)
    first = flags.get("data-parallel-rank", flags.get("data-parallel-start-rank", 0))
    nodes = _whole(flags.get("nnodes", 1)) or 1
    meets = flags.get("data-parallel-address")
    if group is None and nodes > 1:
        group = ("tp", str(flags.get("master-addr")), _whole(flags.get("master-port")))
    elif group is None and dp is not None and dp > 1 and isinstance(meets, str):
        group = (meets, _whole(flags.get("data-parallel-rpc-port")), dp)
    if devices is None:
        devices = visible(env)
    rank = _whole(first)
    kv_port = _port(kv.get("kv_port"))
    tp = _whole(flags.get("tensor-parallel-size", 1))
    if kv_port is not None:
        # Upstream listens at kv_port + rank x tp.
        kv_port = None if rank is None or tp is None else kv_port + rank * tp
    side = _port(env.get("VLLM_NIXL_SIDE_CHANNEL_PORT"))
    if side is not None:
        side = None if rank is None else side + rank
    return Server(
        spot,
        node,
        address or _text(flags.get("host")),
        role or _ROLES.get(str(kv.get("kv_role")), "mixed"),
        group,
        tuple(argv),
        env,
        parsed,
        tp,
        _whole(flags.get("pipeline-parallel-size", 1)),
        dp,
        rank,
        1 if single else _whole(local) if local is not None else dp,
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


def visible(env: Mapping[str, str]) -> tuple[int, ...] | None:
    """The devices that the variables leave visible; None where nothing says it."""
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
