"""Write a bundle to disk atomically: into a new folder, which is then renamed."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import glob
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kimi_nb import show
from kimi_nb.core.errors import ParameterError, WriteError, choice

_PLAN = "plan.json"  # lists the bundle's files; its presence marks a folder as a bundle
# The program of `kimi-nb up`: long, the same on every node, and nothing that a person runs or edits.
NAMED_ONLY = "node.sh"


def write(files: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Write ``files`` (relative path to text) into ``folder`` and return what changed.

    The result maps each path that differs from the previous bundle to "new", "changed" or "gone".
    Files that no bundle wrote (logs, notes) are kept. Raises WriteError for a folder that cannot be
    written or that holds something else.
    """
    folder = Path(os.path.realpath(folder.expanduser()))
    if folder == Path.cwd() or folder in Path.cwd().parents:
        raise WriteError(f"{folder}: is the working directory, or above it; name a new folder.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent):
            return _write(files, folder)
    except OSError as error:
        raise WriteError(
            f"{folder}: cannot be written: {error.strerror}. Choose another folder "
            "(--out, run_dir) or mend its permissions."
        ) from None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder against other writers; it ends with the process at the latest."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(files: Mapping[str, str], folder: Path) -> dict[str, str]:
    before = read(folder)
    if before is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WriteError(
            f"{folder}: is there already and is no bundle (no {_PLAN} of ours); name "
            "a new folder, or empty this one."
        )
    _clear(folder)
    changes = diff(before or {}, files)
    if before is not None and not changes and _executable(folder, files):
        return {}
    # Not tempfile.mkdtemp: the bundle keeps the folder, and its mode is that of the umask.
    fresh = folder.parent / f".{folder.name[:40]}.{secrets.token_hex(4)}.new"
    fresh.mkdir()
    try:
        _fill(fresh, files)
        if before is not None:
            _keep(folder, fresh, before)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return changes


def _clear(folder: Path) -> None:
    """Remove what a writer that was killed has left; nobody else writes while the lock is held."""
    for path in folder.parent.glob(f".{glob.escape(folder.name[:40])}.????????.new"):
        shutil.rmtree(path, ignore_errors=True)


def _executable(folder: Path, files: Mapping[str, str]) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in files if _mode(name) == 0o755)


def _mode(name: str) -> int:
    return 0o755 if name.endswith((".sh", ".py", ".sbatch")) else 0o644


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    made: set[str] = set()
    for name, text in files.items():
        parent, _, _ = name.rpartition("/")
        if parent and parent not in made:
            os.makedirs(folder / parent, exist_ok=True)
            made.add(parent)
        handle = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, _mode(name))
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)


def _keep(old: Path, fresh: Path, before: Mapping[str, str]) -> None:
    """Copy what others put into the old folder, such as logs of ranks and notes."""
    for path in sorted(old.rglob("*")):
        name = str(path.relative_to(old))
        target = fresh / name
        if path.is_dir() or name in before or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)


def _swap(fresh: Path, folder: Path) -> None:
    """Replace ``folder`` by ``fresh``; the old one is removed only once the new one is in place."""
    if not folder.exists():
        os.rename(fresh, folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name[:40]}.old.", dir=folder.parent))
    try:
        os.rename(folder, aside / "was")
        try:
            os.rename(fresh, folder)
        except BaseException:
            os.rename(aside / "was", folder)
            raise
    finally:
        # Remove the old folder only if the new one is in place.
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)


def read(folder: Path) -> dict[str, str] | None:
    """Return the files of a bundle by relative path; None if there is no bundle."""
    try:
        names = json.loads((folder / _PLAN).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if not isinstance(names, list):
        return None
    return {
        name: (folder / name).read_text(encoding="utf-8", errors="replace")
        for name in names
        if (folder / name).is_file()
    }


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the differences between two bundles: path to "new", "changed" or "gone".

    >>> diff({"a": "1", "b": "1"}, {"a": "2", "c": "1"})
    {'a': 'changed', 'c': 'new', 'b': 'gone'}
    """
    out = {
        name: "new" if name not in before else "changed"
        for name, text in after.items()
        if before.get(name) != text
    }
    return out | {name: "gone" for name in before if name not in after}


def unified(before: Mapping[str, str], after: Mapping[str, str], most: int = 200) -> str:
    """Return the changes as ``diff -u`` shows them, at most ``most`` lines."""
    lines: list[str] = []
    for name in diff(before, after):
        if name != _PLAN:
            lines += difflib.unified_diff(
                before.get(name, "").splitlines(),
                after.get(name, "").splitlines(),
                f"before/{name}",
                f"after/{name}",
                lineterm="",
                n=1,
            )
    more = [f"... {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join(lines[:most] + more)


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk and what changed since the previous one."""

    folder: Path
    files: dict[str, str]
    changes: dict[str, str]

    def faults(self) -> list[str]:
        """Return what ``bash -n`` finds wrong with the scripts; nothing is run."""
        # Nodes share many scripts; each text is checked once.
        names = {
            text: name for name, text in self.files.items() if name.endswith((".sh", ".sbatch"))
        }
        out = []
        for name in names.values():
            done = subprocess.run(
                ["bash", "-n", str(self.folder / name)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                out.append(done.stderr.strip())
        return out

    def part(self, *folders: str) -> show.Files:
        """Return the scripts in some folders: a node, ``jobs``, ``install``, ``client``.

        Each text is there once; node.sh is named only.
        """
        parts = {name.partition("/")[0] for name in self.files if "/" in name}
        for folder in folders:
            if folder not in parts:
                raise ParameterError(choice("folder of the bundle", folder, sorted(parts)))
        names: dict[str, list[str]] = {}  # by text
        for folder in folders:
            for name, text in self.files.items():
                if name.startswith(f"{folder}/") and name.endswith((".sh", ".sbatch")):
                    names.setdefault(text, []).append(name)
        title = ", ".join(str(self.folder / folder) for folder in folders)
        return show.Files(
            title, tuple(self._file(*same, text=text) for text, same in names.items())
        )

    def _file(self, name: str, *also: str, text: str) -> show.File:
        hidden = str(self.folder / name) if Path(name).name == NAMED_ONLY else ""
        return show.File(name, text, also, hidden)

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _table(self) -> show.Table:
        return show.Table(
            f"{len(self.files)} files in {self.folder}",
            ("file", "lines", "against the last bundle"),
            tuple(
                (name, text.count("\n"), self.changes.get(name, "as before"))
                for name, text in self.files.items()
            ),
        )
