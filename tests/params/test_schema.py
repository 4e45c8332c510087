"""What the tables of the parameter files hold together: folders, sources, settings, shapes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load, schema


@pytest.mark.parametrize(
    ("work", "cache", "lies"),
    [
        ("/data/cache/kimi", "/data/cache", True),
        ("/data/cache", "/data/cache", True),
        ("/data/cache/", "/data/cache", True),
        ("/data/cache/kimi", "/data/cache/", True),
        ("/data/x/../cache/kimi", "/data/./cache", True),
        ("/data", "/", True),
        ("/", "/", True),
        ("/data/cache2", "/data/cache", False),
        ("/data", "/data/cache", False),
        ("/data/cache/..", "/data/cache", False),
        ("/data/y", "/data/X", False),
        ("/x/data/cache", "/data/cache", False),
    ],
)
def test_scripts_lie_in_no_cache(work, cache, lies):
    given = {"work": work, "cache": cache}
    if not lies:
        assert schema.Paths.model_validate(given).work == work
        return
    with pytest.raises(ValidationError) as caught:
        schema.Paths.model_validate(given)
    assert caught.value.errors()[0]["msg"] == (
        f"Value error, work: {work} lies in {cache}, which is paths.cache: what is replaced or "
        "removed in one is lost in the other. Give work a folder of its own"
    )


def test_a_source_in_words():
    assert str(schema.Source(document="ascend-k2.5", section="5.1")) == "ascend-k2.5 5.1"
    assert str(schema.Source(document="ascend-k2.5")) == "ascend-k2.5"


def test_settings_of_one_replace_those_of_the_other_by_name():
    below = schema.Settings(flags={"a": {"x": 1}, "b": 2}, env={"A": "1"})
    above = schema.Settings(flags={"a": {"y": 1}}, env={"A": None, "B": "2"})
    assert below.overridden(above) == schema.Settings(
        flags={"a": {"y": 1}, "b": 2}, env={"A": None, "B": "2"}
    )


def test_a_role_with_a_change():
    role = schema.RoleSpec(
        groups=2, nodes=3, tp=4, settings=schema.Settings(flags={"a": 1, "b": 1}), features=("x",)
    )
    change = schema.RoleChange(nodes=1, dp=8, settings=schema.Settings(flags={"b": 2}))
    assert role.changed(change) == schema.RoleSpec(
        groups=2,
        nodes=1,
        dp=8,
        tp=4,
        settings=schema.Settings(flags={"a": 1, "b": 2}),
        features=("x",),
    )
    assert role.changed(schema.RoleChange(nodes=None)) == role


def test_the_rule_of_a_derived_value():
    steps = [("tp", "8", "devices"), ("a.b", "1", "key"), ("a", "{}", "table")]
    made = schema.Derivation(
        model="m", hardware="h", layout="dp", variant="v", base="its base", kept="as it was",
        steps=tuple(schema.DerivedValue(what=a, value=b, rule=c) for a, b, c in steps),
    )  # fmt: skip
    assert str(made) == "derived from its base"
    names = ("tp", "a.b", "a.c.d", "a", "b.tp", "tp.x")
    assert [made.rule(name) for name in names] == [
        "devices", "key", "table", "table", "as it was", "devices",
    ]  # fmt: skip


# Sizes of hybrid attention --------------------------------------------------------------------

HYBRID = dict.fromkeys(schema.HYBRID, 8) | {"mla_layers": 3, "kda_layers": 9, "layers": 12}


def model(**architecture: int) -> schema.Model:
    """A model with these sizes."""
    values = {"name": "x", "title": "X", "context_length": 8, "source": {"document": "d"}}
    weights = {
        "w": {"id": "x/y", "precision": "BF16", "directory": "y", "hub": "none", "source": "s"}
    }
    sizes = {"architecture": {"heads": 4, **architecture}, "weights": weights}
    return load.validate(schema.Model, values | sizes, "mine.yaml")


def test_sizes_of_hybrid_attention_are_whole_or_none():
    assert model(layers=7).architecture == {"heads": 4, "layers": 7}
    assert model(**HYBRID).architecture == {"heads": 4, **HYBRID}


@pytest.mark.parametrize("name", schema.HYBRID)
def test_a_size_that_is_missing_is_named(name):
    with pytest.raises(ParameterError) as caught:
        model(**{key: value for key, value in HYBRID.items() if key != name})
    assert str(caught.value).endswith(
        f": architecture.{name}: is missing; hybrid attention has {', '.join(schema.HYBRID)}"
    )
    with pytest.raises(ParameterError, match=f"architecture.{schema.HYBRID[0]}: is missing"):
        model(**{schema.HYBRID[-1]: 1})


@pytest.mark.parametrize(("layers", "told"), [(11, "not 11"), (13, "not 13"), (None, "not None")])
def test_layers_of_hybrid_attention_add_up(layers, told):
    sizes = {key: value for key, value in HYBRID.items() if key != "layers"}
    with pytest.raises(ParameterError) as caught:
        model(**sizes, **({"layers": layers} if layers else {}))
    assert str(caught.value).endswith(
        f": architecture.layers: 3 mla_layers and 9 kda_layers are 12 layers, {told}"
    )
