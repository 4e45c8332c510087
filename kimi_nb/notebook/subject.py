"""Look up everything known about a model on a hardware at a site."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kimi_nb import catalog
from kimi_nb.check import fault_facts
from kimi_nb.params import load, recipes, schema
from kimi_nb.plan import build, derivation

LARGEST, SMALLEST = "largest", "smallest"


@dataclass(frozen=True)
class Subject:
    """A model on a hardware at a site.

    ``named`` is the model that was asked for; ``site_file`` is "" for the hardware's example site.
    With ``derive`` layouts that nobody has published are derived. ``files`` are the names or paths
    that the two were read by.
    """

    named: schema.Model
    hardware: schema.Hardware
    site_file: str = ""
    derive: bool = False
    files: tuple[str, str] = ("", "")

    @classmethod
    def load(cls, model: str, hardware: str, site: str = "", derive: bool = False) -> Subject:
        """Read the parameter files; raise ParameterError where one is missing or wrong."""
        return cls(load.model(model), load.hardware(hardware), site, derive, (model, hardware))

    @functools.cached_property
    def recipes(self) -> list[schema.Recipe]:
        """The recipes of this model on this hardware, in the order of the file; derived ones last."""
        return derivation.all_of(self.named, self.hardware, derive=self.derive)

    def _find(self, layout: str | None) -> schema.Recipe:
        """Return a recipe; raise NoRecipeError with what there is, and what can be derived."""
        return derivation.find(self.named, self.hardware, layout, derive=self.derive)

    @property
    def model(self) -> schema.Model:
        """The named model, or the first one that replaces it on this hardware."""
        return recipes.served(self.named, self.hardware)

    def site(self, recipe: schema.Recipe | None = None) -> schema.Site:
        """Return the user's site, or the example site for a recipe."""
        if self.site_file:
            return load.site(self.site_file)
        return build.example_site(self.hardware, recipe)

    def engine(self, version: str = "") -> catalog.Engine:
        """Return the engine at a version, by default that of the recipes. Raises NoRecipeError."""
        default = (
            self.recipes[0].engine_version
            if self.recipes
            else self.model.container_versions.get(self.hardware.recipes_of)
        )
        if default is None:
            self._find(None)  # raises with what there is
        return catalog.engine(self.hardware.engine, version or default)

    def recipe(self, layout: str = "") -> schema.Recipe | None:
        """Return the recipe of a layout, or the largest without one.

        The result is None where the documents describe a container only. Raises NoRecipeError.
        """
        if not layout and self.recipes:
            return max(self.recipes, key=_nodes)
        if not self.recipes and self.hardware.recipes_of in self.model.container_versions:
            return None
        return self._find(layout or None)

    def weights(self, recipe: schema.Recipe | None) -> schema.Weights:
        """Return the checkpoint of a recipe, or the model's first without one."""
        served = recipes.served(self.named, self.hardware, recipe.layout if recipe else "")
        return served.weights[recipe.weights if recipe else next(iter(served.weights))]

    def layout(self, wanted: str) -> str:
        """Return the name of a layout; "" stands for the first.

        ``largest`` is the layout with the most nodes, ``smallest`` the one with the fewest devices,
        of those without a known fault, if there is one. Raises NoRecipeError where no layout is
        described.
        """
        if wanted not in (LARGEST, SMALLEST, ""):
            return wanted
        if not self.recipes:
            if wanted:
                self._find(None)  # raises with what there is
            return ""
        if wanted == "":
            return self.recipes[0].layout
        faults = self.known_faults
        sound = [recipe for recipe in self.recipes if recipe.layout not in faults] or self.recipes
        if wanted == LARGEST:
            return max(sound, key=_nodes).layout
        return min(sound, key=_devices).layout

    @functools.cached_property
    def known_faults(self) -> dict[str, str]:
        """The layouts whose default plan has a known fault that is an error, and what it says.

        A layout's default has none if any variant has none.
        """
        out: dict[str, str] = {}
        for layout in dict.fromkeys(recipe.layout for recipe in self.recipes):
            plan = build.plan(*self.files, layout, site=self.site_file, derive=self.derive)
            for fault, _ in fault_facts.of_plan(plan):
                if fault.severity == "error":
                    out.setdefault(
                        layout, f"{fault.symptom} ({fault.range}). {fault.way_out}".strip()
                    )
        return out


def _nodes(recipe: schema.Recipe) -> int:
    return sum(role.groups * role.nodes for role in recipe.roles.values())


def _devices(recipe: schema.Recipe) -> int:
    return sum(role.groups * role.dp * role.tp * role.pp for role in recipe.roles.values())
