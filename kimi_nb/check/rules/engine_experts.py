"""Rules on how experts are spread over the ranks of expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kimi_nb import catalog
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView

# From here on vllm-ascend makes room for experts // ranks on every rank (fused_moe.py).
_EQUAL_ROOM = ">=0.16.0"
# Their kernels assert num_experts % num_ranks == 0 (DeepEP, csrc/deep_ep.cpp).
_DEEPEP = ("deepep_high_throughput", "deepep_low_latency")


@dataclass(frozen=True)
class _Spread:
    """Experts over ranks: ``spare`` redundant copies, if a balancer moves experts."""

    experts: int
    ranks: int
    balanced: bool
    spare: int

    @property
    def even(self) -> bool:
        """Whether each rank holds as many."""
        return (self.experts + self.spare) % self.ranks == 0

    @property
    def least(self) -> int:
        """How many each rank holds at least."""
        return (self.experts + self.spare) // self.ranks

    @property
    def fuller(self) -> int:
        """How many ranks hold one more."""
        return (self.experts + self.spare) % self.ranks


@rule(
    "engine/experts-even",
    ERROR,
    "Each rank of expert parallelism holds as many experts.",
    "Choose a dp x tp that divides the experts, or balance them with as many redundant experts as "
    "make up the difference.",
    "vllm-ascend fused_moe.py at 0.16.0rc1 to 0.25.1rc1, read, and pull request 16384; CANN "
    "MoeDistributeDispatch: moeExpertNum % (epWorldSize - sharedExpertRankNum) = 0; vLLM "
    "determine_expert_map and EPLB; not tried on a device",
    needs=("model",),
)
def experts_divide(d: Deployment) -> Iterator[Problem]:
    """vllm-ascend gives the first ranks an expert more than they have room for, and stops while it
    loads or, from 0.24.0rc1, with 'EPLB local expert capacity mismatch'. vLLM starts, unless it
    balances experts or sends tokens by DeepEP, and each step waits for the ranks that hold more."""
    for server, _ in d.profiles():
        spread = _spread(d, server)
        if spread is None or spread.even:
            continue
        what, severity = _happens(d, server, spread)
        experts, ranks, spare = spread.experts, spread.ranks, spread.spare
        held = f"{experts} experts" + (f" and {spare} redundant ones" if spare else "")
        yield Problem(
            server.of("data-parallel-size" if server.dp != 1 else "tensor-parallel-size"),
            f"{held} over {ranks} ranks (dp {server.dp} x tp {server.tp}) are "
            f"{(experts + spare) / ranks:.3g} a rank: {what}",
            f"Choose a dp x tp that divides {experts}: {_nearest(experts, ranks)}; or balance "
            f"experts ({'eplb_config of --additional-config' if d.ascend else '--enable-eplb'}) with "
            f"{-experts % ranks} redundant ones.",
            severity,
        )


def _spread(d: Deployment, server: EngineView) -> _Spread | None:
    """Return how an engine spreads experts; None if it does not, or if a file says where they are."""
    experts = d.model.architecture.get("experts", 0) if d.model else 0
    if not server.flags.get("enable-expert-parallel") or not experts:
        return None
    if server.tp is None or server.dp is None:
        return None
    ranks = server.tp * server.dp * int(server.number("prefill-context-parallel-size") or 1)
    if ranks < 2:
        return None
    if not d.ascend:
        spare = server.table("eplb-config").get("num_redundant_experts")
        spare = server.number("num-redundant-experts") if spare is None else spare
        balanced = server.flags.get("enable-eplb") is True
    else:
        table = server.table("additional-config")
        inner = table.get("eplb_config")
        # Until 0.12.0rc1 the keys stood in additional-config itself.
        table = {**table, **inner} if isinstance(inner, dict) else table
        if table.get("expert_map_path"):
            return None
        spare = table.get("num_redundant_experts", table.get("init_redundancy_expert"))
        balanced = table.get("dynamic_eplb") is True
    whole = spare if balanced and isinstance(spare, int) else 0
    return _Spread(experts, ranks, balanced, whole)


def _happens(d: Deployment, server: EngineView, spread: _Spread) -> tuple[str, str]:
    """Return what comes of an uneven spread, and how severe it is."""
    if spread.balanced:
        return "balancing wants as many on each rank", ERROR
    many = f"{spread.fuller} ranks are assigned {spread.least + 1}"
    if d.ascend and catalog.satisfies(d.engine, _EQUAL_ROOM):
        return f"{many}, and each has room for {spread.least}", ERROR
    if d.ascend:
        return f"{many}, which the operator MoeDistributeDispatch of CANN refuses", WARNING
    backend = server.text("all2all-backend") or server.env.get("VLLM_ALL2ALL_BACKEND", "")
    if backend in _DEEPEP:
        return f"{many}, and DeepEP ({backend}) asserts equal numbers", ERROR
    rest = spread.ranks - spread.fuller
    return f"{spread.fuller} ranks hold {spread.least + 1} and {rest} hold {spread.least}", NOTE


def _nearest(experts: int, ranks: int) -> str:
    """Return the divisors of the number of experts below and above a number of ranks."""
    below = max(n for n in range(1, ranks) if experts % n == 0)
    above = next((n for n in range(ranks, experts + 1) if experts % n == 0), None)
    return f"{below} or {above}" if above else str(below)
