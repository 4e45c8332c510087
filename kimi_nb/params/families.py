"""Define the files of ``params/recipes``: deployments that others publish for several hardware.

A family is a recipe with several hardware, each with what is different there.
"""

# No postponed annotations: pydantic would compile each of them, at every start.

from collections.abc import Iterator
from typing import Any

from pydantic import Field, model_validator

from kimi_nb.params.fields import Name, Role
from kimi_nb.params.schema import Recipe, RoleChange, Settings
from kimi_nb.params.table import Table


class Variation(Table):
    """What a hardware changes in a family of recipes; whatever it does not name stays the same."""

    tried: bool = True
    engine_version: str = ""
    features: tuple[str, ...] | None = None
    settings: Settings = Settings()
    roles: dict[Role, RoleChange] = Field(default={})


class Family(Table):
    """A deployment that is published for several hardware: a recipe for each of them.

    It has the fields of a `Recipe`, with a mapping for ``hardware``. In the id of its source,
    ``{hardware}`` stands for the hardware.
    """

    hardware: dict[Name, Variation] = Field(min_length=1)
    recipe: Recipe

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, given: Any) -> Any:
        chips = given.get("hardware") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(chips, dict) or not chips:
            raise ValueError("a family has hardware: with a key for each hardware, {} at the least")
        return {"hardware": chips, "recipe": given | {"hardware": next(iter(chips))}}

    def recipes(self) -> Iterator[Recipe]:
        """Yield the recipe of each hardware."""
        base = self.recipe
        for name, own in self.hardware.items():
            deployment = base.source.deployment.replace("{hardware}", name)
            yield base.model_copy(
                update={
                    "hardware": name,
                    "tried": own.tried,
                    "engine_version": own.engine_version or base.engine_version,
                    "features": base.features if own.features is None else own.features,
                    "source": base.source.model_copy(update={"deployment": deployment}),
                    "settings": base.settings.overridden(own.settings),
                    "roles": {
                        role: spec.changed(own.roles[role]) if role in own.roles else spec
                        for role, spec in base.roles.items()
                    },
                }
            )


class Families(Table):
    """A file of ``params/recipes``: the recipes of one model that others publish and we import."""

    recipes: tuple[Family, ...]
