"""Random shapes: the planner, and the scripts that it writes, against arithmetic of its own.

`shapes_apart` says what each engine must be told or why nothing can serve a shape, `script_words`
what the scripts tell it. Neither knows the planner.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from plan import random_shapes, script_words, shapes_apart
from plan.random_shapes import planned
from plan.shapes_apart import Asked, Engine, Shape

from kimi_nb.bundle import scripts

PART = 30
SHORT, ALL = 4, 16  # parts of make test, and of make test-long
SHAPES = random_shapes.shapes(PART * ALL)
PARTS = [
    pytest.param(SHAPES[at * PART : (at + 1) * PART], marks=[pytest.mark.long] * (at >= SHORT))
    for at in range(ALL)
]
# Everything that tells an engine its place; whatever else it is told does not depend on the shape.
PLACE = {
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--host", "--port", "--headless"),
    "--data-parallel-hybrid-lb",
    *("--nnodes", "--node-rank", "--master-addr", "--master-port"),
    *("--data-parallel-size", "--data-parallel-size-local", "--data-parallel-rank"),
    *("--data-parallel-start-rank", "--data-parallel-address", "--data-parallel-rpc-port"),
}
# Variables whose value is the node's own address, where they are set.
OWN_ADDRESS = ("HCCL_IF_IP", "VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def places(argv) -> dict[str, str]:
    """The flags of an engine that tell it its place; a switch has the value ""."""
    words = [*argv, "--"]
    return {
        word: "" if words[at + 1].startswith("--") else words[at + 1]
        for at, word in enumerate(words)
        if word in PLACE
    }


def said_of(engine: Engine, ask: Asked, argv, env) -> list[str]:
    """What an engine is told and should not be, or is not told and should be."""
    wrong = []
    if places(argv) != engine.flags:
        wrong.append(f"flags {places(argv)}, not {engine.flags}")
    if len([word for word in argv if word in PLACE]) != len(engine.flags):
        wrong.append("a flag twice")
    told = json.loads(argv[argv.index("--kv-transfer-config") + 1]) if engine.transfer else {}
    for key, value in (engine.transfer or {}).items():
        if told.get(key) != value:
            wrong.append(f"{key} {told.get(key)!r}, not {value!r}")
    if not engine.transfer and "--kv-transfer-config" in argv:
        wrong.append("a connector for nobody")
    for name in VISIBLE:
        if env.get(name) != engine.env.get(name):
            wrong.append(f"{name} {env.get(name)}, not {engine.env.get(name)}")
    for name, value in engine.env.items():
        if env.get(name) != value:
            wrong.append(f"{name} {env.get(name)}, not {value}")
    address = ask.address[engine.node]
    wrong += [
        f"{name} {env[name]} is another node's, not {address}"
        for name in OWN_ADDRESS
        if env.get(name, address) != address
    ]
    return wrong


def in_the_plan(ask: Asked, plan) -> list[str]:
    """Where the engines of the plan differ from the arithmetic."""
    wanted = shapes_apart.engines(ask)
    if len(wanted) != len(plan.engines):
        return [f"{len(plan.engines)} engines, not {len(wanted)}"]
    wrong = []
    for engine, found in zip(wanted, plan.engines, strict=True):
        if shapes_apart.published(ask) and "http" in ask.roles[0].ports:
            # A plan knows it by its port on the node, which its container publishes.
            engine = replace(engine, flags=engine.flags | {"--port": str(engine.http)})
        here = said_of(engine, ask, found.argv, found.env)
        for name, value, other in (
            ("node", found.node, ask.name[engine.node]),
            ("address", found.address, ask.address[engine.node]),
            ("role", found.role, engine.role),
            ("group", found.group, engine.group),
            ("rank", found.rank, engine.rank),
            ("ranks", found.ranks, engine.ranks),
            ("devices", found.devices, engine.devices),
            ("HTTP port", found.http_port, engine.http),
            ("headless", found.headless, engine.http is None),
        ):
            if value != other:
                here.append(f"{name} {value}, not {other}")
        wrong += [f"plan, {found.name}: {one}" for one in here]
    return wrong + _shared(plan)


def _shared(plan) -> list[str]:
    """Devices of a node that two engines have, or that it does not have."""
    wrong = []
    for node in plan.nodes:
        used = [device for engine in plan.of(node) for device in engine.devices]
        if sorted(used) != list(range(len(used))) or len(used) > plan.devices_per_node:
            wrong.append(f"plan, {node}: devices {used} of {plan.devices_per_node}")
    return wrong


def in_the_router(ask: Asked, argv: list[str] | None) -> list[str]:
    """Where a router's words differ from the engines that have an API."""
    if ask.router is None or argv is None:
        return [] if (ask.router is None) == (argv is None) else [f"router {argv}"]
    first = ask.address[0]
    wrong = []
    for flag, value in (("--host", first), ("--port", str(ask.front))):
        if argv[argv.index(flag) + 1] != value:
            wrong.append(f"{flag} {argv[argv.index(flag) + 1]}, not {value}")
    named = _named(ask, argv)
    wanted = shapes_apart.workers(ask)
    if named != wanted:
        wrong.append(f"workers {named}, not {wanted}")
    return wrong


def _named(ask: Asked, argv: list[str]) -> list[tuple[str, str]]:
    """The (role, host:port) that a router's words name."""
    if ask.router == "upstream":
        return [
            (role, f"{host}:{port}")
            for role, name in (("prefill", "prefiller"), ("decode", "decoder"))
            for host, port in zip(
                _after(argv, f"--{name}-hosts"), _after(argv, f"--{name}-ports"), strict=True
            )
        ]
    if len(ask.roles) == 1:
        return [("mixed", url.removeprefix("http://")) for url in _after(argv, "--worker-urls")]
    return [
        (word.removeprefix("--"), argv[at + 1].removeprefix("http://"))
        for at, word in enumerate(argv)
        if word in ("--prefill", "--decode")
    ]


def _after(argv: list[str], flag: str) -> list[str]:
    rest = argv[argv.index(flag) + 1 :]
    end = next((at for at, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:end]


def in_the_scripts(ask: Asked, plan, files) -> list[str]:
    """Where the text of the bundle differs from the arithmetic, or from the plan."""
    if ask.recipe.jobs:
        return in_the_jobs(ask, plan, files)
    found = script_words.engines(files, ask.name)
    wanted = shapes_apart.engines(ask)
    if len(found) != len(wanted):
        return [f"scripts: {len(found)} engines, not {len(wanted)}"]
    wrong = []
    for engine, line, spec in zip(wanted, found, plan.engines, strict=True):
        here = said_of(engine, ask, line.argv, line.env)
        if line.node != ask.name[engine.node]:
            here.append(f"on {line.node}")
        if line.argv != executed(plan, spec):
            here.append(f"words {line.argv}, in the plan {executed(plan, spec)}")
        if shapes_apart.published(ask):
            door = f"{ask.address[engine.node]}:{engine.http}:8000"
            if _option(line.options, "-p") != [door]:
                here.append(f"publishes {_option(line.options, '-p')}, not {door}")
        elif line.options and ("--net=host" not in line.options or "-p" in line.options):
            here.append("the ports of its container are not the node's")
        wrong += [f"scripts, {spec.name}: {one}" for one in here]
    for node, name in enumerate(ask.name):
        wanted_here = {port for one in wanted if one.node == node for port in one.listens}
        wanted_here |= {ask.front} if ask.router and node == 0 else set()
        if wanted_here and script_words.ports(files[f"{name}/node.env"]) != sorted(wanted_here):
            said = script_words.ports(files[f"{name}/node.env"])
            wrong.append(f"{name}: PORTS {said}, not {sorted(wanted_here)}")
    doors = {
        name: script_words.router(text, ask.address)
        for name, text in files.items()
        if name.endswith("/proxy.sh")
    }
    if set(doors) != ({f"{ask.name[0]}/proxy.sh"} if ask.router else set()):
        return [*wrong, f"scripts: routers {sorted(doors)}"]
    return wrong + [
        f"scripts, router: {one}" for argv in doors.values() for one in in_the_router(ask, argv)
    ]


def executed(plan, engine) -> tuple[str, ...]:
    """The words that follow ``vllm serve`` when an engine of the plan starts, by the plan."""
    for container in plan.containers:
        if container.node == engine.node and container.runs_engine:
            return container.argv[container.argv.index(container.image) + 1 :]
    return engine.argv[2:]


def _option(options: tuple[str, ...], name: str) -> list[str]:
    return [options[at + 1] for at, word in enumerate(options) if word == name]


def in_the_jobs(ask: Asked, plan, files) -> list[str]:
    """The same for a SLURM plan: its two serving jobs, of which job 4 serves without a scenario."""
    wrong = []
    for number, name in script_words.JOBS.items():
        row = (*ask.shape.row[:4], "default") if number == "4" else ask.shape.row
        mine = shapes_apart.asked(replace(ask.shape, row=row))
        if mine.roles[0].doors == 1:
            mine = replace(mine, router=None)
        found = script_words.job_engines(files[name], mine.name, mine.address)
        wanted = shapes_apart.engines(mine)
        if len(found) != len(wanted):
            wrong.append(f"{name}: {len(found)} engines, not {len(wanted)}")
            continue
        for engine, line in zip(wanted, found, strict=True):
            here = said_of(engine, mine, line.argv, line.env)
            if line.node != mine.name[engine.node]:
                here.append(f"on {line.node}")
            wrong += [f"{name}, {line.node}: {one}" for one in here]
        argv = script_words.router(files[name], mine.address)
        wrong += [f"{name}, router: {one}" for one in in_the_router(mine, argv)]
        own = "4" if ask.shape.row[4] == "default" else "6"
        if number == own and [set(line.argv) for line in found] != [
            set(engine.argv[2:]) for engine in plan.engines
        ]:
            wrong.append(f"{name}: other words than the plan's")
    return wrong


def differences(shape: Shape, plan, files) -> list[str]:
    """Everything about a plan and its scripts that differs from the arithmetic."""
    ask = shapes_apart.asked(shape)
    router = list(plan.router.argv) if plan.router else None
    return [
        *in_the_plan(ask, plan),
        *(f"plan, router: {one}" for one in in_the_router(ask, router)),
        *in_the_scripts(ask, plan, files),
    ]


@pytest.mark.parametrize("shapes", PARTS)
def test_every_engine_is_told_its_place(nodes_file, shapes):
    """A shape is planned as the arithmetic says, or refused where the arithmetic finds a reason."""
    refused, wrong = 0, []
    for shape in shapes:
        made, reasons = planned(shape, nodes_file), shapes_apart.refusals(shapes_apart.asked(shape))
        if isinstance(made, str):
            refused += 1
            found = [] if reasons else [f"refused without a reason: {made}"]
        elif reasons:
            found = [f"planned, but {reasons}"]
        else:
            found = differences(shape, made, scripts.files(made))
        wrong += [f"{shape}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)
    assert refused < len(shapes) / 2


@pytest.mark.parametrize(
    ("row", "pairs"),
    [
        # The second rank of a process shakes hands for NIXL at the port after the first one's.
        (("tiny-k2.5", "cpu", "pd"), ("prefill.dp=2", "prefill.port=5601")),
        (("tiny-k2.5", "cpu", "pd"), ("decode.dp=2", "decode.port=5600")),
        (("k2.5", "gb200", "pd"), ("decode.port=5703",)),
        (("k2.5", "a3", "pd"), ("prefill.kv-port=7086",)),
        (("k2.5", "a3", "pd"), ("prefill.kv-port=7000", "router.port=7010")),
        (("k2.5", "gb200", "dp"), ("port=29501",)),
        (("k2.5", "gb200", "dp"), ("port=1024", "master-port=1024")),
        (("k2.5", "a2", "dp"), ("rpc-port=8088",)),
    ],
)
def test_ports_that_collide_on_one_node_are_refused(nodes_file, row, pairs):
    (row,) = [one for one in random_shapes.ROWS if one[:3] == row and one[4] == "default"]
    shape = Shape(row, "0.22.1rc1" if row[1] in ("a2", "a3") else "0.32.0", 5, pairs)
    reasons = [one.split() for one in shapes_apart.refusals(shapes_apart.asked(shape))]
    refusal = planned(shape, nodes_file)
    assert isinstance(refusal, str)
    assert any(f"{node}: port {port} is wanted twice" in refusal for _, port, _, node in reasons)


SPOILED = [
    # hardware, layout, and what is put in place of what in a script
    ("a3", "pd", "node-0/launch.sh", "--dp-rank-start 0", "--dp-rank-start 1"),
    ("a3", "pd", "node-1/launch.sh", "--vllm-start-port 7100", "--vllm-start-port 7101"),
    ("a3", "pd", "node-3/launch.sh", "--dp-address 192.0.2.13", "--dp-address 192.0.2.14"),
    ("a3", "pd", "node-1/launch.sh", "--tp-size 8", "--tp-size 4"),
    ("a3", "pd", "node-2/run_dp_template.sh", '"engine_id":"2"', '"engine_id":"1"'),
    ("a3", "pd", "node-2/run_dp_template.sh", '"kv_port":36200', '"kv_port":36100'),
    ("a3", "pd", "node-2/run_dp_template.sh", '"dp_size":32', '"dp_size":16'),
    ("a3", "pd", "node-2/run_dp_template.sh", "kv_consumer", "kv_producer"),
    ("a3", "pd", "node-0/run_dp_template.sh", 'DEVICES="$1"', 'DEVICES="$4"'),
    ("a3", "pd", "node-0/run_dp_template.sh", "HCCL_IF_IP=192.0.2.11", "HCCL_IF_IP=192.0.2.12"),
    ("a3", "pd", "node-0/proxy.sh", "192.0.2.13 192.0.2.13", "192.0.2.13 192.0.2.14"),
    ("gb200", "pd", "node-0/proxy.sh", "--decode http://192.0.2.12:7203", ""),
    ("gb200", "pd", "node-1/run_dp_template.sh", "PORT=5700", "PORT=5600"),
    ("gb200", "dp", "node-1/serve.sh", " --headless", ""),
    ("gb200", "dp", "node-1/serve.sh", "--node-rank 1", "--node-rank 0"),
    ("a2", "dp", "node-1/serve.sh", "--data-parallel-start-rank 2", "--data-parallel-start-rank 1"),
    ("h200", "single", "node-0/docker_run.sh", "8000:8000", "8001:8000"),
]


@pytest.mark.parametrize(("hardware", "layout", "name", "old", "new"), SPOILED)
def test_a_script_that_says_something_else_is_found(nodes_file, hardware, layout, name, old, new):
    row = next(one for one in random_shapes.ROWS if one[:3] == ("k2.5", hardware, layout))
    version = "0.22.1rc1" if hardware in ("a2", "a3") else "0.19.1"
    nodes = 5 if (hardware, layout) == ("gb200", "pd") else 4
    shape = Shape(row, version, nodes, ())
    plan = planned(shape, nodes_file)
    files = dict(scripts.files(plan))
    assert differences(shape, plan, files) == []
    text = files[name].replace("\\\n   ", "")  # one line for one command
    assert old in text
    assert differences(shape, plan, files | {name: text.replace(old, new)})


@pytest.mark.parametrize(
    "change",
    [
        {"devices": (0, 1, 2, 3, 4, 5, 6, 8)},
        {"http_port": 7101},
        {"node": "node-1"},
        {"address": "192.0.2.12"},
        {"rank": 1},
        {"group": 1},
    ],
)
def test_a_plan_that_says_something_else_is_found(nodes_file, change):
    row = ("k2.5", "a3", "pd", "docker", "default")
    shape = Shape(row, "0.22.1rc1", 4, ())
    plan = planned(shape, nodes_file)
    spoiled = replace(plan, engines=(replace(plan.engines[0], **change), *plan.engines[1:]))
    assert differences(shape, spoiled, scripts.files(plan))


def test_the_shapes_have_every_recipe_and_several_versions():
    assert {shape.row for shape in SHAPES} == set(random_shapes.ROWS)
    assert {shape.nodes for shape in SHAPES} == set(range(1, random_shapes.MOST_NODES + 1))
    assert len({shape.version for shape in SHAPES}) > 20
