"""Stand in for ``docker run``: refuse what docker refuses, or become what the container would run.

There is no container. The inner command runs on this machine, with the environment that a
container would give it.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kimi_nb.check.view import container_start as reader
from kimi_nb.check.view.deployment import Box
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core.marks import MARK
from kimi_nb.params.vendor import Vendor
from kimi_nb.rehearse.host_programs import container_limits, docker_images, docker_names
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
from kimi_nb.rehearse.simulated_site import SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

DEVICES = "KIMI_NB_REHEARSAL_DEVICES"  # in a container: the devices of the node that it sees
IMAGE = "KIMI_NB_REHEARSAL_IMAGE"  # in a container: its image
MOUNTS = "KIMI_NB_REHEARSAL_MOUNTS"  # in a container: what is mounted, a path on each line
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BRIDGED = "KIMI_NB_REHEARSAL_BRIDGED"  # in a container: it has a network of its own
PUBLISHED = "KIMI_NB_REHEARSAL_PUBLISHED"  # in a container: its published ports (-p)


def run(call: Call, words: Sequence[str]) -> int:
    """Run ``docker run`` with these words."""
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
    _check_devices(call.site, box)
    folder = folder_of(call, box)
    container = Container(
        secrets.token_hex(32), box.name, box.image, os.getpid(), "", folder, targets(box)
    )
    container = replace(container, limits=container_limits.of(box, container.id))
    env = _environment(call, box, container)
    argv = program(call, box, env)
    # Attached, the program that called this stand-in becomes the inner command.
    pid = os.getpid() if detached else docker_names.caller(call)
    docker_names.hold(call, container.of(pid, argv))
    if not detached:
        raise Replace(argv, env, folder)
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
    docker_names.keep(call, container.of(inner.pid, argv))
    print(container.id)
    return 0


def _check_image(call: Call, image: str) -> None:
    if not docker_images.is_there(call, image):
        name, tagged = docker_images.familiar(image), docker_images.tagged(image)
        fault = daemon(f"manifest for {name} not found: manifest unknown: manifest unknown")
        raise Refused(f"Unable to find image '{tagged}' locally\n{fault}", fault.code)


def _check_devices(site: SimulatedSite, box: Box) -> None:
    """Refuse devices and GPUs that the simulated node does not have.

    Raises:
        Refused: As docker does.
    """
    for told in box.options.get("--device", ()):
        device = told.partition(":")[0]
        if not _is_device(site, device):
            raise daemon(
                "error gathering device information while adding custom device "
                f'"{device}": no such file or directory'
            )
    if "--gpus" not in box.options:
        return
    if site.vendor != "nvidia":
        raise daemon('could not select device driver "" with capabilities: [[gpu]]')
    for name in reader.gpus(box.options["--gpus"]):
        number = name.removeprefix("gpu")
        if number.isdecimal() and int(number) >= site.devices:
            raise daemon(
                f"{OCI}error running prestart hook #0: exit status 1, stdout: , stderr: "
                f"nvidia-container-cli: device error: {number}: unknown device: unknown"
            )


def _is_device(site: SimulatedSite, device: str) -> bool:
    kind, number = re.fullmatch(r"(.*?)([0-9]*)", device, re.DOTALL).groups()  # type: ignore
    if number and kind in ("/dev/davinci", "/dev/nvidia"):
        return (
            int(number) < site.devices
            and site.vendor == {"/dev/davinci": "ascend", "/dev/nvidia": "nvidia"}[kind]
        )
    there: dict[Vendor, tuple[str, ...]] = {
        "ascend": ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        "amd": ("/dev/kfd", "/dev/dri", "/dev/infiniband"),
        "nvidia": ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/infiniband"),
    }
    return device in there.get(site.vendor, ()) or (
        site.vendor == "nvidia" and device.startswith("nvidia.com/gpu=")
    )


def _visible(site: SimulatedSite, box: Box) -> str:
    """Return the numbers of the devices that a container sees, separated by commas."""
    numbers: Sequence[int] = range(site.devices)
    if not is_on(box, "--privileged") and site.vendor != "cpu":
        numbers = (reader.device_numbers(box.devices) or numbers) if box.devices else ()
    return ",".join(map(str, numbers))


def visible_here(env: Mapping[str, str], site: SimulatedSite) -> tuple[int, ...]:
    """Return the numbers that devices have for a program: all of the node, outside of containers."""
    seen = env.get(DEVICES)
    if seen is None:
        return tuple(range(site.devices))
    numbers = tuple(int(part) for part in seen.split(",") if part)
    # Inside a container NVIDIA and AMD number from 0; Ascend keeps the node's numbers.
    return numbers if site.vendor == "ascend" else tuple(range(len(numbers)))


def inside(call: Call, image: str, mounts: Sequence[str], interactive: bool) -> dict[str, str]:
    """Return the variables that a container gets from its image, its node and the rehearsal.

    ``interactive`` is whether a shell with a terminal reads what is in ~/.bashrc.
    """
    facts = docker_images.facts(call, image)
    own = {name: value for name, value in call.env.items() if name.startswith("KIMI_NB_")}
    env = {**(facts.env if facts else {}), **own}
    if facts and interactive:
        for name, value in facts.interactive.items():
            env[name] = f"{env.get(name, '')}:{value}"
    # The folders of this machine are those of the image's base.
    env["PATH"] = f"{docker_images.programs(call, image)}:{SYSTEM}"
    env[IMAGE] = image
    env[MOUNTS] = "\n".join(mounts)
    return env


def targets(box: Box) -> tuple[str, ...]:
    """Return the paths inside a container at which folders of the node are."""
    return tuple(
        os.path.normpath(mount.split(":")[1]) for mount in box.mounts if mount.count(":") >= 1
    )


def _environment(call: Call, box: Box, container: Container) -> dict[str, str]:
    """Return the environment inside a container.

    It has the variables of the command line, those of every container, and those of the rehearsal.
    """
    # Not /root: what a script writes into it must stay in the rehearsal's folder.
    env = {
        "HOME": call.env.get("HOME", "/root"),
        "TERM": call.env.get("TERM", "xterm"),
        "HOSTNAME": last(box, "-h", "--hostname")
        or (call.node if box.host_network else container.id[:12]),
    }
    if "LANG" in call.env:
        env["LANG"] = call.env["LANG"]
    env |= {name: call.env[name] for name in box.passes if name in call.env}
    own = inside(call, box.image, targets(box), is_on(box, "-t", "--tty"))
    env = own | env | dict(box.env)
    # The stand-ins come first, whatever PATH the container is given.
    env["PATH"] = f"{docker_images.programs(call, box.image)}:{box.env.get('PATH', SYSTEM)}"
    env |= {name: value for name, value in own.items() if name.startswith("KIMI_NB_")}
    env[DEVICES] = _visible(call.site, box)
    env |= container.limits
    if not box.host_network:
        env[BRIDGED] = "yes"
        if box.published:
            env[PUBLISHED] = ",".join(box.published)
    return env
