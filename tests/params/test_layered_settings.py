"""Settings in layers: whose value holds, where it came from, and what is refused."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import settings
from kimi_nb.params.schema import Settings
from kimi_nb.params.settings import EMPTY, Layer, Layered, Value, flag_name, flattened, fold, lay


def flags(given: dict, below: Layered = EMPTY) -> dict:
    """The values of flags that are laid on others."""
    return plain(lay(below, {"flags": given}, "override", "--set").flags)


def plain(values) -> dict:
    return {name: one.value for name, one in values.items()}


def refused(**given) -> str:
    with pytest.raises(ParameterError) as caught:
        lay(EMPTY, given, "site", "mine.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("--max_num_seqs", "max-num-seqs"),
        ("max-num-seqs", "max-num-seqs"),
        ("  -O ", "O"),
        ("--compilation_config.cudagraph_mode", "compilation-config.cudagraph_mode"),
        ("a_b.c_d.e_f", "a-b.c_d.e_f"),
        ("seed--", "seed--"),
        ("seed-.", "seed-."),
        ("X_seed_X", "X-seed-X"),
    ],
)
def test_the_name_of_a_flag(given, name):
    assert flag_name(given) == name


# Layers ---------------------------------------------------------------------------------------


def test_the_later_layer_holds_and_is_named():
    below = lay(EMPTY, {"flags": {"seed": 1, "max_num_seqs": 64}}, "recipe", "a 1")
    above = lay(below, {"flags": {"--max-num-seqs": {"value": 32, "reason": "less"}}}, "site", "b")
    assert above.flags == {
        "seed": Value(1, "recipe", "a 1", ""),
        "max-num-seqs": Value(32, "site", "b", "less"),
    }
    assert above.env == {}
    assert below.flags["max-num-seqs"] == Value(64, "recipe", "a 1", "")


def test_variables_are_texts_and_have_a_layer_too():
    below = lay(EMPTY, {"env": {"A": 1, "B": "x"}, "flags": {"seed": 1}}, "hardware", "a3")
    above = lay(below, {"env": {"A": {"value": 2, "reason": "why"}, "B": None}}, "site", "b")
    assert above.env == {"A": Value("2", "site", "b", "why")}
    assert plain(above.flags) == {"seed": 1}
    assert below.env == {"A": Value("1", "hardware", "a3", ""), "B": Value("x", "hardware", "a3")}
    assert lay(below, {"env": {"C": None}}, "site", "b").env == below.env
    both = lay(EMPTY, {"env": {"A": None, "B": "x"}}, "site", "b")
    assert plain(both.env) == {"B": "x"}


def test_layers_are_laid_in_their_order():
    first = Layer(Settings(flags={"seed": 1, "a": 1}, env={"X": "1"}), "model", "k2.5")
    second = Layer({"flags": {"seed": 2}}, "site", "mine.yaml")
    found = fold([first, second])
    assert found.flags == {
        "seed": Value(2, "site", "mine.yaml"),
        "a": Value(1, "model", "k2.5"),
    }
    assert found.env == {"X": Value("1", "model", "k2.5")}
    assert plain(fold([second, first]).flags) == {"seed": 1, "a": 1}
    assert plain(fold([second], below=found).flags) == {"seed": 2, "a": 1}
    assert fold([]) is EMPTY and fold([], found) is found


@pytest.mark.parametrize("nothing", [{}, {"flags": {}}, {"env": {}}, Settings()])
def test_a_layer_without_settings_changes_nothing(nothing):
    below = lay(EMPTY, {"flags": {"seed": 1}}, "recipe", "a")
    assert lay(below, nothing, "site", "b") is below


# Tables of flags ------------------------------------------------------------------------------


def test_a_table_is_kept_as_its_leaves():
    found = lay(
        EMPTY,
        {"flags": {"c_c": {"m": {"a": 1, "b": {"value": 2, "reason": "two"}}, "n": {}, "l": [1]}}},
        "recipe",
        "doc",
    )
    assert found.flags == {
        "c-c.m.a": Value(1, "recipe", "doc", ""),
        "c-c.m.b": Value(2, "recipe", "doc", "two"),
        "c-c.n": Value({}, "recipe", "doc", ""),
        "c-c.l": Value([1], "recipe", "doc", ""),
    }


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"c.m.a": 9}, {"c.m.a": 9, "c.m.b": 2, "c.n": 3, "cc": 4}),
        ({"c.m": None}, {"c.n": 3, "cc": 4}),
        ({"c.m": 5}, {"c.m": 5, "c.n": 3, "cc": 4}),
        ({"c": None}, {"cc": 4}),
        ({"c": {}}, {"c": {}, "cc": 4}),
        ({"c.n": None}, {"c.m.a": 1, "c.m.b": 2, "cc": 4}),
        ({"c.n.x": 6}, {"c.m.a": 1, "c.m.b": 2, "c.n.x": 6, "cc": 4}),
        ({"c.n.x.y": 6}, {"c.m.a": 1, "c.m.b": 2, "c.n.x.y": 6, "cc": 4}),
        ({"cc.x": 7, "c": 8}, {"cc.x": 7, "c": 8}),
        ({"gone": None, "seed": 1}, {"c.m.a": 1, "c.m.b": 2, "c.n": 3, "cc": 4, "seed": 1}),
    ],
)
def test_a_whole_replaces_its_parts_and_a_part_the_whole(given, left):
    below = lay(EMPTY, {"flags": {"c": {"m": {"a": 1, "b": 2}, "n": 3}, "cc": 4}}, "recipe", "a")
    assert flags(given, below) == left


@pytest.mark.parametrize(
    ("given", "leaves"),
    [
        ({"value": 1, "reason": "r"}, Value(1, "site", "s", "r")),
        ({"value": 1}, Value(1, "site", "s", "")),
        ({"value": 1, "reason": 2}, Value(1, "site", "s", "2")),
    ],
)
def test_a_value_may_have_a_reason(given, leaves):
    assert lay(EMPTY, {"flags": {"a": given}}, "site", "s").flags == {"a": leaves}


def test_a_table_with_another_key_than_value_and_reason_is_a_table():
    assert flags({"a": {"value": 1, "of": 2}}) == {"a.value": 1, "a.of": 2}
    assert flags({"a": {"reason": "x"}}) == {"a.reason": "x"}


def test_tables_lie_sixteen_deep_at_most():
    def deep(many: int) -> object:
        return {"k": deep(many - 1)} if many else 1

    assert flags({"a": deep(16)}) == {"a" + ".k" * 16: 1}
    assert refused(flags={"a": deep(17)}) == "a" + ".k" * 17 + "...: more than 16 keys deep."
    long = refused(flags={"b" * 80: deep(17)})
    assert long == "b" * 60 + "...: more than 16 keys deep."


def test_nested_and_flattened_are_inverse():
    leaves = {"seed": 1, "c.a.x": 1, "c.a.y": [2], "c.b": {}}
    tables = {"seed": 1, "c": {"a": {"x": 1, "y": [2]}, "b": {}}}
    assert settings.nested(leaves) == tables
    assert flattened("c", tables["c"]) == {"c.a.x": 1, "c.a.y": [2], "c.b": {}}
    assert flattened("seed", 1) == {"seed": 1}
    assert flattened("c", {}) == {"c": {}}


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "", ".a", "a..b", "a.", "a;b", "a.b$"])
def test_a_name_that_no_flag_has(name):
    assert refused(flags={name: 1}) == (
        f"mine.yaml: {name}: not the name of a flag, or of a key of a JSON flag "
        "(letters, digits, '_', '-', and '.' between keys)."
    )


@pytest.mark.parametrize("name", ["A-B", "1A", "", "A B", "A.B"])
def test_a_name_that_no_variable_has(name):
    assert (
        refused(env={name: "1"}) == f"mine.yaml: {name}: not the name of an environment variable."
    )


@pytest.mark.parametrize(
    ("name", "named"), [("HF_TOKEN", "HF_TOKEN"), ("VLLM_API_KEY", "MY_KEY"), ("TOKEN", "TOKEN")]
)
def test_a_secret_is_refused_and_not_shown(name, named):
    for value in ("sk-1", {"value": "sk-1", "reason": "r"}, True):
        assert refused(env={name: value}) == (
            f"mine.yaml: {name}: secrets are never written down. Keep the value in the environment "
            f"and name it in the site file: api_key_env: {named}."
        )
    below = Layered(env={name: Value("x", "site", "s")})
    assert lay(below, {"env": {name: None}}, "site", "b").env == {}


@pytest.mark.parametrize("value", [True, False, 1.0, [1], {"a": 1}, {}])
def test_a_variable_is_a_text_or_a_whole_number(value):
    assert refused(env={"A": value}) == (
        f"mine.yaml: A: found {value!r}: put the value of a variable in quotes, so that YAML keeps "
        "it as it is written."
    )


ALLOWED = "(letters, digits, spaces and . _ / : @ % + = , ~ - [ ] { } are)"


@pytest.mark.parametrize(
    "value", ["a;b", ["x", "a;b"], {"k": ["a;b"]}, {"k": {"a;b": 1}}, ("a;b",), {"value": "a;b"}]
)
def test_shell_characters_are_found_wherever_they_stand(value):
    told = f": found 'a;b': the character ';' is not allowed {ALLOWED}."
    below = [value] if isinstance(value, dict) and "value" not in value else value
    assert refused(flags={"a": below}) == f"mine.yaml: a{told}"


def test_a_long_text_is_shown_in_part():
    long = "x" * 100 + ";"
    assert f": found {'x' * 80!r}: the character ';'" in refused(flags={"a": long})
    long = "-" + "x" * 100
    assert f": found {'-' + 'x' * 79!r}: a value that" in refused(flags={"a": long})
    assert refused(env={"A": "x;" + "y" * 99}).startswith("mine.yaml: A: found 'x;yyyy")


@pytest.mark.parametrize("where", ["flags", "env"])
def test_a_value_that_would_be_read_as_a_flag(where):
    assert refused(**{where: {"A": "-x"}}) == (
        "mine.yaml: A: found '-x': a value that starts with '-' would be read as a flag."
    )


@pytest.mark.parametrize(
    "value",
    [0, -1, 2**63 - 1, 1 - 2**63, True, 0.5, -1e300, "", "a-b", [None], [], ["x", 1, {"k": None}]],
)
def test_values_of_json_are_kept(value):
    assert flags({"a": value}) == {"a": value}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**63, "9223372036854775808 (int)"),
        (-(2**63), "-9223372036854775808 (int)"),
        (10**50, f"{'1' + '0' * 39} (int)"),
        (float("inf"), "inf (float)"),
        (float("nan"), "nan (float)"),
        (b"x", "b'x' (bytes)"),
        ([{1}], "{1} (set)"),
    ],
)
def test_what_json_cannot_hold_is_refused(value, shown):
    assert refused(flags={"a": value}) == (
        f"mine.yaml: a: found {shown}: a text, a finite number, true, false, a list or a mapping is "
        "wanted."
    )
