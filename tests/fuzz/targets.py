"""What is fuzzed: for each kind of input where its examples stand and who reads it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st

from fuzz import change, guard
from kimi_nb.cli import main, redacted_streams
from kimi_nb.core import paths
from kimi_nb.show import visible

CORPUS = Path(__file__).parent / "corpus"
Strategy = st.SearchStrategy[bytes]
_given: dict[Path, bytes] = {}  # what a stranger wrote into the folder of the present input


@dataclass(frozen=True)
class Target:
    """Something that reads what a stranger wrote.

    Attributes:
        read: Reads an input; what it makes goes into the folder, and what it shows is returned.
        words: Of the grammar of the inputs.
        values: Returns how the values of an input are changed: `change.json_values` and the like.
        more: Returns examples that stand elsewhere in the project.
    """

    name: str
    read: Callable[[bytes, Path], str]
    words: Sequence[bytes] = ()
    values: Callable[[Sequence[bytes]], Strategy] | None = None
    more: Callable[[], Sequence[bytes]] = field(default=tuple)

    def corpus(self) -> list[Path]:
        """The kept inputs; those that begin with "find" have once broken something."""
        return sorted((CORPUS / self.name).iterdir())

    def inputs(self) -> Strategy:
        """Inputs of chance's choice."""
        kept = [path.read_bytes() for path in self.corpus()] + list(self.more())
        texts = change.text(kept, self.words)
        if self.values is None:
            return texts
        good = [path.read_bytes() for path in self.corpus() if path.name[:4] == "good"]
        changed = self.values([*good, *self.more()])
        return st.one_of(changed, changed, texts)

    def check(self, data: bytes, folder: Path) -> None:
        """Fail where one input breaks what must hold of all."""
        _given.clear()
        with guard.memory(), guard.seconds(len(data)), guard.folder(folder):
            shown = self.read(data, folder)
        guard.plain(shown)
        guard.kept(folder, _given)


def command(*words: str | os.PathLike[str]) -> str:
    """What `kimi-nb` prints in this process; an error must be ours, a sentence of one screen."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main.main([os.fspath(word) for word in words])
        except SystemExit as error:  # argparse's own
            code = error.code
    assert code in (0, 1, 2), code
    if code == 2:
        guard.message(errors.getvalue())
    return out.getvalue() + errors.getvalue()


def screen(*values: object) -> str:
    """What a command prints of values.

    What a reader returns may hold the text of its input, a secret too: it is a value, which nobody
    sees. What is judged is each face of it: here the screen, in `guard.kept` the files.
    """
    out = io.StringIO()
    print(visible("\n".join(map(str, values))), file=redacted_streams.Redacted(out))
    return out.getvalue()


def written(folder: Path, name: str, data: bytes) -> Path:
    """The file of this name in the folder, as a stranger wrote it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    _given[path] = data
    return path


def lines(data: bytes) -> list[str]:
    """An input as the texts that a caller would give."""
    return data.decode("utf-8", "replace").replace("\0", "").split("\n")


def here(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Work in a folder, so that what is relative stays there."""
    return contextlib.chdir(folder)


def instead(where: object, name: str, value: object) -> contextlib.AbstractContextManager[object]:
    """Put something in the place of what would ask a machine."""
    return mock.patch.object(where, name, value)


def shipped(pattern: str) -> list[bytes]:
    """Parameter files of the project, as examples."""
    return [path.read_bytes() for path in sorted((paths.root() / "params").glob(pattern))]
