"""Versions, flags and variables as the catalog has them, and what is refused in which words."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import engine_catalog
from kimi_nb.catalog.engine_catalog import Engine
from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError, PlanError


def vllm(version: str) -> Engine:
    return catalog.engine("vllm", version)


def ascend(version: str) -> Engine:
    return catalog.engine("vllm-ascend", version)


ENGINE = vllm("0.19.1")


def refused(kind: type[Exception], call, *args) -> str:
    with pytest.raises(kind) as caught:
        call(*args)
    return str(caught.value)


# Versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "version", "engine"),
    [
        ("vllm", "0.19.1", ("0.19.1", "0.19.1", "0.19.1")),
        ("vllm", " v0.19.1 ", ("0.19.1", "0.19.1", "0.19.1")),
        ("vllm", "0.19.0", ("0.19.0", "0.19.0", "0.18.0")),
        ("vllm", "0.20.0rc12", ("0.20.0rc12", "0.20.0rc12", "0.19.1")),
        ("vllm", "0.20.2.post1", ("0.20.2.post1", "0.20.2.post1", "0.20.2")),
        ("vllm", "0.33.9", ("0.33.9", "0.33.9", "0.33.0")),
        ("vllm", "0.11.2", ("0.11.2", "0.11.2", "0.11.2")),
        ("vllm-ascend", "v0.22.1rc1", ("0.22.1rc1", "0.22.1", "0.22.1")),
        ("vllm-ascend", "0.17.0rc1", ("0.17.0rc1", "0.17.0", "0.17.0")),
        # A tag without a row of its own goes with the vLLM of its number.
        ("vllm-ascend", "0.24.0rc1", ("0.24.0rc1", "0.24.0", "0.24.0")),
        # Before the first listed vLLM, the first one speaks.
        ("vllm-ascend", "0.11.0", ("0.11.0", "0.11.0", "0.11.2")),
    ],
)
def test_an_engine_by_its_version(package, version, engine):
    found = catalog.engine(package, version)
    assert found == Engine(package, *engine)
    assert str(found) == f"{package} {engine[0]}" and found.tag == f"v{engine[0]}"


@pytest.mark.parametrize(
    "version",
    ["0.19", "0.19.1.2", "0.19.1a1", "0.19.1.dev3", "new", "", "vv0.19.1", "0.19.1rc", "0.11.1",
     "0.34.0", "1.0.0", "0.33.0rc", "00000.1.1", "0.19.1rc1234", "0.19.1+cpu", "0.19.1.post",
     "\u0660.19.1", "0.19.1-rc1"],
)  # fmt: skip
def test_versions_that_were_never_released(version):
    told = refused(ParameterError, catalog.engine, "vllm", version)
    assert told.startswith(f"vllm version '{version.removeprefix('v')}' is not known")
    assert told.endswith(f"Allowed: {', '.join(catalog.versions('vllm'))}.")


def test_odd_versions():
    assert catalog.engine("vllm", "0.12.0rc1").known == "0.11.2"
    told = refused(ParameterError, catalog.engine, "vllm-ascend", "0.22.1")
    assert told == (
        "vllm-ascend version '0.22.1' is not known; did you mean '0.22.1rc1'? Allowed: "
        f"{', '.join(catalog.versions('vllm-ascend'))}."
    )
    long = refused(ParameterError, catalog.engine, "vllm", "v" + "7" * 60)
    assert long.startswith(f"vllm version '{'7' * 40}' is not known")
    assert refused(ParameterError, catalog.engine, "vllm", 7).startswith("vllm version '7' is not")
    assert catalog.engine("vllm", "0.0019.1").known == "0.19.1"


def test_the_vllm_of_a_tag_is_that_of_its_row(monkeypatch):
    rows = {"vllm-ascend": {"0.18.0": {"vllm": "0.17.0"}, "0.17.0rc1": {"torch": "2.9.0"}}}
    monkeypatch.setattr(data_files, "facts", {"catalog/versions": rows}.get)
    assert ascend("0.18.0") == Engine("vllm-ascend", "0.18.0", "0.17.0", "0.17.0")
    assert ascend("0.17.0rc1") == Engine("vllm-ascend", "0.17.0rc1", "0.17.0", "0.17.0")


def test_versions_are_no_words(monkeypatch):
    monkeypatch.setattr(engine_catalog, "versions", lambda package: ("0.9.0", "0.11.0", "0.12.0"))
    assert [vllm(one).known for one in ("0.9.9", "0.10.0", "0.11.1", "0.12.7")] == [
        "0.9.0", "0.9.0", "0.11.0", "0.12.0",
    ]  # fmt: skip


def test_listed_versions_are_those_of_the_tables():
    assert catalog.versions("vllm")[:2] == ("0.11.2", "0.12.0")
    assert catalog.versions("vllm-ascend")[:3] == ("0.11.0", "0.12.0rc1", "0.13.0")
    assert {"serve", "env", "configs"} <= set(catalog.tables("vllm"))
    assert catalog.tables("vllm-ascend")["tags"][0] == "v0.11.0"


@pytest.mark.parametrize(
    ("engine", "needed", "lies"),
    [
        (ENGINE, "", True),
        (ENGINE, ">=0.18.0", True),
        (ENGINE, ">=0.19.2", False),
        (ENGINE, ">=0.18,<0.19", False),
        (ascend("0.22.1rc1"), "==0.22.1", True),
        (vllm("0.20.0rc1"), ">=0.19.0", True),
        (vllm("0.20.0rc1"), ">=0.20.0", False),
    ],
)
def test_whether_a_vllm_lies_in_a_range(engine, needed, lies):
    assert catalog.satisfies(engine, needed) is lies


def test_whether_an_engine_serves_a_model():
    ranges = {"vllm": ">=0.20.0", "vllm-ascend": ">=0.18.0rc1"}
    assert not catalog.serves(ENGINE, ranges) and catalog.serves(vllm("0.20.2"), ranges)
    assert catalog.serves(ascend("0.19.1rc1"), ranges)
    assert not catalog.serves(ascend("0.17.0rc1"), ranges)
    assert catalog.serves(ENGINE, {}) and catalog.serves(ascend("0.11.0"), {"vllm": ">=9"})
    assert catalog.serves(vllm("0.21.0rc1"), {"vllm": ">=0.20.0"})


@pytest.mark.parametrize(
    ("one", "other", "is_so"),
    [("v0.9.2", "v0.18.0", True), ("0.18.0", "v0.18.0", False), ("v0.18.0", "0.9.2", False),
     ("0.18.0rc1", "0.18.0", True)],
)  # fmt: skip
def test_which_version_is_earlier(one, other, is_so):
    assert catalog.earlier(one, other) is is_so


def test_which_version_is_older_than_an_engine():
    assert catalog.older("0.18.0", ENGINE) and not catalog.older("0.19.1", ENGINE)
    assert not catalog.older("0.20.2", ENGINE)
    between = vllm("0.19.0")  # 0.18.0 speaks for it
    assert catalog.older("0.17.0", between) and not catalog.older("0.18.0", between)


# Rows -----------------------------------------------------------------------------------------

RUNS = [
    {"first": "v0.9.0", "last": "v0.11.0", "n": 1},
    {"first": "0.13.0", "last": "0.13.0", "n": 2},
    {"first": "0.14.0rc1", "last": "0.20.0", "n": 3},
]


@pytest.mark.parametrize(
    ("version", "number"),
    [("0.9.0", 1), ("0.10.1", 1), ("0.11.0", 1), ("0.12.0", None), ("0.13.0", 2), ("0.14.0rc1", 3),
     ("0.20.0", 3), ("0.20.1", None), ("0.8.9", None)],
)  # fmt: skip
def test_the_run_of_a_version(version, number):
    found = catalog.active(RUNS, version)
    assert (found["n"] if found else None) == number
    assert catalog.active([], version) is None


def test_a_flag_and_a_variable_at_a_version():
    assert catalog.flag(vllm("0.17.0"), "swap-space")["takes_value"] is True
    assert catalog.flag(ENGINE, "swap-space") is None and catalog.flag(ENGINE, "nothing") is None
    assert catalog.flag(ENGINE, "num-prompts") is None
    assert catalog.flag(ENGINE, "num-prompts", "bench_serve")["type"] == "int"
    assert catalog.variable(ENGINE, "VLLM_HOST_IP") and not catalog.variable(ENGINE, "HCCL_IF_IP")
    name = "VLLM_ASCEND_ENABLE_MLAPO"
    assert catalog.variable(ascend("0.13.0"), name)["default"] == "0"
    assert catalog.variable(ascend("0.18.0"), name)["default"] == "1"
    assert catalog.variable(ENGINE, name) is None
    assert catalog.variable(ascend("0.18.0"), "HCCL_IF_IP") is None
    # Where both read it, the entry is vLLM's.
    assert "default" not in catalog.variable(ascend("0.18.0"), "MAX_JOBS")
    assert catalog.variable(ascend("0.18.0"), "VLLM_ASCEND_ENABLE_DBO") is None


def test_all_ranges_of_a_name():
    assert [(run["first"], run["last"]) for run in catalog.history("swap-space", "serve")] == [
        ("0.11.2", "0.17.0")
    ]
    mlapo = catalog.history("VLLM_ASCEND_ENABLE_MLAPO", "env")
    assert [run["first"] for run in mlapo] == ["v0.11.0", "v0.14.0rc1"]
    assert catalog.history("VLLM_ASCEND_ENABLE_MLAPO", "serve") == []
    assert catalog.history("MAX_JOBS", "env") == [{"first": "0.11.2", "last": "0.33.0"}]
    assert catalog.history("NOTHING", "env") == catalog.history("nothing", "serve") == []


def test_variables_that_any_version_reads():
    found = catalog.ever_read()
    assert found["VLLM_ASCEND_ENABLE_MLAPO"] == ("0.11.0", "0.25.1rc1")
    assert found["MAX_JOBS"] == ("0.11.2", "0.33.0")  # vLLM's, not the plugin's
    assert found["DYNAMIC_EPLB"] == ("0.12.0rc1", "0.25.1rc1")  # declared, and then read elsewhere
    assert found["ASCEND_CUSTOM_OPP_PATH"] == ("0.12.0rc1", "0.19.1rc1")
    assert "NOTHING" not in found
    several = [runs for runs in catalog.tables("vllm")["env"].values() if len(runs) > 1]
    assert several
    for name, runs in catalog.tables("vllm")["env"].items():
        assert found[name] == (runs[0]["first"], runs[-1]["last"])


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("swap-space", ("0.11.2", "0.17.0")),
        ("disable-log-requests", ("0.11.2", "0.16.0")),
        ("no-enable-log-requests", ("0.11.2", "0.33.0")),
        ("nothing", None),
        ("--swap-space", None),
        ("num-prompts", None),
    ],
)
def test_the_first_and_the_last_version_with_a_flag(name, span):
    assert catalog.listed(name) == span


# Keys of the plugin ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "variable", "key"),
    [
        (ascend("0.22.1rc1"), "VLLM_ASCEND_ENABLE_MLAPO", "enable_mlapo"),
        (ascend("0.18.0"), "VLLM_ASCEND_ENABLE_MLAPO", None),
        (ascend("0.22.1rc1"), "VLLM_ASCEND_BALANCE_SCHEDULING", "enable_balance_scheduling"),
        (ascend("0.25.1rc1"), "VLLM_ASCEND_BALANCE_SCHEDULING",
         "scheduler_config.enable_balance_scheduling"),
        (ascend("0.25.1rc1"), "VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL", None),
        (ascend("0.22.1rc1"), "NOTHING", None),
        (vllm("0.22.1"), "VLLM_ASCEND_ENABLE_MLAPO", None),
    ],
)  # fmt: skip
def test_the_key_that_replaces_a_variable(engine, variable, key):
    assert catalog.moved(engine, variable) == key


@pytest.mark.parametrize(
    ("engine", "key", "where"),
    [
        (ascend("0.25.1rc1"), "enable_balance_scheduling", "scheduler_config.enable_balance_scheduling"),
        (ascend("0.24.0rc1"), "enable_balance_scheduling", "enable_balance_scheduling"),
        (ascend("0.25.1rc1"), "enable_mlapo", "enable_mlapo"),
        (ascend("0.25.1rc1"), "nothing", "nothing"),
        (vllm("0.25.1"), "enable_balance_scheduling", "enable_balance_scheduling"),
    ],
)  # fmt: skip
def test_where_a_key_lives(engine, key, where):
    assert catalog.additional_key(engine, key) == where


def test_a_variable_that_is_a_number():
    assert catalog.takes_number("VLLM_ASCEND_ENABLE_NZ")
    assert catalog.takes_number("VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE")
    for name in ("VLLM_ASCEND_ENABLE_MLAPO", "CMAKE_BUILD_TYPE", "NOTHING"):
        assert not catalog.takes_number(name)


def test_a_key_that_a_role_ignores():
    assert catalog.ignored("prefill", "recompute_scheduler_enable") == "0.23.0"
    assert catalog.ignored("decode", "recompute_scheduler_enable") == ""
    assert catalog.ignored("prefill", "nothing") == ""


# Values of a flag -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enforce-eager", True), ("enforce-eager", False), ("headless", True),
        ("max-num-seqs", 7), ("max-num-seqs", 1), ("max-num-seqs", 1_000_000),
        ("max-model-len", "32k"), ("max-model-len", "1.5k"), ("max-model-len", "32K"),
        ("max-model-len", "2M"), ("max-model-len", "auto"), ("max-model-len", 100_000_000),
        ("max-num-batched-tokens", "8k"), ("gpu-memory-utilization", 0.01),
        ("gpu-memory-utilization", 1), ("gpu-memory-utilization", 0.9),
        ("kv-offloading-size", 0.1), ("cpu-offload-gb", 7), ("convert", "embed"),
        ("max-lora-rank", 8), ("additional-config", {"a": 1}), ("additional-config", "path"),
        ("compilation-config", {}), ("speculative-config", {"a": 1}), ("dtype", "auto"),
        ("served-model-name", "x"), ("compilation-config.anything", object()),
        ("kv-cache-memory-bytes", "1t"),
        ("kv-cache-memory-bytes", "1T"),
        ("gdn-prefill-backend", "triton"), ("seed", -5), ("host", "x"),
    ],
)  # fmt: skip
def test_values_that_the_parser_takes(name, value):
    catalog.check_flag(ENGINE, name, value, "here")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("enforce-eager", 1, "--enforce-eager is a switch: true or false, found 1."),
        ("enforce-eager", "true", "--enforce-eager is a switch: true or false, found 'true'."),
        ("headless", False, "--headless has no --no- form in vllm 0.19.1; leave it out instead of "
                            "setting it to false."),
        ("max-num-seqs", True, "--max-num-seqs takes a value, found True."),
        ("compilation-config", False, "--compilation-config takes a value, found False."),
        ("max-num-seqs", 1.5, "--max-num-seqs takes a whole number, found 1.5."),
        ("max-num-seqs", "7", "--max-num-seqs takes a whole number, found '7'."),
        ("max-num-seqs", "32k", "--max-num-seqs takes a whole number, found '32k'."),
        ("max-num-seqs", None, "--max-num-seqs takes a whole number, found None."),
        ("max-num-seqs", "32,foo=1", "--max-num-seqs takes a whole number, found '32,foo=1'. Give each "
                                     "setting a --set of its own."),
        ("max-num-seqs", "32,a.b-c=", "--max-num-seqs takes a whole number, found '32,a.b-c='. Give each "
                                      "setting a --set of its own."),
        ("max-num-seqs", "32,=1", "--max-num-seqs takes a whole number, found '32,=1'."),
        ("max-model-len", "32", "--max-model-len takes a whole number, found '32'."),
        ("max-model-len", "32x", "--max-model-len takes a whole number, found '32x'."),
        ("max-model-len", "1.5K", "--max-model-len takes a whole number, found '1.5K'."),
        ("max-model-len", "1.1234567k", "--max-model-len takes a whole number, found '1.1234567k'."),
        ("max-model-len", "1234567890k", "--max-model-len takes a whole number, found '1234567890k'."),
        ("max-num-batched-tokens", "auto", "--max-num-batched-tokens takes a whole number, found 'auto'."),
        ("gpu-memory-utilization", "0.9", "--gpu-memory-utilization takes a number, found '0.9'."),
        ("kv-offloading-size", [1], "--kv-offloading-size takes a number, found [1]."),
        ("compilation-config", "x", "--compilation-config takes a JSON object, found 'x'."),
        ("speculative-config", [1], "--speculative-config takes a JSON object, found [1]."),
        ("additional-config", 3, "--additional-config takes a JSON object, found 3."),
        ("host", ["x"], "--host takes one value, found ['x']."),
        ("dtype", {"a": 1}, "--dtype takes one value, found {'a': 1}."),
        ("convert", "emb", "--convert value 'emb' is not known; did you mean 'embed'? Allowed: auto, "
                           "classify, embed, none."),
        ("max-lora-rank", 9, "--max-lora-rank value '9' is not known. Allowed: 1, 8, 16, 32, 64, 128, "
                             "256, 320, 512."),
        ("max-num-seqs", 0, "--max-num-seqs is 1 to 1000000, found 0."),
        ("max-num-seqs", 1_000_001, "--max-num-seqs is 1 to 1000000, found 1000001."),
        ("max-model-len", "101M", "--max-model-len is 1 to 100000000, found '101M'."),
        ("max-model-len", "0k", "--max-model-len is 1 to 100000000, found '0k'."),
        ("max-model-len", "101m", "--max-model-len is 1 to 100000000, found '101m'."),
        ("max-model-len", "1g", "--max-model-len is 1 to 100000000, found '1g'."),
        ("gpu-memory-utilization", 1.01, "--gpu-memory-utilization is 0.01 to 1.0, found 1.01."),
        ("gpu-memory-utilization", 0, "--gpu-memory-utilization is 0.01 to 1.0, found 0."),
    ],
)  # fmt: skip
def test_values_that_the_parser_refuses(name, value, told):
    assert (
        refused(ParameterError, catalog.check_flag, ENGINE, name, value, "here") == f"here: {told}"
    )


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("100m", True),
        ("95M", True),
        ("96M", False),
        ("97656k", True),
        ("97657K", False),
        ("1G", False),
    ],
)
def test_sizes_count_by_their_unit(value, fits):
    if fits:
        catalog.check_flag(ENGINE, "max-model-len", value, "here")
        return
    with pytest.raises(ParameterError, match="is 1 to 100000000"):
        catalog.check_flag(ENGINE, "max-model-len", value, "here")


def test_a_long_value_is_shown_in_part():
    told = refused(ParameterError, catalog.check_flag, ENGINE, "max-num-seqs", "x" * 900, "here")
    assert len(told) < 300 and told.endswith("....")


def test_a_number_of_hundreds_of_digits_is_refused():
    told = refused(ParameterError, catalog.check_flag, ENGINE, "max-num-seqs", 10**400, "here")
    assert told.startswith("here: --max-num-seqs is 1 to 1000000, found 1000") and len(told) < 300


def test_a_flag_that_no_version_has():
    check = catalog.check_flag
    assert refused(ParameterError, check, ENGINE, "max-num-seq.x", 1, "here") == (
        "here: flag 'max-num-seq' is not known; did you mean 'max-num-seqs'? "
        f"kimi_nb/data/catalog/vllm.json lists all {len(catalog.tables('vllm')['serve'])}."
    )
    assert refused(ParameterError, check, ENGINE, "zzzz", 1, "here") == (
        "here: flag 'zzzz' is not known. kimi_nb/data/catalog/vllm.json lists all "
        f"{len(catalog.tables('vllm')['serve'])}."
    )
    assert refused(ParameterError, check, ENGINE, "quantization-param-path", 1, "here") == (
        "here: no vLLM version has --quantization-param-path. Use nothing; scales come with the "
        "checkpoint."
    )


def test_a_flag_of_other_versions():
    check = catalog.check_flag
    assert refused(PlanError, check, ENGINE, "watchdog-config.x", 1, "here") == (
        "here: --watchdog-config needs vLLM 0.33.0 or newer; this plan is for vllm 0.19.1. Choose a "
        "newer one with --engine-version."
    )
    assert refused(PlanError, check, ENGINE, "swap-space", 4, "here") == (
        "here: --swap-space is gone: vLLM 0.17.0 was the last listed version with it, this plan is for "
        "vllm 0.19.1. Use kv-offloading-size (GiB over all ranks; the V1 engine never swapped)."
    )
    gone = next(
        name.removeprefix("--")
        for name, runs in catalog.tables("vllm")["serve"].items()
        if runs[-1]["last"] == "0.17.0" and name != "--swap-space"
    )
    assert refused(PlanError, check, ascend("0.18.0"), gone, 4, "here") == (
        f"here: --{gone} is gone: vLLM 0.17.0 was the last listed version with it, this plan is for "
        "vllm-ascend 0.18.0."
    )


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"type": "int"}, "int"),
        (
            {"type": "optional_type.<locals>._optional_type(human_readable_int)"},
            "human_readable_int",
        ),
        ({"type": "optional_type.<locals>._optional_type(loads)"}, "loads"),
        ({}, ""),
        ({"type": None}, "None"),
    ],
)
def test_the_name_of_a_type(row, kind):
    assert catalog.type_of(row) == kind
