"""A KV store that several engines share: the plan, its ports and settings, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kimi_nb.check import judge, memory_account
from kimi_nb.core.errors import KimiError
from kimi_nb.params import load
from kimi_nb.plan import build, store

CONFIG = "/root/kimi/k2.5-store-h200-single-pip/{node}/mooncake.json"


@pytest.fixture
def made(stored_model, nodes_file):
    def plan(mode="distributed", nodes=2, hardware="h200", engine_version="", pairs=(), **changes):
        return build.plan(
            stored_model(mode, hardware=hardware, **changes),
            hardware,
            "single",
            site=nodes_file(hardware, nodes),
            engine_version=engine_version,
            pairs=pairs,
        )

    return plan


@pytest.mark.parametrize("mode", ["distributed", "centralised"])
def test_every_engine_is_a_client_of_one_store(made, mode):
    plan = made(mode)
    assert [engine.node for engine in plan.engines] == ["node-0", "node-1"]
    for engine in plan.engines:
        at = engine.argv.index("--kv-transfer-config") + 1
        assert json.loads(engine.argv[at]) == {
            "kv_connector": "MooncakeStoreConnector",
            "kv_role": "kv_both",
        }
        assert engine.env["MOONCAKE_CONFIG_PATH"] == CONFIG.format(node=engine.node)
        assert engine.env["PYTHONHASHSEED"] == "0"
    assert plan.router and plan.url == "http://192.0.2.11:30080"
    assert (plan.store.node, plan.store.address, plan.store.port) == ("node-0", "192.0.2.11", 50051)
    assert plan.store.master[:3] == ("mooncake_master", "-rpc_port=50051", "-metrics_port=9003")
    assert plan.store.config["master_server_address"] == "192.0.2.11:50051"
    (row,) = [row for row in plan.explain() if row.name == "PYTHONHASHSEED"]
    assert (row.layer, row.source) == ("recipe", "usage-guide Running, KV store")
    assert json.loads(plan.as_json())["store"]["node"] == "node-0"


def test_the_memory_is_that_of_the_engines_or_of_a_service(made):
    """vLLM 0.32.0 refuses embedded without a segment, and standalone-store with one."""
    shared, central = made("distributed").store, made("centralised").store
    assert shared.config["mode"] == "embedded" and shared.config["global_segment_size"] == "100GB"
    assert (shared.service, dict(shared.services), shared.service_port) == ((), {}, None)
    assert central.config["mode"] == "standalone-store"
    assert central.config["global_segment_size"] == 0
    assert central.service[-1] == "8080" and list(central.services) == ["node-0", "node-1"]
    assert central.services["node-1"]["global_segment_size"] == "500GB"
    assert central.services["node-1"]["local_hostname"] == "192.0.2.12"
    assert (store.host_gib(shared, 8), store.host_gib(central, 8)) == (832.0, 536.0)


@pytest.mark.parametrize(
    ("hardware", "version", "wheel"),
    [
        ("h200", "0.25.1", "mooncake-transfer-engine-cuda13=="),
        ("mi300x", "0.25.1", "mooncake-transfer-engine-non-cuda=="),
    ],
)
def test_the_wheel_is_that_of_the_accelerator(made, hardware, version, wheel):
    steps = made(hardware=hardware, engine_version=version).installs["pip"]
    (word,) = [word for step in steps for word in step.argv if word.startswith("mooncake")]
    assert word.startswith(wheel)


def test_plans_without_a_store_know_nothing_of_it():
    plan = build.plan("k2.5", "h200", "single", variant="pip")
    assert plan.store is None and "store" not in plan.as_dict()
    assert "mooncake" not in plan.as_json().lower()


def test_one_group_needs_no_router(made):
    """A recipe's router stands in front of several groups; one of them is a whole deployment."""
    plan = made(pairs=["groups=1"], nodes=1)
    assert plan.router is None and plan.store.node == "node-0"


def test_a_scenario_has_a_store_of_its_own(stored_model, nodes_file):
    scenario = {
        "title": "With a store",
        "source": {"document": "usage-guide", "section": "Running"},
        "store": {"mode": "distributed", "segment_gb": 7, "ports": {"rpc": 50099}},
    }
    model = stored_model(store=None, scenarios={"shared": scenario})
    where = {"site": nodes_file("h200", 2)}
    assert build.plan(model, "h200", "single", **where).store is None
    plan = build.plan(model, "h200", "single", scenario="shared", **where)
    assert (plan.store.segment_gb, plan.store.port) == (7, 50099)
    assert "-pip-shared/node-0/" in plan.engines[0].env["MOONCAKE_CONFIG_PATH"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"engine_version": "0.19.1"}, ["vLLM >=0.21.0", "--engine-version"]),
        ({"variant": "docker", "install": "docker"}, ["installed by docker", "installed by pip"]),
        (
            {"hardware": "a3", "install": "docker", "engine_version": "0.18.0"},
            ["brings neither", "no way that is known"],
        ),
        (
            {"pairs": ["kv-port=36000"]},
            ["would change nothing", "clients of a store listen at ports"],
        ),
        ({"pairs": ["port=50051"]}, ["50051 is wanted twice", "the store's master"]),
        ({"pairs": ["router.port=9003"]}, ["9003 is wanted twice", "the metrics of the store's"]),
        (
            {"mode": "centralised", "pairs": ["port=8080"]},
            ["8080 is wanted twice", "the store's service"],
        ),
    ],
)
def test_a_store_that_cannot_be_is_refused(made, asked, words):
    with pytest.raises(KimiError) as caught:
        made(**asked)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"store": {"mode": "shared", "segment_gb": 1}}, ["store.mode", "distributed"]),
        ({"store": {"mode": "distributed", "segment_gb": 0}}, ["store.segment_gb"]),
        ({"router": "upstream"}, ["router upstream", "vllm-router"]),
    ],
)
def test_a_recipe_with_a_wrong_store_is_refused(stored_model, changes, words):
    with pytest.raises(KimiError) as caught:
        load.model(stored_model(**changes))
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_notes_say_who_may_command_the_store(made):
    notes = " ".join(made().notes)
    assert "192.0.2.11:50051" in notes and "without a key" in notes and "round_robin" in notes


# What the rules say of it ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["distributed", "centralised"])
def test_the_rules_have_nothing_against_it(made, mode):
    """But for known faults of the engine, which are no fault of the store."""
    found = judge.plan(made(mode)).findings
    assert {one.rule for one in found if one.severity != "note"} <= {"truth/known-fault"}
    assert not any(one.rule.startswith("store/") for one in judge.plan(made(mode)).findings)


def test_the_rules_see_what_is_wrong_with_it(made, stored_model, nodes_file, tmp_path):
    def of(plan, rule):
        return [one.message for one in judge.plan(plan).findings if one.rule == rule]

    assert of(made("centralised", pairs=["groups=1"], nodes=1), "store/alone")
    too_much = made(store={"mode": "distributed", "segment_gb": 300})
    assert "2432 GiB for the store" in of(too_much, "store/memory")[0]
    text = Path(nodes_file("h200", 2)).read_text().replace("192.0.2.11", "127.0.0.1")
    site = tmp_path / "local.yaml"
    site.write_text(text)
    plan = build.plan(stored_model(), "h200", "single", site=str(site))
    assert "127.0.0.1:50051, and there are 2 nodes" in of(plan, "store/master-address")[0]


def test_the_account_of_a_host_has_the_store(made):
    (term,) = [one for one in memory_account.of(made()).host if one.name == "shared KV store"]
    assert term.gib == 8 * (100 + 4)
