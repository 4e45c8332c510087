"""Find which scripts a script starts, and with which arguments: directly or by a launcher.

For example::

    calls = ScriptCalls(engine, found, index)
    calls.read(source, script)  # for each script
    calls.hand_over(scripts)  # sets ``source.calls`` of the templates of launchers
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kimi_nb import catalog
from kimi_nb.check.reading import layouts
from kimi_nb.check.reading.script import Command, Script
from kimi_nb.check.reading.source_index import SourceIndex
from kimi_nb.check.reading.sources import Found, Source
from kimi_nb.check.view import commands, engine_view
from kimi_nb.check.view.deployment import Launcher
from kimi_nb.check.view.engine_view import Spot

MOST_CALLS = 64
_TEMPLATE = "run_dp_template.sh"  # what launch_online_dp.py runs
_RUNNERS = ("bash", "sh", "-x", "-e", "exec", "nohup", "source", ".", "srun")
_Home = tuple[str, bool, str]


class ScriptCalls:
    """What the scripts of a deployment start of one another."""

    def __init__(self, engine: catalog.Engine, found: Found, index: SourceIndex) -> None:
        self._engine = engine
        self._found = found
        self._index = index
        self._launches: list[tuple[Source, Command, Launcher]] = []

    def read(self, source: Source, script: Script) -> None:
        """Record which of the scripts this one starts, and with which arguments and variables."""
        lines = [one for one in script.commands if _launches(one)]
        for command in script.commands:
            if _launches(command):
                self._launch(source, command, len(lines) > 1)
            else:
                self._call(source, command)

    def _launch(self, source: Source, command: Command, many: bool) -> None:
        spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
        node = f"{source.file}:{command.line}" if many else self._index.node_of(source)
        made = commands.launcher(command.argv, spot, node)
        self._found.launchers.append(made)
        self._launches.append((source, command, made))

    def _call(self, source: Source, command: Command) -> None:
        argv = command.argv
        for at, word in enumerate(argv[:4]):
            if not word.endswith(".sh") or (at and argv[at - 1] not in _RUNNERS):
                continue
            target = self._index.beside(source, word)
            if target is not None:
                rest = argv[at + 1 :]
                if rest or command.env:
                    clean = {key: text for key, text in command.env.items() if "${" not in text}
                    target.calls.append((rest, clean, ""))
                return

    def hand_over(self, scripts: Sequence[tuple[Source, Script]]) -> None:
        """Call the template of each launch line, or assume its engines if there is none."""
        templates = _templates(scripts)
        for home, group in self._grouped().items():
            envs = {id(call): env for call, env in group}
            there = templates.get(home, [])
            named = [one for one in there if one[0].base == _TEMPLATE and not one[0].document]
            found = layouts.pairs([call for call, _ in group], named or there)
            for template, call in found:
                for words in layouts.arguments(call.made, MOST_CALLS):
                    template.calls.append((words, envs[id(call)], call.made.node))
            if not found:
                for call, _ in group:
                    self._assume(call)

    def _grouped(self) -> dict[_Home, list[tuple[layouts.Call, Mapping[str, str]]]]:
        """Return the launch lines by where their template is looked for, with their variables."""
        out: dict[_Home, list[tuple[layouts.Call, Mapping[str, str]]]] = {}
        for source, command, made in self._launches:
            above = source.text.split("\n")[: max(command.line - source.line, 0)]
            comment = above[-1].strip() if above and above[-1].strip().startswith("#") else ""
            said = comment or source.label or source.file
            out.setdefault(_home(source), []).append((layouts.Call(made, said), command.env))
        return out

    def _assume(self, call: layouts.Call) -> None:
        """Add the engines of a launch line of which nothing but the line is known."""
        made = call.made
        for words, env in layouts.bare(made, MOST_CALLS):
            one = engine_view.of(
                self._engine,
                words,
                env,
                made.spot,
                made.node,
                certain=False,
                role=layouts.label(call.says)[0],
            )
            spot = Spot(f"{made.node} rank {one.rank}", made.spot.file, made.spot.line)
            self._found.servers.append(replace(one, spot=spot, assumed=True))


def _launches(command: Command) -> bool:
    return commands.program_at(command.argv, commands.LAUNCHER) is not None


def _templates(
    scripts: Sequence[tuple[Source, Script]],
) -> dict[_Home, list[tuple[Source, str]]]:
    """Return the scripts that a launcher may call, by where it looks for them, with their labels."""
    out: dict[_Home, list[tuple[Source, str]]] = {}
    for source, script in scripts:
        if any(_takes_arguments(command) for command in script.commands):
            said = source.label if source.document else source.base
            beside = out.setdefault(_home(source), [])
            if all(one is not source for one, _ in beside):
                beside.append((source, said))
    return out


def _home(source: Source) -> tuple[str, bool, str]:
    """Return what is equal for the sources among which a launcher finds its template."""
    return source.folder, source.document, source.file if source.document else ""


def _takes_arguments(command: Command) -> bool:
    """Return whether an engine is started with words that a launcher hands in ($1 to $7)."""
    return commands.serve_at(command.argv) is not None and any(
        re.fullmatch(r"\$\{[1-9]\}", word.text) for word in command.words
    )
