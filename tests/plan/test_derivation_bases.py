"""Which recipe is the nearest, among models and hardware that the tests make."""

from __future__ import annotations

import functools

import pytest
from plan import made_values
from plan.made_values import chip

from kimi_nb.core.errors import NoRecipeError
from kimi_nb.params import load, schema
from kimi_nb.plan.derivation import bases
from kimi_nb.plan.derivation.bases import Base

K25 = load.model("k2.5")
recipe = functools.partial(made_values.recipe, engine_version="0.32.0")


def model(name: str, *recipes: schema.Recipe, **sizes) -> schema.Model:
    architecture = {"layers": 61, "heads": 64, "vision_parameters": 400} | sizes
    return K25.model_copy(
        update={
            "name": name,
            "recipes": recipes,
            "architecture": {key: size for key, size in architecture.items() if size is not None},
        }
    )


CHIPS = {
    one.name: one
    for one in (
        chip("one"),
        chip("half", memory=64),
        chip("eighth", count=4, memory=32),
        chip("fast", fp8_tflops=2000),
        chip("twin", count=2, like="one"),
        chip("pair", count=2, memory=120),
        chip("clone"),
        chip("other", vendor="amd"),
    )
}


@pytest.fixture
def ship(monkeypatch):
    """Ship these models and the chips above, and no others."""

    def ship(*models: schema.Model) -> None:
        monkeypatch.setattr(bases, "shipped_models", lambda: {one.name: one for one in models})
        bases._pairs.cache_clear()

    monkeypatch.setattr(bases, "shipped_hardware", lambda: CHIPS)
    bases._pairs.cache_clear()
    yield ship
    bases._pairs.cache_clear()


def found(of: schema.Model, hardware: str, layout="single", variant="") -> str:
    base = bases.nearest(of, CHIPS[hardware], layout, variant)
    return "" if base is None else f"{base.model.name} {base.recipe.hardware} {base.recipe.layout}"


def test_a_base_is_named_with_its_source():
    base = Base(model("m"), CHIPS["twin"], recipe("one", "dp", "pip"))
    assert str(base) == "m one dp pip (guide 1)"


# The order --------------------------------------------------------------------------------------


FAR = model("far", recipe("one"), layers=1, heads=2)
BLIND = model("blind", recipe("one"), recipe("half"), vision_parameters=None)


@pytest.mark.parametrize(
    ("others", "own", "base"),
    [
        # The model itself on other hardware, then the same sizes here, there; then other sizes.
        ([FAR, BLIND], [recipe("fast")], "mine fast single"),
        ([FAR, BLIND], [], "blind one single"),
        ([FAR, model("blind", recipe("fast"), vision_parameters=None)], [], "blind fast single"),
        ([FAR, model("near", recipe("fast"), layers=2)], [], "far one single"),
        ([FAR, model("near", recipe("one"), layers=2)], [], "near one single"),
        ([model("far", recipe("half"), layers=3), model("near", recipe("fast"), layers=2)], [],
         "far half single"),
        # The hardware itself comes before its equal, though the models are farther apart.
        ([model("same", recipe("clone")), BLIND], [], "blind one single"),
        ([model("near", recipe("clone"), layers=2), FAR], [], "far one single"),
        # Of the same layout, whatever else; then of the one it may come from.
        ([FAR], [recipe("one", "dp")], "far one single"),
        ([], [recipe("one", "dp")], "mine one dp"),
        ([], [recipe("one", "pd")], ""),
        ([], [recipe("other")], ""),
        ([], [recipe("nobodys")], ""),
    ],
)  # fmt: skip
def test_the_nearest(ship, others, own, base):
    mine = model("mine", *own)
    ship(*others, mine)
    assert found(mine, "one") == base


@pytest.mark.parametrize(
    ("layout", "own", "base"),
    [
        ("dp", [recipe("one"), recipe("fast", "dp")], "mine fast dp"),
        ("dp", [recipe("one")], "mine one single"),
        ("pd", [recipe("one"), recipe("one", "dp")], ""),
        ("pd", [recipe("one"), recipe("half", "pd")], "mine half pd"),
    ],
)
def test_the_layouts_that_one_comes_from(ship, layout, own, base):
    mine = model("mine", *own)
    ship(mine)
    assert found(mine, "one", layout) == base


def test_other_hardware_is_nearer_by_generation_then_by_size(ship):
    mine = model("mine", recipe("fast"), recipe("eighth"), recipe("half"))
    ship(mine)
    assert found(mine, "one") == "mine half single"
    mine = model("mine", recipe("fast"), recipe("eighth"))
    ship(mine)
    assert found(mine, "one") == "mine eighth single"


def test_hardware_has_the_recipes_of_what_it_is_like(ship):
    """It has as many devices as another one, which is not nearer for that."""
    mine = model("mine", recipe("pair"), recipe("one"))
    ship(mine)
    assert found(mine, "twin") == "mine one single"


@pytest.mark.parametrize("change", [{"documented": False}, {"tried": False}, {"jobs": True}])
def test_what_is_no_base(ship, change):
    mine = model("mine", recipe("one", **change))
    ship(mine)
    assert found(mine, "one") == ""
    mine = model("mine", recipe("one", **change), recipe("one", "single", "pip"))
    ship(mine)
    assert bases.nearest(mine, CHIPS["one"], "single").recipe.variant == "pip"


def test_a_file_of_the_user_stands_for_ours_of_that_name(ship):
    ours = model("mine", recipe("one"))
    ship(FAR, ours)
    assert found(model("mine"), "one") == "far one single"
    assert found(model("mine", recipe("half")), "one") == "mine half single"
    base = bases.nearest(theirs := model("new", recipe("half")), CHIPS["one"], "single")
    assert base.model is theirs
    assert found(model("new"), "one") == "mine one single"


def test_a_variant_is_that_of_the_recipe_or_its_install(ship):
    first = recipe("one", "single", "docker")
    second = recipe("one", "single", "wheel", install="pip")
    mine = model("mine", first, second)
    ship(mine)
    for variant, wanted in [("", first), ("docker", first), ("wheel", second), ("pip", second)]:
        assert bases.nearest(mine, CHIPS["one"], "single", variant).recipe is wanted
    with pytest.raises(NoRecipeError) as caught:
        found(mine, "one", variant="whell")
    assert str(caught.value).startswith("variant to derive single from: 'whell'")
    assert "docker" in str(caught.value) and "wheel" in str(caught.value)
    assert found(mine, "other", variant="whell") == ""


# How far apart ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "same", "differ"),
    [
        ({}, True, 0),
        ({"vision_parameters": 1}, True, 1),
        ({"vision_parameters": None}, True, 1),
        ({"layers": 60}, False, 1),
        ({"layers": None}, False, 1),
        ({"experts": 384}, False, 1),
        ({"layers": 60, "heads": 32, "vision_parameters": None}, False, 3),
    ],
)
def test_models(sizes, same, differ):
    one, other = model("one"), model("other", **sizes)
    assert bases.same_architecture(one, other) == bases.same_architecture(other, one) == same
    assert bases.between_models(one, other) == bases.between_models(other, one) == differ


@pytest.mark.parametrize(
    ("other", "far"),
    [
        (chip("b"), 0),
        (chip("b", count=4), 1),
        (chip("b", count=32), 2),
        (chip("b", memory=64), 1),
        (chip("b", memory=512), 2),
        (chip("b", count=16, memory=32), 1 + 2),
        (chip("b", fp8_tflops=2000), 10),
        (chip("b", count=4, vendor="amd"), 10 + 1),
    ],
)
def test_kinds_of_node(other, far):
    """A generation is 10; twice as many devices, or twice their memory, is 1."""
    assert bases.between_hardware(chip("a"), other) == far
    assert bases.between_hardware(other, chip("a")) == far


@pytest.mark.parametrize(
    ("peaks", "generation"),
    [
        ({}, (False, False, False)),
        ({"fp8_tflops": 2000}, (True, False, False)),
        ({"fp4_tflops": 4000}, (False, True, False)),
        ({"int8_tops": 999}, (False, False, True)),
        ({"int8_tops": 1000}, (False, False, False)),
        ({"int8_tops": 2000, "fp8_tflops": 2000, "fp4_tflops": 1}, (True, True, False)),
    ],
)
def test_a_generation_is_what_devices_compute(peaks, generation):
    assert bases.generation(chip("a", **peaks)) == ("nvidia", *generation)


def test_without_figures_a_hardware_is_a_generation_of_its_own(ship):
    bare = {"bf16_tflops": None, "fp8_tflops": 2000}
    assert bases.generation(chip("a", **bare)) == ("a", False, False, False)
    like = chip("a", like="fast", **bare)
    assert bases.peaks_of(like) == CHIPS["fast"].peaks
    assert bases.generation(like) == ("nvidia", True, False, False)
    own = chip("a", like="fast")
    assert bases.peaks_of(own) is own.peaks
    alone = chip("a", like="no such", **bare)
    assert bases.peaks_of(alone) is alone.peaks


def test_a_generation_is_kept_for_each_hardware():
    """Another one of the same name, such as a file that was changed, is looked at again."""
    first, second = chip("a"), chip("a", fp8_tflops=2000)
    assert bases.generation(first) == ("nvidia", False, False, False)
    assert bases.generation(second) == ("nvidia", True, False, False)
    assert bases.generation(second) is bases.generation(second)
