"""Replicas behind vllm-router, in layouts single and dp: the plan, its refusals, its bundle."""

from __future__ import annotations

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.check import judge
from kimi_nb.core.errors import KimiError
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

ROUTED = ("groups=2", "router=vllm-router")
# hardware, layout, variant, nodes of a site: each way to install that one can deploy.
SHAPES = [
    ("h200", "single", "pip", 2),
    ("h200", "single", "docker", 2),
    ("gb200", "single", "nvfp4-docker", 2),
    ("gb200", "dp", "tensor-parallel", 4),
    ("mi300x", "single", "docker", 2),
    ("a3", "single", "docker", 2),
    ("a2", "dp", "docker", 4),
]


def made(
    nodes_file, hardware="h200", layout="single", variant="pip", nodes=2, pairs=ROUTED
) -> Plan:
    site = nodes_file(hardware, nodes)
    return build.plan("k2.5", hardware, layout, variant=variant, site=site, pairs=pairs)


@pytest.mark.parametrize(("hardware", "layout", "variant", "nodes"), SHAPES)
def test_the_router_lists_every_engine_with_an_api(nodes_file, hardware, layout, variant, nodes):
    plan = made(nodes_file, hardware, layout, variant, nodes)
    argv = plan.router.argv
    heads = [engine for engine in plan.engines if not engine.headless]
    assert len(heads) == 2 and {engine.group for engine in heads} == {0, 1}
    at = argv.index("--worker-urls") + 1
    assert list(argv[at : at + 2]) == [engine.url for engine in heads]
    assert argv[:5] == ("vllm-router", "--host", heads[0].address, "--port", "1999")
    assert argv[argv.index("--worker-startup-timeout-secs") + 1] == "3600"
    assert argv[argv.index("--policy") + 1] == "round_robin"
    assert not {"--vllm-pd-disaggregation", "--prefill", "--decode"} & set(argv)
    assert plan.url == plan.router.url == f"http://{heads[0].address}:1999"
    assert all(client.argv for client in plan.clients)
    assert any(f"{heads[0].address}:1999" in " ".join(one.argv) for one in plan.clients)
    assert not any("without a router" in note for note in plan.notes)
    assert [worker[0] for worker in plan.router.workers] == ["mixed", "mixed"]
    assert judge.plan(plan).errors == ()


def test_replicas_alone_are_told_the_way_out(nodes_file):
    (note,) = [note for note in made(nodes_file, pairs=["groups=2"]).notes if "groups" in note]
    assert "reach the first only" in note and "--set router=vllm-router" in note


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["router=vllm-router"], ["one group", "groups=2"]),
        (["groups=1", "router=vllm-router"], ["one group"]),
        (["groups=2", "router=upstream"], ["only layout pd has", "router=vllm-router"]),
        (["groups=2", "router.port=1998"], ["router=vllm-router puts one"]),
        ([*ROUTED, "router.port=8000"], ["port 8000 is wanted twice", "the router"]),
        ([*ROUTED, "port=1999"], ["port 1999 is wanted twice"]),
    ],
)
def test_a_router_that_has_nothing_to_do_is_refused(nodes_file, pairs, words):
    with pytest.raises(KimiError) as caught:
        made(nodes_file, pairs=pairs)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_port_of_the_router_is_set(nodes_file):
    plan = made(nodes_file, pairs=[*ROUTED, "router.port=1998"])
    assert plan.router.port == 1998 and plan.url.endswith(":1998")


def test_a_keyed_service_has_the_door_in_front(nodes_file, tmp_path):
    site = tmp_path / "keyed.yaml"
    with open(nodes_file("h200", 2)) as file:
        site.write_text(file.read() + "api_key_env: KIMI_KEY\n")
    plan = build.plan("k2.5", "h200", "single", variant="pip", site=str(site), pairs=ROUTED)
    assert plan.router.argv[:2] == ("python", "keyed_door.py")
    files = scripts.files(plan)
    assert "node-0/keyed_door.py" in files
    assert 'export OPENAI_API_KEY="${KIMI_KEY:?' in files["node-0/proxy.sh"]
    assert judge.plan(plan).errors == ()


# The bundle ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hardware", "layout", "variant", "nodes"), SHAPES)
def test_the_bundle_installs_starts_and_names_the_router(
    nodes_file, hardware, layout, variant, nodes
):
    """By the way that the recipe is installed in: pip beside the engine, with an image beside it."""
    plan = made(nodes_file, hardware, layout, variant, nodes)
    files = scripts.files(plan)
    method = plan.install
    install = files[f"install/{method}.sh"]
    assert "vllm-router==0.1.17" in install
    place = "router" if method == "docker" else "engine"
    folder = f"{plan.request.site.paths.work}/{place}"
    assert folder in install
    proxy = files["node-0/proxy.sh"]
    assert f"export PATH={folder}/bin" in proxy and "--worker-urls" in proxy
    assert not any(name.endswith("proxy.sh") for name in files if not name.startswith("node-0/"))
    node_env = files["node-0/node.env"]
    assert "ROUTER=vllm-router\n" in node_env and f"ROUTER_PATH={folder}/bin\n" in node_env
    assert "\n1999 the front door" in node_env
    assert "ROUTER=''\n" in files["node-1/node.env"]
    assert "`proxy.sh`" in files["node-0/README.md"]
    assert (
        "node-0/proxy.sh" in files["README.md"] and f"Front door: {plan.url}" in files["README.md"]
    )
    assert plan.url in files["client/chat.sh"]


def test_without_a_router_none_is_installed(nodes_file):
    for variant in ("pip", "docker"):
        plan = made(nodes_file, variant=variant, pairs=["groups=2"])
        assert "router" not in scripts.files(plan)[f"install/{variant}.sh"]
