"""Read options of an engine that stand without a command, such as ``extraArgs`` of a values file.

>>> from kimi_nb import catalog
>>> from kimi_nb.check.reading import fragments
>>> from kimi_nb.check.reading.sources import Words
>>> words = Words("values.yaml", (("--max-model-len", 3), ("4096", 3)), False)
>>> fragments.engines(catalog.engine("vllm", "0.19.1"), [words])[0].flags
{'max-model-len': 4096}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kimi_nb import catalog
from kimi_nb.catalog import arguments, fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading import bash, quirks
from kimi_nb.check.reading.sources import Words
from kimi_nb.check.reading.syntax import Unparsed, tree
from kimi_nb.check.view import commands, engine_view
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import EngineView, Spot
from kimi_nb.core import data_files

_MOST = 4000  # words of one list
# {"size": N}, {...}: a form, not something to type.
_SHORTENED = re.compile(r"\.\.\.|\N{HORIZONTAL ELLIPSIS}|:\s*(?!True|False|None)[A-Z]\w*\s*[,}\]]")
_SPACED = re.compile(r"(--[\w.-]+)\s+([^\s{\['\"]+)")


def engines(engine: catalog.Engine, lists: Iterable[Words]) -> list[EngineView]:
    """Return a view for each list whose options are the engine's.

    A list that is not certain is taken only if every option of it is known to some version: what is
    misspelt there cannot be told from an option of another program.
    """
    out = []
    for one in lists:
        words = [(part, line) for word, line in one.words[:_MOST] for part in _parts(word)]
        line = words[0][1]
        view = engine_view.of(
            engine,
            [word for word, _ in words],
            {},
            Spot(f"{one.file}:{line}", one.file, line),
            start=0,
            lines=tuple(place for _, place in words),
            certain=False,
        )
        if one.certain or _are_engines(view):
            out.append(view)
    return out


def of_engine(words: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the options that are the engine's, or nearly so, with their values and lines.

    The others are those of a program that hands the rest over, such as Dynamo's worker.

    >>> of_engine([("--is-prefill-worker", 1), ("--max-model-le", 1), ("8", 1)])
    (('--max-model-le', 1), ('8', 1))
    """
    known = [flag.removeprefix("--") for flag in catalog.tables("vllm")["serve"]]
    out: list[tuple[str, int]] = []
    keeps = False
    for word, line in words:
        if re.match(r"--?[A-Za-z]", word):
            name = word.partition("=")[0].lstrip("-").replace("_", "-").partition(".")[0]
            keeps = (
                not word.startswith("--")
                or catalog.listed(name) is not None
                or bool(difflib.get_close_matches(name, known, n=1, cutoff=0.9))
            )
        if keeps:
            out.append((word, line))
    return tuple(out)


def prose(engine: catalog.Engine, spans: Iterable[Words]) -> tuple[list[EngineView], list[Fault]]:
    """Return the options that prose tells to give, and what is wrong with how they are written.

    Only what nobody writes on purpose is looked for there: prose also names what is gone.
    """
    views, faults = [], []
    for span in spans:
        ((text, line),) = span.words
        if _SHORTENED.search(text):
            continue
        if text.startswith("-"):
            text = f"vllm serve model {text}"
        spot = Spot(f"{span.file}:{line}", span.file, line)
        masked = fill_ins.masked(text)
        try:
            root = tree(masked)
        except Unparsed:
            continue
        faults += [
            replace(fault, severity=WARNING)
            for fault in quirks.find(text, root, span.file, line, True)
            if fault.rule == "shell/json-unquoted"
        ]
        script = bash.interpret(masked, span.file, line, root=root)
        for command in script.commands[:1]:
            start = commands.serve_at(command.argv) or 0
            argv = command.argv[start:]
            if any(word.startswith("---") and catalog.listed(word[3:]) for word in argv):
                message = "three dashes stand before a flag: it begins with two"
                faults.append(Fault("shell/dash", spot, message, WARNING))
            lines = tuple(word.line for word in command.words[start:])
            views.append(
                engine_view.of(engine, argv, {}, spot, start=0, lines=lines, certain=False)
            )
    return views, faults


def _parts(word: str) -> tuple[str, ...]:
    """Return the words of an item: a chart may join such a list into one line for the shell."""
    match = _SPACED.fullmatch(word)
    return (match[1], match[2]) if match else (word,)


def _are_engines(view: EngineView) -> bool:
    """Return whether all options are those of a vLLM, and one of them of no other program."""
    gone = data_files.facts("catalog/versions")["gone"]
    known = all(
        one.fault != arguments.UNKNOWN or one.name in gone or catalog.listed(one.name) is not None
        for one in view.given
    )
    # A switch with a word of truth is an option of a server with a parser of its own, as KServe's.
    other = any(
        one.fault == arguments.STRAY and str(one.text).lower() in ("true", "false")
        for one in view.given
    )
    return known and not other and any("-" in one.name for one in view.given)
