"""What there is of a combination, and why: documented, derived or impossible, and what is offered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from plan.made_values import recipe

from kimi_nb import catalog
from kimi_nb.core.errors import NoRecipeError
from kimi_nb.params import load, recipes, schema
from kimi_nb.plan.combinations import Verdict
from kimi_nb.plan.derivation import bases, feasibility, making
from kimi_nb.plan.derivation.adapting import Impossible

K25 = load.model("k2.5")  # weights in W4A8, INT4, NVFP4 and MXFP4
GB200, H200, H20, MI300X, MI350X, CPU = (
    load.hardware(name) for name in ("gb200", "h200", "h20", "mi300x", "mi350x", "cpu")
)


def model(*made: schema.Recipe, name="mine") -> schema.Model:
    return K25.model_copy(update={"name": name, "title": "Kimi-Mine", "recipes": made})


@pytest.fixture
def ship(monkeypatch):
    """Ship these models and no others."""

    def ship(*models: schema.Model) -> None:
        monkeypatch.setattr(bases, "shipped_models", lambda: {one.name: one for one in models})
        bases._pairs.cache_clear()

    yield ship
    bases._pairs.cache_clear()


@pytest.fixture
def makes(monkeypatch):
    """Make recipes without an account: what does not fit is named, by weights and layout.

    Returns what was asked for: hardware, layout, weights, engine, version and rule.
    """
    asked: list[tuple] = []

    def makes(*refused: tuple[str, str], nodes: int = 3) -> list[tuple]:
        def made(subject, number, rule):
            asked.append((subject.hardware.name, subject.layout, subject.weights, subject.engine,
                          number, rule))  # fmt: skip
            if (subject.weights, subject.layout) in refused:
                raise Impossible(f"{subject.weights} does not fit {subject.layout}")
            sizes = SimpleNamespace(nodes=nodes)
            roles = {"mixed": SimpleNamespace(sizes=sizes)}
            return SimpleNamespace(subject=subject, roles=roles)

        monkeypatch.setattr(making, "made", made)
        monkeypatch.setattr(
            making,
            "recipe",
            lambda parts: f"{parts.subject.layout} from {parts.subject.base}",
        )
        return asked

    return makes


ALL = [(key, layout) for key in K25.weights for layout in ("single", "dp", "pd")]
NO_DP = [one for one in ALL if one[1] == "dp"]
NO_SINGLE = [one for one in ALL if one[1] == "single"]


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(NoRecipeError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# Find -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("derive", [False, True])
def test_what_is_documented_is_found(ship, makes, derive):
    asked = makes()
    first, second, job = (
        recipe(),
        recipe(variant="wheel"),
        recipe(variant="job", jobs=True),
    )
    mine = model(first, second, job)
    ship(mine)
    assert feasibility.find(mine, H200, "single", derive=derive) is first
    assert feasibility.find(mine, H200, None, derive=derive) is first
    assert feasibility.find(mine, H200, "single", "wheel", derive=derive) is second
    assert feasibility.find(mine, H200, "single", "", "slurm", derive=derive) is job
    assert asked == []


@pytest.mark.parametrize("derive", [False, True])
@pytest.mark.parametrize(
    ("layout", "variant", "words"),
    [
        (None, "", "say which one you mean: --layout single or pd."),
        ("ring", "", "layout 'ring' is not known"),
        ("pd", "wheel", "variant of mine on h200, pd: 'wheel' is not known"),
    ],
)
def test_a_mistake_is_no_reason_to_derive(ship, makes, derive, layout, variant, words):
    makes()
    mine = model(recipe(), recipe(layout="pd"))
    ship(mine)
    said = refused(feasibility.find, mine, H200, layout, variant, derive=derive)
    assert words in said and "--derive" not in said


def test_without_derive_it_is_offered(ship, makes):
    makes(*NO_SINGLE)
    mine = model(recipe())
    ship(mine)
    said = refused(feasibility.find, mine, H200, "dp").splitlines()
    assert said[0] == "No document describes Kimi-Mine on h200 with layout dp."
    assert said[-1] == "--derive makes one from mine h200 single docker (guide 1)."
    said = refused(feasibility.find, mine, H20, None).splitlines()
    assert said[0] == "No document describes Kimi-Mine on h20."
    assert said[-1] == "--derive makes one (dp) from mine h200 single docker (guide 1)."


def test_with_derive_it_is_made(ship, makes):
    makes(*NO_SINGLE)
    mine = model(recipe(), recipe(variant="wheel"))
    ship(mine)
    at = "mine h200 single"
    assert feasibility.find(mine, H200, "dp", derive=True) == f"dp from {at} docker (guide 1)"
    assert feasibility.find(mine, H20, None, derive=True) == f"dp from {at} docker (guide 1)"
    made = feasibility.find(mine, H20, "dp", "wheel", derive=True)
    assert made == f"dp from {at} wheel (guide 1)"


def test_nothing_can_be_derived(ship, makes):
    makes(*ALL)
    mine = model(recipe())
    ship(mine)
    assert refused(feasibility.find, mine, H20, None, derive=True) == (
        "Nothing can be derived for Kimi-Mine on h20:\n"
        "single: int4 does not fit single. More nodes do not help either.\n"
        "dp: int4 does not fit dp.\n"
        "pd: nobody has published layout pd of a Kimi model on nvidia."
    )


def test_all_there_is(ship, makes):
    makes(*NO_SINGLE)
    first, second = recipe(layout="dp"), recipe(layout="dp", variant="wheel")
    mine = model(first, second, recipe("h20"))
    ship(mine)
    assert feasibility.all_of(mine, H200) == [first, second]
    assert feasibility.all_of(mine, H200, derive=True) == [first, second]
    makes()
    single = "single from mine h20 single docker (guide 1)"
    assert feasibility.all_of(mine, H200) == [first, second]
    assert feasibility.all_of(mine, H200, derive=True) == [first, second, single]


def test_an_offer_of_several_layouts(ship, makes):
    makes()
    mine = model(recipe(), recipe("gb200", "dp"))
    ship(mine)
    of = "mine h200 single docker (guide 1)"
    assert feasibility.offer(mine, H20) == f"--derive makes one (single, dp) from {of}."
    assert feasibility.offer(mine, H20, ["dp", "pd"]) == (
        "--derive makes one (dp) from mine gb200 dp docker (guide 1)."
    )
    assert feasibility.offer(mine, H20, ["single"]) == f"--derive makes one from {of}."
    assert feasibility.offer(mine, H20, ["pd"]) == (
        "--derive cannot make one: nobody has published layout pd of a Kimi model on nvidia."
    )


# Judge ------------------------------------------------------------------------------------------


MARKS = {"model": "k", "hardware": "h", "layout": "dp", "variant": "v", "base": "k h dp v (page)"}


@pytest.mark.parametrize(
    ("chip", "change", "word", "why"),
    [
        (H200, {}, "documented", "guide 1"),
        (MI350X, {}, "documented", "guide 1 for mi355x, which it is like"),
        (H200, {"documented": False}, "undocumented", "guide 1"),
        (
            H200,
            {
                "derivation": schema.Derivation(**MARKS, kept="as there", steps=()),
                "documented": False,
            },
            "derived",
            "from k h dp v (page)",
        ),
    ],
)
def test_what_is_written(ship, chip, change, word, why):
    mine = model(recipe(chip.recipes_of, "dp", **change), recipe(chip.recipes_of, "dp", "second"))
    ship(mine)
    assert feasibility.judge(mine, chip, "dp") == Verdict("mine", chip.name, "dp", word, why)


def test_what_is_derived(ship, makes):
    """With the preferred weights, and the newest version that a document serves the model with."""
    asked = makes()
    mine = model(recipe(), recipe(engine_version="0.26.0", layout="dp"))
    ship(mine)
    why = "from mine h200 single docker (guide 1)"
    assert feasibility.judge(mine, H20, "single") == Verdict(
        "mine", "h20", "single", "derived", why
    )
    rule = "the newest that a document serves Kimi-Mine with"
    engine = catalog.engine("vllm", "0.26.0")
    assert asked == [("h20", "single", "int4", engine, "0.26.0", rule)]


def test_the_next_weights_are_tried(ship, makes):
    asked = makes(("int4", "dp"))
    mine = model(recipe())
    ship(mine)
    assert feasibility.judge(mine, H200, "dp").word == "derived"
    assert [one[2] for one in asked] == ["int4", "mxfp4"]


def test_the_sum_is_that_of_the_preferred_weights(ship, makes):
    makes(*ALL)
    mine = model(recipe())
    ship(mine)
    found = feasibility.judge(mine, H200, "dp")
    assert (found.word, found.why) == ("impossible", "int4 does not fit dp")


@pytest.mark.parametrize(
    ("more", "fits", "why"),
    [
        ([], False, "More nodes do not help either"),
        ([], True, "It takes 3 nodes: --layout dp --derive plans them"),
        ([{}], True, "Layout dp, over several nodes, is documented (guide 1)"),
        ([{"documented": False}], True, "Layout dp, over several nodes, is undocumented (guide 1)"),
    ],
)
def test_one_node_is_too_small(ship, makes, more, fits, why):
    makes(*(NO_SINGLE if fits else ALL))
    mine = model(recipe("h200"), *(recipe("h20", "dp", **one) for one in more))
    ship(mine)
    found = feasibility.judge(mine, H20, "single")
    assert (found.word, found.why) == ("impossible", f"int4 does not fit single. {why}")


@pytest.mark.parametrize(
    ("chip", "layout", "why"),
    [
        (MI300X, "dp", "nobody has published layout dp of a Kimi model on amd"),
        (H200, "pd", "nobody has published layout pd of a Kimi model on nvidia"),
        (
            MI300X,
            "pd",
            "nobody has published prefill-decode disaggregation of Kimi on AMD that ran: "
            "vllm-project/recipes renders a page of it for every GPU, AMD's are verified by nobody",
        ),
    ],
)
def test_nothing_to_derive_from(ship, chip, layout, why):
    mine = model(recipe())
    ship(mine)
    assert feasibility.judge(mine, chip, layout) == Verdict(
        "mine", chip.name, layout, "impossible", why
    )


def test_models_that_stand_for_others(ship):
    """The models of the CPU are no models of other hardware, and no others are its."""
    mine, tiny = model(recipe()), model(recipe(), name="tiny-k2.5")
    ship(mine, tiny)
    assert feasibility.judge(tiny, H20, "single").why == (
        "Kimi-Mine has random weights and is no model to serve elsewhere"
    )
    alone = mine.model_copy(update={"no_stand_in": "none is small enough"})
    assert feasibility.judge(alone, CPU, "dp").why == (
        "cpu serves tiny-k2.5 and tiny-llama in the layouts of their files only (single, dp, pd)"
    )


# Cells ------------------------------------------------------------------------------------------


@pytest.fixture
def table(ship, monkeypatch):
    """Two models on two kinds of node, and one that stands for others on a third."""
    mine, other, tiny = model(), model(name="other"), model(name="tiny-llama")
    ship(mine, other, tiny)
    chips = {one.name: one for one in (H200, CPU, GB200)}
    monkeypatch.setattr(bases, "shipped_hardware", lambda: chips)
    monkeypatch.setattr(recipes, "models", lambda: ["mine", "tiny-llama", "other"])
    monkeypatch.setattr(
        feasibility,
        "judge",
        lambda model, chip, layout: (model.name, chip.name, layout),
    )


EVERY = ("single", "dp", "pd")


@pytest.mark.parametrize(
    ("asked", "pairs", "layouts"),
    [
        (
            {},
            [("mine", "h200"), ("mine", "gb200"), ("tiny-llama", "cpu"), ("other", "h200"),
             ("other", "gb200")],
            EVERY,
        ),
        ({"model": "mine"}, [("mine", "h200"), ("mine", "gb200")], EVERY),
        ({"hardware": "gb200"}, [("mine", "gb200"), ("other", "gb200")], EVERY),
        ({"hardware": "cpu", "layout": "dp"}, [("tiny-llama", "cpu")], ["dp"]),
        ({"model": "mine", "hardware": "cpu"}, [], EVERY),
        ({"model": "nobodys"}, [], EVERY),
    ],
)  # fmt: skip
def test_the_cells_of_the_table(table, asked, pairs, layouts):
    wanted = [(*pair, layout) for pair in pairs for layout in layouts]
    assert feasibility.cells(**asked) == wanted
