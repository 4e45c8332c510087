"""Find or derive the recipe of a request, and say of each combination what there is.

>>> from kimi_nb.params import load
>>> recipe = find(load.model("k2-thinking"), load.hardware("a2"), "dp", derive=True)
>>> recipe.hardware, recipe.layout, recipe.documented
('a2', 'dp', False)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kimi_nb import catalog
from kimi_nb.core.errors import NoRecipeError
from kimi_nb.params import fields, recipes, schema
from kimi_nb.params.fields import Layout
from kimi_nb.plan.combinations import Verdict
from kimi_nb.plan.derivation import bases, making
from kimi_nb.plan.derivation.adapting import Impossible, Subject, facts, version, weights
from kimi_nb.plan.derivation.making import Made

DOCUMENTED, DERIVED, IMPOSSIBLE = "documented", "derived", "impossible"
UNDOCUMENTED = "undocumented"  # a recipe of ours, which no document describes


def find(
    model: schema.Model,
    hardware: schema.Hardware,
    layout: str | None,
    variant: str = "",
    transport: str = "",
    *,
    derive: bool = False,
) -> schema.Recipe:
    """Return the documented recipe that the user means, or with ``derive`` a derived one.

    Without a layout a derived one is the first of single, dp and pd that is possible. Raises
    NoRecipeError with what there is, or with the sum where nothing fits.
    """
    try:
        return recipes.find(model, hardware, layout, variant, transport)
    except NoRecipeError as error:
        there = {recipe.layout for recipe in recipes.of(model, hardware)}
        known = [one for one in fields.LAYOUTS if layout in (None, one)]
        if not known or layout in there or (layout is None and there):
            raise
        if not derive:
            raise NoRecipeError(f"{error}\n{offer(model, hardware, known)}") from None
        return _derived(model, hardware, known, variant)


def all_of(
    model: schema.Model, hardware: schema.Hardware, *, derive: bool = False
) -> list[schema.Recipe]:
    """Return the recipes of a model on a hardware, with ``derive`` also one for each other layout."""
    there = recipes.of(model, hardware)
    known = {recipe.layout for recipe in there}
    return there + [
        find(model, hardware, layout, derive=True)
        for layout in fields.LAYOUTS
        if derive and layout not in known and judge(model, hardware, layout).word == DERIVED
    ]


def offer(
    model: schema.Model, hardware: schema.Hardware, layouts: Iterable[Layout] = fields.LAYOUTS
) -> str:
    """Return what --derive would make of a combination that no document describes."""
    said = [judge(model, hardware, layout) for layout in layouts]
    able = [one for one in said if one.word == DERIVED]
    if able:
        named = f" ({', '.join(one.layout for one in able)})" if len(said) > 1 else ""
        return f"--derive makes one{named} from {able[0].why.removeprefix('from ')}."
    return f"--derive cannot make one: {said[0].why}."


def _derived(
    model: schema.Model, hardware: schema.Hardware, layouts: list[Layout], variant: str
) -> schema.Recipe:
    refused = []
    for layout in layouts:
        try:
            return making.recipe(_made(model, hardware, layout, variant))
        except Impossible as error:
            refused.append(f"{layout}: {error}.")
    raise NoRecipeError(
        f"Nothing can be derived for {model.title} on {hardware.name}:\n" + "\n".join(refused)
    )


def judge(model: schema.Model, hardware: schema.Hardware, layout: Layout) -> Verdict:
    """Return whether a combination is documented, derived or impossible, and why."""

    def verdict(word: str, why: str) -> Verdict:
        return Verdict(model.name, hardware.name, layout, word, why)

    there = [one for one in recipes.of(model, hardware) if one.layout == layout]
    if there:
        first = there[0]
        if first.derivation:
            return verdict(DERIVED, f"from {first.derivation.base}")
        if not first.documented:
            return verdict(UNDOCUMENTED, f"{first.source}")
        of = "" if first.hardware == hardware.name else f" for {first.hardware}, which it is like"
        return verdict(DOCUMENTED, f"{first.source}{of}")
    try:
        return verdict(DERIVED, f"from {_made(model, hardware, layout).subject.base}")
    except Impossible as error:
        return verdict(IMPOSSIBLE, str(error))


def cells(model: str = "", hardware: str = "", layout: str = "") -> list[Verdict]:
    """Return a verdict for every model, hardware and layout, or for those that are named.

    A hardware with models of its own is combined only with those, and these models with no other
    hardware.
    """
    models, standing = bases.shipped_models(), _standing()
    return [
        judge(models[name], chip, each)
        for name in recipes.models()
        for chip in bases.shipped_hardware().values()
        if model in ("", name) and hardware in ("", chip.name)
        if (name in chip.models.values() if chip.models else name not in standing)
        for each in fields.LAYOUTS
        if layout in ("", each)
    ]


def _made(
    model: schema.Model, hardware: schema.Hardware, layout: Layout, variant: str = ""
) -> Made:
    """Return what a derived recipe would be; raise Impossible with the reason."""
    if hardware.models:
        raise Impossible(
            f"{hardware.name} serves {' and '.join(dict.fromkeys(hardware.models.values()))} in the "
            f"layouts of their files only ({', '.join(hardware.models)})"
        )
    if model.name in _standing():
        raise Impossible(f"{model.title} has random weights and is no model to serve elsewhere")
    base = bases.nearest(model, hardware, layout, variant)
    if base is None:
        raise Impossible(_nothing(hardware, layout))
    return _first_that_fits(Subject(model, hardware, layout, base))


def _standing() -> set[str]:
    """Return the models that stand for others on a hardware too small for these."""
    return {name for chip in bases.shipped_hardware().values() for name in chip.models.values()}


def _nothing(hardware: schema.Hardware, layout: Layout) -> str:
    known = facts()["no_pd"] if layout == "pd" else {}
    return str(
        known.get(
            hardware.vendor,
            f"nobody has published layout {layout} of a Kimi model on {hardware.vendor}",
        )
    )


def _first_that_fits(subject: Subject) -> Made:
    """Return the recipe with the first weights that fit; raise Impossible with the least sum."""
    refused: Impossible | None = None
    number, rule = version(subject)
    engine = catalog.engine(subject.hardware.engine, number)
    for key in weights(subject):
        try:
            return making.made(replace(subject, weights=key, engine=engine), number, rule)
        except Impossible as error:
            refused = refused or error
    assert refused is not None
    if subject.layout == "single":
        raise Impossible(f"{refused}. {_more_nodes(subject)}") from None
    raise refused


def _more_nodes(subject: Subject) -> str:
    """Return how many nodes it takes where one is too small."""
    found = judge(subject.model, subject.hardware, "dp")
    if found.word in (DOCUMENTED, UNDOCUMENTED):
        return f"Layout dp, over several nodes, is {found.word} ({found.why})"
    if found.word == IMPOSSIBLE:
        return "More nodes do not help either"
    made = _made(subject.model, subject.hardware, "dp")
    return f"It takes {made.roles['mixed'].sizes.nodes} nodes: --layout dp --derive plans them"
