"""Find the logs to examine (files, folders, compressed files, stdin), and who wrote each.

Example::

    logs = log_sources.sources(["runs/x/logs", "h1.log.gz", "-"], placed)
    logs[0]  # Source(node="a3-0", rank=3, ...)
    for block in log_sources.blocks(logs[0]):
        ...  # bytes of whole lines
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from kimi_nb.core import gzip_pieces
from kimi_nb.core.errors import ParameterError

if TYPE_CHECKING:
    from kimi_nb.diagnose.rank_places import Placed

STDIN = "-"
_BLOCK = 1 << 20  # bytes read at a time
_LONGEST = 1 << 23  # bytes of a line; longer ones are split
_NAMES = re.compile(
    r"\.(?:log|out|err|txt)(?:[.-][\w-]+)*$|^(?:syslog|messages|plog)|"
    r"^(?:events?|pods?)\.(?:ya?ml|json)$",
    re.IGNORECASE,
)
# Logs of the project's own programs, which are beside those of a service.
_OURS = ("kernels.log", "spawner.log", "ssh.log")
_PROGRAMS = (".py", ".sh", ".sbatch", ".c", ".cc", ".cpp", ".h", ".hpp", ".go", ".rs", ".js", ".ts")
_DATA = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".lock", ".csv", ".xml")
_PRETTY = re.compile(r'[{[]\s*\n\s+(?:[{["\]}]|-?\d)')  # JSON over several lines
_MESSAGE = re.compile(r'"(?:log|message|msg|MESSAGE|line|text)": *"')  # of a line of a log in JSON
_PAGES = (b"<!doctype html", b"<html")
_RANK = re.compile(r"(?:^|[_.-])(?:dp_?)?rank[_-]?(\d+)(?=$|[_.-])", re.IGNORECASE)
_GENERAL = {"logs", "log", "bundle", "rehearsals", "deployments", "jobs", "debug", "run", "plog"}
_HEAD = 1024  # bytes that tell UTF-16
_SAMPLE = 1 << 16  # bytes that decide whether a file is text
_NO_TEXT = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f\ufffd]")  # \x1b begins a colour


@dataclass(frozen=True)
class Source:
    """One log; ``name`` is its path as displayed, ``path`` is None for stdin."""

    name: str
    path: Path | None
    node: str
    rank: int | None

    @property
    def size(self) -> int:
        """Its size on disk in bytes; 0 for stdin."""
        return self.path.stat().st_size if self.path else 0


def sources(paths: Sequence[str | Path], placed: Placed) -> list[Source]:
    """Return the logs below some paths, in a fixed order.

    In a folder, logs are recognised by their names (.log, .out, .err, .txt, plog, also compressed);
    a file that is given directly is read whatever its name. Raises ParameterError for a path that
    does not exist.
    """
    found: dict[Path, Source] = {}
    out = []
    for given in paths:
        if str(given) == STDIN:
            out.append(Source("stdin", None, "stdin", None))
            continue
        path = Path(os.path.expanduser(given))
        if path.is_dir():
            logs = [one for one in sorted(path.rglob("*")) if one.is_file() and _is_log(one)]
            if not logs:
                raise ParameterError(
                    f"{given}: no logs below this folder; looked for *.log, "
                    "*.out, *.err, *.txt and plog*, also as .gz. Name the files."
                )
        elif path.exists():
            logs = [path]
        else:
            raise ParameterError(
                f"{given}: no such file or folder. Name logs, folders of logs, or - for stdin."
            )
        for log in logs:
            real = log.resolve()
            if real not in found:
                found[real] = Source(str(log), log, *_whose(log, path, placed))
    return out + list(found.values())


def _is_log(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    if name in _OURS:
        return False
    return bool(_NAMES.search(name)) or (path.suffix == ".gz" and "." not in name)


def _whose(log: Path, root: Path, placed: Placed) -> tuple[str, int | None]:
    """Return (node, rank) of a log, inferred from its path.

    Examples are rank_31.log, h1.log, logs/NODE/engines.log and NODE/logs/rank_3.log. Names of the
    plan's nodes take precedence.
    """
    stem = log.name.removesuffix(".gz").split(".log")[0]
    match = _RANK.search(stem)
    rank = int(match[1]) if match else None
    parts = [*(part for part in reversed(log.parts[:-1])), stem]
    for part in parts:
        if part in placed.nodes:
            return part, rank
    if stem == "router" and placed.door:
        return placed.door, rank
    rest = (stem[: match.start()] + stem[match.end() :]).strip("_.-") if match else ""
    named = [node for node in placed.nodes if stem.startswith((f"{node}_", f"{node}.", f"{node}-"))]
    if named or rest:
        return max(named, key=len, default=rest), rank
    below = log.relative_to(root).parts[:-1] if log != root else log.absolute().parts[-2:-1]
    folders = [part for part in below if part.casefold() not in _GENERAL and not part.isdecimal()]
    if log == root and match is None:
        folders = []  # a single file is named by itself, not by its folder
    return (folders[-1] if folders else stem), rank


def blocks(source: Source) -> Iterator[bytes]:
    """Yield the bytes of a log in pieces of whole lines, without the zeros of a truncated one.

    Raises ParameterError where it cannot be read any further.
    """
    try:
        with _opened(source) as file:
            if file.peek(2)[:2] == gzip_pieces.MAGIC:
                yield from map(_without_zeros, _whole_lines(_narrowed(gzip_pieces.unpacked(file))))
                return
            reader = _in_utf8(file)
            while data := reader.read(_BLOCK):
                whole = data if data.endswith(b"\n") else data + reader.readline(_LONGEST)
                yield _without_zeros(whole)
    except OSError as error:  # gzip's own as well
        raise ParameterError(f"{source.name}: cannot be read: {error}.") from None


def _without_zeros(block: bytes) -> bytes:
    # They make one line of megabytes, in which each pattern would look for itself.
    return block.replace(b"\0", b"") if b"\0" in block else block


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join pieces to blocks of whole lines, also where the pieces end with an error."""
    rest = b""
    try:
        for piece in pieces:
            rest += piece
            cut = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST else 0)
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
    except OSError:
        if rest:
            yield rest
        raise
    if rest:
        yield rest


def _is_utf16(head: bytes) -> bool:
    """Return whether a file begins with the mark of UTF-16, and has its many zeros."""
    marked = head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return marked and head.count(0) * 8 > len(head)


def _in_utf8(file: io.BufferedReader) -> IO[bytes]:
    """Return a reader of UTF-8, also for a file of UTF-16."""
    if _is_utf16(file.peek(_HEAD)[:_HEAD]):
        return cast(IO[bytes], codecs.EncodedFile(file, "utf-8", "utf-16", "replace"))
    return file


def _narrowed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces in UTF-8, also where they are UTF-16."""
    first = next(pieces, b"")
    if not _is_utf16(first[:_HEAD]):
        yield first
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    yield decoder.decode(first).encode()
    for piece in pieces:
        yield decoder.decode(piece).encode()


def no_log(first: bytes, name: str = "") -> str:
    """Return why a file that begins with this block is not a log; "" where it may be one.

    It is empty, binary or, by its first bytes or its name, a program, a notebook, data or a page of
    the web: what stands beside logs names failures, too.
    """
    if not first:
        return "is empty: nothing to judge"
    if first.startswith(b"#!") or name.endswith(_PROGRAMS):
        return "is no log: the source of a program"
    if name.endswith(".ipynb") or (first.startswith(b"{\n") and b'"nbformat"' in first):
        return "is no log: a notebook"
    if first[:_SAMPLE].lstrip()[:_HEAD].lower().startswith(_PAGES):
        return "is no log: a page of the web"
    if _is_data(first[:_SAMPLE].decode("utf-8", "replace"), name):
        return "is no log: data"
    # A log truncated while it was written to, or by a power failure, begins with zeros.
    text = first.replace(b"\0", b"")[:_SAMPLE].decode("utf-8", "replace")
    return "is no log: binary" if len(_NO_TEXT.findall(text)) * 3 > len(text) else ""


def _is_data(head: str, name: str) -> bool:
    """Return whether a file that begins with this holds data, such as settings or results.

    Lines of a log may be in JSON, each with its message; and what Kubernetes tells of its objects,
    in JSON or YAML, tells of failures.
    """
    if "apiVersion" in head:
        return False
    first = head.partition("\n")[0].strip()
    if name.endswith((".json", ".jsonl")):
        return not _MESSAGE.search(first)
    return name.endswith(_DATA) or bool(_PRETTY.match(head))


def _opened(source: Source) -> io.BufferedReader:
    raw: Any = sys.stdin.buffer if source.path is None else source.path.open("rb")
    return raw if hasattr(raw, "peek") else io.BufferedReader(raw)
