"""What a command says of the shape of its engine, and what holds where it says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_nb import catalog
from kimi_nb.check.view import engine_view
from kimi_nb.params import load
from kimi_nb.plan.memory import Shape, defaults, shape

VLLM, ASCEND = catalog.engine("vllm", "0.32.0"), catalog.engine("vllm-ascend", "0.20.2rc1")
TRANSFER = """--kv-transfer-config {"kv_connector":"MooncakeConnector"}"""


def of(words: str = "", engine: catalog.Engine = VLLM, env=(), **more):
    argv = ["vllm", "serve", "m", *words.split()]
    view = engine_view.of(engine, argv, dict(env), engine_view.Spot("run.sh"))
    return Shape.of(view, engine, **more)


def test_the_ranks_of_a_group_and_those_of_an_expert():
    shape = Shape(tp=2, dp=3, pcp=5, pp=7)
    assert (shape.expert_ranks, shape.devices) == (30, 210)


def test_an_engine_that_is_told_nothing():
    assert of() == Shape(graphs_inside=True)
    assert of(engine=ASCEND) == Shape(vendor="ascend", buffer_mib=200)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-tp 2 -dp 3 -pp 4", {"tp": 2, "dp": 3, "pp": 4}),
        ("--decode-context-parallel-size 4 -tp 8", {"dcp": 4, "tp": 8}),
        ("--prefill-context-parallel-size 2", {"pcp": 2}),
        ("--prefill-context-parallel-size 0", {"pcp": 1}),
        ("--enable-expert-parallel", {"expert_parallel": True}),
        ("--no-enable-expert-parallel", {}),
        ('--eplb-config {"num_redundant_experts":16}', {"spare_experts": 16}),
        ('--eplb-config {"num_redundant_experts":"x"}', {}),
        ("--eplb-config {}", {}),
        # Only vllm-ascend reads its own table.
        ('--additional-config {"eplb_config":{"num_redundant_experts":3}}', {}),
        ("--language-model-only", {"vision": False}),
        ("--no-language-model-only", {}),
        ("--mm-encoder-tp-mode data", {"whole_vision": True}),
        ("--mm-encoder-tp-mode weights", {}),
        ("--kv-cache-dtype fp8", {"cache_bytes": 1}),
        ("--kv-cache-dtype fp8_e4m3", {"cache_bytes": 1}),
        ("--kv-cache-dtype auto", {}),
        ("--max-num-seqs 7", {"seqs": 7}),
        ("--max-num-batched-tokens 512", {"batched_tokens": 512}),
        ("--max-model-len 4096", {"model_len": 4096}),
        ("--gpu-memory-utilization 0.5", {"utilization": 0.5}),
        ("--enforce-eager", {"graphs": False}),
        ("--no-enforce-eager", {}),
        ('--compilation-config {"cudagraph_mode":"NONE"}', {"graphs": False}),
        ('--compilation-config {"cudagraph_mode":"FULL"}', {}),
        ("--no-enable-prefix-caching", {"prefix_caching": False}),
        ("--no-enable-chunked-prefill", {"chunked": False}),
        # Of drafts only some keep a layer of cache.
        (
            '--speculative-config {"method":"eagle3","num_speculative_tokens":3}',
            {"draft_layers": 1, "draft_tokens": 3},
        ),
        (
            '--speculative-config {"method":"ngram","num_speculative_tokens":3}',
            {"draft_tokens": 3},
        ),
        ('--speculative-config {"method":"eagle3","num_speculative_tokens":0}', {}),
    ],
)
def test_each_setting_has_its_place(words, said):
    assert of(words) == replace(Shape(graphs_inside=True), **said)


def test_states_of_drafts_may_be_replayed():
    draft = '--speculative-config {"method":"mtp","num_speculative_tokens":2}'
    engine = catalog.engine("vllm", "0.33.0")
    assert of(draft, engine).draft_tokens == 2
    assert of(f"{draft} --no-use-replayssm", engine).draft_tokens == 2
    found = of(f"{draft} --use-replayssm", engine)
    assert (found.draft_layers, found.draft_tokens) == (1, 0)


@pytest.mark.parametrize("words", ["-tp $N", "-dp $N", "-pp $N"])
def test_a_size_that_is_hidden_hides_the_shape(words):
    assert of(words) is None


def test_values_of_the_engine_hold_for_flags_that_are_not_given():
    known = {
        "decode-context-parallel-size": 2,
        "prefill-context-parallel-size": 3,
        "max-num-seqs": 1024,
        "max-num-batched-tokens": 99,
        "gpu-memory-utilization": 0.92,
    }
    found = of(defaults=known)
    assert (found.dcp, found.pcp, found.seqs, found.batched_tokens) == (2, 3, 1024, 99)
    assert found.utilization == 0.92
    assert of("--max-num-seqs 5", defaults=known).seqs == 5


@pytest.mark.parametrize(
    ("engine", "vendor", "said"),
    [
        (VLLM, "", "nvidia"),
        (VLLM, "cpu", "cpu"),
        (ASCEND, "", "ascend"),
        (ASCEND, "other", "other"),
    ],
)
def test_the_vendor_is_the_usual_one_of_the_engine(engine, vendor, said):
    assert of(engine=engine, vendor=vendor).vendor == said


# vllm-ascend ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "spare"),
    [
        ('--additional-config {"eplb_config":{"num_redundant_experts":3}}', 3),
        ('--additional-config {"eplb_config":7} --eplb-config {"num_redundant_experts":5}', 5),
        ('--eplb-config {"num_redundant_experts":5}', 5),
    ],
)
def test_vllm_ascend_has_a_table_of_its_own(words, spare):
    assert of(words, ASCEND).spare_experts == spare


@pytest.mark.parametrize(("said", "size"), [("1024", 1024), ("much", 0), ("0", 0)])
def test_the_buffer_of_collectives_is_a_variable_of_ascend(said, size):
    assert of(engine=ASCEND, env={"HCCL_BUFFSIZE": said}).buffer_mib == size
    assert of(env={"HCCL_BUFFSIZE": said}).buffer_mib == 0


@pytest.mark.parametrize(
    ("pool", "size"), [("4:8", 32), ("4", 0), ("x:8", 0), ("4:x", 0), ("4:8:2", 0), ("", 0)]
)
def test_the_buffers_of_a_connector_are_number_by_size(pool, size):
    assert of(TRANSFER, ASCEND, env={"ASCEND_BUFFER_POOL": pool}).transfer_mib == size
    assert of("", ASCEND, env={"ASCEND_BUFFER_POOL": pool}).transfer_mib == 0
    assert of(TRANSFER, VLLM, env={"ASCEND_BUFFER_POOL": pool}).transfer_mib == 0


def test_a_connector_without_a_pool_has_none():
    assert of(TRANSFER, ASCEND).transfer_mib == 0


# Graphs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "version", "inside"),
    [
        ("vllm", "0.20.2", False),
        ("vllm", "0.21.0", True),
        ("vllm", "0.33.0", True),
        ("vllm-ascend", "0.20.2rc1", False),
        ("vllm-ascend", "0.21.0rc1", True),
        ("vllm-ascend", "0.22.1rc1", True),
        ("vllm-ascend", "0.23.0rc1", False),
        ("vllm-ascend", "0.24.0rc1", False),
    ],
)
def test_some_versions_take_the_graphs_out_of_the_cache(package, version, inside):
    engine = catalog.engine(package, version)
    assert of(engine=engine).graphs_inside is inside
    assert not of(
        engine=engine, env={"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}
    ).graphs_inside
    kept = of(engine=engine, env={"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"})
    assert kept.graphs_inside is inside


# The cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "env", "size"),
    [
        ("--kv-cache-memory-bytes 4096", {}, 4096),
        ("--kv-cache-memory-bytes 1", {}, 1),
        ("--kv-cache-memory-bytes 0", {}, None),
        ("--kv-cache-memory-bytes 2k", {}, 2000),
        ("--kv-cache-memory-bytes 2K", {}, 2048),
        ("--kv-cache-memory-bytes 3g", {}, 3_000_000_000),
        ("--kv-cache-memory-bytes 3G", {}, 3 * 2**30),
        ("--kv-cache-memory-bytes $SIZE", {"VLLM_CPU_KVCACHE_SPACE": "2"}, 2 * 2**30),
        ("--kv-cache-memory-bytes $M", {}, None),
        ("", {"VLLM_CPU_KVCACHE_SPACE": "4"}, 4 * 2**30),
        ("", {"VLLM_CPU_KVCACHE_SPACE": "0"}, None),
        ("", {"VLLM_CPU_KVCACHE_SPACE": "all"}, None),
        ("--kv-cache-memory-bytes 5", {"VLLM_CPU_KVCACHE_SPACE": "4"}, 5),
    ],
)
def test_a_setting_may_name_the_cache(words, env, size):
    assert of(words, env=env).fixed_cache == size


class Given:
    """The flags that decide the cache, of any type that a shell or a table may give."""

    def __init__(self, **flags):
        self.flags = {name.replace("_", "-"): value for name, value in flags.items()}
        self.env = {}


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ({"kv_cache_memory": 77}, 77),
        ({"kv_cache_memory": 77, "kv_cache_memory_bytes": 88}, 88),
        ({"kv_cache_memory_bytes": True}, None),
        ({"kv_cache_memory_bytes": "5M"}, 5 * 2**20),
        ({"kv_cache_memory_bytes": "5m"}, 5_000_000),
        ({"kv_cache_memory_bytes": "12m"}, 12_000_000),
        ({"kv_cache_memory_bytes": "5T"}, None),
        ({"kv_cache_memory_bytes": "xM"}, None),
        ({"kv_cache_memory_bytes": "m"}, None),
        ({"kv_cache_memory_bytes": ""}, None),
        ({"kv_cache_memory_bytes": -3}, None),
        ({"kv_cache_memory_bytes": 3.5}, None),
        ({}, None),
    ],
)
def test_a_cache_has_either_name_and_any_unit(flags, size):

    assert shape._fixed(Given(**flags)) == size


# What the engine sets itself --------------------------------------------------------------------


def test_a_cpu_reads_prompts_with_latent_attention_whole():
    latent = {"kv_lora_rank": 512}
    told = Shape(tp=2, vendor="cpu", model_len=5000)
    whole = Shape(
        tp=2,
        vendor="cpu",
        model_len=5000,
        chunked=False,
        prefix_caching=False,
        batched_tokens=5000,
    )
    assert told.as_served(latent) == whole
    assert replace(told, model_len=None).as_served(latent).batched_tokens == 2048
    assert replace(told, model_len=100).as_served(latent).batched_tokens == 2048
    assert told.as_served({}) == told and told.as_served({"kv_lora_rank": 0}) == told
    assert replace(told, vendor="nvidia").as_served(latent) == replace(told, vendor="nvidia")


def test_the_engines_own_values_depend_on_version_and_device():
    h200, small = load.hardware("h200"), load.hardware("a3")
    assert defaults(VLLM, h200) == {"gpu-memory-utilization": 0.92, "max-num-seqs": 1024}
    assert defaults(VLLM, None) == {"gpu-memory-utilization": 0.92}
    assert defaults(VLLM, small) == {"gpu-memory-utilization": 0.92}
    assert defaults(catalog.engine("vllm", "0.18.0"), h200)["gpu-memory-utilization"] == 0.9

    def of_size(size: int):
        return h200.model_copy(
            update={"devices": h200.devices.model_copy(update={"memory_gb": size})}
        )

    assert "max-num-seqs" in defaults(VLLM, of_size(70))
    assert "max-num-seqs" not in defaults(VLLM, of_size(69))
