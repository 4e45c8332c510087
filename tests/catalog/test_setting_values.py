"""What the fields of configuration classes take: choices, kinds, limits; and in which words not."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import setting_values
from kimi_nb.catalog.setting_values import fault, judged, limits


def vllm(version: str) -> catalog.Engine:
    return catalog.engine("vllm", version)


NEW, OLD = vllm("0.32.0"), vllm("0.11.2")


# One row --------------------------------------------------------------------------------------

FITS = {
    "null": [None],
    "bool": [True, False, 0, 1, 1.0, "true", "FALSE", "t", "F", "y", "N", "yes", "no", "on", "Off",
             "0", "1"],
    "int": [3, -3, 0, True, 2.0, "7", " +7 ", "-7.0", "7.00", "1_000", "\u20037\n"],
    "float": [3, 1.5, True, "1.5", "1e3", " 2 ", "inf", "-.5", "1_000", "\u20037"],
    "str": ["", "x", "1"],
    "list": [[], [1]],
    "dict": [{}, {"a": 1}],
}  # fmt: skip
MISSES = {
    "null": ["", 0, False, "null", [], {}],
    "bool": [None, 2, -1, 0.5, "tr", "", "2", "truee", [], {}],
    "int": [
        None,
        1.5,
        "x",
        "",
        "1.5",
        "7.",
        "1e3",
        "0x7",
        "\u0661",
        "7 7",
        "++7",
        "7.01",
        "1__0",
        "_1",
        "1_",
        [],
        {},
    ],
    "float": [None, "x", "", "1,5", "0x7", "\u0661", [], {}],
    "str": [None, 1, True, 1.5, [], {}],
    "list": [None, "", "[]", {}, 1, ()],
    "dict": [None, "", "{}", [], 1],
}
NAMES = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "dict": "an object",
}


@pytest.mark.parametrize("kind", FITS)
def test_what_is_of_a_kind_and_what_is_not(kind):
    for value in FITS[kind]:
        assert judged({"kinds": [kind]}, value) == "", value
    for value in MISSES[kind]:
        assert judged({"kinds": [kind]}, value) == f"{NAMES[kind]} is allowed", value


@pytest.mark.parametrize(
    ("accepts", "value", "told"),
    [
        ({}, 1, "nothing is allowed, the engine sets it itself"),
        ({"kinds": []}, None, "nothing is allowed, the engine sets it itself"),
        ({"kinds": ["int", "null"]}, "x", "a whole number, null are allowed"),
        ({"choices": ["a", 1]}, "b", "a, 1 are allowed"),
        ({"choices": ["a"]}, "b", "a is allowed"),
        ({"choices": ["a"], "kinds": ["null"]}, 3, "a, null are allowed"),
        ({"choices": [*"abcdefghijkl"]}, "x", "a, b, c, d, e, f, g, h, i, j, k, l are allowed"),
        (
            {"choices": [*"abcdefghijklm"]},
            "x",
            "a, b, c, d, e, f, g, h, i, j, k, l, ... are allowed",
        ),
        ({"choices": ["a", 1]}, "a", ""),
        ({"choices": ["a", 1]}, 1, ""),
        ({"choices": ["a"], "kinds": ["null"]}, None, ""),
        # A choice is of one type: 1 is neither true nor "1" nor 1.0.
        ({"choices": [1]}, True, "1 is allowed"),
        ({"choices": [1]}, "1", "1 is allowed"),
        ({"choices": [1]}, 1.0, "1 is allowed"),
        ({"choices": ["AB", 3], "caseless": True}, "aB", ""),
        ({"choices": ["AB", 3], "caseless": True}, 3, ""),
        ({"choices": ["AB", 3], "caseless": True}, "3", "AB, 3 are allowed"),
        ({"choices": ["AB"], "caseless": False}, "aB", "AB is allowed"),
        ({"choices": ["AB"]}, "ab", "AB is allowed"),
    ],
)
def test_choices_and_kinds(accepts, value, told):
    assert judged(accepts, value) == told


def test_lists_are_judged_item_by_item():
    row = {"kinds": ["list", "null"], "items": {"kinds": ["int"], "ge": 1}}
    assert judged(row, [1, 2]) == judged(row, []) == judged(row, None) == ""
    assert judged(row, [1, "x", 0]) == "in the list, of 'x': a whole number is allowed"
    assert judged(row, [1, 0]) == "in the list, of 0: 1 or more is allowed"
    assert judged({"kinds": ["list"]}, ["x", {}]) == ""
    # A text is no list of letters.
    both = {"kinds": ["str", "list"], "items": {"kinds": ["int"]}}
    assert judged(both, "xy") == "" and judged(both, ["xy"]).startswith("in the list, of 'xy'")


@pytest.mark.parametrize(
    ("row", "value", "told"),
    [
        ({"ge": 1}, 1, ""),
        ({"ge": 1}, 0, "1 or more is allowed"),
        ({"gt": 1}, 2, ""),
        ({"gt": 1}, 1, "greater than 1 is allowed"),
        ({"le": 1}, 1, ""),
        ({"le": 1}, 1.5, "at most 1 is allowed"),
        ({"lt": 1}, 0.5, ""),
        ({"lt": 1}, 1, "less than 1 is allowed"),
        ({"multiple_of": 8}, 16, ""),
        ({"multiple_of": 8}, 12, "a multiple of 8 is allowed"),
        ({"gt": 0, "le": 1}, 0.5, ""),
        ({"gt": 0, "le": 1}, 2, "greater than 0 and at most 1 is allowed"),
        ({"le": 1, "ge": 0, "x": 3}, 2, "0 or more and at most 1 is allowed"),
        ({}, 7, ""),
    ],
)
def test_limits(row, value, told):
    assert limits(row, value) == told


@pytest.mark.parametrize(
    ("kinds", "value", "told"),
    [
        (["int"], 0, "1 or more is allowed"),
        (["int"], "0", "1 or more is allowed"),
        (["float", "null"], "0.5", "1 or more is allowed"),
        (["int"], "1", ""),
        (["int"], 10**400, ""),
        (["int"], "1_000", ""),
        (["float", "null"], None, ""),
        # What may be a text or a switch is not held to the limits of numbers.
        (["int", "str"], "0", ""),
        (["float", "bool"], 0, ""),
        (["int", "str"], 0, "1 or more is allowed"),
        (["int", "bool"], -3, "1 or more is allowed"),
        (["str"], "0", ""),
    ],
)
def test_limits_are_those_of_numbers(kinds, value, told):
    assert judged({"kinds": kinds, "ge": 1}, value) == told


# By name --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("speculative-config.num_speculative_tokens", 0, "greater than 0 is allowed"),
        ("speculative-config.num_speculative_tokens", 3, ""),
        ("speculative-config.nothing", 3, ""),
        ("additional-config.anything", "x", ""),
        ("max-num-seqs.x", "x", ""),
        ("eplb-config.window_size", "x", "a whole number is allowed"),
        (
            "kv-transfer-config.kv_role",
            "kv_x",
            "kv_producer, kv_both, kv_consumer, null are allowed",
        ),
        ("kv-transfer-config.kv_connector_extra_config", 3, "an object is allowed"),
        # A key of an object: the field has to take an object.
        ("kv-transfer-config.kv_connector_extra_config.a.b", 3, ""),
        (
            "kv-transfer-config.kv_role.x",
            "kv_both",
            "kv_producer, kv_both, kv_consumer, null are allowed",
        ),
        ("kv-transfer-config.kv_port.x.y", 3, "a whole number is allowed"),
        # Classes within classes.
        ("compilation-config.pass_config", 3, "an object is allowed"),
        ("compilation-config.pass_config", {}, ""),
        ("compilation-config.pass_config", None, ""),
        ("compilation-config.pass_config.eliminate_noops", "x", "true or false is allowed"),
        ("compilation-config.pass_config.eliminate_noops", True, ""),
        ("compilation-config.pass_config.eliminate_noops.x", True, "true or false is allowed"),
        ("additional-config.pass_config", 3, ""),
        # Plain flags.
        ("attention-backend", "nothing", None),
        ("attention-backend", "flash_attn", ""),
        ("tensor-parallel-size", 0, None),
        ("tensor-parallel-size", 2, ""),
        ("seed", 7, ""),
        ("seed", "x", ""),
        ("nothing-at-all", 7, ""),
    ],
)
def test_a_value_by_its_name(name, value, told):
    found = fault(NEW, name, value)
    assert found == told if told is not None else found.endswith("allowed")


def test_the_limits_of_a_plain_flag():
    row = catalog.flag(NEW, "seed")
    assert "ge" not in row and fault(NEW, "seed", -5) == ""
    limited = {
        name.removeprefix("--"): run
        for name, runs in catalog.tables("vllm")["serve"].items()
        if (run := catalog.active(runs, NEW.known)) and run.get("ge") == 1
    }
    name = next(name for name in sorted(limited) if name != "tensor-parallel-size")
    assert fault(NEW, name, 0).startswith("1 or more")
    assert fault(NEW, name, 0.5).startswith("1 or more")
    assert fault(NEW, name, 1) == ""
    for other in (False, "0", None, [0]):
        assert fault(NEW, name, other) == ""


def test_what_is_allowed_depends_on_the_version():
    name = "compilation-config.pass_config.eliminate_noops"
    assert fault(vllm("0.16.0"), name, None) == ""
    assert fault(vllm("0.17.0"), name, None) == "true or false is allowed"
    assert fault(OLD, name, "x") == ""  # the key came with 0.12.0
    assert fault(catalog.engine("vllm-ascend", "0.18.0"), name, None) == "true or false is allowed"


def test_what_no_version_takes():
    name = "compilation-config.pass_config.eliminate_noops"
    assert not setting_values.never_taken(name, "x")
    assert not setting_values.never_taken("speculative-config.nothing", 3)
    assert setting_values.never_taken("kv-transfer-config.kv_port", "x")
    assert setting_values.never_taken("kv-transfer-config.kv_port", None)
    assert not setting_values.never_taken("kv-transfer-config.kv_port", 1)
    assert not setting_values.never_taken("kv-transfer-config.kv_ip", 3)  # gone with 0.32.0
