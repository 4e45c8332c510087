"""What a rendering of a page of vllm-project/recipes is made of, and which of its layers apply.

For example::

    shape = Shape(page, rendering, profile, known)
    shape.parallelism("decode")  # dep
    [one.extra_args for one in shape.by_generation()]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kimi_nb.upstream.recipe_choices import Rendering
from kimi_nb.upstream.recipe_pages import Extra, Override, Page, Pool, Profile, Strategy, Variant

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """A rendering with what it was chosen from."""

    page: Page
    rendering: Rendering
    profile: Profile
    known: Mapping[str, Strategy]

    @property
    def variant(self) -> Variant:
        """The form of the weights."""
        return self.page.variants[self.rendering.variant]

    @property
    def strategy(self) -> Strategy:
        """The strategy of an engine."""
        name = self.rendering.serving
        return self.known.get(name, Strategy(name=name))

    @property
    def store(self) -> Strategy | None:
        """The KV store behind the engines, if there is one."""
        one = self.rendering
        return self.known[one.strategy] if one.strategy != one.serving else None

    @property
    def change(self) -> Override:
        """What the page changes of the strategy."""
        return self.page.strategy_overrides.get(self.rendering.serving, Override())

    @property
    def devices(self) -> int:
        """The devices of a node."""
        return self.profile.gpu_count

    @property
    def spans(self) -> bool:
        """Whether an engine spans several nodes."""
        return self.strategy.deploy_type == "multi_node" and self.rendering.nodes > 1

    @property
    def instances(self) -> int:
        """How many engines stand in front of the KV store; 1 without one."""
        return (self.store.default_instances or 2) if self.store else 1

    def pool_nodes(self, role: str) -> int:
        """Return the nodes of a pool; 0 if both share one node."""
        pools = self.rendering.pools
        return pools[role] if pools else int(self.rendering.nodes > 1)

    def pool(self, role: str) -> tuple[Pool, Pool]:
        """Return a pool as the page changes it, and as the strategy has it."""
        return getattr(self.change, role), getattr(self.strategy, role)

    def parallelism(self, role: str) -> str:
        """Return how a pool is spread: tp, tep or dep."""
        own, usual = self.pool(role)
        return own.parallelism or usual.parallelism or "tp"

    def offered_parallelism(self, role: str) -> str:
        """Return the same, or the first that the page allows if it is not allowed."""
        wanted, allowed = self.parallelism(role), _pool_modes(self.page)
        return wanted if wanted in allowed else allowed[0]

    def generation(self, table: Mapping[str, T]) -> T | None:
        """Return the entry for the generation of the hardware, or for its brand if NVIDIA's."""
        found = table.get(self.profile.own_generation)
        if found is None and self.profile.brand == "NVIDIA":
            found = table.get("nvidia")
        return found

    def by_generation(self) -> Iterator[Extra]:
        """Yield what the generation adds; a strategy's own replaces that of page and weights."""
        own = self.generation(self.change.hardware_overrides)
        layers = (
            [own]
            if own is not None
            else [
                self.generation(self.page.hardware_overrides),
                self.generation(self.variant.hardware_overrides),
            ]
        )
        yield from (one for one in layers if one is not None)

    def by_hardware(self, role: str) -> Iterator[Extra]:
        """Yield what a strategy and its pool add on exactly this hardware."""
        tables = [self.change.hardware_overrides]
        if role:
            tables.append(self.pool(role)[0].hardware_overrides)
        yield from (
            table[self.rendering.hardware] for table in tables if self.rendering.hardware in table
        )

    def of_weights(self) -> Iterator[Extra]:
        """Yield what the weights add: everywhere, then on exactly this hardware."""
        yield self.variant
        if self.rendering.hardware in self.variant.hardware_overrides:
            yield self.variant.hardware_overrides[self.rendering.hardware]


def _pool_modes(page: Page) -> list[str]:
    """Return how pools may be spread: as the page's strategies are, unless it says less."""
    found = set()
    for name in page.strategies:
        last = name.removesuffix("_pp").removesuffix("_dp").rpartition("_")[2]
        if name != "pd_cluster" and last in ("tp", "tep", "dep"):
            found.add(last)
    modes: list[str] = [mode for mode in ("tp", "tep", "dep") if mode in found] or ["tp"]
    change = page.strategy_overrides.get("pd_cluster")
    narrowed = [mode for mode in modes if change and mode in change.pool_modes]
    return narrowed or modes
