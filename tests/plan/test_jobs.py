"""The SLURM jobs of a plan: what one job leaves is what the next one needs."""

from __future__ import annotations

import re
from functools import cache

import pytest

from kimi_nb import catalog
from kimi_nb.core.errors import PlanError
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
    assert "no router" in note and "first" in note
    assert not any("groups" in note for note in spanning(two_dgx, *DATA_PARALLEL).notes)
