"""Stand in for the programs that a cluster's jobs call: modules, environments, packages, downloads.

They create the folders that the next job expects, almost empty and within the rehearsal's folder.
They download nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from kimi_nb import catalog
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse import image_facts
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

_ENGINES = {"vllm": "vllm", "vllm-ascend": "vllm_ascend"}  # the module of each package
# Calls the stand-in for vllm, as the command line of the real module would run.
_COMMAND_LINE = f'''"""{MARK}: stands for vLLM's command line."""
import os
import sys

os.execvp("vllm", ["vllm", *sys.argv[1:]])
'''
_RECORD = "packages"  # a file for each; the nodes of a rehearsal share the folder
_LIBRARY = ("lib", "rehearsal")  # takes the place of an environment's site-packages
TUNER = "benchmark_moe.py"
TUNER_TEXT = f'''"""{MARK}: stands for the kernel tuner of vLLM; it measures nothing."""
import pathlib
import sys

words = sys.argv[1:]
folder = words[words.index("--save-dir") + 1] if "--save-dir" in words else ""
print("{MARK}: would tune the kernels:", *words)
if folder:
    pathlib.Path(folder, "{MARK}.json").write_text("{{}}\\n")
'''


def _parts(words: Sequence[str], valued: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Return the operands and the options of a command line; ``valued`` options take a value."""
    operands: list[str] = []
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif name in valued and not equals:
            options[name] = rest.pop(0) if rest else ""
        else:
            options[name] = text
    return operands, options


def _first(options: dict[str, str], *names: str) -> str:
    return next((options[name] for name in names if options.get(name)), "")


def _inside(call: Call, folder: str) -> Path | None:
    """Return the path of a folder, or None if it is outside the rehearsal's folder."""
    path = (call.folder / folder).resolve()
    return path if path.is_relative_to(call.root.resolve()) else None


def _not_rehearsed(call: Call) -> Refused:
    return Refused(f"{MARK}: {shlex.join([call.tool, *call.words])} is not part of a rehearsal", 1)


def module(call: Call) -> int:
    """Run ``module``, which changes nothing."""
    call.say(f"{shlex.join(call.words)} changes nothing")
    return 0


# Environments -------------------------------------------------------------------------------


def conda(call: Call) -> int:
    """Run ``conda create --prefix DIR``: make an environment with this machine's Python."""
    if call.words[:1] == ("--version",):
        print(f"conda 25.1.1 ({MARK})")
        return 0
    if call.words[:1] != ("create",):
        raise _not_rehearsed(call)
    valued = ("--prefix", "-p", "--name", "-n", "--channel", "-c", "--file", "--solver")
    wanted, options = _parts(call.words[1:], valued)
    told = _first(options, "--prefix", "-p")
    name = _first(options, "--name", "-n")
    if not told and not name:
        raise Refused(
            "usage: conda create [-h] (-n ENVIRONMENT | -p PATH) ...\nconda create: "
            "error: one of the arguments -n/--name -p/--prefix is required",
            2,
        )
    folder = _inside(call, told) if told else None
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
    _environment(call, folder)
    _program(call, folder, "pip")
    print(
        f"{MARK}: would install {' '.join(wanted) or 'nothing'}\n\n## Package Plan ##\n\n"
        f"  environment location: {folder}\n\nPreparing transaction: done\n"
        "Verifying transaction: done\nExecuting transaction: done"
    )
    return 0


def _environment(call: Call, folder: Path) -> None:
    """Make an environment: this machine's Python, with what the stand-in for pip installed."""
    library = shlex.quote(str(folder.joinpath(*_LIBRARY)))
    _script(
        folder / "bin" / "python",
        f'export PYTHONPATH={library}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f'exec {shlex.quote(sys.executable)} "$@"',
    )
    os.makedirs(folder.joinpath(*_LIBRARY), exist_ok=True)


def _program(call: Call, folder: Path, name: str) -> None:
    """Write the program of an environment, which calls the stand-in of its name."""
    stub = call.root / "stubs" / name
    line = f"export VIRTUAL_ENV={shlex.quote(str(folder))}\n"
    if stub.exists():
        _script(folder / "bin" / name, line + f'exec {shlex.quote(str(stub))} "$@"')


def packages(environment: Path) -> frozenset[str]:
    """Return the names of the packages that were installed into an environment."""
    folder = environment.joinpath(*_LIBRARY, _RECORD)
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()


def _add(call: Call, environment: Path, requirement: str) -> None:
    """Record a package and those that it brings, with their programs."""
    engine = catalog.engine(call.site.engine, call.site.engine_version)
    name = re.split(r"[\[=<>!~ ]", requirement, maxsplit=1)[0]
    brought = image_facts.brings(name, engine)
    folder = environment.joinpath(*_LIBRARY, _RECORD)
    folder.mkdir(parents=True, exist_ok=True)
    for one in brought:
        (folder / one).touch()
    for script in image_facts.scripts(brought):
        _program(call, environment, script)


def beside_image(call: Call, folder: Path) -> None:
    """Make an environment that sees the engine of an image.

    Raises:
        Refused: The folder is outside the rehearsal's.
    """
    if _inside(call, str(folder)) is None:
        raise Refused(f"Error: [Errno 13] Permission denied: '{folder}'", 1)
    _environment(call, folder)
    _program(call, folder, "pip")
    (folder / "pyvenv.cfg").write_text(f"# {MARK}\ninclude-system-site-packages = true\n")
    _engine(call, folder, call.site.engine)


def _script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/bin/sh\n# {MARK}: stands for the {path.name} of this environment.\n{body}\n"
    )
    path.chmod(0o755)


def pip(call: Call) -> int:
    """Run ``pip install``: download nothing, but make the engine importable in the environment."""
    if call.words[:1] not in (("install",), ("uninstall",), ("download",)):
        # Not by name: the pip of a simulated environment is this stand-in again.
        raise Replace((sys.executable, "-m", "pip", *call.words), call.env)
    return _install(call, call.words[0], call.words[1:], call.env.get("VIRTUAL_ENV", ""))


def _install(call: Call, verb: str, words: Sequence[str], environment: str) -> int:
    wanted, options = _parts(
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
    folder = _inside(call, environment) if environment else None
    if verb == "install" and folder is not None and folder.is_dir():
        for package in wanted:
            _engine(call, folder, package)
            _add(call, folder, package)
    print(f"{MARK}: would {verb} {' '.join([*wanted, *sources])}")
    return 0


def _engine(call: Call, environment: Path, package: str) -> None:
    """Write a module with the engine's name that knows only its version."""
    name, _, version = package.partition("==")
    if name not in _ENGINES:
        return
    folder = environment.joinpath(*_LIBRARY, _ENGINES[name])
    folder.mkdir(parents=True, exist_ok=True)
    version = version or call.site.engine_version
    (folder / "__init__.py").write_text(
        f'"""{MARK}: stands for {name}."""\n__version__ = {version!r}\n'
    )
    (folder / "entrypoints" / "cli").mkdir(parents=True, exist_ok=True)
    (folder / "entrypoints" / "cli" / "main.py").write_text(_COMMAND_LINE)
    record = folder.parent / f"{_ENGINES[name]}-{version}.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def uv(call: Call) -> int:
    """Run ``uv venv`` and ``uv pip install``, like the stand-ins for conda and pip."""
    if call.words[:1] == ("venv",):
        operands, _ = _parts(call.words[1:], ("--python", "-p"))
        told = operands[0] if operands else ".venv"
        folder = _inside(call, told)
        if folder is None:
            raise Refused(
                "error: Failed to create virtualenv\n  Caused by: failed to create "
                f"directory `{told}`: Permission denied (os error 13)",
                2,
            )
        _environment(call, folder)
        print(f"{MARK}: Creating virtual environment at: {folder}")
        return 0
    if call.words[:2] == ("pip", "install"):
        _, options = _parts(call.words[2:], ("--python", "-p"))
        return _install(
            call,
            "install",
            call.words[2:],
            _first(options, "--python", "-p") or call.env.get("VIRTUAL_ENV", ".venv"),
        )
    raise _not_rehearsed(call)


# Sources and weights ------------------------------------------------------------------------


def git(call: Call) -> int:
    """Run ``git clone``: write the program that a job runs. Commands that only read are real."""
    command = call.words[0] if call.words else ""
    if command in ("--version", "rev-parse", "status", "log", "describe", "diff", "show"):
        real = call.real()
        if real is None:
            raise Refused("bash: line 1: git: command not found", 127)
        raise Replace((real, *call.words), call.env)
    if command != "clone":
        raise _not_rehearsed(call)
    operands, options = _parts(
        call.words[1:],
        (
            "--depth",
            "--branch",
            "-b",
            "--origin",
            "-o",
            "--filter",
            "-c",
            "--config",
            "-j",
            "--jobs",
        ),
    )
    if not operands:
        raise Refused("fatal: You must specify a repository to clone.", 129)
    url = operands[0]
    told = (
        operands[1]
        if len(operands) > 1
        else url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    )
    folder = _inside(call, told)
    if folder is None:
        raise Refused(f"fatal: could not create work tree dir '{told}': Permission denied", 128)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(
            f"fatal: destination path '{told}' already exists and is not an empty directory.", 128
        )
    tuner = folder / "benchmarks" / "kernels" / TUNER
    tuner.parent.mkdir(parents=True)
    tuner.write_text(TUNER_TEXT)
    call.say(f"would clone {url} {_first(options, '--branch', '-b')}".rstrip())
    print(f"Cloning into '{told}'...", file=sys.stderr)
    return 0


def hf(call: Call) -> int:
    """Run ``hf download ID --local-dir DIR``: write the two files that identify a checkpoint."""
    if call.words[:1] == ("version",):
        print(f"huggingface_hub version: 1.0.0 ({MARK})")
        return 0
    if call.words[:1] != ("download",):
        raise _not_rehearsed(call)
    operands, options = _parts(
        call.words[1:],
        (
            "--local-dir",
            "--cache-dir",
            "--revision",
            "--repo-type",
            "--include",
            "--exclude",
            "--token",
            "--max-workers",
        ),
    )
    if not operands:
        raise Refused(
            "Usage: hf download [OPTIONS] REPO_ID [FILENAMES]...\n"
            "Error: Missing argument 'REPO_ID'.",
            2,
        )
    name, told = operands[0], _first(options, "--local-dir")
    _check_checkpoint(call, name, told)
    if call.site.fault(FaultName.DISK_FULL, call.node):
        raise Refused("OSError: [Errno 28] No space left on device", 1)
    call.say(f"would download {name}")
    if told:
        folder = _inside(call, told)
        if folder is None:
            raise Refused(f"PermissionError: [Errno 13] Permission denied: '{told}'", 1)
        _checkpoint(call, folder, name)
    print(
        told
        or f"{call.env.get('HF_HOME', '~/.cache/huggingface')}/hub/"
        f"models--{name.replace('/', '--')}/snapshots/{MARK}"
    )
    return 0


def _check_checkpoint(call: Call, name: str, folder: str) -> None:
    """Refuse a checkpoint that the site does not have, by its id or its target folder.

    Raises:
        Refused: As hf does.
    """
    here = os.path.normpath(call.folder / folder) if folder else ""
    if not {name, folder, here} & set(call.site.weights):
        raise Refused(
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.\n\nRepository Not "
            f"Found for url: https://huggingface.co/api/models/{name}/revision/main.\nPlease make "
            "sure you specified the correct `repo_id` and `repo_type`.\nIf you are trying to "
            "access a private or gated repo, make sure you are authenticated.",
            1,
        )


def _checkpoint(call: Call, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    says = f"{MARK}: stands for {name}"
    config = {
        "_comment": says,
        "max_position_embeddings": call.site.context_length,
        "num_attention_heads": call.site.heads,
        "num_hidden_layers": call.site.layers,
    }
    index = {"metadata": {"_comment": says, "total_size": 0}, "weight_map": {}}
    for file, table in (("config.json", config), ("model.safetensors.index.json", index)):
        (folder / file).write_text(json.dumps(table, indent=1) + "\n")


TOOLS: dict[str, Callable[[Call], int]] = {
    "module": module,
    "conda": conda,
    "pip": pip,
    "uv": uv,
    "git": git,
    "hf": hf,
}
