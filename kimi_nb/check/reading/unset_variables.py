"""Find what looks wrong in the words and variables of a script once they are known.

`words` looks at one command, `variables` at a whole script, and `job` reads the options of a SLURM
job. Each adds what it finds to ``found``.
"""

from __future__ import annotations

import collections
import difflib
import itertools
import os
import re
from collections.abc import Sequence

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading import near_names
from kimi_nb.check.reading.script import Command, Script, Word
from kimi_nb.check.reading.sources import Found, Source
from kimi_nb.check.rules import security
from kimi_nb.check.view import commands
from kimi_nb.check.view.deployment import Fault, Program
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files

_LARGEST = 200_000  # characters of a file in which names are counted
# NAME=${NAME:-default}, as often as a script that has a default for each of its settings.
_DEFAULT = re.compile(r"^\s*(?:export )?(\w+)=[\"']?\$\{\1:?-", re.MULTILINE)
_MANY, _FEW = 5, 4
_NAMES = 500  # of a script that a person writes
_INCLUDES = re.compile(r"^\s*(?:source|\.)\s", re.MULTILINE)
_PLAIN = re.compile(r"(?<=[=\s\"])\$\{?([A-Z][A-Z0-9]*_[A-Z0-9_]+)\}?(?=[\s\"\\]|$)", re.MULTILINE)
_LONG = re.compile(r"\$\{?([A-Za-z_]\w{11,})")
_READERS = ("python", "python3", "vllm", "torchrun")
_LETTERS = re.compile("([A-Z][A-Z0-9_]+)")
_VALUED = re.compile("--(?!env$|served-model-name)[a-z][a-z-]+$")
_INSIDE = re.compile(r"--[a-z][\w-]*=([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?:[./:@-][^$]*)?")
_BRACED = re.compile(r"(?<![\w${])\{([A-Z][A-Z0-9_]+)\}")
_SEEN = 2000  # characters of a word in which a placeholder is looked for
# Variables that a caller or the system gives.
_OUTSIDE = re.compile(
    r"SLURM_|HF_|.*(TOKEN|KEY|SECRET|PASSWORD)$|(HOME|USER|PWD|PATH|HOSTNAME|"
    r"SHELL|UID|TMPDIR|LOGNAME|RANDOM|BASH_SOURCE|LD_LIBRARY_PATH|PYTHONPATH|"
    r"CUDA_VISIBLE_DEVICES|ASCEND_RT_VISIBLE_DEVICES|MASTER_ADDR|NODE_RANK|"
    r"RANK|WORLD_SIZE|LOCAL_RANK|LINENO|SECONDS|IFS|OLDPWD|REPLY)$"
)
_PLACEHOLDER = re.compile(
    # What a chart fills in itself (.Values.x, include) is no placeholder.
    rf"{fill_ins.MARK[0]}(?!\.|include|else|if_)[^{fill_ins.MARK[1]}]*{fill_ins.MARK[1]}|\b\d+\.(?:\d+\.)*x{{1,3}}\.[\dx.]*|"
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


def letters(source: Source, script: Script, found: Found) -> None:
    """Find words that are the name of a variable, where its value is meant: ``--port PORT``."""
    names = {name for name, one in script.variables.items() if one.line and len(name) > 2}
    lines = source.text.split("\n")
    for command in script.commands:
        if commands.serve_at(command.argv) is None and "curl" not in command.argv[:1]:
            continue
        for before, word in itertools.pairwise(command.words):
            match = _LETTERS.fullmatch(word.text)
            if fill_ins.MARK[0] in word.text and 0 <= word.line - source.line < len(lines):
                match = _BRACED.search(lines[word.line - source.line])
            if match is None or match[1] not in names:
                continue
            if match[0] == match[1] and not _VALUED.match(before.text):
                continue
            found.faults.append(
                Fault(
                    "shell/substitution",
                    Spot(f"{source.file}:{word.line}", source.file, word.line),
                    f"{match[0]} stays as it is written; the variable is ${match[1]}",
                    WARNING,
                )
            )


def bare(scripts: Sequence[tuple[Source, Script]], found: Found) -> None:
    """Find names of variables inside values, where others of the file have a dollar sign.

    Such as ``--workload-pool=PROJECT_ID.svc.id.goog`` beside ``--project=$PROJECT_ID``.
    """
    named: dict[str, set[str]] = {}
    for source, _ in scripts:
        there = re.findall(r"\$\{?([A-Z][A-Z0-9]*_[A-Z0-9_]+)", source.text)
        named.setdefault(source.file, set()).update(there)
    for source, script in scripts:
        for command in script.commands if named[source.file] else ():
            for word in command.words:
                match = _INSIDE.fullmatch(word.raw)
                if match and match[1] in named[source.file]:
                    spot = Spot(f"{source.file}:{word.line}", source.file, word.line)
                    message = f"{match[1]} stays as it is written; the variable is ${match[1]}"
                    found.faults.append(Fault("shell/substitution", spot, message, WARNING))


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


def alike(scripts: Sequence[tuple[Source, Script]], found: Found) -> None:
    """Find variables that nothing sets, where another one has nearly their name."""
    texts: dict[str, str] = {}
    assigned: dict[str, set[str]] = {}
    for source, script in scripts:
        texts[source.file] = f"{texts.get(source.file, '')}\n{source.text}"
        names = {name for name, var in script.variables.items() if var.line}
        assigned.setdefault(source.file, set()).update(names)
    told: set[tuple[str, str, int]] = set()
    every = set().union(*assigned.values())
    for source, script in scripts:
        there = assigned[source.file]
        for command in script.commands:
            for name in command.unset:
                place = source.file, name, command.line
                if name in there or place in told or len(name) < 4:
                    continue
                told.add(place)
                other = near_names.nearly(name, there, texts[source.file])
                if source.document and not other and name not in every:
                    other = near_names.ending(name, every - there)
                    there = there | {other}
                # Of two names that nothing sets, the one in mixed case is the slip.
                if other and (other in there or not name.isupper()):
                    spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
                    message = f"${name} is set nowhere; ${other} is nearly the same name"
                    found.faults.append(Fault("shell/unset", spot, message))
                elif source.document and name.islower() and _beside(command, there):
                    spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
                    if not re.search(rf"(?<![\w$]){name}(=|\b[^\n]*read )", texts[source.file]):
                        message = f"${name} is set nowhere; what stands beside it is"
                        found.faults.append(Fault("shell/unset", spot, message))


def _beside(command: Command, there: set[str]) -> bool:
    """Return whether a command also uses variables in small letters that are set."""
    used = {name for word in command.words for name in re.findall(r"\$\{?([a-z_]+)\b", word.raw)}
    return bool(used & there)


def misspelt(scripts: Sequence[tuple[Source, Script]], found: Found) -> None:
    """Find long names that a script uses once and never sets, beside one that it uses more often.

    What a script reads in, or takes from its caller, is named alike in all places.
    """
    for source, _ in scripts:
        text = source.text[:_LARGEST]
        places = {one[1]: one.start() for one in _LONG.finditer(text)}
        used = collections.Counter(one[1] for one in _LONG.finditer(text))
        more = [name for name, count in used.items() if count > 1]
        if len(used) > _NAMES:
            continue
        for name in [name for name, count in used.items() if count == 1 and more]:
            near = next(iter(difflib.get_close_matches(name, more, n=1, cutoff=0.93)), "")
            same = re.sub(r"\d", "", near) == re.sub(r"\d", "", name)
            if near and not same and not re.search(rf"(?<![\w$]){name}(=|\b(?!\s*\}}))", text):
                line = source.line + text.count("\n", 0, places[name])
                message = f"${name} is set nowhere; ${near} is nearly the same name"
                spot = Spot(f"{source.file}:{line}", source.file, line)
                found.faults.append(Fault("shell/unset", spot, message))


def undefaulted(scripts: Sequence[tuple[Source, Script]], found: Found) -> None:
    """Find variables that a script takes from its caller without a default, where others have one."""
    for source, _ in scripts:
        text = source.text[:_LARGEST]
        if source.document or len(_DEFAULT.findall(text)) < _MANY or _INCLUDES.search(text):
            continue
        plain = list(_PLAIN.finditer(text))
        if len(plain) > _NAMES:
            continue
        bare = [
            match
            for match in plain
            if not _OUTSIDE.match(match[1])
            and not re.search(rf"\b{match[1]}=|[{{!#]{match[1]}[:?+-]|read .*{match[1]}", text)
        ]
        names = dict.fromkeys(match[1] for match in bare)
        for match in bare if len(names) < _FEW else ():
            line = source.line + text.count("\n", 0, match.start())
            spot = Spot(f"{source.file}:{line}", source.file, line)
            message = f"${match[1]} is set nowhere in this script"
            found.faults.append(Fault("shell/unset", spot, message, WARNING))


def unexported(scripts: Sequence[tuple[Source, Script]], found: Found) -> None:
    """Find variables of a document that stand before a command, and that it does not see."""
    texts: dict[str, str] = {}
    for source, _ in scripts:
        texts[source.file] = f"{texts.get(source.file, '')}\n{source.text}"
    known = {*catalog.ever_read(), *data_files.facts("catalog/versions")["others"]}
    for source, script in scripts:
        if not source.document or not script.commands:
            continue
        text = texts[source.file]
        serves = any(commands.serve_at(one.argv) is not None for one in script.commands)
        runs = [one.line for one in script.commands if commands.base(one.argv[0]) in _READERS]
        for name, var in script.variables.items():
            seen = name in known or (
                "_" in name and name.isupper() and _next(source, var.line) in runs
            )
            if (
                seen
                and not var.exported
                and var.line
                and not (serves and name in known)  # told already
                and not re.search(rf"\$\{{?{name}\b|export\s[^\n]*\b{name}\b|-e {name}\b", text)
            ):
                found.faults.append(
                    Fault(
                        "shell/unexported",
                        Spot(f"{source.file}:{var.line}", source.file, var.line),
                        f"{name} is set, and neither used nor exported: no program sees it",
                    )
                )


def _next(source: Source, line: int) -> int:
    """Return the line of the first text below a line that is no assignment."""
    lines = source.text.split("\n")[line - source.line + 1 :]
    for number, text in enumerate(lines, start=line + 1):
        if text.strip() and not re.match(r"\s*(\w+=\S*\s*$|#)", text):
            return number
    return 0


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
