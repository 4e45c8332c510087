"""Recipes of several hardware: what each has of its own, and what stays the same."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kimi_nb.params.families import Families, Family

PUBLISHED = {
    "layout": "pd",
    "variant": "docker",
    "title": "For several hardware",
    "source": {"document": "guide", "section": "2", "deployment": "guide:{hardware}:pd_{hardware}"},
    "engine_version": "0.25.1",
    "weights": "int4",
    "install": "docker",
    "router": "upstream",
    "features": ["tool-parser"],
    "settings": {"flags": {"seed": 1, "max-num-seqs": 8}, "env": {"A": "1"}},
    "roles": {
        "prefill": {"tp": 8, "settings": {"flags": {"x": 1}}},
        "decode": {"tp": 8, "dp": 2},
    },
}
HARDWARE = {
    "h200": {},
    "b200": {
        "tried": False,
        "engine_version": "0.27.1",
        "features": [],
        "settings": {"flags": {"seed": 2}, "env": {"B": "2"}},
        "roles": {"decode": {"tp": 4, "settings": {"env": {"C": "3"}}}},
    },
    "a3": {"features": ["prefix-caching"], "roles": {"prefill": {"nodes": 2}}},
}


def family(hardware=HARDWARE, **more) -> Family:
    return Family.model_validate(PUBLISHED | {"hardware": hardware, **more})


def test_each_hardware_has_its_recipe_in_the_order_of_the_file():
    made = list(family().recipes())
    assert [(one.hardware, one.tried, one.engine_version, one.features) for one in made] == [
        ("h200", True, "0.25.1", ("tool-parser",)),
        ("b200", False, "0.27.1", ()),
        ("a3", True, "0.25.1", ("prefix-caching",)),
    ]
    assert [one.source.deployment for one in made] == [
        f"guide:{name}:pd_{name}" for name in ("h200", "b200", "a3")
    ]
    same = {(one.layout, one.title, one.router, str(one.source)) for one in made}
    assert same == {("pd", "For several hardware", "upstream", "guide 2")}


def test_settings_and_roles_are_those_of_the_family_but_for_what_is_named():
    h200, b200, a3 = family().recipes()
    for one in (h200, a3):
        assert one.settings.flags == {"seed": 1, "max-num-seqs": 8}
        assert one.settings.env == {"A": "1"}
    assert b200.settings.flags == {"seed": 2, "max-num-seqs": 8}
    assert b200.settings.env == {"A": "1", "B": "2"}
    shapes = [
        {name: (role.nodes, role.tp, role.dp) for name, role in one.roles.items()}
        for one in (h200, b200, a3)
    ]
    assert shapes == [
        {"prefill": (1, 8, 1), "decode": (1, 8, 2)},
        {"prefill": (1, 8, 1), "decode": (1, 4, 2)},
        {"prefill": (2, 8, 1), "decode": (1, 8, 2)},
    ]
    assert [one.roles["decode"].settings.env for one in (h200, b200)] == [{}, {"C": "3"}]
    assert {one.roles["prefill"].settings.flags["x"] for one in (h200, b200, a3)} == {1}


@pytest.mark.parametrize(
    "given",
    [
        {**PUBLISHED},
        {**PUBLISHED, "hardware": {}},
        {**PUBLISHED, "hardware": "h200"},
        {**PUBLISHED, "hardware": ["h200"]},
        ["h200"],
        None,
    ],
)
def test_a_family_without_hardware_is_refused(given):
    with pytest.raises(ValidationError) as caught:
        Family.model_validate(given)
    said = "Value error, a family has hardware: with a key for each hardware, {} at the least"
    assert [one["msg"] for one in caught.value.errors()] == [said]


def test_wrong_words_are_found_in_the_family_and_in_its_hardware():
    with pytest.raises(ValidationError) as caught:
        family({"h200": {"tp": 8}}, variant=7)
    places = {".".join(map(str, one["loc"])) for one in caught.value.errors()}
    assert places == {"hardware.h200.tp", "recipe.variant"}
    with pytest.raises(ValidationError):
        Families.model_validate({})
    (one,) = Families.model_validate({"recipes": [PUBLISHED | {"hardware": HARDWARE}]}).recipes
    assert [made.hardware for made in one.recipes()] == ["h200", "b200", "a3"]
