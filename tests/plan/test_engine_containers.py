"""The docker run command of a node, word by word."""

from __future__ import annotations

import dataclasses

import pytest
from plan import made_values

from kimi_nb import catalog
from kimi_nb.core.errors import PlanError
from kimi_nb.params import load, schema
from kimi_nb.params.schema import Network, Node, Paths
from kimi_nb.plan import containers
from kimi_nb.plan.spec import EngineSpec

NODE = Node(name="n0", address="192.0.2.1")
OLD, NEW = catalog.engine("vllm", "0.19.1"), catalog.engine("vllm", "0.32.0")
ASCEND = catalog.engine("vllm-ascend", "0.22.1rc1")
SITE = load.site("h200").model_copy(
    update={"container_name": "mine", "paths": Paths(cache="/cache", work="/wf")}
)


def chip(of="h200", **container) -> schema.Hardware:
    """A hardware with a container of few options, but for what is said."""
    given = {
        "image": "quay.io/engine:v{version}",
        "options": [["--rm"], ["--name", "{container_name}"], ["-p", "{publish}:8000"]],
        "mounts": [],
        "entrypoint": "vllm serve",
    }
    made = schema.Container(**given | container)
    return load.hardware(of).model_copy(update={"container": made})


def engine(port: int | None = 8010, env=None) -> EngineSpec:
    words = ("--host", "h", "--port", "8010", "--seed", "1")
    return made_values.engine(*words, http_port=port, headless=port is None, env=env or {})


def run(hardware: schema.Hardware, version=NEW, **more) -> list[str]:
    return list(containers.container(hardware, SITE, NODE, version, **more).argv)


# The image ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "registry", "image"),
    [
        ("quay.io/e/x:v{version}-a3", None, "quay.io/e/x:v0.22.1rc1-a3"),
        ("quay.io/e/x:v{version}-a3", "m.org/q", "m.org/q/e/x:v0.22.1rc1-a3"),
        ("localhost:5000/x:{vllm}", "m.org", "m.org/x:0.22.1"),
        ("vllm/x:{vllm}", "m.org", "m.org/vllm/x:0.22.1"),
        ("x", "m.org", "m.org/x"),
    ],
)
def test_the_name_of_the_image(name, registry, image):
    assert containers.image(chip("a3", image=name), ASCEND, registry) == image


def test_the_image_says_its_cuda():
    named = chip(image="vllm/vllm-openai:v{vllm}{cuda}")
    assert containers.image(named, OLD) == "vllm/vllm-openai:v0.19.1-cu130"
    assert containers.image(named, NEW) == "vllm/vllm-openai:v0.32.0"
    assert containers.image(load.hardware("cpu"), NEW) == ""


# The command --------------------------------------------------------------------------------------


def test_an_image_that_runs_the_engine():
    made = containers.container(chip(), SITE, NODE, NEW, engine(env={"A": "1", "B": "x y"}))
    assert (made.node, made.image, made.env, made.runs_engine) == (
        "n0",
        "quay.io/engine:v0.32.0",
        {},
        True,
    )
    assert " ".join(made.argv) == (
        "docker run --rm --name mine -p 192.0.2.1:8010:8000 -e A=1 -e B=x y "
        "quay.io/engine:v0.32.0 m --host h --seed 1"
    )


def test_an_image_that_runs_a_shell():
    made = containers.container(chip(entrypoint="bash"), SITE, NODE, NEW, engine(env={"A": "1"}))
    assert made.env == {"IMAGE": "quay.io/engine:v0.32.0"} and made.runs_engine is False
    assert (made.node, made.image) == ("n0", "quay.io/engine:v0.32.0")
    assert " ".join(made.argv) == (
        "docker run --rm --name mine -p 192.0.2.1:8010:8000 -it quay.io/engine:v0.32.0 bash"
    )


def test_without_an_engine_the_command_ends_with_the_image():
    assert run(chip())[-3:] == ["-p", "192.0.2.1:8000:8000", "quay.io/engine:v0.32.0"]
    follower = run(chip(), serves=engine(port=None))
    assert "192.0.2.1:8000:8000" in follower


def test_the_image_of_a_mirror():
    site = SITE.model_copy(update={"network": Network(registry="m.org")})
    made = containers.container(chip(), site, NODE, NEW)
    assert made.image == "m.org/engine:v0.32.0" == made.argv[-1]


def test_an_address_of_version_6_is_published_in_brackets():
    node = Node(name="n0", address="fd00::1")
    argv = containers.container(chip(), SITE, node, NEW).argv
    assert "[fd00::1]:8000:8000" in argv


def test_an_option_of_a_device_is_there_once_for_each():
    options = [["--device", "/dev/x{device}"], ["-v", "{cache}:{work}"]]
    assert run(chip(options=options))[2:-1] == [
        *(word for number in range(8) for word in ("--device", f"/dev/x{number}")),
        *("-v", "/cache:/wf"),
    ]


def test_the_shared_memory_is_that_of_the_layout():
    hardware = chip(options=[["--shm-size={shm_size}"]], shm_size={"single": "2g", "pd": "512g"})
    assert "--shm-size=2g" in run(hardware)
    assert "--shm-size=512g" in run(hardware, layout="pd")
    assert "--shm-size=1g" in run(hardware, layout="dp")


def test_lists_of_folders_are_those_of_the_image():
    env = {"LD_LIBRARY_PATH": "/x", "PATH": "/y", "A": "1"}
    argv = run(chip(), serves=engine(env=env))
    assert [word for word in argv if "=" in word] == [
        f"{name}={value}" for name, value in env.items() if name not in containers.LISTS
    ]
    assert "A=1" in argv and "LD_LIBRARY_PATH=/x" not in argv


# Engines of several nodes -------------------------------------------------------------------------


def test_an_engine_that_others_reach_uses_the_network_of_the_host():
    argv = run(chip(), serves=engine(), reached=True)
    assert argv[2:6] == ["--rm", "--name", "mine", "--net=host"]
    assert argv[6:] == [
        "quay.io/engine:v0.32.0",
        "m",
        "--host",
        "h",
        "--port",
        "8010",
        "--seed",
        "1",
    ]


def test_the_options_of_several_nodes_stand_for_the_published_port():
    several = [["--net=host"], ["--device", "/dev/infiniband"]]
    argv = run(chip(several_nodes=several), serves=engine(), reached=True)
    assert argv[5:8] == ["--net=host", "--device", "/dev/infiniband"] and "-p" not in argv
    assert "--net=host" not in run(chip(several_nodes=several), serves=engine())


def test_a_container_that_publishes_nothing_stays_as_it_is():
    options = [["--rm"], ["--net=host"]]
    argv = run(chip(options=options, several_nodes=[["--privileged"]]), reached=True)
    assert argv[2:4] == options[0] + options[1] and "--privileged" not in argv


# Mounts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mounts", "models", "there"),
    [
        ([], "", []),
        ([], "/models", ["/models:/models"]),
        (["{cache}:/root"], "/models", ["/cache:/root", "/models:/models"]),
        (["/models:/models"], "/models", ["/models:/models"]),
        (["{work}:{work}"], "/wf/models", ["/wf:/wf"]),
        (
            ["/wf/mod:/wf/mod"],
            "/wf/models",
            ["/wf/mod:/wf/mod", "/wf/models:/wf/models"],
        ),
        (["/models:/models:ro"], "/models", ["/models:/models:ro"]),
        (["/wf:/other"], "/wf/models", ["/wf:/other", "/wf/models:/wf/models"]),
        (["/a:/a", "/wf:/wf"], "/wf/models", ["/a:/a", "/wf:/wf"]),
    ],
)
def test_the_weights_are_shown_under_their_own_name(mounts, models, there):
    argv = run(chip(mounts=mounts, options=[["--rm"]]), models=models)
    assert argv[3:-1] == [word for mount in there for word in ("-v", mount)]


def test_a_hardware_without_a_container():
    bare = load.hardware("h200").model_copy(update={"container": None})
    with pytest.raises(PlanError) as caught:
        run(bare)
    assert str(caught.value) == (
        "h200 has no container: choose a recipe that is installed in another way (docker, pip)."
    )


def test_arguments_without_a_port_are_the_same_inside():
    other = dataclasses.replace(engine(), argv=("vllm", "serve", "m", "--seed", "1"))
    assert run(chip(), serves=other)[-3:] == ["m", "--seed", "1"]
