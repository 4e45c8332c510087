"""Recipes: which one is meant, what stands in for a model, and what is told where there is none."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import NoRecipeError
from kimi_nb.params import load, recipes, schema

A3, CPU = load.hardware("a3"), load.hardware("cpu")
K25, TINY, LLAMA = load.model("k2.5"), load.model("tiny-k2.5"), load.model("tiny-llama")
K3 = load.model("k3")


def recipe(layout="dp", variant="docker", hardware="cpu", published="", jobs=False, **more):
    """The recipe of the tiny Llama, with other words."""
    (base,) = LLAMA.recipes
    source = base.source.model_copy(update={"deployment": published})
    words = {"layout": layout, "variant": variant, "hardware": hardware, "jobs": jobs}
    return base.model_copy(update={**words, "source": source, **more})


def model(*made: schema.Recipe, **more) -> schema.Model:
    return LLAMA.model_copy(update={"name": "mine", "title": "Mine", "recipes": made, **more})


def variant(made, layout=None, name="", transport=""):
    return recipes.find(made, CPU, layout, name, transport).variant


def refused(*args) -> str:
    with pytest.raises(NoRecipeError) as caught:
        recipes.find(*args)
    return str(caught.value)


# Which there are ------------------------------------------------------------------------------


def test_a_model_s_own_in_the_order_of_its_file():
    found = recipes.of(K25, A3)
    assert found == [one for one in K25.recipes if one.hardware == "a3"]
    assert [(one.layout, one.variant) for one in found[:2]] == [
        ("single", "docker"),
        ("pd", "docker"),
    ]


def test_hardware_that_is_like_another_has_its_recipes():
    like = A3.model_copy(update={"name": "mine", "like": "a3"})
    assert recipes.of(K25, like) == recipes.of(K25, A3)
    assert recipes.of(K25, A3.model_copy(update={"name": "mine"})) == []


def test_tiny_models_stand_in_by_layout_where_there_is_no_room():
    found = recipes.of(K25, CPU)
    assert [(one.layout, one.weights) for one in found] == [
        ("single", "random"),
        ("dp", "random"),
        ("pd", "random"),
    ]
    assert found[1] == LLAMA.recipes[0] and found[0] == TINY.recipes[0]
    assert recipes.of(TINY, CPU) == list(TINY.recipes)
    assert recipes.of(K3, CPU) == []
    assert recipes.of(model(recipe(), no_stand_in="no"), CPU) == [recipe()]


@pytest.mark.parametrize(
    ("layout", "name"),
    [("", "tiny-k2.5"), ("single", "tiny-k2.5"), ("dp", "tiny-llama"), ("x", "tiny-k2.5")],
)
def test_the_model_that_is_served(layout, name):
    assert recipes.served(K25, CPU, layout).name == name
    assert recipes.served(K25, CPU).name == "tiny-k2.5"
    assert recipes.served(K25, A3, layout) is K25
    assert recipes.served(LLAMA, CPU, layout) is LLAMA
    assert recipes.served(K3, CPU, layout) is K3


# The one that is meant ------------------------------------------------------------------------


def test_the_only_layout_need_not_be_named():
    assert variant(model(recipe("single", "a"), recipe("single", "b"))) == "a"
    assert refused(model(recipe("single"), recipe("dp")), CPU, None) == (
        "Mine on cpu has 2 layouts; say which one you mean: --layout single or dp."
    )
    many = model(recipe("dp", "a"), recipe("single"), recipe("pd"), recipe("dp", "b"))
    assert refused(many, CPU, None).endswith(
        " has 3 layouts; say which one you mean: --layout dp or single or pd."
    )


def test_what_is_published_elsewhere_leaves_the_choice_of_a_layout_to_ours():
    mixed = model(recipe("pd", "theirs", published="x"), recipe("single", "ours"))
    assert variant(mixed) == "ours"
    assert variant(mixed, "pd") == "theirs"
    theirs = model(recipe("pd", "a", published="x"), recipe("pd", "b", published="y"))
    assert variant(theirs) == "a"
    assert "2 layouts" in refused(
        model(recipe("pd", published="x"), recipe("single", published="y")), CPU, None
    )


def test_a_variant_by_name_else_the_first_that_the_transport_carries():
    made = model(
        recipe("dp", "jobs", jobs=True), recipe("dp", "docker"), recipe("dp", "pip"),
        recipe("single", "other"),
    )  # fmt: skip
    assert variant(made, "dp") == recipes.find(made, CPU, "dp").variant == "docker"
    assert variant(made, "dp", transport="ssh") == "docker"
    assert variant(made, "dp", transport="slurm") == "jobs"
    assert variant(made, "dp", "pip") == "pip"
    assert variant(made, "dp", "pip", "slurm") == "pip"
    assert variant(model(recipe("dp", "pip")), "dp", transport="slurm") == "pip"
    assert variant(model(recipe("dp", "jobs", jobs=True)), "dp") == "jobs"
    assert refused(made, CPU, "dp", "other") == (
        "variant of mine on cpu, dp: 'other' is not known. Allowed: jobs, docker, pip."
    )


def test_a_layout_that_nobody_has():
    assert refused(K25, A3, "xyz") == "layout 'xyz' is not known. Allowed: single, dp, pd."
    assert refused(K25, A3, "") == "layout '' is not known. Allowed: single, dp, pd."


def test_what_there_is_where_no_document_describes_it():
    there = refused(K25, A3, "dp")
    lines = there.splitlines()
    title = K25.title
    assert lines[0] == f"No document describes {title} on a3 with layout dp."
    assert lines[1] == "There is:"
    assert lines[2].startswith("  k2.5 on a3 (single, pd), a2 (dp), h200 (single, dp, pd), gb200 (")
    assert "  k2.6 on a3 (single, pd)" in lines[3:-1] and "  k2-thinking on a3 (single)" in lines
    assert not [line for line in lines[3:] if line.startswith("  k2.5")]
    assert lines[-1] == "kimi-nb list shows all."


def test_a_model_of_one_s_own_that_has_nothing_here():
    made = model(recipe("dp"), recipe("single"), recipe("dp", "x"))
    big = A3.model_copy(update={"name": "big", "models": {}})
    assert refused(made, big, None) == "\n".join(
        [
            "No document describes Mine on big.",
            "There is:",
            "  mine on cpu (dp, single)",
            "kimi-nb list shows all.",
        ]
    )
    lines = refused(made, load.hardware("h200"), "pd").splitlines()
    assert lines[2] == "  mine on cpu (dp, single)"
    assert [line.split()[0] for line in lines[3:-1]] == [
        name
        for name in load.names("models")
        if "h200" in (one.hardware for one in load.model(name).recipes)
    ]
    none = model(container_versions={"big": "v1"})
    like = A3.model_copy(update={"name": "small", "like": "big"})
    assert refused(none, like, "pd") == "\n".join(
        [
            "No document describes Mine on small with layout pd.",
            "There is:",
            "  mine on small: the container only (notebook 02)",
            "kimi-nb list shows all.",
        ]
    )


def test_a_model_without_a_stand_in_says_why():
    told = f"cpu has no room for {K3.title}, and no tiny model stands for it: {K3.no_stand_in}"
    assert refused(K3, CPU, "single") == told
    assert refused(K3, CPU, None) == told
    assert refused(K3, A3, "single").startswith(f"No document describes {K3.title} on a3")


# A recipe's parts -----------------------------------------------------------------------------


def test_a_scenario_by_name():
    (made, *_) = recipes.of(K25, A3)
    assert recipes.scenario(made, "") is None
    assert recipes.scenario(made, "default") is None
    assert recipes.scenario(made, "accuracy") is made.scenarios["accuracy"]
    with pytest.raises(NoRecipeError) as caught:
        recipes.scenario(made, "throughputs")
    assert str(caught.value) == (
        "scenario of a3 single docker: 'throughputs' is not known; did you mean 'throughput'? "
        f"Allowed: {', '.join(['default', *made.scenarios])}."
    )


def test_how_many_nodes_a_recipe_takes():
    roles = {
        "prefill": schema.RoleSpec(groups=3, nodes=2),
        "decode": schema.RoleSpec(groups=2, nodes=4),
    }
    made = recipe("pd", roles=roles)
    assert recipes.nodes(made) == 3 * 2 + 2 * 4
    (any_one, *_) = recipes.of(K25, A3)
    entry = any_one.scenarios["accuracy"]
    less = entry.model_copy(update={"roles": {"decode": schema.RoleChange(nodes=1)}})
    assert recipes.nodes(made, less) == 3 * 2 + 2 * 1
    assert recipes.nodes(made, entry.model_copy(update={"roles": {}})) == 14


# The list -------------------------------------------------------------------------------------


def test_the_list_has_a_row_for_each_scenario_and_each_like_hardware(tmp_path):
    rows = recipes.listing()
    first = [one for one in rows if (one["model"], one["hardware"]) == ("k2.5", "a3")]
    made = K25.recipes[0]
    assert first[0] == {
        "model": "k2.5",
        "hardware": "a3",
        "layout": "single",
        "scenario": "default",
        "variant": "docker",
        "documented": True,
        "source": str(made.source),
        "title": made.title,
        "engine_version": made.engine_version,
        "tried": True,
        "deployment": "",
    }
    scenario = made.scenarios["throughput"]
    assert first[1] == first[0] | {
        "scenario": "throughput",
        "source": str(scenario.source),
        "title": scenario.title,
        "deployment": scenario.source.deployment,
    }
    likes = {
        name: chip.recipes_of
        for name in load.names("hardware")
        if (chip := load.hardware(name)).recipes_of != name
    }
    wanted = sum(
        (1 + len(one.scenarios)) * (1 + list(likes.values()).count(one.hardware))
        for name in load.names("models")
        for one in load.model(name).recipes
    )
    assert len(rows) == wanted
    published = next(
        one for one in rows if one["deployment"] == "infx:disagg-gb200-1p1d-dep4-dep16:1k1k"
    )
    assert (published["variant"], published["scenario"]) == ("nvfp4-inferencex", "default")
    assert [one["model"] for one in rows[:1]] == ["k2.5"] and rows[-1]["model"] == "tiny-llama"


def forget():
    for cached in (load._ours, load._spelt, load._organisations):
        cached.cache_clear()


@pytest.fixture
def more_hardware(tmp_path, monkeypatch):
    """The project with two more hardware that are like a2; all else is linked."""
    root = load.paths.root()
    for kind in ("models", "sites", "recipes"):
        (tmp_path / "params").mkdir(exist_ok=True)
        (tmp_path / "params" / kind).symlink_to(root / "params" / kind)
    chips = tmp_path / "params" / "hardware"
    chips.mkdir()
    for path in (root / "params" / "hardware").iterdir():
        (chips / path.name).symlink_to(path)
    (chips / "zz.yaml").write_text("extends: a2\nname: zz\ntitle: Z\n")
    (chips / "yy.yaml").write_text("extends: a2\nname: yy\ntitle: Y\n")
    monkeypatch.setattr(load.paths, "root", lambda: tmp_path)
    forget()
    yield
    forget()


def test_hardware_like_another_has_rows_that_no_document_describes(more_hardware):
    rows = [one for one in recipes.listing() if one["model"] == "k2.5" and one["layout"] == "dp"]
    of = {
        name: [one for one in rows if one["hardware"] == name and one["variant"] == "docker"]
        for name in ("a2", "yy", "zz")
    }
    assert [one["scenario"] for one in of["a2"]] == ["default", "throughput"]
    for name in ("yy", "zz"):
        assert of[name] == [one | {"hardware": name, "documented": False} for one in of["a2"]]
    assert not [one for one in rows if one["hardware"] in ("yy", "zz") and one["documented"]]


def test_the_name_under_which_facts_are_kept():
    assert recipes.known_as(K25) == "k2.5"
    mine = K25.model_copy(update={"name": "mine"})
    assert recipes.known_as(mine) == "k2.5"
    other = K25.model_copy(update={"name": "mine", "weights": K3.weights})
    assert recipes.known_as(other) == "k3"
    assert recipes.known_as(K25.model_copy(update={"name": "mine", "weights": {}})) == "mine"
    assert recipes.known_as(K25.model_copy(update={"name": "k2.6"})) == "k2.6"


def test_the_models_with_plain_numbers_first():
    found = recipes.models()
    assert sorted(found) == load.names("models")
    assert found.index("k2.5") < found.index("k2.7-code") < found.index("k2-instruct")
    assert found.index("k2-thinking") < found.index("k3") < found.index("tiny-k2.5")
