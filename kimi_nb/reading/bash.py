"""Bash, read by its grammar: which commands would run, with which words and variables.

    script = bash.interpret('export PORT=8000\\nvllm serve m --port $PORT', "run.sh")
    script.commands[0].words      # Word('vllm'), Word('serve'), Word('m'), ...

Nothing is executed. Variables, exports, arrays, functions, short loops and ``$1..$9`` are
followed as far as they can be known; what cannot be known stays as ``${NAME}`` in its word. Both
branches of an ``if`` are read, and what differs between them is not known after it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_MOST_STEPS = 20_000  # of one file: a loop in a loop ends here instead of running for ever
_MOST_TURNS = 64
_MOST_DEPTH = 60
_LONGEST = 100_000
_HIDDEN = "${UNKNOWN}"  # what a command prints


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text with variables put in, its line, whether all of it is known,
    and how it stands in the file (first bytes)."""

    text: str
    line: int
    known: bool = True
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. ``env`` is what it sees exported, ``lines`` the line of each of these,
    ``certain`` whether it runs at all, ``background`` whether the next runs beside it;
    ``unset`` are variables that its words use and nothing sets."""

    words: tuple[Word, ...]
    env: Mapping[str, str]
    env_lines: Mapping[str, int]
    line: int
    certain: bool
    background: bool
    unset: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The words as texts."""
        return tuple(word.text for word in self.words)


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable; ``text`` is None where it cannot be known."""

    text: str | None
    line: int
    exported: bool = False
    items: tuple[Word, ...] | None = None


@dataclass
class Script:
    """What was read of one file: commands in order, the variables at its end, texts that it
    writes to other files, and how far reading came."""

    file: str
    commands: list[Command] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    written: dict[str, tuple[str, int]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    unread: list[tuple[int, str]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)


class _Enough(Exception):
    """Reading stops here."""


@functools.cache
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def tree(text: str) -> Any:
    """The syntax tree of a script."""
    return _parser().parse(text.encode("utf-8", "replace"))


def interpret(text: str, file: str, first_line: int = 1, arguments: Sequence[str] | None = None,
              env: Mapping[str, str] | None = None, root: Any = None,
              env_lines: Mapping[str, int] | None = None,
              included: Callable[[str], str | None] | None = None) -> Script:
    """Read a script. ``arguments`` are ``$1``, ``$2``, ... where a caller is known, ``env`` what
    it exports (and at which lines), ``included`` gives the text of a file that is sourced."""
    script = Script(file)
    reader = _Reader(text, script, first_line, arguments, included)
    for name, value in (env or {}).items():
        script.variables[name] = Variable(value, (env_lines or {}).get(name, 0), True)
    try:
        reader.block((root or tree(text)).root_node)
        reader.uncalled()
    except _Enough as stop:
        script.unread.append((reader.line, str(stop)))
    except RecursionError:
        script.unread.append((reader.line, "nested too deep"))
    return script


def _text(node: Any) -> str:
    return node.text.decode("utf-8", "replace")


_UNKNOWN_COMMANDS = frozenset(("true", "false", ":", "[", "test", "[["))


class _Reader:
    """The walk through one script."""

    def __init__(self, text: str, script: Script, first_line: int,
                 arguments: Sequence[str] | None,
                 included: Callable[[str], str | None] | None = None) -> None:
        self.included = included
        self.script = script
        self.offset = first_line
        self.line = first_line
        self.arguments = tuple(arguments) if arguments is not None else None
        self.functions: dict[str, Any] = {}
        self.called: set[str] = set()
        self.steps = 0
        self.depth = 0
        self.doubt = 0
        self.beside = 0
        self.export_all = False
        self.missing: list[str] = []

    # Statements -------------------------------------------------------------------------

    def block(self, node: Any) -> None:
        """The statements below a node, in order."""
        children = node.children
        for index, child in enumerate(children):
            if child.is_named:
                following = children[index + 1] if index + 1 < len(children) else None
                self.statement(child, following is not None and following.type == "&")

    def statement(self, node: Any, background: bool = False) -> None:
        """One statement of any kind."""
        self.steps += 1
        self.line = node.start_point[0] + self.offset
        if self.steps > _MOST_STEPS:
            raise _Enough(f"more than {_MOST_STEPS} steps: the rest is not read")
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.depth -= 1
            raise _Enough("nested too deep")
        handler = getattr(self, f"on_{node.type}", None)
        self.beside += background
        if handler is not None:
            handler(node, background)
        elif node.type in ("program", "list", "pipeline", "subshell", "compound_statement",
                           "do_group", "negated_command", "else_clause", "ERROR"):
            self.block(node)
        self.beside -= background
        self.depth -= 1

    def on_comment(self, node: Any, background: bool) -> None:
        pass

    def on_command(self, node: Any, background: bool, extra: Sequence[Word] = ()) -> None:
        own: dict[str, tuple[str, int]] = {}
        words: list[Word] = []
        self.missing = []
        for child in node.children:
            if child.type == "variable_assignment":
                name, value = self._assigned(child)
                if value is not None and name:
                    own[name] = (value.text or f"${{{name}}}", value.line)
            elif child.type == "command_name":
                words += self.words(child.children[0] if child.children else child)
            elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
                continue
            elif child.is_named or child.type in ("word",):
                self.substitutions(child)
                words += self.words(child)
            elif child.type not in ("&", ";"):
                words += [Word(_text(child), child.start_point[0] + self.offset)]
        words += extra
        if not words:
            return
        name = words[0].text
        if name == "set" and any(word.text == "--" for word in words[1:]):
            at = next(i for i, word in enumerate(words) if word.text == "--")
            self.arguments = tuple(word.text for word in words[at + 1:])
            return
        if name in ("set", "shopt"):
            flags = [word.text for word in words[1:]]
            if any(re.fullmatch(r"-[a-zA-Z]*a[a-zA-Z]*", flag) for flag in flags) \
                    or "allexport" in flags:
                self.export_all = "+o" not in flags
            elif "+a" in flags:
                self.export_all = False
            return
        if name in ("read", "mapfile", "readarray", "getopts", "printf"):
            self._given(name, words)
        if name in self.functions and self.depth < _MOST_DEPTH - 8:
            self._call(name, words[1:])
            return
        if name == "shift" and self.arguments is not None:
            count = int(words[1].text) if len(words) > 1 and words[1].text.isdecimal() else 1
            self.arguments = self.arguments[count:]
            return
        if name in ("source", ".") and len(words) > 1:
            self._source(words[1])
            return
        if name == "eval" and len(words) > 1:
            self._inner(" ".join(word.text for word in words[1:]), words[1].line)
            return
        env = {key: var.text if var.text is not None else f"${{{key}}}"
               for key, var in self.script.variables.items() if var.exported}
        lines = {key: var.line for key, var in self.script.variables.items() if var.exported}
        for key, (text, line) in own.items():
            env[key], lines[key] = text, line
        self.script.commands.append(Command(
            tuple(words), env, lines, node.start_point[0] + self.offset, self.doubt == 0,
            self.beside > 0, tuple(name for name in dict.fromkeys(self.missing)
                                   if name not in self.script.expected)))
        if name in ("exit", "exec") and self.doubt == 0 and name == "exit":
            raise _Enough("")

    def _given(self, name: str, words: Sequence[Word]) -> None:
        """Variables that a builtin fills: they are set, to what cannot be known."""
        texts = [word.text for word in words[1:]]
        if name == "printf":
            texts = texts[1:2] if texts[:1] == ["-v"] else []
        elif name == "getopts":
            texts = [*texts[1:2], "OPTARG", "OPTIND"]
        for text in texts:
            if re.fullmatch(r"[A-Za-z_]\w*", text):
                self._store(text, Variable(None, words[0].line))

    def _source(self, word: Word) -> None:
        """A file that is read into this one: its variables are ours from here on."""
        text = self.included(word.text) if self.included and self.depth < 20 else None
        if text is None:
            self.script.sources.append(word.text)
            return
        before = {name: var.text or "" for name, var in self.script.variables.items()
                  if var.text is not None}
        inner = interpret(text, self.script.file, 1, None, before)
        for name, var in inner.variables.items():
            if var.text != before.get(name):
                old = self.script.variables.get(name)
                exported = (name in before and bool(old and old.exported)) or (
                    name not in before and var.exported)
                self._store(name, replace(var, line=word.line, exported=exported))

    def substitutions(self, node: Any) -> None:
        """Commands inside ``$(...)`` of a word: they run, beside what the word becomes."""
        if b"$(" not in node.text and b"`" not in node.text:
            return
        self.doubt += 1
        for inner in nodes(node, "command_substitution"):
            if inner.parent is None or not any(
                    part.type == "command_substitution" for part in _above(inner, node)):
                missing = self.missing
                self.block(inner)
                self.missing = missing
        self.doubt -= 1

    def _inner(self, text: str, line: int) -> None:
        """A script inside a word (eval, bash -c): its commands belong here."""
        if len(text) > _LONGEST or self.depth > _MOST_DEPTH - 8:
            return
        old = self.offset
        self.offset = line
        self.block(tree(text).root_node)
        self.offset = old

    def _call(self, name: str, words: Sequence[Word]) -> None:
        self.called.add(name)
        old, self.arguments = self.arguments, tuple(word.text for word in words)
        self.statement(self.functions[name])
        self.arguments = old

    def on_function_definition(self, node: Any, background: bool) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[_text(name)] = body

    def uncalled(self) -> None:
        """Functions that nothing calls are read too: their commands may run."""
        self.doubt += 1
        for name, body in list(self.functions.items()):
            if name not in self.called:
                self.called.add(name)
                self.arguments = None
                self.statement(body)
        self.doubt -= 1

    def on_redirected_statement(self, node: Any, background: bool) -> None:
        body = node.child_by_field_name("body")
        heredocs = [child for child in node.children if child.type == "heredoc_redirect"]
        target = next((child.child_by_field_name("destination") for child in node.children
                       if child.type == "file_redirect"), None)
        for heredoc in heredocs:
            if target is None:
                target = next((child.child_by_field_name("destination")
                               for child in heredoc.children
                               if child.type == "file_redirect"), None)
            self._heredoc(heredoc, body, target)
        if body is not None:
            self.statement(body, background)

    def _heredoc(self, node: Any, body: Any, target: Any) -> None:
        content = next((child for child in node.children if child.type == "heredoc_body"), None)
        if content is None or len(content.text) > _LONGEST:
            return
        program = _text(body).split()[:1] if body is not None else []
        line = content.start_point[0] + self.offset
        text = _text(content)
        start = next((_text(child) for child in node.children if child.type == "heredoc_start"),
                     "")
        if program and program[0].rpartition("/")[2] in ("bash", "sh", "ssh", "sbatch", "docker",
                                                         "sudo", "srun"):
            self._inner(text, line)
        elif target is not None:
            if not start.startswith(("'", '"', "\\")):
                text = re.sub(r"\\([$`\\])", r"\1", text)
            self.script.written[self._plain(target)] = (text, line)

    def on_variable_assignment(self, node: Any, background: bool) -> None:
        name, value = self._assigned(node)
        if name and value is not None:
            self._store(name, value)

    def on_variable_assignments(self, node: Any, background: bool) -> None:
        self.block(node)

    def _store(self, name: str, value: Variable) -> None:
        old = self.script.variables.get(name)
        exported = value.exported or self.export_all or bool(old and old.exported)
        if exported != value.exported:
            value = replace(value, exported=exported)
        if value.text is not None and len(value.text) > _LONGEST:
            value = replace(value, text=None)
        self.script.variables[name] = value

    def _assigned(self, node: Any) -> tuple[str, Variable | None]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return "", None
        line = node.start_point[0] + self.offset
        if name.type == "subscript":
            return "", None
        adds = any(child.type == "+=" for child in node.children)
        old = self.script.variables.get(_text(name))
        if value is None:
            return _text(name), Variable("", line)
        if value.type == "array":
            items = tuple(word for child in value.named_children if child.type != "comment"
                          for word in self.words(child))
            if adds and old is not None:
                items = (*(old.items or ()), *items)
            first = items[0].text if items else ""
            return _text(name), Variable(first, line, False, items)
        self.substitutions(value)
        word = self._joined(value)
        text = word.text if word.known or "${" in word.text else None
        if adds and text is not None:
            text = (old.text or "" if old is not None else "") + text
        return _text(name), Variable(text, line)

    def on_declaration_command(self, node: Any, background: bool) -> None:
        kind = _text(node.children[0]) if node.children else ""
        exports = kind == "export" or any(_text(child) in ("-x", "-gx", "-xg")
                                          for child in node.children[1:])
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self._assigned(child)
                if name and value is not None:
                    self._store(name, replace(value, exported=exports))
            elif child.type == "variable_name" and exports:
                name = _text(child)
                known = self.script.variables.setdefault(
                    name, Variable(None, child.start_point[0] + self.offset))
                self.script.variables[name] = replace(known, exported=True)
                self.script.used.add(name)

    def on_unset_command(self, node: Any, background: bool) -> None:
        for child in node.named_children:
            self.script.variables.pop(_text(child), None)

    def on_if_statement(self, node: Any, background: bool) -> None:
        branches: list[list[Any]] = [[]]
        seen_then = False
        for child in node.children:
            if child.type == "then":
                seen_then = True
            elif child.is_named and not seen_then:
                self._condition(child)
            elif child.type in ("elif_clause", "else_clause"):
                branches.append(list(child.named_children))
            elif child.is_named and seen_then:
                branches[0].append(child)
        self._branches(branches, whole=any(child.type == "else_clause" for child in node.children))

    def on_case_statement(self, node: Any, background: bool) -> None:
        branches = [list(child.named_children[1:]) for child in node.children
                    if child.type == "case_item"]
        self._branches(branches, whole=False)

    def _branches(self, branches: list[list[Any]], whole: bool) -> None:
        """Read alternatives, each from the same start; what differs after them is not known."""
        before = dict(self.script.variables)
        ends = []
        self.doubt += 1
        for branch in branches:
            self.script.variables = dict(before)
            for part in branch:
                try:
                    self.statement(part)
                except _Enough as stop:
                    if str(stop):
                        raise
                    break
            ends.append(self.script.variables)
        self.doubt -= 1
        if not whole:
            ends.append(before)
        merged: dict[str, Variable] = {}
        for name in dict.fromkeys(key for end in ends for key in end):
            found = [end[name] for end in ends if name in end]
            if all(var is found[0] for var in found):
                merged[name] = found[0]
                continue
            texts = {var.text for var in found}
            first = found[0]
            if len(texts) > 1 or len({var.items for var in found}) > 1:
                first = Variable(None, first.line)
            merged[name] = replace(first, exported=any(var.exported for var in found))
        self.script.variables = merged

    def on_for_statement(self, node: Any, background: bool) -> None:
        name = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        values = [word for child in node.children_by_field_name("value")
                  for word in self.words(child)]
        if name is None or body is None:
            return
        if not values or not all(word.known for word in values) or len(values) > _MOST_TURNS:
            self._once(body, _text(name))
            return
        for word in values:
            self._store(_text(name), Variable(word.text, word.line))
            self.block(body)

    def on_c_style_for_statement(self, node: Any, background: bool) -> None:
        body = node.child_by_field_name("body")
        head = re.search(r"\(\(\s*(\w+)\s*=\s*([^;]+);\s*\1\s*(<=?)\s*([^;]+);\s*(?:\1\s*\+\+|"
                         r"\+\+\s*\1)\s*\)\)", _text(node))
        if body is None:
            return
        if head:
            first, last = self._number(head[2]), self._number(head[4])
            if first is not None and last is not None:
                last += head[3] == "<="
                if 0 <= last - first <= _MOST_TURNS:
                    for turn in range(first, last):
                        self._store(head[1], Variable(str(turn), self.line))
                        self.block(body)
                    return
        self._once(body, head[1] if head else "")

    def _number(self, text: str) -> int | None:
        text = text.strip().lstrip("$").strip("{}")
        if re.fullmatch(r"[0-9]{1,9}", text):
            return int(text)
        var = self.script.variables.get(text)
        found = var.text if var else None
        return int(found) if found and re.fullmatch(r"[0-9]{1,9}", found) else None

    def _condition(self, node: Any) -> None:
        """What an if, while or until asks: it runs, and decides."""
        self.doubt += 1
        self.statement(node)
        self.doubt -= 1

    def on_while_statement(self, node: Any, background: bool) -> None:
        body = node.child_by_field_name("body")
        for child in node.children_by_field_name("condition"):
            if child.is_named:
                self._condition(child)
        if body is not None:
            self._once(body, "")

    def _once(self, body: Any, name: str) -> None:
        """A loop whose turns are not known: its body, once, as something that may run."""
        if name:
            self._store(name, Variable(None, self.line))
        self.doubt += 1
        self.block(body)
        self.doubt -= 1

    def on_list(self, node: Any, background: bool) -> None:
        """a && b, a || b: what stands after || may not run."""
        either = any(child.type == "||" for child in node.children)
        named = [child for child in node.children if child.is_named]
        if named:
            self.statement(named[0], background)
        self.doubt += either
        for child in named[1:]:
            try:
                self.statement(child, background)
            except _Enough as stop:
                if str(stop) or not either:
                    raise
        self.doubt -= either

    def on_test_command(self, node: Any, background: bool) -> None:
        pass

    # Words ------------------------------------------------------------------------------

    def words(self, node: Any) -> list[Word]:
        """The words that one node becomes: none, one, or several after splitting."""
        line = node.start_point[0] + self.offset
        kind = node.type
        if kind in ("simple_expansion", "expansion") or (
                kind == "string" and _text(node) in ('"$@"', '"${@}"')):
            inner = node if kind != "string" else node.named_children[0]
            several = self._several(inner)
            if several is not None:
                return several
        if kind == "string" and len(node.named_children) == 1 \
                and node.named_children[0].type == "expansion" \
                and _text(node) == f'"{_text(node.named_children[0])}"':
            several = self._several(node.named_children[0])
            if several is not None:
                return several
        word = self._joined(node)
        if kind in ("simple_expansion", "expansion", "concatenation") and word.known \
                and kind != "concatenation":
            return [Word(part, line, True, _text(node)[:60]) for part in word.text.split()]
        if kind in ("concatenation", "brace_expression", "word") and "{" in _text(node):
            spread = _braces(_text(node)) if not re.search(r"[\"'$`]", _text(node)) else None
            if spread:
                return [Word(part, line, True, _text(node)[:60]) for part in spread]
        if kind == "command_substitution":
            return [Word(part, line, word.known, _text(node)[:60])
                    for part in (word.text.split() if word.known else [word.text])]
        return [word]

    def _several(self, node: Any) -> list[Word] | None:
        """``$@`` and ``${NAME[@]}``: each element a word; None for anything else."""
        text, line = _text(node), node.start_point[0] + self.offset
        if text in ("$@", "$*", "${@}", "${*}"):
            if self.arguments is None:
                return [Word("$@", line, False, text)]
            return [Word(word, line, True, text) for word in self.arguments]
        match = re.fullmatch(r"\$\{(\w+)\[[@*]\](?:\+\"?\$\{\1\[[@*]\]\}\"?)?\}", text)
        if match:
            self.script.used.add(match[1])
            var = self.script.variables.get(match[1])
            if var is not None and var.items is not None:
                return list(var.items)
            if var is not None and var.text == "":
                return []
            return [Word(f"${{{match[1]}[@]}}", line, False, text)]
        return None

    def _joined(self, node: Any) -> Word:
        """A node as one word."""
        line, raw = node.start_point[0] + self.offset, _text(node)
        kind = node.type
        if kind == "raw_string":
            return Word(raw[1:-1], line, True, raw[:60])
        if kind == "ansi_c_string":
            return Word(_ansi(raw[2:-1]), line, True, raw[:60])
        if kind in ("word", "number", "special_variable_name", "string_content",
                    "extglob_pattern", "regex", "variable_name"):
            return Word(_unescaped(raw, kind == "string_content"), line, True, raw[:60])
        if kind == "simple_expansion":
            text, known = self._value(raw[1:].strip("{}"), raw)
            return Word(text, line, known, raw[:60])
        if kind == "expansion":
            text, known = self._expansion(node)
            return Word(text, line, known, raw[:60])
        if kind == "command_substitution":
            text, known = self._substituted(node)
            return Word(text, line, known, raw[:60])
        if kind == "arithmetic_expansion":
            number = self._arithmetic(node)
            return Word(str(number) if number is not None else raw, line, number is not None,
                        raw[:60])
        if kind in ("string", "concatenation", "translated_string", "command_name"):
            return self._glued(node, line, raw)
        return Word(raw, line, "$" not in raw and "`" not in raw, raw[:60])

    def _glued(self, node: Any, line: int, raw: str) -> Word:
        """The parts of a string or concatenation, and what stands between them."""
        quoted = node.type in ("string", "translated_string")
        parts: list[str] = []
        known = True
        source = node.text
        start = node.start_byte
        at = start + (source.index(b'"') + 1 if quoted else 0)
        end = node.end_byte - (1 if quoted and source.endswith(b'"') else 0)
        for child in node.children:
            if not child.is_named and child.type == '"':
                continue
            if child.start_byte > at:
                between = source[at - start:child.start_byte - start].decode("utf-8", "replace")
                parts.append(_unescaped(between, quoted))
            if child.is_named:
                word = self._joined(child)
                parts.append(word.text)
                known = known and word.known
            else:
                parts.append(_unescaped(_text(child), quoted))
            at = child.end_byte
        if at < end:
            parts.append(_unescaped(source[at - start:end - start].decode("utf-8", "replace"),
                                    quoted))
        return Word("".join(parts), line, known, raw[:60])

    def _value(self, name: str, raw: str) -> tuple[str, bool]:
        if name.isdecimal():
            index = int(name)
            if index == 0:
                return self.script.file, True
            if self.arguments is not None:
                return (self.arguments[index - 1], True) if index <= len(self.arguments) \
                    else ("", True)
            return f"${{{name}}}", False
        self.script.used.add(name)
        var = self.script.variables.get(name)
        if var is None:
            if not name.startswith(("?", "#", "$", "!", "-", "_", "@", "*")):
                self.missing.append(name)
            return f"${{{name}}}", False
        if var.text is None:
            return f"${{{name}}}", False
        return var.text, "${" not in var.text

    def _expansion(self, node: Any) -> tuple[str, bool]:
        raw = _text(node)
        match = re.fullmatch(r"\$\{([A-Za-z_]\w*|[0-9]+)(?:(:?[-=?+])(.*))?\}", raw, re.DOTALL)
        if match is None:
            name = re.match(r"\$\{[!#]?([A-Za-z_]\w*)", raw)
            if name:
                self.script.used.add(name[1])
            return raw if raw.startswith("${") else f"${{{raw}}}", False
        name, operator, _ = match.groups()
        before = len(self.missing)
        text, known = self._value(name, raw)
        if operator is None:
            return text, known
        del self.missing[before:]
        var = self.script.variables.get(name)
        there = known and text != "" if name.isdecimal() else var is not None
        sign = operator[-1]
        if sign == "+":
            if var is None and not name.isdecimal():
                return "", True
            return self._default(node) if there else (raw, False)
        if sign == "?":
            self.script.expected.add(name)
            return (text, known) if there else (f"${{{name}}}", False)
        if there and (text or not operator.startswith(":")):
            return text, known
        found = self._default(node)
        if found[0] == "" and var is None and (not name.isdecimal() or self.arguments is None):
            return f"${{{name}}}", False  # the caller may give it
        return found

    def _default(self, node: Any) -> tuple[str, bool]:
        """The word behind ``:-`` of an expansion."""
        parts, known, behind = [], True, False
        for child in node.children:
            if not child.is_named and child.type.lstrip(":") in ("-", "=", "+", "?"):
                behind = True
            elif behind and child.is_named:
                word = self._joined(child)
                parts.append(word.text)
                known = known and word.known
        return "".join(parts), known

    def _substituted(self, node: Any) -> tuple[str, bool]:
        """``$(seq ...)`` and ``$(echo ...)`` are known; anything else is not."""
        inner = [child for child in node.named_children if child.type == "command"]
        if len(inner) == 1 and len(node.named_children) == 1:
            words = [word for child in inner[0].named_children for word in self.words(
                child.children[0] if child.type == "command_name" and child.children else child)]
            if words and all(word.known for word in words):
                argv = [word.text for word in words]
                if argv[0] == "seq" and 2 <= len(argv) <= 4 and all(
                        re.fullmatch(r"-?[0-9]{1,6}", word) for word in argv[1:]):
                    numbers = list(map(int, argv[1:]))
                    first = numbers[0] if len(numbers) > 1 else 1
                    step = numbers[1] if len(numbers) == 3 else 1
                    if step > 0 and (numbers[-1] - first) // step <= 4 * _MOST_TURNS:
                        return " ".join(map(str, range(first, numbers[-1] + 1, step))), True
                if argv[0] == "echo":
                    return " ".join(argv[1:]), True
        return _HIDDEN, False

    def _arithmetic(self, node: Any) -> int | None:
        """``$((...))`` of whole numbers and known variables."""
        inner = list(node.named_children)
        return self._sum(inner[0]) if len(inner) == 1 else None

    def _sum(self, node: Any, depth: int = 0) -> int | None:
        if depth > 20:
            return None
        kind, text = node.type, _text(node)
        if kind == "number" or re.fullmatch(r"[0-9]{1,12}", text):
            return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None
        if kind in ("variable_name", "simple_expansion", "expansion", "word"):
            name = text.strip("${}")
            found, known = self._value(name, text)
            return int(found) if known and re.fullmatch(r"-?[0-9]{1,12}", found) else None
        if kind == "parenthesized_expression" and node.named_children:
            return self._sum(node.named_children[0], depth + 1)
        if kind == "binary_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            sign = node.child_by_field_name("operator")
            if left is None or right is None or sign is None:
                return None
            one, two = self._sum(left, depth + 1), self._sum(right, depth + 1)
            act = _SIGNS.get(_text(sign))
            if one is None or two is None or act is None or (
                    _text(sign) in "/%" and two == 0):
                return None
            return act(one, two)
        return None

    def _plain(self, node: Any) -> str:
        return self._joined(node).text


_SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a // b, "%": lambda a, b: a % b}


def _unescaped(text: str, quoted: bool) -> str:
    """A text without the backslashes that the shell takes; a continued line is joined."""
    text = text.replace("\\\n", "")
    return re.sub(r'\\([$`"\\])' if quoted else r"\\(.)", r"\1", text, flags=re.DOTALL)


def _ansi(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t", "\\": "\\", "'": "'"}.get(
        match[1], match[0]), text)


def _braces(text: str) -> list[str] | None:
    """``{0..7}`` and ``{a,b}`` as bash spreads them; None where there is nothing to spread."""
    match = re.search(r"\{(-?[0-9]{1,5})\.\.(-?[0-9]{1,5})\}", text)
    if match:
        first, last = int(match[1]), int(match[2])
        if abs(last - first) > 4 * _MOST_TURNS:
            return None
        step = 1 if last >= first else -1
        return [text[:match.start()] + str(number) + text[match.end():]
                for number in range(first, last + step, step)]
    match = re.search(r"\{([^{}\s]*,[^{}\s]*)\}", text)
    if match and not text.startswith(("{", "'{")):
        return [text[:match.start()] + part + text[match.end():] for part in match[1].split(",")]
    return None


def _above(node: Any, top: Any) -> list[Any]:
    """The nodes between a node and one above it."""
    out = []
    parent = node.parent
    while parent is not None and parent.id != top.id:
        out.append(parent)
        parent = parent.parent
    return out


def nodes(root: Any, *kinds: str) -> list[Any]:
    """Every node of these kinds below a node, in the order of the text."""
    found: list[Any] = []
    cursor = root.walk()
    while True:
        node = cursor.node
        if node.type in kinds:
            found.append(node)
        if cursor.goto_first_child() or cursor.goto_next_sibling():
            continue
        while cursor.goto_parent():
            if cursor.goto_next_sibling():
                break
        else:
            return found
