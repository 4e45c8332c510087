"""The terms of the memory account, and what an engine's settings do to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_nb import catalog
from kimi_nb.check import judge
from kimi_nb.check.rules import capacity
from kimi_nb.check.view import engine_view
from kimi_nb.params import load
from kimi_nb.plan import build, memory
from kimi_nb.plan.memory import GIB, Shape, device, host

KIMI = load.model("k2.5").architecture


def shape(words: str, engine: str = "vllm", version: str = "0.20.2", **env: str) -> Shape:
    found = Shape.of(
        engine_view.of(
            catalog.engine(engine, version),
            ["vllm", "serve", "m", *words.split()],
            env,
            engine_view.Spot("run.sh"),
        ),
        catalog.engine(engine, version),
    )
    assert found is not None
    return found


def term(found: memory.Fit, name: str) -> memory.Term:
    return next(one for one in found.terms if one.name == name)


@pytest.mark.parametrize(
    ("name", "seen"),
    [("a2", 60.96), ("a3", 60.96), ("h200", 139.8), ("gb200", 184.31), ("mi300x", 191.98)],
)
def test_an_engine_plans_with_what_torch_sees(name, seen):
    chip = load.hardware(name)
    found = device.usable(chip)
    assert found.bytes / GIB == pytest.approx(seen) and found.mark == "measured"
    assert found.bytes / GIB < chip.devices.memory_gb and found.source


def test_the_figure_of_another_size_is_not_inherited():
    """A file that extends a3 with more memory has the usual share of it, and a wider range."""
    chip = load.hardware("a3")
    larger = chip.model_copy(update={"devices": chip.devices.model_copy(update={"memory_gb": 128})})
    found = device.usable(larger)
    assert 0.95 * 128 <= found.bytes / GIB <= 0.96 * 128 and found.mark == "estimated"
    assert found.low < found.bytes < found.high


def test_every_term_says_how_much_and_how_that_is_known():
    for plan in (build.plan("k2.5", "a3", "pd"), build.plan("k2.5", "h200", "single")):
        for bar in judge.plan(plan).memory:
            for one in bar.fit.terms:
                assert 0 <= one.low <= one.bytes <= one.high, one
                assert one.formula and one.source
            said = bar.as_dict()
            assert {"terms", "tokens", "low", "high", "mark"} <= set(said)
            assert said["low"] <= said["tokens"] <= said["high"]
            inside = sum(one["gib"] for one in said["terms"] if one["inside"])
            assert inside + said["cache_gib"] == pytest.approx(said["budget_gib"], abs=0.03)


def test_an_engine_without_pictures_loads_no_vision_tower():
    """Counted until now, though --language-model-only leaves it out."""
    with_eyes, blind = shape("-tp 8"), shape("-tp 8 --language-model-only")
    assert "vision" in memory.fit(with_eyes, KIMI, "INT4", 139.8).parts
    found = memory.fit(blind, KIMI, "INT4", 139.8).parts
    assert "vision" not in found and "encoder cache" not in found


@pytest.mark.parametrize(
    ("engine", "version", "inside"),
    [
        ("vllm", "0.20.2", False),
        ("vllm", "0.21.0", True),
        ("vllm", "0.32.0", True),
        ("vllm-ascend", "0.20.2rc1", False),
        ("vllm-ascend", "0.21.0rc1", True),
        ("vllm-ascend", "0.22.1rc1", True),
        ("vllm-ascend", "0.23.0rc1", False),
        ("vllm-ascend", "0.23.0", False),
    ],
)
def test_graphs_come_out_of_the_cache_in_some_versions(engine, version, inside):
    found = memory.fit(shape("-tp 8", engine, version), KIMI, "INT4", 139.8)
    graphs = term(found, "graphs")
    assert graphs.inside is inside and ("graphs" in found.parts) is inside
    assert found.outside == (0 if inside else graphs.bytes)


def test_an_engine_that_captures_nothing_has_no_graphs():
    assert not shape("-tp 8 --enforce-eager").graphs
    off = shape("-tp 8", version="0.32.0", VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS="0")
    assert off.graphs and not off.graphs_inside


def test_the_logits_of_many_sequences_take_more_than_a_step():
    few, many = (memory.fit(Shape(tp=8, seqs=n), KIMI, "INT4", 139.8) for n in (64, 1024))
    assert "sampler" not in few.parts
    assert term(many, "sampler").gib == pytest.approx(4.5, abs=0.2)
    assert few.tokens > many.tokens


def test_experts_over_data_parallel_ranks_take_the_tokens_of_all():
    one, eight = (
        term(
            memory.fit(Shape(dp=dp, expert_parallel=True, seqs=1), KIMI, "INT4", 139.8),
            "activations",
        )
        for dp in (1, 8)
    )
    assert eight.bytes > 1.8 * one.bytes


def test_a_cache_that_is_named_is_the_cache():
    asked = shape("-tp 8 --kv-cache-memory-bytes 10737418240", version="0.32.0")
    found = memory.fit(asked, KIMI, "INT4", 139.8)
    assert found.headroom == pytest.approx(10 * GIB)
    assert found.low == found.tokens == found.high == 10 * GIB // found.per_token
    small = memory.fit(replace(asked, tp=4), KIMI, "INT4", 139.8)
    assert small.headroom < 0 and small.tokens == 0
    cpu = judge.plan(build.plan("tiny-k2.5", "cpu", "single")).memory[0].fit
    assert cpu.tokens == GIB // 3456  # VLLM_CPU_KVCACHE_SPACE=1


def test_a_draft_with_a_layer_of_its_own_takes_cache():
    words = '-tp 8 --speculative-config {"method":"eagle3","model":"x","num_speculative_tokens":3}'
    assert memory.cache_bytes(shape(words), KIMI) == 62 * 576 * 2
    assert memory.cache_bytes(shape("-tp 8"), KIMI) == 61 * 576 * 2


def test_a_range_that_is_not_measured_is_wider():
    terms = [one for one in memory.expected(Shape(tp=16), KIMI, "W4A8") if one.name == "attention"]
    known = [one for one in memory.expected(Shape(tp=16), KIMI, "INT4") if one.name == "attention"]
    assert terms[0].high / terms[0].bytes > known[0].high / known[0].bytes


def test_scales_are_a_term_of_their_own():
    found = memory.fit(Shape(tp=8), KIMI, "INT4", 139.8)
    share = term(found, "quantisation scales").bytes / term(found, "routed experts").bytes
    assert share == pytest.approx((2 / 32) / 0.5)


def test_the_host_holds_workers_offloaded_cache_and_what_is_read():
    found = {one.name: one for one in host.terms(8, 400, 594)}
    assert found["offloaded cache"].bytes == 400 * GIB
    assert found["page cache"].bytes == 594e9 and not found["page cache"].inside
    assert host.need_gib(8, 400) == 400 + found["processes"].gib


@pytest.mark.parametrize("name", ["k2.5", "k2.6", "k2-thinking", "tiny-k2.5"])
def test_every_documented_recipe_fits(name):
    """Upstream ran them; a model that says otherwise is wrong."""
    model = load.model(name)
    for recipe in model.recipes:
        for scenario in ("", *recipe.scenarios):
            plan = build.plan(
                name,
                recipe.hardware,
                recipe.layout,
                variant=recipe.variant,
                scenario=scenario,
            )
            for bar in judge.memory_of(judge.of_plan(plan)):
                length = bar.fit.shape.model_len or 1
                assert bar.fit.headroom > 0, (plan.name, str(bar))
                assert bar.fit.high >= length, (plan.name, str(bar))


def test_a_cpu_reads_prompts_with_latent_attention_whole():
    """As vLLM 0.32.0 says when it starts there (vllm/platforms/cpu.py, check_and_update_config)."""
    tiny, llama = (load.model(name).architecture for name in ("tiny-k2.5", "tiny-llama"))
    told = Shape(vendor="cpu", batched_tokens=512, model_len=4096)
    served = told.as_served(tiny)
    assert (served.chunked, served.prefix_caching, served.batched_tokens) == (False, False, 4096)
    assert replace(told, model_len=1024).as_served(tiny).batched_tokens == 2048
    assert told.as_served(llama) == told, "no latent attention"
    gpu = replace(told, vendor="nvidia")
    assert gpu.as_served(tiny) == gpu


def test_the_shape_of_a_plan_is_the_told_one_or_the_served_one():
    deployment = judge.of_plan(build.plan("k2.5", "cpu", "single"))
    served = capacity.served_shape_of(deployment, deployment.servers[0])
    assert (served.chunked, served.batched_tokens) == (False, 2048)
    told = capacity.shape_of(deployment, deployment.servers[0])  # as the engine's log repeats it
    assert (told.chunked, told.batched_tokens) == (True, 512)
