"""The command line of vLLM, read as its own parser does: spellings, values, faults."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import arguments
from kimi_nb.catalog.arguments import Given, Parsed, Unknown, Unread, parse, typed

ENGINE = catalog.engine("vllm", "0.19.1")
NOT_KNOWN = "its value is not known here"


def vllm(version: str) -> catalog.Engine:
    return catalog.engine("vllm", version)


def flags(*words: str, engine: catalog.Engine = ENGINE) -> dict:
    return dict(parse(engine, words).flags)


def given(*words: str, engine: catalog.Engine = ENGINE) -> Given:
    """The only option."""
    (one,) = parse(engine, words).given
    return one


# Spellings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--max-model-len", "32000"], {"max-model-len": 32000}),
        (["--max_model_len=32000"], {"max-model-len": 32000}),
        (["--max-mod", "32000"], {"max-model-len": 32000}),
        (["--max_mod=32000"], {"max-model-len": 32000}),
        (["-tp", "8"], {"tensor-parallel-size": 8}),
        (["-tp=8"], {"tensor-parallel-size": 8}),
        (["--enable-prefix-caching"], {"enable-prefix-caching": True}),
        (["--no-enable-prefix-caching"], {"enable-prefix-caching": False}),
        (["--no_enable_prefix_cach"], {"enable-prefix-caching": False}),
        (["-ep"], {"enable-expert-parallel": True}),
        (["--seed", "1", "--seed", "2"], {"seed": 2}),
        (["--enforce-eager", "--no-enforce-eager"], {"enforce-eager": False}),
        (["--host", "x", "--port=1"], {"host": "x", "port": 1}),
        (["--port", "-1"], {"port": -1}),
        (["--chat-template=a=b"], {"chat-template": "a=b"}),
        (["--chat-template="], {"chat-template": None}),
        (["--chat-template", ""], {"chat-template": None}),
        (["-O3"], {"optimization-level": "3"}),
        (["-O", "3"], {"optimization-level": "3"}),
        (["-O=3"], {"optimization-level": "3"}),
        (["-O0", "-O", "2"], {"optimization-level": "2"}),
    ],
)
def test_spellings_of_a_flag(words, value):
    assert flags(*words) == value


def test_what_is_kept_of_an_option():
    words = ["m", "--max_mod=7", "--no-enforce-eager", "-tp", "8", "-cc.mode", "3"]
    assert parse(ENGINE, words) == Parsed(
        words=words,
        given=(
            Given("max-model-len", "", "--max_mod", "7", False, 1),
            Given("enforce-eager", "", "--no-enforce-eager", None, True, 2),
            Given("tensor-parallel-size", "", "-tp", "8", False, 3),
            Given("compilation-config", "mode", "-cc.mode", "3", False, 5),
        ),
        flags={
            "max-model-len": 7,
            "enforce-eager": False,
            "tensor-parallel-size": 8,
            "compilation-config": {"mode": 3},
        },
        positional=((0, "m"),),
        stray=(),
        shared=(
            ("max-model-len", "", "7", False),
            ("enforce-eager", "", None, True),
            ("tensor-parallel-size", "", "8", False),
            ("compilation-config", "mode", "3", False),
        ),
    )


def test_the_flags_of_one_rank_are_not_shared():
    own = [word for name in sorted(arguments.OWN - {"headless"}) for word in (f"--{name}", "1")]
    found = parse(ENGINE, [*own, "--headless", "--seed", "1"])
    assert len(found.given) == len(arguments.OWN) + 1 and not [
        one for one in found.given if one.fault
    ]
    assert found.shared == (("seed", "", "1", False),)


@pytest.mark.parametrize(
    ("words", "one"),
    [
        (["--nothing", "x"], Given("nothing", "", "--nothing", "x", False, 0, "unknown")),
        (["--no_thing=x=y"], Given("no-thing", "", "--no_thing", "x=y", False, 0, "unknown")),
        (["--nothing"], Given("nothing", "", "--nothing", None, False, 0, "unknown")),
        (["--nothing="], Given("nothing", "", "--nothing", "", False, 0, "unknown")),
        (["--nothing.a_b.c", "x"], Given("nothing.a-b.c", "a_b.c", "--nothing.a_b.c", "x", False, 0, "unknown")),
        (["---seed", "x"], Given("-seed", "", "---seed", "x", False, 0, "unknown")),
        (["-Xx", "x"], Given("Xx", "", "-Xx", "x", False, 0, "unknown")),
        (["-zz", "x"], Given("zz", "", "-zz", "x", False, 0, "unknown")),
        (["-zz.a", "x"], Given("zz.a", "", "-zz.a", "x", False, 0, "unknown")),
        (["-Odecode"], Given("Odecode", "", "-Odecode", None, False, 0, "unknown")),
        (["--"], Given("", "", "--", None, False, 0, "unknown")),
        (
            ["--enable-prefix-cachin-x", "-1"],
            Given("enable-prefix-cachin-x", "", "--enable-prefix-cachin-x", "-1", False, 0, "unknown"),
        ),
        (["--headless=x"], Given("headless", "", "--headless", "x", False, 0, "stray value")),
        (["--headless="], Given("headless", "", "--headless", "", False, 0, "stray value")),
        (["--seed"], Given("seed", "", "--seed", None, False, 0, "missing value")),
        (["--seed="], Given("seed", "", "--seed", "", False, 0, "")),
        (["--served-model-name"], Given("served-model-name", "", "--served-model-name", None, False, 0, "missing value")),
        (["--hf-token"], Given("hf-token", "", "--hf-token", "", False, 0, "")),
        (["--hf-token", "x"], Given("hf-token", "", "--hf-token", "x", False, 0, "")),
    ],
)  # fmt: skip
def test_options_with_a_fault(words, one):
    assert given(*words) == one


@pytest.mark.parametrize(
    ("words", "text", "flags", "positional"),
    [
        (["--nothing", "x", "m"], "x", {}, ((2, "m"),)),
        (["--nothing=x", "m"], "x", {}, ((1, "m"),)),
        (["--nothing=", "m"], "", {}, ((1, "m"),)),
        (["--nothing", "--seed", "1"], None, {"seed": 1}, ()),
        (["--nothing", "--headless", "x"], None, {"headless": True}, ((2, "x"),)),
        (["--nothing"], None, {}, ()),
    ],
)
def test_what_follows_an_option_that_is_not_known(words, text, flags, positional):
    found = parse(ENGINE, words)
    assert (found.given[0].text, found.given[0].fault) == (text, "unknown")
    assert (found.flags, found.positional, found.stray) == (flags, positional, ())
    behind = parse(ENGINE, ["m", "--headless", *words])
    assert (behind.given[1].text, behind.flags) == (text, flags | {"headless": True})


def test_what_an_ambiguous_prefix_could_mean():
    one = given("--max-num-")
    assert (one.fault, one.text) == ("ambiguous", None)
    assert one.candidates == (
        "--max-num-batched-tokens",
        "--max-num-partial-prefills",
        "--max-num-seqs",
    )
    both = given("--no_data-parallel-h.x", "7")
    assert both.fault == "" and both.name == "data-parallel-hybrid-lb" and both.path == "x"
    two = parse(ENGINE, ["--max-num-.a_b", "x", "--seed", "1"])
    assert two.given[0].path == "a_b" and two.given[0].text == "x" and two.flags == {"seed": 1}
    # An exact name is one also where it begins another.
    assert given("--data-parallel-size", "1").name == "data-parallel-size"
    assert given("--", "x").candidates == ()


# Words ----------------------------------------------------------------------------------------


def test_positional_and_stray_words():
    found = parse(ENGINE, ["m", "--seed", "1", "x", "--headless", "y", "z"])
    assert found.positional == ((0, "m"),)
    assert found.stray == ((3, "x"), (5, "y"), (6, "z"))
    assert parse(ENGINE, ["--seed", "1", "m"]).positional == ((2, "m"),)
    # The first is the model wherever it stands, behind a switch too.
    behind = parse(ENGINE, ["--headless", "m"])
    assert (behind.positional, behind.stray) == (((1, "m"),), ())
    none = parse(ENGINE, ["a", "--seed", "1"], positionals=0)
    assert (none.positional, none.stray) == ((), ((0, "a"),))
    two = parse(ENGINE, ["a", "b", "c"], positionals=2)
    assert (two.positional, two.stray) == (((0, "a"), (1, "b")), ((2, "c"),))
    switch = parse(ENGINE, ["a", "--headless", "b", "c"], positionals=3)
    assert (switch.positional, switch.stray) == (((0, "a"), (3, "c")), ((2, "b"),))
    value = parse(ENGINE, ["a", "--seed", "1", "b", "--headless", "--seed=2", "c"], positionals=3)
    assert value.positional == ((0, "a"), (3, "b"), (6, "c")) and value.stray == ()
    assert parse(ENGINE, []) == Parsed([], (), {}, (), (), ())


@pytest.mark.parametrize("word", ["-1", "-1.5", "-.5", "-", "x", "", "-a b", "- x", "-x y=z"])
def test_words_that_are_no_options(word):
    found = parse(ENGINE, ["--host", word])
    assert found.given[0].text == word and len(found.given) == 1


@pytest.mark.parametrize("word", ["--", "-x", "-1x", "--a=b c", "-a=b c", "--no-such"])
def test_words_that_are_options(word):
    found = parse(ENGINE, ["--host", word])
    assert found.given[0] == Given("host", "", "--host", None, False, 0, "missing value")
    assert found.given[1].index == 1 and found.flags == {}


def test_flags_of_several_values():
    found = parse(
        ENGINE, ["--served-model-name", "a", "b", "--cudagraph-capture-sizes", "1", "x", "-tp", "2"]
    )
    assert found.flags == {
        "served-model-name": ["a", "b"],
        "cudagraph-capture-sizes": [1, Unread("x", "a whole number is wanted")],
        "tensor-parallel-size": 2,
    }
    assert [(one.text, one.index) for one in found.given] == [("a b", 0), ("1 x", 3), ("2", 6)]
    equals = parse(ENGINE, ["--served-model-name=a", "b"])
    assert equals.flags == {"served-model-name": ["a"]} and equals.positional == ((1, "b"),)
    one = parse(ENGINE, ["--hf-token", "a", "b"])
    assert one.flags == {"hf-token": "a"} and one.positional == ((2, "b"),)
    assert parse(ENGINE, ["--hf-token", "--seed", "1"]).flags == {"hf-token": "", "seed": 1}


def test_another_command_has_other_flags():
    words = ["--model", "m", "--num-prompts", "7"]
    found = parse(ENGINE, words, "bench_serve", positionals=0)
    assert found.flags == {"model": "m", "num-prompts": 7}
    assert [one.fault for one in parse(ENGINE, words).given] == ["", "unknown"]
    assert parse(vllm("0.17.0"), ["--swap-space", "4"]).flags == {"swap-space": 4.0}
    assert given("--swap-space", "4").fault == "unknown"


def test_a_flag_of_none_or_many_values():
    many = parse(ENGINE, ["--metadata", "a=b", "c=d", "--seed", "1"], "bench_serve", positionals=0)
    assert many.flags == {"metadata": ["a=b", "c=d"], "seed": 1} and many.stray == ()
    none = parse(ENGINE, ["--metadata"], "bench_serve", positionals=0)
    assert none.flags == {"metadata": []}
    assert none.given == (Given("metadata", "", "--metadata", "", False, 0),)


def test_every_spelling_of_a_version():
    known = arguments.options("0.19.1", "serve")
    for spelt, name, off in [
        ("--enforce-eager", "enforce-eager", False),
        ("--no-enforce-eager", "enforce-eager", True),
        ("-dpe", "data-parallel-external-lb", False),
        ("-tp", "tensor-parallel-size", False),
        ("--seed", "seed", False),
    ]:
        assert (known[spelt].name, known[spelt].off) == (name, off)
        assert known[spelt].spec == catalog.flag(ENGINE, name)
    assert "--swap-space" not in known and "--swap-space" in arguments.options("0.17.0", "serve")


# Keys of JSON flags ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (["-cc.mode", "3"], {"mode": 3}),
        (["-cc.mode=3"], {"mode": 3}),
        (["--compilation_config.pass_config.x_y", "true"], {"pass_config": {"x_y": True}}),
        (["--compilation-con.a", "text"], {"a": "text"}),
        (["-cc.a", "[1]", "-cc.b={}"], {"a": [1], "b": {}}),
        (["-cc.a.b", "1", "-cc.a.c", "2", "-cc.d", "3"], {"a": {"b": 1, "c": 2}, "d": 3}),
        (["-cc.a", "1", "-cc.a.b", "2"], {"a": {"b": 2}}),
        (["-cc.a.b", "1", "-cc.a", "2"], {"a": 2}),
        (["-cc", '{"a": {"b": 1}}', "-cc.a.c", "2"], {"a": {"b": 1, "c": 2}}),
        (["-cc.a", "1", "-cc", '{"b": 2}'], {"b": 2}),
        (["-cc", "x", "-cc.a", "1"], {"a": 1}),
        (["-cc.a+", "4"], {"a": 4}),
        (["-cc.aX+", "4"], {"aX": 4}),
        (["-cc.a.b="], {"a": {"b": ""}}),
        (["-cc.a", "-1"], {"a": -1}),
    ],
)
def test_keys_of_a_json_flag(words, config):
    found = parse(ENGINE, words)
    assert found.flags == {"compilation-config": config}
    assert not [one for one in found.given if one.fault]


def test_a_key_without_a_value():
    found = parse(ENGINE, ["m", "-cc.mode", "--seed", "1", "-cc.x"])
    assert found.given == (
        Given("compilation-config", "mode", "-cc.mode", None, False, 1, "missing value"),
        Given("seed", "", "--seed", "1", False, 2),
        Given("compilation-config", "x", "-cc.x", None, False, 4, "missing value"),
    )
    assert found.flags == {"seed": 1}
    one = given("--compilation_config.mode=")
    assert (one.text, one.fault, one.spelt) == ("", "", "--compilation_config.mode")
    assert given("-cc.mode", "").fault == "missing value"


def test_a_key_leaves_the_value_of_an_earlier_line_alone():
    like = parse(ENGINE, ["--kv-transfer-config", '{"a": {"b": 1}}'])
    whole = like.flags["kv-transfer-config"]
    more = parse(
        ENGINE, ["--kv-transfer-config", '{"a": {"b": 1}}', "--kv-transfer-config.a.c", "2"]
    )
    assert more.flags["kv-transfer-config"] == {"a": {"b": 1, "c": 2}} and whole == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("version", "words", "found"),
    [
        # Up to 0.11.2 -O is the short name of --compilation-config, and -O3 its mode.
        ("0.11.2", ["-O3"], {"compilation-config": {"mode": 3}}),
        ("0.11.2", ["-O", "3"], {"compilation-config": {"mode": 3}}),
        ("0.11.2", ["-O=3"], {"compilation-config": {"mode": 3}}),
        ("0.11.2", ["-O3", "m"], {"compilation-config": {"mode": 3}}),
        ("0.11.2", ["-O", "3", "m"], {"compilation-config": {"mode": 3}}),
        ("0.11.2", ["-O", "4"], {"compilation-config": 4}),
        ("0.11.2", ["-O.mode", "3"], {"compilation-config": {"mode": 3}}),
        ("0.11.2", ["-O.a.b=x"], {"compilation-config": {"a": {"b": "x"}}}),
        ("0.11.2", ["-O", '{"mode": 3}'], {"compilation-config": {"mode": 3}}),
        # 0.12.0 still takes its keys.
        (
            "0.12.0",
            ["-O3", "-O.mode=2"],
            {"optimization-level": "3", "compilation-config": {"mode": 2}},
        ),
        ("0.12.0", ["-O.mode", "2"], {"compilation-config": {"mode": 2}}),
        ("0.13.0", ["-O", "1"], {"optimization-level": "1"}),
    ],
)
def test_optimization_by_version(version, words, found):
    parsed = parse(vllm(version), words)
    assert parsed.flags == found and not [one for one in parsed.given if one.fault]


@pytest.mark.parametrize("words", [["-O.mode", "3"], ["-O.mode=3"]])
def test_keys_of_optimization_are_gone(words):
    for version in ("0.13.0", "0.19.1", "0.33.0"):
        one = given(*words, engine=vllm(version))
        assert (one.name, one.text, one.fault) == ("O.mode", "3", "unknown")


# Values ---------------------------------------------------------------------------------------

OPTIONAL = "optional_type.<locals>._optional_type({})"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "7", 7), ("int", "+7", 7), ("int", "-7", -7), ("int", "1" * 18, int("1" * 18)),
        ("float", "1.5", 1.5), ("float", "1e3", 1000.0), ("float", "7", 7.0),
        ("str", "7", "7"), ("str", "", ""), ("str", "MAX_LEN", "MAX_LEN"),
        ("other", "7", "7"),
        ("human_readable_int", "32k", 32_000), ("human_readable_int", "32K", 32_768),
        ("human_readable_int", "1.5k", 1500), ("human_readable_int", "1.5m", 1_500_000),
        ("human_readable_int", "2M", 2 * 2**20), ("human_readable_int", "1g", 10**9),
        ("human_readable_int", "1G", 2**30), ("human_readable_int", "2t", 2 * 10**12),
        ("human_readable_int", "2T", 2 * 2**40), ("human_readable_int", "-7", -7),
        ("human_readable_int_or_auto", "auto", "auto"), ("human_readable_int_or_auto", "AUTO", "auto"),
        ("human_readable_int_or_auto", "-1", -1), ("human_readable_int_or_auto", "8k", 8000),
        ("json", '{"a": 1}', {"a": 1}), ("loads", "[1]", [1]), ("json", "3", 3),
        ("union_dict_and_str", '{"a": 1}', {"a": 1}), ("union_dict_and_str", ' {"a": 1}', {"a": 1}),
        ("union_dict_and_str", "path/x", "path/x"), ("union_dict_and_str", "[1]", "[1]"),
        (OPTIONAL.format("int"), "7", 7), (OPTIONAL.format("int"), "None", None),
        (OPTIONAL.format("int"), "", None), (OPTIONAL.format("str"), "None", None),
        (OPTIONAL.format("str"), "none", "none"), (OPTIONAL.format("human_readable_int"), "1k", 1000),
        (OPTIONAL.format("loads"), "None", None), (OPTIONAL.format("loads"), "{}", {}),
        ("str", "None", "None"),
    ],
)  # fmt: skip
def test_a_value_of_a_kind(kind, text, value):
    found = typed({"type": kind}, text)
    assert found == value and type(found) is type(value)


WHOLE, SIZE = "a whole number is wanted", "a whole number or a size such as 32k is wanted"
UNIT = "a binary unit (K, M, G) takes no decimals; use k, m or g"


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("int", "x", WHOLE), ("int", "1.5", WHOLE), ("int", "", WHOLE), ("int", "1" * 19, WHOLE),
        ("int", "7 ", WHOLE), ("int", "--7", WHOLE), (OPTIONAL.format("int"), "x", WHOLE),
        ("float", "x", "a number is wanted"), ("float", "1,5", "a number is wanted"),
        ("human_readable_int", "32x", SIZE), ("human_readable_int", "k", SIZE),
        ("human_readable_int", "auto", SIZE), ("human_readable_int", "1.k", SIZE),
        ("human_readable_int", "1.5", SIZE), ("human_readable_int", "1" * 13 + "k", SIZE),
        ("human_readable_int_or_auto", "auto2", SIZE),
        ("human_readable_int", "1.5K", UNIT), ("human_readable_int", "1.0T", UNIT),
        ("json", "{a: 1}", "not JSON: Expecting property name enclosed in double quotes: line 1 column "
                           "2 (char 1)"),
        ("loads", "", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("union_dict_and_str", "{x", "not JSON: Expecting property name enclosed in double quotes: "
                                     "line 1 column 2 (char 1)"),
    ],
)  # fmt: skip
def test_a_value_that_its_flag_refuses(kind, text, why):
    found = typed({"type": kind}, text)
    assert found == Unread(text, why) and type(found) is Unread


def test_json_that_is_nested_too_deep():
    text = "[" * 100_000
    assert typed({"type": "json"}, text) == Unread("[" * 80, "JSON nested too deep")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "$PORT"), ("int", "${PORT}"), ("int", "1${PORT}"), ("str", "a${X}b"), ("str", "$X"),
        ("int", "PORT"), ("int", "MAX_MODEL_LEN"), ("float", "RATIO"), ("human_readable_int", "LEN"),
        ("int", "<port>"), ("str", "<model path>"), ("str", "\u2039model\u203a"), ("int", "xxx"),
        ("int", "..."), ("json", "..."), ("json", "{...}"), ("json", "{ .... }"), ("json", "$CONFIG"),
        ("union_dict_and_str", "${CONFIG}"), ("union_dict_and_str", "{...}"), ("other", "xxx"),
        (OPTIONAL.format("int"), "$N"), (OPTIONAL.format("loads"), "..."),
    ],
)  # fmt: skip
def test_a_value_that_is_left_to_the_reader(kind, text):
    found = typed({"type": kind}, text)
    assert found == Unknown(text, NOT_KNOWN) and type(found) is Unknown


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("str", "a$X", "a$X"), ("str", "xxx", "xxx"), ("str", "1.x.x", "1.x.x"), ("str", "a<b>", "a<b>"),
        ("json", '{"a": <n>}', None), ("json", '{"a": xxx}', {"a": "xxx"}),
        ("json", '{"a": "<n>"}', {"a": "<n>"}), ("json", '["\u2039n\u203a"]', ["\u2039n\u203a"]),
        ("json", '{"a": \u2039n\u203a, "b": 1}', {"a": "\u2039n\u203a", "b": 1}),
        ("union_dict_and_str", "<x>", "<x>"), ("", "xxx", "xxx"), ("", "a$X", "a$X"),
    ],
)  # fmt: skip
def test_fill_ins_within_a_value(kind, text, value):
    found = typed({"type": kind}, text)
    if value is None:
        assert type(found) is Unread and found.why.startswith("not JSON: ")
    else:
        assert found == value


def test_json_that_need_not_be_there():
    for text in ("", "None"):
        assert typed({"type": "json"}, text) is None
        assert typed({"type": "json", "default": None}, text) is None
        assert type(typed({"type": "json", "default": {}}, text)) is Unread
        assert typed({"type": "str"}, text) == typed({}, text) == text
    assert typed({}, "xxx") == "xxx"
    assert type(typed({"type": "loads"}, "None")) is Unread
    assert flags("--kv-transfer-config", "None") == {"kv-transfer-config": None}


# The same again -------------------------------------------------------------------------------

BASE = ["m", "--port", "8000", "--seed", "1", "--host", "a", "--headless", "--node-rank=0"]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({2: "8001"}, True),
        ({2: "8001", 6: "b"}, True),
        ({2: "x"}, True),
        ({}, True),
        ({4: "2"}, False),
        ({0: "n"}, False),
        ({2: "--x"}, False),
        ({5: "--nic"}, False),
        ({8: "--node-rank=1"}, False),
        ({7: "--enforce-eager"}, False),
    ],
)
def test_words_that_differ_in_values_of_one_rank(change, same):
    like = parse(ENGINE, BASE)
    words = [change.get(at, word) for at, word in enumerate(BASE)]
    found, fresh = parse(ENGINE, words, like=like), parse(ENGINE, words)
    assert found == fresh
    assert (arguments._again(ENGINE, words, "serve", like) is not None) is same
    assert like == parse(ENGINE, BASE)


@pytest.mark.parametrize("name", sorted(arguments.OWN))
def test_a_flag_of_one_rank_has_one_value(name):
    runs = catalog.history(name, "serve")
    assert runs and not [run for run in runs if "nargs" in run]


def test_words_that_differ_in_more_are_parsed_anew():
    like = parse(ENGINE, BASE)
    assert parse(ENGINE, BASE[:-1], like=like) == parse(ENGINE, BASE[:-1])
    assert parse(ENGINE, [*BASE, "x"], like=like) == parse(ENGINE, [*BASE, "x"])
    for line, at, word in [
        (["--kv-transfer-config.kv_port", "1"], 1, "2"),  # a key of a flag
        (["--port", "1", "2"], 2, "3"),
        (["--port=1", "m"], 1, "n"),  # the word behind it is not its value
        (["--prt", "1"], 1, "2"),
        (["--port", "1", "--port", "2"], 1, "3"),  # the last one wins
        (["--kv-transfer-config", '{"a": 1}', "--kv-transfer-config.b", "2"], 1, '{"a": 3}'),
        (["--kv-transfer-config", '{"kv_port": 1}'], 1, '{"kv_port": 2}'),
    ]:
        before = parse(ENGINE, line)
        after = [*line]
        after[at] = word
        assert parse(ENGINE, after, like=before) == parse(ENGINE, after), line
