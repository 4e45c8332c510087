"""What two rows of the catalog differ in, and the words for it."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import differences
from kimi_nb.catalog.differences import Change, difference, entries, notes
from kimi_nb.core.errors import ParameterError

LISTED = ("1", "2", "3", "4")


def run(first: str, last: str, **more) -> dict:
    return {"first": first, "last": last, **more}


# Rows of a version ----------------------------------------------------------------------------

TABLE = {
    "serve": {"--a": [run("1", "2", takes_value=True), run("4", "4", takes_value=False)]},
    "bench_serve": {"--a": [run("2", "3", takes_value=True, default="bench-0123abcd-")]},
    "bench_latency": {"--b": [run("1", "4", takes_value=True, default="x-0123abcd-y")]},
    "bench_throughput": {"--c": [run("1", "1", takes_value=True, default=["bench-0123abcd-"])]},
    "configs": {"Own": {"key": [run("1", "4")]}, "enum:Mode": {"NONE": [run("v2", "v3")]}},
    "nested": {"Own": {"other": [run("1", "4")]}, "Deep": {"k": [run("1", "1")]}},
    "additional_config": {"x": [run("3", "3", env="X")]},
    "env_read_elsewhere": {"X": [run("1", "4", default=1)], "Y": [run("1", "4")]},
    "env": {"X": [run("2", "2", default=2)], "Z": [run("1", "4")]},
}


@pytest.mark.parametrize(
    ("version", "there"),
    [
        (
            "1",
            {
                ("flag", "serve", "a"): {"takes_value": True},
                ("flag", "bench latency", "b"): {"takes_value": True, "default": "x-0123abcd-y"},
                ("flag", "bench throughput", "c"): {
                    "takes_value": True,
                    "default": ["bench-0123abcd-"],
                },
                ("key", "Own", "other"): {},
                ("key", "Deep", "k"): {},
                ("variable", "env", "X"): {"default": 1},
                ("variable", "env", "Y"): {},
                ("variable", "env", "Z"): {},
            },
        ),
        (
            "2",
            {
                ("flag", "serve", "a"): {"takes_value": True},
                ("flag", "bench serve", "a"): {"takes_value": True, "default": "bench-(random)-"},
                ("flag", "bench latency", "b"): {"takes_value": True, "default": "x-0123abcd-y"},
                ("key", "Own", "other"): {},
                ("key", "Mode", "NONE"): {},
                ("variable", "env", "X"): {"default": 2},
                ("variable", "env", "Y"): {},
                ("variable", "env", "Z"): {},
            },
        ),
        (
            "3",
            {
                ("flag", "bench serve", "a"): {"takes_value": True, "default": "bench-(random)-"},
                ("flag", "bench latency", "b"): {"takes_value": True, "default": "x-0123abcd-y"},
                ("key", "Own", "other"): {},
                ("key", "Mode", "NONE"): {},
                ("key", "additional_config", "x"): {"env": "X"},
                ("variable", "env", "X"): {"default": 1},
                ("variable", "env", "Y"): {},
                ("variable", "env", "Z"): {},
            },
        ),
    ],
)
def test_everything_of_a_version(version, there):
    assert entries(TABLE, LISTED, version) == there
    assert entries({}, LISTED, version) == {}


def test_what_a_package_knows_at_a_version():
    ours = differences.at(catalog.engine("vllm", "0.19.0"))
    assert ours == differences.at(catalog.engine("vllm", "0.18.0"))
    assert ("flag", "serve", "seed") in ours and ("key", "additional_config", "x") not in ours
    plugin = differences.at(catalog.engine("vllm-ascend", "0.22.1rc1"))
    assert ("key", "additional_config", "enable_mlapo") in plugin
    assert ("flag", "serve", "seed") not in plugin
    assert ("key", "additional_config", "enable_mlapo") not in differences.at(
        catalog.engine("vllm-ascend", "0.18.0")
    )


# Words for one change -------------------------------------------------------------------------


@pytest.fixture
def two(monkeypatch):
    """Compare two versions whose rows are given, by the place of each."""

    def compare(was: dict, now: dict) -> list[Change]:
        rows = {"0.18.0": was, "0.19.1": now}
        monkeypatch.setattr(differences, "at", lambda engine: rows[engine.version])
        return difference("vllm", "0.18.0", "0.19.1")

    return compare


def flag(name: str = "x", where: str = "serve", **row) -> dict:
    return {("flag", where, name): {"takes_value": True, **row}}


def key(name: str = "x", where: str = "additional_config", **row) -> dict:
    return {("key", where, name): row}


def variable(name: str = "X", **row) -> dict:
    return {("variable", "env", name): row}


OPTIONAL = "optional_type.<locals>._optional_type({})"


@pytest.mark.parametrize(
    ("row", "details"),
    [
        (flag(takes_value=False), "switch"),
        (flag(), "str"),
        (flag(type="int", default=3), "int; default 3"),
        (flag(type="int", default=None), "int; default null"),
        (flag(type="x.<locals>.<lambda>"), "text that the parser reads itself"),
        (flag(type="loads"), "json"),
        (flag(type="json"), "json"),
        (flag(type="union_dict_and_str"), "json or str"),
        (flag(type="human_readable_int"), "int (or 32k)"),
        (flag(type="human_readable_int_or_auto"), "int (or 32k, or auto)"),
        (flag(type=OPTIONAL.format("int")), "int or None"),
        (flag(type=OPTIONAL.format("loads")), "json"),
        (flag(type=OPTIONAL.format("human_readable_int")), "int (or 32k) or None"),
        (flag(type=OPTIONAL.format("a.<locals>.b")), "b or None"),
        (
            flag(choices=["a", 1], default="a", deprecated=True),
            'str; choices a, 1; default "a"; deprecated',
        ),
        (flag(choices=[], deprecated=False), "str"),
        (flag(default={"__class__": "Own"}), "str; default Own()"),
        (flag(default={"__class__": "Own", "a": 1}), 'str; default {"__class__": "Own", "a": 1}'),
        (flag(default="\u4e2d"), 'str; default "\\u4e2d"'),
        (key(), ""),
        (key(default=False), "default false"),
        (key(default="(env)", env="X"), "in place of X"),
        (key(also_under="table", default=1), "default 1; under table"),
        (key(env="X", also_under="t", deprecated=True), "deprecated; in place of X; under t"),
        (variable(default=None), "default null"),
        (variable(default="0", env="X"), 'default "0"; in place of X'),
        (variable(choices=["a"]), ""),
    ],
)
def test_what_is_added(two, row, details):
    (kind, where, name), *_ = row
    assert two({}, row) == [Change(kind, where, name, "added", details)]


def test_what_was_a_name_of_another_flag(two):
    was = flag("long", aliases=["--x", "-l"]) | flag("other", "bench serve", aliases=["--y"])
    now = flag("long") | flag("x") | flag("y") | flag("other", "bench serve")
    found = {one.name: one.details for one in two(was, now) if one.what == "added"}
    assert found == {"x": "was a name of --long; str", "y": "str"}
    back = {one.name: one.details for one in two(now, was) if one.what == "removed"}
    assert back == {"x": "now a name of --long", "y": ""}
    # A key of that name is no flag.
    odd = {("key", "serve", "k"): {"aliases": ["--x"]}}
    assert [one.details for one in two(odd, odd | flag("x"))] == ["str"]


@pytest.mark.parametrize(
    ("row", "now", "details"),
    [
        (
            flag("swap-space"),
            {},
            "use kv-offloading-size (GiB over all ranks; the V1 engine never swapped)",
        ),
        (flag("x"), {}, ""),
        (key("swap-space"), {}, ""),
        (variable("X"), {}, ""),
        (variable("X"), key("k", env="X"), "moved to additional_config k"),
        (variable("X"), key("k", env="X", also_under="t"), "moved to additional_config t.k"),
        (variable("X"), key("k", env="Y"), ""),
        (variable("X"), key("k", "Own", env="X"), ""),
    ],
)
def test_what_is_removed(two, row, now, details):
    (kind, where, name), *_ = row
    found = [one for one in two(row, now) if one.what == "removed"]
    assert found == [Change(kind, where, name, "removed", details)]


@pytest.mark.parametrize(
    ("old", "new", "details"),
    [
        (flag(type="int"), flag(type="float"), "type int -> float"),
        (flag(takes_value=False), flag(), "type switch -> str"),
        (flag(default=1), flag(default=2), "default 1 -> 2"),
        (flag(), flag(default=2), "default null -> 2"),
        (flag(default=2), flag(), "default 2 -> null"),
        (flag(choices=["a", 1]), flag(choices=[1, "b", "c"]), "choices + b, c, - a"),
        (flag(choices=["a"]), flag(choices=["a", "b"]), "choices + b"),
        (flag(choices=["a", "b"]), flag(choices=["b"]), "choices - a"),
        (flag(), flag(choices=["a", 1]), "choices now a, 1"),
        (flag(choices=["a", 1]), flag(), "no choices any more, before a, 1"),
        (flag(aliases=["-a"]), flag(aliases=["-b"]), "names + -b, - -a"),
        (flag(), flag(aliases=["-b", "--c"]), "names + -b, --c"),
        (flag(nargs="+"), flag(), "values + -> one"),
        (flag(), flag(nargs="?"), "values one -> ?"),
        (flag(), flag(deprecated=True, required=True), "deprecated; required"),
        (flag(deprecated=True, required=True), flag(), "no longer deprecated; no longer required"),
        (flag(type="int", default=1, nargs="+"), flag(default=2), "type int -> str; default 1 -> 2; values "
                                                                  "+ -> one"),
        (key(default=1), key(default=2), "default 1 -> 2"),
        (key(env="X"), key(env="Y"), "in place of Y"),
        (key(), key(env="Y"), "in place of Y"),
        (key(env="X"), key(), "no longer in place of X"),
        (key(), key(also_under="t"), "moved to t.x"),
        (key(also_under="s"), key(also_under="t"), "moved to t.x"),
        (key(also_under="t"), key(), "moved out of t"),
        (variable(default=1), variable(default=2), "default 1 -> 2"),
        (variable() | key("k", env="X"), variable() | key("k", env="X", also_under="t"),
         "moved to additional_config t.k"),
        (variable() | key("k", env="X"), variable() | key("k"), "additional_config k is gone"),
        (variable(), variable() | key("k", env="X"), "moved to additional_config k"),
    ],
)  # fmt: skip
def test_what_is_changed(two, old, new, details):
    (kind, where, name), *_ = old
    found = [one for one in two(old, new) if (one.kind, one.name) == (kind, name)]
    assert found == [Change(kind, where, name, "changed", details)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (key(default=1), key()),
        (key(), key(default=1)),
        (variable(), variable(default=1)),
        (variable(default=1), variable()),
        (flag(accepts=1), flag(accepts=2)),
        (flag(choices=["a", "b"]), flag(choices=["b", "a"])),
        (flag(choices=[1]), flag(choices=["1"])),
        (flag(type="loads"), flag(type="json")),
        (flag(), flag(default=None)),
        (key(type="int"), key(type="float")),
    ],
)
def test_what_is_no_change(two, old, new):
    assert two(old, new) == []


def test_order_and_what_is_no_key(two):
    was = key("z", "B") | key("a", "B") | flag("m", "A") | key("*", "B") | flag("b", "Z")
    now = variable("V") | key("*", "C") | key("m", "A")
    assert [(one.where, one.name, one.kind, one.what) for one in two(was, now)] == [
        ("A", "m", "flag", "removed"),
        ("A", "m", "key", "added"),
        ("B", "a", "key", "removed"),
        ("B", "z", "key", "removed"),
        ("Z", "b", "flag", "removed"),
        ("env", "V", "variable", "added"),
    ]


# Whole packages -------------------------------------------------------------------------------


def test_one_change_in_words():
    one = Change("flag", "serve", "x", "added", "switch")
    assert (one.label, str(one)) == ("--x", "serve: --x added, switch")
    other = Change("key", "Own", "x", "removed")
    assert (other.label, str(other), other.details) == ("x", "Own: x removed", "")


def test_the_table_of_changes():
    changes = [
        Change("flag", "serve", "a", "added", "switch"),
        Change("flag", "serve", "b", "added"),
        Change("key", "Own", "c", "changed", "default 1 -> 2"),
    ]
    table = differences.table(changes)
    assert table.title == "2 added, 0 removed, 1 changed"
    assert table.headings == ("where", "name", "what", "details")
    assert table.rows == (
        ("serve", "--a", "added", "switch"),
        ("serve", "--b", "added", ""),
        ("Own", "c", "changed", "default 1 -> 2"),
    )
    assert differences.table([]).title == "No difference" and differences.table([]).rows == ()


@pytest.mark.parametrize(
    ("package", "old", "new", "told"),
    [
        ("vllm", "0.18.0", "0.19.1", []),
        ("vllm", "0.18.0", "0.19.0", ["vllm 0.19.0 is not listed: 0.18.0 speaks for it."]),
        ("vllm", "0.19.0", "v0.19.0", ["vllm 0.19.0 is not listed: 0.18.0 speaks for it."]),
        ("vllm", "0.20.0", "0.19.0", ["vllm 0.20.0 is not listed: 0.19.1 speaks for it.",
                                      "vllm 0.19.0 is not listed: 0.18.0 speaks for it."]),
        ("vllm-ascend", "0.18.0", "0.22.1rc1",
         ["The vLLM beneath changed too, from 0.18.0 to 0.22.1: its difference is that of the package "
          "vllm."]),
        ("vllm-ascend", "0.23.0rc1", "0.23.0", []),
        ("vllm-ascend", "0.11.0", "0.11.0", []),
    ],
)  # fmt: skip
def test_notes(package, old, new, told):
    assert notes(package, old, new) == told


def test_another_package():
    told = "package 'vlm' is not known; did you mean 'vllm'? Allowed: vllm, vllm-ascend."
    for call in (difference, notes):
        with pytest.raises(ParameterError) as caught:
            call("vlm", "0.18.0", "0.19.1")
        assert str(caught.value) == told
    with pytest.raises(ParameterError, match="vllm version '9' is not known"):
        difference("vllm", "0.18.0", 9)


def test_a_step_of_the_real_tables():
    found = {(one.where, one.name): one for one in difference("vllm", "0.17.0", "0.18.0")}
    assert found["serve", "enable-ep-weight-filter"] == Change(
        "flag", "serve", "enable-ep-weight-filter", "added", "switch; default false"
    )
    assert found["serve", "kv-cache-dtype"].details == "choices + float16"
    names = {one.name for one in difference("vllm", "0.18.0", "0.17.0")}
    assert "swap-space" in names and "request-id-prefix" not in names
