"""The SLURM jobs of a plan: what one job leaves is what the next one needs."""

from __future__ import annotations

import re
from functools import cache

import pytest

from kimi_nb import catalog
from kimi_nb.bundle import scripts
from kimi_nb.core.errors import KimiError, PlanError
from kimi_nb.params import load, schema
from kimi_nb.plan import build, jobs
from kimi_nb.plan.spec import Plan


@cache
def plan_of(*pairs: str, scenario: str = "", dropped: tuple = (), version: str = "") -> Plan:
    return build.plan(
        "k2.5",
        "h200",
        "single",
        variant="slurm",
        scenario=scenario,
        pairs=pairs,
        dropped=dropped,
        engine_version=version,
    )


def job_of(plan: Plan, name: str):
    return next(job for job in plan.jobs if job.name == name)


def value(words, flag: str) -> str:
    return words[words.index(flag) + 1]


def test_the_environment_comes_from_a_channel_that_asks_nothing():
    words = job_of(plan_of(), "create-env").argv
    assert value(words, "-c") == "conda-forge" and "--override-channels" in words


@pytest.mark.parametrize(
    "version, pins",
    [
        ("0.19.1", {"ray": "2.48.0", "datasets": "3.3.0", "transformers": "5.5.3"}),
        ("0.18.0", {"ray": "2.48.0", "datasets": "3.3.0", "transformers": "4.57.5"}),
        ("0.33.0", {"ray": "2.56.1", "datasets": "3.3.0", "transformers": "5.19.0"}),
    ],
)
def test_what_later_jobs_import_is_installed(version, pins):
    """The tuner imports ray, the benchmark datasets and pandas: vLLM requires none of them."""
    dropped = () if version != "0.18.0" else ("ep-weight-filter",)
    words = job_of(plan_of(version=version, dropped=dropped), "install").argv
    assert words[:3] == ("pip", "install", f"vllm=={version}")
    found = dict(word.split("==") for word in words[2:])
    assert found.items() >= pins.items()
    assert found.keys() >= {"pandas", "huggingface_hub"}


NO_EP = ("expert-parallel", "eplb", "ep-weight-filter")


@pytest.mark.parametrize(
    "pairs, dropped, tp, shape",
    [
        ((), (), "8", "E=48,N=2048,"),
        ((), NO_EP, "8", "E=384,N=256,"),
        (("tp=4", "dp=2"), (), "8", "E=48,N=2048,"),
        (("tp=4",), (), "4", "E=96,N=2048,"),
    ],
)
def test_the_tuner_tunes_the_shape_that_the_server_has(pairs, dropped, tp, shape):
    plan = plan_of(*pairs, scenario="optimised", dropped=dropped)
    tuner, server = job_of(plan, "tune-moe"), job_of(plan, "optimised")
    expert_parallel = "--enable-expert-parallel"
    assert (expert_parallel in tuner.argv) == (expert_parallel in server.argv) == (not dropped)
    assert value(tuner.argv, "--tp-size") == tp
    # config.json of K2.5 holds the language model's sizes one level down.
    assert value(tuner.argv, "--model-prefix") == "text_config"
    folder = value(tuner.argv, "--save-dir")
    assert any(f"{folder}/{shape}" in line for line in tuner.body)
    # The server looks there.
    assert server.env["VLLM_TUNED_CONFIG_FOLDER"] == folder
    assert any(
        re.search(rf"export VLLM_TUNED_CONFIG_FOLDER={folder}\b", line) for line in server.body
    )
    assert "VLLM_TUNED_CONFIG_FOLDER" in catalog.tables("vllm")["env"]


def test_the_tuner_follows_the_optimised_server_also_in_the_default_plan():
    plan = plan_of()
    assert "--enable-expert-parallel" not in plan.engines[0].argv
    assert "--enable-expert-parallel" in job_of(plan, "tune-moe").argv


# Two nodes -------------------------------------------------------------------------------------


def spanning(site: str, *pairs: str, **more) -> Plan:
    return build.plan("k2.5", "h200", "single", variant="slurm", site=site, pairs=pairs, **more)


DATA_PARALLEL = ("nodes=2", "dp=2", "rpc-port=13345")


@pytest.mark.parametrize("pairs", [DATA_PARALLEL, ("nodes=2", "tp=16")])
def test_serving_jobs_of_two_nodes_ask_for_two_and_start_a_task_on_each(two_dgx, pairs):
    plan = spanning(two_dgx, *pairs)
    for job in plan.jobs:
        serves = job.name in ("baseline", "optimised")
        assert f"--nodes={2 if serves else 1}" in job.options
        text = jobs.script(job, plan.modules)
        assert ("srun" in text) == serves
        if serves:
            for word in (
                "--nodes=2",
                "--ntasks-per-node=1",
                "--cpus-per-task=112",
                "--kill-on-bad-exit=1",
            ):
                assert word in text.partition("\nsrun ")[2].split(), word
            assert "198.51.100." not in text  # SLURM chooses the nodes


def test_a_variable_with_an_address_of_the_site_file_is_refused(two_dgx):
    with pytest.raises(PlanError, match=r"MY_ADDRESS=198.51.100.21 .* not known before it runs"):
        spanning(two_dgx, *DATA_PARALLEL, "env.MY_ADDRESS={address}")


def test_replicas_without_a_router_are_said_to_be_alone(two_dgx):
    """Both nodes serve; nothing shares out the requests of the service's URL."""
    plan = spanning(two_dgx, "groups=2")
    assert [engine.headless for engine in plan.engines] == [False, False]
    (note,) = (note for note in plan.notes if "groups" in note)
    assert "router=vllm-router" in note and "first" in note
    assert not any("groups" in note for note in spanning(two_dgx, *DATA_PARALLEL).notes)


# Replicas behind a router ----------------------------------------------------------------------


def test_the_scenario_replicas_is_one_job_with_its_router(two_dgx):
    plan = spanning(two_dgx, scenario="replicas")
    best, job = spanning(two_dgx, scenario="optimised"), job_of(plan, "optimised")
    assert [engine.argv for engine in plan.engines] == [best.engines[0].argv] * 2
    assert plan.features == best.features
    assert plan.url == "http://198.51.100.21:1999" == plan.router.url
    text = jobs.script(job, plan.modules)
    assert "--nodes=2" in job.options and "198.51.100." not in text
    assert '--worker-urls "http://$replica0:8000" "http://$replica1:8000"' in text
    assert 'vllm-router \\\n    --host "$replica0" \\\n    --port 1999' in text
    assert "wait -n" in text and "--wait=1" in text and "keyed_door" not in text
    assert "vllm-router==0.1.17" in job_of(plan, "install").argv
    # The other serving job is the guide's baseline: one node, no router.
    base = jobs.script(job_of(plan, "baseline"), plan.modules)
    assert "--nodes=1" in job_of(plan, "baseline").options and "vllm-router" not in base
    asks = job_of(plan, "benchmark").body
    assert any('SERVER_URL="http://$(cat' in line and line.endswith(':1999"') for line in asks)


def test_a_plan_without_a_router_installs_none(two_dgx):
    for pairs in ((), ("groups=2",), DATA_PARALLEL):
        assert not any("router" in word for word in job_of(plan_of(), "install").argv), pairs
        text = "".join(jobs.script(job, ()) for job in spanning(two_dgx, *pairs).jobs)
        assert "vllm-router" not in text


@pytest.mark.parametrize("scenario", ["", "optimised"])
def test_any_scenario_of_jobs_takes_a_router(two_dgx, scenario):
    plan = spanning(
        two_dgx, "groups=2", "router=vllm-router", "router.port=1998", scenario=scenario
    )
    for name in ("baseline", "optimised"):
        assert "--port 1998" in jobs.script(job_of(plan, name), ()), name
    assert plan.url.endswith(":1998")


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (("router.port=8000",), ["port 8000 is wanted twice", "the router"]),
        (("port=1999",), ["port 1999 is wanted twice"]),
        (("groups=1",), ["one group", "groups=2"]),
        (("nodes=2", "dp=2", "rpc-port=13345"), ["needs 4 nodes", "has 2: dgx-01, dgx-02"]),
    ],
)
def test_replicas_that_cannot_be_are_refused(two_dgx, pairs, words):
    with pytest.raises(KimiError) as caught:
        spanning(two_dgx, *pairs, scenario="replicas")
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_site_of_one_node_says_how_to_get_another(nodes_file):
    with pytest.raises(PlanError, match="needs 2 nodes .* has 1: node-0. Add nodes to the site"):
        spanning(nodes_file("h200-slurm", 1), scenario="replicas")


def test_a_keyed_job_has_the_door_beside_it(nodes_file, tmp_path):
    site = tmp_path / "keyed.yaml"
    with open(nodes_file("h200-slurm", 2)) as file:
        site.write_text(file.read() + "api_key_env: KIMI_KEY\n")
    plan = spanning(str(site), scenario="replicas")
    text = jobs.script(job_of(plan, "optimised"), ())
    assert "jobs/keyed_door.py" in scripts.files(plan)
    assert 'python "$door"' in text and "--host '{host}'" in text
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        assert f'export {name}="${{KIMI_KEY:?' in text
    baseline = jobs.script(job_of(plan, "baseline"), ())
    assert "OPENAI_API_KEY" not in baseline and "door" not in baseline


def test_the_bundle_of_replicas_has_no_proxy_to_start_by_hand(two_dgx):
    files = scripts.files(spanning(two_dgx, scenario="replicas"))
    assert not any(name.endswith(("proxy.sh", "keyed_door.py")) for name in files)
    told = " ".join(files["README.md"].split())
    assert "starts vllm-router on its first node" in told and "at port 1999" in told


def test_a_scenario_of_layout_pd_names_no_router():
    """There the recipe does, since no request can be answered without one."""
    recipe = next(one for one in load.model("k2.5").recipes if one.layout == "pd")
    table = recipe.model_dump(exclude_unset=True)
    name = next(iter(table["scenarios"]))
    table["scenarios"][name]["router"] = "vllm-router"
    with pytest.raises(ValueError, match=rf"scenarios.{name}.router: layout pd has the router"):
        schema.Recipe(**table)
    table["scenarios"][name]["router"] = "upstream"
    with pytest.raises(ValueError, match="vllm-router"):
        schema.Recipe(**table)
