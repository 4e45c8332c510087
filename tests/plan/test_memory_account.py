"""The sum of a device's terms: budget, cache with its range, and what is said of it.

The figures are worked out by hand: a token of DENSE takes 10 layers x (6 + 4) x 2 B = 200 B, one of
HYBRID 2 x 20 B = 40 B. A state of HYBRID has 2 heads x 4 x 4 x 4 B + 3 rows x 3 x 2 x 4 x 2 B =
272 B, for which a page of 128 tokens (2560 B) is enough; 4 layers make 2 groups of 2 pages, twice
with prefix caching: 2 x 2 x 2 x 2560 B = 20480 B.
"""

from __future__ import annotations

from dataclasses import replace

from kimi_nb.params import load
from kimi_nb.plan import memory
from kimi_nb.plan.memory import activations
from kimi_nb.plan.memory.shape import Shape
from kimi_nb.plan.memory.terms import GIB, MIB, Term

DENSE = {"layers": 10, "kv_lora_rank": 6, "qk_rope_head_dim": 4}
HYBRID = DENSE | {
    "mla_layers": 2,
    "kda_layers": 4,
    "kda_heads": 2,
    "kda_head_dim": 4,
    "kda_conv_kernel": 4,
}
HALF = Shape(utilization=0.5, seqs=4)
DEVICE = Term("device", 1_000_200, 952_200, 1_024_200, "f", "s")
TERMS = [
    Term("attention", 100_000, 97_000, 108_000, "f", "s"),
    Term("graphs", 20_000, 16_000, 26_000, "f", "s"),
    Term("expert workspace", 700, 0, 900, "f", "s", inside=False),
    Term("contexts", 300, 300, 300, "f", "s", inside=False),
]


def summed(shape: Shape = HALF, arch=DENSE, terms=TERMS, device=DEVICE, **more) -> memory.Fit:
    return memory.account(shape, arch, list(terms), device, **more)


def sized(device: float, budget: float, used: float, **more) -> memory.Fit:
    """A fit of a device in GiB with one part, by hand."""
    given = {
        "per_token": 100,
        "tokens": 5000,
        "low": 4000,
        "high": 6000,
        "shape": Shape(seqs=4, model_len=1000),
    }
    terms = (Term("attention", used * GIB, 0, 0, "f", "s"),)
    return memory.Fit(device * GIB, budget * GIB, terms, **given | more)


# Sums -------------------------------------------------------------------------------------------


def test_what_is_inside_comes_out_of_the_share_and_the_rest_after_the_cache():
    found = summed()
    assert found.device == 1_000_200 and found.budget == 500_100
    assert found.terms == tuple(TERMS) and found.shape == HALF
    assert found.parts == {"attention": 100_000, "graphs": 20_000}
    assert (found.weights, found.used, found.outside) == (100_000, 120_000, 1000)
    assert found.headroom == 380_100
    assert (found.per_token, found.per_sequence, found.mark) == (200, 0, "estimated")


def test_a_part_without_bytes_is_none():
    nothing = Term("draft", 0, 0, 0, "f", "s")
    assert "draft" not in summed(terms=[*TERMS, nothing]).parts


def test_tokens_have_the_range_of_terms_and_device_together():
    """Terms: less by hypot(8000, 6000), more by hypot(3000, 4000); device: 24000 and 12000."""
    found = summed(mark="measured on one day")
    assert found.tokens == 380_100 // 200
    assert found.low == (380_100 - 26_000) // 200
    assert found.high == (380_100 + 13_000) // 200
    assert found.mark == "measured on one day"


def test_decode_context_parallelism_multiplies_the_tokens():
    found = summed(replace(HALF, dcp=3))
    assert (found.tokens, found.low, found.high) == (3 * 1900, 3 * 1770, 3 * 1965)


def test_a_device_in_gib_has_no_range_of_its_own():
    found = summed(device=0.001)
    assert found.device == 0.001 * GIB and found.budget == 0.0005 * GIB
    # 536870.912 - 120000 B; 10000 less, 5000 more.
    assert (found.tokens, found.low, found.high) == (2084, 2034, 2109)


def test_what_does_not_fit_leaves_no_token():
    found = summed(device=replace(DEVICE, bytes=200_000, low=190_000, high=245_000))
    assert found.headroom == -20_000
    assert (found.tokens, found.low) == (0, 0)
    # 22500 more of the device and 5000 of the terms are hypot = 23048.
    assert found.high == 3048 // 200


def test_the_states_of_one_sequence_come_before_the_tokens():
    found = summed(arch=HYBRID)
    assert (found.per_token, found.per_sequence) == (40, 20_480)
    assert found.tokens == (380_100 - 20_480) // 40
    assert found.low == (354_100 - 20_480) // 40
    assert found.high == (393_100 - 20_480) // 40


def test_a_cache_that_is_named_is_sure():
    found = summed(replace(HALF, fixed_cache=300_000))
    assert found.budget == 420_000 and found.headroom == 300_000
    assert (found.tokens, found.low, found.high) == (1500, 1500, 1500)


def test_a_cache_that_is_named_may_fill_the_device_and_no_more():
    whole = summed(replace(HALF, fixed_cache=880_200))
    assert whole.headroom == 880_200 and whole.tokens == 4401
    more = summed(replace(HALF, fixed_cache=880_201))
    assert more.headroom == -1 and (more.tokens, more.low, more.high) == (0, 0, 0)
    assert summed(replace(HALF, fixed_cache=0)).headroom == 0


# Requests ---------------------------------------------------------------------------------------


def test_each_sequence_beside_the_first_takes_its_states():
    found = summed(arch=HYBRID)
    assert found.beside(1) == found.tokens == 8990
    # 3 x 20480 B are 1536 tokens of 40 B; what is left is shared by four.
    assert found.beside(4) == 8990 - 1536 and found.longest == (8990 - 1536) // 4
    assert found.beside(100) == 0
    # A part of a token is a whole one less, and with dcp a state takes that of more tokens.
    odd = replace(found, per_sequence=21, shape=replace(HALF, dcp=2))
    assert odd.beside(3) == 8990 - 3  # 2 x 21 B x 2 = 84 B, of 40 B each


def test_an_engine_of_no_sequence_is_told_of_one():
    assert summed(replace(HALF, seqs=0)).longest == 1900
    assert summed(replace(HALF, seqs=0), HYBRID).longest == 8990


def test_a_request_takes_its_tokens_and_its_states():
    found = sized(10, 8, 5, per_sequence=7000)
    # 500000 + 7000 B in pieces of 1000 x 100 + 7000 B.
    assert found.requests(1000) == 4
    assert found.requests(5000) == 1 and found.requests(5001) == 0
    wide = replace(found, shape=replace(found.shape, dcp=10))
    assert wide.requests(1000) == 3  # 500000 + 70000 B in pieces of 170000 B
    assert sized(10, 8, 5).requests(1000) == 5


# What is said -----------------------------------------------------------------------------------


def test_an_account_is_told_in_plain_values():
    found = sized(10.126, 8.126, 5.0004, per_sequence=0.12346 * GIB, mark="measured")
    said = found.memory()
    (term,) = said.pop("terms")
    assert term["name"] == "attention" and term["gib"] == 5.0
    assert said == {
        "device_gib": 10.13,
        "budget_gib": 8.13,
        "cache_gib": 3.126,
        "tokens": 5000,
        "low": 4000,
        "high": 6000,
        "mark": "measured",
        "state_gib_per_sequence": 0.1235,
    }


def test_cache_states_and_what_is_not_used_close_the_device():
    found = sized(10, 8, 5, per_sequence=GIB // 2)
    assert memory.shares_of(found) == [
        ("attention", 5 * GIB),
        ("sequence states", 2 * GIB),
        ("cache", 1 * GIB),
        ("not used", 2 * GIB),
    ]
    one = replace(found, shape=Shape(seqs=0))
    assert dict(memory.shares_of(one))["sequence states"] == GIB // 2
    most = replace(found, shape=Shape(seqs=40))
    assert dict(memory.shares_of(most)) | {"cache": 0} == dict(memory.shares_of(most))
    over = dict(memory.shares_of(sized(10, 12, 13)))
    assert (over["cache"], over["sequence states"], over["not used"]) == (0, 0, 0)
    full = dict(memory.shares_of(replace(found, budget=10 * GIB - 0.5)))
    assert full["not used"] == 0.5
    tight = dict(memory.shares_of(replace(found, budget=5 * GIB + 0.5, per_sequence=0)))
    assert tight["cache"] == 0.5


def test_a_bar_has_each_part_by_its_share():
    terms = (
        Term("attention", 5 * GIB, 0, 0, "f", "s"),
        Term("graphs", 1 * GIB, 0, 0, "f", "s"),
    )
    found = replace(sized(10, 9, 5), terms=terms)
    rows = [
        "[" + "A" * 30 + "g" * 6 + "#" * 18 + "." * 6 + "] 10.0 GiB",
        "  A attention              5.0 GiB",
        "  g graphs                 1.0 GiB",
        "  # cache                  3.0 GiB",
        "  . not used               1.0 GiB",
        f"  {memory.sentence(found)}",
    ]
    assert str(found) == "\n".join(rows)
    assert memory.bar(found, width=10).startswith("[AAAAAg###.] 10.0 GiB\n")


def test_a_bar_ends_where_the_device_does():
    drawn = memory.bar(sized(10, 8, 13), width=10).splitlines()
    assert drawn == [
        "[AAAAAAAAAA] 10.0 GiB",
        "  A attention             13.0 GiB",
        "  . not used               2.0 GiB",
        "  over the budget by 5.0 GiB",
    ]
    small = replace(sized(10, 8, 5), budget=5 * GIB + 1)
    assert "# cache" in memory.bar(small)
    of_bytes = memory.Fit(10, 8, (replace(TERMS[0], bytes=5),), 1, 3, 3, 3, HALF)
    assert memory.bar(of_bytes, width=10).startswith("[AAAAA###..] ")


def test_a_sentence_says_how_sure_it_is():
    assert memory.sentence(sized(10, 8, 5)) == (
        "5000 tokens of cache (4000 to 6000, estimated) at 100 B: "
        "5 requests of --max-model-len 1000 at once, or 1250 tokens for each of 4"
    )
    sure = sized(10, 8, 8, low=6000, shape=Shape(seqs=4), per_sequence=3 * MIB // 2)
    assert memory.sentence(sure) == (
        "5000 tokens of cache at 100 B beside 1.5 MiB of states for each sequence: "
        "0 tokens for each of 4"
    )
    assert memory.sentence(sized(10, 8, 8.5)) == "over the budget by 0.5 GiB"


# The whole --------------------------------------------------------------------------------------


def test_every_part_of_the_account_knows_shape_and_precision():
    kimi = load.model("k2.5").architecture
    shape = Shape(tp=8, expert_parallel=True, vendor="ascend", buffer_mib=300, batched_tokens=65536)
    found = {one.name: one for one in memory.expected(shape, kimi, "FP8", 4_000_000)}
    assert list(found) == [
        "attention",
        "dense and shared",
        "routed experts",
        "embeddings",
        "router",
        "vision",
        "draft",
        "activations",
        "encoder cache",
        "graphs",
        "buffers",
        "contexts",
    ]
    assert found["draft"].bytes == 4_000_000 * 2 / 8
    bytes_ = activations.step_bytes(shape, kimi, "FP8")
    assert found["activations"].bytes == bytes_ < activations.step_bytes(shape, kimi)
    assert found["buffers"].bytes == 2 * (300 + 400) * MIB
    assert "draft" not in {one.name for one in memory.expected(shape, kimi, "FP8")}


def test_a_format_has_what_its_kernels_take():
    kimi = load.model("k2.5").architecture
    terms = memory.expected(Shape(tp=8), kimi, "MXFP4")
    assert [one.name for one in terms if not one.inside] == ["graphs", "expert workspace"]


def test_a_fit_is_the_account_of_what_is_expected():
    kimi = load.model("k2.5").architecture
    found = memory.fit(Shape(tp=8), kimi, "INT4", 139.8, 8_000_000)
    assert found.device == 139.8 * GIB and found.parts["draft"] == 2_000_000
    assert list(found.terms) == memory.expected(Shape(tp=8), kimi, "INT4", 8_000_000)
    assert (found.per_token, found.shape) == (70_272, Shape(tp=8))
    assert "draft" not in memory.fit(Shape(tp=8), kimi, "INT4", 139.8).parts
