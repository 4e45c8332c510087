"""A bundle on a disk: written whole to a new folder, then renamed; never half of it."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kimi_nb import show
from kimi_nb.errors import ParameterError, WriteError, choice

_MARK = "plan.json"


def write(files: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Put ``files`` (relative path to text) into ``folder`` and return what changed against
    the bundle that was there: path to "new", "changed" or "gone".

    Raises WriteError for a place that cannot be written, or a folder that holds something else.
    """
    folder = Path(os.path.abspath(folder.expanduser()))
    before = read(folder)
    if before is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WriteError(f"{folder}: is there already and is no bundle (it has no {_MARK}); name "
                         "a new folder, or empty this one.")
    changes = diff(before or {}, files)
    if before is not None and not changes:
        return {}
    fresh: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        _fill(fresh, files)
        fresh.chmod(0o755)
        _swap(fresh, folder)
    except OSError as error:
        where = error.filename or folder
        raise WriteError(f"{where}: cannot be written: {error.strerror}. Choose another folder "
                         "(--out, run_dir) or mend its permissions.") from None
    finally:
        if fresh is not None and fresh.exists():
            shutil.rmtree(fresh, ignore_errors=True)
    return changes


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    made: set[str] = set()
    for name, text in files.items():
        parent, _, _ = name.rpartition("/")
        if parent and parent not in made:
            os.makedirs(folder / parent, exist_ok=True)
            made.add(parent)
        mode = 0o755 if name.endswith((".sh", ".py", ".sbatch")) else 0o644
        handle = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)


def _swap(fresh: Path, folder: Path) -> None:
    """``fresh`` takes the place of ``folder``; the old one goes only when the new one stands."""
    if not folder.exists():
        os.rename(fresh, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    os.rename(folder, old / folder.name)
    try:
        os.rename(fresh, folder)
    except OSError:
        os.rename(old / folder.name, folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def read(folder: Path) -> dict[str, str] | None:
    """The files of a bundle by relative path; None where there is no bundle."""
    if not (folder / _MARK).is_file():
        return None
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(folder.rglob("*")) if path.is_file()}


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """What a reader of both would want to know: path to "new", "changed" or "gone"."""
    out = {name: "new" if name not in before else "changed"
           for name, text in after.items() if before.get(name) != text}
    return out | {name: "gone" for name in before if name not in after}


def unified(before: Mapping[str, str], after: Mapping[str, str], most: int = 200) -> str:
    """The changed lines as ``diff -u`` would show them, ``most`` lines of them."""
    lines: list[str] = []
    for name in diff(before, after):
        if name != _MARK:
            lines += difflib.unified_diff(before.get(name, "").splitlines(),
                                          after.get(name, "").splitlines(),
                                          f"before/{name}", f"after/{name}", lineterm="", n=1)
    more = [f"... {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join(lines[:most] + more)


@dataclass(frozen=True)
class Bundle:
    """A bundle on the disk and what changed against the one before."""

    folder: Path
    files: dict[str, str]
    changes: dict[str, str]

    def faults(self) -> list[str]:
        """What ``bash -n`` finds wrong with the scripts; nothing is run. OK is []."""
        names = [name for name in self.files if name.endswith((".sh", ".sbatch"))]
        out = []
        for name in names:
            done = subprocess.run(["bash", "-n", str(self.folder / name)], capture_output=True,
                                  text=True, check=False)
            if done.returncode:
                out.append(done.stderr.strip())
        return out

    def part(self, folder: str) -> show.Text:
        """The scripts of one folder of the bundle: a node, ``jobs``, ``install``, ``client``."""
        parts = {name.partition("/")[0] for name in self.files if "/" in name}
        if folder not in parts:
            raise ParameterError(choice("folder of the bundle", folder, sorted(parts)))
        texts = [f"##### {name}\n{text}" for name, text in self.files.items()
                 if name.startswith(f"{folder}/") and name.endswith((".sh", ".sbatch"))]
        return show.Text(str(self.folder / folder), "\n".join(texts))

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _table(self) -> show.Table:
        return show.Table(f"{len(self.files)} files in {self.folder}", ("file", "lines", "against "
                          "the last bundle"), tuple(
            (name, text.count("\n"), self.changes.get(name, "as before"))
            for name, text in self.files.items()))
