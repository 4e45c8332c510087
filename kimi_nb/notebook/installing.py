"""Collect the ways to install the engine on a hardware, as commands to read and to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kimi_nb import show
from kimi_nb.core import shell
from kimi_nb.notebook.subject import Subject
from kimi_nb.params.fields import Layout
from kimi_nb.plan import build, containers, router


@dataclass(frozen=True, repr=False)
class Installs(show.Shown):
    """The ways to install an engine: the commands by name of the way, the usual one first."""

    ways: Mapping[str, show.Text]
    container: show.Text

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the ways."""
        return tuple(self.ways)

    @property
    def usual(self) -> show.Text:
        """The way that the documents take."""
        return next(iter(self.ways.values()))

    @property
    def others(self) -> tuple[show.Text, ...]:
        """The other ways."""
        return tuple(self.ways.values())[1:]

    def table(self) -> show.Table:
        """Return a row for each way."""
        rows = tuple((name, len(text.text.splitlines())) for name, text in self.ways.items())
        return show.Table(f"{len(rows)} ways to install", ("way", "lines"), rows)


def installs(subject: Subject, layout: Layout, version: str = "") -> Installs:
    """Return every way to install the engine at a version, for a layout. Raises KimiErrors."""
    engine, site, hardware = subject.engine(version), subject.site(), subject.hardware
    routed = any(
        recipe.router == router.VLLM_ROUTER for recipe in subject.recipes if recipe.layout == layout
    )
    stored = any(recipe.store for recipe in subject.recipes if recipe.layout == layout)
    ways = {}
    for method in hardware.installs:
        lines = []
        for step in build.install_steps(hardware, site, engine, method, layout, routed, stored):
            where = f"  [in {step.directory}]" if step.directory else ""
            words = [*(f"{name}={value}" for name, value in step.env.items()), *step.argv]
            lines += [f"# {step.says}{where}", *shell.command(words)]
        ways[method] = show.Text(f"{hardware.engine} by {method}", "\n".join(lines))
    if hardware.container is None:
        return Installs(ways, show.Text(f"{hardware.name} has no container", ""))
    made = containers.container(hardware, site, site.nodes[0], engine, layout=layout)
    text = "\n".join(shell.command(made.argv))
    return Installs(ways, show.Text(f"Container on {made.node}", text))
