"""``docker run``: it refuses what docker would, and becomes what the container would run.

No container is made: the inner command runs on this machine, with the environment that a
container would give it.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Sequence

from kimi_nb.check.view import container_start as reader
from kimi_nb.check.view.deployment import Box
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.rehearse.host_programs import docker_images as container_images
from kimi_nb.rehearse.host_programs import docker_names as container_names
from kimi_nb.rehearse.host_programs.docker_command import folder_of, program
from kimi_nb.rehearse.host_programs.docker_names import Container
from kimi_nb.rehearse.host_programs.docker_options import (
    OCI,
    USAGE,
    check_values,
    check_words,
    daemon,
    is_on,
    last,
    too_few,
)
from kimi_nb.rehearse.simulated_site import MARK, World
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

DEVICES = "KIMI_NB_REHEARSAL_DEVICES"  # inside a container: the node's devices that it sees
PUBLISHED = "KIMI_NB_REHEARSAL_PUBLISHED"  # inside a container: its -p, with commas


def run(call: Call, words: Sequence[str]) -> int:
    """``docker run`` with its words."""
    box = reader.box(words, {}, Spot(f"docker run on {call.node}"), call.node, at=0)
    check_words(box, words)
    if is_on(box, "--help"):
        print(f"{USAGE}\n\nCreate and run a new container from an image ({MARK})")
        return 0
    if not box.image:
        raise too_few("run", USAGE)
    check_values(box)
    detached = is_on(box, "-d", "--detach")
    if (
        is_on(box, "-i", "--interactive")
        and is_on(box, "-t", "--tty")
        and not detached
        and not os.isatty(0)
    ):
        raise Refused("the input device is not a TTY", 1)
    _check_image(call, box.image)
    _check_devices(call.world, box)
    container = Container(secrets.token_hex(32), box.name, box.image, os.getpid(), "")
    env = _environment(call, box, container)
    argv = program(call, box, env)
    folder = folder_of(box)
    # The program that called this stand-in is the one that becomes the inner command.
    pid = os.getpid() if detached else container_names.caller(call)
    container_names.hold(call, container.of(pid, argv))
    if not detached:
        raise Replace(
            argv
            if folder is None
            else ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, *argv),
            env,
        )
    with call.state("containers", f"{container.label}.log").open("wb") as log:
        inner = subprocess.Popen(
            argv,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=False,
        )
    container_names.keep(call, container.of(inner.pid, argv))
    print(container.id)
    return 0


def _check_image(call: Call, image: str) -> None:
    if not container_images.is_there(call, image):
        name, tagged = container_images.familiar(image), container_images.tagged(image)
        fault = daemon(f"manifest for {name} not found: manifest unknown: manifest unknown")
        raise Refused(f"Unable to find image '{tagged}' locally\n{fault}", fault.code)


def _check_devices(world: World, box: Box) -> None:
    """Refuse devices and GPUs that the pretended node has not."""
    for told in box.options.get("--device", ()):
        device = told.partition(":")[0]
        if not _is_device(world, device):
            raise daemon(
                "error gathering device information while adding custom device "
                f'"{device}": no such file or directory'
            )
    if "--gpus" not in box.options:
        return
    if world.vendor != "cuda":
        raise daemon('could not select device driver "" with capabilities: [[gpu]]')
    for name in reader.gpus(box.options["--gpus"]):
        number = name.removeprefix("gpu")
        if number.isdecimal() and int(number) >= world.devices:
            raise daemon(
                f"{OCI}error running prestart hook #0: exit status 1, stdout: , stderr: "
                f"nvidia-container-cli: device error: {number}: unknown device: unknown"
            )


def _is_device(world: World, device: str) -> bool:
    kind, number = re.fullmatch(r"(.*?)([0-9]*)", device, re.DOTALL).groups()  # type: ignore
    if number and kind in ("/dev/davinci", "/dev/nvidia"):
        return (
            int(number) < world.devices
            and world.vendor == {"/dev/davinci": "ascend", "/dev/nvidia": "cuda"}[kind]
        )
    there = {
        "ascend": ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        "rocm": ("/dev/kfd", "/dev/dri", "/dev/infiniband"),
        "cuda": ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/infiniband"),
    }
    return device in there.get(world.vendor, ()) or (
        world.vendor == "cuda" and device.startswith("nvidia.com/gpu=")
    )


def _visible(world: World, box: Box) -> str:
    """The numbers of the devices that a container sees."""
    numbers: Sequence[int] = range(world.devices)
    if not is_on(box, "--privileged"):
        numbers = (reader.device_numbers(box.devices) or numbers) if box.devices else ()
    return ",".join(map(str, numbers))


def inside(call: Call) -> dict[str, str]:
    """What a container has of its node: where programs are, and the rehearsal's own."""
    return {
        "PATH": call.env.get("PATH", os.defpath),
        **{name: value for name, value in call.env.items() if name.startswith("KIMI_NB_")},
    }


def _environment(call: Call, box: Box, container: Container) -> dict[str, str]:
    """What is set inside: what was told, what every container has, and the rehearsal's own."""
    # Not /root: what a script writes there must stay in the rehearsal's folder.
    env = {
        "HOME": call.env.get("HOME", "/root"),
        "TERM": call.env.get("TERM", "xterm"),
        "HOSTNAME": last(box, "-h", "--hostname")
        or (call.node if box.host_network else container.id[:12]),
    }
    if "LANG" in call.env:
        env["LANG"] = call.env["LANG"]
    env |= {name: call.env[name] for name in box.passes if name in call.env}
    env |= box.env
    own = inside(call)
    # The stand-ins stay first, whatever PATH the container is told.
    env["PATH"] = f"{call.root / 'bin'}:{env['PATH']}" if "PATH" in env else own["PATH"]
    env |= {name: value for name, value in own.items() if name.startswith("KIMI_NB_")}
    env[DEVICES] = _visible(call.world, box)
    if box.published and not box.host_network:
        env[PUBLISHED] = ",".join(box.published)
    return env
