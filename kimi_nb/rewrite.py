"""Rewriting a script in the words of a version: what the catalog knows, and nothing else.

    print(rewrite.file("run.sh", "vllm-ascend", "0.22.1rc1"))     # the diff; run.sh.orig is kept
    rewrite.text(script, engine).new                              # the same without a file

Variables that moved become keys of ``--additional-config``, what nothing reads goes, renamed
flags take their new names. Edits are made at places of the syntax tree; everything else stays
byte for byte.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb import catalog, commands, params
from kimi_nb.errors import ParameterError, WriteError
from kimi_nb.language import plain
from kimi_nb.reading import bash, files, guess
from kimi_nb.rules.engine import listed
from kimi_nb.rules.variables import ever_read


@dataclass(frozen=True)
class Rewritten:
    """A script before and after, and what was done or could not be, one sentence each."""

    name: str
    old: str
    new: str
    done: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The changed lines."""
        return "\n".join(difflib.unified_diff(self.old.splitlines(), self.new.splitlines(),
                                              self.name, f"{self.name} (rewritten)", lineterm=""))

    def __str__(self) -> str:
        lines = [self.diff or f"{self.name}: nothing to rewrite"]
        lines += [f"{self.name}: {said}" for said in (*self.done, *self.left)]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: bytes


def file(path: str | Path, package: str = "", version: str = "", dry: bool = False) -> Rewritten:
    """Rewrite a bash script in place; the old one is kept as FILE.orig.

    Raises ParameterError for what is no bash script, WriteError where it cannot be written; the
    file is then as before.
    """
    place = Path(path)
    if place.is_dir():
        raise ParameterError(f"{path}: a folder; --fix rewrites one file after another.")
    texts, _ = files.collect([place])
    if texts[0].kind != "bash":
        raise ParameterError(f"{path}: only bash scripts are rewritten.")
    spoken = guess.engine([texts[0]], package, version)
    if not spoken.known:
        raise ParameterError(f"{path}: nothing says which version this is for: name it with "
                             "--engine and --engine-version.")
    raw = place.read_bytes().decode("utf-8")  # as it is, byte order mark and line ends included
    made = text(raw, spoken.engine, str(path))
    if made.new != made.old and not dry:
        _save(place, made)
    return made


def _save(place: Path, made: Rewritten) -> None:
    """Write the new text; the old one stands beside it under a name that was free."""
    kept = place.with_name(f"{place.name}.orig")
    number = 1
    while kept.exists():
        number += 1
        kept = place.with_name(f"{place.name}.orig{number}")
    target = place.resolve()
    try:
        kept.write_bytes(made.old.encode())
        handle, fresh = tempfile.mkstemp(prefix=f".{place.name[:40]}.", dir=target.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(made.new.encode())
        os.chmod(fresh, target.stat().st_mode & 0o7777)
        os.replace(fresh, target)
    except OSError as error:
        raise WriteError(f"{place}: cannot be written: {error.strerror}. It is as before.") from None


def text(script: str, engine: catalog.Engine, name: str = "script") -> Rewritten:
    """`file` for a text: pure."""
    worker = _Worker(script, engine)
    worker.run()
    out = script.encode()
    for edit in sorted(worker.edits, key=lambda one: one.start, reverse=True):
        out = out[:edit.start] + edit.text + out[edit.end:]
    return Rewritten(name, script, out.decode(), tuple(dict.fromkeys(worker.done)),
                     tuple(dict.fromkeys(worker.left)))


class _Worker:
    def __init__(self, script: str, engine: catalog.Engine) -> None:
        self.source = script.encode()
        self.engine = engine
        self.root = bash.tree(script).root_node
        self.edits: list[_Edit] = []
        self.done: list[str] = []
        self.left: list[str] = []

    def run(self) -> None:
        """Collect the edits."""
        keys: dict[str, Any] = {}
        serves = [node for node in bash.nodes(self.root, "command")
                  if commands.serve_at(_words(node)) is not None]
        for node in bash.nodes(self.root, "declaration_command", "variable_assignment"):
            if node.type == "variable_assignment" and node.parent is not None \
                    and node.parent.type == "declaration_command":
                continue
            self.variable(node, keys, bool(serves))
        for node in bash.nodes(self.root, "array"):
            self.flags([child for child in node.children if child.is_named])
        for node in serves:
            self.flags(list(node.children))
            self.config(node, keys)

    # Variables ----------------------------------------------------------------------------

    def variable(self, node: Any, keys: dict[str, Any], serves: bool) -> None:
        """An export: keep, move or drop."""
        parts = [child for child in node.named_children if child.type == "variable_assignment"] \
            if node.type == "declaration_command" else [node]
        if len(parts) != 1:
            return
        named, value = parts[0].child_by_field_name("name"), parts[0].child_by_field_name("value")
        if named is None:
            return
        name = named.text.decode()
        key = catalog.moved(self.engine, name)
        held = value.text.decode().strip("\"'") if value is not None else ""
        if key is not None and serves:
            if "$" in held:
                self.left.append(f"{name} holds a shell variable: move it to --additional-config "
                                 f"{key} by hand")
                return
            put(keys, key, plain(held))
            self.done.append(f"{name} is now --additional-config {key}")
            self.drop(node)
        elif self.dead(name):
            self.done.append(f"{name} is taken out: {self.dead(name)}")
            self.drop(node)

    def dead(self, name: str) -> str:
        """Why a variable of the engine does nothing at this version; "" where it may."""
        never = params.data("versions")["never_read"]
        if name in never:
            return str(never[name])
        if name in params.data("versions")["gone"]:
            return str(params.data("versions")["gone"][name])
        if not name.startswith("VLLM_") or name not in ever_read() \
                or catalog.variable(self.engine, name):
            return ""
        row = self.engine.version if name in catalog.tables("vllm-ascend")["env"] \
            else self.engine.known
        last = ever_read()[name][1]
        return f"{last} was the last listed version that read it" if catalog.earlier(last, row) \
            else ""

    def drop(self, node: Any) -> None:
        """Take a statement out, with its line where it stands alone on it."""
        start, end = node.start_byte, node.end_byte
        if node.parent is not None and node.parent.type == "command":
            while end < len(self.source) and self.source[end:end + 1] in (b" ", b"\t"):
                end += 1
            self.edits.append(_Edit(start, end, b""))
            return
        first = self.source.rfind(b"\n", 0, start) + 1
        last = self.source.find(b"\n", end)
        last = len(self.source) if last < 0 else last + 1
        alone = not self.source[first:start].strip() and not self.source[end:last].strip()
        self.edits.append(_Edit(first, last, b"") if alone else _Edit(start, end, b":"))

    # Flags --------------------------------------------------------------------------------

    def flags(self, words: list[Any]) -> None:
        """Renamed and removed flags among the words of a command or an array."""
        renamed = params.data("versions")["renamed"]
        for index, word in enumerate(words):
            spelt, equals, own = word.text.decode("utf-8", "replace").partition("=")
            if not spelt.startswith("--"):
                continue
            name = spelt[2:].replace("_", "-")
            if catalog.flag(self.engine, name) is not None:
                continue
            value = words[index + 1] if index + 1 < len(words) and not words[
                index + 1].text.startswith(b"-") and words[index + 1].is_named else None
            new = renamed.get(name)
            span = listed(name)
            if new is not None and (span is None or catalog.older(span[1], self.engine)):
                self.rename(word, None if equals else value, name, str(new), own)
            elif span is not None and catalog.older(span[1], self.engine) \
                    and name in params.data("versions")["dropped"]:
                self.done.append(f"{spelt} is taken out: vLLM {span[1]} was the last with it")
                self.cut(word, None if equals else value)

    def rename(self, word: Any, value: Any, name: str, new: str, own: str) -> None:
        """``new`` is the new spelling; ``=value`` in it replaces the value, ``+`` keeps it."""
        flag, _, fixed = new.partition("=")
        top = flag.lstrip("-").partition(".")[0]
        spec = catalog.flag(self.engine, top)
        if spec is None:
            self.left.append(f"--{name}: {flag} is not in {self.engine}")
            return
        takes = spec["takes_value"] or "." in flag
        if fixed:
            text = f"{flag} {fixed}"
        elif takes and own:
            text = f"{flag} {own}"
        else:
            text = flag
        self.done.append(f"--{name} is now {text}")
        end = value.end_byte if value is not None and (fixed or not takes) else word.end_byte
        self.edits.append(_Edit(word.start_byte, end, text.encode()))

    def cut(self, word: Any, value: Any) -> None:
        """Take a flag and its value out, with the continued line that they leave empty."""
        start, end = word.start_byte, (value or word).end_byte
        before = self.source[:start]
        stripped = before.rstrip(b" \t")
        if stripped.endswith(b"\\\n"):
            kept = stripped[:-2].rstrip(b" \t")
            rest = self.source[end:]
            # The line above keeps its backslash only where a line below goes on.
            if rest.lstrip(b" \t").startswith(b"\\\n"):
                start, end = len(kept), end
            else:
                start = len(kept)
        else:
            start = len(stripped)
        self.edits.append(_Edit(start, end, b""))

    def config(self, node: Any, keys: Mapping[str, Any]) -> None:
        """Put the moved keys into the --additional-config of a serve command."""
        children = [child for child in node.children if child.is_named]
        found = next((index for index, child in enumerate(children) if child.text.decode(
            "utf-8", "replace").replace("_", "-") == "--additional-config"), None)
        table: dict[str, Any] = {}
        value = children[found + 1] if found is not None and found + 1 < len(children) else None
        if value is not None:
            try:
                table = json.loads(value.text.decode().strip("'"))
            except ValueError:
                if keys:
                    self.left.append("--additional-config is not plain JSON in single quotes: add "
                                     f"{json.dumps(dict(keys))} by hand")
                return
        wanted = json.loads(json.dumps(table))
        for key in list(table):
            home = catalog.additional_key(self.engine, key)
            if home != key:
                put(wanted, home, wanted.pop(key))
                self.done.append(f"--additional-config {key} is now {home}")
        merge(wanted, keys)
        if wanted == table:
            return
        text = f"'{json.dumps(wanted)}'".encode()
        if value is not None:
            self.edits.append(_Edit(value.start_byte, value.end_byte, text))
        else:
            end = children[-1].end_byte
            self.edits.append(_Edit(end, end, b" \\\n    --additional-config " + text))


def _words(node: Any) -> list[str]:
    out = []
    for child in node.children:
        if child.is_named and child.type != "variable_assignment":
            out.append(child.text.decode("utf-8", "replace"))
    return out


def put(table: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key."""
    *parents, last = path.split(".")
    for part in parents:
        table = table.setdefault(part, {})
    table[last] = value


def merge(table: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add what is not there yet; a key that a script already sets keeps its value."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(table.setdefault(key, {}), dict):
            merge(table[key], value)
        else:
            table.setdefault(key, value)


