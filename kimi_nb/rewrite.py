"""Rewriting a script in the words of a version: what the catalog knows, and nothing else.

    print(rewrite.file("run.sh", "vllm-ascend", "0.22.1rc1"))     # the diff; run.sh.orig is kept
    rewrite.text(script, engine).new                              # the same without a file

Variables that moved become keys of ``--additional-config``, what nothing reads goes, renamed
flags take their new names. Edits are made at places of the syntax tree; everything else stays
byte for byte. Where the script would mean something else afterwards, or that is not plain,
nothing is done and ``left`` says so: a setting is never lost.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_nb import arguments, catalog, commands, params
from kimi_nb.errors import ParameterError, WriteError
from kimi_nb.language import plain
from kimi_nb.reading import files, guess, quirks, syntax
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
        raise WriteError(f"{place}: cannot be written: {error.strerror}. It is as "
                         "before.") from None


def text(script: str, engine: catalog.Engine, name: str = "script") -> Rewritten:
    """`file` for a text: pure. Lines in ``left`` are those of the rewritten script."""
    ends = script.count("\r\n")
    mixed = 0 < ends < script.count("\n")
    old = script if mixed else script.replace("\r\n", "\n")
    worker = _Worker(old, engine)
    worker.run()
    new, left = worker.made(), worker.told()
    if new != old and (mixed or (syntax.tree(new).root_node.has_error
                                 and not syntax.tree(old).root_node.has_error)):
        why = "some lines end in CR LF and some do not" if mixed else "bash would not read it then"
        return Rewritten(name, script, script, (), (f"nothing is rewritten: {why}",))
    if ends and not mixed:
        new = new.replace("\n", "\r\n")
    return Rewritten(name, script, new, tuple(dict.fromkeys(worker.done)), left)


def _masked(script: str) -> str:
    """A script of the same bytes in which <ip> is a word and no redirect."""
    return quirks.ANGLED.sub(lambda match: f"@{match[1].replace(' ', '_')}@", script)


# What the words of a script mean --------------------------------------------------------------

_AWAY = {"docker", "podman", "nerdctl", "ssh", "pdsh", "kubectl"}  # nothing exported gets there
_TALK = {"echo", "printf", "grep", "pgrep", "pkill", "killall", "awk", "sed", "log"}
_SERVES = re.compile(rb"\bvllm[\"',\s]+serve\b|\bvllm\.entrypoints\.[\w.]*(?:api_server|main)\b")
_STARTS = re.compile(r"(?:(?:\S*/)?(?:bash|sh|exec|nohup|srun|sbatch|setsid|env|time)\s+"
                     r"(?:\S+\s+){0,3}?)?[^\s=]+\.(?:sh|bash|sbatch)\b|.*launch_(?:online_)?dp\S*\.py"
                     r"|.*\bvllm\s+(?:run-batch|bench\s+(?:latency|throughput))\b")
_DUMPS = re.compile(r"(?:export|declare|typeset)(?:\s+-[a-z]*[px])?|printenv|env|envsubst\b.*")
_TOLD = re.compile(rb"(?<![\w{$-])([A-Z][A-Z0-9_]{3,})\+?=(?!=)|(?<![\w-])--[A-Za-z][\w-]*")
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]")
_CONFIG = re.compile(r"[\"']?--additional[\w-]*")
_PLAIN = re.compile(r"'([^']*)'|\"([^\"$`\\']*)\"|([\w.:,/+@%-]+)")
_NO_WORDS = {"variable_assignment", "comment", "file_redirect", "herestring_redirect",
             "heredoc_redirect"}
_BODIES = {"program", "do_group", "compound_statement", "subshell", "if_statement",
           "elif_clause", "else_clause", "case_item"}
_PROCESS = {"subshell", "command_substitution", "process_substitution", "pipeline"}
_LATER = {"do_group", "function_definition"}
_SETS, _APART, _UNSURE = "sets", "apart", "unsure"


def _scopes(node: Any) -> dict[int, tuple[str, int]]:
    """What a node runs in that need not run, or not once: (kind, branch) by its id."""
    out: dict[int, tuple[str, int]] = {}
    child, up = node, node.parent
    while up is not None:
        if up.type in _PROCESS or up.type in _LATER:
            out[up.id] = (up.type, 0)
        elif up.type == "if_statement":
            out[up.id] = (up.type, child.id if child.type.endswith("_clause") else 0)
        elif up.type == "case_item" and up.parent is not None:
            out[up.parent.id] = (up.type, up.id)
        elif up.type == "compound_statement" and up.next_sibling is not None \
                and up.next_sibling.type == "&":
            out[up.id] = ("subshell", 0)
        elif up.type == "list" and child != up.named_children[0]:
            top, either = up, False
            while True:
                either = either or any(part.type == "||" for part in top.children)
                if top.parent is None or top.parent.type != "list":
                    break
                top = top.parent
            out[top.id] = ("list", node.id if either else 0)
        child, up = up, up.parent
    return out


def _reach(export: Any, run: Any) -> str:
    """Whether a command surely sees an export, surely does not, or that is not plain."""
    mine, its = _scopes(export), _scopes(run)
    again = any(kind in _LATER and mine.get(key) == (kind, branch)
                for key, (kind, branch) in its.items())
    later = any(kind == "function_definition" for kind, _ in its.values())
    before = export.start_byte < run.start_byte
    missing = dict(mine.items() - its.items())
    if not missing:
        return _SETS if before else _UNSURE if again or later else _APART
    kinds = {kind for kind, _ in missing.values()}
    if kinds & _PROCESS:
        return _APART
    if again or "function_definition" in kinds:
        return _UNSURE
    other_branch = any(key in its for key in missing)
    return _APART if other_branch or not (before or later) else _UNSURE


def _body(statement: Any) -> list[Any]:
    """The statements among which one stands; nothing where it is a part of another."""
    up, out = statement.parent, []
    if up is None or up.type not in _BODIES:
        return []
    inside = up.type not in ("if_statement", "elif_clause", "case_item")
    for child in up.children:
        if child.type in ("then", ")"):
            inside = True
        elif child.type in ("elif_clause", "else_clause"):
            inside = False
        elif inside and child.is_named and child.type != "comment":
            out.append(child)
    return out if statement in out else []


@dataclass(frozen=True)
class _Set:
    """An assignment: the statement that goes with it, how it acts (export, prefix, shell,
    several on a line), its value where that is plain."""

    name: str
    node: Any
    statement: Any
    kind: str
    value: str | None


@dataclass
class _Slot:
    """The JSON of an --additional-config, or (``lead``) the place of a new one."""

    start: int
    end: int
    lead: str = ""
    table: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Serve:
    """What starts an engine: a command, or an array that commands use. ``parts`` are its words,
    ``here`` whether it sees exports, ``why`` its configuration cannot be edited."""

    node: Any
    runs: list[Any]
    parts: list[list[Any]]
    here: bool
    slot: _Slot
    why: str = ""


class _Worker:
    def __init__(self, script: str, engine: catalog.Engine) -> None:
        self.source = script.encode()
        self.engine = engine
        self.root = syntax.tree(_masked(script)).root_node
        self.comments = [(node.start_byte, node.end_byte)
                         for node in syntax.nodes(self.root, "comment")]
        self.commands = syntax.nodes(self.root, "command")
        self.arrays: dict[str, list[Any]] = {}
        self.serves: list[_Serve] = []
        self.dropped: list[Any] = []
        self.edits: set[_Edit] = set()
        self.done: list[str] = []
        self.left: dict[int, str] = {}  # by the byte that it is said of

    def run(self) -> None:
        """Collect the edits."""
        self.find()
        by_name: dict[str, list[_Set]] = {}
        for node in syntax.nodes(self.root, "variable_assignment"):
            one = self.assignment(node)
            if one is not None:
                by_name.setdefault(one.name, []).append(one)
        for name, sets in by_name.items():
            self.variable(name, sets)
        self.drop()
        seen: set[int] = set()
        for serve in self.serves:
            for words in serve.parts:
                if words and words[0].id not in seen:
                    seen.add(words[0].id)
                    self.flags(words)
        for slot in {one.slot.start: one.slot for one in self.serves if not one.why}.values():
            self.fill(slot)
        self.rest()

    def made(self) -> str:
        """The text with the edits made."""
        out = self.source
        for edit in sorted(self.edits, key=lambda one: (one.start, one.end), reverse=True):
            out = out[:edit.start] + edit.text + out[edit.end:]
        return out.decode()

    def told(self) -> tuple[str, ...]:
        """What is left, with its lines in the new text."""
        out = []
        for at, said in sorted(self.left.items()):
            line = 1 + self.source.count(b"\n", 0, at)
            for edit in self.edits:
                if edit.start <= at:
                    line += edit.text.count(b"\n") - self.source.count(b"\n", edit.start, edit.end)
            out.append(f"line {line}: {said}")
        return tuple(dict.fromkeys(out))

    def said(self, node: Any) -> str:
        """The text of a node as it stands in the file."""
        return self.source[node.start_byte:node.end_byte].decode()

    def quiet(self, at: int) -> bool:
        """Whether a place is in a comment, or in the words of echo and its like."""
        line = self.source[self.source.rfind(b"\n", 0, at) + 1:at]
        if line.lstrip().startswith(b"#") or any(start <= at < end
                                                 for start, end in self.comments):
            return True
        node = self.root.descendant_for_byte_range(at, at + 1)
        while node is not None and node.type != "command":
            node = node.parent
        if node is None or self.said(node).split()[0] not in _TALK:
            return False
        up = node.parent  # what echo writes to a file may be read by an engine
        return up is None or up.type != "redirected_statement" or ">&" in self.said(up)

    # Engines ------------------------------------------------------------------------------

    def words(self, node: Any) -> list[Any]:
        """The words of a command or an array."""
        return [child for child in node.children
                if child.is_named and child.type not in _NO_WORDS]

    def find(self) -> None:
        """Every command, or array of words, that starts an engine."""
        for node in syntax.nodes(self.root, "array"):
            named = node.parent.child_by_field_name("name") if node.parent else None
            if named is not None:
                self.arrays.setdefault(self.said(named), []).append(node)
        known: set[int] = set()
        for node in self.commands:
            self.engine_at(node, "", known)
        for name, several in self.arrays.items():
            for node in several:
                self.engine_at(node, name, known)
        strange = any(match.start() not in known and not self.quiet(match.start())
                      for match in re.finditer(rb"--additional[-_]config", self.source))
        for serve in self.serves:
            if strange and serve.slot.lead and not serve.why:
                serve.why = "an --additional-config stands where its engine is not plain"

    def engine_at(self, node: Any, name: str, known: set[int]) -> None:
        """A serve, if a command or the array of a name is one."""
        words = self.words(node)
        texts = [self.said(word) for word in words]
        at = commands.serve_at(texts)
        if at is None:
            return
        before, runs, parts = texts[:at], [node], [words[at:]]
        if name:
            runs = []
            for one in self.commands:
                its = self.words(one)
                its_texts = [self.said(word) for word in its]
                place = next((index for index, word in enumerate(its_texts)
                              if name in _ARRAY.findall(word)), None)
                if place is not None and its_texts[0] not in _TALK:
                    runs.append(one)
                    before = before + its_texts[:place]
                    parts.append(its[place + 1:])
            parts += [self.words(one) for one in self.arrays[name] if one != node]
        seen, unknown = {name}, False
        for part in parts:  # grows while it is read
            for word in part:
                unknown = unknown or self.said(word).strip('"') in ("$@", "$*", "${@}", "${*}")
                for used in _ARRAY.findall(self.said(word)):
                    unknown = unknown or used not in self.arrays
                    if used not in seen:
                        seen.add(used)
                        parts += [self.words(one) for one in self.arrays.get(used, ())]
        here = not any(commands.base(word) in _AWAY for word in before)
        lead = " " if name and b"\n" not in node.text else "\n    " if name else " \\\n    "
        end = words[-1].end_byte
        serve = _Serve(node, runs or [node], parts, here, _Slot(end, end, lead))
        found = [(part, index) for part in parts for index, word in enumerate(part)
                 if _CONFIG.match(self.said(word).replace("_", "-"))]
        known |= {part[index].start_byte + quote for part, index in found for quote in (0, 1)}
        if node.has_error:
            serve.parts, serve.why = [], "the grammar stops in its vllm serve"
        elif len(found) == 1:
            serve.why = self.configured(serve, *found[0])
        elif found:
            serve.why = "there is more than one --additional-config"
        elif unknown:
            serve.why = "its vllm serve takes words that are not known here"
        elif any(self.said(word).partition("=")[0] == "--config" for part in parts
                 for word in part):
            serve.why = "its vllm serve reads a file of flags (--config)"
        self.serves.append(serve)

    def configured(self, serve: _Serve, words: list[Any], index: int) -> str:
        """Take the slot that a serve has; else why it cannot be edited."""
        flag = words[index]
        if flag.parent.type == "array":
            same = self.arrays[self.said(flag.parent.parent.child_by_field_name("name"))]
            fresh = [one for one in same
                     if all(part.type != "+=" for part in one.parent.children)]
            if len(fresh) > 1 or any(_reach(flag.parent, run) != _SETS for run in serve.runs
                                     if run != flag.parent):
                return "--additional-config is in an array that branches fill"
        spelt, equals, _ = self.said(flag).partition("=")
        start, end = flag.start_byte + len(spelt.encode()) + 1, flag.end_byte
        if not equals and index + 1 < len(words):
            start, end = words[index + 1].start_byte, words[index + 1].end_byte
        raw = self.source[start:end].decode()
        table: Any = None
        if re.fullmatch(r"'[^']*'", raw) and spelt.replace("_", "-") == "--additional-config":
            try:
                table = json.loads(raw[1:-1])
            except (ValueError, RecursionError):
                table = None
        if not isinstance(table, dict):
            return "--additional-config is not plain JSON in single quotes"
        serve.slot = next((one.slot for one in self.serves if one.slot.start == start
                           and not one.slot.lead), _Slot(start, end, "", table))
        return ""

    def fill(self, slot: _Slot) -> None:
        """Put the keys where they belong, and old keys under their new tables."""
        wanted = json.loads(json.dumps(slot.table))
        for key in list(slot.table):
            home = catalog.additional_key(self.engine, key)
            parent, _, rest = home.partition(".")
            under = wanted.get(parent, {})
            if home != key and isinstance(under, dict) and rest not in under:
                put(wanted, home, wanted.pop(key))
                self.done.append(f"--additional-config {key} is now {home}")
        for path, value in slot.keys.items():
            more: dict[str, Any] = {}
            put(more, path, value)
            merge(wanted, more)
        if wanted == slot.table:
            return
        added = {key: value for key, value in wanted.items() if key not in slot.table}
        if slot.table and wanted == {**slot.table, **added}:  # as it was written, and more
            close = self.source.rindex(b"}", slot.start, slot.end)
            close = len(self.source[:close].rstrip())
            self.edits.add(_Edit(close, close, f", {_json(added)[1:-1]}".encode()))
        elif slot.lead:
            self.edits.add(_Edit(slot.start, slot.end,
                                 f"{slot.lead}--additional-config '{_json(wanted)}'".encode()))
        else:
            self.edits.add(_Edit(slot.start, slot.end, f"'{_json(wanted)}'".encode()))

    # Variables ----------------------------------------------------------------------------

    def assignment(self, node: Any) -> _Set | None:
        """One ``NAME=value``."""
        named, value, up = (node.child_by_field_name("name"), node.child_by_field_name("value"),
                            node.parent)
        if named is None or named.type != "variable_name" or up is None \
                or up.type == "c_style_for_statement":
            return None
        kind, statement = "shell", node
        if up.type == "declaration_command":
            options = [self.said(part) for part in up.named_children if part != node]
            exports = up.children[0].type == "export"
            kind = "export" if options == ([] if exports else ["-x"]) else "shell"
            kind = "several" if any(part.type != "word" for part in up.named_children
                                    if part != node) else kind
            statement = up
        elif up.type == "command":
            # The grammar takes A=1 B=2 on a line of their own for a prefix of the next line.
            program = up.child_by_field_name("name")
            between = self.source[node.start_byte:program.start_byte] if program else b"\n"
            kind = "several" if re.search(rb"(?<!\\)\n", between) else "prefix"
        elif up.type == "variable_assignments":
            kind = "several"
        held = _PLAIN.fullmatch(self.said(value)) if value is not None else None
        plus = any(part.type == "+=" for part in node.children)
        return _Set(self.said(named), node, statement, kind, None if held is None or plus else
                    next(part for part in held.groups() if part is not None))

    def variable(self, name: str, sets: list[_Set]) -> None:
        """Move a variable, drop it, or say why it stays."""
        key, dead = catalog.moved(self.engine, name), self.dead(name)
        if key is None and not dead:
            return
        elsewhere = self.elsewhere(name, sets)
        if key is not None:
            why = elsewhere or self.move(name, key, sets)
            for one in sets if why else ():
                add = f"add {_json(nested(key, plain(one.value)))} to" if one.value else \
                    f"set {key} in"
                self.left[one.node.start_byte] = (f"{name} stays: {why}; {add} "
                                                  "--additional-config by hand")
            return
        for one in sets:
            why = elsewhere or ("several variables are set on one line" if one.kind == "several"
                                else "its value runs a command" if re.search(
                                    r"\$\(|`|\{\w+:?=", self.said(one.node)) else "")
            if why:
                self.left[one.node.start_byte] = f"{name} stays: {why}; it does nothing ({dead})"
            else:
                self.done.append(f"{name} is taken out: {dead}")
                self.dropped.append(one.statement)

    def move(self, name: str, key: str, sets: list[_Set]) -> str:
        """Move a variable to the engines that see it; else why not."""
        exports = [one for one in sets if one.kind == "export"]
        targets: dict[int, str] = {}
        if any(one.kind == "several" for one in sets):
            return "several variables are set on one line"
        if any(one.kind == "shell" for one in sets):
            return "it is not exported where it is set"
        if not all(one.value for one in sets):
            return "its value is not plain"
        if exports and len({one.value for one in sets}) > 1:
            return "it has several values here"
        seen: set[int] = set()
        for index, serve in enumerate(self.serves):
            for one in sets:
                if one.kind == "prefix" and serve.here and serve.runs == [one.node.parent]:
                    targets[index] = str(one.value)
                    seen.add(one.node.id)
            reached = {(one.node.id, _reach(one.statement, run)) for one in exports
                       for run in serve.runs if serve.here}
            hows = {how for _, how in reached}
            if _UNSURE in hows or (len(hows) > 1 and len(serve.runs) > 1):
                return "whether a vllm serve sees it depends on how the script runs"
            seen |= {node for node, how in reached if how == _SETS}
            if _SETS in hows:
                targets[index] = str(exports[0].value)
        if any(one.node.id not in seen for one in sets):
            return "it is set for what is no vllm serve of this script"
        if exports and (other := self.other_reader()):
            return other
        for index in targets:
            serve = self.serves[index]
            sharing = [at for at, one in enumerate(self.serves) if one.slot is serve.slot]
            if serve.why or len({targets.get(at) for at in sharing}) > 1:
                return serve.why or "vllm serves with and without it share --additional-config"
        there = all(_get(self.serves[index].slot.table, key) for index in targets)
        for index, value in targets.items():
            self.serves[index].slot.keys[key] = plain(value)
        self.done.append(f"{name} is taken out: --additional-config {key} is there" if there else
                         f"{name} is now --additional-config {key}")
        self.dropped += [one.statement for one in sets]
        return ""

    def elsewhere(self, name: str, sets: list[_Set]) -> str:
        """Where else a script uses a variable."""
        for match in re.finditer(rb"(?<![A-Za-z0-9_])%b(?![A-Za-z0-9_])" % name.encode(),
                                 self.source):
            at = match.start()
            if not any(one.node.start_byte <= at < one.node.end_byte for one in sets) \
                    and not any(start <= at < end for start, end in self.comments):
                return f"it is used elsewhere ({self.line(at)})"
        for node in [*self.commands, *syntax.nodes(self.root, "declaration_command")]:
            if _DUMPS.fullmatch(self.said(node)):
                return f"all variables are handed on ({self.line(node.start_byte)})"
        return ""

    def other_reader(self) -> str:
        """What else may start an engine that sees exports."""
        own = [(serve.node.start_byte, serve.node.end_byte) for serve in self.serves]
        for match in _SERVES.finditer(self.source):
            at = match.start()
            if not any(start <= at < end for start, end in own) and not self.quiet(at):
                return f"another vllm serve may read it ({self.line(at)})"
        for node in self.commands:
            started = " ".join(self.said(word) for word in self.words(node))
            if _STARTS.match(started) and all(serve.node != node for serve in self.serves):
                return f"what is started here may read it ({self.line(node.start_byte)})"
        return ""

    def line(self, at: int) -> str:
        """The line of a place, in short."""
        first, last = self.source.rfind(b"\n", 0, at) + 1, self.source.find(b"\n", at)
        return self.source[first:last if last >= 0 else None].decode().strip()[:60]

    def dead(self, name: str) -> str:
        """Why a variable of the engine does nothing at this version; "" where it may."""
        for table in ("never_read", "gone"):
            if name in params.data("versions")[table]:
                return str(params.data("versions")[table][name])
        if not name.startswith("VLLM_") or name not in ever_read() \
                or catalog.variable(self.engine, name):
            return ""
        row = self.engine.version if name in catalog.tables("vllm-ascend")["env"] \
            else self.engine.known
        last = ever_read()[name][1]
        return f"{last} was the last listed version that read it" if catalog.earlier(last, row) \
            else ""

    def drop(self) -> None:
        """Take statements out, with their line where nothing else stands on it. What needs a
        statement keeps a ``:``."""
        gone = {statement.id for statement in self.dropped}
        for one in self.dropped:
            body, start, end = _body(one), one.start_byte, one.end_byte
            if one.parent.type == "command":
                self.edits.add(_Edit(start, one.next_sibling.start_byte, b""))
                continue
            empty = one.parent.type != "program" and all(its.id in gone for its in body)
            if not body or (empty and one == body[-1]):
                self.edits.add(_Edit(start, end, b":"))
                continue
            first = self.source.rfind(b"\n", 0, start) + 1
            last = self.source.find(b"\n", end) + 1 or len(self.source)
            rest = self.source[first:last]
            for its in body:
                if its.id in gone and not (empty and its == body[-1]):
                    rest = rest.replace(self.source[its.start_byte:its.end_byte], b"", 1)
            at = body.index(one)
            after = body[at + 1].start_byte if at + 1 < len(body) else end
            before = body[at - 1].end_byte if at and body[at - 1].id not in gone else start
            if re.fullmatch(rb"[\s;]*", rest):
                self.edits.add(_Edit(first, last, b""))
            elif re.fullmatch(rb"[ \t]*;[ \t]*", self.source[end:after]):
                self.edits.add(_Edit(start, after, b""))
            elif re.fullmatch(rb"[ \t]*;[ \t]*", self.source[before:start]):
                self.edits.add(_Edit(before, end, b""))
            elif re.fullmatch(rb"\s*#.*\s*", rest):  # the comment stays
                spaces = re.compile(rb"[ \t]*").match(self.source, end)
                self.edits.add(_Edit(start, spaces.end() if spaces else end, b""))
            else:
                self.edits.add(_Edit(start, end, b":"))

    # Flags --------------------------------------------------------------------------------

    def gone(self, flag: str) -> str | None:
        """What a flag that the engine does not know became, "" where it may go; None for a flag
        that stays as it is."""
        name = flag[2:].replace("_", "-")
        span = listed(name)
        if f"--{name}" in arguments.options(self.engine.known, "serve") \
                or (span is not None and not catalog.older(span[1], self.engine)):
            return None
        if name in params.data("versions")["renamed"]:
            return str(params.data("versions")["renamed"][name])
        return "" if span is not None and name in params.data("versions")["dropped"] else None

    def flags(self, words: list[Any]) -> None:
        """Renamed and removed flags among words."""
        cuts: list[tuple[Any, Any]] = []
        for index, word in enumerate(words):
            spelt, equals, own = self.said(word).partition("=")
            new = self.gone(spelt) if spelt.startswith("--") else None
            if new is None:
                continue
            value = word
            if not equals and _takes_value(spelt) and index + 1 < len(words) \
                    and not self.said(words[index + 1]).startswith("-"):
                value = words[index + 1]
            if new:
                self.rename(word, value, spelt, new, own)
                continue
            self.done.append(f"{spelt} is taken out: no later version has it")
            if cuts and words[index - 1] == cuts[-1][1]:
                cuts[-1] = (cuts[-1][0], value)
            else:
                cuts.append((word, value))
        for first, last in cuts:
            self.cut(first, last)

    def rename(self, word: Any, value: Any, spelt: str, new: str, own: str) -> None:
        """``new`` is the new spelling; ``=value`` in it takes the place of the old value."""
        flag, _, fixed = new.partition("=")
        top, _, below = flag.partition(".")
        option = arguments.options(self.engine.known, "serve").get(top)
        if option is None:
            self.left[word.start_byte] = f"{spelt} stays: {flag} is not in {self.engine}"
            return
        takes = option.spec["takes_value"] or bool(below)
        text = " ".join(filter(None, (flag, fixed or (own if takes else ""))))
        self.done.append(f"{spelt} is now {text}")
        end = value.end_byte if fixed or not takes else word.end_byte
        self.edits.add(_Edit(word.start_byte, end, text.encode()))

    def cut(self, first: Any, last: Any) -> None:
        """Take words out, with the continued line that they leave empty."""
        start, end = first.start_byte, last.end_byte
        before = first.prev_sibling.end_byte if first.prev_sibling is not None else start
        gap = self.source[before:start]
        ends = re.compile(rb"[ \t]*(?:\\?\n|\Z)").match(self.source, end)
        if ends or b"\n" not in gap:
            start = before if re.fullmatch(rb"(?:[ \t]|\\?\n)*", gap) else start
        if start == first.start_byte:  # what follows moves to its place
            spaces = re.compile(rb"[ \t]*").match(self.source, end)
            end = spaces.end() if spaces and not ends else end
        self.edits.add(_Edit(start, end, b""))

    def rest(self) -> None:
        """Say what stands where nothing is rewritten: strings, heredocs, docker run -e."""
        for match in _TOLD.finditer(self.source):
            at = match.start()
            name, flag = (match[1] or b"").decode(), match[0].decode()
            key, dead = (catalog.moved(self.engine, name), self.dead(name)) if name else (None, "")
            new = None if name else self.gone(flag)
            if (key is None and not dead and new is None) or self.handled(at):
                continue
            if key is not None:
                said = f"{name} is now --additional-config {key}: it is not rewritten here"
            elif dead:
                said = f"{name} does nothing ({dead}): it is not taken out here"
            else:
                said = f"{flag} " + (f"is now {new}" if new else "may go") + \
                    ": it is not rewritten here, change it if vLLM gets it"
            self.left[at] = said
        for key in catalog.tables("vllm-ascend")["additional_config"]:
            home = catalog.additional_key(self.engine, key)
            if home == key or home.partition(".")[0].encode() in self.source:
                continue
            for match in re.finditer(rb"[\".]%b\b" % re.escape(key).encode(), self.source):
                if not self.handled(match.start()):
                    self.left[match.start()] = f"{key} is now {home}: it is not rewritten here"

    def handled(self, at: int) -> bool:
        """Whether a place was edited, told of, or says nothing to an engine."""
        return at in self.left or self.quiet(at) or any(edit.start <= at < edit.end
                                                        for edit in self.edits)


def _takes_value(flag: str) -> bool:
    """Whether a flag took a value when a version last had it."""
    long = "--" + flag[2:].replace("_", "-")
    runs = catalog.tables("vllm")["serve"].get(long, [])
    return bool(runs and runs[-1]["takes_value"])


def _json(table: Mapping[str, Any]) -> str:
    """JSON that can stand in single quotes."""
    return json.dumps(table, ensure_ascii=False).replace("'", "\\u0027")


def _get(table: Any, path: str) -> bool:
    """Whether a dotted key is there."""
    for part in path.split("."):
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def nested(path: str, value: Any) -> dict[str, Any]:
    """A table with one dotted key."""
    table: dict[str, Any] = {}
    put(table, path, value)
    return table


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
