"""The plan: every recipe, its shape, its refusals, its language."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kimi_nb import catalog
from kimi_nb.bundle import scripts
from kimi_nb.check import judge
from kimi_nb.core import data_files, paths
from kimi_nb.core.errors import KimiError, NoRecipeError, ParameterError, PlanError
from kimi_nb.params import load, recipes, schema
from kimi_nb.params.settings import EMPTY, flattened, lay, nested
from kimi_nb.plan import build, checkpoints, derivation, placement
from kimi_nb.plan import tables as plan_tables
from kimi_nb.plan.roles import RolePlan


def test_every_recipe(each_plan):
    plan = each_plan
    engine = catalog.engine(plan.engine, plan.engine_version)
    for one in plan.engines:
        text = " ".join([*one.argv, *one.env.values()])
        assert not re.search(r"[<>$]|\{[a-z_]+\}", text), text
        assert one.argv[:2] == ("vllm", "serve")
        flags = [word for word in one.argv if word.startswith("--")]
        assert len(flags) == len(set(flags)), "a flag twice"
        for word in flags:
            name = word.removeprefix("--")
            negated = catalog.flag(engine, name.removeprefix("no-"))
            assert catalog.flag(engine, name) or word in negated.get("negations", ()), word
    heads = [one for one in plan.engines if one.http_port]
    assert heads and plan.url
    assert bool(plan.router) == (plan.layout == "pd" or plan.scenario == "replicas")


def test_every_setting_tells_its_layer_source_and_meaning(each_plan):
    rows = each_plan.explain()
    assert {row.layer for row in rows} <= {"hardware", "model", "recipe", "site", "plan"}
    unexplained = [row.name for row in rows if not row.reason]
    assert unexplained == []
    assert all(row.source for row in rows)
    shown = {(row.role, row.name.split(".")[0]) for row in rows if row.kind == "flag"}
    for one in each_plan.engines[:1]:
        flags = {
            word.removeprefix("--").removeprefix("no-")
            for word in one.argv
            if word.startswith("--")
        }
        assert {name for role, name in shown if role == one.role} == flags


@pytest.mark.parametrize(
    "given, pairs, shape",
    [
        (("k2.6", "a3", "single", "long-context"), (), "DFlash drafts, tp16"),
        (("k2.5", "a3", "single", ""), ("dp=2", "tp=8"), "together, dp2 tp8"),
        (("k2.5", "a3", "pd", ""), (), "over Mooncake, prefill dp2 tp8, decode dp32 tp1"),
    ],
)
def test_the_title_has_the_shape_of_the_plan(given, pairs, shape):
    model, hardware, layout, scenario = given
    plan = build.plan(model, hardware, layout, scenario=scenario, pairs=pairs)
    assert plan.title.endswith(shape), plan.title


# Rows of the tuning tables of ascend-k2.6 9.1: (scenario, nodes, prefill dp x tp, decode dp x tp).
TABLE_K26_PD = [
    ("throughput", 2, (2, 8), (2, 8)),  # 1P1D
    ("throughput-2p2d", 4, (4, 4), (8, 4)),  # 2P2D
    ("multimodal", 2, (2, 8), (16, 1)),  # 1P1D, dp2 tp8 or dp16 tp1 on decode
    ("multimodal-decode-tp8", 2, (2, 8), (2, 8)),
    ("multimodal-2p2d", 4, (8, 2), (32, 1)),
]


@pytest.mark.parametrize("scenario, nodes, prefill, decode", TABLE_K26_PD)
def test_every_row_of_the_tables_of_k26_is_a_scenario(scenario, nodes, prefill, decode):
    plan = build.plan("k2.6", "a3", "pd", scenario=scenario)
    shapes = {one.role: (one.dp_size, one.tp_size) for one in plan.engines}
    assert shapes == {"prefill": prefill, "decode": decode}
    assert len({one.node for one in plan.engines}) == nodes
    assert all("--max-model-len 16384" in " ".join(one.argv) for one in plan.engines)
    assert "ascend-k2.6 9.1" in plan.source
    named = recipes.find(load.model("k2.6"), load.hardware("a3"), "pd").scenarios
    assert set(named) == {row[0] for row in TABLE_K26_PD}
    assert judge.plan(plan).errors == ()


def test_every_cited_document_has_its_address(each_plan):
    documents = data_files.facts("check/documents")
    cited = {row[0]: row[2] for row in plan_tables.sources(each_plan).rows if row[0]}
    assert each_plan.source.partition(" ")[0] in cited
    for name, url in cited.items():
        assert url.startswith("https://") or not documents[name]["golden"], name
        assert f" {url}" in str(plan_tables.sources(each_plan)), "an address is printed whole"


def test_the_sources_of_an_ascend_plan_name_the_pages_of_its_document():
    table = plan_tables.sources(build.plan("k2.6", "a3", "pd"))
    pages = {row[1]: row[2] for row in table.rows}
    assert {"support matrix", "feature guide", "Public FAQ", "performance tuning"} <= set(pages)
    assert pages["Public FAQ"].endswith("/faqs.html")


def test_json_contract():
    plan = build.plan("k2.5", "a3", "pd")
    data = json.loads(plan.as_json(scripts.files(plan)))
    assert {"engines", "router", "files", "errata", "engine_version"} <= set(data)
    assert len(data["engines"]) == 36
    for engine in data["engines"]:
        assert {
            "name",
            "node",
            "role",
            "rank",
            "devices",
            "http_port",
            "kv_port",
            "env",
            "argv",
        } <= set(engine)
        assert isinstance(engine["env"], dict) and isinstance(engine["argv"], list)
        assert all(isinstance(word, str) for word in engine["argv"])
    urls = [engine["url"] for engine in data["engines"]]
    assert [worker["url"] for worker in data["router"]["workers"]] == urls
    assert data["engine_version"] == "0.22.1rc1"


def test_same_inputs_same_bytes(each_plan):
    again = build.plan(
        each_plan.model,
        each_plan.hardware,
        each_plan.layout,
        variant=each_plan.variant,
        scenario=each_plan.scenario,
    )
    assert scripts.files(again) == scripts.files(each_plan)


def test_the_disaggregated_plan_in_figures():
    plan = build.plan("k2.5", "a3", "pd")
    prefill = [engine for engine in plan.engines if engine.role == "prefill"]
    decode = [engine for engine in plan.engines if engine.role == "decode"]
    assert [(e.node, e.rank, e.devices, e.http_port, e.kv_port) for e in prefill] == [
        ("a3-0", 0, tuple(range(8)), 7100, 36000),
        ("a3-0", 1, tuple(range(8, 16)), 7101, 36008),
        ("a3-1", 0, tuple(range(8)), 7100, 36100),
        ("a3-1", 1, tuple(range(8, 16)), 7101, 36108),
    ]
    assert [e.rank for e in decode] == list(range(32))
    assert [e.kv_port for e in decode] == list(range(36200, 36232))
    assert {e.argv[e.argv.index("--data-parallel-address") + 1] for e in decode} == {"192.0.2.13"}
    config = json.loads(decode[0].argv[decode[0].argv.index("--kv-transfer-config") + 1])
    assert config["kv_connector_extra_config"] == {
        "prefill": {"dp_size": 2, "tp_size": 8},
        "decode": {"dp_size": 32, "tp_size": 1},
    }


def test_the_connector_is_told_the_real_sizes():
    plan = build.plan(
        "k2.5", "a3", "pd", pairs=["prefill.dp=4", "prefill.tp=4", "decode.dp=16", "decode.tp=2"]
    )
    for engine in plan.engines:
        config = json.loads(engine.argv[engine.argv.index("--kv-transfer-config") + 1])
        assert config["kv_connector_extra_config"] == {
            "prefill": {"dp_size": 4, "tp_size": 4},
            "decode": {"dp_size": 16, "tp_size": 2},
        }


def test_tensor_parallel_over_nodes():
    plan = build.plan("k2.5", "gb200", "dp")
    head, follower = plan.engines
    for rank, engine in enumerate(plan.engines):
        words = dict(zip(engine.argv, engine.argv[1:], strict=False))
        assert words["--nnodes"] == "2" and words["--node-rank"] == str(rank)
        assert words["--master-addr"] == head.address
        assert words["--tensor-parallel-size"] == "8" and "--data-parallel-size" not in words
    assert "--headless" in follower.argv and "--headless" not in head.argv
    assert follower.http_port is None


@pytest.mark.parametrize(
    "pairs, words",
    [
        (["tp=8", "dp=4"], ["dp 4", "4 ranks x tp 8 = 32 devices", "16"]),
        (["tp=3"], ["tp 3", "64 attention heads", "allowed: 1, 2, 4, 8"]),
        (["tp=32", "dp=1"], ["tp 32", "1 x 16 = 16"]),
        (["max-model-len=300000"], ["300000", "262144"]),
        (["nodes=2", "dp=5", "tp=1"], ["dp 5 over 2 nodes", "2.50"]),
    ],
)
def test_what_does_not_fit_is_refused_with_the_sum(pairs, words):
    with pytest.raises(PlanError) as caught:
        build.plan("k2.5", "a3", "single", pairs=pairs)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "pairs, words",
    [
        (["router.port=7100"], ["a3-0", "7100", "HTTP of prefill0-rank0", "the router"]),
        (["prefill.rpc-port=7101"], ["7101", "rpc port of prefill group 0"]),
        (["prefill.kv-port=7100"], ["7100", "KV cache"]),
        (["decode.port=65530"], ["65536", "65535"]),
    ],
)
def test_ports_used_twice_or_out_of_range(pairs, words):
    with pytest.raises(PlanError) as caught:
        build.plan("k2.5", "a3", "pd", pairs=pairs)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "pair, words",
    [
        ("max-num-seq=3", ["max-num-seq", "did you mean 'max-num-seqs'"]),
        ("max-num-seqs=many", ["whole number", "'many'"]),
        ("max-num-seqs", ["key=value"]),
        ("enforce-eager=3", ["switch"]),
        ("kv-cache-dtype=fp9", ["fp9", "fp8"]),
        ("swap-space=4", ["gone", "0.17.0", "kv-offloading-size"]),
        ("skip-non-local-expert-weights=true", ["no vLLM version", "enable-ep-weight-filter"]),
        ("headless=true", ["works out"]),
        ("data-parallel-external-lb=true", ["not planned here"]),
        ("distributed-executor-backend=ray", ["not planned here"]),
        ("decode-context-parallel-size=3", ["does not divide tp 4"]),
        ("kv-transfer-config.kv_port=1", ["works out", "kv-port="]),
        ("kv-transfer-config=3", ["JSON object"]),
        ("additional-config=5", ["JSON object"]),
        ("api-key=hunter2", ["api_key_env"]),
        ("env.VLLM_API_KEY=hunter2", ["api_key_env"]),
        ("env.HF_TOKEN=hunter2", ["never written down"]),
        ("model=foo", ["not set by hand"]),
        ("help=true", ["not set by hand"]),
        ("max-num-seqs=", ["a value is wanted"]),
        ("max-num-seqs=0", ["1 to"]),
        ("max-num-seqs=-5", ["1 to"]),
        ("gpu-memory-utilization=5", ["0.01 to 1.0"]),
        ("gpu-memory-utilization=.nan", ["number"]),
        ("max-model-len=\u0663k", ["whole number"]),
        ("seed=0123", ["whole number"]),
        ("seed=2024-99-99", ["whole number"]),
        ("tp=\u0664", ["whole number"]),
        ("tp=" + "9" * 5000, ["whole number"]),
        ("served-model-name=--port", ["starts with '-'"]),
        ("served-model-name=x{foo}", ["{foo}"]),
        ("env.A={foo}", ["{foo}"]),
        ('speculative-config={"a$(id)":1}', ["key of a JSON"]),
        ("a b=1", ["not the name of a flag"]),
        ("=", ["key=value"]),
        ("speculative-config=" + "[" * 5000, ["not JSON"]),
        ("data-parallel-rank=3", ["works out"]),
        ("prefill.tp=2", ["role", "mixed"]),
        ("tp=0", ["1 or more"]),
        ("port=99999", ["65535"]),
        ("served-model-name=$(id)", ["'$'"]),
        ("env.X=a`b", ["'`'"]),
        ("env.1X=a", ["name of an environment variable"]),
        ("router=vllm-router", ["no router"]),
        ("router.port=1998", ["no router"]),
        ("speculative-config={bad", ["JSON"]),
        ("max-model-len=" + "a" * 9000, ["whole number", "..."]),
        ("a" * 9000 + "=1", ["at most 300 characters", "found 9,000 and 0"]),
        ("additional-config" + ".a" * 100 + "=1", ["20 dots", "100."]),
    ],
)
def test_overrides_that_are_wrong(pair, words):
    with pytest.raises(KimiError) as caught:
        build.plan("k2.5", "a3", "single", pairs=[pair])
    assert len(str(caught.value)) < 700
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_overrides():
    plan = build.plan(
        "k2.5",
        "a3",
        "pd",
        pairs=[
            "decode.max_num_seqs=32",
            "--seed=7",
            "env.HCCL_BUFFSIZE=1200",
            "router=vllm-router",
            "speculative-config.num_speculative_tokens=2",
            "decode.env.TASK_QUEUE_ENABLE=2",
            "prefill.port=7300",
            "router.port=1998",
        ],
    )
    prefill, decode = plan.first("prefill"), plan.first("decode")
    words = dict(zip(decode.argv, decode.argv[1:], strict=False))
    assert words["--max-num-seqs"] == "32" and words["--seed"] == "7"
    assert json.loads(words["--speculative-config"])["num_speculative_tokens"] == 2
    assert json.loads(words["--speculative-config"])["method"] == "eagle3"
    assert decode.env["HCCL_BUFFSIZE"] == "1200" == prefill.env["HCCL_BUFFSIZE"]
    assert (decode.env["TASK_QUEUE_ENABLE"], prefill.env["TASK_QUEUE_ENABLE"]) == ("2", "1")
    assert prefill.http_port == 7300 and plan.router.port == 1998
    assert plan.router.argv[0] == "vllm-router"
    assert plan.router.argv.count("--decode") == 32
    rows = {(row.role, row.name): row for row in plan.explain()}
    assert rows["decode", "max-num-seqs"].layer == "override"


def test_features_on_and_off():
    plan = build.plan(
        "k2.5",
        "h200",
        "single",
        variant="pip",
        chosen=["eplb", "expert-parallel"],
        dropped=["tool-parser", "prefix-caching"],
    )
    argv = plan.engines[0].argv
    assert "--enable-eplb" in argv and "--no-enable-prefix-caching" in argv
    assert "--tool-call-parser" not in argv and "--enable-auto-tool-choice" not in argv
    assert "eplb" in plan.features["mixed"]


@pytest.mark.parametrize(
    "where, on, off, words",
    [
        (("k2.5", "h200", "single"), ["eplb"], [], ["requires expert-parallel", "--with"]),
        (("k2.5", "a3", "single"), ["eagle3-thinking"], [], ["draft model"]),
        (("k2.6", "a3", "single"), ["eagle3"], [], ["exclude each other", "--without"]),
        (("k2.5", "a3", "pd"), ["balance-scheduling"], [], ["single, dp", "pd"]),
        (("k2.5", "a3", "single"), ["fp8-kv-cache"], [], ["nvidia, amd", "ascend"]),
        (("k2-thinking", "a3", "single"), ["thinking-off"], [], ["k2.5, k2.6"]),
        (("k2.5", "a3", "single"), ["turbo"], [], ["'turbo' is not known"]),
        (("k2.5", "a3", "single"), [], ["turbo"], ["'turbo' is not known"]),
        (("k2.5", "a3", "single"), ["jemalloc"], ["jemalloc"], ["say one"]),
        (
            ("k2.5", "h200", "single"),
            ["eagle3-instant"],
            [],
            [">=0.18.0", "0.17.0", "--engine-version"],
        ),
    ],
)
def test_features_that_do_not_fit(where, on, off, words):
    with pytest.raises(KimiError) as caught:
        build.plan(*where, chosen=on, dropped=off)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_draft_on_a_serving_job_that_has_none():
    """The optimised job of the same plan has another draft, which gives way to the chosen one."""
    plan = build.plan("k2.5", "h200", "single", variant="slurm", chosen=["eagle3-thinking"])
    drafts = {
        job.name: json.loads(job.argv[job.argv.index("--speculative-config") + 1])["model"]
        for job in plan.jobs
        if job.name in ("baseline", "optimised")
    }
    folder = "/projects/kimi/models/kimi-k2.5-thinking-eagle3"
    assert drafts == {"baseline": folder, "optimised": folder}
    with pytest.raises(PlanError, match=r"eagle3-thinking needs vLLM >=0.18.0; .* 0.17.0"):
        build.plan(
            "k2.5",
            "h200",
            "single",
            variant="slurm",
            chosen=["eagle3-thinking"],
            engine_version="0.17.0",
        )
    with pytest.raises(PlanError, match="exclude each other"):  # the scenario's own is the user's
        build.plan(
            "k2.5",
            "h200",
            "single",
            variant="slurm",
            scenario="optimised",
            chosen=["eagle3-thinking"],
        )


def served(folder, model: str, hardware: str, weights: str, version: str, tp: int) -> str:
    """Return a model file that serves one of ours on one node, by a recipe of its own."""
    recipe = {
        "hardware": hardware,
        "layout": "single",
        "variant": "pip",
        "title": "made for a test",
        "documented": False,
        "source": {"document": "recipes-k3"},
        "engine_version": version,
        "weights": weights,
        "install": "pip",
        "roles": {"mixed": {"tp": tp}},
    }
    path = folder / f"{model}-{hardware}.yaml"
    made = {"extends": model, "name": model, "recipes": [recipe]}
    path.write_text(yaml.safe_dump(made), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("model", "weights", "version", "parser"),
    [("k3", "mxfp4", "0.27.1", "kimi_k3"), ("k2.7-code", "int4", "0.20.2", "kimi_k2")],
)
def test_parsers_are_those_of_the_model(model, weights, version, parser, tmp_path):
    file = served(tmp_path, model, "h200", weights, version, 8)
    plan = build.plan(file, "h200", "single", chosen=["tool-parser", "reasoning-parser"])
    line = " ".join(plan.engines[0].argv)
    assert f"--tool-call-parser {parser}" in line and f"--reasoning-parser {parser}" in line
    assert {one.rule for one in judge.plan(plan).findings} & {"engine/other-parsers"} == set()


def test_a_draft_brings_its_own_options(tmp_path):
    file = served(tmp_path, "k3", "h200", "mxfp4", "0.27.1", 8)
    plan = build.plan(file, "h200", "single", chosen=["dspark"])
    words = plan.engines[0].argv
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "dspark",
        "model": "RedHatAI/Kimi-K3-speculator.dspark",
        "num_speculative_tokens": 8,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }


@pytest.mark.parametrize("tp", [5, 7, 64])
def test_tensor_parallel_divides_the_heads_of_the_model(tp, tmp_path):
    file = served(tmp_path, "k3", "h200", "mxfp4", "0.27.1", tp)
    with pytest.raises(PlanError, match=f"tp {tp} does not divide the 96 attention heads"):
        build.plan(file, "h200", "single")


def test_every_feature_switches_something(tmp_path):
    """Each feature, on a recipe that can have it, on and off: the command line differs."""
    places = [
        (served(tmp_path, "k2.6", "h200", "int4", "0.20.2", 8), "h200", "single"),
        (served(tmp_path, "k2.7-code", "h200", "int4", "0.20.2", 8), "h200", "single"),
        (served(tmp_path, "k3", "h200", "mxfp4", "0.27.1", 8), "h200", "single"),
        ("k2.5", "a3", "single"),
        ("k2.5", "a3", "pd"),
        ("k2.6", "a3", "single"),
        ("k2.5", "h200", "single"),
    ]
    newer = {"k2.5": {"h200": "0.19.1"}}
    drafts = {name for name, feature in load.features().items() if feature.draft}
    for name, feature in load.features().items():
        seen = False
        for model, chip, layout in places:
            others = drafts - {name} if name in drafts or name == "decode-context-parallel" else ()
            engine = newer.get(model, {}).get(chip, "")
            try:
                on = build.plan(
                    model,
                    chip,
                    layout,
                    engine_version=engine,
                    dropped=others,
                    chosen=[*feature.requires, name],
                )
                off = build.plan(
                    model,
                    chip,
                    layout,
                    engine_version=engine,
                    chosen=feature.requires,
                    dropped=[*others, name],
                )
            except KimiError:
                continue
            seen = True
            differs = (on.engines != off.engines, on.host_tuning != off.host_tuning)
            assert any(differs), f"{name} on {chip} {layout}"
        assert seen, f"no recipe can have {name}"


@pytest.mark.parametrize(
    "version, words, env",
    [
        (
            "v0.18.0",
            [],
            {
                "VLLM_ASCEND_BALANCE_SCHEDULING": "1",
                "VLLM_ASCEND_ENABLE_MLAPO": "1",
                "VLLM_ASCEND_ENABLE_FLASHCOMM1": "1",
            },
        ),
        ("v0.22.1rc1", ["enable_balance_scheduling", "enable_mlapo", "enable_flashcomm1"], {}),
        ("v0.25.1rc1", ["scheduler_config", "enable_mlapo"], {}),
    ],
)
def test_the_plan_speaks_the_version(version, words, env):
    plan = build.plan("k2.5", "a3", "single", engine_version=version)
    engine = plan.engines[0]
    named = {name: value for name, value in engine.env.items() if "VLLM_ASCEND" in name}
    assert named == env
    if words:
        config = json.loads(engine.argv[engine.argv.index("--additional-config") + 1])
        assert set(words) <= set(config)
        assert plan.notes
    else:
        assert "--additional-config" not in engine.argv
    assert version in plan.image


def test_what_a_version_dropped_is_left_out_and_said():
    plan = build.plan("k2.5", "gb200", "single", variant="nvfp4", engine_version="0.33.0")
    assert "VLLM_USE_FLASHINFER_MOE_FP4" not in plan.engines[0].env
    assert any("VLLM_USE_FLASHINFER_MOE_FP4" in note for note in plan.notes)


@pytest.mark.parametrize(
    "chip, version",
    [
        ("a3", "v0.20.0rc1"),
        ("a3", "0.22"),
        ("h200", "9.9"),
        ("h200", "new"),
        ("h200", "0.1.0"),
        ("h200", "0.34.0"),
        ("h200", "vv0.22.0"),
        ("h200", "1!0.22.0"),
        ("h200", "0.22.0+cpu"),
        ("h200", "0.22"),
        ("h200", "9" * 5000),
    ],
)
def test_versions_that_nobody_released(chip, version):
    with pytest.raises(ParameterError, match="version .* is not known"):
        build.plan("k2.5", chip, "single", engine_version=version)


def test_every_recipe_at_every_version():
    """Planned in that version's words, or refused in a sentence; nothing else."""
    for row in recipes.listing():
        if row["scenario"] != "default" or row["deployment"]:
            continue
        package = load.hardware(row["hardware"]).engine
        for version in catalog.versions(package):
            try:
                plan = build.plan(
                    row["model"],
                    row["hardware"],
                    row["layout"],
                    variant=row["variant"],
                    engine_version=version,
                )
            except KimiError:
                continue
            engine = catalog.engine(package, version)
            for word in plan.engines[0].argv:
                if word.startswith("--"):
                    name = word.removeprefix("--")
                    assert catalog.flag(engine, name) or catalog.flag(
                        engine, name.removeprefix("no-")
                    ), (version, word)
            for name in plan.engines[0].env:
                assert catalog.variable(engine, name) or not catalog.history(name, "env")


def test_what_a_layer_may_not_set(site_file):
    for flag in ("headless: true", "tensor-parallel-size: 2", "port: 9", "host: a", "node-rank: 7"):
        path = site_file(("nic: enp67s0f5", f"nic: x0\nsettings: {{flags: {{{flag}}}}}"))
        with pytest.raises(ParameterError, match=r"site a3-example: the plan works out"):
            build.plan("k2.5", "a3", "single", site=path)


@pytest.mark.parametrize(
    "pairs, words",
    [
        (["prefill.tp=1", "decode.tp=8", "decode.dp=4"], ["prefill tp 1 is less than decode tp 8"]),
        (["decode.kv-transfer-config=null"], ["kv_connector"]),
    ],
)
def test_a_disaggregated_plan_that_could_not_work(pairs, words):
    with pytest.raises(PlanError) as caught:
        build.plan("k2.5", "a3", "pd", pairs=pairs)
    for word in words:
        assert word in str(caught.value)


def test_the_master_port_is_a_port():
    with pytest.raises(PlanError, match="8000"):
        build.plan("k2.5", "gb200", "dp", pairs=["master-port=8000"])


def test_text_stays_text():
    for text in ("0123", "12:30", "1_0", "yes", "007"):
        plan = build.plan("k2-thinking", "a3", "single", pairs=[f"served-model-name={text}"])
        assert plan.served_name == text
    plan = build.plan("k2.5", "a3", "single", pairs=["speculative-config=null"])
    assert "--speculative-config" not in plan.engines[0].argv


def test_a_draft_that_the_version_does_not_know():
    with pytest.raises(PlanError, match="eagle3 needs vLLM >=0.18.0.*--without eagle3"):
        build.plan("k2.5", "a3", "single", engine_version="v0.17.0rc1")
    plan = build.plan("k2.5", "a3", "single", engine_version="v0.17.0rc1", dropped=["eagle3"])
    assert "--speculative-config" not in plan.engines[0].argv


def test_what_does_not_exist_says_what_does():
    for where, there in (
        (("k2.5", "a2", "single"), "k2.5 on a3 (single, pd), a2 (dp)"),
        (("k2-instruct", "a3", "single"), "k2-thinking on a3 (single)"),
        (("k2.6", "a2", "dp"), "k2.6 on a2: the container only (notebook 02)"),
    ):
        with pytest.raises(NoRecipeError) as caught:
            build.plan(*where)
        assert "There is:" in str(caught.value) and there in str(caught.value)
    with pytest.raises(NoRecipeError, match="long-context"):
        build.plan("k2.6", "a3", "single", scenario="fast")
    with pytest.raises(NoRecipeError, match="docker, nvfp4"):
        build.plan("k2.5", "gb200", "single", variant="fp64")


def test_cells_cover_every_combination():
    rows = {(row["model"], row["hardware"], row["layout"]) for row in recipes.listing()}
    cells = derivation.cells()
    words = {(one.model, one.hardware, one.layout): one.word for one in cells}
    assert len(words) == len(cells)
    assert {key for key, word in words.items() if word in ("documented", "undocumented")} == rows
    assert set(words.values()) == {"documented", "undocumented", "derived", "impossible"}
    assert all(one.why for one in cells)
    own = {name: {*load.hardware(name).models.values()} for name in load.names("hardware")}
    tiny = set().union(*own.values())  # on a CPU the tiny ones, nowhere else
    assert tiny and set(words) == {
        (model, hardware, layout)
        for model in load.names("models")
        for hardware, mine in own.items()
        if (model in mine if mine else model not in tiny)
        for layout in ("single", "dp", "pd")
    }


def test_a_model_without_a_stand_in_is_not_replaced():
    """Kimi-K3 does not run on a CPU, and a tiny model of another architecture says nothing of it."""
    kimi, chip = load.model("k3"), load.hardware("cpu")
    assert recipes.of(kimi, chip) == [] and recipes.served(kimi, chip) is kimi
    with pytest.raises(NoRecipeError, match="no tiny model stands for it: vLLM .* on a CPU"):
        build.plan("k3", "cpu", "single")
    assert recipes.of(load.model("k2.7-code"), chip), "its architecture is that of tiny-k2.5"


def test_a_model_without_recipes_is_answered_with_what_there_is():
    for name in load.names("models"):
        bare = load.model(name).model_copy(update={"recipes": ()})
        for chip in map(load.hardware, load.names("hardware")):
            if chip.models:
                continue
            assert recipes.of(bare, chip) == []
            with pytest.raises(NoRecipeError, match=re.escape(f"{bare.title} on {chip.name}")):
                recipes.find(bare, chip, None)


def test_the_site_chooses_the_variant():
    assert build.plan("k2.5", "h200", "single", site="h200-slurm").variant == "slurm"
    assert build.plan("k2.5", "h200", "single").variant == "docker"
    assert build.plan("k2.5", "h200", "single", variant="slurm").transport == "slurm"
    with pytest.raises(PlanError, match="transport ssh"):
        build.plan("k2.5", "h200", "single", variant="slurm", site="h200")


def test_a_secret_is_a_name(site_file, monkeypatch):
    monkeypatch.setenv("KIMI_KEY", "sk-planted-value")
    path = site_file(("nic: enp67s0f5", "nic: x0\napi_key_env: KIMI_KEY"))
    plan = build.plan("k2.5", "a3", "pd", site=path)
    texts = "\n".join(scripts.files(plan).values())
    assert "sk-planted-value" not in texts
    assert 'export VLLM_API_KEY="${KIMI_KEY:?' in texts
    assert (
        """@<(printf 'Authorization: Bearer %s\\n' "$KIMI_KEY")"""
        in scripts.files(plan)["client/chat.sh"]
    )


# Properties --------------------------------------------------------------------------------

shapes = st.fixed_dictionaries(
    {
        "groups": st.integers(1, 3),
        "nodes": st.integers(1, 4),
        "dp": st.integers(1, 64),
        "tp": st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
        "pp": st.sampled_from([1, 1, 2, 3, 4]),
    }
)


def _role(shape, role="decode"):
    ports = {"http": 7100, "rpc": 12321, "kv": 36000, "side_channel": 5600, "master": None}
    return RolePlan(
        role=role, **shape, ports=ports, settings=EMPTY, features=(), notes=(), host_tuning=False
    )


@given(first=shapes, second=shapes, per_rank=st.booleans())
def test_placed_engines_never_collide(first, second, per_rank):
    """Whatever fits has ranks 0..dp-1 once in each group, no device and no port twice on a
    node; by counting, not by the planner's own arithmetic."""
    chip = load.hardware("a3")
    example = load.site("a3")
    nodes = tuple(schema.Node(name=f"n{i}", address=f"192.0.2.{i + 1}") for i in range(24))
    site = example.model_copy(update={"nodes": nodes})
    roles = {"prefill": _role(first, "prefill"), "decode": _role(second)}
    try:
        groups = placement.layout(roles, chip, site, per_rank, 64)
    except PlanError:
        return
    places = [
        place
        for group in groups
        for place in placement.places(group, roles[group.role], 16, per_rank)
    ]
    placement.check_ports(places, [])
    devices: list[tuple[str, int]] = []
    ports: list[tuple[str, int]] = []
    ranks: dict[int, list[int]] = {}
    wide: Counter[tuple[int, int]] = Counter()  # the devices of each rank, over its nodes
    for place in places:
        node = place.node.name
        devices += [(node, device) for device in place.devices]
        ports += [(node, port) for port in place.kv_ports]
        if place.http_port:
            ports.append((node, place.http_port))
        assert all(0 <= device < 16 for device in place.devices)
        each = place.group.tp * place.group.pp
        assert place.spans or len(place.devices) == place.ranks * each
        mine = range(place.rank, place.rank + place.ranks)
        wide.update({(place.group.index, one): len(place.devices) // place.ranks for one in mine})
        if not place.spans or place.node_rank * 16 % each == 0:
            ranks.setdefault(place.group.index, []).extend(mine)
    assert len(devices) == len(set(devices))
    assert len(ports) == len(set(ports))
    for group in groups:
        assert sorted(ranks[group.index]) == list(range(group.dp))
        sizes = [wide[group.index, rank] for rank in range(group.dp)]
        assert sizes == [group.tp * group.pp] * group.dp
    used = [node.name for group in groups for node in group.nodes]
    assert len(used) == len(set(used))


leaves = st.one_of(
    st.integers(-(2**62), 2**62),
    st.booleans(),
    st.text("abc", min_size=1),
    st.lists(st.integers(-9, 9), max_size=3),
)
keys = st.text("xyz_", min_size=1, max_size=4)
tables = st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, min_size=1, max_size=3))


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=5), tables, min_size=1))
def test_flattening_and_nesting_are_inverse(flags):
    flat = {
        path: leaf for name, value in flags.items() for path, leaf in flattened(name, value).items()
    }
    assert nested(flat) == flags


@given(st.dictionaries(keys, leaves, max_size=4), st.dictionaries(keys, leaves, max_size=4))
def test_a_later_layer_wins_and_the_rest_stays(below, above):
    below = {f"f{key}".replace("_", "-"): value for key, value in below.items()}
    above = {f"f{key}".replace("_", "-"): value for key, value in above.items()}
    laid = lay(lay(EMPTY, {"flags": below}, "recipe", "a"), {"flags": above}, "override", "b")
    assert {name: value.value for name, value in laid.flags.items()} == {**below, **above}
    assert {name for name, value in laid.flags.items() if value.layer == "override"} == set(above)


def test_a_variable_that_counts_moves_as_a_number():
    plan = build.plan(
        "k2.5",
        "a3",
        "single",
        pairs=["env.VLLM_ASCEND_ENABLE_NZ=1", "env.VLLM_ASCEND_ENABLE_FUSED_MC2=1"],
    )
    found = json.loads(plan.engines[0].argv[plan.engines[0].argv.index("--additional-config") + 1])
    assert found["weight_nz_mode"] == 1 and found["weight_nz_mode"] is not True
    assert found["enable_fused_mc2"] is True


@pytest.mark.parametrize(
    ("version", "roles"), [("0.22.1rc1", ["decode", "prefill"]), ("0.24.0rc1", ["decode"])]
)
def test_a_key_that_a_role_ignores_is_left_out_from_that_version_on(version, roles):
    plan = build.plan("k2.5", "a3", "pd", engine_version=version)
    told = [
        role
        for role in ("decode", "prefill")
        if any("recompute_scheduler_enable" in word for word in plan.first(role).argv)
    ]
    assert told == roles
    assert any("prefill ignores it" in note for note in plan.notes) is (told == ["decode"])
    kept = build.plan(
        "k2.5",
        "a3",
        "pd",
        engine_version=version,
        pairs=["prefill.additional-config.recompute_scheduler_enable=true"],
    )
    assert any("recompute_scheduler_enable" in word for word in kept.first("prefill").argv)


def test_a_draft_that_takes_the_whole_step_is_refused():
    """DFlash keeps 14 of each sequence's slots at vLLM 0.20.2: 32 tokens hold none of 8."""
    made = build.plan("k2.6", "a3", "pd", chosen=["dflash"], dropped=["eagle3"])
    assert made.flags["decode"]["max-num-batched-tokens"].value == 240
    assert made.flags["prefill"]["max-num-batched-tokens"].value == 16384
    assert build.plan("k2.6", "a3", "pd").flags["decode"]["max-num-batched-tokens"].value == 32
    with pytest.raises(PlanError, match=r"decode: dflash takes 112 .*--set decode\.max-num-.*=240"):
        build.plan(
            "k2.6",
            "a3",
            "pd",
            chosen=["dflash"],
            dropped=["eagle3"],
            pairs=["decode.max-num-batched-tokens=112"],
        )
    least = ["decode.max-num-batched-tokens=113"]
    build.plan("k2.6", "a3", "pd", chosen=["dflash"], dropped=["eagle3"], pairs=least)


def test_a_step_that_holds_no_prompt_is_refused_without_chunked_prefill():
    with pytest.raises(PlanError, match=r"--set max-num-batched-tokens=32768, or lower"):
        build.plan("k2.5", "a3", "single", dropped=["chunked-prefill"])
    way_out = ["max-num-batched-tokens=32768"]
    build.plan("k2.5", "a3", "single", dropped=["chunked-prefill"], pairs=way_out)
    build.plan("k2.5", "h200", "single", variant="docker", dropped=["chunked-prefill"])


@pytest.mark.parametrize(
    ("where", "pair", "says"),
    [
        (("k2.5", "h200", "single", "docker"), "kv-port=5000", "kv-transfer-config.kv_connector"),
        (("k2.5", "gb200", "pd", ""), "prefill.kv-port=5000", "side-channel-port"),
        (("k2.5", "h200", "single", "docker"), "rpc-port=5000", "one process of one node"),
        (("k2.5", "a3", "pd", ""), "decode.side-channel-port=5000", "kv-port"),
        (("k2.5", "h200", "single", "docker"), "master-port=5000", "one engine over several nodes"),
    ],
)
def test_a_port_that_nothing_listens_at_is_refused(where, pair, says):
    model, chip, layout, variant = where
    with pytest.raises(ParameterError) as caught:
        build.plan(model, chip, layout, variant=variant, pairs=[pair])
    assert pair in str(caught.value) and says in str(caught.value), str(caught.value)


def test_only_mooncake_wants_a_larger_tp_in_prefill():
    pairs = ["prefill.tp=1", "decode.tp=2", "decode.dp=8"]
    made = build.plan("k2.5", "gb200", "pd", pairs=pairs)
    assert "topology/pd-tp" not in {one.rule for one in judge.plan(made).findings}
    with pytest.raises(PlanError, match=r"Mooncake.*Raise prefill\.tp"):
        build.plan("k2.5", "a3", "pd", pairs=["prefill.tp=4", "decode.tp=8", "decode.dp=4"])


def test_context_parallelism_and_drafts_by_hardware_and_version():
    split = ["decode-context-parallel"]
    build.plan("k2.5", "h200", "single", variant="slurm", scenario="optimised", chosen=split)
    with pytest.raises(PlanError, match=r"key heads of a draft.*--without eagle3\)"):
        build.plan("k2.5", "a3", "single", chosen=split)
    build.plan("k2.5", "a3", "single", chosen=split, dropped=["eagle3"])
    build.plan("k2.5", "a3", "single", chosen=split, engine_version="v0.18.0")


@pytest.mark.parametrize(
    "model, layout, given, title",
    [
        ("k2.5", "pd", {}, "Four A3 nodes, two prefill groups and one decode group over Mooncake"),
        ("k2.5", "pd", {"pairs": ["max-num-seqs=4"]}, "Four A3 nodes, two prefill groups"),
        (
            "k2.5",
            "pd",
            {"pairs": ["prefill.groups=1", "decode.nodes=1", "decode.dp=16"]},
            "Kimi-K2.5 on 2 nodes of a3, 1 prefill group and 1 decode group, prefill dp2 tp8, ",
        ),
        ("k2.6", "pd", {"scenario": "throughput"}, "Kimi-K2.6 on 2 nodes of a3, 1 prefill"),
        ("k2.6", "single", {}, "One A3 node, prefill and decode together, DFlash drafts"),
        ("k2.6", "single", {"dropped": ["dflash"]}, "Kimi-K2.6 on 1 node of a3, 1 group, dp4 tp4"),
    ],
)
def test_the_title_is_that_of_what_is_planned(model, layout, given, title):
    assert build.plan(model, "a3", layout, **given).title.startswith(title)


def test_variables_are_shown_with_the_values_of_the_first_engine(each_plan):
    """As flags are: a placeholder is no value."""
    for row in each_plan.explain():
        assert not re.search(r"\{(address|nic|leader)\}", str(row.value)), row
    for role, values in each_plan.env.items():
        first = each_plan.first(role)
        for name, value in values.items():
            assert first.env[name] == value.value, name


# Where weights lie --------------------------------------------------------------------------


def _named(engine) -> tuple[str, str | None]:
    """The model and the draft that an engine's command names."""
    words = list(engine.argv)
    draft = None
    if "--speculative-config" in words:
        draft = json.loads(words[words.index("--speculative-config") + 1])["model"]
    return words[2], draft


@pytest.mark.parametrize(
    "names", [("k2.5", "a3", "pd"), ("k2.5", "a2", "dp"), ("k2.6", "a3", "pd")]
)
def test_weights_that_hugging_face_lacks_are_served_from_folders_with_their_draft(names):
    plan = build.plan(*names)
    for engine in plan.engines:
        model, draft = _named(engine)
        assert model.startswith("/root/kimi/models/Kimi-K2.") and model.endswith("-W4A8")
        assert draft.startswith("/root/kimi/models/")
        assert engine.argv[engine.argv.index("--served-model-name") + 1] == plan.served_name
        assert "VLLM_USE_MODELSCOPE" not in engine.env
    # The work folder is mounted under its own name, and these with it.
    for box in plan.containers:
        assert "/root/kimi:/root/kimi" in box.argv


@pytest.mark.parametrize("names", [("k2.5", "h200", "single"), ("k2-thinking", "a3", "single")])
def test_weights_on_hugging_face_keep_their_published_name(names):
    plan = build.plan(*names)
    assert _named(plan.engines[0])[0] == plan.weights and plan.weights.startswith("moonshotai/")


@pytest.mark.parametrize(
    "names, folder",
    [
        (("k2.5", "h200", "single"), "kimi-k2.5"),
        (("k2.5", "mi300x", "single"), "kimi-k2.5"),
        (("k2.5", "a3", "pd"), "Kimi-K2.5-W4A8"),
        (("k2-thinking", "a3", "single"), "Kimi-K2-Thinking"),
    ],
)
def test_the_folder_of_the_site_is_in_the_container_under_its_name(names, folder, tmp_path):
    text = (paths.root() / "params" / "sites" / f"{names[1]}.yaml").read_text()
    mine = tmp_path / "site.yaml"
    mine.write_text(text.replace("paths: {", "paths: {models: /data/models, "))
    plan = build.plan(*names, site=str(mine))
    for box in plan.containers:
        at = box.argv.index("/data/models:/data/models")
        assert box.argv[at - 1] == "-v" and at < box.argv.index(box.image)
    assert all(_named(engine)[0] == f"/data/models/{folder}" for engine in plan.engines)


def test_a_folder_that_is_mounted_already_is_mounted_once(tmp_path):
    text = (paths.root() / "params" / "sites" / "a3.yaml").read_text()
    mine = tmp_path / "site.yaml"
    mine.write_text(text.replace("paths: {", "paths: {models: /root/kimi/weights, "))
    box = build.plan("k2.5", "a3", "single", site=str(mine)).containers[0]
    assert not [word for word in box.argv if "weights" in word]
    mine.write_text(text.replace("paths: {", "paths: {models: /root/.cache/weights, "))
    box = build.plan("k2.5", "a3", "single", site=str(mine)).containers[0]
    # /root/.cache of the site may be any folder: only the same name on both sides counts.
    assert [word for word in box.argv if "weights" in word] == []
    mine.write_text(
        text.replace("paths: {cache: /root/.cache", "paths: {models: /big/w, cache: /big")
    )
    box = build.plan("k2.5", "a3", "single", site=str(mine)).containers[0]
    assert "/big/w:/big/w" in box.argv


# What the scripts run in ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chip", "version", "image"),
    [
        ("h200", "0.11.2", "vllm/vllm-openai:v0.11.2"),
        ("h200", "0.17.0", "vllm/vllm-openai:v0.17.0-cu130"),
        ("h200", "0.19.1", "vllm/vllm-openai:v0.19.1-cu130"),
        ("h200", "0.20.2", "vllm/vllm-openai:v0.20.2"),
        ("h200", "0.22.1", "vllm/vllm-openai:v0.22.1"),
        ("gb200", "0.19.1", "vllm/vllm-openai:v0.19.1-aarch64-cu130"),
        ("gb200", "0.25.1", "vllm/vllm-openai:v0.25.1-aarch64"),
    ],
)
def test_the_tag_of_an_image_is_that_of_its_version(chip, version, image):
    """From 0.20.0 the image for CUDA 13 has no suffix, and there is none with -cu130."""
    plan = build.plan("k2.5", chip, "single", variant="docker", engine_version=version)
    assert plan.image == plan.containers[0].image == image
    assert image in plan.containers[0].argv
    assert all(step.argv[-1] == image for step in plan.installs["docker"])


@pytest.mark.parametrize(("version", "torch"), [("0.19.1", "cu129"), ("0.22.1", "cu130")])
def test_torch_has_the_cuda_of_the_wheel(version, torch):
    plan = build.plan("k2.5", "h200", "single", variant="pip", engine_version=version)
    (argv,) = [step.argv for step in plan.installs["pip"] if f"vllm=={version}" in step.argv]
    assert argv[argv.index("--torch-backend") + 1] == torch


@pytest.mark.parametrize(("version", "nixl"), [("0.19.1", "0.9.0"), ("0.25.1", "1.3.0")])
def test_disaggregation_installs_its_connector_and_its_router(version, nixl):
    """Each pinned; NIXL and its two backends alike, which it does not do itself."""
    plan = build.plan("k2.5", "gb200", "pd", engine_version=version)
    words = [word for step in plan.installs["pip"] for word in step.argv]
    assert {word for word in words if word.startswith("nixl")} == {
        f"{name}=={nixl}" for name in ("nixl", "nixl-cu12", "nixl-cu13")
    }
    assert "vllm-router==0.1.17" in words
    for layout in ("single", "dp"):
        other = build.plan("k2.5", "gb200", layout, variant="nvfp4" if layout == "single" else "")
        assert not any("nixl" in word for step in other.installs["pip"] for word in step.argv)


def test_shared_memory_is_enough_for_sixteen_engines():
    sizes = {
        layout: next(
            word
            for word in build.plan("k2.5", "a3", layout).containers[0].argv
            if word.startswith("--shm-size")
        )
        for layout in ("single", "pd")
    }
    assert sizes == {"single": "--shm-size=1g", "pd": "--shm-size=512g"}


def test_containers_on_several_nodes_reach_each_other():
    """The network of the host, the RDMA device, and memory that may be locked."""
    plan = build.plan("k2.5", "h200", "single", variant="docker", pairs=["nodes=2", "tp=16"])
    for container, engine in zip(plan.containers, plan.engines, strict=True):
        argv = container.argv
        assert {"--net=host", "IPC_LOCK", "memlock=-1", "stack=67108864"} <= set(argv)
        assert argv[argv.index("/dev/infiniband") - 1] == "--device" and "-p" not in argv
        assert engine.argv[engine.argv.index("--host") + 1] == engine.address
        assert argv[-len(engine.argv) + 2 :] == engine.argv[2:]
    alone = build.plan("k2.5", "h200", "single", variant="docker")
    assert "/dev/infiniband" not in alone.containers[0].argv and "-p" in alone.containers[0].argv


@pytest.mark.parametrize("name", ["k2.5", "k2.6", "k2-thinking"])
def test_downloads_have_a_page_a_size_and_minutes(name):
    model = load.model(name)
    table = plan_tables.weights(model, 10)
    assert len(table.rows) == len(model.weights) + len(model.drafts)
    assert table.headings[-1] == "minutes at 10 Gbit/s"
    for row in table.rows:
        page, size, minutes = row[-3:]
        host = {"modelscope": "modelscope.cn/models", "huggingface": "huggingface.co"}[row[3]]
        assert page == f"https://{host}/{row[1]}"
        assert float(minutes) == pytest.approx(int(size.split()[0]) * 8 / 10 / 60, abs=0.1)
    assert plan_tables.weights(model).headings[-1] == "size on disk"


def test_a_download_is_told_to_the_hub_that_has_it():
    plan = build.plan("k2.5", "a3", "pd")
    commands = [" ".join(one.command) for one in checkpoints.of(plan)]
    assert commands == [
        "modelscope download --model Eco-Tech/Kimi-K2.5-W4A8 "
        "--local_dir /root/kimi/models/Kimi-K2.5-W4A8 --max-workers 8",
        "hf download lightseekorg/kimi-k2.5-eagle3 "
        "--local-dir /root/kimi/models/kimi-k2.5-eagle3 --max-workers 8",
    ]
    assert [one.command for one in checkpoints.of(build.plan("tiny-llama", "cpu", "dp"))] == [()]


@pytest.mark.parametrize(
    "names, home",
    [
        (("k2.5", "h200", "single", "docker"), "/root/.cache/huggingface"),
        (("k2.5", "mi300x", "single", "docker"), "/root/.cache/huggingface"),
        (("k2-thinking", "a3", "single", "docker"), "/root/.cache/huggingface"),
        (("k2.5", "h200", "single", "pip"), "~/.cache/huggingface"),
    ],
)
def test_what_is_named_by_its_id_is_in_the_cache_that_the_engine_sees(names, home):
    *names, variant = names
    (one, *_) = checkpoints.of(build.plan(*names, variant=variant))
    dashed = one.id.replace("/", "--")
    assert one.places == (f"{home}/hub/models--{dashed}/snapshots/*",) and one.into == home
    assert one.command[:3] == ("hf", "download", one.id) and "--local-dir" not in one.command


NETWORK = """network:
  https_proxy: http://proxy.example.org:3128
  no_proxy: [localhost, .example.org]
  huggingface: https://hf-mirror.example.org
  modelscope: https://ms-mirror.example.org:8443
  pip_index: https://pypi.example.org/simple
"""
WAY_OUT = {
    "https_proxy": "http://proxy.example.org:3128",
    "HTTPS_PROXY": "http://proxy.example.org:3128",
    "no_proxy": "localhost,.example.org",
    "NO_PROXY": "localhost,.example.org",
    "HF_ENDPOINT": "https://hf-mirror.example.org",
    "MODELSCOPE_ENDPOINT": "https://ms-mirror.example.org:8443",
    "MODELSCOPE_DOMAIN": "ms-mirror.example.org:8443",
    "PIP_INDEX_URL": "https://pypi.example.org/simple",
}


@pytest.mark.parametrize(
    "names, variant, sources, engine",
    [
        (
            ("k2.5", "a3", "pd"),
            "",
            ["a3-0/node.env", "install/source.sh"],
            "a3-0/run_dp_template.sh",
        ),
        (
            ("k2.5", "h200", "single"),
            "slurm",
            ["jobs/1_create_env.sbatch", "jobs/2_install.sbatch", "jobs/3_download.sbatch"],
            "jobs/4_baseline.sbatch",
        ),
    ],
)
def test_downloads_and_installations_take_the_sites_way_out(
    tmp_path, names, variant, sources, engine
):
    example = f"{names[1]}{'-slurm' if variant else ''}.yaml"
    site = tmp_path / "site.yaml"
    site.write_text((paths.root() / "params" / "sites" / example).read_text() + NETWORK)
    made = scripts.files(build.plan(*names, variant=variant, site=str(site)))
    for name in sources:
        for variable, value in WAY_OUT.items():
            assert f"{variable}={value}" in made[name], (name, variable)
    # Engines and routers talk to each other: a proxy would stand between them.
    assert not [variable for variable in WAY_OUT if variable in made[engine]]


@pytest.mark.parametrize("hardware", ["h200", "gb200", "mi300x"])
@pytest.mark.parametrize("nodes, named", [(1, False), (2, True)])
def test_ranks_on_several_nodes_meet_at_the_sites_interface(tmp_path, hardware, nodes, named):
    site = tmp_path / "site.yaml"
    site.write_text(
        f"name: mine\nhardware: {hardware}\ntransport: ssh\nnic: enp65s0f0\n"
        "nodes: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.2}]\n"
        "paths: {cache: /root/.cache}\n"
    )
    pairs = [f"mixed.nodes={nodes}", f"mixed.dp={nodes}"]
    plan = build.plan("k2.5", hardware, "single", site=str(site), pairs=pairs)
    wanted = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "enp65s0f0")
    for engine in plan.engines:
        assert {k: v for k, v in engine.env.items() if k in wanted} == (wanted if named else {})


@pytest.mark.parametrize("line, named", [("", False), ("nic: ib0\n", True)])
def test_a_job_names_an_interface_that_the_site_file_names(tmp_path, line, named):
    site = tmp_path / "site.yaml"
    text = (paths.root() / "params" / "sites" / "h200-slurm.yaml").read_text()
    site.write_text(text.replace("nodes:\n", f"{line}nodes:\n"))
    pairs = ["mixed.nodes=2", "mixed.dp=2"]
    plan = build.plan("k2.5", "h200", "single", variant="slurm", site=str(site), pairs=pairs)
    script = scripts.files(plan)["jobs/4_baseline.sbatch"]
    assert ("export GLOO_SOCKET_IFNAME=ib0" in script) is named
    assert ("SOCKET_IFNAME" in script) is named


@pytest.mark.parametrize(
    "names, registry, wanted",
    [
        (("k2.5", "a3", "pd"), "quay.example.org", "quay.example.org/ascend/vllm-ascend:v"),
        (("k2.5", "a3", "pd"), "m.example/quay.io", "m.example/quay.io/ascend/vllm-ascend:v"),
        (("k2.5", "h200", "single"), "hub.example:5000", "hub.example:5000/vllm/vllm-openai:v"),
    ],
)
def test_the_image_of_a_mirror(tmp_path, names, registry, wanted):
    site = tmp_path / "site.yaml"
    text = (paths.root() / "params" / "sites" / f"{names[1]}.yaml").read_text()
    site.write_text(text + f"network: {{registry: {registry}}}\n")
    plan = build.plan(*names, variant="docker", site=str(site))
    assert plan.image.startswith(wanted) and plan.containers[0].image == plan.image
    assert any(plan.image in step.argv for step in plan.installs["docker"])
    assert judge.plan(plan).verdict == judge.plan(build.plan(*names, variant="docker")).verdict


@pytest.mark.parametrize("registry", ["quay", "https://quay.io", "quay.io/", "a.b/C", "-x.y"])
def test_what_is_no_registry(tmp_path, registry):
    site = tmp_path / "site.yaml"
    text = (paths.root() / "params" / "sites" / "a3.yaml").read_text()
    site.write_text(text + f"network: {{registry: '{registry}'}}\n")
    with pytest.raises(ParameterError, match=r"network\.registry"):
        build.plan("k2.5", "a3", "pd", site=str(site))


def test_a_password_of_a_proxy_is_refused(tmp_path):
    site = tmp_path / "site.yaml"
    text = (paths.root() / "params" / "sites" / "a3.yaml").read_text()
    site.write_text(text + "network: {https_proxy: 'http://me:pw@proxy.example.org:3128'}\n")
    with pytest.raises(ParameterError, match=r"network\.https_proxy.*without an account"):
        build.plan("k2.5", "a3", "pd", site=str(site))


def test_a_site_names_the_mirror_of_its_downloads():
    env = {"HF_ENDPOINT": "https://m.example", "https_proxy": "http://p", "OMP_NUM_THREADS": "1"}
    none = schema.Network()
    assert checkpoints.hub_variables(env, "/c", none) == {
        "HF_ENDPOINT": "https://m.example",
        "https_proxy": "http://p",
        "HF_HOME": "/c",
    }
    assert checkpoints.hub_variables({}, "~/.cache/huggingface", none) == {}
