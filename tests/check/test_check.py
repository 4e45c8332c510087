"""Plans against rules: our own pass, the documents' do not, and what passes cannot collide."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_nb import catalog
from kimi_nb.bundle import scripts
from kimi_nb.check import documents, judge
from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry
from kimi_nb.check.view import engine_view
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core.errors import CheckError, NoRecipeError
from kimi_nb.notebook.pictures import device_memory
from kimi_nb.params import load
from kimi_nb.plan import build, memory

# Variables that are lists which a script appends to.
LISTS = {"LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"}


def linted(plan) -> Deployment:
    """The plan's own scripts, read as a stranger's."""
    texts = [
        Text(name, os.path.dirname(name), kind, text)
        for name, text in scripts.files(plan).items()
        for kind in [_kind(Path(name), text)]
        if kind in ("bash", "markdown", "yaml")
    ]
    return assemble.of_texts(texts, plan.engine, plan.engine_version)


def _without_port(argv) -> tuple[str, ...]:
    """The words without the port, which a container with ports of its own publishes instead."""
    at = argv.index("--port") if "--port" in argv else len(argv)
    return (*argv[:at], *argv[at + 2 :])


def identity(one) -> tuple:
    """All that makes an engine, without what a script does not say (devices of a whole node)."""
    return (
        one.role,
        one.rank,
        one.ranks,
        one.dp,
        one.tp,
        one.http_port,
        one.kv_port,
        one.rpc_port,
        one.side_channel_port,
        one.headless,
        one.devices if one.single else None,
        _without_port(one.argv[one.start :]),
        tuple(sorted((name, text) for name, text in one.env.items() if name not in LISTS)),
    )


def same_after_rendering(plan) -> None:
    mine, theirs = judge.of_plan(plan), linted(plan)
    assert not theirs.unread
    wanted, found = Counter(map(identity, mine.servers)), Counter(map(identity, theirs.servers))
    if plan.jobs:  # the jobs hold the other engine as well, and one text for replicas
        assert wanted.keys() <= found.keys()
        return
    assert wanted == found
    if not plan.containers or not plan.containers[0].runs_engine:
        assert {(one.node, one.address) for one in mine.servers} == {
            (one.node, one.address) for one in theirs.servers
        }
    assert [one.workers for one in mine.proxies] == [one.workers for one in theirs.proxies]
    assert [(one.dp, one.tp, one.local, one.first, one.address) for one in mine.launchers] == [
        (one.dp, one.tp, one.local, one.first, one.address) for one in theirs.launchers
    ]
    assert sorted(one.image for one in mine.boxes) == sorted(one.image for one in theirs.boxes)


def test_the_scripts_of_one_node_have_no_errors_of_hosts_that_are_not_here():
    plan = build.plan("k2.5", "a3", layout="pd")
    texts = [
        Text(name, os.path.dirname(name), _kind(Path(name), text), text)
        for name, text in scripts.files(plan).items()
        if name.endswith(".sh")
    ]
    chip = load.hardware("a3")

    def told(texts):
        found = registry.check(assemble.of_texts(texts, plan.engine, plan.engine_version, chip))
        return [
            (one.severity, one.message) for one in found.findings if one.rule == "topology/proxy"
        ]

    mine = [one for one in texts if one.name.startswith(f"{plan.router.node}/")]
    ((severity, message),) = told(mine)
    assert severity == "note" and "prefill 192.0.2.12:7100-7101" in message
    assert not told(texts)


def test_our_own_plans_have_no_error(each_plan):
    found = judge.passed(judge.plan(each_plan))
    assert found.ok
    # What a rank holds is estimated for the latent attention of Kimi.
    assert found.memory or each_plan.model == "tiny-llama"
    assert json.loads(json.dumps(found.as_dict()))["counts"]["errors"] == 0


@pytest.mark.long
def test_rendering_then_linting_is_the_same_plan(each_plan):
    same_after_rendering(each_plan)
    assert not registry.check(linted(each_plan)).errors


any_plan = given(
    model=st.sampled_from(["k2.5", "k2.6"]),
    groups=st.sampled_from([1, 2, 4]),
    shape=st.sampled_from([(16, 1), (8, 2), (4, 4)]),
    nodes=st.integers(1, 3),
    draft=st.integers(1, 3),
    seqs=st.integers(1, 64),
    version=st.sampled_from(["", "0.23.0"]),
)


@settings(max_examples=4)
@any_plan
def test_rendering_then_linting_is_the_same_for_any_plan(**shape):
    the_same_for_any_plan(**shape)


@pytest.mark.long
@settings(max_examples=16)
@any_plan
def test_so_it_is_for_many_plans(**shape):
    the_same_for_any_plan(**shape)


def the_same_for_any_plan(model, groups, shape, nodes, draft, seqs, version):
    local, tp = shape
    plan = build.plan(
        model,
        "a3",
        "pd",
        site=str(_site(groups + nodes)),
        engine_version=version,
        pairs=[
            f"prefill.groups={groups}",
            f"decode.nodes={nodes}",
            f"decode.dp={local * nodes}",
            f"decode.tp={tp}",
            f"decode.max-num-seqs={seqs}",
            "decode.max-num-batched-tokens=512",
            f"decode.speculative-config.num_speculative_tokens={draft}",
        ],
    )
    same_after_rendering(plan)
    assert not [one for one in judge.plan(plan).errors if one.rule.startswith("topology/")], (
        judge.plan(plan)
    )


def _site(nodes: int) -> Path:
    import tempfile

    import yaml

    path = Path(tempfile.gettempdir()) / f"kimi-nb-test-{os.getpid()}-{nodes}.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": f"n{nodes}",
                "hardware": "a3",
                "transport": "ssh",
                "nodes": [{"name": f"n{i}", "address": f"10.1.0.{i + 1}"} for i in range(nodes)],
                "paths": {"cache": "/root/.cache"},
            }
        )
    )
    return path


# What passes cannot collide -----------------------------------------------------------------


@st.composite
def deployments(draw) -> Deployment:
    """Engines thrown on two nodes: many collide, some do not."""
    engine = catalog.engine("vllm-ascend", "0.22.1rc1")
    servers = []
    groups = draw(st.integers(1, 2))
    for group in range(groups):
        dp = draw(st.sampled_from([1, 2, 4]))
        tp = draw(st.sampled_from([1, 2]))
        first_port = draw(st.sampled_from([7100, 7102, 8000]))
        kv = draw(st.sampled_from([36000, 36004, 36100]))
        rpc = draw(st.sampled_from([12321, 12322, 7101]))
        leader = draw(st.sampled_from(["10.0.0.1", "10.0.0.2"]))
        split = draw(st.integers(0, dp))
        base = draw(st.sampled_from([0, 2, 8]))
        for rank in range(dp):
            node = 1 if rank < split else 2
            said = rank if draw(st.integers(0, 9)) else draw(st.integers(0, dp))
            start = base + rank * tp
            kv_config = json.dumps(
                {
                    "kv_connector": "MooncakeConnectorV1",
                    "kv_role": "kv_producer",
                    "kv_port": kv,
                    "engine_id": str(group),
                }
            )
            argv = [
                "vllm",
                "serve",
                "m",
                "--host",
                f"10.0.0.{node}",
                "--port",
                str(first_port + rank),
                "--data-parallel-size",
                str(dp),
                "--data-parallel-rank",
                str(said),
                "--data-parallel-address",
                leader,
                "--data-parallel-rpc-port",
                str(rpc),
                "--tensor-parallel-size",
                str(tp),
                "--kv-transfer-config",
                kv_config,
            ]
            servers.append(
                engine_view.of(
                    engine,
                    argv,
                    {"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(start, start + tp)))},
                    Spot(f"g{group}r{rank}"),
                    f"node{node}",
                    group=("prefill", group),
                )
            )
    return Deployment("thrown", engine, True, tuple(servers), devices_per_node=16, complete=True)


def collisions(d: Deployment) -> list[str]:
    """Start everything, one after the other, and see who finds its place taken."""
    out = []
    ports: dict[tuple[str, int], str] = {}
    owned: dict[tuple[str, int], str] = {}
    ranks: dict[object, list[int]] = {}
    home = {one.address: one.node for one in d.servers}
    meeting: dict[tuple[str, int], object] = {}
    for one in d.servers:
        wanted = [one.http_port]
        base = json.loads(one.text("kv-transfer-config") or "null") or dict(
            one.table("kv-transfer-config")
        )
        wanted += range(
            base["kv_port"] + one.rank * one.tp, base["kv_port"] + (one.rank + 1) * one.tp
        )
        for port in wanted:
            if ports.setdefault((one.node, port), one.spot.name) != one.spot.name:
                out.append(f"port {port} of {one.node}")
        for device in one.devices:
            if device >= d.devices_per_node:
                out.append(f"device {device} of {one.node} does not exist")
            if owned.setdefault((one.node, device), one.spot.name) != one.spot.name:
                out.append(f"device {device} of {one.node}")
        ranks.setdefault(one.group, []).append(one.rank)
        where = home.get(one.text("data-parallel-address"))
        if where and meeting.setdefault((where, one.rpc_port), one.group) != one.group:
            out.append(f"rendezvous {one.rpc_port} of {where}")
    for (node, port), _ in meeting.items():
        if (node, port) in ports:
            out.append(f"rendezvous {port} of {node}")
    for group, seen in ranks.items():
        size = next(one.dp for one in d.servers if one.group == group)
        if sorted(seen) != list(range(size)):
            out.append(f"ranks {seen} of {size}")
        if size == 1:  # vLLM refuses a number for the only rank
            out.append(f"rank {seen} of one")
    return out


@settings(max_examples=400, deadline=None)
@given(deployments())
def test_what_passes_the_topology_rules_does_not_collide(d):
    errors = [
        one
        for one in registry.check(d).errors
        if one.rule.startswith("topology/")
        and one.rule not in ("topology/pd-roles", "topology/pd-tp")
    ]
    found = collisions(d)
    assert bool(errors) == bool(found), (errors, found)


# The documents as they were published -------------------------------------------------------

# Each row of what the engines refuse, and of what they take without effect: the rule that has to
# see it, where, and a word of its message.
ROWS = [
    ("k2.6", "a3", "pd", "", "engine/batched-tokens", "decode1", "4 with --max-num-seqs 8"),
    ("k2.6", "a3", "pd", "", "topology/group-settings", "decode1", "max-num-batched-tokens is 4"),
    ("k2.6", "a3", "pd", "", "topology/group-env", "decode1", "HCCL_BUFFSIZE is 1100, and 800"),
    ("k2.5", "a3", "pd", "", "capacity/hccl-buffer", "decode0", "1100, a full step needs 1776 MB"),
    ("k2.6", "a3", "pd", "", "topology/devices", "launch/d0", "32 devices, the node has 16"),
    ("k2.6", "a3", "pd", "", "topology/rank-range", "launch/d1", "ranks 8 to 15 do not exist"),
    ("k2.6", "a3", "pd", "", "topology/proxy", "proxy", "8 decode engines"),
    ("k2.5", "a3", "pd", "", "engine/draft-method", "prefill0", "v0.17.0rc1"),
    ("k2.5", "a3", "single", "", "engine/draft-method", "single", "v0.17.0rc1"),
    ("k2.5", "h200", "single", "slurm", "engine/flag-removed", "optimised", "--swap-space"),
    (
        "k2.5",
        "h200",
        "single",
        "slurm",
        "engine/flag-unknown",
        "optimised",
        "--skip-non-local-expert-weights",
    ),
    (
        "k2.5",
        "h200",
        "single",
        "slurm",
        "truth/claimed-flag",
        "h200-slurm",
        "--quantization-param-path",
    ),
    ("k2.5", "h200", "single", "slurm", "programs/moe-tuner", "tune-moe", "--dtype bfloat16"),
    ("k2.5", "h200", "single", "slurm", "programs/moe-tuner", "tune-moe", "pip wheel"),
    ("k2.5", "h200", "single", "slurm", "programs/moe-tuner", "tune-moe", "= 48"),
    ("k2.5", "h200", "single", "slurm", "programs/moe-tuner", "tune-moe", "--model-prefix"),
    ("k2.5", "h200", "single", "slurm", "truth/claimed-file", "h200-slurm", "NVIDIA_H200"),
    ("k2.5", "h200", "single", "slurm", "truth/claimed-file", "h200-slurm", "48"),
    ("k2.5", "h200", "single", "pip", "json/syntax", "eagle3", "<eagle3_model_name>"),
    ("k2.5", "h200", "single", "pip", "engine/draft-method", "eagle3", "v0.17.0"),
    ("k2.5", "a3", "single", "", "variables/ignored", "single", "BALANCE_SCHEDULING"),
    ("k2.6", "a3", "single", "", "variables/ignored", "single", "BALANCE_SCHEDULING"),
    ("k2.5", "a3", "pd", "", "variables/default", "decode0", "MLAPO=1 is the default"),
    ("k2.5", "a3", "single", "", "variables/role-mlapo", "single", "kv_consumer"),
    ("k2.5", "a3", "pd", "", "variables/going", "prefill0", "FLASHCOMM1"),
    ("k2.5", "a3", "pd", "", "variables/going", "prefill0", "ASCEND_BUFFER_POOL"),
    ("k2.5", "a3", "pd", "", "variables/never-read", "prefill0", "VLLM_RPC_TIMEOUT"),
    ("k2.5", "gb200", "pd", "", "variables/going", "prefill", "VLLM_USE_FLASHINFER_MOE_FP4"),
    ("k2.5", "a3", "pd", "", "variables/role-recompute", "prefill0", "0.23.0"),
    ("k2.5", "a3", "pd", "", "variables/moved", "decode0", "enable_mlapo"),
    ("k2.5", "a3", "single", "", "client/port", "bench", "8088"),
    ("k2.6", "a3", "single", "", "client/port", "bench", "8088"),
    ("k2.5", "a3", "single", "", "client/model-case", "bench", "W4A8"),
    ("k2.5", "a3", "single", "", "client/model-name", "bench", "kimi_k25"),
    ("k2.5", "a3", "single", "", "client/trust", "bench", "--trust-remote-code"),
    ("k2.5", "h200", "single", "slurm", "client/model-name", "benchmark", "moonshotai/Kimi-K2.5"),
    ("k2.6", "a3", "single", "", "truth/claimed-draft", "ascend-k2.6", "Kimi-K2.5-DFlash"),
    ("k2.6", "a3", "single", "", "engine/model-parsers", "single", "--reasoning-parser"),
    ("k2.6", "a3", "single", "", "truth/claimed-answer", "ascend-k2.6", "reasoning"),
    ("k2.6", "a3", "pd", "", "truth/claimed-answer", "ascend-k2.6", "finish_reason"),
    ("k2.6", "a3", "single", "", "truth/claimed-shape", "ascend-k2.6", "dp2 tp8"),
    ("k2.5", "a3", "pd", "", "truth/claimed-nodes", "ascend-k2.5", "2P1D"),
    ("k2.6", "a3", "pd", "", "truth/claimed-nodes", "ascend-k2.6", "2P2D"),
    ("k2.5", "a3", "pd", "", "engine/capture-sizes", "decode0", "192"),
    ("k2.5", "a3", "single", "", "truth/claimed-context", "ascend-k2.5", "16384"),
    ("k2.5", "a3", "single", "", "truth/claimed-context", "ascend-k2.5", "35000"),
    ("k2.5", "h200", "single", "slurm", "truth/claimed-weights", "h200-slurm", "550 GB"),
    ("k2.5", "h200", "single", "slurm", "truth/claimed-default", "h200-slurm", "1024"),
    ("k2.5", "h200", "single", "slurm", "programs/hub-tool", "download", "huggingface-cli"),
    (
        "k2.5",
        "h200",
        "single",
        "slurm",
        "truth/claimed-request",
        "h200-slurm",
        "thinking_token_budget",
    ),
    ("k2.5", "h200", "single", "slurm", "capacity/idle-device", "benchmark", "gpus-per-node"),
    (
        "k2-thinking",
        "a3",
        "single",
        "",
        "truth/claimed-precision",
        "ascend-k2-thinking",
        "quantization_config",
    ),
    ("k2-thinking", "a3", "single", "", "shell/unset", "docker", "$NAME"),
    (
        "k2-thinking",
        "a3",
        "single",
        "",
        "programs/container-name",
        "ascend-k2-thinking",
        "vllm-ascend",
    ),
    ("k2-thinking", "a3", "single", "", "client/lm-eval", "lm-eval", "--num_fewshot"),
    ("k2-thinking", "a3", "single", "", "truth/claimed-log", "ascend-k2-thinking", "APIServer"),
    ("k2.5", "gb200", "pd", "", "truth/claimed-side-channel", "usage-guide", "base_port"),
    (
        "k2.5",
        "mi300x",
        "single",
        "pip",
        "engine/flag-twice",
        "mi300x/single",
        "--mm-encoder-tp-mode",
    ),
    ("k2.5", "h200", "single", "docker", "capacity/weights-mount", "h200/docker", "594 GB"),
    ("k2.5", "a3", "single", "", "security/local-media", "single", "--allowed-local-media-path /"),
    ("k2.5", "a3", "single", "", "security/open-api", "single", "0.0.0.0"),
    ("k2.5", "a3", "pd", "", "client/hccn-conf", "docker", "hccn.conf"),
    ("k2.5", "a3", "pd", "", "topology/random-ports", "prefill0", "30000"),
    ("k2.5", "a3", "pd", "", "engine/prefill-draft", "prefill0", "3 on prefill"),
    ("k2.6", "a3", "single", "", "truth/claimed-version", "ascend-k2.6", "v0.20.0rc1"),
]


@pytest.fixture(scope="module")
def as_documented():
    cache = {}

    def get(*key):
        if key not in cache:
            cache[key] = judge.documents(*key)
        return cache[key]

    return get


@pytest.mark.parametrize(("model", "hw", "layout", "variant", "rule", "where", "word"), ROWS)
def test_what_the_documents_have_wrong_is_found(
    as_documented, model, hw, layout, variant, rule, where, word
):
    found = as_documented(model, hw, layout, variant)
    mine = [one for one in found.findings if one.rule == rule and where in one.where]
    assert [one for one in mine if word in one.message], mine


def test_what_the_engine_refuses_is_an_error(as_documented):
    for model, hw, layout, variant, rule, where, word in ROWS[:19]:
        found = as_documented(model, hw, layout, variant)
        severities = {
            one.severity
            for one in found.findings
            if one.rule == rule and where in one.where and word in one.message
        }
        expected = (
            "warning" if "wheel" in word or word in ("48", "= 48", "NVIDIA_H200") else "error"
        )
        assert severities == {expected}, (rule, severities)


def test_every_published_command_is_read():
    """All 51 commands belong to some documented deployment or are read beside one."""
    used = set()
    for served, recipe in documents.chosen("", "", "", ""):
        used |= set(recipe.source.commands)
        used |= {name for key in recipe.clients for name in served.clients[key].source.commands}
    left = set(documents.published()) - used
    assert left <= {"k2.6/a2/docker"}  # a container without a serve command


def test_all_documents_at_once_and_unknown_names():
    found = judge.documents()
    assert len(found.errors) > 20
    with pytest.raises(NoRecipeError, match="kimi-nb list"):
        judge.documents("k2.6", "h200")


def test_errors_stop_a_plan():
    plan = build.plan("k2.5", "a3", "pd", pairs=["decode.max-num-batched-tokens=8"])
    with pytest.raises(CheckError, match=r"max-num-batched-tokens 8.*engine/batched-tokens"):
        judge.passed(judge.plan(plan))


def test_a_job_of_a_plan_that_asks_for_too_little_memory_is_found():
    plan = build.plan("k2.5", "h200", "single", variant="slurm", scenario="optimised")
    small = replace(
        plan,
        jobs=tuple(
            replace(
                job,
                options=tuple(
                    "--mem=100G" if option.startswith("--mem=") else option
                    for option in job.options
                ),
            )
            for job in plan.jobs
        ),
    )
    assert "capacity/slurm-memory" not in {one.rule for one in judge.plan(plan).findings}
    found = [one for one in judge.plan(small).errors if one.rule == "capacity/slurm-memory"]
    assert {one.file for one in found} == {"jobs/4_baseline.sbatch", "jobs/6_optimised.sbatch"}


# Memory --------------------------------------------------------------------------------------


def test_parameters_and_checkpoints_are_the_published_ones():
    arch = load.model("k2.5").architecture
    assert sum(memory.parameters(arch).values()) / 1e9 == pytest.approx(1026, rel=0.005)
    assert memory.checkpoint_bytes(arch, "INT4") / 1e9 == pytest.approx(594, rel=0.01)
    assert memory.checkpoint_bytes(arch, "BF16") / 1e9 == pytest.approx(2052, rel=0.01)
    assert memory.cache_bytes_per_token(arch) == 70_272
    assert memory.cache_bytes_per_token(arch, 1) == 35_136


# Public records of HCCL_BUFFSIZE on Atlas A3: (source, (tokens, hidden, ranks, experts of a rank,
# k), the need that was named or None, the value, whether it was enough). The tests are those of
# vllm-ascend in tests/e2e, with the result that each expects.
BUFFERS = [
    ("issue 4051: log of Qwen3-Next, ep4", (64, 2048, 4, 128, 10), 294, 200, False),
    ("v0.23.0 DeepSeek_V3.1T_MTP3_PD: 96.29", (160, 7168, 32, 8, 8), None, 1200, True),
    ("v0.23.0 DeepSeek_V3.1T_MTP1_PD: 96.29", (80, 7168, 32, 8, 8), None, 1200, True),
    ("v0.23.0 Kimi-K2.5-W4A8-16k-1k-TPOT50: 2099.9", (160, 7168, 32, 12, 8), None, 1800, True),
    ("v0.18.0 DeepSeek-R1-W8A8: 95", (56, 7168, 32, 8, 8), None, 1024, True),
    ("main Qwen3.5-397B-w4a8_64k-1k-90-50-PD: 1005.7", (64, 4096, 16, 32, 10), None, 1024, True),
]


@pytest.mark.parametrize(("source", "step", "named", "value", "enough"), BUFFERS)
def test_the_buffer_formula_agrees_with_public_records(source, step, named, value, enough):
    need, working = memory.buffer_need_a3(*step)
    assert (need <= value) is enough, (source, working)
    assert named in (None, need) and f"= {need} MB" in working


def test_the_buffer_of_the_pd_plan_holds_its_steps():
    def refusals(*pairs):
        found = judge.plan(build.plan("k2.5", "a3", "pd", pairs=list(pairs))).findings
        return [one for one in found if one.rule == "capacity/hccl-buffer"]

    assert not refusals()
    (one,) = refusals("decode.env.HCCL_BUFFSIZE=1100")
    assert one.severity == "error" and "a full step needs 2131 MB" in one.message
    assert "derived from the operator's source, agrees with a public log" in one.message


@given(
    st.sampled_from(sorted(memory.PRECISIONS)),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2, 4, 8, 32]),
    st.booleans(),
)
def test_ranks_together_hold_at_least_the_checkpoint(precision, tp, dp, expert_parallel):
    arch = load.model("k2.5").architecture
    shape = memory.Shape(tp=tp, dp=dp, expert_parallel=expert_parallel)
    part = memory.weights_per_rank(shape, arch, precision)
    assert sum(part.values()) * tp * dp >= memory.checkpoint_bytes(arch, precision) * 0.999
    assert part["routed experts"] * tp * dp == pytest.approx(
        memory.parameters(arch)["routed experts"] * memory.PRECISIONS[precision][0], rel=0.35
    )


def test_more_context_parallelism_holds_more_tokens():
    arch = load.model("k2.5").architecture
    one, two = (memory.fit(memory.Shape(tp=8, dcp=dcp), arch, "INT4", 141) for dcp in (1, 2))
    assert two.tokens == 2 * one.tokens
    fp8 = memory.fit(memory.Shape(tp=8, cache_bytes=1), arch, "INT4", 141)
    assert fp8.tokens in (2 * one.tokens, 2 * one.tokens + 1)
    assert "tokens of cache" in str(one) and one.longest == one.tokens // 256


def test_bars_show_every_part_as_text_and_as_html():
    bars = judge.plan(build.plan("k2.5", "a3", "pd")).memory
    text, drawn = "\n".join(map(str, bars)), device_memory.picture(bars)._repr_html_()
    for part in (*bars[0].fit.parts, "cache", "not used"):
        assert part in text and part in drawn
    assert "aria-label" in drawn and "estimated" in drawn and "requests of --max-model-len" in drawn


def test_what_does_not_fit_says_so():
    arch = load.model("k2.5").architecture
    small = memory.fit(memory.Shape(tp=1), arch, "INT4", 64)
    assert small.headroom < 0 and small.tokens == 0 and "over the budget" in str(small)


def test_errors_that_were_asked_for_are_warnings():
    """Of an erratum that is off; what the user's other changes break stays an error."""
    off = judge.plan(build.plan("k2.5", "a3", "pd", erratum=["k2.5-kv-port=off"]))
    assert off.ok
    assert [one.rule for one in off.of("warning") if "on purpose" in one.message] == [
        "topology/random-ports"
    ] * 3
    broken = build.plan(
        "k2.5",
        "a3",
        "pd",
        erratum=["k2.5-kv-port=off"],
        pairs=["gpu-memory-utilization=0.3"],
    )
    assert {one.rule for one in judge.plan(broken).errors} == {
        one.rule
        for one in judge.plan(
            build.plan("k2.5", "a3", "pd", pairs=["gpu-memory-utilization=0.3"])
        ).errors
    }


@pytest.mark.parametrize("model", ["k2.5", "k2.6"])
def test_a_plan_without_parsers_as_documented_says_so(model):
    found = judge.plan(build.plan(model, "a3", "pd"))
    (said,) = [one for one in found.findings if one.rule == "engine/model-parsers"]
    assert "no --reasoning-parser and no --tool-call-parser" in said.message
    assert "--with reasoning-parser --with tool-parser" in said.fix
