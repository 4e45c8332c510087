"""Read the files of somebody's checkout, which may hold anything.

For example::

    checkout = open_checkout(Path("recipes"))
    checkout.repo, checkout.commit
    for path in checkout.files("models", ".yaml"):
        page = checkout.yaml(path)  # None if it cannot be read: checkout.unread says why

Nothing is executed, no file outside of the checkout is opened, and git is not asked: the commit is
read from ``.git/HEAD`` and from the files that it names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError, short

UNKNOWN = "unknown"
RECIPES, ASCEND = "vllm-project/recipes", "vllm-project/vllm-ascend"
# What each repository has, and no other of these.
_MARKS = {
    RECIPES: ("taxonomy.yaml", "models", "strategies"),
    ASCEND: ("vllm_ascend", "tests/e2e", "docs/source/tutorials"),
}
_MOST_FILES = 20_000
_LONGEST = 1 << 20
_PACKED = 16 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Checkout:
    """A checkout: its folder, the repository that it is, and its commit (or "unknown").

    ``unread`` collects a sentence for each file that was left out.
    """

    root: Path
    repo: str
    commit: str
    unread: list[str] = field(default_factory=list)

    def leave_out(self, path: str, why: str) -> None:
        """Record that a file is left out."""
        self.unread.append(f"{short(path)}: {short(why, 400, 2)}")

    def files(self, folder: str, suffix: str) -> list[str]:
        """Return the files below a folder that end so, by their paths in the checkout, sorted."""
        out: list[str] = []
        for path in self._walk(folder):
            if not path.endswith(suffix):
                continue
            if len(out) == _MOST_FILES:
                self.leave_out(folder, f"more than {_MOST_FILES} files: the rest is not read.")
                break
            out.append(path)
        return sorted(out)

    def _walk(self, folder: str) -> Iterator[str]:
        if not self._is_inside(folder):
            self.leave_out(folder, "a link that leads out of the checkout.")
            return

        def closed(error: OSError) -> None:
            self.leave_out(os.path.relpath(error.filename, self.root), f"{error.strerror}.")

        for base, folders, names in os.walk(self.root / folder, onerror=closed):
            folders.sort()
            for name in sorted(names):
                yield os.path.relpath(os.path.join(base, name), self.root)

    def _is_inside(self, path: str) -> bool:
        try:
            return (self.root / path).resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):  # a link to itself
            return False

    def yaml(self, path: str) -> dict[str, Any] | None:
        """Return the contents of a YAML file, None if it cannot be read."""
        if not self._is_inside(path):
            self.leave_out(path, "a link that leads out of the checkout.")
            return None
        try:
            return data_files.read_yaml(self.root / path)
        except ParameterError as error:
            self.leave_out(path, str(error).removeprefix(f"{self.root / path}").lstrip(":, "))
            return None

    def text(self, path: str, most: int = _LONGEST) -> str | None:
        """Return the text of a file of at most ``most`` bytes, None if it cannot be read."""
        if not self._is_inside(path):
            self.leave_out(path, "a link that leads out of the checkout.")
            return None
        try:
            if not (self.root / path).is_file():
                self.leave_out(path, "not a regular file.")
                return None
            with (self.root / path).open("rb") as file:
                raw = file.read(most + 1)
        except OSError as error:
            self.leave_out(path, f"cannot be read: {error.strerror}.")
            return None
        if len(raw) > most:
            self.leave_out(path, f"larger than {most >> 20} MB.")
            return None
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            self.leave_out(path, "not a text in UTF-8.")
            return None


def open_checkout(root: Path) -> Checkout:
    """Return the checkout in a folder.

    Raises ParameterError if the folder does not exist or is a checkout of neither repository.
    """
    if not root.is_dir():
        raise ParameterError(f"{root}: no such folder. Name a checkout of {RECIPES} or {ASCEND}.")
    for repo, marks in _MARKS.items():
        if all((root / mark).exists() for mark in marks):
            return Checkout(root, repo, _commit(root))
    wanted = "; ".join(f"{repo} has {', '.join(marks)}" for repo, marks in _MARKS.items())
    raise ParameterError(
        f"{root}: neither a checkout of {RECIPES} nor of {ASCEND} ({wanted}). "
        "git clone https://github.com/vllm-project/recipes makes one."
    )


def _commit(root: Path) -> str:
    """Return the commit that is checked out, "unknown" if the files of .git do not tell it."""
    probe = Checkout(root, "", UNKNOWN)
    head = (probe.text(".git/HEAD", 4096) or "").strip()
    match = re.fullmatch(r"ref: (refs/[\w./+@-]+)", head)
    if match is None or ".." in match[1]:
        return head if _COMMIT.fullmatch(head) else UNKNOWN
    if (root / ".git" / match[1]).is_file():
        loose = (probe.text(f".git/{match[1]}", 4096) or "").strip()
        return loose if _COMMIT.fullmatch(loose) else UNKNOWN
    if not (root / ".git" / "packed-refs").is_file():
        return UNKNOWN
    for line in (probe.text(".git/packed-refs", _PACKED) or "").splitlines():
        commit, _, name = line.partition(" ")
        if name == match[1] and _COMMIT.fullmatch(commit):
            return commit
    return UNKNOWN
