"""What the recipes project renders of a page: on which hardware, by which strategy, on how many nodes.

The rules are those of ``scripts/build-recipes-api.mjs`` and ``src/lib/command-synthesis.js`` of
vllm-project/recipes at commit 8959cf6 (2026-08-21).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kimi_nb.upstream.recipe_pages import Demand, Page, Profile, Strategy, Variant

ROLES = ("prefill", "decode")
STORE = "kv_store_lb"  # the deploy type of an engine in front of a KV store
_MOST_NODES = 16
_MOST_POOL_NODES = 4
_BLACKWELL = Demand(brand="NVIDIA", generation="blackwell")
_DEMANDS = {"nvfp4": _BLACKWELL, "fp4": _BLACKWELL}
_SECOND = ("multi_node_tp", "multi_node_dep", "multi_node_tep")

V = TypeVar("V")


@dataclass(frozen=True)
class Rendering:
    """One rendering of a page.

    Attributes:
        variant: The key of the weights.
        hardware: The key of the hardware.
        strategy: The published name: a strategy or a KV store.
        serving: The strategy by which each engine runs.
        nodes: The nodes of an engine; for pd_cluster see ``pools``.
        pools: The nodes of prefill and decode; None if they share one node.
        recommended: Whether the page shows it first for this hardware.
    """

    variant: str
    hardware: str
    strategy: str
    serving: str
    nodes: int
    pools: Mapping[str, int] | None
    recommended: bool


def by_hardware(table: Mapping[str, V], profile: Profile, name: str) -> V | None:
    """Return the entry for this hardware, its generation, its brand, or the default."""
    for key in (name, profile.own_generation, profile.brand.lower(), "default"):
        if key and key in table:
            return table[key]
    return None


def demand(variant: Variant) -> Demand | None:
    """Return the hardware that the precision of the weights needs."""
    return variant.precision_hardware or _DEMANDS.get(variant.precision)


def _meets(profile: Profile, wanted: Demand | None) -> bool:
    if wanted is None:
        return True
    return wanted.brand in ("", profile.brand) and (
        not wanted.generation or wanted.generation in profile.generations
    )


def _runs_on(page: Page, variant: Variant, profile: Profile, name: str) -> bool:
    return (
        _meets(profile, demand(variant))
        and page.meta.hardware.get(name) != "unsupported"
        and (not variant.supported_hardware or name in variant.supported_hardware)
        and (not profile.restricted or name in page.meta.hardware)
    )


def hardware(page: Page, variant: Variant, profiles: Mapping[str, Profile]) -> list[str]:
    """Return the hardware that a page is rendered for, its default first."""
    fits = [name for name, one in profiles.items() if _runs_on(page, variant, one, name)]
    first = _default(page, variant, profiles, fits)
    return [first, *(name for name in fits if name != first)]


def _default(page: Page, variant: Variant, profiles: Mapping[str, Profile], fits: list[str]) -> str:
    if page.meta.default_hardware in fits:
        return page.meta.default_hardware
    wanted = demand(variant)
    preferred = ["b200", "gb200"] if wanted and wanted.generation == "blackwell" else []
    for name in (*preferred, "h200"):
        if name in fits:
            return name
    brands = {"NVIDIA": 0, "AMD": 1}
    return min(fits, key=lambda name: (brands.get(profiles[name].brand, 9), name), default="h200")


def _fits_node(profile: Profile, variant: Variant) -> bool:
    if not variant.vram_minimum_gb or not profile.vram_gb:
        return True
    return variant.vram_minimum_gb <= profile.vram_gb


def _fitting(page: Page, profile: Profile, name: str) -> str | None:
    """Return the largest weights that fit one node of hardware that does not scale."""
    fits = [
        (key, one)
        for key, one in page.variants.items()
        if _meets(profile, demand(one))
        and (not one.supported_hardware or name in one.supported_hardware)
        and _fits_node(profile, one)
    ]
    return max(fits, key=lambda pair: pair[1].vram_minimum_gb)[0] if fits else None


def nodes_needed(page: Page, strategy: str, profile: Profile, hardware_name: str) -> int:
    """Return the nodes that reach the page's least number of devices for a strategy."""
    floor = _least_devices(page, strategy, hardware_name)
    return math.ceil(floor / (profile.gpu_count or 8)) or 1


def _least_devices(page: Page, strategy: str, hardware_name: str) -> int:
    given = page.strategy_min_gpus
    if not isinstance(given, dict):
        return given

    def of(block: object) -> int:
        if isinstance(block, int):
            return block
        for key in (strategy, f"multi_node_{strategy}", f"single_node_{strategy}"):
            if isinstance(block, dict) and isinstance(block.get(key), int):
                return int(block[key])
        return 0

    return max(of(given), of(given.get(hardware_name, 0)))


class _Choice:
    """The choices for one page, form of the weights and hardware."""

    def __init__(
        self,
        page: Page,
        variant: Variant,
        name: str,
        profile: Profile,
        known: Mapping[str, Strategy],
    ) -> None:
        self.page, self.variant, self.name, self.profile = page, variant, name, profile
        self.known = known
        stores = [key for key, one in known.items() if one.deploy_type == STORE]
        offered = dict.fromkeys([*page.strategies, *stores])
        self.compatible = [key for key in offered if self._is_possible(key)]

    def type_of(self, strategy: str) -> str:
        """Return how a strategy is deployed, "" for one that is not known."""
        return self.known[strategy].deploy_type if strategy in self.known else ""

    def _is_possible(self, strategy: str) -> bool:
        page, profile = self.page, self.profile
        if self.type_of(strategy) == STORE:
            gate = page.kv_cache_strategy_hardware.get(strategy, {}).get(self.name)
            return profile.scalable and profile.brand in ("NVIDIA", "AMD") and gate != "unsupported"
        gate = by_hardware(page.strategy_hardware.get(strategy, {}), profile, self.name)
        if gate == "unsupported" or (gate is None and strategy not in page.compatible_strategies):
            return False
        scales = self.type_of(strategy) in ("multi_node", "pd_cluster")
        reach = (_MOST_NODES if scales else 1) * (profile.gpu_count or 8)
        if reach < _least_devices(page, strategy, self.name):
            return False
        return profile.scalable or not strategy.startswith(("multi_node_", "pd_cluster"))

    def nodes_for(self, strategy: str) -> int:
        """Return the usual nodes of a strategy."""
        usual = 2 if self.type_of(strategy) == "multi_node" else 1
        return max(usual, nodes_needed(self.page, strategy, self.profile, self.name))

    def usual(self, nodes: int) -> str:
        """Return the strategy that the page recommends for a number of nodes."""
        offered, explicit = self.page.strategies, self.page.default_strategy
        if explicit in offered:
            if nodes == 1 or not explicit.startswith("single_node_"):
                return explicit
            sibling = f"multi_node_{explicit.removeprefix('single_node_')}"
            if sibling in offered:
                return sibling
        for name in (*(_SECOND if nodes > 1 else ()), "single_node_tp"):
            if name in offered:
                return name
        return offered[0] if offered else "single_node_tp"

    def recommended(self) -> tuple[str, int]:
        """Return the strategy that is shown first, and its nodes."""
        many = self.profile.scalable and any(
            name.startswith("multi_node_") for name in self.compatible
        )
        least = 2 if many and not _fits_node(self.profile, self.variant) else 1
        chosen = self.usual(least)
        if chosen not in self.compatible:
            served = [name for name in self.compatible if self.type_of(name) != STORE]
            plain = [name for name in served if name != "pd_cluster"]
            chosen = next(iter([*plain, *served]), chosen)
        return chosen, max(least, self.nodes_for(chosen))

    def pools(self) -> Mapping[str, int] | bool | None:
        """Return the nodes of each pool; None on one shared node, False if it takes too many."""
        held, wanted = self.profile.vram_gb, self.variant.vram_minimum_gb
        if (self.profile.gpu_count >= 2 and held >= 2 * wanted) or held <= 0 or wanted <= 0:
            return None
        least = math.ceil(wanted / held)
        if least > _MOST_POOL_NODES:
            return False
        return {
            role: max(
                least, nodes_needed(self.page, self._parallelism(role), self.profile, self.name)
            )
            for role in ROLES
        }

    def _parallelism(self, role: str) -> str:
        own = self.page.strategy_overrides.get("pd_cluster")
        usual = self.known.get("pd_cluster")
        return (
            (getattr(own, role).parallelism if own else "")
            or (getattr(usual, role).parallelism if usual else "")
            or "tp"
        )

    def behind_store(self) -> tuple[str, int] | None:
        """Return the strategy and the nodes of an engine in front of a KV store."""
        nodes = 1 if _fits_node(self.profile, self.variant) else 2
        serving = self._serving(nodes)
        if serving is None and nodes == 2:
            nodes = 1
            serving = self._serving(1)
        if serving is None:
            return None
        if self.type_of(serving) == "multi_node":
            needed = nodes_needed(self.page, serving, self.profile, self.name)
            nodes = max(nodes, min(needed, _MOST_NODES))
        return serving, nodes

    def _serving(self, nodes: int) -> str | None:
        for name in (self.usual(nodes), *self.page.strategies):
            kind = self.type_of(name)
            if kind not in ("", "pd_cluster", STORE) and (kind == "multi_node") == (nodes > 1):
                return name
        return None


def renderings(
    page: Page, variant_name: str, profiles: Mapping[str, Profile], known: Mapping[str, Strategy]
) -> Iterator[Rendering]:
    """Yield what the project renders of one form of a page's weights."""
    variant = page.variants.get(variant_name)
    if variant is None or "omni" in page.meta.tasks:
        return
    names = hardware(page, variant, profiles)
    for name in names:
        profile = profiles.get(name, Profile())
        key, held = variant_name, variant
        if not profile.scalable and not _fits_node(profile, variant):
            fitting = _fitting(page, profile, name)
            if fitting is None:
                if name == names[0]:
                    return  # without its default hardware a page has no rendering at all
                continue
            key, held = fitting, page.variants[fitting]
        yield from _on(_Choice(page, held, name, profile, known), key)


def _on(choice: _Choice, key: str) -> Iterator[Rendering]:
    first, nodes = choice.recommended()
    pools = choice.pools() if first == "pd_cluster" else None
    if isinstance(pools, bool):
        return
    yield Rendering(key, choice.name, first, first, nodes, pools, True)
    for strategy in choice.compatible:
        if strategy == first:
            continue
        if strategy == "pd_cluster":
            pools = choice.pools()
            if not isinstance(pools, bool):
                yield Rendering(key, choice.name, strategy, strategy, 1, pools, False)
        elif choice.type_of(strategy) == STORE:
            if behind := choice.behind_store():
                yield Rendering(key, choice.name, strategy, *behind, None, False)
        else:
            nodes = choice.nodes_for(strategy)
            yield Rendering(key, choice.name, strategy, strategy, nodes, None, False)
