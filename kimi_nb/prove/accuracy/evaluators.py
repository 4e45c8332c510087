"""The tools, each in an environment of its own beside the notebooks' one.

    python -m kimi_nb.prove.accuracy.evaluators .tools      # what `make tools` runs
    tools.find("lm-eval")                        # .tools/lm-eval/bin/lm_eval, or None
    tools.reason("lm-eval")                      # why there is none, and what to do

Made once: a second call changes nothing, one that was interrupted is made again. What cannot be
installed leaves its reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kimi_nb.core.errors import InstallError, KimiError, ParameterError, choice
from kimi_nb.params import load as params
from kimi_nb.service import cpu_engine

_UV = "uv>=0.8"
_STAMP = ".kimi-nb-tool.json"  # written last
_LOCK = ".kimi-nb-tools"  # in the folder of all, locked by who works there


@dataclass(frozen=True)
class Tool:
    """``loads`` is a module that loads all that an evaluation needs; ``requires`` as pip takes
    it; ``leaves_out`` what it names and evaluations over HTTP do not need; ``torch`` whether it
    loads torch, whose build for CPUs it gets; ``pythons`` the range of versions that work."""

    name: str
    program: str
    version: str
    loads: str
    requires: tuple[str, ...]
    leaves_out: tuple[str, ...] = ()
    torch: bool = False
    pythons: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 14))
    needs_gb: float = 1.0


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "lm-eval",
            "lm_eval",
            "0.4.13",
            "lm_eval.models.openai_completions",
            ("lm-eval[api]==0.4.13",),
        ),
        # It pins numpy below 2, which newer pyarrow refuses, and older datasets want a still older
        # one; psutil it imports and does not name.
        Tool(
            "ais-bench",
            "ais_bench",
            "3.1.20260630",
            "ais_bench.benchmark.cli.config_manager",
            (
                "ais_bench_benchmark==3.1.20260630",
                "numpy<2",
                "pyarrow<22",
                "datasets==3.6.0",
                "psutil",
            ),
            (
                "accelerate",
                "cpm_kernels",
                "pyext",
                "gradio-client",
                "seaborn",
                "tree_sitter_languages",
                "tree-sitter",
            ),
            torch=True,
            pythons=((3, 11), (3, 12)),
            needs_gb=4.0,
        ),
    )
}


def folder() -> Path:
    """``.tools`` of the checkout; of the working directory where there is no checkout."""
    root = params.root()
    return (root if (root / "pyproject.toml").is_file() else Path.cwd()) / ".tools"


def find(name: str) -> Path | None:
    """The program of a tool that is installed to its end; None where there is none."""
    tool = named(name)
    path = folder() / name / "bin" / tool.program
    return path if path.exists() and _made(folder() / name, tool) else None


def reason(name: str) -> str:
    """Why a tool is not there, and what to do; "" where it is."""
    if find(name):
        return ""
    try:
        known = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))["reason"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{name} is not installed in {folder() / name}; make tools installs it."
    return f"{name} could not be installed: {known}"


def named(name: str) -> Tool:
    """A tool by its name. Raises ParameterError with what there is."""
    if name not in TOOLS:
        raise ParameterError(choice("tool", name, TOOLS))
    return TOOLS[name]


def install(base: Path, tool: Tool) -> str:
    """Make a tool's environment, or find that it is made; a sentence. Raises InstallError, whose
    text is also kept for `reason`."""
    place, said = base / tool.name, base / f"{tool.name}.json"
    if _made(place, tool):
        return f"{place}: no change: {tool.name} {tool.version}"
    if place.exists():
        shutil.rmtree(place)
    try:
        _refuse(tool, base)
        _make(place, tool)
    except InstallError as error:
        said.write_text(json.dumps({"reason": str(error)}), encoding="utf-8")
        raise
    said.unlink(missing_ok=True)
    return f"{place}: {tool.name} {tool.version}"


def _wanted(tool: Tool) -> dict[str, object]:
    """What is installed, for comparison with what was: any change makes it anew."""
    return json.loads(json.dumps({**asdict(tool), "python": platform.python_version()}))


def _made(place: Path, tool: Tool) -> bool:
    try:
        known = json.loads((place / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return known == _wanted(tool) and (place / "bin" / tool.program).exists()


def _refuse(tool: Tool, base: Path) -> None:
    """Raises InstallError for what cannot work: the Python, the disk."""
    low, high = tool.pythons
    if not low <= sys.version_info[:2] <= high:
        raise InstallError(
            f"{tool.name} {tool.version} works with Python {low[0]}.{low[1]} to "
            f"{high[0]}.{high[1]}; this is {platform.python_version()}."
        )
    free = shutil.disk_usage(base).free / 1e9
    if free < tool.needs_gb:
        raise InstallError(
            f"{free:.1f} GB are free on the disk; {tool.name} needs "
            f"{tool.needs_gb:g} GB while it is installed."
        )


def _make(place: Path, tool: Tool) -> None:
    python = str(place / "bin" / "python")
    _run([sys.executable, "-m", "venv", str(place)], "making the environment")
    _run([python, "-m", "pip", "install", "--quiet", _UV], "installing uv")
    with tempfile.TemporaryDirectory(prefix="kimi-nb-tools-") as scratch:
        slim = Path(scratch) / "overrides.txt"
        slim.write_text(
            "".join(f'{name} ; python_version < "3"\n' for name in tool.leaves_out),
            encoding="utf-8",
        )
        torch = _torch(python, Path(scratch)) if tool.torch else []
        # Compiled once, also for a person whose environment forbids Python to keep it: each start
        # would take a minute.
        _run(
            [
                str(place / "bin" / "uv"),
                "pip",
                "install",
                "--quiet",
                "--compile-bytecode",
                "--python",
                python,
                "--override",
                str(slim),
                *torch,
                *tool.requires,
            ],
            f"installing {tool.name}",
        )
    _run([python, "-c", f"import {tool.loads}"], f"loading {tool.name}")
    (place / _STAMP).write_text(json.dumps(_wanted(tool)), encoding="utf-8")


def _torch(python: str, scratch: Path) -> list[str]:
    """Options that give torch's build for CPUs: the wheel that pip finds by the person's own
    configuration, else PyTorch's own."""
    wheel = f"torch=={cpu_engine.TORCH}+cpu"
    try:
        _run(
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
                str(scratch),
                wheel,
            ],
            "looking for torch",
        )
    except InstallError:
        return ["--torch-backend", "cpu", wheel]
    return ["--find-links", str(scratch), wheel]


def _run(argv: Sequence[str], what: str) -> None:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "DO_NOT_TRACK": "1"},
        check=False,
    )
    if done.returncode:
        raise InstallError(
            f"{what} failed: {cpu_engine.reason(done.stdout + done.stderr)}. What "
            "there is is made again by the next make tools."
        )


def main(argv: Sequence[str]) -> int:
    """0 all there, 2 where one could not be installed."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print("usage: python -m kimi_nb.prove.accuracy.evaluators FOLDER", file=sys.stderr)
        return 2
    base, failed = Path(argv[0]).expanduser().absolute(), False
    try:
        base.mkdir(parents=True, exist_ok=True)
        with (base / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for tool in TOOLS.values():
                try:
                    print(install(base, tool), flush=True)
                except KimiError as error:
                    failed = True
                    print(f"tools: {tool.name}: {error}", file=sys.stderr)
    except BlockingIOError:
        print(f"tools: {base}: another installation is at work; wait for it.", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tools: {cpu_engine.reason(str(error))} ({error})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tools: interrupted; the next make tools makes it again", file=sys.stderr)
        return 130
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
