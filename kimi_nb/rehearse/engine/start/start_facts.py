"""One start of a stand-in engine: its command line with the numbers that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.check.view import engine_view as servers
from kimi_nb.rehearse.simulated_site import World


@dataclass(frozen=True)
class Start:
    """One start: the command line as read, its variables, and what the rehearsal pretends."""

    engine: catalog.Engine
    server: servers.Server
    env: Mapping[str, str]
    world: World

    def given(self, flag: str) -> int | float | None:
        """The number of a flag; None where there is none."""
        return self.server.number(flag)

    def whole(self, flag: str, default: int) -> int:
        """The same as a whole number."""
        found = self.server.number(flag)
        return default if found is None else int(found)

    def on(self, flag: str) -> bool:
        """Whether a switch is on."""
        return self.server.flags.get(flag) is True

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.whole("tensor-parallel-size", 1)

    @property
    def dp(self) -> int:
        """Data parallel size, over all nodes."""
        return self.whole("data-parallel-size", 1)

    @property
    def nodes(self) -> int:
        """Nodes of one start that spans several."""
        return self.whole("nnodes", 1)

    @property
    def world_size(self) -> int:
        """Devices of one data parallel rank."""
        return (
            self.tp
            * self.whole("pipeline-parallel-size", 1)
            * self.whole("prefill-context-parallel-size", 1)
        )

    @property
    def external(self) -> bool:
        """Whether somebody outside balances over the ranks."""
        return self.on("data-parallel-external-lb") or self.given("data-parallel-rank") is not None

    @property
    def ranks(self) -> tuple[int, int]:
        """(first data parallel rank, ranks here) as create_engine_config infers them."""
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
        """Whether Ray places the ranks, perhaps on other nodes."""
        return "ray" in (
            self.server.flags.get("distributed-executor-backend"),
            self.server.flags.get("data-parallel-backend"),
        )

    @property
    def devices(self) -> int:
        """How many accelerators the process sees; CUDA stops at the first that is none."""
        names = self.visible
        if names is None:
            return self.world.devices
        outside = [at for at, name in enumerate(names) if not self.exists(name)]
        return outside[0] if outside else len(names)

    @property
    def visible(self) -> list[str] | None:
        """The devices that the variable leaves visible; None where it is not set."""
        text = self.env.get(self.world.visible)
        return None if text is None else [name.strip() for name in text.split(",") if name.strip()]

    def exists(self, device: str) -> bool:
        """Whether the node has a device of that number."""
        # Other names of devices (GPU-8a3f...) are not looked up.
        return not device.removeprefix("-").isdecimal() or 0 <= int(device) < self.world.devices
