"""Groups over several nodes, and groups of one rank: what every engine is told, in every shape."""

from __future__ import annotations

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.core.errors import PlanError
from kimi_nb.params import load
from kimi_nb.plan import build

SINGLE = [
    (model, recipe.hardware, recipe.variant)
    for model in ("k2.5", "k2.6", "k2-thinking", "tiny-k2.5")
    for recipe in load.model(model).recipes
    if recipe.layout == "single" and not recipe.jobs and not recipe.source.deployment
]


def said(engine) -> dict[str, str]:
    """The flags of an engine, with their values; a switch has the next flag as its value."""
    return dict(zip(engine.argv, engine.argv[1:], strict=False))


def over_two(nodes_file, model, hardware, variant, *pairs):
    return build.plan(
        model,
        hardware,
        "single",
        variant=variant,
        site=nodes_file(hardware, 2),
        pairs=["nodes=2", *pairs],
    )


@pytest.mark.parametrize(("model", "hardware", "variant"), SINGLE)
def test_a_single_recipe_over_nodes_is_one_data_parallel_group(
    nodes_file, model, hardware, variant
):
    count = load.hardware(hardware).devices.count
    plan = over_two(nodes_file, model, hardware, variant, f"dp={count}", "tp=2")
    head, follower = plan.engines
    for engine in plan.engines:
        words = said(engine)
        assert words["--data-parallel-address"] == head.address
        assert words["--data-parallel-rpc-port"] == str(engine.rpc_port) == "29550"
        assert words["--data-parallel-size"] == str(count)
        assert words["--data-parallel-size-local"] == str(count // 2)
    assert said(follower)["--data-parallel-start-rank"] == str(count // 2)
    assert "--headless" in follower.argv and "--headless" not in head.argv
    assert plan.url == head.url and follower.url is None


def test_the_rendezvous_port_of_a_single_recipe_can_be_chosen(nodes_file):
    plan = over_two(nodes_file, "k2.5", "h200", "pip", "dp=2", "rpc-port=13389")
    assert {said(engine)["--data-parallel-rpc-port"] for engine in plan.engines} == {"13389"}
    with pytest.raises(PlanError, match="port 29550 is wanted twice"):
        over_two(nodes_file, "k2.5", "h200", "pip", "dp=2", "port=29550")


@pytest.mark.parametrize("shape", [("dp=2", "tp=4"), ("dp=1", "tp=8")])
@pytest.mark.parametrize("variant", ["docker", "nvfp4-docker"])
def test_containers_of_a_group_over_nodes_use_the_network_of_the_host(nodes_file, variant, shape):
    plan = over_two(nodes_file, "k2.5", "gb200", variant, *shape, "port=8100")
    for container, engine in zip(plan.containers, plan.engines, strict=True):
        assert "--net=host" in container.argv and "-p" not in container.argv
        # Nothing is published, so the engine itself listens where the site says, at its port.
        inside = container.argv[container.argv.index(container.image) + 1 :]
        assert inside == engine.argv[2:]
        assert said(engine)["--host"] == engine.address
    assert said(plan.engines[0])["--port"] == "8100"
    node_env = scripts.files(plan)["node-0/node.env"]
    assert "8100 HTTP of mixed0-" in node_env


def test_a_container_of_one_node_keeps_a_network_of_its_own():
    container = build.plan("k2.5", "h200", "single", variant="docker").containers[0]
    assert "--net=host" not in container.argv and "198.51.100.11:8000:8000" in container.argv


# Groups of one rank -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hardware", "pairs"),
    [
        ("a3", ["prefill.dp=1"]),
        ("a3", ["decode.dp=1", "decode.nodes=1"]),
        ("gb200", ["prefill.dp=1"]),
        ("gb200", ["prefill.dp=1", "decode.dp=1", "decode.nodes=1"]),
    ],
)
def test_a_group_of_one_rank_is_told_nothing_of_data_parallelism(hardware, pairs):
    plan = build.plan("k2.5", hardware, "pd", pairs=pairs)
    single = [engine for engine in plan.engines if engine.dp_size == 1]
    assert single
    files, launches = scripts.files(plan), {one.node: one for one in plan.launches}
    for engine in single:
        assert not [word for word in engine.argv if word.startswith("--data-parallel")]
        assert engine.rpc_port is None and engine.http_port and engine.url
        assert "data-parallel" not in files[f"{engine.node}/run_dp_template.sh"]
        assert "None" not in launches[engine.node].argv
        assert "--dp-rpc-port" not in launches[engine.node].argv
        assert "rpc port" not in files[f"{engine.node}/node.env"]
        assert f"{engine.http_port} HTTP of {engine.name}" in files[f"{engine.node}/node.env"]
    for engine in plan.engines:
        if engine.dp_size > 1:  # the other role is as it was
            assert said(engine)["--data-parallel-rank"] == str(engine.rank)
            assert f"--dp-rpc-port {engine.rpc_port}" in files[f"{engine.node}/launch.sh"]


# A rank over several nodes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hardware", "role", "pairs", "words"),
    [
        (
            "a3",
            "prefill",
            ["groups=1", "nodes=2", "dp=1", "tp=32"],
            ["prefill: tp 32", "16 devices", "launch_online_dp.py", "prefill.tp"],
        ),
        (
            "gb200",
            "prefill",
            ["nodes=2", "dp=1", "tp=8"],
            ["prefill: tp 8", "4 devices", "launch_online_dp.py", "1, 2, 4"],
        ),
        ("a3", "prefill", ["tp=32"], ["prefill: tp 32", "launch_online_dp.py", "prefill.dp"]),
    ],
)
def test_a_rank_over_nodes_is_refused_where_a_rank_is_a_process(hardware, role, pairs, words):
    with pytest.raises(PlanError) as caught:
        build.plan("k2.5", hardware, "pd", pairs=[f"{role}.{pair}" for pair in pairs])
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_front_door_lists_no_follower(nodes_file):
    plan = build.plan(
        "tiny-k2.5",
        "cpu",
        "pd",
        site=nodes_file("cpu", 3),
        pairs=["prefill.nodes=2", "prefill.dp=1", "prefill.tp=4"],
    )
    assert [engine.headless for engine in plan.engines] == [False, True, False]
    assert [url for _, url, _ in plan.router.workers] == [
        engine.url for engine in plan.engines if not engine.headless
    ]
    assert "None" not in plan.router.argv and "" not in plan.router.argv
