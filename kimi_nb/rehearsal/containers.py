"""A rehearsal's docker: it refuses what docker would, and becomes what the container would run.

No container is made: the inner command runs on this machine, with the environment that a
container would give it. A container ends when its process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kimi_nb import docker as reader
from kimi_nb.commands import base
from kimi_nb.deployment import Box
from kimi_nb.rehearsal.calls import Call, Refused, Replace
from kimi_nb.rehearsal.world import MARK, World
from kimi_nb.servers import Spot

DEVICES = "KIMI_NB_REHEARSAL_DEVICES"  # inside a container: the node's devices that it sees
PUBLISHED = "KIMI_NB_REHEARSAL_PUBLISHED"  # inside a container: its -p, with commas
VERSION = "28.2.2"  # the docker whose words these are


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# docker run --help of that version, and its hidden spellings.
_SWITCHES = _set("""
    -d --detach --disable-content-trust --help --init -i --interactive --no-healthcheck
    --oom-kill-disable --privileged -P --publish-all -q --quiet --read-only --rm --sig-proxy
    -t --tty --use-api-socket""")
_VALUED = _set("""
    --add-host --annotation -a --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop
    --cgroup-parent --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota
    --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus --cpuset-cpus --cpuset-mems
    --detach-keys --device --device-cgroup-rule --device-read-bps --device-read-iops
    --device-write-bps --device-write-iops --dns --dns-opt --dns-option --dns-search --domainname
    --entrypoint -e --env --env-file --expose --gpus --group-add --health-cmd --health-interval
    --health-retries --health-start-interval --health-start-period --health-timeout -h --hostname
    --io-maxbandwidth --io-maxiops --ip --ip6 --ipc --isolation --kernel-memory -l --label
    --label-file --link --link-local-ip --log-driver --log-opt --mac-address -m --memory
    --memory-reservation --memory-swap --memory-swappiness --mount --name --net --net-alias
    --network --network-alias --oom-score-adj --pid --pids-limit --platform -p --publish --pull
    --restart --runtime --security-opt --shm-size --stop-signal --stop-timeout --storage-opt
    --sysctl --tmpfs --ulimit -u --user --userns --uts -v --volume --volume-driver --volumes-from
    -w --workdir""")
_YES, _NO = _set("1 t T TRUE true True"), _set("0 f F FALSE false False")
_SIZES = ("--shm-size", "-m", "--memory", "--memory-swap", "--memory-reservation")
_SIZE = re.compile(r"-1|[0-9]+(\.[0-9]+)? ?([kmgtp]i?)?b?", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_USAGE = "Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]"
_HELP = "Run 'docker run --help' for more information"
_OCI = ("failed to create task for container: failed to create shim task: OCI runtime create "
        "failed: runc create failed: unable to start container process: ")
# Commands that docker has and a rehearsal has not.
_OTHERS = _set("""
    attach build builder buildx checkpoint commit compose config context cp create diff events
    exec export history import inspect kill load login logout logs manifest network node pause
    plugin port push rename restart rmi save search secret service stack start stats swarm system
    tag top trust unpause update volume wait""")


def docker(call: Call) -> int:
    """``docker`` with its words."""
    call.say("no container is made; the answer is what docker would say")
    own = ("--config", "-c", "--context", "-H", "--host", "-l", "--log-level", "--tlscacert",
           "--tlscert", "--tlskey")
    words = list(call.words)
    while words and words[0].startswith("-") and words[0] not in ("-v", "--version", "--help"):
        del words[:2 if words[0] in own else 1]
    name, rest = (words or ["--help"])[0], words[1:]
    if name in ("container", "image") and rest:
        short = {"container ls": "ps", "container list": "ps", "container ps": "ps",
                 "image ls": "images", "image list": "images", "image inspect": "image inspect"}
        held = _CONTAINER if name == "container" else _IMAGE
        name, rest = short.get(f"{name} {rest[0]}", rest[0] if rest[0] in held
                               else f"{name} {rest[0]}"), rest[1:]
    if name in _COMMANDS:
        return _COMMANDS[name](call, rest)
    if name.split()[0] in (*_OTHERS, *_CONTAINER, *_IMAGE, "container", "image"):
        raise Refused(f"{MARK}: docker {name} is not part of a rehearsal", 1)
    raise Refused(f"docker: '{name}' is not a docker command.\nSee 'docker --help'", 1)


# docker run ---------------------------------------------------------------------------------


def _run(call: Call, words: Sequence[str]) -> int:
    box = reader.box(words, {}, Spot(f"docker run on {call.node}"), call.node, at=0)
    _check_words(box, words)
    if _on(box, "--help"):
        print(f"{_USAGE}\n\nCreate and run a new container from an image ({MARK})")
        return 0
    if not box.image:
        raise Refused(f"docker: 'docker run' requires at least 1 argument\n\n{_USAGE}\n\n"
                      "See 'docker run --help' for more information", 1)
    _check_values(box)
    detached = _on(box, "-d", "--detach")
    if _on(box, "-i", "--interactive") and _on(box, "-t", "--tty") and not detached \
            and not os.isatty(0):
        raise Refused("the input device is not a TTY", 1)
    _check_image(call, box.image)
    _check_devices(call.world, box)
    container = Container(secrets.token_hex(32), box.name, box.image, os.getpid(), "")
    env = _environment(call, box, container)
    argv = _program(call, box, env)
    folder = _folder(box)
    if not detached:
        # The program that called this stand-in is the one that becomes the inner command.
        _hold(call, container.of(_caller(call), argv))
        raise Replace(argv if folder is None else
                      ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, *argv), env)
    _hold(call, container.of(os.getpid(), argv))
    with call.state("containers", f"{container.label}.log").open("wb") as log:
        inner = subprocess.Popen(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                                 stderr=subprocess.STDOUT, start_new_session=False)
    _file(call, container.label).write_text(container.of(inner.pid, argv).text())
    print(container.id)
    return 0


def _usage(text: str) -> Refused:
    return Refused(f"{text}\n\n{_USAGE}\n\n{_HELP}", 125)


def _daemon(text: str, code: int = 125) -> Refused:
    return Refused(f"docker: Error response from daemon: {text}\n\n{_HELP}", code)


def _on(box: Box, *names: str) -> bool:
    """Whether a switch is on, by any of its names."""
    return any(box.options.get(name, ("0",))[-1] in _YES for name in names)


def _last(box: Box, *names: str) -> str:
    """The value of an option that counts once."""
    return next((box.options[name][-1] for name in names if name in box.options), "")


def _check_words(box: Box, words: Sequence[str]) -> None:
    for name, values in box.options.items():
        if name not in _SWITCHES and name not in _VALUED:
            if name.startswith("--"):
                raise _usage(f"unknown flag: {name}")
            word = next((word for word in words if re.match(rf"-[a-zA-Z]*{name[1:]}", word)), name)
            raise _usage(f"unknown shorthand flag: '{name[1:]}' in {word}")
        if name in _SWITCHES and values[-1] not in _YES | _NO:
            raise _usage(f'invalid argument "{values[-1]}" for "{name}" flag: strconv.ParseBool: '
                         f'parsing "{values[-1]}": invalid syntax')
        if name in _VALUED and values[-1] == "" and not box.image and "=" not in words[-1]:
            short = "" if name.startswith("--") else f"'{name[1:]}' in "
            raise _usage(f"flag needs an argument: {short}{name}")


def _check_values(box: Box) -> None:
    for name in _SIZES:
        for value in box.options.get(name, ()):
            if not _SIZE.fullmatch(value):
                raise _usage(f'invalid argument "{value}" for "{name}" flag: invalid size: '
                             f"'{value}'")
    for mount in (*box.options.get("-v", ()), *box.options.get("--volume", ())):
        source, colon, rest = mount.partition(":")
        inside = rest.partition(":")[0] if colon else source
        if not inside.startswith("/"):
            raise _daemon(f"invalid volume specification: '{mount}': invalid mount config for "
                          f"type \"volume\": invalid mount path: '{inside}' mount path must be "
                          "absolute")
    if box.name and not _NAME.fullmatch(box.name):
        raise _daemon(f"Invalid container name ({box.name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are "
                      "allowed")


def _check_image(call: Call, image: str) -> None:
    if not _has_image(call, image):
        name, tagged = _familiar(image), _tagged(image)
        raise Refused(f"Unable to find image '{tagged}' locally\n"
                      f"docker: Error response from daemon: manifest for {name} not found: "
                      f"manifest unknown: manifest unknown\n\n{_HELP}", 125)


def _check_devices(world: World, box: Box) -> None:
    """Refuse devices and GPUs that the pretended node has not."""
    for told in box.options.get("--device", ()):
        device = told.partition(":")[0]
        if not _is_device(world, device):
            raise _daemon("error gathering device information while adding custom device "
                          f'"{device}": no such file or directory')
    if "--gpus" not in box.options:
        return
    if world.vendor != "cuda":
        raise _daemon('could not select device driver "" with capabilities: [[gpu]]')
    for name in reader.gpus(box.options["--gpus"]):
        number = name.removeprefix("gpu")
        if number.isdecimal() and int(number) >= world.devices:
            raise _daemon(f"{_OCI}error during container init: error running prestart hook #0: "
                          "exit status 1, stdout: , stderr: nvidia-container-cli: device error: "
                          f"{number}: unknown device: unknown")


def _is_device(world: World, device: str) -> bool:
    kind, number = re.fullmatch(r"(.*?)([0-9]*)", device, re.DOTALL).groups()  # type: ignore
    if number and kind in ("/dev/davinci", "/dev/nvidia"):
        return int(number) < world.devices and \
            world.vendor == {"/dev/davinci": "ascend", "/dev/nvidia": "cuda"}[kind]
    there = {"ascend": ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
             "rocm": ("/dev/kfd", "/dev/dri", "/dev/infiniband"),
             "cuda": ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
                      "/dev/infiniband")}
    return device in there.get(world.vendor, ()) or \
        (world.vendor == "cuda" and device.startswith("nvidia.com/gpu="))


def _visible(world: World, box: Box) -> str:
    """The numbers of the devices that a container sees."""
    numbers: Sequence[int] = range(world.devices)
    if not _on(box, "--privileged"):
        numbers = (reader.device_numbers(box.devices) or numbers) if box.devices else ()
    return ",".join(map(str, numbers))


def _environment(call: Call, box: Box, container: Container) -> dict[str, str]:
    """What is set inside: what was told, what every container has, and the rehearsal's own."""
    env = {"HOME": "/root", "TERM": call.env.get("TERM", "xterm"),
           "HOSTNAME": _last(box, "-h", "--hostname") or
           (call.node if box.host_network else container.id[:12])}
    if "LANG" in call.env:
        env["LANG"] = call.env["LANG"]
    env |= {name: call.env[name] for name in box.passes if name in call.env}
    env |= box.env
    path = call.env.get("PATH", os.defpath)
    # The stand-ins stay first, whatever PATH the container is told.
    env["PATH"] = f"{call.root / 'bin'}:{env['PATH']}" if "PATH" in env else path
    env |= {name: value for name, value in call.env.items() if name.startswith("KIMI_NB_")}
    env[DEVICES] = _visible(call.world, box)
    if box.published and not box.host_network:
        env[PUBLISHED] = ",".join(box.published)
    return env


def _program(call: Call, box: Box, env: Mapping[str, str]) -> tuple[str, ...]:
    """The inner command with host paths, once what a container would not find is refused."""
    argv = list(_command(box))
    if "/" in argv[0]:
        found = _place(call, box, argv[0])
        if found is None:
            raise _daemon(f'{_OCI}error during container init: exec: "{argv[0]}": stat {argv[0]}:'
                          " no such file or directory", 127)
        if os.path.exists(found) and not os.access(found, os.X_OK):
            raise _daemon(f'{_OCI}error during container init: exec: "{argv[0]}": permission '
                          "denied", 126)
        argv[0] = found
    elif shutil.which(argv[0], path=env["PATH"]) is None:
        raise _daemon(f'{_OCI}error during container init: exec: "{argv[0]}": executable file '
                      "not found in $PATH", 127)
    at = _script_at(argv)
    if at is not None:
        found = _place(call, box, argv[at])
        if found is None:
            raise Refused(f"{base(argv[0])}: {argv[at]}: No such file or directory", 127)
        argv[at] = found
    return tuple(argv)


def _command(box: Box) -> tuple[str, ...]:
    if "--entrypoint" in box.options:
        entry = tuple(filter(None, [_last(box, "--entrypoint")]))
    else:
        entry = ("vllm", "serve") if reader.serves_by_itself(box.image) else ()
    return (*entry, *box.argv) or ("bash",)


def _script_at(argv: Sequence[str]) -> int | None:
    """Where the script of a shell stands among its words; None for -c, and for no shell."""
    if base(argv[0]) not in ("bash", "sh"):
        return None
    for at, word in enumerate(argv[1:], start=1):
        if re.fullmatch(r"-[a-zA-Z]*[cs][a-zA-Z]*", word):
            return None
        if not word.startswith(("-", "+")):
            return at
    return None


def _place(call: Call, box: Box, path: str) -> str | None:
    """The host's path of a file inside the container. None where only the host has it; a path
    that may be the image's own stays as it is."""
    folder = _last(box, "-w", "--workdir")
    inside = os.path.normpath(os.path.join(folder or "/", path))
    found = _mounted(box, inside) if folder or path.startswith("/") else None
    if found is not None:
        return found
    on_host = Path(os.path.normpath(call.folder / path))
    if on_host.is_relative_to(call.root) and (path.startswith("/") or on_host.exists()):
        return None
    return path


def _mounted(box: Box, inside: str) -> str | None:
    """The host's path of what is mounted at a path of the container."""
    best = ("", "")
    for mount in box.mounts:
        source, _, rest = mount.partition(":")
        target = rest.partition(":")[0].rstrip("/") or "/"
        under = inside == target or inside.startswith(target.rstrip("/") + "/")
        if source.startswith("/") and rest and under and len(target) > len(best[1]):
            best = (source, target)
    return best[0].rstrip("/") + inside[len(best[1].rstrip("/")):] if best[0] else None


def _folder(box: Box) -> str | None:
    """The folder of ``--workdir`` on the host, where it is there."""
    told = _last(box, "-w", "--workdir")
    found = (_mounted(box, os.path.normpath(told)) or told) if told else ""
    return found if found and os.path.isdir(found) else None


# The containers of a node -------------------------------------------------------------------


@dataclass(frozen=True)
class Container:
    """One container: ``pid`` is its process, ``began`` when that began (a number that is used
    again belongs to another process)."""

    id: str
    name: str
    image: str
    pid: int
    began: str
    command: str = ""

    @property
    def label(self) -> str:
        """Its name; the short id of one without."""
        return self.name or self.id[:12]

    @property
    def alive(self) -> bool:
        """Whether its process is still there."""
        return bool(self.began) and _began(self.pid) == self.began

    def of(self, pid: int, argv: Sequence[str]) -> Container:
        """The same container with the process that runs in it."""
        return Container(self.id, self.name, self.image, pid, _began(pid), " ".join(argv))

    def text(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self))


def _began(pid: int) -> str:
    """When a process began, in the kernel's clock; "" for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def _caller(call: Call) -> int:
    """The process that called the stand-in: at the other end of its channel."""
    if call.channel is None:
        return os.getpid()
    size = struct.calcsize("3i")
    return struct.unpack("3i", call.channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                                                       size))[0]


def _file(call: Call, label: str) -> Path:
    return call.state("containers", f"{label}.json")


def _hold(call: Call, container: Container) -> None:
    """Take a container's name on this node; Refused while another one has it."""
    with _file(call, container.label).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two that start at once: one of them waits
        file.seek(0)
        other = _read(file.read())
        if other is not None and other.alive:
            raise _daemon(f'Conflict. The container name "/{container.name}" is already in use '
                          f'by container "{other.id}". You have to remove (or rename) that '
                          "container to be able to reuse that name.")
        file.truncate(0)
        file.write(container.text())


def _read(text: str) -> Container | None:
    try:
        return Container(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _all(call: Call) -> Iterator[Container]:
    """The containers of this node that run."""
    for path in sorted(_file(call, "none").parent.glob("*.json")):
        one = _read(path.read_text())
        if one is not None and one.alive:
            yield one


def _find(call: Call, name: str) -> Container | None:
    return next((one for one in _all(call)
                 if one.name == name or one.id.startswith(name or "-")), None)


def _ps(call: Call, words: Sequence[str]) -> int:
    unknown = [word for word in words if word not in ("-a", "--all", "-q", "--quiet", "-aq",
                                                      "-qa", "--no-trunc")]
    if unknown:
        raise Refused(f"{MARK}: docker ps {' '.join(unknown)} is not part of a rehearsal", 1)
    quiet = {"-q", "--quiet", "-aq", "-qa"} & set(words)
    rows = [("CONTAINER ID", "IMAGE", "COMMAND", "STATUS", f"NAMES ({MARK})")]
    rows += [(one.id[:12], one.image, f'"{one.command[:20]}"', "Up", one.label)
             for one in _all(call)]
    _columns([row[:1] for row in rows[1:]] if quiet else rows)
    return 0


def _rm(call: Call, words: Sequence[str]) -> int:
    force = bool({"-f", "--force", "-fv", "-vf"} & set(words))
    return _each(call, "rm", [word for word in words if not word.startswith("-")],
                 lambda one: _remove(one, force), force)


def _remove(one: Container, force: bool) -> str:
    if not force:
        return (f'cannot remove container "/{one.label}": container is running: stop the '
                "container before removing or force remove")
    _end(one, 0)
    return ""


def _stop(call: Call, words: Sequence[str]) -> int:
    rest, seconds = list(words), 10.0
    while rest and rest[0].startswith("-"):
        name, equals, text = rest.pop(0).partition("=")
        if name in ("-t", "--time", "--timeout"):
            seconds = float(text if equals else rest.pop(0))
    return _each(call, "stop", rest, lambda one: _end(one, seconds) or "", False)


def _end(one: Container, seconds: float) -> None:
    """End a container's process as docker does: asked first, after some seconds not asked."""
    sent = [signal.SIGTERM] if seconds else []
    for number in (*sent, signal.SIGKILL):
        if one.alive:
            os.kill(one.pid, number)
        until = time.monotonic() + (seconds if number == signal.SIGTERM else 2)
        while one.alive and time.monotonic() < until:
            time.sleep(0.02)


def _each(call: Call, command: str, names: Sequence[str], act: Callable[[Container], str],
          forgiving: bool) -> int:
    """Do something to containers by name; docker prints each name that went well."""
    if not names:
        raise Refused(f"docker: 'docker {command}' requires at least 1 argument\n\nUsage:  docker "
                      f"{command} [OPTIONS] CONTAINER [CONTAINER...]\n\n"
                      f"See 'docker {command} --help' for more information", 1)
    wrong = []
    for name in names:
        one = _find(call, name)
        fault = act(one) if one else f"No such container: {name}"
        if not fault:
            print(name)
        elif one or not forgiving:
            wrong.append(f"Error response from daemon: {fault}")
    if wrong:
        raise Refused("\n".join(wrong), 1)
    return 0


# Images -------------------------------------------------------------------------------------


def _familiar(image: str) -> str:
    """An image as docker shows it."""
    return image.removeprefix("docker.io/").removeprefix("library/")


def _tagged(image: str) -> str:
    """An image with its tag, which may be left out."""
    name = _familiar(image)
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def _has_image(call: Call, image: str) -> bool:
    return not call.world.fault("wrong-image-tag", call.node) and \
        _tagged(image) in map(_tagged, call.world.images)


def _pull(call: Call, words: Sequence[str]) -> int:
    names = [word for word in words if not word.startswith("-")]
    if len(names) != 1:
        raise Refused("docker: 'docker pull' requires 1 argument\n\nUsage:  docker pull [OPTIONS] "
                      "NAME[:TAG|@DIGEST]\n\nRun 'docker pull --help' for more information", 1)
    name, _, tag = _tagged(names[0]).rpartition(":")
    if not _has_image(call, names[0]):
        raise Refused(f"Error response from daemon: manifest for {name}:{tag} not found: manifest "
                      "unknown: manifest unknown", 1)
    print(f"{tag}: Pulling from {name} ({MARK})\nStatus: Image is up to date for {name}:{tag}\n"
          f"{names[0]}")
    return 0


def _images(call: Call, words: Sequence[str]) -> int:
    asked = [_familiar(word) for word in words if not word.startswith("-")]
    rows = [("REPOSITORY", "TAG", "IMAGE ID", "CREATED", f"SIZE ({MARK})")]
    for image in filter(lambda image: _has_image(call, image), call.world.images):
        name, _, tag = _tagged(image).rpartition(":")
        if not asked or {name, f"{name}:{tag}"} & set(asked):
            number = hashlib.sha256(image.encode()).hexdigest()[:12]
            rows.append((name, tag, number, "2 weeks ago", "20GB"))
    _columns(rows)
    return 0


def _inspect(call: Call, words: Sequence[str]) -> int:
    names = [word for word in words if not word.startswith("-")]
    there = [name for name in names if _has_image(call, name)]
    print(json.dumps([{"RepoTags": [_tagged(name)], "Comment": MARK} for name in there], indent=4))
    missing = [name for name in names if name not in there]
    if missing:
        raise Refused("\n".join(f"Error response from daemon: No such image: {_tagged(name)}"
                                for name in missing), 1)
    return 0


def _version(call: Call, words: Sequence[str]) -> int:
    print(f"Client: {MARK}\n Version:           {VERSION}\n\nServer: {MARK}\n Engine:\n"
          f"  Version:          {VERSION}")
    return 0


def _short_version(call: Call, words: Sequence[str]) -> int:
    print(f"Docker version {VERSION}, build {MARK}")
    return 0


def _info(call: Call, words: Sequence[str]) -> int:
    print(f"Server: {MARK}\n Containers: {len(list(_all(call)))}\n Images: "
          f"{len(call.world.images)}\n Server Version: {VERSION}\n Name: {call.node}")
    return 0


def _help(call: Call, words: Sequence[str]) -> int:
    print(f"Usage:  docker [OPTIONS] COMMAND ({MARK})")
    return 0


def _columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
              .rstrip())


_CONTAINER = _set("run rm stop")
_IMAGE = _set("pull")
_COMMANDS: dict[str, Callable[[Call, Sequence[str]], int]] = {
    "run": _run, "pull": _pull, "images": _images, "image inspect": _inspect, "ps": _ps,
    "rm": _rm, "stop": _stop, "version": _version, "--version": _short_version,
    "-v": _short_version, "info": _info, "--help": _help, "help": _help}
