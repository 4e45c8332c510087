"""Name the values of every choice by what they are, for the lists of the panel.

>>> from kimi_nb.notebook.choice import Choice
>>> labels(Choice("k2.5", "a3", "pd"))["engine_version"][0]
('v0.22.1rc1: of the recipe', '')
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import choices
from kimi_nb.params import load

Options = tuple[tuple[str, str], ...]  # (what is read, the value of the choice)
LISTS = {
    "model": "Model",
    "hw": "Hardware",
    "layout": "Layout",
    "derive": "Recipes",
    "variant": "Variant",
    "scenario": "Scenario",
    "engine_version": "Engine version",
}
TEXTS = {
    "site": ("Site file", "path of your site file; empty: the example of the hardware"),
    "overrides": ("Overrides", "max-num-seqs=32; decode.dp=16"),
}
_LAYOUTS = {
    "single": "one node",
    "dp": "several nodes, one service",
    "pd": "prefill and decode apart",
}
_DERIVE: Options = (
    ("documented only", ""),
    ("documented and derived", "yes"),
)


def labels(given: Choice) -> Mapping[str, Options]:
    """Return the options of every choice that has a list; "" is the value of the default.

    The default stands first, by its name. Raises KimiErrors for an unknown model or hardware.
    """
    values, recipe = choices.allowed(given), choices.recipe(given)
    first = choices.recipe(dataclasses.replace(given, variant=""))
    variants = {
        one.variant: one.title for one in choices.described(given) if one.layout == given.layout
    }
    scenarios = {name: one.title for name, one in recipe.scenarios.items()} if recipe else {}
    version = recipe.engine_version if recipe else ""
    return {
        "model": _named(
            values["model"], {name: load.model(name).title for name in values["model"]}
        ),
        "hw": _named(values["hw"], {name: load.hardware(name).title for name in values["hw"]}),
        "layout": _named(values["layout"], _LAYOUTS),
        "variant": _defaulted(_named(values["variant"], variants), first.variant if first else ""),
        "scenario": (("none: the recipe itself", ""), *_named(values["scenario"], scenarios)),
        "engine_version": (
            (f"{version or 'that'}: of the recipe", ""),
            *((name, name) for name in values["engine_version"] if name not in ("", version)),
        ),
        "derive": _DERIVE,
    }


def shown(value: str, options: Options) -> str:
    """Return the value that a list shows: the default where it is chosen by its name."""
    return value if value in dict(options).values() else options[0][1]


def _named(values: tuple[str, ...], titles: Mapping[str, str]) -> Options:
    return tuple(
        (f"{value}: {titles[value]}" if value in titles else value, value)
        for value in values
        if value
    )


def _defaulted(options: Options, default: str) -> Options:
    """Return the options with the default first, whose value is ""."""
    first = next((label for label, value in options if value == default), "none")
    return ((first, ""), *(one for one in options if one[1] != default))
