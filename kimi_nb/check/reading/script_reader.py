"""Read all sources of a deployment: each once, a script that others call once for each call.

For example::

    shells, boxes = sources.sources(texts, found)
    script_reader.ScriptReader(engine, found, shells).read(boxes)  # adds to ``found``
"""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading import (
    bash,
    compose,
    ignores,
    printed,
    quirks,
    store_files,
    unset_variables,
)
from kimi_nb.check.reading.command_reader import CommandReader
from kimi_nb.check.reading.script import Script
from kimi_nb.check.reading.script_calls import MOST_CALLS, ScriptCalls
from kimi_nb.check.reading.source_index import SourceIndex
from kimi_nb.check.reading.sources import Found, Source, of_yaml
from kimi_nb.check.reading.syntax import Unparsed, tree
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

_Read = list[tuple[Source, Script]]


class ScriptReader:
    """A reader of sources, which adds what they start to what was found."""

    def __init__(self, engine: catalog.Engine, found: Found, sources: Sequence[Source]) -> None:
        self._found = found
        self._sources = sources
        self._index = SourceIndex(sources)
        self._calls = ScriptCalls(engine, found, self._index)
        self._commands = CommandReader(engine, found, self._index)

    def read(self, containers: Sequence[tuple[compose.Container, Source]]) -> None:
        """Read the containers of manifests, then every source."""
        for container, source in containers:
            self._commands.container(container, source)
        scripts: _Read = []
        for source in self._sources:
            self._interpret(source, scripts)
        for source, script in scripts:
            source.includes = bool(script.sources)
            self._calls.read(source, script)
            self._index.count(source, script)
        self._calls.hand_over(scripts)
        for source, script in scripts:
            self._run(source, script)
        unset_variables.alike(scripts, self._found)
        unset_variables.undefaulted(scripts, self._found)
        unset_variables.misspelt(scripts, self._found)
        unset_variables.bare(scripts, self._found)
        unset_variables.unexported(scripts, self._found)

    def _interpret(self, source: Source, scripts: _Read) -> None:
        """Parse and evaluate a source, and add it and what it writes to the scripts."""
        masked = self._parsed(source, fill_ins.untagged(source.text), source.document)
        if masked is None:
            return
        included = self._index.included(source)
        script = bash.interpret(
            masked, source.file, source.line, root=source.tree, included=included
        )
        scripts.append((source, script))
        self._unread(source, script)
        for name, (text, line) in script.written.items():
            self._found.stores += store_files.of(text, source.file, line)
            inner = self._written(source, text, line)
            if inner is not None:
                scripts.append(inner)
                self._index.add(name, inner[0])
        for text, line in script.manifests:
            made = of_yaml(text, source.file, source.folder, line, True, self._found)
            for container, place in made[1]:
                self._commands.container(container, place)

    def _parsed(self, source: Source, text: str, document: bool) -> str | None:
        """Parse a source, and mend what would hide the rest; return its text without fill-ins.

        ``text`` is what is looked at for what the shell would do to it. Return None for a source
        that cannot be parsed.
        """
        masked = fill_ins.masked(source.text)
        try:
            source.tree = tree(masked)
        except Unparsed as slow:
            spot = Spot(source.file, source.file, source.line)
            self._found.unread.append((spot, str(slow)))
            return None
        faults: list[Fault] = list(
            quirks.find(text, source.tree, source.file, source.line, document)
        )
        self._found.faults += faults
        if quirks.breaks(faults):
            masked = quirks.mended(masked, faults, source.line)
            source.text, source.tree = masked, tree(masked)
        if ignores.MARK in source.text:
            self._found.ignores += ignores.of_script(
                source.tree.root_node, source.file, source.line
            )
        return masked

    def _unread(self, source: Source, script: Script) -> None:
        """Record where and why reading stopped."""
        for line, why in script.unread:
            if why:
                self._found.unread.append((Spot(source.file, source.file, line), why))
        if not source.document:
            self._found.unread += [
                (
                    Spot(source.file, source.file, line + source.line),
                    f"the grammar stops at: {said}",
                )
                for line, said in quirks.unreadable(source.tree.root_node)
            ][:3]

    def _written(self, source: Source, text: str, line: int) -> tuple[Source, Script] | None:
        """Read a script that another one writes to a file; None for what names no engine."""
        if "vllm" not in text:
            return None
        inner = Source(source.file, source.folder, text, line, source.document)
        masked = self._parsed(inner, text, True)
        if masked is None:
            return None
        return inner, bash.interpret(masked, source.file, line, root=inner.tree)

    def _run(self, source: Source, script: Script) -> None:
        """Read the commands of a script, once for each call of it."""
        for arguments, env, node in source.calls[:MOST_CALLS]:
            again = bash.interpret(
                fill_ins.masked(source.text),
                source.file,
                source.line,
                arguments,
                env,
                source.tree,
                included=self._index.included(source),
            )
            self._commands.read(source, again, node)
        if not source.calls:
            self._commands.read(source, script)
        unset_variables.variables(source, script, self._found)
        unset_variables.job(source, script, self._found)
        unset_variables.letters(source, script, self._found)
        self._found.loose += printed.words(source, script)
