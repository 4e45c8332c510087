"""Settings of a recipe in the words of one engine version: moved, left out, refused."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import language
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params.settings import Layered, Value

OLD, NEW = catalog.engine("vllm-ascend", "0.18.0"), catalog.engine("vllm-ascend", "0.25.1rc1")
MIDDLE = catalog.engine("vllm-ascend", "0.22.1rc1")
VLLM = catalog.engine("vllm", "0.19.1")


def value(it: object, layer: str = "recipe", source: str = "doc", reason: str = "") -> Value:
    return Value(it, layer, source, reason)


def spoken(engine: catalog.Engine, flags=None, env=None, role="decode", layer="recipe"):
    """Flags, variables and notes; all values of one layer."""
    given = Layered(
        {name: value(it, layer) for name, it in (flags or {}).items()},
        {name: value(it, layer) for name, it in (env or {}).items()},
    )
    settings, notes = language.speak(given, engine, role)
    return (
        {name: one.value for name, one in settings.flags.items()},
        {name: one.value for name, one in settings.env.items()},
        notes,
    )


def refused(kind: type[Exception], *args, **named) -> str:
    with pytest.raises(kind) as caught:
        spoken(*args, **named)
    return str(caught.value)


# Variables ------------------------------------------------------------------------------------


def test_a_variable_that_became_a_key():
    flags, env, notes = spoken(MIDDLE, env={"VLLM_ASCEND_ENABLE_MLAPO": "1", "HCCL_BUFFSIZE": "2"})
    assert flags == {"additional-config.enable_mlapo": True}
    assert env == {"HCCL_BUFFSIZE": "2"}
    assert notes == (
        "VLLM_ASCEND_ENABLE_MLAPO is written as --additional-config enable_mlapo in "
        "vllm-ascend 0.22.1rc1",
    )
    assert spoken(OLD, env={"VLLM_ASCEND_ENABLE_MLAPO": "1"}) == (
        {},
        {"VLLM_ASCEND_ENABLE_MLAPO": "1"},
        (),
    )


def test_a_key_keeps_who_set_the_variable():
    given = value("1", "site", "mine.yaml", "why")
    settings, _ = language.speak(
        Layered({"seed": value(1)}, {"VLLM_ASCEND_ENABLE_MLAPO": given}), MIDDLE, "decode"
    )
    assert settings.flags == {
        "seed": value(1),
        "additional-config.enable_mlapo": Value(True, "site", "mine.yaml", "why"),
    }
    assert settings.env == {}


def test_a_key_below_a_table():
    flags, _, notes = spoken(NEW, env={"VLLM_ASCEND_BALANCE_SCHEDULING": "0"})
    assert flags == {"additional-config.scheduler_config.enable_balance_scheduling": False}
    assert notes == (
        "VLLM_ASCEND_BALANCE_SCHEDULING is written as --additional-config "
        "scheduler_config.enable_balance_scheduling in vllm-ascend 0.25.1rc1",
    )


def test_a_variable_that_is_a_number_stays_one():
    flags, _, _ = spoken(MIDDLE, env={"VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE": "1"})
    assert flags == {"additional-config.enable_flashcomm2_parallel_size": 1}
    assert type(flags["additional-config.enable_flashcomm2_parallel_size"]) is int


@pytest.mark.parametrize(
    ("text", "number", "it"),
    [
        ("1", False, True), ("0", False, False), ("true", False, True), ("false", False, False),
        ("1", True, 1), ("0", True, 0), ("true", True, True), ("2", False, 2), ("2", True, 2),
        ("9" * 18, False, int("9" * 18)), ("9" * 19, False, "9" * 19), ("\u0661", False, "\u0661"),
        ("\u00b2", False, "\u00b2"), ("x", False, "x"), ("-1", False, "-1"), ("", False, ""),
    ],
)  # fmt: skip
def test_the_json_of_a_variable_s_text(text, number, it):
    found = language.plain(text, number)
    assert found == it and type(found) is type(it)
    assert language.plain("1") is True


def test_a_variable_that_nobody_reads_is_left_out_unless_the_user_set_it():
    env = {"VLLM_RPC_TIMEOUT": "3600", "HCCL_IF_IP": "x"}
    assert spoken(VLLM, env=env) == (
        {},
        {"HCCL_IF_IP": "x"},
        (
            "VLLM_RPC_TIMEOUT is left out: never read by the versions searched, and unknown from "
            "vLLM 0.23.0",
        ),
    )
    assert spoken(VLLM, env=env, layer="override") == ({}, env, ())


def test_a_variable_that_the_version_no_longer_reads():
    runs = catalog.history("VLLM_ASCEND_ENABLE_DBO", "env")
    assert runs[-1]["last"] == "v0.11.0"
    told = "vllm-ascend 0.22.1rc1 does not read it (the listed versions that do end with 0.11.0)"
    env = {"VLLM_ASCEND_ENABLE_DBO": "1", "A": "2"}
    assert spoken(MIDDLE, env=env) == (
        {},
        {"A": "2"},
        (f"VLLM_ASCEND_ENABLE_DBO is left out: {told}",),
    )
    assert refused(PlanError, MIDDLE, env=env, layer="override") == (
        f"doc: VLLM_ASCEND_ENABLE_DBO: {told}."
    )
    old = catalog.engine("vllm-ascend", "0.11.0")
    assert spoken(old, env=env) == ({}, env, ())


# Flags ----------------------------------------------------------------------------------------


def test_a_key_that_moved_below_a_table():
    flags = {
        "additional-config.enable_balance_scheduling": True,
        "additional-config.a.b": 1,
        "seed": 0,
    }
    out, _, notes = spoken(NEW, flags)
    assert out == {
        "additional-config.scheduler_config.enable_balance_scheduling": True,
        "additional-config.a.b": 1,
        "seed": 0,
    }
    assert notes == (
        "--additional-config enable_balance_scheduling is written as "
        "scheduler_config.enable_balance_scheduling in vllm-ascend 0.25.1rc1",
    )
    assert spoken(MIDDLE, flags) == (flags, {}, ())
    whole = {"additional-config": {"enable_balance_scheduling": True}}
    assert spoken(NEW, whole) == (whole, {}, ())


@pytest.mark.parametrize("first", [0, 1])
def test_of_the_two_names_of_a_key_the_higher_layer_counts(first):
    """In whichever order they stand; of one layer, the name that this version has."""
    old, new = (
        f"additional-config.{x}enable_balance_scheduling" for x in ("", "scheduler_config.")
    )
    for layers, wanted in (
        (("override", "site"), "old"),
        (("site", "recipe"), "old"),
        (("recipe", "site"), "new"),
        (("site", "site"), "new"),
    ):
        pairs = [(old, value("old", layers[0])), (new, value("new", layers[1]))]
        flags = dict(pairs[::-1] if first else pairs)
        settings, _ = language.speak(Layered(flags, {}), NEW, "decode")
        assert {name: one.value for name, one in settings.flags.items()} == {new: wanted}


def test_a_key_that_a_role_ignores():
    flags = {"additional-config.recompute_scheduler_enable": True, "seed": 1}
    first = catalog.engine("vllm-ascend", "0.23.0")
    for engine in (first, NEW):
        assert spoken(engine, flags, role="prefill") == (
            {"seed": 1},
            {},
            ("--additional-config recompute_scheduler_enable is left out: prefill ignores it",),
        )
    assert spoken(first, flags, role="decode") == (flags, {}, ())
    assert spoken(MIDDLE, flags, role="prefill") == (flags, {}, ())
    assert spoken(first, flags, role="prefill", layer="override") == (flags, {}, ())


@pytest.mark.parametrize("layer", ["hardware", "model", "recipe"])
def test_a_flag_that_is_gone_is_left_out_of_what_was_written_for_others(layer):
    flags = {"swap-space": 4, "seed": 1}
    assert spoken(VLLM, flags, layer=layer) == (
        {"seed": 1},
        {},
        ("--swap-space is left out: vLLM 0.17.0 was the last with it",),
    )
    assert spoken(catalog.engine("vllm", "0.17.0"), flags, layer=layer) == (flags, {}, ())


@pytest.mark.parametrize("layer", ["site", "override", "plan"])
def test_a_flag_that_is_gone_is_refused_where_the_user_set_it(layer):
    told = refused(PlanError, VLLM, {"swap-space": 4}, layer=layer)
    assert told.startswith("doc: --swap-space is gone: vLLM 0.17.0 was the last")


def test_a_flag_that_is_not_there_yet_or_never():
    told = refused(PlanError, catalog.engine("vllm", "0.17.0"), {"enable-ep-weight-filter": True})
    assert told.startswith("doc: --enable-ep-weight-filter needs vLLM 0.18.0 or newer")
    assert refused(ParameterError, VLLM, {"nothing-x": 1}).startswith("doc: ")
    # The name is what decides, for a key of a JSON flag too.
    told = refused(PlanError, catalog.engine("vllm", "0.11.2"), {"watchdog-config.timeout": 1})
    assert "--watchdog-config needs vLLM" in told


def test_a_value_that_the_version_refuses():
    assert refused(ParameterError, VLLM, {"speculative-config.num_speculative_tokens": -1}) == (
        "doc: --speculative-config.num_speculative_tokens -1: greater than 0 is allowed in "
        "vllm 0.19.1."
    )
    long = {"eplb-config.window_size": ["x" * 90]}
    assert refused(ParameterError, VLLM, long) == (
        f"doc: --eplb-config.window_size {'[' + chr(34) + 'x' * 58}: a whole number is allowed in "
        "vllm 0.19.1."
    )
    assert refused(ParameterError, VLLM, {"max-num-seqs": 0}).startswith(
        "doc: --max-num-seqs is 1 to"
    )


def test_flags_keep_their_order_and_come_before_what_moved():
    settings, _ = language.speak(
        Layered(
            {"seed": value(1, "site", "s", "r"), "max-num-seqs": value(2)},
            {"VLLM_ASCEND_ENABLE_MLAPO": value("1"), "A": value("x")},
        ),
        MIDDLE,
        "decode",
    )
    assert list(settings.flags) == ["seed", "max-num-seqs", "additional-config.enable_mlapo"]
    assert settings.flags["seed"] == value(1, "site", "s", "r")
    assert settings.env == {"A": value("x")}
