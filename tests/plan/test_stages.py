"""Pipeline stages: the layers of each, and the memory of the heaviest."""

from __future__ import annotations

import pytest

from kimi_nb.params import load
from kimi_nb.plan import memory
from kimi_nb.plan.memory import Shape, model_weights
from kimi_nb.plan.memory.stages import layers_of

KIMI = load.model("k2.5").architecture


@pytest.mark.parametrize(
    ("layers", "stages", "wanted"),
    [
        # Written down from get_pp_indices of vLLM 0.32.0.
        (61, 1, (61,)),
        (61, 2, (31, 30)),
        (61, 3, (20, 21, 20)),
        (61, 4, (15, 15, 16, 15)),
        (62, 3, (21, 21, 20)),
        (61, 8, (7, 7, 8, 8, 8, 8, 8, 7)),
        (93, 4, (23, 23, 24, 23)),
        (4, 4, (1, 1, 1, 1)),
    ],
)
def test_layers_of_stages(layers, stages, wanted):
    assert layers_of(layers, stages) == wanted and sum(wanted) == layers


def parts(arch=KIMI, **sizes):
    return model_weights.weights_per_rank(Shape(**sizes), arch, "INT4")


@pytest.mark.parametrize("model", ["k2.5", "k3"])
def test_the_stages_together_have_the_whole_model(model):
    arch = load.model(model).architecture
    whole = parts(arch, tp=8)
    assert ("latent projections" in whole) == (model == "k3")
    dense = model_weights.parameters(arch)["dense"] * 2.0 / 8
    for stages in (2, 4):
        shape = Shape(tp=8, pp=stages)
        # What a model has not is left out of its parts, and 0 in those that stages are made of.
        given = dict.fromkeys(("vision", "draft", "latent projections"), 0.0) | whole
        each = list(model_weights._stages(shape, arch, given, dense))
        for name, size in whole.items():
            assert sum(one[name] for one in each) == pytest.approx(size), name
        assert [bool(one["embeddings"]) for one in each] == [
            at in (0, stages - 1) for at in range(stages)
        ]
        assert [bool(one["vision"]) for one in each] == [at == 0 for at in range(stages)]


def test_the_heaviest_stage_counts():
    """Of 61 layers in two stages the first has 31, one of them dense, and the vision tower."""
    first, count = parts(tp=8, pp=2), model_weights.parameters(KIMI)
    assert first["routed experts"] == pytest.approx(parts(tp=8)["routed experts"] * 30 / 60)
    assert first["attention"] == pytest.approx(parts(tp=8)["attention"] * 31 / 61)
    assert first["embeddings"] == pytest.approx(count["embeddings"] * 2.0 / 8 / 2)
    assert first["vision"] == parts(tp=8)["vision"]
    third = parts(tp=8, pp=4)  # 15, 15, 16, 15: neither embeddings nor vision tower
    assert "embeddings" not in third and "vision" not in third
    assert third["routed experts"] == pytest.approx(parts(tp=8)["routed experts"] * 16 / 60)


def test_a_stage_keeps_the_cache_of_its_own_layers():
    whole = model_weights.cache_bytes(Shape(tp=8), KIMI)
    assert model_weights.cache_bytes(Shape(tp=8, pp=4), KIMI) == whole * 16 // 61
    alone, two = (memory.fit(Shape(tp=8, pp=pp), KIMI, "INT4", device_gib=139.8) for pp in (1, 2))
    assert two.tokens > 2 * alone.tokens  # half of the layers each, and less of the weights


def test_experts_and_cache_of_context_parallel_ranks():
    one, two = Shape(tp=4), Shape(tp=4, pcp=2, dcp=8)
    assert two.expert_ranks == 8 and two.devices == 8
    assert model_weights.cache_bytes(one, KIMI) == model_weights.cache_bytes(two, KIMI)
    found = [memory.fit(shape, KIMI, "INT4", device_gib=184.0) for shape in (Shape(tp=8), two)]
    assert found[1].parts["routed experts"] == found[0].parts["routed experts"]
    assert found[1].tokens > 6 * found[0].tokens
