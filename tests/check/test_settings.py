"""Settings and the engine's verdict on each: recorded from real vLLM, and what any --set ends in."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kimi_nb import catalog
from kimi_nb.check import judge
from kimi_nb.check.rules import registry
from kimi_nb.check.view import engine_view
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.core.errors import KimiError
from kimi_nb.plan import build

RECORDED = "0.32.0"
VERDICTS = yaml.safe_load(
    Path(__file__).with_name(f"settings_vllm_{RECORDED}.yaml").read_text(encoding="utf-8")
)
KEYS = sorted(
    {flag.removeprefix("--") for flag in catalog.tables("vllm")["serve"]}
    | {
        f"{flag}.{key}"
        for flag, name in (
            ("speculative-config", "SpeculativeConfig"),
            ("compilation-config", "CompilationConfig"),
            ("kv-transfer-config", "KVTransferConfig"),
            ("eplb-config", "EPLBConfig"),
            ("kv-events-config", "KVEventsConfig"),
        )
        for key in catalog.tables("vllm")["configs"][name]
    }
    | {"additional-config.enable_mlapo", "env.HCCL_BUFFSIZE", "env.VLLM_PORT", "router.port"}
    | {"groups", "nodes", "dp", "tp", "port", "rpc-port", "kv-port", "side-channel-port"}
)
ODD = [
    *("-1", "0", "1", "3", "1.5", "-0.0", "1e3", "32k", "k", "99999999999999999", "abc", "", " "),
    *("true", "false", "null", "None", "auto", "{}", "[]", "[1,2]", '["a"]', '{"a":1}', "{bad"),
    *('{"value": []}', '{"value": {"a": null}}', "[[]]", "\N{SUPERSCRIPT TWO}", "--x", "a b", "$X"),
]
PLACES = (("k2.5", "a3", "pd"), ("k2.6", "a3", "single"), ("k2.5", "gb200", "pd"))


@given(
    st.sampled_from(PLACES),
    st.sampled_from(["", "decode.", "prefill."]),
    st.sampled_from(KEYS),
    st.sampled_from(ODD) | st.text(max_size=8) | st.integers().map(str),
)
@example(PLACES[0], "decode.", "speculative-config.num_speculative_tokens", "-1")
@example(PLACES[0], "", "kv-offloading-size", "{}")
@example(PLACES[1], "", "max-num-seqs", "[1,2]")
@example(PLACES[1], "", "kv-transfer-config.kv_connector", "LMCacheConnectorV1")
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_setting_is_planned_and_judged_or_refused(place, role, key, value):
    """No other exception than a KimiError, whatever is set to what."""
    try:
        made = build.plan(*place, pairs=[f"{role}{key}={value}"])
    except KimiError as error:
        assert str(error)
        return
    judge.plan(made)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("decode.speculative-config.num_speculative_tokens", "-1", "greater than 0"),
        ("kv-offloading-size", "{}", "takes a number"),
        ("decode.max-num-seqs", "0", "1 to 1000000"),
        ("compilation-config.mode", "7", "VLLM_COMPILE"),
        ("compilation-config.cudagraph_capture_sizes", '["a"]', "a whole number"),
        ("kv-events-config.publisher", "nobody", "null, zmq"),
        ("eplb-config.window_size", "0.5", "a whole number"),
    ],
)
def test_a_refused_setting_names_key_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(KimiError) as caught:
        build.plan("k2.5", "a3", "pd", pairs=[f"{key}={value}"])
    for word in (key.removeprefix("decode."), value.strip('[]"'), allowed):
        assert word in str(caught.value), str(caught.value)


def errors(words: list[str]) -> list[str]:
    """Return what the rules refuse in the words after ``vllm serve MODEL``."""
    engine = catalog.engine("vllm", RECORDED)
    argv = ["vllm", "serve", "/models/m", "--trust-remote-code", *words]
    server = engine_view.of(engine, argv, {}, engine_view.Spot("engine"))
    found = registry.check(Deployment("settings", engine, True, servers=(server,)))
    return [one.message for one in found.findings if one.severity == "error"]


def test_what_the_engine_takes_is_no_error():
    assert {str(words): found for words in VERDICTS["taken"] if (found := errors(words))} == {}


def test_what_the_engine_refuses_is_an_error():
    """The rules agree on each setting that they are recorded to refuse, and on most of all."""
    assert [words for words in VERDICTS["refused"] if not errors(words)] == []
    refused, missed = len(VERDICTS["refused"]), len(VERDICTS["missed"])
    assert refused / (refused + missed) > 0.92


def test_what_is_still_missed_is_said():
    """A row that a rule has learnt to refuse moves to the refused ones."""
    assert [words for words in VERDICTS["missed"] if errors(words)] == []
