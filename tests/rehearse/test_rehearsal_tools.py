"""The stand-ins of a rehearsal: docker, the tools of a node, the programs of a job."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kimi_nb import catalog
from kimi_nb.bundle import scripts
from kimi_nb.check.view import container_start
from kimi_nb.core.marks import MARK
from kimi_nb.params import fields, load, recipes
from kimi_nb.plan import build
from kimi_nb.rehearse import fault_names
from kimi_nb.rehearse.host_programs import (
    docker,
    host_settings,
    installed_packages,
    job_programs,
    path_folder,
    slurm_programs,
)
from kimi_nb.rehearse.host_programs.docker_run import DEVICES, PUBLISHED
from kimi_nb.rehearse.loopback import Block
from kimi_nb.rehearse.simulated_site import NODE, Fault, SimulatedSite, rebound
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace
from kimi_nb.service import prerequisites

TOOLS = {
    "docker": docker.docker,
    **host_settings.TOOLS,
    **installed_packages.TOOLS,
    **job_programs.TOOLS,
    **slurm_programs.TOOLS,
}
# A CPU is looked at as it is (test_cpu): nothing stands in for this machine itself.
HARDWARE = [name for name in load.names("hardware") if name != "cpu"]
# Of each hardware with recipes the model and layout that need most of it.
_BACKWARDS = recipes.listing()[::-1]
LARGEST = {
    row["hardware"]: (row["model"], row["layout"])
    for row in sorted(_BACKWARDS, key=lambda row: fields.LAYOUTS.index(row["layout"]))
}


class Rehearsal:
    """A folder, a simulated site, and calls of stand-ins in them."""

    def __init__(self, root: Path, site: SimulatedSite) -> None:
        self.root, self.site = root, site
        self.node = next(iter(site.nodes))
        if not (root / "stubs").exists():
            path_folder.write(root)
        for name in ("vllm", "pip"):
            self.script(root / "stubs" / name, 'echo "$0" "$@"')

    @staticmethod
    def script(path: Path, body: str = "true") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may be a link to the stand-in
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
        return path

    def call(
        self, tool: str, *words: str, channel=None, node: str | None = None, **env: str
    ) -> Call:
        env = {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            NODE: self.node if node is None else node,
            **env,
        }
        return Call(tool, words, env, self.root, self.root, self.site, channel)

    def run(self, tool: str, *words: str, **how) -> int:
        return TOOLS[tool](self.call(tool, *words, **how))

    def refusal(self, tool: str, *words: str, **how) -> Refused:
        with pytest.raises(Refused) as caught:
            self.run(tool, *words, **how)
        return caught.value

    def becomes(self, tool: str, *words: str, **how) -> Replace:
        with pytest.raises(Replace) as caught:
            self.run(tool, *words, **how)
        return caught.value

    def with_fault(self, name: str) -> Rehearsal:
        return Rehearsal(self.root, replace(self.site, faults=(Fault(name, self.node),)))


def make(root: Path, plan) -> Rehearsal:
    return Rehearsal(root, SimulatedSite.of(plan))


@pytest.fixture
def a3(tmp_path):
    return make(tmp_path, build.plan("k2.5", "a3", "pd"))


@pytest.fixture
def h200(tmp_path):
    return make(tmp_path, build.plan("k2.5", "h200", "single"))


@pytest.fixture
def slurm(tmp_path):
    """A cluster whose models are in the rehearsal's folder."""
    made = make(tmp_path, build.plan("k2.5", "h200", "single", variant="slurm"))
    return Rehearsal(tmp_path, replace(made.site, weights=(f"{tmp_path}/models/kimi-k2.5",)))


# docker run ---------------------------------------------------------------------------------


def test_docker_becomes_what_every_container_runs(each_plan, tmp_path):
    here = make(tmp_path, each_plan)
    for container in each_plan.containers:
        words = [word for word in container.argv[1:] if word != "-it"]
        call = here.call("docker", *words, node=container.node)
        with pytest.raises(Replace) as caught:
            docker.docker(call)
        after = tuple(container.argv[container.argv.index(container.image) + 1 :])
        assert caught.value.argv == (("vllm", "serve", *after) if container.runs_engine else after)
        env = caught.value.env
        assert env["HOME"] == "/root" and env[NODE] == container.node
        assert env["PATH"].startswith(f"{here.root}/images/")
        assert len(env[DEVICES].split(",")) == here.site.devices
        box = container_start.box(container.argv, {}, None)
        assert box.env.items() <= env.items()
        assert ("HOSTNAME", container.node) in env.items() or not box.host_network


def test_the_script_of_a_node_runs_in_its_container(a3, capsys):
    """The generated docker_run.sh hands its words to the stand-in as docker gets them."""
    plan = build.plan("k2.5", "a3", "pd")
    script = a3.root / "docker_run.sh"
    script.write_text(scripts.files(plan)["a3-0/docker_run.sh"])
    a3.script(a3.root / "bin" / "docker", 'printf "%s\\0" "$@"')
    done = subprocess.run(
        ["bash", script, "bash", "-c", "echo a b"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
        env={"PATH": f"{a3.root / 'bin'}:{os.environ['PATH']}"},
    )
    assert a3.becomes("docker", *done.stdout.split("\0")[:-1]).argv == ("bash", "-c", "echo a b")
    assert MARK in capsys.readouterr().err


ASCEND = "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3"
CUDA = "vllm/vllm-openai:v0.17.0-cu130"


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (
            f"run --foo {ASCEND}",
            "unknown flag: --foo\n\nUsage:  docker run [OPTIONS] IMAGE "
            "[COMMAND] [ARG...]\n\nRun 'docker run --help' for more information",
            125,
        ),
        (f"run --replace {ASCEND}", "unknown flag: --replace", 125),
        (f"run -Z {ASCEND}", "unknown shorthand flag: 'Z' in -Z", 125),
        ("run --rm --name", "flag needs an argument: --name", 125),
        ("run --rm -e", "flag needs an argument: 'e' in -e", 125),
        (f"run --rm=maybe {ASCEND}", 'invalid argument "maybe" for "--rm" flag', 125),
        (f"run --shm-size=1x {ASCEND}", "invalid size: '1x'", 125),
        (f"run -v /a:b {ASCEND}", "mount path must be absolute", 125),
        (f"run --name ../x {ASCEND}", "Invalid container name (../x)", 125),
        ("run", "'docker run' requires at least 1 argument", 1),
        ("run --rm", "'docker run' requires at least 1 argument", 1),
        (f"run -it {ASCEND} bash", "the input device is not a TTY", 1),
        (
            "run nobody/nothing:v1",
            "Unable to find image 'nobody/nothing:v1' locally\ndocker: Error "
            "response from daemon: manifest for nobody/nothing:v1 not found: manifest unknown: manifest "
            "unknown",
            125,
        ),
        ("run nothing", "Unable to find image 'nothing:latest' locally", 125),
        (
            f"run --device /dev/davinci16 {ASCEND}",
            "error gathering device information while adding "
            'custom device "/dev/davinci16": no such file or directory',
            125,
        ),
        (f"run --device=/dev/kfd {ASCEND}", '"/dev/kfd": no such file or directory', 125),
        (
            f"run --gpus all {ASCEND}",
            'could not select device driver "" with capabilities: [[gpu]]',
            125,
        ),
        (
            f"run {ASCEND} no-such-program",
            'exec: "no-such-program": executable file not found in $PATH',
            127,
        ),
        (f"run --entrypoint no-such-program {ASCEND}", "executable file not found", 127),
        ("frobnicate", "docker: 'frobnicate' is not a docker command.", 1),
        ("container frobnicate", "not part of a rehearsal", 1),
        ("exec x bash", "No such container: x", 1),
        ("exec --privileged x bash", "docker exec --privileged is not part of a rehearsal", 1),
        ("pull nobody/nothing:v1", "manifest for nobody/nothing:v1 not found", 1),
        ("pull", "'docker pull' requires 1 argument", 1),
        ("rm nobody", "No such container: nobody", 1),
        ("stop", "'docker stop' requires at least 1 argument", 1),
        ("image inspect nobody", "No such image: nobody:latest", 1),
        ("ps --format x", "not part of a rehearsal", 1),
    ],
)
def test_docker_refuses(a3, words, text, code, capsys, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda handle: False)
    refusal = a3.refusal("docker", *words.split())
    assert text in str(refusal)
    assert refusal.code == code
    assert MARK in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (f"run --gpus device=8 {CUDA} m", "device error: 8: unknown device"),
        (f"run --gpus 9 {CUDA} m", "device error: 8: unknown device"),
        (f"run --device /dev/davinci0 {CUDA} m", '"/dev/davinci0": no such file'),
        (f"run --device /dev/nvidia8 {CUDA} m", '"/dev/nvidia8": no such file'),
    ],
)
def test_docker_refuses_gpus_that_are_not_there(h200, words, text):
    refusal = h200.refusal("docker", *words.split())
    assert text in str(refusal)
    assert refusal.code == 125


@pytest.mark.parametrize(
    "words",
    [
        f"run --gpus all {CUDA} m",
        f"container run --gpus=8 {CUDA} m",
        f"--debug run --runtime nvidia --ipc host {CUDA} m",
        f"-H tcp://x run {CUDA} m",
        f"run --device nvidia.com/gpu=all {CUDA} m",
        f"run --device /dev/infiniband {CUDA} m",
        f"run --memory 1.5g --shm-size=16G docker.io/{CUDA} m",
    ],
)
def test_docker_takes_what_docker_takes(h200, words):
    assert h200.becomes("docker", *words.split()).argv == ("vllm", "serve", "m")


def test_an_image_with_another_tag_is_not_there(a3):
    refusal = a3.with_fault("wrong-image-tag").refusal("docker", "run", ASCEND, "bash")
    assert f"Unable to find image '{ASCEND}' locally" in str(refusal)
    assert refusal.code == 125


@pytest.mark.parametrize(
    ("words", "inner"),
    [
        (f"--entrypoint bash {CUDA} -c x", ("bash", "-c", "x")),
        (f"--entrypoint= {CUDA} bash -c x", ("bash", "-c", "x")),
        (f"--entrypoint= {CUDA}", ("bash",)),
        (f"{CUDA} --help", ("vllm", "serve", "--help")),
    ],
)
def test_entry_points(h200, words, inner):
    assert h200.becomes("docker", "run", *words.split()).argv == inner


def test_without_a_command_it_is_a_shell(a3, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda handle: True)
    assert a3.becomes("docker", "run", "-it", ASCEND).argv == ("bash",)


def test_the_environment_of_a_container_is_clean(h200):
    env = h200.becomes(
        "docker",
        "run",
        "-e",
        "A=1",
        "-e",
        "HF_TOKEN",
        "-e",
        "UNSET",
        "--env=PATH=/opt/bin",
        "-p",
        "127.0.0.1:9000:8000",
        "--gpus",
        "device=2",
        CUDA,
        "m",
        HF_TOKEN="x",
        OTHER="y",
        LD_LIBRARY_PATH="/lib",
        LANG="C.UTF-8",
        HOME="/home/me",
        KIMI_NB_X="z",
    ).env
    assert env["A"] == "1" and env["HF_TOKEN"] == "x" and env["LANG"] == "C.UTF-8"
    assert env["HOME"] == "/home/me" and env["KIMI_NB_X"] == "z"
    assert env["PATH"] == f"{h200.root}/images/vllm_vllm-openai_v0.17.0-cu130:/opt/bin"
    assert env[PUBLISHED] == "127.0.0.1:9000:8000"
    assert env[DEVICES] == "2"
    assert re.fullmatch("[0-9a-f]{12}", env["HOSTNAME"])
    assert not {"UNSET", "OTHER"} & set(env)
    # The image's own, not the node's.
    assert env["LD_LIBRARY_PATH"].startswith("/usr/local/nvidia/")


def test_a_container_sees_only_its_devices(a3, capsys):
    words = [word for number in (3, 5) for word in ("--device", f"/dev/davinci{number}")]
    env = a3.becomes("docker", "run", *words, ASCEND, "bash", "-c", "x").env
    assert a3.run("hccn_tool", "-i", "5", "-link", "-g", **env) == 0
    assert a3.refusal("hccn_tool", "-i", "4", "-link", "-g", **env).code == 1
    capsys.readouterr()
    assert a3.run("npu-smi", "info", **env) == 0
    assert capsys.readouterr().out.count(" OK ") == 2


# Files ----------------------------------------------------------------------------------------


def test_a_script_must_be_mounted(a3):
    script = str(a3.script(a3.root / "work" / "serve.sh"))
    refusal = a3.refusal("docker", "run", ASCEND, "bash", script)
    assert str(refusal) == f"bash: {script}: No such file or directory"
    assert refusal.code == 127
    assert (
        a3.refusal(
            "docker", "run", "-v", f"{a3.root}/wor:{a3.root}/wor", ASCEND, "bash", script
        ).code
        == 127
    )
    mount = f"{a3.root}/work:{a3.root}/work"
    for words in (["bash", script, "x"], [script], ["bash", "-l", script]):
        assert a3.becomes("docker", "run", "-v", mount, ASCEND, *words).argv == tuple(words)
    assert "no such file or directory" in str(a3.refusal("docker", "run", ASCEND, script))


def test_a_mount_at_another_place_is_followed(a3):
    script = str(a3.script(a3.root / "work" / "serve.sh"))
    inner = a3.becomes(
        "docker",
        "run",
        "--mount",
        f"type=bind,src={a3.root}/work,dst=/inside",
        ASCEND,
        "bash",
        "/inside/serve.sh",
    )
    assert inner.argv == ("bash", script)


def test_a_script_in_the_current_folder_is_not_in_the_container(a3):
    a3.script(a3.root / "serve.sh")
    assert a3.refusal("docker", "run", ASCEND, "bash", "serve.sh").code == 127
    folder = str(a3.root)
    inner = a3.becomes(
        "docker", "run", "-v", f"{folder}:{folder}", "-w", folder, ASCEND, "bash", "serve.sh"
    )
    assert inner.argv == ("bash", f"{folder}/serve.sh")
    assert inner.folder == folder


def test_a_file_that_nobody_may_run(a3):
    script = a3.script(a3.root / "serve.sh")
    script.chmod(0o644)
    if os.access(script, os.X_OK):
        pytest.skip("every file may be run here")
    refusal = a3.refusal("docker", "run", "-v", f"{a3.root}:{a3.root}", ASCEND, str(script))
    assert "permission denied" in str(refusal) and refusal.code == 126


# Containers that run --------------------------------------------------------------------------


def gone(process: subprocess.Popen) -> int:
    return process.wait(timeout=10)


def test_a_name_is_held_while_its_program_lives(a3, capsys):
    """The program that called the stand-in holds the name, as it becomes the inner command."""
    name = str(a3.root / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        program = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import socket, sys\n"
                "s = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
                "s.recv(1)",
                name,
            ]
        )
        channel, _ = listener.accept()
    words = ("run", "--name", "box", ASCEND, "bash", "-c", "x")
    with channel:
        a3.becomes("docker", *words, channel=channel)
        refusal = a3.refusal("docker", *words, channel=channel)
        assert 'Conflict. The container name "/box" is already in use by container "' in str(
            refusal
        )
        assert refusal.code == 125
        other = list(a3.site.nodes)[1]
        a3.becomes("docker", *words, node=other)
        assert "container is running" in str(a3.refusal("docker", "rm", "box"))
        capsys.readouterr()
        assert a3.run("docker", "ps") == 0
        assert "box" in capsys.readouterr().out
    gone(program)
    a3.becomes("docker", *words)


def test_a_detached_container(a3, capsys):
    words = (
        "run",
        "-d",
        "-it",
        "--name",
        "box",
        ASCEND,
        "bash",
        "-c",
        'echo "$HOME"; exec sleep 60',
    )
    assert a3.run("docker", *words) == 0
    assert re.fullmatch("[0-9a-f]{64}\n", capsys.readouterr().out)
    assert a3.refusal("docker", *words).code == 125
    log = a3.root / "nodes" / a3.node / "containers" / "box.log"
    until = time.monotonic() + 60
    while log.read_text() != "/root\n" and time.monotonic() < until:
        time.sleep(0.02)
    assert log.read_text() == "/root\n"
    assert a3.run("docker", "stop", "box") == 0
    assert a3.refusal("docker", "stop", "box").code == 1
    capsys.readouterr()
    assert a3.run("docker", "ps", "-q") == 0
    assert capsys.readouterr().out == ""
    assert a3.run("docker", *words) == 0
    assert a3.run("docker", "rm", "-f", "box", "nobody") == 0


@pytest.mark.parametrize(("image", "workdir"), [(ASCEND, "workspace"), (CUDA, "vllm-workspace")])
def test_a_container_begins_in_the_working_folder_of_its_image(a3, h200, image, workdir, capsys):
    """Not in the caller's: a file beside the caller is not found by its name alone."""
    site = a3 if image == ASCEND else h200
    own = str(site.root / "nodes" / site.node / "images" / workdir)
    assert own != str(site.root) == str(site.call("docker").folder)
    assert site.becomes("docker", "run", "--entrypoint", "true", image).folder == own
    words = ("run", "-d", "--name", "box", "--entrypoint", "sleep", image, "60")
    assert site.run("docker", *words) == 0
    try:
        assert site.becomes("docker", "exec", "box", "true").folder == own
        folder = str(site.root)
        inner = site.becomes("docker", "exec", "-w", folder, "box", "true")
        assert inner.folder == folder
        refusal = site.refusal("docker", "exec", "--workdir=/not/there", "box", "true")
        assert (refusal.code, "chdir to cwd" in str(refusal)) == (126, True)
    finally:
        site.run("docker", "rm", "-f", "box")


def test_exec_keeps_the_working_folder_of_run(a3, capsys):
    mount = f"{a3.root}:{a3.root}"
    words = ("run", "-d", "--name", "box", "-v", mount, "-w", str(a3.root))
    assert a3.run("docker", *words, ASCEND, "sleep", "60") == 0
    try:
        assert a3.becomes("docker", "exec", "box", "true").folder == str(a3.root)
    finally:
        a3.run("docker", "rm", "-f", "box")


def test_images_and_versions(a3, capsys):
    image = a3.site.images[0]
    for words, text in (
        ("pull " + image, "Image is up to date"),
        ("images " + image, "v0.22.1rc1"),
        ("images", "vllm-ascend"),
        ("image ls", "vllm-ascend"),
        ("image inspect " + image, image),
        ("--version", "Docker version"),
        ("version", "Server"),
        ("info", "Containers"),
        ("", "Usage"),
        ("run --help", "Usage:  docker run"),
    ):
        assert a3.run("docker", *words.split()) == 0
        out, err = capsys.readouterr()
        assert text in out and MARK in out and MARK in err, words
    assert json.loads(image_inspect(a3, image, capsys))[0]["RepoTags"] == [image]
    assert a3.run("docker", "images", "nobody") == 0
    assert capsys.readouterr().out.count("\n") == 1


def image_inspect(here: Rehearsal, image: str, capsys) -> str:
    here.run("docker", "image", "inspect", image)
    return capsys.readouterr().out


# The tools of a node --------------------------------------------------------------------------


def all_looks(name: str, plan_on, tmp_path: Path):
    if name in LARGEST:
        model, layout = LARGEST[name]
        plan = build.plan(model, name, layout)
    else:
        plan = plan_on(name)
    plan = rebound(plan, tmp_path, Block(77, socket.socket()))
    request, here = plan.request, make(tmp_path, plan)
    for layout in ("single", "dp", "pd"):
        for look in prerequisites.looks(request.hardware, request.site, request.weights, layout):
            if look.argv[0] in TOOLS:
                yield here, request.site, look


@pytest.mark.parametrize("name", HARDWARE)
def test_every_check_of_a_node_passes(name, plan_on, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prerequisites.shutil, "which", lambda tool, **how: f"/bin/{tool}")
    seen = set()
    for here, site, look in all_looks(name, plan_on, tmp_path):

        def runner(argv, here=here):
            code = here.run(*argv)
            out, err = capsys.readouterr()
            assert MARK in out + err
            return code, err + out

        result = prerequisites.look(look, site, True, runner)
        assert result.status == "pass", result
        seen.add(look.name.split()[0])
    assert "devices" in seen
    assert ("firmware" in seen) == (name in ("mi350x", "mi355x"))


# What the real tools were seen to print; where no output was found, our nominal sizes are left out.
PRINTED = {
    "h100": ("NVIDIA H100 80GB HBM3", 81559),
    "h20": ("NVIDIA H20", 97871),
    "h200": ("NVIDIA H200", 143771),
    "b200": ("NVIDIA B200", 183359),
    "b300": ("NVIDIA B300 SXM6 AC", 275040),
    "gb200": ("NVIDIA GB200", 189471),
    "gb300": ("NVIDIA GB300", 284208),
    "mi300x": ("AMD Instinct MI300X", "gfx942", 206141652992),
    "mi325x": ("AMD Instinct MI325X", "gfx942", None),
    "mi350x": ("AMD Instinct MI350X", "gfx950", None),
    "mi355x": ("AMD Instinct MI355X", "gfx950", 309220868096),
    "a2": ("910B", 65536),
    "a3": ("Ascend910", 65536),
    "a5": ("Ascend950DT", None),
}


@pytest.mark.parametrize("name", HARDWARE)
def test_the_tools_print_what_the_real_ones_do(name, plan_on, tmp_path, capsys):
    here, (model, *expected) = make(tmp_path, plan_on(name)), PRINTED[name]
    count = load.hardware(name).devices.count
    if here.site.vendor == "nvidia":
        query = "--query-gpu=name,memory.total,driver_version"
        assert here.run("nvidia-smi", query, "--format=csv,noheader") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines == [f"{model}, {expected[0]} MiB, 580.95.05"] * count
    elif here.site.vendor == "amd":
        target, size = expected
        assert here.run("rocm-smi", "--showproductname", "--showmeminfo", "vram") == 0
        out = capsys.readouterr().out
        assert out.count(f": Card Series: \t\t{model}\n") == count
        assert out.count(f": GFX Version: \t\t{target}\n") == count
        assert not size or out.count(f": VRAM Total Memory (B): {size}\n") == count
        assert here.run("rocm-smi", "--showfw") == 0
        assert capsys.readouterr().out.count(": MEC firmware version: \t177\n") == count
    else:
        assert here.run("npu-smi", "info") == 0
        out = capsys.readouterr().out
        cards = re.findall(rf"^\| [0-9]+ +{model} +\| OK ", out, re.MULTILINE)
        assert len(cards) == count
        assert not expected[0] or out.count(f"/ {expected[0]}") == count


@pytest.mark.parametrize(
    "text, passes",
    [
        ("GPU[0]\t\t: MEC firmware version: \t176", False),
        ("GPU[0]\t\t: MEC firmware version: \t177", True),
        ("GPU[0]\t\t: MEC firmware version: \t1770", True),
        ("GPU[0]\t\t: MEC firmware version: \t99", False),
        ("GPU[0]\t: MEC firmware version: \t177\nGPU[1]\t: MEC firmware version: \t176", False),
        ("GPU[0]\t\t: MEC firmware version: \t0x000000b1", False),
        ("GPU[0]\t\t: MEC2 firmware version: \t177", False),
        ("", False),
    ],
)
def test_old_firmware_is_told(text, passes):
    chip = load.hardware("mi355x")
    weights = load.model("k2.5").weights["int4"]
    looks = prerequisites.looks(chip, load.site("mi355x"), weights, "single")
    (look,) = [one for one in looks if one.name == "firmware"]
    assert (prerequisites.verdict(look, 0, text).status == "pass") == passes


@pytest.mark.parametrize(
    "engine, install, version, passes",
    [
        ("0.25.1", "docker", "570.172.08", False),  # CUDA 13
        ("0.25.1", "docker", "580.82.07", True),
        ("0.25.1", "pip", "579.99", False),
        ("0.25.1", "pip", "1000.1", True),
        ("0.19.1", "docker", "570.172.08", False),  # the image with -cu130
        ("0.19.1", "pip", "570.172.08", True),  # CUDA 12.9
        ("0.19.1", "pip", "470.1", False),
        ("0.12.0", "docker", "535.54", True),
        ("", "docker", "535.54", True),
        ("", "docker", "534.99", False),
        ("", "docker", "none", False),
    ],
)
def test_an_old_driver_is_told(engine, install, version, passes):
    """The least driver is that of the CUDA for which the image or the wheel is built."""
    weights = load.model("k2.5").weights["int4"]
    looks = prerequisites.looks(
        load.hardware("b300"),
        load.site("b300"),
        weights,
        "single",
        install,
        catalog.engine("vllm", engine) if engine else None,
    )
    (look,) = [one for one in looks if one.name == "driver"]
    seen = prerequisites.verdict(look, 0, f"driver_version\n{version}\n{version}")
    assert (seen.status == "pass") == passes
    assert look.expect.startswith(f"{look.least} or newer")


def test_the_tool_of_another_vendor_is_not_there(a3, h200, tmp_path):
    rocm = make(tmp_path, build.plan("k2.5", "mi300x", "single"))
    for here, tools in (
        (a3, ("nvidia-smi", "rocm-smi")),
        (h200, ("npu-smi", "hccn_tool")),
        (rocm, ("nvidia-smi", "npu-smi")),
    ):
        for tool in tools:
            refusal = here.refusal(tool)
            assert str(refusal) == f"bash: line 1: {tool}: command not found"
            assert refusal.code == 127


@pytest.mark.parametrize(
    ("words", "lines", "text"),
    [
        ("info", 16, "| 7     Ascend910"),
        ("info -l", 16, "NPU ID"),
        ("info -m", 16, "Ascend910"),
        ("info -t board -i 7", 1, "Atlas 800 A3"),
    ],
)
def test_npu_smi(a3, words, lines, text, capsys):
    assert a3.run("npu-smi", *words.split()) == 0
    out = capsys.readouterr().out
    assert text in out and MARK in out
    assert (
        len(
            re.findall(
                r"\| OK |NPU ID   +:|\tAscend910$|   Ascend910$|^\t\d+ .*Ascend910$",
                out,
                re.MULTILINE,
            )
        )
        == lines
    )


def test_the_table_of_npus_is_straight(a3, capsys):
    a3.run("npu-smi", "info")
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {98}


def test_hccn_tool(a3, capsys):
    for number in ("16", "x", "-link"):
        assert "invalid" in str(a3.refusal("hccn_tool", "-i", number, "-link", "-g"))
    assert a3.refusal("hccn_tool", "-i", "0", "-tls", "-s", "enable", "0").code == 1
    assert a3.refusal("hccn_tool", "-i", "0", "-what", "-g").code == 1
    assert a3.run("hccn_tool", "-i", "3", "-ip", "-g", node=list(a3.site.nodes)[1]) == 0
    address = capsys.readouterr().out.split()[0].removeprefix("ipaddr:")
    assert a3.run("hccn_tool", "-i", "0", "-hccs_ping", "-g", "address", address) == 0
    assert "0.00% packet loss" in capsys.readouterr().out
    assert a3.run("hccn_tool", "-i", "0", "-ping", "-g", "address", "192.0.2.200") == 1


def test_nvidia_smi(h200, capsys):
    for words, text in (("", "NVIDIA-SMI"), ("-L", "GPU 7: NVIDIA H200"), ("topo -m", "NV18")):
        assert h200.run("nvidia-smi", *words.split()) == 0
        out = capsys.readouterr().out
        assert text in out and MARK in out
    assert (
        h200.run("nvidia-smi", "--query-gpu=index, memory.total", "--format=csv,noheader,nounits")
        == 0
    )
    assert capsys.readouterr().out.splitlines() == [f"{n}, 143771" for n in range(8)]
    assert "not a valid field" in str(h200.refusal("nvidia-smi", "--query-gpu=x", "--format=csv"))
    assert "switch is missing" in str(h200.refusal("nvidia-smi", "--query-gpu=index"))
    for words in (["--gpu-reset"], ["--query-gpu=index", "name", "--format=csv"]):
        refusal = h200.refusal("nvidia-smi", *words)
        assert "Invalid combination of input arguments" in str(refusal) and refusal.code == 2


# Settings -------------------------------------------------------------------------------------


def test_sysctl_is_kept_apart(a3, capsys):
    before = Path("/proc/sys/vm/swappiness").read_text()
    assert a3.run("sysctl", "-w", "vm.swappiness=7") == 0
    assert a3.run("sysctl", "kernel.sched_migration_cost_ns=50000") == 0
    out, err = capsys.readouterr()
    assert out == "vm.swappiness = 7\nkernel.sched_migration_cost_ns = 50000\n" and MARK in err
    assert a3.run("sysctl", "-n", "vm/swappiness", "kernel.ostype") == 0
    assert capsys.readouterr().out == "7\nLinux\n"
    assert Path("/proc/sys/vm/swappiness").read_text() == before
    assert a3.run("sysctl", "-n", "vm.swappiness", node="a3-1") == 0
    assert capsys.readouterr().out == before
    for name in ("foo.bar", "/../../etc/passwd", "vm"):
        refusal = a3.refusal("sysctl", name)
        assert "sysctl: cannot stat /proc/sys/" in str(refusal) and refusal.code == 255
    assert a3.refusal("sysctl", "-p").code == 1
    refusal = a3.with_fault("host-tuning-refused").refusal("sysctl", "-w", "vm.swappiness=0")
    assert str(refusal) == 'sysctl: permission denied on key "vm.swappiness"'
    assert refusal.code == 255


def test_tee(a3, capsys, monkeypatch):
    governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    monkeypatch.setattr(sys, "stdin", io.StringIO("performance\n"))
    assert a3.run("tee", governor, "/proc/sys/../sys/vm/swappiness") == 0
    out, err = capsys.readouterr()
    assert out == "performance\n" and MARK in err and "performance" in err
    kept = a3.root / "nodes" / a3.node / "sys"
    assert {path.read_text() for path in kept.iterdir()} == {"performance\n"}
    assert len(list(kept.iterdir())) == 2
    assert a3.becomes("tee", "-a", "log.txt").argv == (shutil.which("tee"), "-a", "log.txt")
    for here, files in (
        (a3, (governor, "log.txt")),
        (a3.with_fault("host-tuning-refused"), (governor,)),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
        assert str(here.refusal("tee", *files)) == f"tee: {governor}: Permission denied"
        assert capsys.readouterr().out == "x\n"
    assert not (a3.root / "log.txt").exists()


def test_the_host_tuning_script_changes_nothing(a3, capsys):
    """Every command of host_tuning.sh ends in a stand-in."""
    text = scripts.files(build.plan("k2.5", "a3", "pd"))["a3-0/host_tuning.sh"]
    (a3.root / "host_tuning.sh").write_text(text)
    for name in ("sysctl", "tee"):
        a3.script(a3.root / "bin" / name, f'echo {name} "$@" >> {a3.root}/calls; cat > /dev/null')
    subprocess.run(
        ["bash", a3.root / "host_tuning.sh"],
        check=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": f"{a3.root / 'bin'}:{os.environ['PATH']}"},
    )
    for line in (a3.root / "calls").read_text().splitlines():
        name, *words = line.split()
        if name == "sysctl":
            assert a3.run(name, *words) == 0
    assert "kernel.numa_balancing = 0" in capsys.readouterr().out


# What of ordinary programs differs ------------------------------------------------------------


def test_hostname(a3, capsys):
    assert a3.run("hostname") == 0
    out, err = capsys.readouterr()
    assert out == f"{a3.node}\n" and MARK in err
    assert a3.run("hostname", "-i") == 0
    assert capsys.readouterr().out == f"{a3.site.nodes[a3.node]}\n"
    assert a3.refusal("hostname", "other").code == 1
    if shutil.which("hostname"):
        assert a3.becomes("hostname", "-s", node="").argv == (shutil.which("hostname"), "-s")


def test_a_program_that_is_not_there(a3):
    refusal = a3.refusal("ping", "-c", "1", "203.0.113.9", PATH=str(a3.root / "bin"))
    assert str(refusal) == "bash: line 1: ping: command not found"


def test_disk_and_weights(a3, capsys):
    full = a3.with_fault("disk-full")
    assert full.run("df", "--output=avail", "-B1", "/root/.cache") == 0
    assert re.findall(r"\d+", capsys.readouterr().out) == ["0"]
    assert a3.becomes("df", "-h").argv[1:] == ("-h",)
    missing = a3.with_fault(fault_names.missing(a3.site.weights[0]))
    files = ("/nowhere/config.json", "/nowhere/model.safetensors.index.json")
    assert missing.refusal("ls", *files).code == 2
    assert a3.becomes("ls", "-l", str(a3.root)).argv[1:] == ("-l", str(a3.root))
    assert a3.becomes("ls", str(a3.root / "config.json"))


# Jobs -----------------------------------------------------------------------------------------


CHANNEL = ("-c", "conda-forge", "--override-channels")


def test_a_job_from_an_empty_folder(slurm, capsys):
    """What each job makes is what the next one looks for."""
    root, environment = slurm.root, slurm.root / "virt_envs" / "vllm-kimi"
    assert slurm.run("module", "purge") == 0 and slurm.run("module", "load", "anaconda3") == 0
    assert (
        slurm.run("conda", "create", *CHANNEL, "--prefix", str(environment), "python=3.11", "-y")
        == 0
    )
    assert slurm.run("pip", "install", "vllm==0.19.1", VIRTUAL_ENV=str(environment)) == 0
    assert slurm.run("pip", "install", "huggingface_hub", VIRTUAL_ENV=str(environment)) == 0
    out, err = capsys.readouterr()
    assert f"{MARK}: would install vllm==0.19.1\n" in out and MARK in err
    done = subprocess.run(
        [
            environment / "bin" / "python",
            "-c",
            "import vllm; print(vllm.__version__, vllm.__file__)",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert done.stdout.startswith(f"0.19.1 {environment}/")
    done = subprocess.run(
        [environment / "bin" / "pip", "install", "x y"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{root}/stubs/pip install x y\n"
    source = root / "vllm"
    clone = ("clone", "--depth", "1", "--branch", "v0.19.1", "https://github.com/x/vllm")
    assert slurm.run("git", *clone, str(source)) == 0
    assert slurm.refusal("git", *clone).code == 128  # it is there already
    tuner = source / "benchmarks" / "kernels" / "benchmark_moe.py"
    assert MARK in tuner.read_text()  # it calls its stand-in (test_rehearsed_jobs)
    models = root / "models" / "kimi-k2.5"
    assert slurm.run("hf", "download", "moonshotai/Kimi-K2.5", "--local-dir", str(models)) == 0
    assert capsys.readouterr().out.endswith(f"{models}\n")
    assert json.loads((models / "config.json").read_text())["num_hidden_layers"]
    assert (models / "model.safetensors.index.json").exists()


@pytest.mark.parametrize(
    ("tool", "words", "text", "code"),
    [
        ("conda", "create --prefix /elsewhere/env -y", "EnvironmentNotWritableError", 1),
        ("conda", "create -n env -y", "EnvironmentNotWritableError", 1),
        ("conda", "create -y", "-n/--name -p/--prefix is required", 2),
        ("conda", "env remove", "not part of a rehearsal", 1),
        ("pip", "install", "must give at least one requirement", 1),
        ("uv", "venv /elsewhere/env", "Failed to create virtualenv", 2),
        ("uv", "sync", "not part of a rehearsal", 1),
        ("git", "clone https://x/y /elsewhere/y", "could not create work tree dir", 128),
        ("git", "push", "not part of a rehearsal", 1),
        ("git", "clone", "must specify a repository", 129),
        ("hf", "download nobody/nothing --local-dir x", "Repository Not Found for url", 1),
        ("hf", "download", "Missing argument", 2),
        ("hf", "upload x", "not part of a rehearsal", 1),
    ],
)
def test_jobs_refuse(slurm, tool, words, text, code):
    refusal = slurm.refusal(tool, *words.split())
    assert text in str(refusal)
    assert refusal.code == code
    assert not Path("/elsewhere").exists()


def test_a_job_finds_its_nodes(slurm, capsys):
    assert slurm.run("scontrol", "show", "hostnames", "n1,n2") == 0
    assert capsys.readouterr().out == "n1\nn2\n"
    ((node, address),) = slurm.site.nodes.items()
    assert slurm.run("getent", "ahostsv4", node) == 0
    assert capsys.readouterr().out.split()[0] == address
    assert "not part of a rehearsal" in str(slurm.refusal("scontrol", "show", "job", "1"))


@pytest.mark.parametrize(
    "words, text",
    [
        (["--nodes=3", "true"], "asked for 3 nodes, the job has 2"),
        (["--nodes=2"], "No command given"),
        (["--mpi=pmix", "true"], "--mpi=pmix is not part of a rehearsal"),
    ],
)
def test_srun_refuses(slurm, words, text, tmp_path):
    job = slurm_programs.job(["n1", "n2"], tmp_path)
    assert text in str(slurm.refusal("srun", *words, **job))
    assert "outside of a job" in str(slurm.refusal("srun", "true"))


def test_a_download_to_a_full_disk(slurm):
    refusal = slurm.with_fault("disk-full").refusal(
        "hf", "download", "x/y", "--local-dir", slurm.site.weights[0]
    )
    assert str(refusal) == "OSError: [Errno 28] No space left on device" and refusal.code == 1
    assert not Path(slurm.site.weights[0]).exists()


def test_a_download_into_the_cache(a3, capsys):
    """By its id, without a folder: nothing is made."""
    assert a3.run("hf", "download", a3.site.weights[0]) == 0
    out, err = capsys.readouterr()
    assert MARK in out and MARK in err and not (a3.root / "hub").exists()


def test_what_only_reads_is_the_real_one(a3):
    assert a3.becomes("pip", "--version").argv == (sys.executable, "-m", "pip", "--version")
    if shutil.which("git"):
        assert a3.becomes("git", "rev-parse", "HEAD").argv[0] == shutil.which("git")


def test_installs_of_every_hardware_fetch_nothing(each_plan, tmp_path, capsys):
    here = make(tmp_path, each_plan)
    work = each_plan.request.site.paths.work
    for steps in each_plan.installs.values():
        for step in steps:
            tool, *words = [word.replace(work, str(tmp_path)) for word in step.argv]
            if tool in TOOLS:
                assert here.run(tool, *words) == 0
                assert MARK in "".join(capsys.readouterr())
            else:
                assert tool.endswith("python"), tool
                # The engine's own comes to be by the step before.
                ours = each_plan.engine_folder and tool.startswith(each_plan.engine_folder)
                assert ours or not tool.startswith("/") or Path(tool).exists()


def test_nodes_that_share_an_environment_install_into_it_at_once(tmp_path):
    """One node imports the engine while another installs it: no file is ever there in part."""
    here = make(tmp_path, build.plan("k2.5", "gb200", "dp"))
    modules = []
    for _ in range(2):
        installed_packages._engine(here.call("uv"), tmp_path, "vllm==0.27.1")
        (found,) = tmp_path.rglob("vllm/__init__.py")
        assert "__version__ = '0.27.1'" in found.read_text()
        modules.append(found.open())
    # What was open before has its text still: the second is another file, put in its place whole.
    before, after = (os.fstat(one.fileno()).st_ino for one in modules)
    for one in modules:
        one.close()
    assert before != after


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022])
def test_programs_have_the_mode_that_the_umask_leaves(mask, tmp_path):
    before = os.umask(mask)
    try:
        path_folder.write(tmp_path)
        installed_packages._script(tmp_path / "bin" / "pip", "exit 1")
        installed_packages._script(tmp_path / "bin" / "pip", "exit 2")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o777 & ~mask}
    assert (tmp_path / "bin" / "pip").read_text().endswith("\nexit 2\n")
