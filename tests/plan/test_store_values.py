"""What a KV store comes to, value by value: its ports, commands and files, and each refusal."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from kimi_nb import catalog
from kimi_nb.core.errors import PlanError
from kimi_nb.params import load, overrides, schema
from kimi_nb.params.settings import Layer
from kimi_nb.plan import spec, store, store_settings
from kimi_nb.plan.roles import Request

SOURCE = schema.Source(document="guide", section="1")
SHARED = schema.Store(mode="distributed", segment_gb=100)
CENTRAL = schema.Store(
    mode="centralised",
    segment_gb=500,
    buffer_gb=6,
    protocol="tcp",
    ports={"rpc": 50099, "metrics": 9999, "service": 8099},
)
OPTIONS = (  # of the master, as data/catalog has them
    "-rpc_thread_num=4",
    "-default_kv_lease_ttl=30000",
    "-eviction_high_watermark_ratio=0.95",
    "-eviction_ratio=0.1",
    "-logtostderr",
)
# Two engines on the first node, one on the second.
ENGINES = [
    SimpleNamespace(node=node, address=address)
    for node, address in [("n0", "192.0.2.1"), ("n0", "192.0.2.1"), ("n1", "192.0.2.2")]
]


def asked(
    found: schema.Store | None = SHARED, version="0.32.0", hardware="h200", **more
) -> Request:
    recipe = {
        "hardware": hardware,
        "layout": "single",
        "variant": "pip",
        "title": "A recipe of a test",
        "source": SOURCE,
        "engine_version": version,
        "weights": "int4",
        "install": "pip",
        "roles": {"mixed": {}},
    }
    made = Request(
        model=load.model("k2.5"),
        hardware=load.hardware(hardware),
        recipe=schema.Recipe(**recipe | {"store": None} | more),
        scenario=None,
        site=load.site("h200"),
        engine=catalog.engine("vllm", version),
        overrides=overrides.parse((), ("mixed",)),
    )
    return made if found is None else _with(made, found)


def _with(made: Request, found: schema.Store) -> Request:
    return dataclasses.replace(made, recipe=made.recipe.model_copy(update={"store": found}))


def refused(one: Request) -> str:
    with pytest.raises(PlanError) as caught:
        store.check(one)
    return str(caught.value)


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [asked(None, install="docker"), asked(), asked(version="0.21.0")])
def test_what_is_not_refused(one):
    assert store.check(one) is None


def test_an_installation_that_brings_no_store():
    assert refused(asked(install="docker", variant="docker")) == (
        "docker: a KV store needs mooncake_master and Mooncake's wheel beside the engine, and here it "
        "is installed by docker, which brings neither. On h200 a store is planned where the engine is "
        "installed by pip (--variant)."
    )


def test_an_installation_that_the_hardware_does_not_know():
    assert "here it is installed by conda, which brings" in refused(asked(install="conda"))


def test_hardware_without_a_store():
    one = asked(hardware="a3", install="docker")
    assert refused(one).endswith(
        "On a3 a store is planned where the engine is installed by no way that is known (--variant)."
    )


def test_several_installations_that_bring_one():
    one = asked(install="docker")
    installs = one.hardware.installs
    hardware = one.hardware.model_copy(
        update={"installs": installs | {"other": installs["pip"][-2:]}}
    )
    said = refused(dataclasses.replace(one, hardware=hardware))
    assert said.endswith("is installed by pip or other (--variant).")


def test_jobs_that_install_the_engine():
    one = asked()
    recipe = one.recipe.model_copy(update={"jobs": True})
    assert "and here SLURM jobs install it, which brings neither." in refused(
        dataclasses.replace(one, recipe=recipe)
    )


def test_a_layout_with_a_connector_of_its_own():
    one = asked()
    recipe = one.recipe.model_copy(update={"layout": "pd"})
    assert refused(dataclasses.replace(one, recipe=recipe)) == (
        "layout pd moves its cache by a connector of its own, and a store beside it is not planned "
        "here: choose layout single or dp with several groups."
    )


def test_an_engine_that_is_too_old():
    assert refused(asked(version="0.19.1")) == (
        "MooncakeStoreConnector needs vLLM >=0.21.0; vllm 0.19.1 is vLLM 0.19.1. Choose another "
        "--engine-version."
    )


# The store --------------------------------------------------------------------------------------


def test_without_a_store_there_is_none():
    assert store.store(asked(None), ENGINES) is None
    assert store.claims(None, ["n0"]) == []
    assert store.notes(None, True) == ()


def test_the_devices_hold_it():
    assert store.store(asked(), ENGINES) == spec.Store(
        kind="mooncake",
        mode="distributed",
        node="n0",
        address="192.0.2.1",
        port=50051,
        metrics_port=9003,
        service_port=None,
        segment_gb=100,
        buffer_gb=4,
        protocol="rdma",
        master=("mooncake_master", "-rpc_port=50051", "-metrics_port=9003", *OPTIONS),
        service=(),
        config={
            "mode": "embedded",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": "192.0.2.1:50051",
            "local_buffer_size": "4GB",
            "protocol": "rdma",
            "device_name": "",
            "enable_offload": False,
            "global_segment_size": "100GB",
        },
        services={},
    )


def test_a_service_on_each_node_holds_it():
    both = {
        "mode": "standalone-store",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": "192.0.2.1:50099",
        "local_buffer_size": "6GB",
        "protocol": "tcp",
        "device_name": "",
        "enable_offload": False,
    }
    service = "python -m mooncake.mooncake_store_service --config mooncake_store.json --port 8099"
    assert store.store(asked(CENTRAL), ENGINES) == spec.Store(
        kind="mooncake",
        mode="centralised",
        node="n0",
        address="192.0.2.1",
        port=50099,
        metrics_port=9999,
        service_port=8099,
        segment_gb=500,
        buffer_gb=6,
        protocol="tcp",
        master=("mooncake_master", "-rpc_port=50099", "-metrics_port=9999", *OPTIONS),
        service=tuple(service.split()),
        config=both | {"global_segment_size": 0},
        services={
            "n0": both | {"global_segment_size": "500GB", "local_hostname": "192.0.2.1"},
            "n1": both | {"global_segment_size": "500GB", "local_hostname": "192.0.2.2"},
        },
    )


def test_an_address_of_ipv6_is_in_brackets():
    made = store.store(asked(), [SimpleNamespace(node="n0", address="fd00::1")])
    assert (made.address, made.config["master_server_address"]) == ("fd00::1", "[fd00::1]:50051")


@pytest.mark.parametrize(
    ("found", "listens", "claims"),
    [
        (SHARED, {"rpc": 50051, "metrics": 9003}, []),
        (
            schema.Store(mode="centralised", segment_gb=1),
            {"rpc": 50051, "metrics": 9003, "service": 8080},
            [("n0", 8080, "the store's service"), ("n1", 8080, "the store's service")],
        ),
        (
            CENTRAL,
            {"rpc": 50099, "metrics": 9999, "service": 8099},
            [("n0", 8099, "the store's service"), ("n1", 8099, "the store's service")],
        ),
    ],
)
def test_where_it_listens(found, listens, claims):
    assert store.listens(found) == listens
    assert store.claims(found, ["n0", "n1"]) == [
        ("n0", listens["rpc"], "the store's master"),
        ("n0", listens["metrics"], "the metrics of the store's master"),
        *claims,
    ]


def test_what_is_told_of_it():
    made = store.store(asked(), ENGINES)
    told = (
        "the engines share a KV store (mooncake, distributed) with its master at 192.0.2.1:50051. It "
        "takes commands from anybody who reaches its ports, without a key: keep them inside the "
        "cluster's network."
    )
    routed = (
        "vllm-router hands requests out in turn (round_robin): what one engine has computed another "
        "one loads from the store. Upstream's pages name cache_aware, which asks every engine to "
        "render each chat first."
    )
    assert store.notes(made, False) == (told,)
    assert store.notes(made, True) == (told, routed)


def test_the_memory_of_a_node():
    """8 devices with a segment and a buffer each; or one segment, and a buffer of its service too."""
    assert store.host_gib(store.store(asked(), ENGINES), 8) == 8 * 100 + 8 * 4
    assert store.host_gib(store.store(asked(CENTRAL), ENGINES), 8) == 500 + 9 * 6
    assert store.host_gib(store.store(asked(CENTRAL), ENGINES), 1) == 500 + 2 * 6


@pytest.mark.parametrize(
    ("source", "named"),
    [(None, "a recipe, KV store"), (SOURCE, "guide 1, KV store")],
)
def test_the_settings_of_its_clients(source, named):
    found = SHARED.model_copy(update={"source": source})
    assert store_settings.layer(found, "a recipe") == Layer(
        {
            "flags": {"kv-transfer-config": {"kv_connector": "MooncakeStoreConnector"}},
            "env": {
                "MOONCAKE_CONFIG_PATH": "{node_folder}/mooncake.json",
                "PYTHONHASHSEED": "0",
            },
        },
        "recipe",
        named,
    )
