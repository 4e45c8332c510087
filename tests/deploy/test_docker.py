"""The documents' `docker run` lines and the bundle's scripts in real containers: only the engine
and the accelerators are stand-ins.

The containers are podman's and runc's, made by `testbed/docker` on machines that are namespaces of
this one (`testbed/machines.py`); the stand-in engine runs inside them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from testbed import images
from testbed.machines import Machine, lacks

from kimi_nb.bundle import scripts, writer
from kimi_nb.check import documents
from kimi_nb.core.marks import MARK
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse.simulated_site import SimulatedSite
from kimi_nb.service import probe

PLANS = {
    "a3": ("k2.5", "a3", "single", "docker"),
    "a2": ("k2.5", "a2", "dp", "docker"),
    "h200": ("k2.5", "h200", "single", "docker"),
    "gb200": ("k2.5", "gb200", "single", "docker"),
    "mi300x": ("k2.5", "mi300x", "single", "docker"),
}
ENTRY = '["vllm", "serve"]'
LINES = {
    name: entry
    for name, entry in documents.published().items()
    if entry["argv"][:2] == ["docker", "run"]
}
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


@functools.cache
def plan_of(name: str) -> Plan:
    model, hardware, layout, variant = PLANS[name]
    return build.plan(model, hardware, layout, variant=variant)


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """A folder with the images of all plans and lines."""
    why = lacks()
    if why:
        pytest.skip(why)
    # podman's folders may have paths of 50 characters: pytest's own are longer.
    folder = Path(tempfile.mkdtemp(prefix="kn-"))
    images.write(folder / "image.tar", {name: SimulatedSite.of(plan_of(name)) for name in PLANS})
    with Machine("images", "ascend", 0) as machine:
        for name in PLANS:
            plan = plan_of(name)
            entry = ENTRY if plan.containers[0].runs_engine else ""
            machine.load(folder, folder / "image.tar", plan.image, name, entry)
        for name in LINES:
            alias, like = image_of(name), plan_of("mi300x" if "rocm" in image_of(name) else "a3")
            if alias not in {plan_of(one).image for one in PLANS}:
                # Here and not where it is used: podman forgets tags of what it only reads.
                machine.done("env", f"POD={folder}", "docker", "tag", like.image, alias)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def make(store) -> Iterator[Callable[[str, str, int], Machine]]:
    """Make machines; they end with the module."""
    with contextlib.ExitStack() as stack:
        yield lambda name, kind, devices: stack.enter_context(Machine(name, kind, devices, store))


def addressed(machine: Machine, plan: Plan) -> Machine:
    site = plan.request.site
    machine.address(site.nodes[0].address, site.nic)
    return machine


@pytest.fixture(scope="module")
def a3_machine(make):
    plan = plan_of("a3")
    return addressed(make(plan.nodes[0], "ascend", 16), plan)


@pytest.fixture(scope="module")
def nvidia_machine(make):
    plan = plan_of("h200")
    return addressed(make(plan.nodes[0], "nvidia", 8), plan)


@pytest.fixture(scope="module")
def amd_machine(make):
    plan = plan_of("mi300x")
    return addressed(make(plan.nodes[0], "amd", 8), plan)


@pytest.fixture(scope="module")
def a2_machines(make):
    plan = plan_of("a2")
    first, second = (make(name, "ascend", 8) for name in plan.nodes)
    one, two = (node.address for node in plan.request.site.nodes)
    first.connect(one, second, two, plan.request.site.nic)
    return first, second


def cleared(*machines: Machine) -> None:
    """Remove what a test that failed left, and see that nothing is left."""
    for machine in machines:
        machine.clear()
        assert_gone(machine)


def assert_gone(machine: Machine) -> None:
    end = time.monotonic() + 60
    while machine.processes() and time.monotonic() < end:
        time.sleep(0.05)
    assert machine.processes() == {}
    assert machine.docker("ps", "-aq").stdout == ""


@pytest.fixture
def a3(a3_machine):
    yield a3_machine
    cleared(a3_machine)


@pytest.fixture
def nvidia(nvidia_machine):
    yield nvidia_machine
    cleared(nvidia_machine)


@pytest.fixture
def amd(amd_machine):
    yield amd_machine
    cleared(amd_machine)


@pytest.fixture
def a2(a2_machines):
    yield a2_machines
    cleared(*a2_machines)


# The documents' lines --------------------------------------------------------------------------


def variables(name: str) -> dict[str, str]:
    """What a reader of the line has set, with what the document leaves open filled in."""
    env = dict(LINES[name]["env"])
    image = build.plan(name.partition("/")[0], "a3", "single").image if name in ASCEND else ""
    if "|" in env.get("IMAGE", ""):
        tag = image.rpartition(":")[2].removesuffix("-a3")
        env["IMAGE"] = re.sub(r"\|\w+\|", tag, env["IMAGE"])
    return {"IMAGE": image, "NAME": "vllm-ascend", **env}


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
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        found = machine.docker("ps", "-q").stdout.split()
        if found:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"{log.read_text()}\n{machine.processes()}")


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
        "--rm": lambda value: (
            machine.docker("inspect", "-f", "{{.HostConfig.AutoRemove}}", key).stdout == "true\n"
        ),
        "--name": lambda value: (
            machine.docker("inspect", "-f", "{{.Name}}", key).stdout.strip().lstrip("/")
            == "vllm-ascend"
        ),
        "--shm-size": lambda value: (value, seen["shm"]) == ("1g", 1 << 30),
        "--net": lambda value: value == "host" and seen["namespaces"]["net"] == own["net"],
        "--ipc": lambda value: value == "host" and seen["namespaces"]["ipc"] == own["ipc"],
        "-p": lambda value: value == "8000:8000" and seen["namespaces"]["net"] != own["net"],
        "-v": lambda value: True,
        "-e": lambda value: seen["env"][value.partition("=")[0]] == value.partition("=")[2],
        "--security-opt": lambda value: seen["seccomp"] == "0",
        "--group-add": lambda value: (value, 44 in seen["groups"]) == ("video", True),
    }
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
    assert (
        a3.docker("exec", "vllm-ascend", "cat", "/etc/ascend_install.info").stdout
        == "of-the-host\n"
    )
    a3.done("docker", "stop", "-t", "5", "vllm-ascend")
    assert process.wait(30) == 0, (tmp_path / "log").read_text()
    assert_gone(a3)


def served(name: str, machine: Machine, address: str, log: Path) -> None:
    """Run a line whose image is the engine: it answers, and has what the options promise."""
    given, words = options(LINES[name]["argv"])
    process = machine.start(log, "bash", "-c", line(name))
    key = container(machine, process, log)
    ((status, text, error),) = machine.ask([f"http://{address}:8000"], words[1])
    assert status == 200 and MARK in text, (error, log.read_text())
    check(machine, name, given, key)
    machine.done("docker", "stop", key)
    assert process.wait(30) == 0, log.read_text()
    # Without --rm it is still there.
    assert machine.docker("inspect", "-f", "{{.State.Running}}", key).stdout == "false\n"
    machine.done("docker", "rm", key)
    assert_gone(machine)


@pytest.mark.parametrize(
    "name", ["k2.5/h200/docker", "k2.5/gb200/docker", "k2.5-nvfp4/gb200/docker"]
)
def test_nvidia_lines_serve(name, nvidia, tmp_path):
    served(name, nvidia, plan_of("h200").request.site.nodes[0].address, tmp_path / "log")


def test_the_rocm_line_serves(amd, tmp_path):
    served(
        "k2.5/mi300x/docker",
        amd,
        plan_of("mi300x").request.site.nodes[0].address,
        tmp_path / "log",
    )


def test_every_line_is_run():
    assert {
        *ASCEND,
        "k2.5/h200/docker",
        "k2.5/gb200/docker",
        "k2.5-nvfp4/gb200/docker",
        "k2.5/mi300x/docker",
    } == set(LINES)


# The bundle's scripts --------------------------------------------------------------------------


def put(machine: Machine, plan: Plan, folder: Path) -> str:
    """Copy a node's part of the bundle to it; the folder in which it is there."""
    writer.write(scripts.files(plan), folder / "bundle")
    target = f"{plan.request.site.paths.work}/{machine.name}"
    machine.copy(folder / "bundle" / machine.name, target)
    return target


def engine_of(machine: Machine) -> int:
    """The engine's process: the only one in a process namespace of its own."""
    own = machine.namespace("pid")
    inside = {
        pid: words
        for pid, words in machine.processes().items()
        if machine.namespace("pid", pid) != own
    }
    assert len(inside) == 1 and "vllm serve" in str(inside), inside
    return next(iter(inside))


def answers(machine: Machine, plan: Plan, logs: Path) -> None:
    for status, text, error in machine.ask(probe.endpoints(plan), plan.served_name):
        assert status == 200 and MARK in text, (
            status,
            error,
            {one.name: one.read_text() for one in logs.glob("*.log")},
        )


def test_the_scripts_of_one_node_serve(a3, tmp_path):
    plan = plan_of("a3")
    folder = put(a3, plan, tmp_path)
    process = a3.start(
        tmp_path / "a3.log", "bash", f"{folder}/docker_run.sh", "bash", f"{folder}/serve.sh"
    )
    answers(a3, plan, tmp_path)
    engine = engine_of(a3)
    assert a3.namespace("net", engine) == a3.namespace("net")
    assert a3.namespace("mnt", engine) != a3.namespace("mnt")
    assert a3.docker("inspect", "-f", "{{.State.Running}}", "vllm-ascend").stdout == "true\n"
    a3.done("docker", "stop", "-t", "10", "vllm-ascend")
    assert process.wait(30) == 0
    assert_gone(a3)


def test_the_scripts_of_two_nodes_serve_together(a2, tmp_path):
    plan = plan_of("a2")
    running = []
    for machine in a2:
        folder = put(machine, plan, tmp_path / machine.name)
        running.append(
            machine.start(
                tmp_path / f"{machine.name}.log",
                "bash",
                f"{folder}/docker_run.sh",
                "bash",
                f"{folder}/serve.sh",
            )
        )
    answers(a2[0], plan, tmp_path)
    for machine in a2:
        engine_of(machine)
    # The follower is lost: the group cannot go on, and the other container ends too.
    a2[1].done("docker", "kill", "vllm-ascend")
    assert [process.wait(30) for process in running] == [1, 137]
    assert "EngineDeadError" in (tmp_path / f"{a2[0].name}.log").read_text()
    for machine in a2:
        assert_gone(machine)


@pytest.mark.parametrize("name", ["h200", "mi300x"])
def test_the_script_of_an_image_that_is_the_engine_serves(name, request, tmp_path):
    machine = request.getfixturevalue({"h200": "nvidia", "mi300x": "amd"}[name])
    plan = plan_of(name)
    folder = put(machine, plan, tmp_path)
    process = machine.start(tmp_path / "log", "bash", f"{folder}/docker_run.sh")
    answers(machine, plan, tmp_path)
    engine = engine_of(machine)
    assert machine.namespace("net", engine) != machine.namespace("net")
    key = machine.docker("ps", "-q").stdout.strip()
    machine.done("docker", "stop", key)
    assert process.wait(30) == 0
    machine.done("docker", "rm", "-f", key)
    assert_gone(machine)


# What docker refuses ---------------------------------------------------------------------------


@pytest.fixture
def waits(a3):
    """A machine with a container of the name that every line has."""
    a3.done("docker", "run", "-d", "--name", "vllm-ascend", plan_of("a3").image, *WAIT)
    return a3


NO_REGISTRY = (
    r"Error: initializing source docker://quay\.io/ascend/vllm-ascend:none: pinging "
    r"container registry quay\.io: Get \"https://quay\.io/v2/\": dial tcp: lookup "
    r"quay\.io .*: connect: network is unreachable"
)
REFUSED = {
    "no-image": (["run", "--rm", "quay.io/ascend/vllm-ascend:none", "true"], 125, NO_REGISTRY),
    "no-registry": (["pull", "quay.io/ascend/vllm-ascend:none"], 125, NO_REGISTRY),
    "not-pulled": (
        ["image", "inspect", "quay.io/ascend/vllm-ascend:none"],
        125,
        r"Error: inspecting object: quay\.io/ascend/vllm-ascend:none: image not known",
    ),
    "name-in-use": (
        ["run", "--name", "vllm-ascend", "IMAGE", "true"],
        125,
        r'Error: creating container storage: the container name "vllm-ascend" is '
        r"already in use by [0-9a-f]{64}\. You have to remove that container to be "
        r"able to reuse that name: that name is already in use",
    ),
    "no-device": (
        ["run", "--rm", "--device", "/dev/davinci99", "IMAGE", "true"],
        125,
        r"Error: stat /dev/davinci99: no such file or directory",
    ),
    # Here docker makes a folder, of which the engine only learns when it reads from it.
    "no-mount": (
        ["run", "--rm", "-v", "/nowhere/x:/x", "IMAGE", "true"],
        125,
        r"Error: statfs /nowhere/x: no such file or directory",
    ),
    "no-program": (
        ["run", "--rm", "IMAGE", "nope"],
        127,
        r"Error: runc: runc create failed: unable to start container process: exec: "
        r'"nope": executable file not found in \$PATH: OCI runtime attempted to invoke '
        r"a command that was not found",
    ),
    "no-gpus": (
        ["run", "--rm", "--gpus", "1", "IMAGE", "true"],
        126,
        r"Error: setting up CDI devices: unresolvable CDI devices nvidia\.com/gpu=0",
    ),
    "no-container": (
        ["exec", "other", "true"],
        125,
        r'Error: no container with name or ID "other" found: no such container',
    ),
    "none-to-stop": (
        ["stop", "-t", "10", "other"],
        125,
        r'Error: no container with name or ID "other" found: no such container',
    ),
    "none-to-inspect": (
        ["inspect", "-f", "{{.State.Running}}", "other"],
        125,
        r'Error: inspecting object: no such object: "other"',
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_refused_is_said(fault, waits):
    words, code, text = REFUSED[fault]
    done = waits.docker(*(plan_of("a3").image if word == "IMAGE" else word for word in words))
    assert done.returncode == code
    assert re.fullmatch(text, done.stderr.splitlines()[-1]), done.stderr


def test_a_port_in_use_is_said(nvidia, tmp_path):
    address = plan_of("h200").request.site.nodes[0].address
    words = (
        "run",
        "-d",
        "-p",
        f"{address}:8000:8000",
        "--entrypoint",
        "sleep",
        plan_of("h200").image,
        "1000",
    )
    nvidia.done("docker", *words)
    done = nvidia.docker(*words)
    assert done.returncode == 126
    assert done.stderr.splitlines()[-1] == (
        "Error: cannot listen on the TCP port: listen tcp4 "
        f"{address}:8000: bind: address already in use"
    )


def test_what_a_deployment_asks_docker(waits):
    """The commands on which scripts rely, on a container that runs, has ended and is gone."""
    image, name = plan_of("a3").image, "vllm-ascend"

    def said(*words: str) -> tuple[int, str]:
        done = waits.docker(*words)
        return done.returncode, done.stdout.strip()

    running = ("inspect", "-f", "{{.State.Running}}", name)
    listed = ("ps", "-aq", "--filter", f"name=^/{name}$")
    assert said("image", "inspect", "-f", "{{.RepoTags}}", image)[0] == 0
    assert said(*running) == (0, "true") and re.fullmatch("[0-9a-f]{12}", said(*listed)[1])
    assert said("ps", "-aq", "--filter", "name=^/vllm-ascen$") == (0, "")
    assert said("exec", name, "cat", "/etc/passwd")[0] == 0
    assert said("exec", name, "bash", "-c", "exit 7")[0] == 7
    assert said("stop", "-t", "10", name) == (0, name)
    assert said(*running) == (0, "false") and said(*listed)[1] != ""
    assert said("rm", "-f", name) == (0, name) and said(*listed) == (0, "")
    # One that does not end when it is asked to is killed at once.
    waits.done("docker", "run", "-d", "--name", name, image, "sleep", "1000")
    done = waits.docker("rm", "-f", name)
    assert (done.stdout, done.stderr) == (f"{name}\n", "")  # not a word of having waited
    assert_gone(waits)
