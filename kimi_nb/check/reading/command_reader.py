"""Follow the commands of a script to what they start: engines, proxies, clients, containers.

For example::

    reader = CommandReader(engine, found, index)
    reader.read(source, script)  # adds to ``found``
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading import (
    bash,
    carriers,
    compose,
    container_commands,
    fragments,
    quirks,
    unset_variables,
)
from kimi_nb.check.reading.script import Command, Script, Word
from kimi_nb.check.reading.source_index import SourceIndex
from kimi_nb.check.reading.sources import Found, Source, Words
from kimi_nb.check.reading.syntax import Unparsed, tree
from kimi_nb.check.rules import variables
from kimi_nb.check.view import clients, commands, container_start, engine_view
from kimi_nb.check.view.deployment import Box, Program
from kimi_nb.check.view.engine_view import Spot

SGLANG = "SGLang is not judged: the rules are of vLLM"
_MOST_ENGINES = 1024  # of all files, beyond which nobody reads findings
_MOST_WORDS = 4000  # of one command
_DEEPEST = 4  # commands inside commands
_CONTINUES = {f"shell/continuation-{end}" for end in ("lost", "comment", "spaced", "glued", "end")}


class CommandReader:
    """A reader of commands, which adds what they start to what was found."""

    def __init__(self, engine: catalog.Engine, found: Found, index: SourceIndex) -> None:
        self._engine = engine
        self._found = found
        self._index = index

    def read(self, source: Source, script: Script, node: str = "") -> None:
        """Read every command of a script; ``node`` is where it runs if something says so."""
        count = sum(1 for command in script.commands if commands.serve_at(command.argv) is not None)
        over = False
        for command in script.commands:
            # What starts after a kill or a wait may run without what was started before.
            over = over or carriers.ends(command.argv)
            certain = command.certain and not over and not source.document
            self._one(source, replace(command, certain=certain), node, count <= 1, 0)

    def container(self, one: compose.Container, source: Source) -> None:
        """Read a container of a compose or Kubernetes file."""
        box, command = container_commands.of_manifest(one, source)
        self._found.boxes.append(box)
        if command is not None:
            self._inside(source, command, box, True, 0)

    def _one(self, source: Source, command: Command, node: str, alone: bool, depth: int) -> None:
        argv = command.argv
        spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
        node = carriers.remote(argv) or node
        home = node or self._index.node_of(source)
        at = container_start.container_at(argv)
        if at is not None:
            self._docker(source, command, spot, home, at, alone, depth)
        elif depth < _DEEPEST and (run := container_start.image_run(argv)) is not None:
            if (inside := container_commands.inside_image(command, run)) is not None:
                self._one(source, inside, node, alone, depth + 1)
            return
        elif depth < _DEEPEST and (inner := carriers.inner(command)) is not None:
            self._script(source, command, inner, node, alone, depth)
            return
        elif (start := commands.serve_at(argv)) is not None:
            self._serve(source, command, start, spot, home, alone)
        elif (start := commands.module_at(argv, "dynamo.vllm")) is not None:
            self._dynamo(source, command, start, spot, home)
        elif commands.is_proxy(argv):
            self._found.proxies.append(commands.proxy(argv, spot, ""))
        elif (client := clients.client(self._engine, argv, spot)) is not None:
            self._found.clients.append(client)
        elif commands.program_at(argv, commands.LAUNCHER) is None:
            self._other(source, command, spot)
            return
        unset_variables.words(source, command, self._found)

    def _script(
        self,
        source: Source,
        command: Command,
        inner: tuple[str, int],
        node: str,
        alone: bool,
        depth: int,
    ) -> None:
        """Read a script that a command takes as one word."""
        text, line = inner
        yaml = not source.text and "vllm" in text
        if (yaml or (text and text in source.text)) and "\n" in text.strip():
            self._quirks(source, text, line)  # a script that YAML holds, or single quotes
        script = bash.interpret(
            fill_ins.masked(text),
            source.file,
            line,
            None,
            command.env,
            env_lines=command.env_lines,
        )
        for one in [
            replace(one, certain=one.certain and command.certain) for one in script.commands
        ]:
            self._one(source, one, node, alone, depth + 1)

    def _quirks(self, source: Source, text: str, line: int) -> None:
        """Find what is wrong in a script that a container runs."""
        with contextlib.suppress(Unparsed):
            found = quirks.find(text, tree(fill_ins.masked(text)), source.file, line, True)
            self._found.faults += [one for one in found if one.rule in _CONTINUES]

    def _serve(
        self, source: Source, command: Command, start: int, spot: Spot, home: str, alone: bool
    ) -> None:
        """Read a command that names ``vllm serve``, with what stands before it."""
        argv = command.argv
        if len(self._found.servers) >= _MOST_ENGINES or len(argv) > _MOST_WORDS:
            why = f"more than {_MOST_ENGINES} engines or {_MOST_WORDS} words: not read"
            self._found.unread.append((spot, why))
        elif "--omni" in argv:
            self._found.unread.append((spot, "vllm-omni has flags of its own"))
        elif not _asks_help(argv) and "-h" not in argv[start:]:
            before = command.words[:start]
            env, lines = dict(command.env), dict(command.env_lines)
            for word in before:  # env A=1, docker exec -e A=1
                if match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word.text, re.DOTALL):
                    env[match[1]], lines[match[1]] = match[2], word.line
            made = replace(
                command,
                env=env,
                env_lines=lines,
                certain=command.certain and (alone or command.background),
            )
            self._server(source, made, start, spot, carriers.step_node(before) or home)

    def _server(self, source: Source, command: Command, start: int, spot: Spot, node: str) -> None:
        words = command.words
        if _asks_help(command.argv[start:]):
            return  # it prints, and ends
        made = engine_view.of(
            self._engine,
            command.argv,
            command.env,
            spot,
            node,
            start,
            tuple(word.line for word in words),
            command.certain,
            env_lines=command.env_lines,
        )
        filled = frozenset(index for index, word in enumerate(words) if "$" in word.raw)
        made = replace(made, filled=filled)
        if source.calls and made.single and made.rank is not None:
            named = Spot(f"{node} rank {made.rank}", spot.file, spot.line)
            made = replace(made, spot=named)
        self._found.servers.append(made)

    def _dynamo(self, source: Source, command: Command, start: int, spot: Spot, home: str) -> None:
        """Read a worker of Dynamo: of its flags, the engine's alone are judged by the engine."""
        words = [(word.text, word.line) for word in command.words[start:]]
        if kept := fragments.of_engine(words):
            self._found.loose.append(Words(source.file, kept, True))
        made = engine_view.of(
            self._engine,
            command.argv[start:],
            command.env,
            spot,
            home,
            0,
            tuple(line for _, line in words),
            command.certain,
        )
        self._found.servers.append(replace(made, http_port=None, headless=True, assumed=True))

    def _other(self, source: Source, command: Command, spot: Spot) -> None:
        """Read a command that starts nothing of a service."""
        argv = command.argv
        if source.document and re.match(r"--[a-z][a-z-]+(=|$)", argv[0]) and "{" in argv[-1][:1]:
            said = shlex.join(argv)  # a flag that a document adds, with JSON in quotes
            self._found.spans.append(Words(source.file, ((said, command.line),), True))
        self._found.programs.append(Program(spot, argv, {}))
        for name in command.own:
            # Other programs read variables of their own: only a slip in a known name is told.
            slip = variables.near(name) and not name.startswith("VLLM_")
            if slip or name in catalog.ever_read():
                given = {name: command.env[name]}
                self._found.exports.append(Program(spot, ("env", name), given))
        if commands.is_sglang(argv):
            self._found.unread.append((spot, SGLANG))
        elif commands.is_strange(argv):
            self._found.strange.append((spot, argv[0]))

    def _docker(
        self,
        source: Source,
        command: Command,
        spot: Spot,
        home: str,
        at: int,
        alone: bool,
        depth: int,
    ) -> None:
        number = len(self._found.boxes) + 1
        box = container_commands.of_docker(command, spot, home, at, number)
        if box is None:
            return
        self._found.boxes.append(box)
        if box.argv:
            inside = container_commands.inside_docker(command, box)
            self._inside(source, inside, box, alone, depth)

    def _inside(self, source: Source, command: Command, box: Box, alone: bool, depth: int) -> None:
        """Read what runs inside a container."""
        before = len(self._found.servers)
        command = replace(command, unset=())
        if carriers.inner(command) is not None or commands.serve_at(command.argv) is not None:
            self._one(source, command, box.node, alone, depth + 1)
        elif box.runs_engine and _enters_engine(box):
            unset_variables.words(source, command, self._found)
            words = (Word("vllm", command.line), Word("serve", command.line), *command.words)
            made = replace(command, words=words, certain=command.certain and alone)
            self._server(source, made, 2, box.spot, box.node)
        self._found.servers[:] = container_commands.seen(box, self._found.servers, before)


def _asks_help(argv: Sequence[str]) -> bool:
    return any(re.match("--help(=|$)", word) for word in argv)


def _enters_engine(box: Box) -> bool:
    entry = " ".join(box.options.get("--entrypoint", ()))
    return not entry or "vllm" in entry
