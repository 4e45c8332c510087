"""Hold what a notebook has chosen to serve; `Run.choose` makes it and other calls take it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from kimi_nb import show
from kimi_nb.notebook import inputs
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

_LISTS = ("features", "without", "overrides", "errata")
_CHOSEN = ("scenario", "variant", "engine_version", "derive", *_LISTS)


@dataclass(frozen=True, repr=False)
class Choice(show.Shown):
    """A deployment in the terms of the parameters cell; "" stands for a field's default.

    ``features`` and ``without`` are names separated by commas, ``overrides`` are key=value pairs
    separated by semicolons. ``errata`` are ID=on or ID=off, separated by commas. ``derive`` is yes or
    "": whether what nobody has published is derived.
    """

    model: str
    hw: str
    layout: str = ""
    scenario: str = ""
    variant: str = ""
    site: str = ""
    engine_version: str = ""
    features: str = ""
    without: str = ""
    overrides: str = ""
    errata: str = ""
    derive: str = ""

    def plan(self) -> Plan:
        """Return the plan of this choice. Raises KimiErrors."""
        return build.plan(
            self.model,
            self.hw,
            self.layout or None,
            scenario=self.scenario,
            variant=self.variant,
            site=self.site,
            chosen=inputs.words(self.features),
            dropped=inputs.words(self.without),
            pairs=inputs.words(self.overrides, ";"),
            engine_version=self.engine_version,
            erratum=inputs.words(self.errata),
            derive=bool(self.derive),
        )

    def within(self, other: Choice) -> bool:
        """Return whether another choice has all that is chosen here beside the layout."""
        return all(getattr(self, name) in ("", getattr(other, name)) for name in _CHOSEN)

    def lines(self) -> str:
        """Return the lines for the parameters cell that make the same choice."""
        values = dataclasses.asdict(self)
        del values["layout"]
        derive = values.pop("derive")
        always = {name: values.pop(name) for name in ("hw", "model", "site")}
        chosen = {name: value for name, value in values.items() if value}
        return "\n".join(
            f"{name}: str = {json.dumps(value, ensure_ascii=False)}"
            for name, value in (always | chosen).items()
        ) + ("\nderive: bool = True" if derive else "")

    def table(self) -> show.Table:
        """Return the choice as a table, one field a row, without empty fields."""
        rows = [
            ("model", self.model),
            ("hardware", self.hw),
            ("layout", self.layout),
            ("scenario", self.scenario or "default"),
            ("variant", self.variant or "default"),
            ("site", self.site or "the example of the hardware"),
            ("engine version", self.engine_version or "the recipe's"),
        ]
        chosen = (*_LISTS, "derive")
        rows += [(name, getattr(self, name)) for name in chosen if getattr(self, name)]
        return show.Table("Choice", ("what", "is"), tuple(rows))
