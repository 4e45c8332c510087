"""Find and open the files and folders that a user names, and tell what kind they are.

For example::

    texts, unread = files.collect([Path("deployment/")])
    texts[0].kind  # "bash", "markdown" or "yaml"
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.check.reading import restructured
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core.errors import ParameterError

LARGEST = 256 << 10
_MOST_FILES = 5000
_SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", "runs"}
_SUFFIXES = {
    ".sh": "bash",
    ".bash": "bash",
    ".sbatch": "bash",
    ".slurm": "bash",
    ".job": "bash",
    ".batch": "bash",
    ".env": "bash",
    ".md": "markdown",
    ".mdx": "markdown",
    ".markdown": "markdown",
    ".rst": "markdown",  # as `restructured` writes it
    ".yml": "yaml",
    ".yaml": "yaml",
}
# Behind the suffix of the file that is made of it: manifest.yaml.tpl.
_TEMPLATES = (".tpl", ".tmpl", ".template", ".j2", ".jinja", ".jinja2", ".tftpl", ".in")
_SHELLS = {"bash", "sh", "dash", "ash", "ksh"}


@dataclass(frozen=True)
class Text:
    """One file: its name as shown to people, the folder it is in, its kind and its text.

    ``path`` is where it lies, "" for what is no file.
    """

    name: str
    folder: str
    kind: str
    text: str
    path: str = ""

    @property
    def base(self) -> str:
        """The name of the file without its folder."""
        return os.path.basename(self.name)


def is_template(name: str) -> bool:
    """Return whether a file is filled in before it is used, by its name.

    >>> is_template("pod.yaml.tpl"), is_template("pod.yaml")
    (True, False)
    """
    return name.lower().endswith(_TEMPLATES)


def collect(paths: Sequence[Path | str]) -> tuple[list[Text], list[tuple[Spot, str]]]:
    """Return every file that can be read, and what was not read and why.

    Raises ParameterError for a path that does not exist, and if nothing can be read at all.
    """
    texts: list[Text] = []
    unread: list[tuple[Spot, str]] = []
    seen: set[Path] = set()
    for given in paths:
        if not str(given).strip():
            raise ParameterError("an empty name of a file: is a shell variable not set?")
        path = Path(given)
        if not os.path.exists(path):
            raise ParameterError(f"{given}: no such file or folder.")
        if os.path.isdir(path):
            _folder(path, texts, unread, seen)
            continue
        found = _open(path, str(given), path.parent.name)
        if isinstance(found, str):
            unread.append((Spot(str(path), str(given)), found))
        elif path.resolve() not in seen:
            seen.add(path.resolve())
            texts.append(found)
    if not texts:
        named = ", ".join(str(path) for path in paths[:3])
        why = "; ".join(f"{spot.file}: {reason}" for spot, reason in unread[:3])
        raise ParameterError(
            f"{named}: nothing there that can be read: bash, SLURM, docker "
            f"compose, markdown and reStructuredText are.{f' {why}.' if why else ''}"
        )
    return texts, unread


def tree(paths: Sequence[Path | str]) -> frozenset[str] | None:
    """Return the files of a folder by their paths inside it, None if not one folder alone is given.

    None stands for a folder of more files than are read, too.
    """
    if len(paths) != 1 or not os.path.isdir(paths[0]):
        return None
    out: set[str] = set()
    for base, folders, names in os.walk(paths[0]):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        inside = os.path.relpath(base, paths[0])
        out |= {name if inside == "." else f"{inside}/{name}" for name in names}
        if len(out) > _MOST_FILES:
            return None
    return frozenset(out)


def _folder(root: Path, texts: list[Text], unread: list[tuple[Spot, str]], seen: set[Path]) -> None:
    count = 0
    named = {text.name for text in texts}

    def closed(error: OSError) -> None:
        shown = os.path.relpath(error.filename, root)
        unread.append((Spot(error.filename, shown), f"cannot be read: {error.strerror}"))

    for base, folders, names in os.walk(root, onerror=closed):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED and not name.startswith(".")
        )
        for name in sorted(names):
            path = Path(base) / name
            count += 1
            if count > _MOST_FILES:
                unread.append(
                    (
                        Spot(str(root), str(root)),
                        f"more than {_MOST_FILES} files: the rest is left out",
                    )
                )
                return
            if name.startswith("."):
                continue
            if os.path.exists(path):
                if path.resolve() in seen:
                    continue
                seen.add(path.resolve())
            inside = os.path.relpath(path, root)
            # A file of the same name in another folder is told by its whole path.
            shown = str(path) if inside in named else inside
            named.add(shown)
            found = _open(path, shown, os.path.dirname(inside))
            if isinstance(found, Text):
                texts.append(found)
            elif found and _might_serve(path):
                unread.append((Spot(str(path), shown), found))


def _might_serve(path: Path) -> bool:
    """Return whether a file that is not read looks as if it mattered."""
    if not path.is_file():
        return path.suffix in _SUFFIXES
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            raw = file.read(LARGEST + 1) or b""
        if path.suffix in _SUFFIXES and (len(raw) > LARGEST or not _is_text(raw)):
            return True
        return re.search(rb"vllm[\"', ]+serve\b", raw) is not None
    except OSError:
        return True


def _is_text(raw: bytes) -> bool:
    try:
        return "\0" not in raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False


def _open(path: Path, shown: str, folder: str) -> Text | str:
    """Return the text of a file, or why it is not read."""
    try:
        if not os.path.exists(path):
            return "a link that leads nowhere"
        if not path.is_file():
            return "not a regular file"
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            raw = file.read(LARGEST + 1) or b""
        if len(raw) > LARGEST:
            size = max(path.stat().st_size, len(raw))
            return f"{size / 2**20:.1f} MB is larger than {LARGEST >> 10} KB; a script is a few KB"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if b"\0" in raw:
        return "a binary file"
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "not a text in UTF-8"
    kind = _kind(path, text)
    if kind == "markdown" and path.suffix.lower() == ".rst":
        text = restructured.as_markdown(text)
    return (
        Text(shown, folder, kind, text, str(path))
        if kind in ("bash", "markdown", "yaml", "dockerfile", "helm")
        else kind
    )


def _kind(path: Path, text: str) -> str:
    """Return the kind of a file, or a sentence that says why it is not read."""
    first = text.split("\n", 1)[0]
    match = re.match(r"#!\s*(?:\S*/env\s+(?:-\S+\s+)*)?(\S+)", first)
    if match:
        shell = os.path.basename(match[1])
        if shell in _SHELLS:
            return "bash"
        return f"a script for {shell[:20]}: bash and sh are read"
    found = _SUFFIXES.get(path.suffix.lower())
    if is_template(path.name):
        found = _SUFFIXES.get(path.with_suffix("").suffix.lower())
    if re.match(r"(?i)(docker|container)file\b", path.name) or path.suffix == ".dockerfile":
        found = "dockerfile"
    if found is None and path.suffix == ".tpl" and re.search(r"\{\{-? *define ", text):
        found = "helm"  # what the templates of a chart include
    if found:
        return found
    if path.suffix == "":
        return (
            "bash"
            if re.search(r"^\s*(export \w+=|#SBATCH |docker run|vllm serve)", text, re.MULTILINE)
            else "no script by name or first line"
        )
    return (
        f"a {path.suffix} file: bash, SLURM, docker compose, markdown and reStructuredText are read"
    )
