"""Make Python environments, each in a folder of its own, from a specification.

A complete environment is left alone; one that is half made, or made for another specification, is
made again. Nothing here knows what is installed: `Specification` says it, and its module gives the
command line to `command`.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_nb.core.errors import InstallError, KimiError, ParameterError

_UV = "uv>=0.8"
_RESULT = "kimi-nb "  # begins the line with the versions, among whatever else importing prints
# What a log says, and what it means.
_CAUSES = (
    (
        r"certificate[ _]verify[ _]failed|peer certificate|unknownissuer",
        "the package index's certificate is not trusted here; set SSL_CERT_FILE",
    ),
    (r"no space left on device|disk quota exceeded", "the disk is full{needed}"),
    (
        r"failed to establish a new connection|name resolution|name or service not known|dns error"
        r"|connection (refused|reset|timed out)|network is unreachable|error sending request"
        r"|tcp connect error|read timed out|max retries exceeded|failed to fetch",
        "no network, or the package index cannot be reached; set pip's and uv's index and proxy, or "
        "try again",
    ),
    (
        r"requires[- ]python|current python version|matching python (version|abi|implementation)"
        r"|not a supported wheel",
        "there is no build for Python {python}{pythons}",
    ),
    (r"permission denied", "a file or folder cannot be written"),
)


@dataclass(frozen=True)
class Specification:
    """What an environment holds, and where it can be made.

    ``wanted`` is compared with what the file ``stamp`` in the folder records: any change makes the
    environment again. ``refusals`` are the messages for a ``python``, a ``machine`` and a ``disk``
    that do not suffice. ``make`` is the command that a person runs.
    """

    title: str
    make: str
    stamp: str
    wanted: Mapping[str, Any]
    requires: Sequence[str]
    imports: Sequence[str]  # modules that load all that is needed
    programs: Sequence[str]  # in bin
    pythons: Sequence[Sequence[int]]  # the lowest and the highest version
    needs_gb: float  # while it is installed
    refusals: Mapping[str, str]
    leaves_out: Sequence[str] = ()  # required packages that are not needed
    without_dependencies: Sequence[str] = ()  # installed after the others
    torch: str = ""  # its version and build, as in 2.13.0+cpu
    compiles: bool = False  # all modules, not only those of ``imports``
    machines: Sequence[str] = ()  # all where none is named
    versions: Mapping[str, str] = field(default_factory=dict)
    shows: Sequence[str] = ()  # modules whose __version__ is added to ``versions``
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def supported(self) -> str:
        """The supported versions of Python, as text."""
        return " to ".join(_dotted(version) for version in self.pythons)


def missing(folder: Path, spec: Specification) -> str:
    """Return what an environment lacks, or "" if it is complete."""
    known = _recorded(folder, spec)
    if not known:
        return "the installation was not completed"
    if known.get("wanted", known) != spec.wanted:  # older records of tools are flat
        return "other versions are installed"
    lost = [name for name in ("python", *spec.programs) if not (folder / "bin" / name).exists()]
    return f"bin/{lost[0]} is missing" if lost else ""


def versions(folder: Path, spec: Specification) -> str:
    """Return the versions in a complete environment as a list in words."""
    found = {**_recorded(folder, spec).get("versions", {}), **spec.versions}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def install(
    folder: Path, spec: Specification, keep: str = "", mend: Callable[[Path], str] | None = None
) -> str:
    """Make the environment unless it is complete, and return what there is now as a sentence.

    All that is in the folder is removed first, except the file ``keep``. ``mend`` gets the folder
    of the installed packages, may repair it and returns what it did. Raises InstallError.
    """
    try:
        lacks = missing(folder, spec)
        if not lacks:
            return f"{folder}: no change: {versions(folder, spec)}"
        if folder.is_dir() and any(path.name != keep for path in folder.iterdir()):
            _say(f"{folder}: {lacks}; it is made again")
        _empty(folder, keep)
        refuse(spec, sys.version_info[:2], platform.machine(), shutil.disk_usage(folder).free / 1e9)
        _make(folder, spec, mend)
    except OSError as error:
        raise InstallError(f"{reason(str(error), spec)} ({error})") from error
    return f"{folder}: {versions(folder, spec)}"


def refuse(spec: Specification, version: Sequence[int], machine: str, free_gb: float) -> None:
    """Raise InstallError if the Python, the machine or the disk does not suffice."""
    low, high = map(tuple, spec.pythons)
    for kind, refused in (
        ("python", not low <= tuple(version) <= high),
        ("machine", bool(spec.machines) and machine not in spec.machines),
        ("disk", free_gb < spec.needs_gb),
    ):
        if refused:
            facts = {"title": spec.title, "pythons": spec.supported, "python": _dotted(version)}
            sizes = {"free": f"{free_gb:.1f}", "needed": f"{spec.needs_gb:g}"}
            raise InstallError(spec.refusals[kind].format(machine=machine, **facts, **sizes))


def reason(text: str, spec: Specification | None = None) -> str:
    """Return what went wrong, from what a tool printed: a known cause, else its last lines."""
    for pattern, says in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return says.format(
                python=platform.python_version(),
                pythons=f"; {spec.supported} are supported" if spec else "",
                needed=f"; {spec.needs_gb:g} GB are needed" if spec else "",
            )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:] or "it says nothing"


def has_build(names: Sequence[str], torch: str) -> bool:
    """Return whether one of these wheels is torch in this version and build.

    >>> has_build(["torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl"], "2.13.0+cpu")
    True
    """
    return any(name.replace("%2B", "+").startswith(f"torch-{torch}-") for name in names)


@contextmanager
def locked(folder: Path, mark: str, foreign: str) -> Iterator[None]:
    """Hold a folder that is ours, as the file ``mark`` in it says, or that is new or empty.

    Raises InstallError if another process holds it, and ParameterError, with the text ``foreign``,
    if it belongs to somebody else.
    """
    there = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if there and not (folder / mark).exists():
        raise ParameterError(f"{folder} {foreign}")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / mark).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError(f"{folder}: another installation is at work; wait for it.") from None
        yield


def command(
    argv: Sequence[str], module: str, name: str, make: str, work: Callable[[Path], int]
) -> int:
    """Run the command line of an installer, which takes a folder, and return the exit code.

    That of ``work``; 2 for what a person has to fix, 130 if it is interrupted.
    """
    if len(argv) != 1 or argv[0].startswith("-"):
        print(f"usage: python -m {module} FOLDER", file=sys.stderr)
        return 2
    try:
        return work(Path(argv[0]).expanduser().absolute())
    except KimiError as error:
        print(f"{name}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{name}: {reason(str(error))} ({error})", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the next {make} makes it again", file=sys.stderr)
        return 130
    return 2


def _recorded(folder: Path, spec: Specification) -> dict[str, Any]:
    try:
        known = json.loads((folder / spec.stamp).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _empty(folder: Path, keep: str) -> None:
    """Remove what an interrupted installation, or one of other versions, left."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != keep:
            path.unlink()


def _make(folder: Path, spec: Specification, mend: Callable[[Path], str] | None) -> None:
    python, uv = str(folder / "bin" / "python"), str(folder / "bin" / "uv")
    pip = [python, "-m", "pip", "install", "--quiet"]
    _say(f"an environment in {folder}")
    _run(spec, [sys.executable, "-m", "venv", str(folder)], "making the environment")
    _run(spec, [*pip, _UV], "installing uv")
    with tempfile.TemporaryDirectory(prefix="kimi-nb-environment-") as scratch:
        slim = Path(scratch) / "overrides.txt"
        slim.write_text(
            "".join(f'{name} ; python_version < "3"\n' for name in spec.leaves_out),
            encoding="utf-8",
        )
        torch = _torch(spec, python, Path(scratch) / "wheels") if spec.torch else []
        _say(f"{spec.title} and what it needs")
        into = [uv, "pip", "install", "--quiet", "--python", python, "--override", str(slim)]
        if spec.compiles:
            into.append("--compile-bytecode")
        _run(spec, [*into, *torch, *spec.requires], f"installing {spec.title}")
    if spec.without_dependencies:
        names = ", ".join(spec.without_dependencies)
        _say(f"{names}, without dependencies")
        _run(spec, [*pip, "--no-deps", *spec.without_dependencies], f"installing {names}")
    library = folder / "lib" / f"python{_dotted(sys.version_info[:2])}" / "site-packages"
    if mend and (mended := mend(library)):
        _say(mended)
    _say("importing it, which takes a minute the first time")
    printed = _run(spec, [python, "-c", _proof(spec)], f"importing {spec.title}")
    line = next(line for line in printed.splitlines() if line.startswith(_RESULT + "{"))
    record = {
        "wanted": spec.wanted,
        "versions": {**json.loads(line.removeprefix(_RESULT)), **spec.versions},
    }
    (folder / spec.stamp).write_text(json.dumps(record), encoding="utf-8")


def _proof(spec: Specification) -> str:
    """Return the Python that imports all, which proves that it works, and prints the versions.

    It also compiles what is imported once, for a person whose environment forbids Python to keep it.
    """
    return (
        "import importlib, json\n"
        f"for name in {tuple(spec.imports)!r}: importlib.import_module(name)\n"
        f"seen = {{name: importlib.import_module(name).__version__ for name in {tuple(spec.shows)}}}\n"
        f"print({_RESULT!r} + json.dumps(seen))"
    )


def _torch(spec: Specification, python: str, wheels: Path) -> list[str]:
    """Return options and a requirement for torch.

    The wheel is the one that pip finds with the user's own configuration, or else that of PyTorch's
    own index for this build.
    """
    wheels.mkdir()
    wheel, build = f"torch=={spec.torch}", spec.torch.partition("+")[2]
    # With its label: without it pip would fetch a gigabyte for CUDA only to be refused.
    argv = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = _call(spec, [*argv, "--dest", str(wheels), wheel])
    if done.returncode == 0 and has_build([path.name for path in wheels.iterdir()], spec.torch):
        _say(f"torch {spec.torch}: pip found it with your own configuration")
        return ["--find-links", str(wheels), wheel]
    _say(
        f"torch {spec.torch}: pip does not find it, it is taken from PyTorch's "
        f"{build.upper()} builds"
    )
    return ["--torch-backend", build, wheel]


def _call(spec: Specification, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables of another environment; nothing is reported to anybody."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    }
    own = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "DO_NOT_TRACK": "1"}
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**kept, **own, **spec.variables},
        check=False,
    )


def _run(spec: Specification, argv: Sequence[str], what: str) -> str:
    """Return what a command prints on stdout. Raises InstallError if it fails."""
    done = _call(spec, argv)
    if done.returncode:
        raise InstallError(
            f"{what} failed: {reason(done.stdout + done.stderr, spec)}. What there is is made "
            f"again by the next {spec.make}."
        )
    return done.stdout


def _say(text: str) -> None:
    print(text, flush=True)
