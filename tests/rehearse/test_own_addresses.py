"""Two nodes of a rehearsal with default addresses do not meet: 127.0.0.1 is each node itself."""

from __future__ import annotations

import argparse
import asyncio

import pytest

from kimi_nb import catalog
from kimi_nb.plan import build
from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.engine.engine_log import Log
from kimi_nb.rehearse.engine.ranks import cache_transfer, rendezvous
from kimi_nb.rehearse.engine.start import serve, start_settings
from kimi_nb.rehearse.host_programs import front_door, upstream_proxy
from kimi_nb.rehearse.host_programs.docker_run import PUBLISHED
from kimi_nb.rehearse.simulated_site import NODE, SimulatedSite, rebound
from kimi_nb.rehearse.stand_in_call import Call, Replace

BY_NIXL = '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}'
BY_MOONCAKE = (
    '--kv-transfer-config {"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer",'
    '"kv_port":"30100"}'
)


@pytest.fixture
def calls(tmp_path):
    """Call a program on both nodes of a site; the addresses are those of a rehearsal."""
    with loopback.claim() as block:
        plan = rebound(build.plan("k2.6", "a3", "pd"), tmp_path, block)
        site = SimulatedSite.of(plan)
        assert len(site.nodes) >= 2

        def make(tool: str, words: str = "", **env: str) -> list[Call]:
            return [
                Call(tool, tuple(words.split()), {NODE: node, **env}, tmp_path, tmp_path, site)
                for node in list(site.nodes)[:2]
            ]

        yield make


def told(calls, words: str, **env: str) -> list[start_settings.Settings]:
    engine = catalog.engine("vllm", "0.19.1")
    both = calls("vllm", f"serve m {words}", **env)
    return [start_settings.settings(call, engine) for call in both]


def test_each_node_has_a_loopback_address_of_its_own():
    with loopback.claim() as block:
        nodes = [block.address(index) for index in (0, 1, 249, 250, 31_249)]
        own = [loopback.own(address) for address in nodes]
        assert len({*nodes, *own}) == 10
        assert all(loopback.is_own(one) for one in own)
        assert not any(loopback.is_own(one) for one in nodes)
    # A host, or a network namespace, has a loopback interface of its own already.
    assert loopback.own("10.77.0.1") == "127.0.0.1" == loopback.own("127.0.0.1")


@pytest.mark.parametrize(
    ("leads", "follows", "port"),
    [
        (
            "--data-parallel-size 2 --data-parallel-size-local 1",
            "--data-parallel-start-rank 1",
            29550,
        ),
        (
            "--data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-address localhost",
            "--data-parallel-start-rank 1",
            29550,
        ),
        ("--tensor-parallel-size 16 --nnodes 2", "--node-rank 1", 29501),
    ],
)
def test_ranks_with_default_addresses_do_not_meet(calls, leads, follows, port):
    leader, same = told(calls, leads)
    _, follower = told(calls, f"{leads} {follows}")
    assert leader.meets[1] == follower.meets[1] == port
    assert leader.meets[0] != follower.meets[0]
    assert follower.meets == same.meets, "ranks of one node meet there"
    # The leader is not at its node's address either, where a follower that was told it looks.
    assert loopback.is_own(leader.meets[0])


def test_ranks_that_do_not_meet_say_where_they_look(calls, capsys):
    words = "--data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-start-rank "
    leader, _ = told(calls, f"{words} 0")
    _, follower = told(calls, f"{words} 1")

    async def play() -> None:
        both = [rendezvous.Group(one, Log()).join() for one in (leader, follower)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*both), rendezvous.REPORT + 0.5)

    asyncio.run(play())
    said = capsys.readouterr().out
    assert "ranks not here: 1 (rank 0 listens at 127.0.0.1:29550, which is " in said
    assert "Waiting for rank 0 at 127.0.0.1:29550, which is " in said
    assert "--data-parallel-address" in said and leader.meets[0] not in said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_api_at_the_loopback_address_is_of_its_node(calls, host):
    first, second = told(calls, f"--host {host} --port 7997")
    assert first.address != second.address and loopback.is_own(first.address)
    with serve.bound(first), serve.bound(second):
        pass  # on one machine they would take each other's port


def test_a_port_published_at_the_loopback_address_is_of_its_node(calls):
    first, second = told(calls, "", **{PUBLISHED: "127.0.0.1:9000:8000"})
    assert first.port == 9000 and first.address != second.address
    assert loopback.is_own(first.address)


@pytest.mark.parametrize(
    ("words", "env"), [(BY_NIXL, {}), (BY_MOONCAKE, {"VLLM_HOST_IP": "127.0.0.1"})]
)
def test_connectors_with_default_addresses_do_not_meet(calls, words, env):
    first, second = told(calls, words, **env)
    here, there = calls("vllm")
    assert loopback.is_own(here.at(first.transfer.host))
    assert here.at(first.transfer.host) != there.at(second.transfer.host)

    async def play() -> None:
        store = cache_transfer.Store(first, Log(), here.at, blocked=False)
        await store.listen()
        params = store.keep("r", "digest", 300, 0)
        assert (await cache_transfer.fetch(params, first, here.at))[0] == "digest"
        with pytest.raises(cache_transfer.TransferError, match="of the node itself"):
            await cache_transfer.fetch(params, second, there.at)

    asyncio.run(play())


def test_example_proxies_with_default_addresses_do_not_meet(calls):
    given: list[argparse.Namespace] = [
        upstream_proxy.local(upstream_proxy.options(call.words), call) for call in calls("proxy")
    ]
    for name in ("host", "prefiller_hosts", "decoder_hosts"):
        first, second = (getattr(one, name) for one in given)
        assert first != second, name
    assert loopback.is_own(given[0].host) and loopback.is_own(given[1].decoder_hosts[0])


def test_routers_with_default_addresses_do_not_meet(calls):
    words = "--worker-urls http://localhost:8000 http://127.0.0.1:8001 --port 7995"
    became = []
    for call in calls("vllm-router", words):
        with pytest.raises(Replace) as caught:
            front_door.vllm_router(call)
        became.append(caught.value.argv)
        at = loopback.own(call.address)
        assert f"http://{at}:8000" in caught.value.argv and f"http://{at}:8001" in caught.value.argv
        assert caught.value.argv[caught.value.argv.index("--host") + 1] == at
    assert not {*became[0]} & {*became[1]} & {"127.0.0.1", "localhost", "http://localhost:8000"}
