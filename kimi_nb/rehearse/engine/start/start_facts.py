"""Derive the numbers of one start of a stand-in engine from its command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kimi_nb import catalog
from kimi_nb.check.view import engine_view
from kimi_nb.rehearse.host_programs.docker_run import visible_here
from kimi_nb.rehearse.simulated_site import SimulatedSite


@dataclass(frozen=True)
class Start:
    """One start: the parsed command line, its environment, and the simulated site."""

    engine: catalog.Engine
    server: engine_view.EngineView
    env: Mapping[str, str]
    site: SimulatedSite

    def given(self, flag: str) -> int | float | None:
        """Return the number given for a flag, or None."""
        return self.server.number(flag)

    def whole(self, flag: str, default: int) -> int:
        """Return the number given for a flag as an integer, or the default."""
        found = self.server.number(flag)
        return default if found is None else int(found)

    def on(self, flag: str) -> bool:
        """Return whether a switch is on."""
        return self.server.flags.get(flag) is True

    @property
    def tp(self) -> int:
        """The tensor parallel size."""
        return self.whole("tensor-parallel-size", 1)

    @property
    def dp(self) -> int:
        """The data parallel size, over all nodes."""
        return self.whole("data-parallel-size", 1)

    @property
    def nodes(self) -> int:
        """The number of nodes that one start spans."""
        return self.whole("nnodes", 1)

    @property
    def world_size(self) -> int:
        """The number of devices of one data parallel rank."""
        return (
            self.tp
            * self.whole("pipeline-parallel-size", 1)
            * self.whole("prefill-context-parallel-size", 1)
        )

    @property
    def external(self) -> bool:
        """Whether an external load balancer distributes requests over the ranks."""
        return self.on("data-parallel-external-lb") or self.given("data-parallel-rank") is not None

    @property
    def ranks(self) -> tuple[int, int]:
        """The first data parallel rank and the number of ranks here, as in create_engine_config."""
        local, rank = self.given("data-parallel-size-local"), self.given("data-parallel-rank")
        inferred = 0
        if self.nodes > 1:
            here = self.dp * self.world_size // self.nodes
            inferred = self.whole("node-rank", 0) * here // max(1, self.world_size)
            local = max(here // max(1, self.world_size), 1) if local is None else local
        if self.external:
            return int(inferred if rank is None else rank), 1
        if local is not None:
            return self.whole("data-parallel-start-rank", 0) or inferred, int(local)
        return 0, self.dp

    @property
    def spread(self) -> bool:
        """Whether Ray places the ranks, possibly on other nodes."""
        return "ray" in (
            self.server.flags.get("distributed-executor-backend"),
            self.server.flags.get("data-parallel-backend"),
        )

    @property
    def devices(self) -> int:
        """How many accelerators the process sees; CUDA stops at the first that does not exist."""
        names = self.visible
        if names is None:
            return len(self.there)
        outside = [at for at, name in enumerate(names) if not self.exists(name)]
        return outside[0] if outside else len(names)

    @property
    def visible(self) -> list[str] | None:
        """The devices that the variable makes visible; None if it is not set."""
        text = self.env.get(self.site.visible)
        return None if text is None else [name.strip() for name in text.split(",") if name.strip()]

    def exists(self, device: str) -> bool:
        """Return whether the node has the device."""
        # Names that are not numbers (GPU-8a3f...) are accepted.
        return not device.removeprefix("-").isdecimal() or int(device) in self.there

    @property
    def there(self) -> Sequence[int]:
        """The numbers of the devices here: those of the node, or those that its container sees."""
        return visible_here(self.env, self.site)
