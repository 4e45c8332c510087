"""Errata: which concern a plan, which can be off, and what the document has instead."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import errata
from kimi_nb.params.errata import Published, published, switched_off

PD = tuple(f"k2.5/a3/pd/{name}" for name in ("prefill0", "prefill1", "decode0", "decode1"))


def entry(name: str) -> dict:
    """One of the file."""
    (found,) = (one for one in errata.entries() if one["id"] == name)
    return found


def of(*changes: dict, commands=("x/prefill0", "x/prefill1")) -> dict:
    return {"id": "x", "commands": list(commands), "changes": list(changes)}


def argv(name: str, says: object, uses: object) -> dict:
    return {"where": "argv", "name": name, "says": says, "uses": uses}


def env(name: str, says: object, uses: object) -> dict:
    return {"where": "env", "name": name, "says": says, "uses": uses}


def has(argv: dict | None = None, env: dict | None = None) -> dict:
    return {"argv": argv or {}, "env": env or {}}


# Which ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("k2.5/a3/single", "mixed"),
        ("k2.5/a2/dp/node0", "mixed"),
        ("k2.5/a2/dp/node12", "mixed"),
        ("k2.6/a3/eagle3", "mixed"),
        ("single", "mixed"),
        ("k2.5/a3/pd/prefill0", "prefill"),
        ("k2.5/a3/pd/prefill-x", "prefill"),
        ("decode", "decode"),
        ("k2.5/a3/pd/decode1", "decode"),
        ("k2.5/a3/docker", ""),
        ("k2.5/a3/pd/proxy", ""),
        ("k2.5/a3/singles", ""),
        ("k2.5/a3/node", ""),
        ("k2.5/decode/x", ""),
        ("xsingle", ""),
        ("", ""),
    ],
)
def test_the_role_that_a_command_starts(command, role):
    assert errata.role_of(command) == role


def test_those_that_touch_a_command_in_the_order_of_the_file():
    every = errata.entries()
    found = errata.touching([PD[0], PD[2], "nothing"])
    assert [one["id"] for one in found] == [
        one["id"] for one in every if {PD[0], PD[2]} & set(one["commands"])
    ]
    names = {one["id"] for one in found}
    assert {"k2.5-rpc-timeout", "k2.5-prefill-draft", "k2.5-buffer-size"} <= names
    assert "k2.5-mounts" not in names and "k2.6-host" not in names
    assert errata.touching([]) == ()


@pytest.mark.parametrize(
    ("changes", "commands", "plan", "can"),
    [
        ([1], ["x/prefill0", "x/prefill1"], ["x/prefill0", "x/prefill1", "x/decode0"], True),
        ([1], ["x/prefill0"], ["x/prefill0", "x/prefill1", "x/decode0"], False),
        ([1], ["x/prefill0", "x/decode0"], ["x/prefill0", "x/decode0", "x/decode1"], False),
        ([1], ["x/prefill0", "y/single"], ["x/prefill0", "x/decode0"], True),
        ([1], ["x/prefill0", "y/decode0"], ["x/prefill0", "x/decode0"], False),
        ([1], ["y/prefill0"], ["x/prefill0", "x/prefill1"], True),
        ([1], ["x/prefill0", "x/docker"], ["x/prefill0"], False),
        ([1], ["x/docker"], ["x/docker"], False),
        ([], ["x/prefill0"], ["x/prefill0"], False),
        (None, ["x/prefill0"], ["x/prefill0"], False),
    ],
)
def test_those_that_can_be_off(changes, commands, plan, can):
    one = {"id": "x", "commands": commands} | ({} if changes is None else {"changes": changes})
    assert errata.switchable(one, plan) is can


def test_those_of_the_file_that_can_be_off_in_a_plan():
    names = {one["id"] for one in errata.touching(PD) if errata.switchable(one, PD)}
    assert {"k2.5-rpc-timeout", "k2.5-kv-port", "k2.5-buffer-size"} <= names
    assert not {"k2.5-jemalloc", "k2.5-shared-memory"} & names


def test_those_that_give_the_model_another_name():
    assert errata.renaming(["k2.5/bench"]) == {"k2.5-bench-target"}
    assert errata.renaming([PD[2]]) == frozenset(
        one["id"]
        for one in errata.touching([PD[2]])
        if "model" in [change["name"] for change in one.get("changes", [])]
    )
    assert "k2.5-rpc-timeout" not in errata.renaming(PD)


# On and off -----------------------------------------------------------------------------------

IDS = ["a", "b"]
EVERY = ["a", "b", "prose"]


@pytest.mark.parametrize(
    ("pairs", "off"),
    [
        ([], ""),
        (["a=off"], "a"),
        ([" b = off "], "b"),
        (["a=on"], ""),
        (["a=off", "a=on"], ""),
        (["a=on", "a=off"], "a"),
        (["all=off"], "ab"),
        (["all=off", "a=on"], "b"),
        (["a=off", "all=on", "b=off"], "b"),
        (["a=off", "b=off"], "ab"),
        (["a=off", "b=on"], "a"),
        (["prose=on", "a=off"], "a"),
        (["all=on"], ""),
    ],
)
def test_later_words_hold(pairs, off):
    assert switched_off(pairs, IDS, EVERY) == frozenset(off)


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("a", "ID=on or ID=off is wanted, such as k2.5-host=off."),
        ("a=", "ID=on or ID=off is wanted, such as k2.5-host=off."),
        ("a=OFF", "ID=on or ID=off is wanted, such as k2.5-host=off."),
        ("a=b=off", "ID=on or ID=off is wanted, such as k2.5-host=off."),
        ("aon", "ID=on or ID=off is wanted, such as k2.5-host=off."),
        ("c=on", "erratum of this plan 'c' is not known. Allowed: all, a, b, prose."),
        ("=off", "erratum of this plan '' is not known. Allowed: all, a, b, prose."),
        (
            "prose=off",
            "this one cannot be off: it changes no setting that the engines of a role share. These "
            "can: a, b.",
        ),
    ],
)
def test_what_is_refused(pair, told):
    with pytest.raises(ParameterError) as caught:
        switched_off(["a=off", pair], IDS, EVERY)
    assert str(caught.value) == f"--erratum {pair}: {told}"


def test_where_none_can_be_off():
    with pytest.raises(ParameterError, match=r"These can: none\.$"):
        switched_off(["prose=off"], [], EVERY)
    with pytest.raises(ParameterError) as caught:
        switched_off(["x" * 99], IDS, EVERY)
    assert str(caught.value).startswith(f"--erratum {'x' * 80}: ID=on")


# What the document has ------------------------------------------------------------------------


def test_only_a_role_of_its_commands():
    one = of(argv("seed", 1, 2))
    assert published(one, "prefill", has({"seed": 2})) == Published(flags={"seed": 1})
    assert published(one, "decode", has({"seed": 2})) == Published()
    assert published(one, "mixed", has({"seed": 2})) == Published()


@pytest.mark.parametrize(
    ("change", "plan", "flags"),
    [
        (argv("a", 3, 1), {"a": 1}, {"a": 3}),
        (argv("a", 3, 1), {"a": "1"}, {"a": 3}),
        (argv("a", 3, 1), {"a": 2}, {}),
        (argv("a", 3, 1), {}, {}),
        (argv("a", None, 1), {"a": 1}, {"a": None}),
        (argv("a", 3, None), {}, {"a": 3}),
        (argv("a", 3, None), {"a": None}, {"a": 3}),
        (argv("a", 3, None), {"a": 4}, {}),
        (argv("a", "false", "true"), {"a": True}, {"a": False}),
        (argv("a", "true", "false"), {"a": False}, {"a": True}),
        (argv("a", "true", "false"), {"a": True}, {}),
        (argv("a", "[1, 2]", "[3]"), {"a": [3]}, {"a": [1, 2]}),
        (argv("a", '{"x": 1}', '{"y": true}'), {"a": {"y": True}}, {"a": {"x": 1}}),
        (argv("a", "{address}", "x"), {"a": "x"}, {"a": "{address}"}),
        (argv("a", "{a_b}", "{c}"), {"a": "{c}"}, {"a": "{a_b}"}),
        (argv("a", "", "x"), {"a": "x"}, {"a": ""}),
        (argv("a", [None, 5, 6], [1, 2]), {"a": 2}, {"a": 5}),
        (argv("a", [None, None], [1, 2]), {"a": 1}, {"a": None}),
        (argv("a", 5, [1, 2]), {"a": 3}, {}),
        (argv("a", 5, ["true", "[1]"]), {"a": [1]}, {"a": 5}),
        (argv("a", "Xa", "x"), {"a": "x"}, {"a": "Xa"}),
    ],
)
def test_a_flag_of_the_document(change, plan, flags):
    assert published(of(change), "prefill", has(plan)) == Published(flags=flags)


@pytest.mark.parametrize(
    ("change", "plan", "variables"),
    [
        (env("A", 3600, 1), {"A": "1"}, {"A": "3600"}),
        (env("A", 3600, None), {}, {"A": "3600"}),
        (env("A", None, 1), {"A": "1"}, {"A": None}),
        (env("A", 3600, 1), {"A": "2"}, {}),
    ],
)
def test_a_variable_of_the_document(change, plan, variables):
    assert published(of(change), "prefill", has(env=plan)) == Published(env=variables)


def test_flags_and_variables_are_apart():
    one = of(argv("a", 1, 2), env("a", 3, 4), {"where": "argv", "name": "b", "uses": 2})
    assert published(one, "prefill", has({"a": 2}, {"a": "4"})) == Published({"a": 1}, {"a": "3"})
    assert published(one, "prefill", has({"a": 4, "b": 2}, {"a": 2})) == Published({"b": None})
    assert Published() == Published({}, {}, (), None)


def test_what_the_plan_derives_is_not_looked_up():
    assert published(of(argv("host", "0.0.0.0", "x")), "prefill", has()).host == "0.0.0.0"
    several = of(argv("host", [None, "0.0.0.0"], "x"))
    assert published(several, "prefill", has()) == Published(host="0.0.0.0")
    assert published(of(argv("host", None, ["x"])), "prefill", has()) == Published(host=None)
    name = "kv-transfer-config.kv_port"
    one = of(argv(name, 30100, 1), argv(name, 30000, 2), argv(name, 30200, 3))
    assert published(one, "prefill", has()) == Published(kv_port=30000)


GONE, COME = env("A", 1, None), argv("a", None, "true")


@pytest.mark.parametrize(
    ("changes", "plan", "found"),
    [
        # What the plan has moved: both are as in the document.
        ([GONE, COME], has({"a": True}), Published({"a": None}, {"A": "1"})),
        # The user has changed the new place: neither is.
        ([GONE, COME], has({"a": False}), Published()),
        ([GONE, COME], has(), Published()),
        # A move that does not hold says nothing of the next change.
        ([GONE, COME, argv("b", 1, 2)], has({"b": 2}), Published({"b": 1})),
        ([GONE, COME, env("B", 2, None), argv("b", None, 3)], has({"b": 3}),
         Published({"b": None}, {"B": "2"})),
        ([argv("b", None, 2), GONE, COME], has({"a": True, "b": 2}),
         Published({"a": None, "b": None}, {"A": "1"})),
        # Only neighbours are a move.
        ([GONE, argv("b", 1, 2), COME], has({"a": True}), Published({"a": None}, {"A": "1"})),
        ([GONE, argv("b", 1, 2), COME], has(), Published(env={"A": "1"})),
        ([COME, GONE], has(), Published(env={"A": "1"})),
        ([COME, GONE], has({"a": True}, {"A": "1"}), Published({"a": None})),
    ],
)  # fmt: skip
def test_a_setting_that_moved(changes, plan, found):
    assert published(of(*changes), "prefill", plan) == found


def test_entries_of_the_file():
    one = entry("k2.5-capture-sizes")
    sizes = [4, 8, *range(16, 161, 16)]
    name = "compilation-config.cudagraph_capture_sizes"
    mine = has({name: [*sizes, 176, 192]})
    assert published(one, "decode", mine) == Published(flags={name: sizes})
    assert published(one, "decode", has({name: [4]})) == Published()
    host = published(entry("k2.6-host"), "decode", has())
    assert host == Published(host="0.0.0.0")
