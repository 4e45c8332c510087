"""Stand in for docker: its commands, except ``docker run``, which is in `docker_run`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence

from kimi_nb.core.marks import MARK
from kimi_nb.plan.router import UPSTREAM
from kimi_nb.rehearse.host_programs import docker_images, docker_run, front_door
from kimi_nb.rehearse.host_programs.docker_images import familiar, tagged
from kimi_nb.rehearse.host_programs.docker_names import Container, find, running
from kimi_nb.rehearse.host_programs.docker_options import too_few
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

VERSION = "28.2.2"  # the docker version whose messages these are
_CONTAINER, _IMAGE = ("run", "rm", "stop"), ("pull",)  # after docker container, docker image
# Commands of docker that a rehearsal does not simulate.
_OTHERS = """
    attach build builder buildx checkpoint commit compose config context cp create diff events
    export history import inspect kill load login logout logs manifest network node pause
    plugin port push rename restart rmi save search secret service stack start stats swarm system
    tag top trust unpause update volume wait"""
_SHORT_VERSION = f"Docker version {VERSION}, build {MARK}"
_USAGE = f"Usage:  docker [OPTIONS] COMMAND ({MARK})"
# Commands with a fixed answer.
_ANSWERS = {
    "--help": _USAGE,
    "help": _USAGE,
    "-v": _SHORT_VERSION,
    "--version": _SHORT_VERSION,
    "version": f"Client: {MARK}\n Version:           {VERSION}\n\nServer: {MARK}\n Engine:\n"
    f"  Version:          {VERSION}",
}


def docker(call: Call) -> int:
    """Run ``docker``."""
    call.say("no container is made; the answer is what docker would say")
    own = (
        "--config",
        "-c",
        "--context",
        "-H",
        "--host",
        "-l",
        "--log-level",
        "--tlscacert",
        "--tlscert",
        "--tlskey",
    )
    words = list(call.words)
    while words and words[0].startswith("-") and words[0] not in ("-v", "--version", "--help"):
        del words[: 2 if words[0] in own else 1]
    name, rest = (words or ["--help"])[0], words[1:]
    if name in ("container", "image") and rest:
        short = {
            "container ls": "ps",
            "container list": "ps",
            "container ps": "ps",
            "image ls": "images",
            "image list": "images",
            "image inspect": "image inspect",
        }
        held = _CONTAINER if name == "container" else _IMAGE
        name, rest = (
            short.get(f"{name} {rest[0]}", rest[0] if rest[0] in held else f"{name} {rest[0]}"),
            rest[1:],
        )
    if name in _ANSWERS:
        print(_ANSWERS[name])
        return 0
    if name in _COMMANDS:
        return _COMMANDS[name](call, rest)
    if name.split()[0] in (*_OTHERS.split(), *_CONTAINER, *_IMAGE, "container", "image"):
        raise Refused(f"{MARK}: docker {name} is not part of a rehearsal", 1)
    raise Refused(f"docker: '{name}' is not a docker command.\nSee 'docker --help'", 1)


# Containers ---------------------------------------------------------------------------------


def _ps(call: Call, words: Sequence[str]) -> int:
    rest, unknown, name = list(words), [], ""
    while rest:
        word = rest.pop(0)
        if word in ("-f", "--filter") and rest and rest[0].startswith("name="):
            name = rest.pop(0).removeprefix("name=")
        elif word not in ("-a", "--all", "-q", "--quiet", "-aq", "-qa", "--no-trunc"):
            unknown.append(word)
    if unknown:
        raise Refused(f"{MARK}: docker ps {' '.join(unknown)} is not part of a rehearsal", 1)
    quiet = {"-q", "--quiet", "-aq", "-qa"} & set(words)
    rows = [("CONTAINER ID", "IMAGE", "COMMAND", "STATUS", f"NAMES ({MARK})")]
    # docker searches for the expression in "/name" and in "name".
    rows += [
        (one.id[:12], one.image, f'"{one.command[:20]}"', "Up", one.label)
        for one in running(call)
        if re.search(name, f"/{one.label}") or re.search(name, one.label)
    ]
    _columns([row[:1] for row in rows[1:]] if quiet else rows)
    return 0


def _exec(call: Call, words: Sequence[str]) -> int:
    rest, given, told, tty = list(words), dict[str, str](), "", False
    while rest and rest[0].startswith("-"):
        word, equals, value = rest.pop(0).partition("=")
        if equals and word.startswith("--"):
            rest.insert(0, value)
        if word in ("-w", "--workdir") and rest:
            told = rest.pop(0)
            continue
        if word in ("-e", "--env") and rest:
            name, equals, value = rest.pop(0).partition("=")
            given |= {name: value} if equals else {name: call.env[name]} if name in call.env else {}
        elif word in ("-t", "-it", "--tty"):
            tty = True
        elif word not in ("-i", "--interactive"):
            raise Refused(f"{MARK}: docker exec {word} is not part of a rehearsal", 1)
    if len(rest) < 2:
        raise too_few("exec", "Usage:  docker exec [OPTIONS] CONTAINER COMMAND [ARG...]")
    one = find(call, rest[0])
    if one is None:
        raise Refused(f"Error response from daemon: No such container: {rest[0]}", 1)
    if told and not os.path.isdir(told):
        raise Refused(
            "OCI runtime exec failed: exec failed: unable to start container process: chdir to cwd "
            f'("{told}") set in config.json failed: no such file or directory: unknown',
            126,
        )
    env = docker_run.inside(call, one.image, one.mounts, tty) | dict(one.limits) | given
    # The image contains vLLM-Ascend's example proxy at this path.
    raise Replace(
        [
            str(front_door.upstream_program(call.root))
            if word.startswith("/vllm-workspace/") and word.endswith(UPSTREAM)
            else word
            for word in rest[1:]
        ],
        env,
        # Not the caller's folder.
        told or one.folder,
    )


def _rm(call: Call, words: Sequence[str]) -> int:
    force = bool({"-f", "--force", "-fv", "-vf"} & set(words))
    return _each(
        call,
        "rm",
        [word for word in words if not word.startswith("-")],
        lambda one: _remove(one, force),
        force,
    )


def _remove(one: Container, force: bool) -> str:
    if not force:
        return (
            f'cannot remove container "/{one.label}": container is running: stop the '
            "container before removing or force remove"
        )
    return _stopped(one, 0)


def _stop(call: Call, words: Sequence[str]) -> int:
    rest, seconds = list(words), 10.0
    while rest and rest[0].startswith("-"):
        name, equals, text = rest.pop(0).partition("=")
        if name in ("-t", "--time", "--timeout"):
            seconds = float(text if equals else rest.pop(0))
    return _each(call, "stop", rest, lambda one: _stopped(one, seconds), False)


def _stopped(one: Container, seconds: float) -> str:
    _end(one, seconds)
    return ""


def _end(one: Container, seconds: float) -> None:
    """End a container's process as docker does: SIGTERM, and after some seconds SIGKILL."""
    sent = [signal.SIGTERM] if seconds else []
    for number in (*sent, signal.SIGKILL):
        if one.alive:
            os.kill(one.pid, number)
        until = time.monotonic() + (seconds if number == signal.SIGTERM else 2)
        while one.alive and time.monotonic() < until:
            time.sleep(0.02)


def _each(
    call: Call, command: str, names: Sequence[str], act: Callable[[Container], str], forgiving: bool
) -> int:
    """Act on containers by name, and print the name of each success as docker does.

    Raises:
        Refused: There are no names, or an action failed. With ``forgiving``, containers that do not
            exist are no failure.
    """
    if not names:
        raise too_few(command, f"Usage:  docker {command} [OPTIONS] CONTAINER [CONTAINER...]")
    wrong = []
    for name in names:
        one = find(call, name)
        fault = act(one) if one else f"No such container: {name}"
        if not fault:
            print(name)
        elif one or not forgiving:
            wrong.append(f"Error response from daemon: {fault}")
    if wrong:
        raise Refused("\n".join(wrong), 1)
    return 0


# Images -------------------------------------------------------------------------------------


def _pull(call: Call, words: Sequence[str]) -> int:
    names = [word for word in words if not word.startswith("-")]
    if len(names) != 1:
        raise Refused(
            "docker: 'docker pull' requires 1 argument\n\nUsage:  docker pull [OPTIONS] "
            "NAME[:TAG|@DIGEST]\n\nRun 'docker pull --help' for more information",
            1,
        )
    name, _, tag = tagged(names[0]).rpartition(":")
    if not docker_images.is_there(call, names[0]):
        raise Refused(
            f"Error response from daemon: manifest for {name}:{tag} not found: manifest "
            "unknown: manifest unknown",
            1,
        )
    print(
        f"{tag}: Pulling from {name} ({MARK})\nStatus: Image is up to date for {name}:{tag}\n"
        f"{names[0]}"
    )
    return 0


def _images(call: Call, words: Sequence[str]) -> int:
    asked = [familiar(word) for word in words if not word.startswith("-")]
    rows = [("REPOSITORY", "TAG", "IMAGE ID", "CREATED", f"SIZE ({MARK})")]
    for image in filter(lambda image: docker_images.is_there(call, image), call.site.images):
        name, _, tag = tagged(image).rpartition(":")
        if not asked or {name, f"{name}:{tag}"} & set(asked):
            number = hashlib.sha256(image.encode()).hexdigest()[:12]
            rows.append((name, tag, number, "2 weeks ago", "20GB"))
    _columns(rows)
    return 0


def _inspect(call: Call, words: Sequence[str]) -> int:
    names = [word for word in words if not word.startswith("-")]
    there = [name for name in names if docker_images.is_there(call, name)]
    print(json.dumps([{"RepoTags": [tagged(name)], "Comment": MARK} for name in there], indent=4))
    missing = [name for name in names if name not in there]
    if missing:
        raise Refused(
            "\n".join(
                f"Error response from daemon: No such image: {tagged(name)}" for name in missing
            ),
            1,
        )
    return 0


# The daemon ---------------------------------------------------------------------------------


def _info(call: Call, words: Sequence[str]) -> int:
    print(
        f"Server: {MARK}\n Containers: {len(list(running(call)))}\n Images: "
        f"{len(call.site.images)}\n Server Version: {VERSION}\n Name: {call.node}"
    )
    return 0


def _columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


_COMMANDS: dict[str, Callable[[Call, Sequence[str]], int]] = {
    "run": docker_run.run,
    "pull": _pull,
    "images": _images,
    "image inspect": _inspect,
    "exec": _exec,
    "ps": _ps,
    "rm": _rm,
    "stop": _stop,
    "info": _info,
}
