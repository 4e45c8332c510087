"""Stand in for the programs that make environments and install packages: conda, uv, pip.

They make the folders and programs that a script expects, almost empty and within the rehearsal's
folder, and note each package with its version. They download nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kimi_nb import catalog
from kimi_nb.core import evidence
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse import image_facts, wheels
from kimi_nb.rehearse.host_programs import docker_images, docker_run, path_folder
from kimi_nb.rehearse.host_programs.command_words import first, inside, not_rehearsed, parts
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

PYTHON = "KIMI_NB_REHEARSAL_PYTHON"  # in a program of an environment: the folder of that
_ENGINES = {"vllm": "vllm", "vllm-ascend": "vllm_ascend"}  # the module of each package
# Calls the stand-in for vllm, as the command line of the real module would run.
_COMMAND_LINE = f'''"""{MARK}: stands for vLLM's command line."""
import os
import sys

os.execvp("vllm", ["vllm", *sys.argv[1:]])
'''
_RECORD = "packages"  # a file for each; the nodes of a rehearsal share the folder
_LIBRARY = ("lib", "rehearsal")  # takes the place of an environment's site-packages
_VERSION = "python-version"  # the Python that was asked for


def importable(call: Call) -> Mapping[str, str] | None:
    """Return the packages that a Python program of this call finds, with their versions.

    A version is "" where it is not known. None where nothing is known of what is installed.
    """
    image = call.env.get(docker_run.IMAGE)
    facts = docker_images.facts(call, image) if image else None
    folder = call.env.get(PYTHON) or call.env.get("VIRTUAL_ENV")
    if facts is None and not folder:
        return None
    there = dict.fromkeys(facts.packages, "") if facts else {}
    return {**there, **(packages(Path(folder)) if folder else {})}


def conda(call: Call) -> int:
    """Run ``conda create --prefix DIR``: make an environment with this machine's Python."""
    if call.words[:1] == ("--version",):
        print(f"conda 25.1.1 ({MARK})")
        return 0
    if call.words[:1] != ("create",):
        raise not_rehearsed(call)
    valued = ("--prefix", "-p", "--name", "-n", "--channel", "-c", "--file", "--solver")
    wanted, options = parts(call.words[1:], valued)
    told = first(options, "--prefix", "-p")
    name = first(options, "--name", "-n")
    if not told and not name:
        raise Refused(
            "usage: conda create [-h] (-n ENVIRONMENT | -p PATH) ...\nconda create: "
            "error: one of the arguments -n/--name -p/--prefix is required",
            2,
        )
    folder = inside(call, told) if told else None
    if folder is None:
        where = told or f"~/.conda/envs/{name}"
        raise Refused(
            "\nEnvironmentNotWritableError: The current user does not have write "
            f"permissions to the target environment.\n  environment location: {where}\n"
            f"  uid: {os.getuid()}\n  gid: {os.getgid()}\n",
            1,
        )
    # A channel of Anaconda asks for its terms of service, and a job has nobody to accept them.
    if "--override-channels" not in options or options.get("-c", "") != "conda-forge":
        raise Refused(
            "\nCondaToSNonInteractiveError: Terms of Service have not been accepted for the following "
            "channels. Please accept or remove them before proceeding:\n"
            "    - https://repo.anaconda.com/pkgs/main\n    - https://repo.anaconda.com/pkgs/r\n",
            1,
        )
    python = next((one for one in wanted if one.startswith("python=")), "")
    _environment(folder, python.removeprefix("python="))
    _program(call, folder, "pip")
    print(
        f"{MARK}: would install {' '.join(wanted) or 'nothing'}\n\n## Package Plan ##\n\n"
        f"  environment location: {folder}\n\nPreparing transaction: done\n"
        "Verifying transaction: done\nExecuting transaction: done"
    )
    return 0


def _environment(folder: Path, python: str = "") -> None:
    """Make an environment: this machine's Python, with what the stand-in for pip installed.

    ``python`` is the version that was asked for.
    """
    library = folder.joinpath(*_LIBRARY)
    _script(
        folder / "bin" / "python",
        f'export PYTHONPATH={shlex.quote(str(library))}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f"export {PYTHON}={shlex.quote(str(folder))}\n"
        f'exec {shlex.quote(sys.executable)} "$@"',
    )
    library.mkdir(parents=True, exist_ok=True)
    (library / _VERSION).write_text(python)


def _program(call: Call, folder: Path, name: str) -> None:
    """Write the program of an environment, which calls the stand-in of its name."""
    stub = call.root / "stubs" / name
    line = "".join(f"export {one}={shlex.quote(str(folder))}\n" for one in ("VIRTUAL_ENV", PYTHON))
    if stub.exists():
        _script(folder / "bin" / name, line + f'exec {shlex.quote(str(stub))} "$@"')


def packages(environment: Path) -> dict[str, str]:
    """Return the packages that were installed into an environment, with their versions."""
    folder = environment.joinpath(*_LIBRARY, _RECORD)
    if not folder.is_dir():
        return {}
    return {path.name: path.read_text() for path in folder.iterdir()}


def add(
    call: Call, environment: Path, requirement: str, options: Mapping[str, str] | None = None
) -> None:
    """Record a package and those that it brings, with their programs."""
    engine = catalog.engine(call.site.engine, call.site.engine_version)
    name = re.split(r"[\[=<>!~ ]", requirement, maxsplit=1)[0]
    version = requirement.partition("==")[2]
    brought = image_facts.brings(name, engine)
    library = environment.joinpath(*_LIBRARY)
    folder = library / _RECORD
    folder.mkdir(parents=True, exist_ok=True)
    python = library / _VERSION
    builds = wheels.builds(
        brought, engine, options or {}, python.read_text() if python.exists() else ""
    )
    for one in brought:
        note = folder / one
        said = f"{version if one == name else ''}{builds.get(one, '')}"
        if said or not note.exists():
            note.write_text(said)
    if "mooncake" in brought:
        _module(library / "mooncake", "mooncake_store_service")
    for script in image_facts.scripts(brought):
        _program(call, environment, script)


def _module(folder: Path, name: str) -> None:
    """Write a module that a script runs by ``python -m``: it calls the stand-in of its file's name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(f'"""{MARK}."""\n')
    (folder / f"{name}.py").write_text(path_folder.caller(f"the module {name}"), encoding="utf-8")


def beside_image(call: Call, folder: Path) -> None:
    """Make an environment that sees the engine of an image.

    Raises:
        Refused: The folder is outside the rehearsal's.
    """
    if inside(call, str(folder)) is None:
        raise Refused(f"Error: [Errno 13] Permission denied: '{folder}'", 1)
    _environment(folder)
    _program(call, folder, "pip")
    (folder / "pyvenv.cfg").write_text(f"# {MARK}\ninclude-system-site-packages = true\n")
    _engine(call, folder, call.site.engine)


def _script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path_folder.script(path, f"# {MARK}: stands for the {path.name} of this environment.\n{body}")


def pip(call: Call) -> int:
    """Run ``pip install``: download nothing, but make the engine importable in the environment."""
    if call.words[:1] not in (("install",), ("uninstall",), ("download",)):
        # Not by name: the pip of a simulated environment is this stand-in again.
        raise Replace((sys.executable, "-m", "pip", *call.words), call.env)
    return _install(call, call.words[0], call.words[1:], call.env.get("VIRTUAL_ENV", ""))


def _install(call: Call, verb: str, words: Sequence[str], environment: str) -> int:
    wanted, options = parts(
        words,
        (
            "-e",
            "--editable",
            "-r",
            "--requirement",
            "-c",
            "--constraint",
            "-i",
            "--index-url",
            "--extra-index-url",
            "-f",
            "--find-links",
            "-t",
            "--target",
            "--prefix",
            "--python",
            "-p",
            "--torch-backend",
        ),
    )
    sources = [
        options[name] for name in ("-e", "--editable", "-r", "--requirement") if name in options
    ]
    if not wanted and not sources:
        raise Refused(
            f'ERROR: You must give at least one requirement to {verb} (see "pip help install")', 1
        )
    folder = inside(call, environment) if environment else None
    if verb == "install" and folder is not None and folder.is_dir():
        for package in wanted:
            _engine(call, folder, package)
            add(call, folder, package, options)
    print(f"{MARK}: would {verb} {' '.join([*wanted, *sources])}")
    return 0


def _engine(call: Call, environment: Path, package: str) -> None:
    """Write a module with the engine's name that knows only its version.

    Nodes of a rehearsal may share the environment, so that another one imports it meanwhile.
    """
    name, _, version = package.partition("==")
    if name not in _ENGINES:
        return
    folder = environment.joinpath(*_LIBRARY, _ENGINES[name])
    version = version or call.site.engine_version
    evidence.write_text(
        folder / "__init__.py", f'"""{MARK}: stands for {name}."""\n__version__ = {version!r}\n'
    )
    evidence.write_text(folder / "entrypoints" / "cli" / "main.py", _COMMAND_LINE)
    record = folder.parent / f"{_ENGINES[name]}-{version}.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def uv(call: Call) -> int:
    """Run ``uv venv`` and ``uv pip install``, like the stand-ins for conda and pip."""
    if call.words[:1] == ("venv",):
        operands, options = parts(call.words[1:], ("--python", "-p"))
        told = operands[0] if operands else ".venv"
        folder = inside(call, told)
        if folder is None:
            raise Refused(
                "error: Failed to create virtualenv\n  Caused by: failed to create "
                f"directory `{told}`: Permission denied (os error 13)",
                2,
            )
        _environment(folder, first(options, "--python", "-p"))
        print(f"{MARK}: Creating virtual environment at: {folder}")
        return 0
    if call.words[:2] == ("pip", "install"):
        _, options = parts(call.words[2:], ("--python", "-p"))
        return _install(
            call,
            "install",
            call.words[2:],
            first(options, "--python", "-p") or call.env.get("VIRTUAL_ENV", ".venv"),
        )
    raise not_rehearsed(call)


TOOLS: dict[str, Callable[[Call], int]] = {"conda": conda, "pip": pip, "uv": uv}
