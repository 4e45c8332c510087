"""Hardware cpu: tiny models stand for the real ones, the engine is an environment of its own."""

from __future__ import annotations

import ast
import json
import subprocess

import pytest

import kimi_nb
from kimi_nb.bundle import scripts
from kimi_nb.check import judge
from kimi_nb.core import data_files, paths
from kimi_nb.core.errors import NoRecipeError, ParameterError, PlanError
from kimi_nb.notebook import runbook
from kimi_nb.params import load, recipes
from kimi_nb.plan import build
from kimi_nb.rehearse.loopback import Block
from kimi_nb.rehearse.simulated_site import SimulatedSite, rebound
from kimi_nb.service import prerequisites

TINY = {"single": "tiny-k2.5", "dp": "tiny-llama", "pd": "tiny-k2.5"}
REAL = ["k2.5", "k2.6", "k2-thinking"]


@pytest.mark.parametrize("layout", TINY)
@pytest.mark.parametrize("model", REAL)
def test_a_tiny_model_stands_for_a_real_one_and_says_so(model, layout):
    plan = build.plan(model, "cpu", layout)
    assert plan.model == TINY[layout]
    assert plan.notes[0] == (
        f"{TINY[layout]} stands for {model}: random weights, cpu has no room for the real ones."
    )
    mine, own = scripts.files(plan), scripts.files(build.plan(TINY[layout], "cpu", layout))
    assert {name for name in own if mine[name] != own[name]} == {
        "DAY.md",
        "plan.json",
    }  # which has notes


def test_a_tiny_model_stands_for_none_where_it_is_named_itself():
    assert build.plan("tiny-k2.5", "cpu", "single").notes == ()
    with pytest.raises(NoRecipeError, match="tiny-llama"):
        build.plan("tiny-k2.5", "cpu", "dp")
    with pytest.raises(NoRecipeError):
        build.plan("tiny-k2.5", "a3", "single")
    with pytest.raises(NoRecipeError, match="say which one"):
        build.plan("k2.5", "cpu")


def test_other_hardware_serves_what_is_named():
    for name in load.names("hardware"):
        chip = load.hardware(name)
        for model in map(load.model, REAL):
            assert (recipes.served(model, chip).name == model.name) == (name != "cpu")


@pytest.mark.parametrize("layout", TINY)
def test_no_rule_finds_anything(layout):
    assert judge.plan(build.plan("k2.5", "cpu", layout)).findings == ()


@pytest.mark.parametrize("layout", TINY)
def test_the_scripts_find_the_engine_and_stay_on_the_loopback(layout):
    plan = build.plan("k2.5", "cpu", layout)
    files = scripts.files(plan)
    first = f"export PATH={paths.root()}/.engine/bin${{PATH:+:$PATH}}\n"
    for engine in plan.engines:
        text = files[f"{engine.node}/serve.sh"]
        assert first in text and text.index(first) < text.index("exec vllm serve")
        assert engine.address.startswith("127.") and engine.env["VLLM_HOST_IP"] == engine.address
        assert engine.env["VLLM_NO_USAGE_STATS"] == engine.env["HF_HUB_OFFLINE"] == "1"
        if layout == "pd":
            assert engine.env["UCX_NET_DEVICES"] == "lo"
            assert engine.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == engine.address
    if plan.router:
        assert first in files[f"{plan.router.node}/proxy.sh"]
    assert not plan.containers and not plan.image and list(plan.installs) == ["engine"]


def test_a_rehearsal_never_reaches_the_engine(tmp_path):
    class Guard:
        """A claim on addresses that nobody uses."""

    plan = rebound(build.plan("k2.5", "cpu", "pd"), tmp_path, Block(77, Guard()))
    assert ".engine" not in "".join(
        text
        for name, text in scripts.files(plan).items()
        if name.endswith(("serve.sh", "proxy.sh"))
    )
    assert SimulatedSite.of(plan).images == ()


def test_a_site_without_an_engine_enters_the_one_that_is_installed(tmp_path):
    text = (paths.root() / "params" / "sites" / "cpu.yaml").read_text()
    site = tmp_path / "mine.yaml"
    site.write_text(text.replace('  engine: "{root}/.engine"\n', ""))
    plan = build.plan("k2.5", "cpu", "single", site=str(site))
    made = f"{paths.root()}/runs/.local/engine"
    assert f"export PATH={made}/bin" in scripts.files(plan)["local-0/serve.sh"]
    assert plan.installs["engine"][0].argv[-1] == made


def test_a_container_is_not_asked_for():
    with pytest.raises(PlanError, match="cpu has no container"):
        from kimi_nb import catalog
        from kimi_nb.plan import containers

        site = load.site("cpu")
        containers.container(
            load.hardware("cpu"), site, site.nodes[0], catalog.engine("vllm", "0.32.0")
        )


@pytest.mark.parametrize(("name", "dense"), [("tiny-k2.5", False), ("tiny-llama", True)])
def test_the_numbers_are_those_of_the_configuration(name, dense):
    folder = paths.root() / "params" / "tiny" / load.model(name).weights["random"].directory
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    arch, model = load.model(name).architecture, load.model(name)
    theirs = {
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "vocabulary": "vocab_size",
        "dense_layers": "first_k_dense_replace",
        "experts": "n_routed_experts",
        "experts_per_token": "num_experts_per_tok",
        "shared_experts": "n_shared_experts",
        "key_value_heads": "num_key_value_heads",
    }
    assert arch == {key: config[theirs.get(key, key)] for key in arch}
    assert model.context_length == config["max_position_embeddings"]
    assert ("experts" in arch) != dense
    for file in (*model.weights["random"].files, "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / file).read_bytes()


def test_this_machine_is_looked_at():
    """Every look runs here or says why not; none is of a tool that a CPU does not have."""
    site, chip = load.site("cpu"), load.hardware("cpu")
    assert prerequisites.is_node(site)
    weights = load.model("tiny-k2.5").weights["random"]
    looks = list(prerequisites.looks(chip, site, weights, "pd"))
    seen = {one.name: prerequisites.look(one, site, True) for one in looks}
    assert set(seen) == {"devices", "memory", "weights", "engine"}
    assert seen["weights"].status == "pass"
    if not (paths.root() / ".engine").exists():
        assert seen["engine"].status == "skipped"


def test_the_looks_tell_too_little_from_enough():
    site, chip = load.site("cpu"), load.hardware("cpu")
    memory = next(
        one
        for one in prerequisites.looks(chip, site, load.model("tiny-k2.5").weights["random"], "pd")
        if one.name == "memory"
    )
    for kib, status in (
        (5_999_999, "fail"),
        (6_000_000, "pass"),
        (23_000_000, "pass"),
        (900_000, "fail"),
    ):
        text = f"MemTotal: 1 kB\nMemFree: 9000000 kB\nMemAvailable:   {kib} kB\n"
        assert (
            prerequisites.look(memory, site, True, lambda argv, text=text: (0, text)).status
            == status
        )


def test_every_call_of_the_notebooks(tmp_path, capsys):
    run = kimi_nb.start(hw="cpu", model="k2.5", run_dir=str(tmp_path))
    told = " ".join(capsys.readouterr().out.split())
    assert "Tiny K2.5 (random weights) and Tiny Llama" in told and "in place of it" in told
    rows = run.list("recipes").rows
    assert {(row[0], row[2]) for row in rows} == {(name, layout) for layout, name in TINY.items()}
    assert len(run.list("features")) > 5 and len(run.list("nodes")) == 2
    assert len(run.list("weights")) and len(run.list("matrix")) and len(run.list("notes")) > 3
    assert all(row[2] for row in run.list("notebooks").rows)
    ways = run.install()
    assert ways.names == ("engine",) and "kimi_nb.service.cpu_engine" in ways.usual.text
    assert ways.container.text == "" and not ways.others
    assert len(run.list("edits")) == len(run.list("jobs")) == 0
    assert ("vllm", "0.32.0") in run.list("versions").rows
    with pytest.raises(ParameterError, match="did you mean 'recipes'"):
        run.list("recipe")
    for layout in TINY:
        seen = run.prerequisites(run.choose(layout)).seen
        assert {one.status for one in seen if one.look.name == "weights"} == {"pass"}
    assert runbook.which("k2.5", "cpu") == [
        name
        for name, entry in data_files.facts("notebook/notebooks").items()
        if "kind" not in entry
    ]


def test_what_the_project_ships_is_no_code():
    """The tiny models are data: nothing of them is run by --trust-remote-code."""
    for path in (paths.root() / "params" / "tiny").rglob("*"):
        assert path.is_dir() or path.suffix in (".json", ".jinja")


def test_the_looks_are_commands_that_parse():
    for check in load.hardware("cpu").checks.values():
        if "-c" in check.argv:
            ast.parse(check.argv[-1])
    script = scripts.files(build.plan("k2.5", "cpu", "single"))["install/engine.sh"]
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
