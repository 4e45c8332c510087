"""Follow bash by its grammar: which commands would run, with which words and variables.

>>> from kimi_nb.check.reading import bash
>>> bash.interpret("PORT=8000; vllm serve m --port $PORT", "run.sh").commands[0].argv
('vllm', 'serve', 'm', '--port', '8000')

Nothing is executed. Variables, exports, arrays, functions, short loops and ``$1`` to ``$9`` are
followed as far as they can be known; what cannot be known stays as ``${NAME}`` in its word. Both
branches of an ``if`` are read, and what differs between them is not known after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kimi_nb.check.reading.script import Command, Ended, Enough, Script, Variable, Word
from kimi_nb.check.reading.syntax import Unparsed, above, nodes, text_of, tree
from kimi_nb.check.reading.words import MOST_TURNS, Words

_MOST_STEPS = 10_000  # of one file: a loop in a loop ends here instead of running for ever
_MOST_DEPTH = 60
_LONGEST = 100_000
_MOST_ITEMS = 4000
_MOST_WORK = 4_000_000


def interpret(
    text: str,
    file: str,
    first_line: int = 1,
    arguments: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    root: Any = None,
    env_lines: Mapping[str, int] | None = None,
    included: Callable[[str], str | None] | None = None,
) -> Script:
    """Read a script, which starts at line ``first_line`` of its file.

    ``arguments`` are ``$1``, ``$2``, ... if the caller is known. ``env`` is what it exports, and
    ``env_lines`` the lines of these exports. ``root`` is the syntax tree if there is one already.
    ``included`` returns the text of a file that is sourced.
    """
    script = Script(file)
    reader = _Reader(script, first_line, arguments, included)
    for name, value in (env or {}).items():
        script.variables[name] = Variable(value, (env_lines or {}).get(name, 0), True)
    try:
        try:
            reader.block((root or tree(text)).root_node)
        except Ended:
            # Its functions may have gone to another shell before: bash -c "$(declare -f serve); ..."
            script.unread.append((reader.line, ""))
            reader.depth = reader.beside = reader.doubt = 0
        reader.uncalled()
    except Enough as stop:
        script.unread.append((reader.line, str(stop)))
    except RecursionError:
        script.unread.append((reader.line, "nested too deep"))
    return script


class _Reader(Words):
    """The walk through the statements of one script."""

    def __init__(
        self,
        script: Script,
        first_line: int,
        arguments: Sequence[str] | None,
        included: Callable[[str], str | None] | None = None,
    ) -> None:
        super().__init__(script, first_line, arguments)
        self.included = included
        self.line = first_line
        self.functions: dict[str, Any] = {}
        self.called: set[str] = set()
        self.steps = 0
        self.depth = 0
        self.doubt = 0
        self.beside = 0
        self.spent = 0
        self.export_all = False

    # Statements -------------------------------------------------------------------------

    def block(self, node: Any) -> None:
        """Read the statements below a node, in order."""
        children = node.children
        for index, child in enumerate(children):
            if child.is_named:
                following = children[index + 1] if index + 1 < len(children) else None
                self.statement(child, following is not None and following.type == "&")

    def statement(self, node: Any, background: bool = False) -> None:
        """Read one statement of any kind."""
        self.steps += 1
        self.line = node.start_point[0] + self.offset
        if self.steps > _MOST_STEPS:
            raise Enough(f"more than {_MOST_STEPS} steps: the rest is not read")
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.depth -= 1
            raise Enough("nested too deep")
        handler = getattr(self, f"on_{node.type}", None)
        self.beside += background
        if handler is not None:
            handler(node, background)
        elif node.type == "subshell":
            before = dict(self.script.variables)
            self.block(node)
            self.script.variables = before  # what is set inside stays inside
        elif node.type in (
            "program",
            "list",
            "pipeline",
            "compound_statement",
            "do_group",
            "negated_command",
            "else_clause",
            "ERROR",
        ):
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
                words += [Word(text_of(child), child.start_point[0] + self.offset)]
        words += extra
        if not words:
            return
        self.spend(sum(len(word.text) for word in words) + 16 * len(words))
        name = words[0].text
        if name == "set" and any(word.text == "--" for word in words[1:]):
            at = next(i for i, word in enumerate(words) if word.text == "--")
            self.arguments = tuple(word.text for word in words[at + 1 :])
            return
        if name in ("set", "shopt"):
            flags = [word.text for word in words[1:]]
            if (
                any(re.fullmatch(r"-[a-zA-Z]*a[a-zA-Z]*", flag) for flag in flags)
                or "allexport" in flags
            ):
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
        env: dict[str, str] = {}
        lines: dict[str, int] = {}
        if not self.plain_program(words):
            self.spend(20 * len(self.script.variables))
            env = {
                key: var.text if var.text is not None else f"${{{key}}}"
                for key, var in self.script.variables.items()
                if var.exported
            }
            lines = {key: var.line for key, var in self.script.variables.items() if var.exported}
        for key, (text, line) in own.items():
            env[key], lines[key] = text, line
        self.script.commands.append(
            Command(
                tuple(words),
                env,
                lines,
                node.start_point[0] + self.offset,
                self.doubt == 0,
                self.beside > 0,
                tuple(
                    name for name in dict.fromkeys(self.missing) if name not in self.script.expected
                ),
            )
        )
        if name in ("exit", "exec") and self.doubt == 0 and name == "exit":
            raise Ended("")

    def spend(self, bytes_: int) -> None:
        """Count work, and stop the reading of a script that makes too much of it."""
        self.spent += bytes_
        if self.spent > _MOST_WORK:
            raise Enough("what its words unfold into is too much: the rest is not read")

    @staticmethod
    def plain_program(words: Sequence[Word]) -> bool:
        """Return whether a command is one for which the environment does not matter here."""
        return words[0].text in (
            "echo",
            "printf",
            "mkdir",
            "cd",
            "sleep",
            "cat",
            "rm",
            "cp",
            "mv",
            "true",
            ":",
            "grep",
            "sed",
            "awk",
            "tee",
            "test",
            "[",
            "local",
        )

    def _given(self, name: str, words: Sequence[Word]) -> None:
        """Mark the variables that a builtin fills as set, to values that cannot be known."""
        texts = [word.text for word in words[1:]]
        if name == "printf":
            texts = texts[1:2] if texts[:1] == ["-v"] else []
        elif name == "getopts":
            texts = [*texts[1:2], "OPTARG", "OPTIND"]
        for text in texts:
            if re.fullmatch(r"[A-Za-z_]\w*", text):
                self._store(text, Variable(None, words[0].line))

    def _source(self, word: Word) -> None:
        """Read a file that is sourced, and keep the variables that it sets."""
        text = self.included(word.text) if self.included and self.depth < 20 else None
        if text is None:
            self.script.sources.append(word.text)
            return
        before = {
            name: var.text or ""
            for name, var in self.script.variables.items()
            if var.text is not None
        }
        inner = interpret(text, self.script.file, 1, None, before)
        for name, var in inner.variables.items():
            if var.text != before.get(name):
                old = self.script.variables.get(name)
                exported = (name in before and bool(old and old.exported)) or (
                    name not in before and var.exported
                )
                self._store(name, replace(var, line=word.line, exported=exported))

    def substitutions(self, node: Any) -> None:
        """Read the commands inside ``$(...)`` of a word, since they run too."""
        if b"$(" not in node.text and b"`" not in node.text:
            return
        self.doubt += 1
        for inner in nodes(node, "command_substitution"):
            if inner.parent is None or not any(
                part.type == "command_substitution" for part in above(inner, node)
            ):
                missing = self.missing
                self.block(inner)
                self.missing = missing
        self.doubt -= 1

    def _inner(self, text: str, line: int) -> None:
        """Read a script that is inside a word or a heredoc, as if its commands stood here."""
        if len(text) > _LONGEST or self.depth > _MOST_DEPTH - 8:
            return
        self.spend(20 * len(text))  # parsing costs more than copying
        old = self.offset
        self.offset = line
        try:
            self.block(tree(text).root_node)
        except Unparsed as slow:
            raise Enough(str(slow)) from None
        self.offset = old

    def _call(self, name: str, words: Sequence[Word]) -> None:
        self.called.add(name)
        old, self.arguments = self.arguments, tuple(word.text for word in words)
        self.statement(self.functions[name])
        self.arguments = old

    def on_function_definition(self, node: Any, background: bool) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[text_of(name)] = body

    def uncalled(self) -> None:
        """Read the functions that nothing calls too, since their commands may run."""
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
        target = next(
            (
                child.child_by_field_name("destination")
                for child in node.children
                if child.type == "file_redirect"
            ),
            None,
        )
        for heredoc in heredocs:
            if target is None:
                target = next(
                    (
                        child.child_by_field_name("destination")
                        for child in heredoc.children
                        if child.type == "file_redirect"
                    ),
                    None,
                )
            self._heredoc(heredoc, body, target)
        if body is not None:
            self.statement(body, background)

    def _heredoc(self, node: Any, body: Any, target: Any) -> None:
        content = next((child for child in node.children if child.type == "heredoc_body"), None)
        if content is None or len(content.text) > _LONGEST:
            return
        program = text_of(body).split()[:1] if body is not None else []
        line = content.start_point[0] + self.offset
        text = text_of(content)
        start = next(
            (text_of(child) for child in node.children if child.type == "heredoc_start"), ""
        )
        if program and program[0].rpartition("/")[2] in (
            "bash",
            "sh",
            "ssh",
            "sbatch",
            "docker",
            "sudo",
            "srun",
        ):
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
        old = self.script.variables.get(text_of(name))
        if value is None:
            return text_of(name), Variable("", line)
        if value.type == "array":
            items = tuple(
                word
                for child in value.named_children
                if child.type != "comment"
                for word in self.words(child)
            )
            if adds and old is not None:
                items = (*(old.items or ()), *items)
            self.spend(16 * len(items))
            if len(items) > _MOST_ITEMS:
                return text_of(name), Variable(None, line)
            first = items[0].text if items else ""
            return text_of(name), Variable(first, line, False, items)
        self.substitutions(value)
        word = self._joined(value)
        text = word.text if word.known or "${" in word.text else None
        if adds and text is not None:
            text = (old.text or "" if old is not None else "") + text
        return text_of(name), Variable(text, line)

    def on_declaration_command(self, node: Any, background: bool) -> None:
        kind = text_of(node.children[0]) if node.children else ""
        exports = kind == "export" or any(
            text_of(child) in ("-x", "-gx", "-xg") for child in node.children[1:]
        )
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self._assigned(child)
                if name and value is not None:
                    self._store(name, replace(value, exported=exports))
            elif child.type == "variable_name" and exports:
                name = text_of(child)
                known = self.script.variables.setdefault(
                    name, Variable(None, child.start_point[0] + self.offset)
                )
                self.script.variables[name] = replace(known, exported=True)
                self.script.used.add(name)

    def on_unset_command(self, node: Any, background: bool) -> None:
        for child in node.named_children:
            self.script.variables.pop(text_of(child), None)

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
        branches = [
            list(child.named_children[1:]) for child in node.children if child.type == "case_item"
        ]
        self._branches(branches, whole=False)

    def _branches(self, branches: list[list[Any]], whole: bool) -> None:
        """Read alternatives, each from the same start; what differs after them is not known.

        ``whole`` is whether one of the alternatives always runs.
        """
        self.spend(20 * len(self.script.variables) * (len(branches) + 1))
        before = dict(self.script.variables)
        ends = []
        self.doubt += 1
        for branch in branches:
            self.script.variables = dict(before)
            for part in branch:
                try:
                    self.statement(part)
                except Enough as stop:
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
        values = [
            word for child in node.children_by_field_name("value") for word in self.words(child)
        ]
        if name is None or body is None:
            return
        if not values or not all(word.known for word in values) or len(values) > MOST_TURNS:
            self._once(body, text_of(name))
            return
        for word in values:
            self._store(text_of(name), Variable(word.text, word.line))
            self.block(body)

    def on_c_style_for_statement(self, node: Any, background: bool) -> None:
        body = node.child_by_field_name("body")
        head = re.search(
            r"\(\(\s*(\w+)\s*=\s*([^;]+);\s*\1\s*(<=?)\s*([^;]+);\s*(?:\1\s*\+\+|"
            r"\+\+\s*\1)\s*\)\)",
            text_of(node),
        )
        if body is None:
            return
        if head:
            first, last = self._number(head[2]), self._number(head[4])
            if first is not None and last is not None:
                last += head[3] == "<="
                if 0 <= last - first <= MOST_TURNS:
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
        """Read the condition of an if, while or until, which runs in any case."""
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
        """Read the body of a loop whose turns are not known, once, as something that may run."""
        if name:
            self._store(name, Variable(None, self.line))
        self.doubt += 1
        self.block(body)
        self.doubt -= 1

    def on_list(self, node: Any, background: bool) -> None:
        """Read ``a && b`` or ``a || b``; what follows ``||`` may not run."""
        either = any(child.type == "||" for child in node.children)
        named = [child for child in node.children if child.is_named]
        if named:
            self.statement(named[0], background)
        self.doubt += either
        for child in named[1:]:
            try:
                self.statement(child, background)
            except Enough as stop:
                if str(stop) or not either:
                    raise
        self.doubt -= either

    def on_test_command(self, node: Any, background: bool) -> None:
        pass
