"""Find what looks wrong in the words and variables of a script once they are known.

`words` looks at one command, `variables` at a whole script, and `job` reads the options of a SLURM
job. Each adds what it finds to ``found``.
"""

from __future__ import annotations

import os
import re

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading.script import Command, Script, Word
from kimi_nb.check.reading.sources import Found, Source
from kimi_nb.check.rules import security
from kimi_nb.check.view import commands
from kimi_nb.check.view.deployment import Fault, Program
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files

_SEEN = 2000  # characters of a word in which a placeholder is looked for
# Variables that a caller or the system gives.
_OUTSIDE = re.compile(
    r"SLURM_|HF_|.*(TOKEN|KEY|SECRET|PASSWORD)$|(HOME|USER|PWD|PATH|HOSTNAME|"
    r"SHELL|UID|TMPDIR|LOGNAME|RANDOM|BASH_SOURCE|LD_LIBRARY_PATH|PYTHONPATH|"
    r"CUDA_VISIBLE_DEVICES|ASCEND_RT_VISIBLE_DEVICES|MASTER_ADDR|NODE_RANK|"
    r"RANK|WORLD_SIZE|LOCAL_RANK|LINENO|SECONDS|IFS|OLDPWD|REPLY)$"
)
_PLACEHOLDER = re.compile(
    rf"{fill_ins.MARK[0]}[^{fill_ins.MARK[1]}]*{fill_ins.MARK[1]}|\b\d+\.(?:\d+\.)*x{{1,3}}\.[\dx.]*|"
    r"^x{3,}$|\bx{1,3}\.x{1,3}\.x{1,3}\.x{1,3}\b|/path/to\b|\|[a-z_]+_version\||"
    r"\byour[_-][a-z_-]+|\bYOUR_[A-Z_]+|<[A-Z_]{3,}>"
)


def words(source: Source, command: Command, found: Found) -> None:
    """Find placeholders and unset variables in the words of a command that matters."""
    seen = set()
    for word in (
        *command.words,
        *(
            Word(text, command.env_lines.get(name, command.line))
            for name, text in command.env.items()
        ),
    ):
        text = word.text[:_SEEN]
        if fill_ins.holds(text):
            found.fill_ins.add(f"{source.file}:{text[:80]}")
        match = _PLACEHOLDER.search(text)
        if match and (match[0], word.line) not in seen:
            seen.add((match[0], word.line))
            shown = fill_ins.shown(match[0])
            found.faults.append(
                Fault(
                    "shell/placeholder",
                    Spot(f"{source.file}:{word.line}", source.file, word.line),
                    f"a placeholder is left in: {shown}",
                )
            )
    if source.document:
        return
    for name in command.unset:
        if not _OUTSIDE.match(name) and name != "UNKNOWN" and not source.includes:
            source.unset.setdefault(name, command.line)


def variables(source: Source, script: Script, found: Found) -> None:
    """Find variables that nothing sets, that are not exported, or that hold a secret."""
    # One or two are forgotten, more come from a caller by intention.
    if len(source.unset) < 3:
        for name, line in source.unset.items():
            found.faults.append(
                Fault(
                    "shell/unset",
                    Spot(f"{source.file}:{line}", source.file, line),
                    f"${name} is set nowhere in this script",
                )
            )
    serves = any(commands.serve_at(command.argv) is not None for command in script.commands)
    known = {*catalog.ever_read(), *data_files.facts("catalog/versions")["others"]}
    for name, var in script.variables.items():
        if var.exported and not serves and var.text is not None and name not in script.used:
            spot = Spot(f"{source.file}:{var.line}", source.file, var.line)
            found.exports.append(Program(spot, ("export", name), {name: var.text}))
        if var.exported and security.looks_secret(name, var.text or ""):
            spot = Spot(f"{source.file}:{var.line}", source.file, var.line)
            found.programs.append(Program(spot, ("export", name), {name: var.text or ""}))
        if serves and not var.exported and name not in script.used and name in known:
            found.faults.append(
                Fault(
                    "shell/unexported",
                    Spot(f"{source.file}:{var.line}", source.file, var.line),
                    f"{name} is set and not exported: the engine does not see it",
                )
            )


def job(source: Source, script: Script, found: Found) -> None:
    """Read the options of a SLURM job, if the script is one."""
    options, lines = [], {}
    for number, line in enumerate(source.text.split("\n")):
        if line.startswith("#SBATCH") and line[7:8].isspace():
            option = line[8:].partition(" #")[0].strip()
            options.append(option)
            for name in commands.sbatch([option]):
                lines[name] = number + source.line
    if options:
        spot = Spot(source.file, source.file, source.line)
        found.batches.append(
            commands.batch(
                options,
                [os.path.basename(command.argv[0]) for command in script.commands if command.argv],
                spot,
                lines,
            )
        )
