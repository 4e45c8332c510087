"""The stand-in engine of a rehearsal refuses what vLLM refuses, in vLLM's words."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_nb import catalog
from kimi_nb.check import documents
from kimi_nb.check.rules import registry
from kimi_nb.core import processes
from kimi_nb.core.errors import WriteError
from kimi_nb.plan import build
from kimi_nb.rehearse import loopback, rehearsal
from kimi_nb.rehearse.engine.start import refusals
from kimi_nb.rehearse.engine.start.refusals import refusal
from kimi_nb.rehearse.simulated_site import SimulatedSite

CASES = json.loads((Path(__file__).parent / "contract" / "refusals.json").read_text())["cases"]
BASE = [
    "/models/tiny",
    "--max-model-len",
    "512",
    "--dtype",
    "bfloat16",
    "--enforce-eager",
    "--load-format",
    "dummy",
    "--trust-remote-code",
]
VLLM = catalog.engine("vllm", "0.20.2")
TINY = SimulatedSite(
    plan="tiny",
    engine="vllm",
    engine_version="0.20.2",
    vendor="cpu",
    accelerator="CPU",
    devices=16,
    device="CPU",
    memory_mib=81920,
    memory_gib=80.0,
    visible="CUDA_VISIBLE_DEVICES",
    context_length=4096,
    heads=4,
    layers=2,
    nodes={"n0": "127.0.0.1"},
    images=(),
    weights=("/models/tiny", "draft"),
)
# Recorded cases that say something else here, and why.
FILES = "needs the files of the model or of the draft: another module says whether they are there"
ELSEWHERE = {
    "model_missing": FILES,
    "model_hub": FILES,
    "spec_missing": FILES,
    "spec_tokens": FILES,
    "ep_dp": "the recorded model has no experts; those of the rehearsals have",
}
BEYOND = {
    "headless_api": (
        "was recorded below the command that says it (entrypoints/cli/serve.py)",
        "--api-server-count=2 cannot be used with --headless",
    )
}


def plain(text: str) -> str:
    """A message without addresses, pydantic's tails, and the order of what was registered."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text.removeprefix("error: "))
    text = re.sub(r" \[type=.*\]$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n +For further information visit .*", "", text)
    head, could, names = text.partition(" could match ")
    return head + could + ", ".join(sorted(names.split(", ")))


def refused(words: str | list[str], engine=VLLM, site=TINY, **env: str):
    split = shlex.split(words) if isinstance(words, str) else words
    return refusal(engine, [*BASE, *split], env, site)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_was_recorded_is_said(case):
    words = case["words"].split(" ")
    if words[0] == "@MODEL":
        found = refusal(VLLM, [words[1], *BASE[1:]], {}, TINY)
    else:
        found = refused([word for word in words if word != "@NOTRUST"])
    if case["name"] in ELSEWHERE:
        assert found is None, ELSEWHERE[case["name"]]
    elif case["name"] in BEYOND:
        assert case["outcome"] == "ok"
        assert BEYOND[case["name"]][1] in found.text
    elif case["outcome"] == "ok":
        assert found is None
    else:
        assert found is not None
        assert plain(found.text) == plain(case["text"])
        parser = case["outcome"] == "exit 2"
        assert (found.kind, found.code) == (("parser", 2) if parser else ("configuration", 1))
        assert found.exception == ("" if parser else case["outcome"].removeprefix("builtins."))


def test_what_is_printed():
    assert refused("--foo").lines() == [
        "usage: vllm serve [model_tag] [options]",
        "vllm serve: error: unrecognized arguments: --foo",
    ]
    lines = refused("--max-num-batched-tokens 4 --max-num-seqs 8").lines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig"
    )
    assert not any("\n" in line for line in lines)


def test_every_plan_of_ours_is_accepted(each_plan):
    site = SimulatedSite.of(each_plan)
    engine = catalog.engine(each_plan.engine, each_plan.engine_version)
    for one in each_plan.engines:
        found = refusal(engine, one.argv[2:], one.env, site)
        assert found is None, (one.name, found.text)


# The documents --------------------------------------------------------------------------------


@cache
def documented(*key: str, version: str) -> dict[str, str]:
    """Where and why the published engines of a deployment do not start; "" where they do."""
    site = SimulatedSite.of(build.plan(*key[:3], variant=key[3]))
    out = {}
    for deployment, _ in documents.deployments(*key):
        for server in deployment.servers if deployment.engine.version == version else ():
            found = refusal(deployment.engine, server.argv[server.start :], server.env, site)
            out[server.spot.name] = "" if found is None else found.text
    return out


def test_the_published_prefill_decode_of_k2_6_is_refused():
    found = documented("k2.6", "a3", "pd", "docker", version="0.20.2rc1")
    by_node = {
        name: [text for spot, text in found.items() if name in spot]
        for name in ("prefill", "decode0", "decode1")
    }
    assert all(len(texts) >= 8 for texts in by_node.values()), by_node
    assert not any(by_node["prefill"])
    # 8 ranks on 4 devices each, and the node has 16.
    assert [bool(text) for text in by_node["decode0"]] == [False] * 4 + [True] * 4
    assert all("Invalid device ID" in text for text in by_node["decode0"][4:])
    # The second node starts at rank 8 of 8.
    assert [text.partition("Value error, ")[2] for text in by_node["decode1"]] == [
        f"data_parallel_rank ({rank}) must be in the range [0, 8)" for rank in range(8, 16)
    ]


def test_of_the_second_decode_node_the_tokens_are_refused_too():
    deployment = next(one for one, first in documents.deployments("k2.6", "a3", "pd") if first)
    site = SimulatedSite.of(build.plan("k2.6", "a3", "pd"))
    server = next(one for one in deployment.servers if "decode1" in one.spot.name)
    words = list(server.argv[server.start :])
    words[words.index("--data-parallel-rank") + 1] = "0"
    found = refusal(deployment.engine, words, server.env, site)
    assert (
        "max_num_batched_tokens (4) must be greater than or equal to max_num_seqs (8)."
        in found.text
    )


@pytest.mark.parametrize(
    ("key", "version", "says"),
    [
        (
            ("k2.5", "a3", "single", "docker"),
            "0.17.0rc1",
            "Eagle3 is only supported for ['llama', ",
        ),
        (
            ("k2.5", "h200", "single", "slurm"),
            "0.19.1",
            "unrecognized arguments: --swap-space 32 --skip-non-local-expert-weights",
        ),
        (("k2.5", "h200", "single", "pip"), "0.19.1", "argument --speculative-config/-sc: Value {"),
    ],
)
def test_other_published_commands_are_refused(key, version, says):
    assert any(says in text for text in documented(*key, version=version).values())


# What was not recorded ------------------------------------------------------------------------

KV = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--enforce_eager=true", "argument --enforce-eager/--no-enforce-eager: ignored explicit"),
        ("--foo_bar=1 x --baz 2", "unrecognized arguments: --foo-bar=1 x --baz 2"),
        ("--served-model-name", "argument --served-model-name: expected at least one argument"),
        ("--max-num-seqs abc --foo", "argument --max-num-seqs: invalid int value: 'abc'"),
        ("--max-num-batched-tokens x", "invalid human_readable_int value: 'x'"),
        ("--kv-offloading-size x", "Value x cannot be converted to <class 'float'>."),
        ("--kv-offloading-size None", None),
        ("--moe-backend DEEP-GEMM", None),
        (
            "--moe-backend Deep-Gem",
            "argument --moe-backend: invalid choice: 'deep_gem' (choose from",
        ),
        ("--limit-mm-per-prompt {", "Value { cannot be converted to <function loads>."),
        ("--additional-config '{x}'", "Value {x} cannot be converted to <function loads>."),
        (
            "--compilation-config '{x}'",
            "1 validation error for CompilationConfig\n  Invalid JSON: ",
        ),
        ("--compilation-config 3", "1 validation error for CompilationConfig"),
        (
            "--compilation-config.cudagraph_moed FULL",
            "cudagraph_moed\n  Unexpected keyword argument",
        ),
        ("--compilation-config.cudagraph_mode FULL_DECODE_ONLY", None),
        ("-cc.pass_config.fuse_allreduc true", "fuse_allreduc\n  Unexpected keyword argument"),
        ("--foo.bar 1", 'unrecognized arguments: --foo {"bar": 1}'),
        ("--kv-transfer-config.kv_role kv_both", None),
        (f"--kv-transfer-config '{KV}'", None),
        ('--kv-transfer-config \'{"kv_role":"kv_both","kv_buffer_size":1k}\'', None),
        ('--kv-transfer-config \'{"kv_role":"1k"}\'', "input_value='1k'"),
        ("--max-model-len -2", "max_model_len\n  Input should be greater than or equal to -1"),
        ("--max-model-len -1", None),
        ("--gpu-memory-utilization 0", "gpu_memory_utilization\n  Input should be greater than 0"),
        (
            "--no-enable-chunked-prefill --max-num-batched-tokens 511",
            "max_num_batched_tokens (511) is smaller than max_model_len (512)",
        ),
        (
            "--max-num-seqs 0 --max-num-batched-tokens 8",
            "1 validation error for SchedulerConfig\nmax_num_seqs\n",
        ),
        ("--data-parallel-size 4 --data-parallel-start-rank 9", None),
        (
            "--data-parallel-size 4 --data-parallel-rank 1 --data-parallel-size-local 2",
            "data_parallel_size_local must be 1 or None",
        ),
        ("--data-parallel-rank 0", "data_parallel_external_lb can only be set when"),
        (
            "--data-parallel-size 4 --data-parallel-rank 1 --data-parallel-start-rank 1",
            "Cannot use both external and hybrid",
        ),
        ("--nnodes 3 --tensor-parallel-size 4", "world_size=4 must be divisible by nnodes=3."),
        # Of 0.32.0, read in its sources: ranks on whole nodes, and nodes that balance by themselves.
        (
            "-tp 2 -dp 3 --nnodes 2 --master-addr n0",
            "nnodes (2) must be divisible by the number of data parallel node groups (3 = ",
        ),
        ("-tp 4 -dp 2 --nnodes 4 --node-rank 3 --master-addr n0 --headless", None),
        ("-tp 4 -pp 4 --nnodes 2 --master-addr n0", None),
        ("-tp 4 -pp 8", "local_world_size (32) must be less than or equal to"),
        (
            "-dp 4 -dpl 2 -dpr 2 --data-parallel-hybrid-lb --headless",
            "data_parallel_hybrid_lb is not applicable in headless mode",
        ),
        ("-dp 4 --data-parallel-hybrid-lb", "`--data-parallel-hybrid-lb` requires"),
        ("-dp 4 -dpl 2 --data-parallel-hybrid-lb", None),
        ("-tp 4 -pcp 2 -dcp 4", "valid DCP sizes are [1, 2, 8]"),
        ("-tp 4 -pcp 2 -dcp 8", None),
        ("--enable-eplb", "enable_expert_parallel must be True to use EPLB."),
        ("--eplb-config '{\"num_redundant_experts\":2}'", "num_redundant_experts is set to 2 but"),
        ("--decode-context-parallel-size 0", "integer modulo by zero"),
        ("--enable-log-outputs", "--enable-log-outputs requires --enable-log-requests"),
        (
            "--cudagraph-capture-sizes 1 2 --compilation-config '{\"cudagraph_capture_sizes\":[1]}'",
            "are mutually exclusive",
        ),
        ("--reasoning-parser kimi_k9 --reasoning-parser-plugin mine.py", None),
        (
            '--speculative-config \'{"method":"eagle3","model":"draft"}\'',
            "but neither `speculative_token_tree`",
        ),
        ('--speculative-config \'{"method":"mtp","model":"draft"}\'', None),
        (
            '--speculative-config \'{"method":"eagle3","num_speculative_tokens":1}\'',
            "num_speculative_tokens was provided but without speculative model.",
        ),
        ('--speculative-config \'{"method":"ngram"}\'', "num_speculative_tokens must be provided"),
        (
            '--speculative-config \'{"model":"draft","num_speculative_tokens":0}\'',
            "num_speculative_tokens\n  Input should be greater than 0",
        ),
        (
            '-tp 4 --speculative-config \'{"model":"draft","num_speculative_tokens":1,'
            '"draft_tensor_parallel_size":2}\'',
            "speculative_draft_tensor_parallel_size=2 cannot be",
        ),
        ("-tp 4 -dp 8", "DP adjusted local rank 16 is out of bounds."),
        ("-tp 4 -dp 8 --data-parallel-backend ray", None),
        (
            '--compilation-config \'{"dynamic_shapes_config":{"typo":1}}\'',
            "dynamic_shapes_config.typo\n  Unexpected keyword argument",
        ),
    ],
)
def test_more_of_it(words, says):
    found = refused(words)
    if says is None:
        assert found is None, found.text
    else:
        assert says in found.text


@pytest.mark.parametrize(
    ("words", "role", "says"),
    [
        ("-tp 4 -pp 2", "kv_consumer", "does not support pipeline_parallel_size > 1"),
        ("-tp 4 -pp 2", "kv_producer", None),
        ("-tp 4 -dcp 2", "kv_consumer", "must be 1 or equal to the NIXL transfer parallel size=4"),
        ("-tp 4 -dcp 4", "kv_consumer", None),
    ],
)
def test_sizes_over_nixl(words, role, says):
    table = f'{{"kv_connector":"NixlConnector","kv_role":"{role}"}}'
    found = refused(f"{words} --kv-transfer-config '{table}'", catalog.engine("vllm", "0.32.0"))
    if says is None:
        assert found is None, found.text
    else:
        assert says in found.text


@pytest.mark.parametrize("words", ["", "--data-parallel-size 1 "])
@pytest.mark.parametrize("version", ["0.11.2", "0.17.0", "0.20.2", "0.32.0"])
def test_the_only_rank_of_a_group_has_no_number(words, version):
    # The words of ParallelConfig in vLLM 0.32.0, on a CPU.
    found = refused(f"{words}--data-parallel-rank 0", catalog.engine("vllm", version))
    assert "data_parallel_external_lb can only be set when data_parallel_size > 1" in found.text


def test_the_model_stands_first_or_after_its_option():
    named = ["--served-model-name", "x"]
    assert "first positional argument" in refusal(VLLM, named, {}, TINY).text
    assert refusal(VLLM, [*named, "--model", "m"], {}, TINY) is None
    assert refusal(VLLM, ["m", *named], {}, TINY) is None
    # The word after an unknown option is the model where none came before.
    assert refusal(VLLM, ["--foo", "bar", "m"], {}, TINY).text == "unrecognized arguments: --foo m"


def test_longer_than_trained_is_allowed_by_its_variable():
    assert refused("--max-model-len 8192").kind == "configuration"
    assert refused("--max-model-len 8192", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1") is None


def test_quantization_of_the_plugin_is_known_to_the_plugin():
    assert refused("-q ascend", catalog.engine("vllm-ascend", "0.20.2rc1")) is None
    assert (
        "Unknown quantization method: ascend"
        in refused("-q ascend", catalog.engine("vllm", "0.19.1")).text
    )
    assert refused("-q of_another_version", catalog.engine("vllm", "0.19.1")) is None


@pytest.mark.parametrize(
    ("vendor", "words", "seen", "says"),
    [
        (
            "nvidia",
            "-tp 4",
            "0,1",
            "World size (4) is larger than the number of available GPUs (2)",
        ),
        ("nvidia", "-tp 4", "14,15,16,17", "available GPUs (2)"),
        ("nvidia", "-tp 4", "GPU-1,GPU-2,GPU-3,GPU-4", None),
        ("nvidia", "-tp 4 --distributed-executor-backend ray", "0,1", None),
        ("nvidia", "-tp 4 --nnodes 2 --master-addr n0", "0,1", None),
        ("nvidia", "-tp 4 --nnodes 2 --master-addr n0", "0", "local_world_size (2) must be less"),
        ("nvidia", "", "", "No CUDA GPUs are available"),
        ("amd", "-tp 2 -dp 2", "0,1,2", "DP adjusted local rank 3 is out of bounds."),
        ("ascend", "-tp 4", "16,17,18,19", "set device=16, valid device range is [0, 16)"),
        ("ascend", "-tp 4", "0,1", "set device=2, valid device range is [0, 2)"),
        ("ascend", "-tp 4", "0,1,2,3", None),
    ],
)
def test_devices(vendor, words, seen, says):
    site = replace(TINY, vendor=vendor)
    found = refused(words, site=site, CUDA_VISIBLE_DEVICES=seen)
    assert (found is None) if says is None else (says in found.text)


def test_a_draft_of_a_later_version_is_refused():
    draft = '{"method":"dflash","model":"z-lab/Kimi-K2.6-DFlash","num_speculative_tokens":15}'
    words = ["/models/Kimi-K2.6-W4A8", "--speculative-config", draft]
    assert (
        "dflash for Kimi-K2.6 needs vLLM >=0.20.0"
        in refusal(catalog.engine("vllm-ascend", "0.19.1rc1"), words, {}, TINY).text
    )
    assert refusal(catalog.engine("vllm-ascend", "0.20.2rc1"), words, {}, TINY) is None


def test_the_rules_that_are_used_exist():
    for identity, find, why in refusals.FALLBACK:
        assert registry.all_rules()[identity].find is find and why.endswith(".")


# Any command line -------------------------------------------------------------------------------

KNOWN = tuple(catalog.tables("vllm")["serve"])


@given(
    st.from_regex(r"--[a-z]{3,12}(-[a-z]{2,8}){0,2}", fullmatch=True).filter(
        lambda name: (
            not any(known.startswith(name) for known in KNOWN)
            and not any(f"--no-{known[2:]}".startswith(name) for known in KNOWN)
        )
    ),
    st.sampled_from([[], ["1"], ["x y"]]),
    st.integers(0, len(BASE)),
)
def test_an_unknown_option_is_refused_wherever_it_stands(name, value, at):
    at = at if at > 0 and BASE[at - 1][:2] != "--" else len(BASE)
    found = refusal(VLLM, [*BASE[:at], name, *value, *BASE[at:]], {}, TINY)
    assert found.text == f"unrecognized arguments: {' '.join([name, *value])}"


OPTIONS = (
    ["--max-num-seqs", "8"],
    ["--max_num_batched_tokens", "4k"],
    ["-pp", "2"],
    ["-dp=2"],
    ["--gpu-memory-util", "0.9"],
    ["--no-enable-prefix-caching"],
    ["--seed", "-1"],
    ["--kv-transfer-config", KV],
    ["--served-model-name", "a", "b"],
    ["--compilation-config.cudagraph_mode", "FULL"],
    ["-O3"],
    ["--additional-config", '{"anything": 1}'],
    ["--api-key", "k"],
    ["--quantization="],
    ["--enable-expert-parallel", "-tp=4", "--enable-eplb"],
    ["--port", "8088"],
)


@settings(max_examples=60)
@given(st.permutations(OPTIONS), st.integers(0, len(OPTIONS)))
def test_options_are_taken_in_any_order(options, count):
    words = [word for option in options[:count] for word in option]
    found = refusal(VLLM, ["m", *words], {}, TINY)
    assert found is None, found.text


def test_a_disk_that_became_read_only_is_no_traceback(tmp_path, monkeypatch):
    """What a rehearsal tidies up cannot be removed there: the result is told, or a WriteError."""

    def refuse(path, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    rehearsal._tidy(tmp_path)


@pytest.mark.parametrize("at", ["link", "log"])
def test_a_disk_that_becomes_read_only_at_the_start_is_one_sentence(at, tmp_path, monkeypatch):
    """Neither the programs can be linked there, nor what was written be removed again."""
    plan = build.plan("k2.5", "h200", "single")

    def refuse(path, *more, **options):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    def turn(*paths, **options):
        for name in ("unlink", "rmdir", "mkdir", "rename", "replace"):
            monkeypatch.setattr(os, name, refuse)
        refuse(paths[-1])

    if at == "link":
        monkeypatch.setattr(os, "symlink", turn)
    else:
        monkeypatch.setattr(processes.Programs, "__init__", lambda *_: turn(tmp_path))
    with pytest.raises(WriteError, match=rf"^{tmp_path}.*: cannot be written \(Read-only file"):
        rehearsal.start(plan, tmp_path)
    monkeypatch.undo()
    block = loopback.claim()  # the addresses are free again
    block.guard.close()
