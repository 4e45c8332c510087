"""Stand in for what runs a job's programs in an image: apptainer, enroot, and srun with Pyxis.

There is no container. The program runs on this machine, after what the real one would refuse: an
image that is not there, a program that the image does not have, and a folder that is not mounted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.host_programs import (
    docker_images,
    docker_run,
    installed_packages,
    job_programs,
)
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

_SAYS = f"{MARK}: stands for "  # what is in the file of an image, before its name
_OWN = ("PATH", docker_run.IMAGE, docker_run.MOUNTS)
_SOURCE = "/vllm-workspace/"  # the image's folder with vLLM's examples and benchmarks


def apptainer(call: Call) -> int:
    """Run ``apptainer pull FILE docker://NAME`` or ``apptainer exec [--nv] --bind A,B FILE ...``."""
    match call.words:
        case ("pull", file, name) if name.startswith("docker://"):
            if Path(file).exists():
                raise Refused(
                    f'FATAL:   Image file already exists: "{file}" - will not overwrite', 255
                )
            return _make(call, file, name.removeprefix("docker://"))
        case ("exec", *words):
            return _exec(call, words)
    raise Refused(f"{MARK}: apptainer {shlex.join(call.words)} is not part of a rehearsal", 1)


def _exec(call: Call, words: Sequence[str]) -> int:
    rest, folders, devices = list(words), list[str](), False
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("--bind", "-B") and rest:
            folders += [one.partition(":")[0] for one in rest.pop(0).split(",")]
        elif option in ("--nv", "--rocm"):
            devices = {"--nv": "nvidia", "--rocm": "amd"}[option] == call.site.vendor
        else:
            raise Refused(f"{MARK}: apptainer exec {option} is not part of a rehearsal", 1)
    if len(rest) < 2:
        raise Refused('Error for command "exec": requires at least 2 arg(s), only received 1', 1)
    file, command = rest[0], rest[1:]
    if not Path(file).exists():
        raise Refused(
            f"FATAL:   could not open image {file}: failed to retrieve path for {file}: lstat {file}: "
            "no such file or directory",
            255,
        )
    return enter(call, file, command, folders, devices)


def enroot(call: Call) -> int:
    """Run ``enroot import -o FILE docker://NAME``."""
    match call.words:
        case ("import", "-o", file, name) if name.startswith("docker://"):
            if Path(file).exists():
                raise Refused(f"[ERROR] File already exists: {file}", 1)
            # docker://REGISTRY#NAME
            return _make(call, file, name.removeprefix("docker://").replace("#", "/"))
    raise Refused(f"{MARK}: enroot {shlex.join(call.words)} is not part of a rehearsal", 1)


def _make(call: Call, file: str, name: str) -> int:
    if not docker_images.is_there(call, name):
        raise Refused(f"{MARK}: {name}: manifest unknown", 255)
    path = call.folder / file
    if not path.resolve().is_relative_to(call.root.resolve()) or not path.parent.is_dir():
        raise Refused(f"{file}: no such folder, or no permission to write there", 255)
    write(path, name)
    call.say(f"would make {file} from {name}")
    return 0


def write(path: Path, name: str) -> None:
    """Write what stands for the file of an image of this name."""
    path.write_text(f"{_SAYS}{name}\n", encoding="utf-8")


def in_step(call: Call, options: Mapping[str, str], command: Sequence[str]) -> int | None:
    """Run a step of Pyxis on one node; return None for a step without an image.

    Raises Refused as Pyxis does, and Replace.
    """
    if "--container-image" not in options:
        return None
    folders = look(call, options, command)
    devices = call.env.get("NVIDIA_VISIBLE_DEVICES", "all") != "void"
    return enter(call, options["--container-image"], command, folders, devices)


def look(call: Call, options: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return the folders that a step of Pyxis mounts.

    Raises:
        Refused: As Pyxis does, or as the program would in its container.
    """
    image = options["--container-image"]
    if not Path(image).exists():
        raise Refused(f"pyxis: [ERROR] No such file or directory: {image}", 1)
    pairs = [one.split(":") for one in options.get("--container-mounts", "").split(",") if one]
    if any(len(pair) < 2 or pair[0] != pair[1] for pair in pairs):
        raise Refused(f"{MARK}: a mount at another path is not part of a rehearsal", 1)
    folders = [pair[0] for pair in pairs]
    check(call, image, command, folders)
    return folders


def check(call: Call, file: str, command: Sequence[str], folders: Sequence[str]) -> None:
    """Refuse a command that the image does not have, or that names a folder that is not mounted."""
    name, root = command[0], re.escape(str(call.root))
    facts = docker_images.facts(call, _name(file))
    if facts and "/" not in name and name not in facts.programs:
        raise Refused(f'FATAL:   "{name}": executable file not found in $PATH', 255)
    for path in re.findall(rf"{root}[^\s\"';,:)]*", " ".join(command)):
        if not any(
            os.path.normpath(path).startswith(f"{os.path.normpath(one)}/") for one in folders
        ):
            raise Refused(
                f"{MARK}: {path} is not in the container, which sees {', '.join(folders)}", 255
            )


def _name(file: str) -> str:
    """Return the name of the image whose file this is."""
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    return text.removeprefix(_SAYS).strip() if text.startswith(_SAYS) else ""


def enter(
    call: Call, file: str, command: Sequence[str], folders: Sequence[str], devices: bool
) -> int:
    """Become a program of the image.

    Raises:
        Refused: The image does not have it, or it would not see a folder that it names.
        Replace: Always, unless it makes an environment.
    """
    check(call, file, command, folders)
    if list(command[:3]) == ["python3", "-m", "venv"]:
        return _environment(call, command[3:])
    words = [_in_source(call, word) for word in command]
    raise Replace(words, environment(call, file, folders, devices))


def environment(
    call: Call, file: str, folders: Sequence[str], devices: bool = True
) -> dict[str, str]:
    """Return the variables of a program in the image: the job's own, but for the image's PATH."""
    image = docker_run.inside(call, _name(file), folders, interactive=False)
    env = image | dict(call.env) | {name: image[name] for name in _OWN}
    env[docker_run.DEVICES] = ",".join(map(str, range(call.site.devices))) if devices else ""
    return env


def _environment(call: Call, words: Sequence[str]) -> int:
    folders = [word for word in words if not word.startswith("-")]
    if len(folders) != 1 or "--system-site-packages" not in words:
        raise Refused(f"{MARK}: python3 -m venv {shlex.join(words)} is not part of a rehearsal", 1)
    installed_packages.beside_image(call, Path(folders[0]))
    return 0


def _in_source(call: Call, word: str) -> str:
    if not word.startswith(_SOURCE):
        return word
    path = Path(docker_images.folder(call, word))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rmdir()
    if path.name == job_programs.TUNER:
        job_programs.write_tuner(path)
    return str(path)


TOOLS: dict[str, Callable[[Call], int]] = {"apptainer": apptainer, "enroot": enroot}
