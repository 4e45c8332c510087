"""Tokens of a step, sizes of context parallelism, and the way out of the nodes: one by one."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.core.errors import PlanError
from kimi_nb.params.schema import Network
from kimi_nb.plan import context_parallel, network, step_tokens

OLD = catalog.engine("vllm-ascend", "0.20.2rc1")
NEW = catalog.engine("vllm", "0.32.0")


# Tokens of a step -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "method", "tokens", "sequences", "many"),
    [
        (OLD, "dflash", 15, 8, 14 * 8),
        (OLD, "dflash", 1, 8, 0),
        (OLD, "dflash", 0, 8, 0),
        (NEW, "dflash", 15, 8, 15),
        (OLD, "eagle3", 15, 8, 0),
        (OLD, None, 15, 8, 0),
    ],
)
def test_what_a_draft_takes_of_a_step(engine, method, tokens, sequences, many):
    assert step_tokens.slots(engine, method, tokens, sequences) == many
    needed = step_tokens.needed(engine, method, tokens, sequences)
    assert needed == sequences * (tokens + 1) + many


def refused(**flags) -> str:
    """What is told of flags with 15 drafts of dflash each of 8 sequences, which take 112."""
    given = {
        "max-num-batched-tokens": 112,
        "max-model-len": 200,
        "max-num-seqs": 8,
        "speculative-config.method": "dflash",
        "speculative-config.num_speculative_tokens": 15,
    } | {name.replace("_", "-"): value for name, value in flags.pop("but", {}).items()}
    given |= {f"speculative-config.{name}": value for name, value in flags.items()}
    try:
        step_tokens.check(OLD, "decode", given, "decode.")
    except PlanError as error:
        return str(error)
    return ""


def test_a_step_has_to_hold_more_than_its_drafts():
    wanted = (
        "decode: dflash takes 112 tokens of each step for its drafts, max-num-batched-tokens is "
        "112: nothing is left to schedule, and the engine does not start. --set "
        "decode.max-num-batched-tokens=240 holds 8 sequences with 15 drafts each; fewer drafts or "
        "a smaller max-num-seqs need less."
    )
    assert refused() == wanted
    assert refused(but={"max_num_batched_tokens": 111}) == wanted.replace("is 112", "is 111")
    assert refused(but={"max_num_batched_tokens": 113}) == ""


@pytest.mark.parametrize(
    "flags",
    [
        {"method": "eagle3"},
        {"num_speculative_tokens": None},
        {"num_speculative_tokens": True},
        {"num_speculative_tokens": "15"},
        {"but": {"max_num_seqs": None}},
        {"but": {"max_num_seqs": "8"}},
        {"but": {"max_num_batched_tokens": None}},
        {"but": {"max_num_batched_tokens": "112"}},
        {"but": {"max_num_batched_tokens": True}},
    ],
)
def test_what_is_no_count_is_not_judged(flags):
    assert refused(**flags) == ""


def test_without_chunked_prefill_a_step_holds_a_prompt():
    whole = {"enable_chunked_prefill": False}
    assert refused(but=whole, method="none") == (
        "decode: without chunked prefill a step holds a whole prompt: max-num-batched-tokens 112 is "
        "less than max-model-len 200, and the engine does not start. Leave chunked prefill on, or "
        "--set decode.max-num-batched-tokens=200, or lower max-model-len."
    )
    for other in (
        {"max_model_len": 112},
        {"max_model_len": None},
        {"max_model_len": "200"},
        {"enable_chunked_prefill": True},
        {"enable_chunked_prefill": None},
    ):
        assert refused(but=whole | other, method="none") == "", other


# Context parallelism --------------------------------------------------------------------------

HEADS = "the configuration check wants tp above the key heads"
MIXED = "drafts go with context parallelism in prefill-decode disaggregation only"
DP = "prefill context parallelism and data parallelism exclude each other"
PCP = "prefill context parallelism is no longer supported"
FIRST = "the first request with a draft ends in"
GUIDE = "of drafts only MTP is said to go with context parallelism"


def ascend(version: str) -> catalog.Engine:
    return catalog.engine("vllm-ascend", version)


@pytest.mark.parametrize(
    ("version", "role", "sizes", "says", "certain"),
    [
        ("0.17.0rc1", "mixed", {"dcp": 2, "method": "eagle3"}, FIRST, True),
        ("0.17.0rc1", "mixed", {"pcp": 2, "method": "eagle3"}, FIRST, True),
        ("0.17.0rc1", "mixed", {"dcp": 2, "method": "deepseek_mtp"}, "", None),
        ("0.17.0rc1", "mixed", {"dcp": 2}, "", None),
        ("0.17.0rc1", "mixed", {"method": "eagle3"}, "", None),
        ("0.17.0rc1", "mixed", {"pcp": 2, "dp": 2}, "", None),
        ("0.20.2rc1", "decode", {"dcp": 2, "method": "eagle3"}, GUIDE, False),
        ("0.22.1rc1", "decode", {"dcp": 2, "method": "eagle3"}, HEADS, True),
        ("0.22.1rc1", "decode", {"dcp": 2, "method": "eagle"}, HEADS, True),
        ("0.22.1rc1", "decode", {"dcp": 2, "method": "eagle3", "draft": "a/K2-MLA"}, GUIDE, False),
        ("0.22.1rc1", "decode", {"pcp": 2, "method": "eagle3"}, GUIDE, False),
        ("0.22.1rc1", "decode", {"dcp": 2, "method": "x"}, GUIDE, False),
        ("0.22.1rc1", "prefill", {"pcp": 2, "dp": 2}, DP, True),
        ("0.22.1rc1", "prefill", {"pcp": 2, "dp": 1}, "", None),
        ("0.22.1rc1", "prefill", {"dcp": 2, "dp": 2}, "", None),
        ("0.23.0", "mixed", {"dcp": 2, "method": "deepseek_mtp"}, MIXED, True),
        ("0.23.0", "mixed", {"pcp": 2, "method": "deepseek_mtp"}, MIXED, True),
        ("0.23.0", "mixed", {"pcp": 2, "dp": 2, "method": "deepseek_mtp"}, MIXED, True),
        ("0.23.0", "decode", {"dcp": 2, "method": "deepseek_mtp"}, "", None),
        ("0.23.0", "mixed", {"dcp": 2}, "", None),
        ("0.23.0", "mixed", {"method": "deepseek_mtp"}, "", None),
        ("0.25.1rc1", "prefill", {"pcp": 2}, PCP, True),
        ("0.25.1rc1", "prefill", {}, "", None),
    ],
)
def test_what_a_version_says_to_sizes(version, role, sizes, says, certain):
    found = context_parallel.fault(ascend(version), role, **sizes)
    if certain is None:
        assert found is None
    else:
        assert found.says.startswith(says) and found.certain is certain and found.source


def test_another_engine_says_nothing():
    assert context_parallel.fault(NEW, "mixed", dcp=2, pcp=2, dp=2, method="eagle3") is None


# The way out ----------------------------------------------------------------------------------


def test_the_variables_of_proxies_and_mirrors():
    assert network.variables(Network()) == {}
    given = Network(
        http_proxy="http://p:1",
        https_proxy="http://p:2",
        no_proxy=["localhost", ".example.org"],
        huggingface="https://hf.example.org",
        modelscope="https://ms.example.org:8443/x",
        pip_index="https://pip.example.org/simple",
    )
    assert network.variables(given) == {
        "http_proxy": "http://p:1",
        "HTTP_PROXY": "http://p:1",
        "https_proxy": "http://p:2",
        "HTTPS_PROXY": "http://p:2",
        "no_proxy": "localhost,.example.org",
        "NO_PROXY": "localhost,.example.org",
        "HF_ENDPOINT": "https://hf.example.org",
        "MODELSCOPE_ENDPOINT": "https://ms.example.org:8443/x",
        "MODELSCOPE_DOMAIN": "ms.example.org:8443",
        "PIP_INDEX_URL": "https://pip.example.org/simple",
    }
