"""Write the parts that several scripts of a bundle have: variables, secrets, fixed files."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from kimi_nb.core import paths, shell
from kimi_nb.plan.spec import EngineSpec, Plan

# The positions of launch_online_dp.py's arguments to the template, by the flag they fill in.
POSITIONS = {
    "--port": 2,
    "--data-parallel-size": 3,
    "--data-parallel-rank": 4,
    "--data-parallel-address": 5,
    "--data-parallel-rpc-port": 6,
    "--tensor-parallel-size": 7,
}


@functools.cache
def static(name: str) -> str:
    """Return a script that is the same for every plan (kimi_nb/data/bundle)."""
    return (paths.DATA / "bundle" / name).read_text(encoding="utf-8")


def exports(plan: Plan, env: Mapping[str, object], who: str) -> list[str]:
    """Return lines that set the variables of an engine, its libraries and its secrets.

    ``who`` is the rank for which they speak, in the words of the shell.
    """
    lines = [shell.teller(who)] if "LD_PRELOAD" in env else []
    for name, value in env.items():
        lines += _preload(str(value)) if name == "LD_PRELOAD" else [shell.export(name, value)]
    if plan.libraries:
        lines += [
            shell.remark("The image adds this in ~/.bashrc, which a script does not read."),
            shell.append("LD_LIBRARY_PATH", plan.libraries),
        ]
    return lines + secrets(plan.secrets)


def _preload(value: str) -> list[str]:
    """Return lines that preload a library where it is there.

    A missing preload makes every command print an error, and it is only an optimisation. The folder
    of Debian and Ubuntu that is named after the processor is that of the machine.
    """
    parts = re.split("(?<=/)(?:aarch64|x86_64)(?=-linux-gnu/)", value)
    return [
        "library=" + '"$(uname -m)"'.join(map(shell.quote, parts)),
        'if [ -e "$library" ]; then',
        "    export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}",
        "else",
        '    tell WARNING "$library is not here: the engine runs without it, a little slower" >&2',
        "fi",
    ]


def secrets(secrets: Mapping[str, str]) -> list[str]:
    """Return lines that export secrets from the caller's environment.

    Secrets are referred to by name; no value is ever written.
    """
    return [
        f'export {name}="${{{source}:?set {source} before you start}}"'
        for name, source in secrets.items()
    ]


def path(folder: str) -> list[str]:
    """Return the line that puts a virtual environment first on PATH, if there is one."""
    return [shell.export("PATH", f"{folder}/bin")] if folder else []


def visible(engine: EngineSpec) -> str:
    """Return the variable that names the devices of an engine."""
    return next(name for name in reversed(list(engine.env)) if name.endswith("VISIBLE_DEVICES"))
