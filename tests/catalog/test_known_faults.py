"""Known faults over upstream's history: each is told for exactly the versions that have it.

The ranges are those of known_faults_apart.yaml, which was written from the public texts.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from kimi_nb import catalog
from kimi_nb.catalog import known_faults
from kimi_nb.check import fault_facts, judge
from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text
from kimi_nb.check.rules import registry, truth
from kimi_nb.params import load, recipes
from kimi_nb.plan import build

APART = yaml.safe_load((Path(__file__).parent / "known_faults_apart.yaml").read_text())
# Versions that public texts name and the catalog does not list, where they belong in its order.
NAMED = {"vllm": {"0.22.0": "0.22.1"}, "vllm-ascend": {"0.26.0rc1": "", "0.27.1rc1": ""}}
KIMI = {"kv_lora_rank": 512, "experts": 384, "shared_experts": 1}
MOONCAKE = (
    '--kv-transfer-config {"kv_connector":"MooncakeConnectorV1","kv_role":"%s","kv_port":"36000"}'
)
SIDES = {
    "{P}": MOONCAKE % "kv_producer",
    "{D}": MOONCAKE % "kv_consumer",
    "{N}": '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_producer"}',
}
IMAGES = {"vllm": "vllm/vllm-openai", "vllm-ascend": "quay.io/ascend/vllm-ascend"}


def versions(package: str) -> list[str]:
    """Every version, oldest first."""
    out = list(catalog.versions(package))
    for name, before in NAMED[package].items():
        out.insert(out.index(before) if before else len(out), name)
    return out


def affected(package: str, text: str) -> list[str]:
    first, _, last = text.partition("..")
    every = versions(package)
    return every[every.index(first) : every.index(last) + 1 if last else None]


def serve(argv: str) -> str:
    for name, config in SIDES.items():
        argv = argv.replace(name, config)
    words = " ".join(word if word.startswith("-") else shlex.quote(word) for word in argv.split())
    return f"vllm serve org/model {words}\n"


def deployment(package: str, version: str, case: dict):
    """What other people's scripts make of a case."""
    env = "".join(f"export {pair}\n" for pair in case.get("env", "").split())
    scripts = {"node0.sh": env + serve(case.get("argv", ""))}
    for number, side in enumerate(case.get("with", ()), start=1):
        scripts[f"node{number}.sh"] = (
            "python load_balance_proxy_server_example.py --prefiller-hosts 10.0.0.1 "
            "--prefiller-ports 8000 --decoder-hosts 10.0.0.2 --decoder-ports 8000\n"
            if side == "proxy"
            else serve(("{P}" if side == "prefill" else "{D}") + " --tensor-parallel-size 4")
        )
    if "docker" in case:
        scripts["node0.sh"] = (
            f"docker run {case['docker']} {IMAGES[package]}:v{version} {serve('')}"
        )
    texts = [Text(name, name.removesuffix(".sh"), "bash", text) for name, text in scripts.items()]
    made = assemble.of_texts(texts, package, version)
    return replace(
        made,
        model=SimpleNamespace(name=case["model"], architecture=KIMI),
        weights=SimpleNamespace(precision=case.get("precision", "other")),
        hardware=SimpleNamespace(
            name=case["hw"], recipes_of=case["hw"], architecture=case.get("host", "aarch64")
        ),
    )


def told(package: str, version: str, identity: str, case: dict) -> list[str]:
    """The severities with which the rule tells a fault."""
    found = truth.known_fault(deployment(package, version, case))
    return [one.severity for one in found if one.message.startswith(f"known fault {identity}:")]


@pytest.mark.parametrize("identity", sorted(APART))
def test_a_fault_is_told_for_exactly_the_affected_versions(identity):
    case = APART[identity]
    package = next(one.engine for one in known_faults.every() if one.id == identity)
    here = {one: set(told(package, one, identity, case)) for one in versions(package)}
    assert [one for one, kinds in here.items() if kinds] == affected(package, case["versions"])
    assert set().union(*here.values()) == {case["told"]}
    other = {**case, **case["misses"]}
    for version in affected(package, case["versions"])[:1]:
        assert not told(package, version, identity, other)


def test_each_fault_has_its_row():
    assert sorted(one.id for one in known_faults.every()) == sorted(APART)


def test_each_fault_says_what_a_reader_needs():
    facts = fault_facts.of_plan(build.plan("k2.5", "a3", "pd"))
    assert facts
    for one in known_faults.every():
        assert one.symptom and one.evidence and "http" in one.source, one.id
        assert one.severity in known_faults.SEVERITIES, one.id
        assert re.fullmatch(r"vllm(-ascend)? .+, (fixed in .+|no fix known)", one.range), one.range
        for version in (one.first, one.fixed):
            assert version is None or known_faults.order(version) is not None, one.id
        if one.first and one.fixed:
            assert known_faults.order(one.first) < known_faults.order(one.fixed), one.id


def test_conditions_ask_only_for_what_is_known():
    """A fact with a wrong name would never be there."""
    made = deployment("vllm-ascend", "0.23.0", {"model": "k2.6", "hw": "a3", "argv": "{P}"})
    (situation,) = fault_facts.situations(made)
    for one in known_faults.every():
        for name in _names(one.when):
            assert name.startswith("--") or name.isupper() or name in situation.facts, (
                one.id,
                name,
            )


def _names(when):
    for name, test in when.items():
        if name == "any":
            for one in test:
                yield from _names(one)
        else:
            yield name


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.22.1rc1", "0.23.0rc1"),
        ("v0.23.0rc1", "v0.23.0"),
        ("0.23.1rc1.dev1041", "kimi-k3"),
        ("kimi-k3", "0.24.0"),
        ("0.19.1+cu129", "0.20.0-cu130"),
        ("0.27.0rc0", "0.27.0"),
    ],
)
def test_versions_are_ordered(older, newer):
    assert known_faults.order(older) < known_faults.order(newer)


def test_a_name_that_is_no_version_has_no_order():
    assert known_faults.order("nightly") is None
    assert not any(one.affects("nightly") for one in known_faults.every())


def test_a_value_that_a_variable_hides_meets_nothing():
    case = {"model": "k2.6", "hw": "h200", "argv": "--decode-context-parallel-size $DCP"}
    assert not told("vllm", "0.22.1", "v-dcp-gibberish", case)


def test_a_config_file_may_hold_what_is_absent():
    case = {"model": "k2.5", "hw": "h200", "argv": "--config serve.yaml"}
    assert not told("vllm", "0.22.1", "v-k25-reasoning-parser", case)


def test_a_plan_meets_the_same_as_its_command_lines():
    for row in recipes.listing():
        plan = build.plan(
            row["model"],
            row["hardware"],
            row["layout"],
            variant=row["variant"],
            scenario=row["scenario"],
        )
        quick = [fault.id for fault, _ in fault_facts.of_plan(plan)]
        assert quick == [fault.id for fault, _ in fault_facts.of(judge.of_plan(plan))], plan.name


def test_a_file_of_the_user_s_own_has_the_faults_of_its_checkpoint(tmp_path):
    """Whatever its name: the scripts of its plan name the checkpoint, and are judged by it."""
    path = tmp_path / "mine.yaml"
    path.write_text("extends: k2.5\nname: mine\n")
    told, mine = (
        fault_facts.of_plan(build.plan(name, "h200", "single")) for name in ("k2.5", str(path))
    )
    assert told == mine and any("k2.5" in fault.models for fault, _ in mine)
    model = load.model(str(path))
    assert recipes.known_as(model) == "k2.5"
    weights = {"int4": model.weights["int4"].model_copy(update={"id": "me/Mine"})}
    assert recipes.known_as(model.model_copy(update={"weights": weights})) == "mine"


def test_a_memory_limit_of_a_plan_s_container_is_seen():
    plan = build.plan("k2.5", "mi300x", "single", variant="docker")
    (box,) = plan.containers
    at = box.argv.index("run") + 1
    limited = replace(box, argv=(*box.argv[:at], "--memory=300g", *box.argv[at:]))
    ids = [fault.id for fault, _ in fault_facts.of_plan(replace(plan, containers=(limited,)))]
    assert "v-rocm-hostmem" in ids
    assert "v-rocm-hostmem" not in [fault.id for fault, _ in fault_facts.of_plan(plan)]


@pytest.mark.parametrize(
    ("image", "model", "has", "lacks"),
    [
        ("vllm/vllm-openai:kimi-k3", "k3", "v-k3-prefix-1536", "v-k3-tool-think"),
        ("vllm/vllm-openai:nightly", "k3", "", "v-k3-prefix-1536"),
        ("quay.io/ascend/vllm-ascend:kimi-k3-a3", "k3", "va-mlapo-plog", "va-k3-a2-garbage"),
    ],
)
def test_an_image_with_a_name_has_the_version_of_its_branch(image, model, has, lacks):
    text = f"docker run {image} vllm serve org/model --enable-auto-tool-choice\n"
    read = assemble.of_texts([Text("run.sh", "", "bash", text)])
    made = replace(
        read,
        model=SimpleNamespace(name=model, architecture=KIMI),
        weights=SimpleNamespace(precision="other"),
        hardware=SimpleNamespace(name="a3", recipes_of="h200", architecture="aarch64"),
    )
    skipped = "truth/known-fault" in registry.check(read).skipped
    assert skipped == (not has)
    ids = [one.message.split()[2].rstrip(":") for one in truth.known_fault(made)]
    if has:
        assert has in ids and lacks not in ids
