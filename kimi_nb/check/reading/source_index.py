"""Look up the sources of a deployment by their names, and tell on which node each one runs.

>>> from kimi_nb.check.reading.source_index import SourceIndex
>>> from kimi_nb.check.reading.sources import Source
>>> SourceIndex([Source("run.sh", "", "vllm serve m", 1, False)]).node_of(
...     Source("run.sh", "", "vllm serve m", 1, False)
... )
'run.sh'
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading.script import Script
from kimi_nb.check.reading.sources import Source
from kimi_nb.check.view import commands


class SourceIndex:
    """The sources of a deployment, by folder and name; fences of documents have no name."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._by_name = {
            (source.folder, source.base): source for source in sources if not source.document
        }
        self._folders = {source.folder for source in sources}
        self._serving: dict[str, int] = {}

    def beside(self, source: Source, name: str) -> Source | None:
        """Return another source of the same folder by its name, None if there is none."""
        found = self._by_name.get((source.folder, os.path.basename(name)))
        return None if found is source else found

    def add(self, name: str, source: Source) -> None:
        """Add a script that another one writes; a file of that name takes precedence."""
        self._by_name.setdefault((source.folder, os.path.basename(name)), source)

    def count(self, source: Source, script: Script) -> None:
        """Count a script that starts an engine, for its folder."""
        if any(commands.serve_at(command.argv) is not None for command in script.commands):
            self._serving[source.folder] = self._serving.get(source.folder, 0) + 1

    def included(self, source: Source) -> Callable[[str], str | None]:
        """Return a function that gives the text of a file that a script sources.

        Such a file is looked up by its own name, in the folder of the script.
        """

        def text(name: str) -> str | None:
            found = self.beside(source, name)
            return fill_ins.masked(found.text) if found is not None else None

        return text

    def node_of(self, source: Source) -> str:
        """Return the node of a script: its folder if each folder is a node, else the file."""
        alone = self._serving.get(source.folder, 0) <= 1
        if source.folder and len(self._folders) > 1 and alone:
            return source.folder
        return source.file if not source.document else f"{source.file}:{source.line}"
