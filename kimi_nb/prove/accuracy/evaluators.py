"""The evaluation tools, each in its own virtual environment next to that of the notebooks.

``make tools`` runs ``python -m kimi_nb.prove.accuracy.evaluators .tools``. Then::

    evaluators.find("lm-eval")  # .tools/lm-eval/bin/lm_eval, or None
    evaluators.reason("lm-eval")  # why it is missing and what to do; "" if it is there

Installing is idempotent: a second call changes nothing, and an interrupted installation is
started over. If a tool cannot be installed, the reason is kept in a file. The tools are described
in ``kimi_nb/data/prove/evaluators.yaml``.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.core import data_files, environments, paths
from kimi_nb.core.errors import InstallError, ParameterError, choice
from kimi_nb.service import cpu_engine

_MAKE = "make tools"
_MARK = ".kimi-nb-tools"  # in the common folder, locked during an installation


@dataclass(frozen=True)
class Tool:
    """An evaluation tool and how to install it."""

    name: str
    program: str
    version: str
    environment: environments.Specification


def folder() -> Path:
    """Return ``.tools`` in the checkout, or in the working directory if there is no checkout."""
    root = paths.root()
    return (root if (root / "pyproject.toml").is_file() else Path.cwd()) / ".tools"


def find(name: str) -> Path | None:
    """Return the path of a tool's program, or None if it is not completely installed."""
    tool = named(name)
    if environments.missing(folder() / name, tool.environment):
        return None
    return folder() / name / "bin" / tool.program


def reason(name: str) -> str:
    """Return why a tool is missing and what to do about it, or "" if it is installed."""
    if find(name):
        return ""
    try:
        known = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))["reason"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{name} is not installed in {folder() / name}; make tools installs it."
    return f"{name} could not be installed: {known}"


def named(name: str) -> Tool:
    """Return the tool with a given name.

    Raises:
        ParameterError: If there is no such tool; the message lists those that exist.
    """
    facts = data_files.facts("prove/evaluators")
    if name not in facts["tools"]:
        raise ParameterError(choice("tool", name, facts["tools"]))
    entry = facts["tools"][name]
    spec = environments.Specification(
        title=f"{name} {entry['version']}",
        make=_MAKE,
        stamp=".kimi-nb-tool.json",
        wanted={**entry, "python": platform.python_version()},
        imports=[entry["loads"]],
        programs=[entry["program"]],
        torch=cpu_engine.packages()["torch"] if entry["torch"] else "",
        compiles=True,  # even if PYTHONDONTWRITEBYTECODE is set: else each start takes a minute
        versions={name: entry["version"]},
        refusals=facts["refusals"],
        **{key: entry[key] for key in ("requires", "leaves_out", "pythons", "needs_gb")},
    )
    return Tool(name, entry["program"], entry["version"], spec)


def install(base: Path, tool: Tool) -> str:
    """Create a tool's environment unless it is up to date, and return a sentence about it.

    Raises:
        InstallError: If it cannot be installed. The message is also kept for `reason`.
    """
    said = base / f"{tool.name}.json"
    try:
        done = environments.install(base / tool.name, tool.environment)
    except InstallError as error:
        said.write_text(json.dumps({"reason": str(error)}), encoding="utf-8")
        raise
    said.unlink(missing_ok=True)
    return done


def main(argv: Sequence[str]) -> int:
    """Install all tools into a folder; return 0 if all are there, 2 if not, 130 if interrupted."""

    def work(base: Path) -> int:
        failed = False
        foreign = "is there and holds no tools of ours; name another folder."
        with environments.locked(base, _MARK, foreign):
            for name in data_files.facts("prove/evaluators")["tools"]:
                try:
                    print(install(base, named(name)), flush=True)
                except InstallError as error:
                    failed = True
                    print(f"tools: {name}: {error}", file=sys.stderr)
        return 2 if failed else 0

    return environments.command(argv, "kimi_nb.prove.accuracy.evaluators", "tools", _MAKE, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
