"""The documents' `docker run` lines and the bundle's scripts in real containers: only the engine
and the accelerators are stand-ins.

The containers are podman's and runc's, made by `testbed/docker` on machines that are namespaces of
this one (`testbed/machines.py`); the stand-in engine runs inside them.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from testbed import images
from testbed.machines import Machine, lacks

from kimi_nb import build, bundle, documents, scripts, service
from kimi_nb.plan import Plan
from kimi_nb.rehearsal.world import MARK, World

PLANS = {"a3": ("k2.5", "a3", "single", "docker"), "a2": ("k2.5", "a2", "dp", "docker"),
         "k2.6": ("k2.6", "a3", "single", "docker"),
         "k2-thinking": ("k2-thinking", "a3", "single", "docker"),
         "h200": ("k2.5", "h200", "single", "docker"),
         "gb200": ("k2.5", "gb200", "single", "docker"),
         "mi300x": ("k2.5", "mi300x", "single", "docker")}
ENTRY = '["vllm", "serve"]'
LINES = {name: entry for name, entry in documents.published().items()
         if entry["argv"][:2] == ["docker", "run"]}
ASCEND = [name for name, entry in LINES.items() if entry["argv"][-1] == "bash"]
# Options of `docker run` that take no value.
SWITCHES = ("--rm", "-it")
# What a container sees, from inside: argv are paths to look at.
LOOK = """
import json, os, sys
def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.strerror
    return True
def place(path):
    found = os.stat(path)
    return [found.st_dev, found.st_ino]
dri = ["dri/" + name for name in (os.listdir("/dev/dri") if os.path.isdir("/dev/dri") else [])]
shm = os.statvfs("/dev/shm")
print(json.dumps({
    "devices": {name: opens("/dev/" + name) for name in [*os.listdir("/dev"), *dri]
                if name.startswith(("davinci", "devmm", "hisi", "nvidia", "kfd", "dri/"))},
    "places": {path: place(path) for path in sys.argv[1:]},
    "shm": shm.f_blocks * shm.f_frsize,
    "namespaces": {kind: os.readlink("/proc/1/ns/" + kind) for kind in ("net", "ipc", "pid")},
    "env": dict(os.environ), "groups": os.getgroups(),
    "seccomp": open("/proc/1/status").read().split("Seccomp:")[1].split()[0]}))
"""
# A command that waits, and ends when it is told to.
WAIT = ("bash", "-c", 'trap "exit 0" TERM; sleep 1000 & wait')


def plan_of(name: str) -> Plan:
    model, hardware, layout, variant = PLANS[name]
    return build.plan(model, hardware, layout, variant=variant)


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Iterator[Callable[..., Machine]]:
    """Make machines; they end with the module."""
    why = lacks()
    if why:
        pytest.skip(why)
    image = tmp_path_factory.mktemp("image") / "image.tar"
    images.write(image, {name: World.of(plan_of(name)) for name in PLANS})
    with contextlib.ExitStack() as stack:
        def machine(name: str, kind: str, devices: int, *loaded: tuple[str, str, str]) -> Machine:
            made = stack.enter_context(Machine(name, kind, devices))
            for tag, world, entry in loaded:
                made.load(image, tag, world, entry)
            return made

        yield machine


def addressed(machine: Machine, plan: Plan) -> Machine:
    site = plan.request.site
    machine.address(site.nodes[0].address, site.nic)
    return machine


@pytest.fixture(scope="module")
def a3_machine(make):
    plan = plan_of("a3")
    machine = make(plan.nodes[0], "ascend", 16, (plan.image, "a3", ""))
    for tag in {image_of(name) for name in ASCEND} - {plan.image}:
        machine.done("docker", "tag", plan.image, tag)
    return addressed(machine, plan)


@pytest.fixture(scope="module")
def cuda_machine(make):
    plan = plan_of("h200")
    return addressed(make(plan.nodes[0], "cuda", 8, (plan.image, "h200", ENTRY),
                          (plan_of("gb200").image, "gb200", ENTRY)), plan)


@pytest.fixture(scope="module")
def rocm_machine(make):
    plan = plan_of("mi300x")
    machine = make(plan.nodes[0], "rocm", 8, (plan.image, "mi300x", ENTRY))
    machine.done("docker", "tag", plan.image, image_of("k2.5/mi300x/docker"))
    return addressed(machine, plan)


@pytest.fixture(scope="module")
def a2_machines(make):
    plan = plan_of("a2")
    first, second = (make(name, "ascend", 8, (plan.image, "a2", "")) for name in plan.nodes)
    one, two = (node.address for node in plan.request.site.nodes)
    first.connect(one, second, two, plan.request.site.nic)
    return first, second


def cleared(*machines: Machine) -> None:
    """Remove what a test that failed left, and see that nothing is left."""
    for machine in machines:
        machine.clear()
        assert_gone(machine)


def assert_gone(machine: Machine) -> None:
    end = time.monotonic() + 5
    while machine.processes() and time.monotonic() < end:
        time.sleep(0.05)
    assert machine.processes() == {}
    assert machine.docker("ps", "-aq").stdout == ""


@pytest.fixture
def a3(a3_machine):
    yield a3_machine
    cleared(a3_machine)


@pytest.fixture
def cuda(cuda_machine):
    yield cuda_machine
    cleared(cuda_machine)


@pytest.fixture
def rocm(rocm_machine):
    yield rocm_machine
    cleared(rocm_machine)


@pytest.fixture
def a2(a2_machines):
    yield a2_machines
    cleared(*a2_machines)


# The documents' lines --------------------------------------------------------------------------


def variables(name: str) -> dict[str, str]:
    """What a reader of the line has set, with what the document leaves open filled in."""
    env = dict(LINES[name]["env"])
    model = name.partition("/")[0]
    version = plan_of(model).image if model in PLANS else ""
    if "|" in env.get("IMAGE", ""):
        tag = version.rpartition(":")[2].removesuffix("-a3")
        env["IMAGE"] = re.sub(r"\|\w+\|", tag, env["IMAGE"])
    return {"IMAGE": version, "NAME": "vllm-ascend", **env}


def options(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and the words from the image on."""
    out, words = [], list(argv[2:])
    while words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        out.append((name, "" if name in SWITCHES else value if equals else words.pop(0)))
    return out, words


def image_of(name: str) -> str:
    _, words = options(LINES[name]["argv"])
    return words[0].replace("$IMAGE", variables(name)["IMAGE"])


def line(name: str) -> str:
    """The line as a script, with a command that waits instead of a shell on a terminal."""
    argv = list(LINES[name]["argv"])
    if name in ASCEND:
        argv = [*(word for word in argv[:-1] if word != "-it"), *WAIT]
    # The shell fills in variables and the home folder, as it did for the reader.
    words = [word if word.startswith(("$", "~")) else shlex.quote(word) for word in argv]
    sets = [f"export {key}={shlex.quote(value)}" for key, value in variables(name).items()]
    return "\n".join([*sets, f"exec {' '.join(words)}"])


def container(machine: Machine, process: subprocess.Popen[bytes], log: Path) -> str:
    """The container that a program has started."""
    end = time.monotonic() + 20
    while time.monotonic() < end and process.poll() is None:
        found = machine.docker("ps", "-q").stdout.split()
        if found:
            return found[0]
    raise AssertionError(log.read_text())


def look(machine: Machine, name: str, *paths: str) -> dict[str, Any]:
    done = machine.docker("exec", name, "/usr/local/bin/python3", "-IS", "-c", LOOK, *paths)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def mounts(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Target to source of each -v, the home folder filled in."""
    pairs = (value.replace("~", "/root").split(":") for name, value in given if name == "-v")
    return {target: source for source, target in pairs}


def check(machine: Machine, name: str, given: Sequence[tuple[str, str]], key: str) -> None:
    """Each option has had its effect; one that is not known here is a fault."""
    inside = mounts(given)
    seen = look(machine, key, *inside)
    own = {kind: machine.namespace(kind) for kind in ("net", "ipc", "pid")}
    asked = {value.removeprefix("/dev/") for option, value in given if option == "--device"}
    if ("--gpus", "all") in given:
        asked |= {*(f"nvidia{number}" for number in range(8)), "nvidiactl", "nvidia-uvm"}
    if "dri" in asked:
        asked = asked - {"dri"} | {f"dri/renderD{128 + number}" for number in range(8)}
    # Those, and no others that the machine has.
    assert seen["devices"] == dict.fromkeys(asked, True), name
    checks: dict[str, Callable[[str], bool]] = {
        "--device": lambda value: True,
        "--gpus": lambda value: value == "all",
        "-it": lambda value: True,
        "--rm": lambda value: machine.docker(
            "inspect", "-f", "{{.HostConfig.AutoRemove}}", key).stdout == "true\n",
        "--name": lambda value: machine.docker(
            "inspect", "-f", "{{.Name}}", key).stdout.strip().lstrip("/") == "vllm-ascend",
        "--shm-size": lambda value: (value, seen["shm"]) == ("1g", 1 << 30),
        "--net": lambda value: value == "host" and seen["namespaces"]["net"] == own["net"],
        "--ipc": lambda value: value == "host" and seen["namespaces"]["ipc"] == own["ipc"],
        "-p": lambda value: value == "8000:8000" and seen["namespaces"]["net"] != own["net"],
        "-v": lambda value: True,
        "-e": lambda value: seen["env"][value.partition("=")[0]] == value.partition("=")[2],
        "--security-opt": lambda value: seen["seccomp"] == "0",
        "--group-add": lambda value: (value, 44 in seen["groups"]) == ("video", True)}
    for option, value in given:
        assert checks[option](value), (name, option, value, seen)
    if "--security-opt" not in dict(given):
        assert seen["seccomp"] == "2"
    assert seen["namespaces"]["pid"] != own["pid"]
    for target, source in inside.items():
        place = machine.done("stat", "-c", "%d %i", source).split()
        assert seen["places"][target] == [int(number) for number in place], (name, target)


@pytest.mark.parametrize("name", ASCEND)
def test_ascend_lines_give_what_they_promise(name, a3, tmp_path):
    given, _ = options(LINES[name]["argv"])
    process = a3.start(tmp_path / "log", "bash", "-c", line(name))
    check(a3, name, given, container(a3, process, tmp_path / "log"))
    # What is written into the cache stays, and is the machine's.
    cache = next(target for target in mounts(given) if target.endswith("cache"))
    assert a3.docker("exec", "vllm-ascend", "bash", "-c", f"echo x > {cache}/kept").returncode == 0
    assert a3.done("cat", f"{mounts(given)[cache]}/kept") == "x\n"
    assert a3.docker("exec", "vllm-ascend", "cat", "/etc/ascend_install.info").stdout == \
        "of-the-host\n"
    a3.done("docker", "stop", "-t", "5", "vllm-ascend")
    assert process.wait(5) == 0, (tmp_path / "log").read_text()
    assert_gone(a3)


def served(name: str, machine: Machine, address: str, log: Path) -> None:
    """Run a line whose image is the engine: it answers, and has what the options promise."""
    given, words = options(LINES[name]["argv"])
    process = machine.start(log, "bash", "-c", line(name))
    key = container(machine, process, log)
    (status, text, error), = machine.ask([f"http://{address}:8000"], words[1])
    assert status == 200 and MARK in text, (error, log.read_text())
    check(machine, name, given, key)
    machine.done("docker", "stop", key)
    assert process.wait(5) == 0, log.read_text()
    # Without --rm it is still there.
    assert machine.docker("inspect", "-f", "{{.State.Running}}", key).stdout == "false\n"
    machine.done("docker", "rm", key)
    assert_gone(machine)


@pytest.mark.parametrize("name", [
    "k2.5/h200/docker", "k2.5/gb200/docker", "k2.5-nvfp4/gb200/docker"])
def test_nvidia_lines_serve(name, cuda, tmp_path):
    served(name, cuda, plan_of("h200").request.site.nodes[0].address, tmp_path / "log")


def test_the_rocm_line_serves(rocm, tmp_path):
    served("k2.5/mi300x/docker", rocm, plan_of("mi300x").request.site.nodes[0].address,
           tmp_path / "log")


def test_every_line_is_run():
    assert {*ASCEND, "k2.5/h200/docker", "k2.5/gb200/docker", "k2.5-nvfp4/gb200/docker",
            "k2.5/mi300x/docker"} == set(LINES)


# The bundle's scripts --------------------------------------------------------------------------


def put(machine: Machine, plan: Plan, folder: Path) -> str:
    """Copy a node's part of the bundle to it; the folder in which it is there."""
    bundle.write(scripts.files(plan), folder / "bundle")
    target = f"{plan.request.site.paths.work}/{machine.name}"
    machine.copy(folder / "bundle" / machine.name, target)
    return target


def engine_of(machine: Machine) -> int:
    """The engine's process: the only one in a process namespace of its own."""
    own = machine.namespace("pid")
    inside = {pid: words for pid, words in machine.processes().items()
              if machine.namespace("pid", pid) != own}
    assert len(inside) == 1 and "vllm serve" in str(inside), inside
    return next(iter(inside))


def answers(machine: Machine, plan: Plan, logs: Path) -> None:
    for status, text, error in machine.ask(service.endpoints(plan), plan.served_name):
        assert status == 200 and MARK in text, \
            (status, error, {one.name: one.read_text() for one in logs.glob("*.log")})


def test_the_scripts_of_one_node_serve(a3, tmp_path):
    plan = plan_of("a3")
    folder = put(a3, plan, tmp_path)
    process = a3.start(tmp_path / "a3.log", "bash", f"{folder}/docker_run.sh", "bash",
                       f"{folder}/serve.sh")
    answers(a3, plan, tmp_path)
    engine = engine_of(a3)
    assert a3.namespace("net", engine) == a3.namespace("net")
    assert a3.namespace("mnt", engine) != a3.namespace("mnt")
    assert a3.docker("inspect", "-f", "{{.State.Running}}", "vllm-ascend").stdout == "true\n"
    a3.done("docker", "stop", "-t", "10", "vllm-ascend")
    assert process.wait(5) == 0
    assert_gone(a3)


def test_the_scripts_of_two_nodes_serve_together(a2, tmp_path):
    plan = plan_of("a2")
    running = []
    for machine in a2:
        folder = put(machine, plan, tmp_path / machine.name)
        running.append(machine.start(tmp_path / f"{machine.name}.log", "bash",
                                     f"{folder}/docker_run.sh", "bash", f"{folder}/serve.sh"))
    answers(a2[0], plan, tmp_path)
    for machine in a2:
        engine_of(machine)
    # The follower is lost: the group cannot go on, and the other container ends too.
    a2[1].done("docker", "kill", "vllm-ascend")
    assert [process.wait(10) for process in running] == [1, 137]
    assert "EngineDeadError" in (tmp_path / f"{a2[0].name}.log").read_text()
    for machine in a2:
        assert_gone(machine)


@pytest.mark.parametrize("name", ["h200", "mi300x"])
def test_the_script_of_an_image_that_is_the_engine_serves(name, request, tmp_path):
    machine = request.getfixturevalue({"h200": "cuda", "mi300x": "rocm"}[name])
    plan = plan_of(name)
    folder = put(machine, plan, tmp_path)
    process = machine.start(tmp_path / "log", "bash", f"{folder}/docker_run.sh")
    answers(machine, plan, tmp_path)
    engine = engine_of(machine)
    assert machine.namespace("net", engine) != machine.namespace("net")
    key = machine.docker("ps", "-q").stdout.strip()
    machine.done("docker", "stop", key)
    assert process.wait(5) == 0
    machine.done("docker", "rm", "-f", key)
    assert_gone(machine)
