"""Pages of vllm-project/recipes: which commands they are rendered to, layer by layer."""

from __future__ import annotations

import pytest
from small_checkouts import COMMIT, PAGE, TAXONOMY, recipes

from kimi_nb.upstream import vllm_recipes
from kimi_nb.upstream.checkout import open_checkout
from kimi_nb.upstream.published import Layout


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Every deployment of the small checkout by its id."""
    checkout = open_checkout(recipes(tmp_path_factory.mktemp("recipes")))
    out = list(vllm_recipes.read(checkout))
    assert checkout.unread == [] and len({one.id for one in out}) == len(out)
    return {one.id: one for one in out}


def role(found, id_, at=0):
    """A role of a rendering of the toy page."""
    return found[f"recipes:{id_}"].roles[at]


def test_a_page_is_rendered_for_each_weights_hardware_and_strategy(found):
    rendered = [id_.split(":")[1:] for id_ in found if id_.startswith("recipes:")]
    assert {(page, hw) for page, hw, _ in rendered} == {
        *(("Kimi-Toy", hw) for hw in ("h100", "h200", "b200", "gb200", "mi300x")),
        *(("Kimi-Toy-NVFP4", hw) for hw in ("b200", "gb200")),
    }
    of = {
        hw: [s for page, h, s in rendered if (page, h) == ("Kimi-Toy", hw)] for _, hw, _ in rendered
    }
    assert of["h200"] == ["single_node_tp", "multi_node_tp", "multi_node_dep", "pd_cluster", "pool"]
    assert of["h100"][0] == "multi_node_tp"  # 700 GB do not fit a node of 640
    assert "multi_node_tp_dp" in of["gb200"] and "multi_node_dep" not in of["mi300x"]


def test_the_facts_of_a_rendering(found):
    one = found["recipes:Kimi-Toy:h200:single_node_tp"]
    assert (one.model, one.version, one.image) == ("acme/Kimi-Toy", ">=0.19.1", "img:130")
    assert (one.status, one.recommended, one.nodes) == ("verified", True, 1)
    assert one.source.commit == COMMIT and one.source.path == "models/acme/Kimi-Toy.yaml"
    line = PAGE.splitlines()[one.source.line - 1]
    assert line.strip() == "- single_node_tp" and one.source.url.endswith(f"#L{one.source.line}")
    assert role(found, "Kimi-Toy:h200:single_node_tp").argv == (
        ("--trust-remote-code", True),
        ("--tensor-parallel-size", 8),
        ("--max-num-seqs", 16),
        ("--tool-call-parser", "kimi_k2"),
        ("--speculative-config", {"method": "dflash"}),
    )
    other = found["recipes:Kimi-Toy:h100:single_node_tp"]
    assert (other.status, other.recommended) == ("not listed by the recipe", False)


def test_weights_with_a_checkpoint_of_their_own(found):
    one = found["recipes:Kimi-Toy-NVFP4:b200:single_node_tp"]
    assert (one.model, one.variant, one.image) == ("nvidia/Kimi-Toy-NVFP4", "nvfp4", "img:fp4")
    assert one.roles[0].flags["--kv-cache-dtype"] == "fp8"
    assert one.roles[0].env == {"ALWAYS": "1", "FP4": "1"}


def test_features_by_choice_mode_and_hardware(found):
    draft = "--speculative-config"
    assert role(found, "Kimi-Toy:h100:single_node_tp").flags[draft] == {"method": "small"}
    assert role(found, "Kimi-Toy:mi300x:single_node_tp").flags[draft] == {"method": "eagle3"}
    assert "--tool-call-parser" not in role(found, "Kimi-Toy:gb200:single_node_tp").flags
    assert not any("--language-model-only" in r.flags for one in found.values() for r in one.roles)


def test_a_strategy_s_own_hardware_layer_replaces_that_of_the_page(found):
    head = role(found, "Kimi-Toy:h200:multi_node_tp")
    assert head.flags["--max-num-seqs"] == 8
    assert head.env == {"ALWAYS": "1", "GLOO_SOCKET_IFNAME": "$IFACE_NAME", "HOPPER": "1"}
    assert role(found, "Kimi-Toy:b200:multi_node_tp").flags["--max-num-seqs"] == 16
    assert role(found, "Kimi-Toy:mi300x:multi_node_tp").env["AITER"] == "1"
    assert found["recipes:Kimi-Toy:mi300x:multi_node_tp"].image == "rocm:nightly"


def test_each_node_of_an_engine_has_its_command(found):
    one = found["recipes:Kimi-Toy:h200:multi_node_tp"]
    assert [r.name for r in one.roles] == ["head", "worker1"] and one.nodes == 2
    head, worker = one.roles
    assert head.layout == Layout(tp=16) and "--headless" not in head.flags
    assert worker.flags["--node-rank"] == 1 and worker.flags["--headless"] is True
    head, worker = found["recipes:Kimi-Toy:h200:multi_node_dep"].roles
    assert head.layout == Layout(dp=16, dp_local=8, ep=True)
    assert "--data-parallel-start-rank" not in head.flags
    assert worker.flags["--data-parallel-start-rank"] == 8
    head, worker = found["recipes:Kimi-Toy:gb200:multi_node_tp_dp"].roles
    assert head.layout == Layout(tp=4, dp=2, dp_local=1)
    assert worker.flags["--data-parallel-start-rank"] == 1


def test_pools_on_nodes_of_their_own_and_on_one(found):
    one = found["recipes:Kimi-Toy:h200:pd_cluster"]
    prefill, decode = one.roles
    assert (one.nodes, prefill.nodes, decode.nodes) == (2, 1, 1)
    assert prefill.layout == Layout(tp=8)
    assert decode.layout == Layout(tp=2, dp=4, dp_local=4, ep=True)
    assert decode.flags["--data-parallel-address"] == "$DECODE_NODE_1"
    assert decode.flags["--block-size"] == 64
    # Variables for NVLink between nodes are only for hardware that has it.
    assert prefill.env == {
        "ALWAYS": "1",
        "SIDE": "$PREFILL_NODE_1",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    }
    assert role(found, "Kimi-Toy:gb200:pd_cluster").env["NCCL_NVLS_ENABLE"] == "1"
    shared = found["recipes:Kimi-Toy:mi300x:pd_cluster"]  # 1536 GB hold it twice
    assert (shared.nodes, shared.notes) == (1, ("prefill and decode share one node",))
    assert [r.env["CUDA_VISIBLE_DEVICES"] for r in shared.roles] == ["0,1,2,3", "4,5,6,7"]
    assert shared.roles[0].layout.tp == 4


def test_a_kv_store_behind_engines(found):
    one = found["recipes:Kimi-Toy:h200:pool"]
    assert (one.instances, one.nodes, one.strategy) == (3, 1, "pool")
    assert one.roles[0].flags["--kv-transfer-config"] == {"kv_connector": "Pool"}
    assert one.roles[0].env["PYTHONHASHSEED"] == "0"
    assert "pip install pool-cuda" in one.notes
    many = found["recipes:Kimi-Toy:h100:pool"]
    assert [r.name for r in many.roles] == ["instance", "instance-worker1"]
    assert many.roles[0].flags["--master-addr"] == "$VLLM_INSTANCE_1"


def test_the_commands_of_a_guide(found):
    guides = [one for id_, one in found.items() if id_.startswith("recipes-guide:Kimi-Toy:")]
    one, several, pipelines = guides
    lines = PAGE.splitlines()
    assert all("vllm serve" in lines[r.line - 1] for g in guides for r in g.roles)
    assert (one.hardware, one.strategy) == ("mi300x", "Serve / On 8x MI300X")
    assert one.roles[0].flags == {"--tensor-parallel-size": 8, "--port": 8100, "--host": "$HOST"}
    assert one.roles[0].env == {"FAST": "1"}
    assert (several.hardware, [r.name for r in several.roles]) == ("h800", ["head", "worker"])
    assert several.nodes == 2 and several.roles[1].layout.dp == 16
    assert (pipelines.hardware, pipelines.nodes) == ("h200", 2)  # the page's own default


def test_a_floor_of_devices_grows_a_deployment(tmp_path):
    page = PAGE + "strategy_min_gpus: {multi_node_tp: 16, h100: {multi_node_tp: 32}}\n"
    checkout = open_checkout(recipes(tmp_path, page=page))
    found = {one.id: one for one in vllm_recipes.read(checkout, "toy")}
    assert found["recipes:Kimi-Toy:h100:multi_node_tp"].nodes == 4
    assert found["recipes:Kimi-Toy:h200:multi_node_tp"].nodes == 2
    workers = [r.flags["--node-rank"] for r in found["recipes:Kimi-Toy:h100:multi_node_tp"].roles]
    assert workers == [0, 1, 2, 3]


def test_restricted_hardware_needs_a_word_of_the_page_and_weights_that_fit(tmp_path):
    page = PAGE.replace("{h200: verified}", "{h200: verified, desk: verified, b200: unsupported}")
    page = page.replace("vram_minimum_gb: 500", "vram_minimum_gb: 80")
    checkout = open_checkout(recipes(tmp_path, page=page))
    found = {one.id: one for one in vllm_recipes.read(checkout)}
    desk = found["recipes:Kimi-Toy:desk:single_node_tp"]
    assert (desk.variant, desk.roles[0].layout.tp) == ("nvfp4", 1)
    assert not [id_ for id_ in found if ":b200:" in id_ or ":chip:" in id_]


def rendered(tmp_path, **changed):
    """The renderings of a page with some of its lines replaced, by the end of their ids."""
    page = PAGE
    for old, new in changed.pop("lines", {}).items():
        assert old in page
        page = page.replace(old, new)
    checkout = open_checkout(recipes(tmp_path, page=page + changed.pop("more", "")))
    out = {one.id.removeprefix("recipes:"): one for one in vllm_recipes.read(checkout)}
    assert checkout.unread == []
    return out


def test_pools_of_several_nodes(tmp_path):
    lines = {
        "vram_minimum_gb: 700": "vram_minimum_gb: 1300",
        "decode: {parallelism: dep, tp: 2,": "prefill: {parallelism: tep}\n    decode: {parallelism: dep,",
        "  - pd_cluster": "  - pd_cluster\n  - single_node_tep",
    }
    found = rendered(tmp_path, lines=lines, more="strategy_min_gpus: {dep: 32}\n")
    one = found["Kimi-Toy:h200:pd_cluster"]
    prefill, decode = one.roles
    assert (one.nodes, prefill.nodes, decode.nodes) == (6, 2, 4)
    assert prefill.layout == Layout(tp=16, ep=True) and prefill.flags["--nnodes"] == 2
    assert prefill.flags["--master-addr"] == "$PREFILL_NODE_1"
    assert decode.layout == Layout(dp=32, dp_local=8, ep=True)
    assert decode.flags["--data-parallel-hybrid-lb"] is True
    assert decode.env["NCCL_SOCKET_IFNAME"] == "$IFACE_NAME"
    # Of 640 GB, no more than four nodes a pool are shown.
    lines["vram_minimum_gb: 700"] = "vram_minimum_gb: 2600"
    assert "Kimi-Toy:h100:pd_cluster" not in rendered(tmp_path, lines=lines)


def test_a_parallelism_that_pools_may_not_have_becomes_the_first_that_they_may(tmp_path):
    lines = {
        "    decode: {parallelism: dep, tp: 2,": "    pool_modes: [tp]\n    decode: {parallelism: dep,"
    }
    found = rendered(tmp_path, lines=lines)
    assert found["Kimi-Toy:h200:pd_cluster"].roles[1].layout == Layout(tp=8)


def test_what_a_page_says_is_shown_first(tmp_path):
    lines = {
        "tasks: [text]": "tasks: [text]\n  default_hardware: mi300x",
        "  - pd_cluster": "  - pd_cluster\n  - single_node_dep",
    }
    found = rendered(tmp_path, lines=lines, more="default_strategy: single_node_dep\n")
    assert next(iter(found)) == "Kimi-Toy:mi300x:single_node_dep"
    first = {id_ for id_, one in found.items() if one.recommended}
    # On hardware where one node is too small, the same over several nodes.
    assert {"Kimi-Toy:h200:single_node_dep", "Kimi-Toy:h100:multi_node_dep"} <= first
    assert found["Kimi-Toy:h200:single_node_dep"].roles[0].layout == Layout(dp=8, ep=True)
    # A strategy that this hardware cannot have is replaced by the first that it can.
    gates = {"  multi_node_dep: {mi300x: unsupported}": "  single_node_dep: {amd: unsupported}"}
    found = rendered(tmp_path, lines=lines | gates, more="default_strategy: single_node_dep\n")
    assert found["Kimi-Toy:mi300x:single_node_tp"].recommended
    assert "Kimi-Toy:mi300x:single_node_dep" not in found


@pytest.mark.parametrize(
    "variant, change, tp",
    [
        ("vram_minimum_gb: 700, tp: 4", "", 4),
        ("vram_minimum_gb: 700, tp: {h200: 2, default: 16}", "", 2),
        ("vram_minimum_gb: 700, tp: {hopper: 16}", "", 8),
        ("vram_minimum_gb: 700", "  single_node_tp: {tp: {nvidia: 4}}", 4),
        ("vram_minimum_gb: 140", "", 1),
        ("description: none", "", 8),
    ],
)
def test_the_tensor_parallel_size_on_one_node(tmp_path, variant, change, tp):
    lines = {
        "vram_minimum_gb: 700": variant,
        "strategy_overrides:": f"strategy_overrides:\n{change}",
    }
    found = rendered(tmp_path, lines=lines)
    assert found["Kimi-Toy:h200:single_node_tp"].roles[0].layout.tp == tp


def test_tensor_and_pipeline_parallel_over_nodes(tmp_path):
    found = rendered(tmp_path, lines={"  - multi_node_dep": "  - multi_node_tp_pp"})
    head, worker = found["Kimi-Toy:h200:multi_node_tp_pp"].roles
    assert head.layout == Layout(tp=8, pp=2) and worker.flags["--headless"] is True


def test_local_ranks_that_a_page_changes_move_the_first_rank_of_the_next_node(tmp_path):
    local = "  multi_node_dep: {extra_args: ['--data-parallel-size-local', '4']}"
    lines = {"strategy_overrides:": f"strategy_overrides:\n{local}"}
    _, worker = rendered(tmp_path, lines=lines)["Kimi-Toy:h200:multi_node_dep"].roles
    assert worker.flags["--data-parallel-start-rank"] == 4
    assert worker.layout.dp_local == 4


@pytest.mark.parametrize(
    "given, nvidia, amd",
    [
        ("docker_image: one:tag", "one:tag", "vllm/vllm-openai-rocm:latest"),
        ("docker_image: {cu129: old:tag}", "old:tag", "vllm/vllm-openai-rocm:latest"),
        ("docker_image: {amd: rocm:tag}", "vllm/vllm-openai:latest", "rocm:tag"),
        ("nightly_required: true", "vllm/vllm-openai:nightly", "vllm/vllm-openai-rocm:nightly"),
        ("docker_image: [odd]", "vllm/vllm-openai:latest", "vllm/vllm-openai-rocm:latest"),
    ],
)
def test_the_image_by_brand(tmp_path, given, nvidia, amd):
    old = 'docker_image: {nvidia: {cu129: "img:129", cu130: "img:130"}, amd: "rocm:nightly"}'
    found = rendered(tmp_path, lines={old: given})
    assert found["Kimi-Toy:h200:single_node_tp"].image == nvidia
    assert found["Kimi-Toy:mi300x:single_node_tp"].image == amd


def test_features_that_do_not_go_with_a_strategy_or_a_kv_store(tmp_path):
    lines = {
        "  tools: {args: [": "  tools: {strategies: [multi_node_tp], args: [",
        "  quiet: {args: [": '  helper: {companion: {command: "run it"}, args: ["--helped"]}\n  quiet: {args: [',
    }
    found = rendered(tmp_path, lines=lines)
    alone = found["Kimi-Toy:h200:single_node_tp"].roles[0].flags
    assert "--tool-call-parser" not in alone and "--helped" in alone
    assert "--tool-call-parser" in found["Kimi-Toy:h200:multi_node_tp"].roles[0].flags
    assert "--helped" not in found["Kimi-Toy:h200:pool"].roles[0].flags


def test_only_the_models_that_are_asked_for(tmp_path):
    checkout = open_checkout(recipes(tmp_path))
    assert {one.model for one in vllm_recipes.read(checkout, "TOY-nvfp4")} == {
        "nvidia/Kimi-Toy-NVFP4"
    }
    assert list(vllm_recipes.read(checkout, "qwen")) == []


@pytest.mark.parametrize(
    "old, new, place",
    [
        ("base_args: [", "base_args: 7 #[", "model.base_args"),
        ("vram_minimum_gb: 700", "vram_minimum_gb: many", "variants.default.vram_minimum_gb"),
        ("vram_minimum_gb: 700", "vram_minimum_gb: .inf", "variants.default.vram_minimum_gb"),
        ("decode: {parallelism: dep", "decode: {parallelism: up", "strategy_overrides.pd_cluster"),
        ("opt_in_features: [quiet]", "opt_in_features: [{a: b}]", "opt_in_features.0"),
        ("model_id: acme/Kimi-Toy", "model_id: [acme]", "model.model_id"),
    ],
)
def test_a_page_of_a_wrong_shape_is_left_out_with_its_key(tmp_path, old, new, place):
    checkout = open_checkout(recipes(tmp_path, page=PAGE.replace(old, new, 1)))
    assert list(vllm_recipes.read(checkout)) == []
    assert len(checkout.unread) == 1
    assert checkout.unread[0].startswith(f"models/acme/Kimi-Toy.yaml: {place}")


@pytest.mark.parametrize("count", [10**9, -1, 1.5])
def test_a_number_of_devices_that_nobody_has(tmp_path, count):
    taxonomy = TAXONOMY.replace("gpu_count: 4", f"gpu_count: {count}")
    checkout = open_checkout(recipes(tmp_path, taxonomy=taxonomy))
    with pytest.raises(vllm_recipes.ParameterError, match=r"gb200\.gpu_count"):
        list(vllm_recipes.read(checkout))
