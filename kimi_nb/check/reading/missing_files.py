"""Find scripts and manifests that a folder names and does not have.

>>> from kimi_nb.check.reading import missing_files
>>> missing_files.lacks("scripts/run.sh", "README.md", frozenset({"README.md", "scripts/start.sh"}))
True
"""

from __future__ import annotations

import difflib
import itertools
import os.path
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading.files import Text
from kimi_nb.check.view.deployment import Fault, Program
from kimi_nb.check.view.engine_view import Spot

_SHELLS = ("bash", "sh", "source", ".")
_DEPLOYERS = ("kubectl", "oc", "helm", "docker-compose")
_GIVES = ("-f", "--file", "--filename", "--values")
_SCRIPT = re.compile(r"[\w.-]+(/[\w.-]+)*\.(sh|bash|sbatch|slurm|py)")
_MANIFEST = re.compile(r"[\w.-]+(/[\w.-]+)*\.(ya?ml|json)")
_LINK = re.compile(r"\]\((?:\./)?([\w.-]+(?:/[\w.-]+)*\.(?:sh|sbatch|ya?ml|py))\)")
# What may bring or make files that the folder does not have.
_BRINGS = re.compile(
    r"git clone|\bcd +[^\s.]|pushd|wget|curl [^\n]*(-[a-zA-Z]*[oO]|>)|\btar |unzip|helm pull|-[wv] |"
    r"WORKDIR|docker (exec|run)|podman|kubectl exec|ssh |/workspace"
)


def find(
    texts: Sequence[Text], programs: Iterable[Program], tree: frozenset[str]
) -> Iterator[Fault]:
    """Yield a fault for each file that is run, applied or linked, and that is not in the folder.

    ``tree`` are all of its files, by their paths inside it. A text that may bring files along, or
    change the folder, is left aside.
    """
    bodies = {text.name: text for text in texts}
    brings: dict[str, bool] = {}
    there = frozenset(posixpath.basename(one) for one in tree)
    for one in programs:
        text = bodies.get(one.spot.file)
        for name in _named(one.argv) if text is not None else ():
            if posixpath.basename(name) in there or text is None:
                continue
            if text.name not in brings:
                brings[text.name] = _BRINGS.search(text.text) is not None
            if (
                not brings[text.name]
                and lacks(name, text.name, tree)
                and not _made(name, text.text)
            ):
                yield _fault(one.spot, name, tree)
        for name in _read_by(one.argv, there) if text is not None else ():
            others = there | _called(texts)
            near = difflib.get_close_matches(name, others - {name}, n=1, cutoff=0.85)
            if name in there or not near or text is None:
                continue
            if not _FETCHES.search(text.text) and not _made(name, text.text):
                said = f"{name} is not in the folder; {near[0]} is named elsewhere"
                yield Fault("shell/missing-file", one.spot, said, WARNING)
    for text in texts:
        if text.kind != "markdown":
            continue
        for match in _LINK.finditer(text.text):
            if lacks(match[1], text.name, tree, linked=True):
                line = text.text.count("\n", 0, match.start()) + 1
                spot = Spot(f"{text.name}:{line}", text.name, line)
                yield _fault(spot, match[1], tree)


def lacks(name: str, source: str, tree: frozenset[str], linked: bool = False) -> bool:
    """Return whether a folder surely misses a file that one of its files names.

    It does if no file has that name, although its own folder is there, or one with nearly its name.
    A link (``linked``) is looked up from the file alone.
    """
    if fill_ins.holds(name) or ".." in name.split("/"):
        return False
    base = posixpath.basename(name)
    if any(posixpath.basename(one) == base for one in tree):
        return False
    home = posixpath.dirname(source)
    folder = posixpath.dirname(posixpath.normpath(name))
    above = {posixpath.dirname(one) for one in tree}
    beside = {posixpath.normpath(posixpath.join(start, folder)) for start in (home, "")}
    beside = {"" if one == "." else one for one in beside}
    if linked:
        return True
    if folder and beside & above:
        return True
    there = [posixpath.basename(one) for one in tree if posixpath.dirname(one) in beside]
    return bool(difflib.get_close_matches(base, there, n=1, cutoff=0.8))


def _named(argv: Sequence[str]) -> list[str]:
    """Return the files of a command that must be there before it runs."""
    words = [word for word in argv if word not in ("sudo", "exec", "nohup")]
    program = os.path.basename(words[0]) if words else ""
    rest = [word for word in words[1:] if not word.startswith("-")]
    out: list[str] = []
    if program in (*_SHELLS, "python", "python3", "sbatch") and rest and words[1] == rest[0]:
        out = [rest[0]] if _SCRIPT.fullmatch(rest[0].removeprefix("./")) else []
    elif words and words[0].startswith("./") and _SCRIPT.fullmatch(words[0][2:]):
        out = [words[0]]
    elif program in _DEPLOYERS or words[:2] == ["docker", "compose"]:
        out = [
            value
            for flag, value in itertools.pairwise(words)
            if flag in _GIVES and _MANIFEST.fullmatch(value.removeprefix("./"))
        ]
    return [one.removeprefix("./") for one in out]


_DATA = re.compile(r"[\w.-]+\.(?:txt|jsonl?|csv|lst)")
_FETCHES = re.compile(
    r"git clone|wget|curl [^\n]*(-[a-zA-Z]*[oO]|>)|\btar |unzip|download|^\s*cd [a-z]", re.M
)
_WRITES = re.compile(r"--?(?:o$|.*(?:out|sav|result|log|dump|trace|record))")


def _read_by(argv: Sequence[str], there: frozenset[str]) -> list[str]:
    """Return the files of data beside it that a script of the folder is told to read."""
    if not any(posixpath.basename(word) in there for word in argv[:3]):
        return []
    return [
        value
        for flag, value in itertools.pairwise(argv)
        if flag.startswith("--") and _DATA.fullmatch(value) and not _WRITES.match(flag)
    ]


def _called(texts: Sequence[Text]) -> frozenset[str]:
    """Return the names of files of data that the texts of a folder write."""
    return frozenset(
        posixpath.basename(found)
        for text in texts
        for found in re.findall(
            r"(?:--output|-o|>)[ =]([\w./-]+\.(?:txt|jsonl?|csv|lst))\b", text.text
        )
    )


def _made(name: str, text: str) -> bool:
    """Return whether a text writes a file itself."""
    base = re.escape(posixpath.basename(name))
    return re.search(rf"(>|tee|touch|mv|cp|-o)\s[^\n]*{base}", text) is not None


def _fault(spot: Spot, name: str, tree: frozenset[str]) -> Fault:
    names = sorted({posixpath.basename(one) for one in tree})
    near = difflib.get_close_matches(posixpath.basename(name), names, n=1, cutoff=0.8)
    hint = f"; {near[0]} is" if near else ""
    return Fault("shell/missing-file", spot, f"{name} is not in the folder{hint}", WARNING)
