"""YAML that says a thing twice, unfolds without end or is none is refused with its place and advice."""

from __future__ import annotations

import datetime

import pytest

from kimi_nb.core import strict_yaml

SPACES = (
    " Indent with spaces, two a level, and put quotes around a value that holds ': ' or starts with "
    "a sign."
)
QUOTES = " Put quotes around a text that looks like a date or a number."
ALIASES = "its aliases (&name, *name) unfold into far more than was written." + QUOTES


def refused(text: str) -> tuple[str, str]:
    with pytest.raises(strict_yaml.Fault) as told:
        strict_yaml.load(text)
    return str(told.value), told.value.place


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1, 2.5, 'on', null]\n2: {true: b}", {"a": [1, 2.5, "on", None], 2: {True: "b"}}),
        ("{1.5: a, 2: b}", {1.5: "a", 2: "b"}),
        ("day: 2026-01-31", {"day": datetime.date(2026, 1, 31)}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("{<<: {<<: {a: 1}, b: 2}, c: 3}", {"a": 1, "b": 2, "c": 3}),
        ("{b: 3, <<: [{a: 1, b: 2}, {a: 4}]}", {"a": 1, "b": 3}),
        ("{<<: {a: 1}, <<: {b: 2}}", {"a": 1, "b": 2}),
        ("{a: 1, <<: {a: 2}, b: {a: 3}}", {"a": 1, "b": {"a": 3}}),
        ("- &x {a: 1}\n- {<<: *x}\n- {<<: *x, b: 2}", [{"a": 1}, {"a": 1}, {"a": 1, "b": 2}]),
        ("", None),
    ],
)
def test_what_is_said(text, said):
    assert strict_yaml.load(text) == said


@pytest.mark.parametrize(
    ("text", "told", "line", "column"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' is given twice.", 3, 1),
        ("a: {<<: {b: 1}, c: 1, c: 1}", "the key 'c' is given twice.", 1, 23),
        ("{1: a, true: b}", "the key 'True' is given twice.", 1, 8),
        ("a: {[1]: 2}", "a key must be a plain word, found [1].", 1, 5),
        ("\n{<<: {}, null: 1}", "a key must be a plain word, found None.", 2, 10),
        ("a: {? {b: [1]} : 2}", "a key must be a plain word, found {'b': [1]}.", 1, 7),
        ("x: &a {b: 1, <<: *a}", "the mapping merges itself (<<).", 1, 4),
        ("{<<: [{a: 1}, 1]}", "expected a mapping for merging, but found scalar.", 1, 15),
        ("a: !x y", "could not determine a constructor for the tag '!x'.", 1, 4),
        ("a: !!map [1]", "expected a mapping node, but found sequence.", 1, 4),
        ("a: b: c", "mapping values are not allowed in this context." + SPACES, 1, 5),
        ("a:\n  b: *n", "found undefined alias." + SPACES, 2, 6),
    ],
)
def test_a_fault_has_its_place(text, told, line, column):
    assert refused(text) == (told, f", line {line}, column {column}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 2026-13-45", "month must be in 1..12." + QUOTES),
        # The message has an apostrophe before the 200 letters, and is cut after 160 characters.
        ("a: !!bool " + "x" * 200, "'" + "x" * 159 + "." + QUOTES),
        ('a: !!int ""', "not YAML." + QUOTES),
        ('a: !!float "_"', "not YAML." + QUOTES),
        ("a: !!timestamp soon", "not YAML." + QUOTES),
    ],
)
def test_a_value_that_is_none(text, told):
    assert refused(text) == (told, "")


def merged(times: int) -> str:
    """A mapping of 100 keys that is merged some times."""
    keys = ", ".join(f"k{at}: 0" for at in range(100))
    return f"a: &a {{{keys}}}\nb:\n  <<: [{', '.join(['*a'] * times)}]\n"


def test_merge_keys_bring_in_20000_keys_at_most():
    assert len(strict_yaml.load(merged(200))["b"]) == 100
    told = "its merge keys (<<) bring in more than 20000 keys."
    assert refused(merged(201)) == (told, ", line 3, column 7")
    # The keys of several mappings count together, though each of them has few.
    halves = merged(100) + "c:\n  <<: [" + ", ".join(["*a"] * 101) + "]\n"
    assert refused(halves) == (told, ", line 5, column 7")


def unfolded(last: int) -> str:
    """A list of 98 times 1,000 items, one of ``last`` and itself: 98,001 + 1 + ``last``."""
    row = ", ".join(["1"] * 999)
    return f"[&a [{row}], {', '.join(['*a'] * 97)}, [{', '.join(['1'] * last)}]]"


def test_aliases_unfold_into_100000_items_at_most():
    assert len(strict_yaml.load(unfolded(1998))) == 99
    assert refused(unfolded(1999)) == (ALIASES, "")


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ("{a: ", "}")])
def test_values_lie_80_deep_at_most(begin, end):
    strict_yaml.load(begin * 80 + "1" + end * 80)
    assert refused(begin * 81 + "1" + end * 81) == (ALIASES, "")


def test_an_alias_of_itself_has_no_end():
    assert refused("a: &a [*a]") == (ALIASES, "")
