"""Follow bash by its grammar: which commands would run, with which words and variables.

>>> from kimi_nb.check.reading import bash
>>> bash.interpret("PORT=8000; vllm serve m --port $PORT", "run.sh").commands[0].argv
('vllm', 'serve', 'm', '--port', '8000')

Nothing is executed. Variables, exports, arrays, functions, short loops and ``$1`` to ``$9`` are
followed as far as they can be known; what cannot be known stays as ``${NAME}`` in its word. Both
branches of an ``if`` are read, and what differs between them is not known after it.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kimi_nb.check.reading.script import Command, Ended, Enough, Script, Variable, Word
from kimi_nb.check.reading.syntax import Node, Tree, Unparsed, tree
from kimi_nb.check.reading.words import HIDDEN, MOST_TURNS, Words
from kimi_nb.core import numbers

_MOST_STEPS = 10_000  # of one file: a loop in a loop ends here instead of running for ever
_MOST_DEPTH = 60
_LONGEST = 100_000
_MOST_ITEMS = 4000
_MOST_WORK = 4_000_000
_MOST_KEPT = 64  # environments of one script
# Kinds of statements that hold others.
_BLOCKS = {
    "program",
    "list",
    "pipeline",
    "compound_statement",
    "do_group",
    "negated_command",
    "else_clause",
    "ERROR",
}
# Commands for which the environment does not matter here.
_PLAIN = {
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
}
# Programs that run the script of a heredoc, here or elsewhere.
_TAKES_SCRIPT = {"bash", "sh", "ssh", "sbatch", "docker", "sudo", "srun"}
_YAML = re.compile(r"(?:\s*(?:#[^\n]*)?\n)*\s*(?:---|(?:- )?[A-Za-z][\w.-]*:(?:\s|$))")
_NO_YAML = (".sh", ".bash", ".py", ".md", ".conf", ".cfg", ".ini", ".json", ".txt", ".toml")


def _is_yaml(target: str, text: str) -> bool:
    """Return whether a heredoc is YAML: by the file that it becomes, else by how it begins."""
    if target.endswith((".yaml", ".yml")):
        return True
    return not target.endswith(_NO_YAML) and _YAML.match(text) is not None


def interpret(
    text: str,
    file: str,
    first_line: int = 1,
    arguments: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    root: Tree | None = None,
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
            reader.block((root or tree(text)).top())
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
        self.functions: dict[str, Node] = {}
        self.called: set[str] = set()
        self.steps = 0
        self.depth = 0
        self.doubt = 0
        self.beside = 0
        self.spent = 0
        self.export_all = False
        # Which state of the exported variables holds now, and the environment of each state.
        self.exports = 0
        self.states = 0
        self.environments: dict[int, tuple[Mapping[str, str], Mapping[str, int]]] = {}

    # Statements -------------------------------------------------------------------------

    def block(self, node: Node) -> None:
        """Read the statements below a node, in order."""
        children = node.children
        for index, child in enumerate(children):
            if child.is_named:
                last = index + 1 == len(children)
                self.statement(child, not last and children[index + 1].type == "&")

    def statement(self, node: Node, background: bool = False) -> None:
        """Read one statement of any kind."""
        self.steps += 1
        self.line = node.row + self.offset
        if self.steps > _MOST_STEPS:
            raise Enough(f"more than {_MOST_STEPS} steps: the rest is not read")
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.depth -= 1
            raise Enough("nested too deep")
        handler = _handlers().get(node.type)
        self.beside += background
        if handler is not None:
            handler(self, node, background)
        elif node.type == "subshell":
            before, exports = dict(self.script.variables), self.exports
            self.block(node)
            # What is set inside stays inside.
            self.script.variables, self.exports = before, exports
        elif node.type in _BLOCKS:
            self.block(node)
        self.beside -= background
        self.depth -= 1

    def on_comment(self, node: Node, background: bool) -> None:
        pass

    def on_command(self, node: Node, background: bool, extra: Sequence[Word] = ()) -> None:
        own: dict[str, tuple[str, int]] = {}
        words: list[Word] = []
        self.missing = []
        end = -1
        for child in node.children:
            glued = words and child.source[end : child.start_byte] == b"\\\n"
            end = child.end_byte
            if child.type == "variable_assignment":
                name, value = self._assigned(child)
                if value is not None and name:
                    own[name] = (value.text or f"${{{name}}}", value.line)
            elif child.type == "command_name":
                words += self.words(child.children[0] if child.children else child)
            elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
                continue
            elif child.is_named or child.type in ("word",):
                if child.substitutions:
                    self.substitutions(child)
                more = self.words(child)
                # The grammar parts a:\<line end>b, which bash takes for one word.
                words += more if not glued else _joined(words.pop(), more)
            elif child.type not in ("&", ";"):
                words += [Word(child.text, child.row + self.offset)]
        words += extra
        if not words:
            return
        self.spend(sum(len(word.text) for word in words) + 16 * len(words))
        name = words[0].text
        if name == "set" and any(word.text == "--" for word in words[1:]):
            at = next(i for i, word in enumerate(words) if word.text == "--")
            rest = words[at + 1 :]
            # One that is not known may be several: eval set -- "$PARSED", after getopt.
            self.arguments = (
                tuple(word.text for word in rest) if all(word.known for word in rest) else None
            )
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
            count = numbers.whole(words[1].text) if len(words) > 1 else 1
            self.arguments = self.arguments[1 if count is None else count :]
            return
        if name in ("source", ".") and len(words) > 1:
            self._source(words[1])
            return
        if name == "eval" and len(words) > 1:
            self._inner(" ".join(word.text for word in words[1:]), words[1].line)
            return
        env: Mapping[str, str] = {}
        lines: Mapping[str, int] = {}
        if name not in _PLAIN:
            self.spend(20 * len(self.script.variables))
            env, lines = self.exported()
        if own:
            env = {**env, **{key: text for key, (text, _) in own.items()}}
            lines = {**lines, **{key: line for key, (_, line) in own.items()}}
        self.script.commands.append(
            Command(
                tuple(words),
                env,
                lines,
                node.row + self.offset,
                self.doubt == 0,
                self.beside > 0,
                tuple(
                    name for name in dict.fromkeys(self.missing) if name not in self.script.expected
                )
                if self.missing
                else (),
                tuple(own),
            )
        )
        if name in ("exit", "exec") and self.doubt == 0 and name == "exit":
            raise Ended("")

    def spend(self, bytes_: int) -> None:
        """Count work, and stop the reading of a script that makes too much of it."""
        self.spent += bytes_
        if self.spent > _MOST_WORK:
            raise Enough("what its words unfold into is too much: the rest is not read")

    def exported(self) -> tuple[Mapping[str, str], Mapping[str, int]]:
        """Return the environment that a command gets now, and the lines of its variables.

        Commands between which nothing is exported share it.
        """
        found = self.environments.get(self.exports)
        if found is None:
            out = [(name, var) for name, var in self.script.variables.items() if var.exported]
            found = (
                {name: var.text if var.text is not None else f"${{{name}}}" for name, var in out},
                {name: var.line for name, var in out},
            )
            if len(self.environments) > _MOST_KEPT:
                self.environments.clear()
            self.environments[self.exports] = found
        return found

    def _set(self, name: str, value: Variable) -> None:
        old = self.script.variables.get(name)
        if value.exported or (old is not None and old.exported):
            self._exports_change()
        self.script.variables[name] = value

    def _exports_change(self) -> None:
        self.states += 1
        self.exports = self.states

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

    def substitutions(self, node: Node) -> None:
        """Read the commands inside ``$(...)`` of a word, since they run too."""
        self.doubt += 1
        for inner in node.substitutions:
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
            self.block(tree(text).top())
        except Unparsed as slow:
            raise Enough(str(slow)) from None
        self.offset = old

    def _call(self, name: str, words: Sequence[Word]) -> None:
        self.called.add(name)
        old, self.arguments = self.arguments, tuple(word.text for word in words)
        self.statement(self.functions[name])
        self.arguments = old

    def on_function_definition(self, node: Node, background: bool) -> None:
        name, body = node.field("name"), node.field("body")
        if name is not None and body is not None:
            self.functions[name.text] = body

    def uncalled(self) -> None:
        """Read the functions that nothing calls too, since their commands may run."""
        self.doubt += 1
        for name, body in list(self.functions.items()):
            if name not in self.called:
                self.called.add(name)
                self.arguments = None
                self.statement(body)
        self.doubt -= 1

    def on_redirected_statement(self, node: Node, background: bool) -> None:
        body = node.field("body")
        heredocs = [child for child in node.children if child.type == "heredoc_redirect"]
        target = next(
            (
                child.field("destination")
                for child in node.children
                if child.type == "file_redirect"
            ),
            None,
        )
        for heredoc in heredocs:
            if target is None:
                target = next(
                    (
                        child.field("destination")
                        for child in heredoc.children
                        if child.type == "file_redirect"
                    ),
                    None,
                )
            self._heredoc(heredoc, body, target)
        if body is not None:
            self.statement(body, background)

    def _heredoc(self, node: Node, body: Node | None, target: Node | None) -> None:
        content = next((child for child in node.children if child.type == "heredoc_body"), None)
        if content is None or content.end_byte - content.start_byte > _LONGEST:
            return
        program = (body.text.split()[:1] or [""])[0].rpartition("/")[2] if body is not None else ""
        line = content.row + self.offset
        text = content.text
        start = next((child.text for child in node.children if child.type == "heredoc_start"), "")
        quoted = start.startswith(("'", '"', "\\"))
        name = self._plain(target) if target is not None else ""
        if program not in ("bash", "sh") and _is_yaml(name, text):
            self.spend(20 * len(text))
            self.script.manifests.append((text if quoted else self._expanded(text), line))
        elif program in _TAKES_SCRIPT:
            self._inner(text, line)
        elif target is not None:
            if not quoted:
                text = re.sub(r"\\([$`\\])", r"\1", text)
            # Of two files whose names are not known, neither stands for the other.
            self.script.written[f"{name}:{line}" if "$" in name else name] = (text, line)

    def _expanded(self, text: str) -> str:
        """Return a heredoc with its variables filled in; those that are not known stay."""

        def known(match: re.Match[str]) -> str:
            if match[1]:
                return match[1]
            var = self.script.variables.get(match[2] or match[3])
            return var.text if var is not None and var.text is not None else match[0]

        return re.sub(r"\\([$`\\])|\$\{(\w+)\}|\$([A-Za-z_]\w*)", known, text)

    def on_variable_assignment(self, node: Node, background: bool) -> None:
        name, value = self._assigned(node)
        if name and value is not None:
            self._store(name, value)

    def on_variable_assignments(self, node: Node, background: bool) -> None:
        self.block(node)

    def _store(self, name: str, value: Variable) -> None:
        old = self.script.variables.get(name)
        exported = value.exported or self.export_all or bool(old and old.exported)
        if exported != value.exported:
            value = replace(value, exported=exported)
        if value.text is not None and len(value.text) > _LONGEST:
            value = replace(value, text=None)
        self._set(name, value)

    def _assigned(self, node: Node) -> tuple[str, Variable | None]:
        name, value = node.field("name"), node.field("value")
        if name is None:
            return "", None
        line = node.row + self.offset
        if name.type == "subscript":
            return "", None
        adds = any(child.type == "+=" for child in node.children)
        old = self.script.variables.get(name.text)
        if value is None:
            return name.text, Variable("", line)
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
                return name.text, Variable(None, line)
            first = items[0].text if items else ""
            return name.text, Variable(first, line, False, items)
        if value.substitutions:
            self.substitutions(value)
        word = self._joined(value)
        text = word.text if word.known or "${" in word.text else None
        if adds and text is not None:
            text = (old.text or "" if old is not None else "") + text
        return name.text, Variable(text, line)

    def on_declaration_command(self, node: Node, background: bool) -> None:
        kind = node.children[0].text if node.children else ""
        exports = kind == "export" or any(
            child.text in ("-x", "-gx", "-xg") for child in node.children[1:]
        )
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self._assigned(child)
                if name and value is not None:
                    self._store(name, replace(value, exported=exports))
            elif child.type == "variable_name" and exports:
                name = child.text
                known = self.script.variables.get(name) or Variable(None, child.row + self.offset)
                self._set(name, replace(known, exported=True))
                self.script.used.add(name)

    def on_unset_command(self, node: Node, background: bool) -> None:
        for child in node.named_children:
            gone = self.script.variables.pop(child.text, None)
            if gone is not None and gone.exported:
                self._exports_change()

    def on_if_statement(self, node: Node, background: bool) -> None:
        branches: list[list[Node]] = [[]]
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

    def on_case_statement(self, node: Node, background: bool) -> None:
        branches = [
            list(child.named_children[1:]) for child in node.children if child.type == "case_item"
        ]
        self._branches(branches, whole=False)

    def _branches(self, branches: list[list[Node]], whole: bool) -> None:
        """Read alternatives, each from the same start; what differs after them is not known.

        ``whole`` is whether one of the alternatives always runs.
        """
        self.spend(20 * len(self.script.variables) * (len(branches) + 1))
        before, exports = self.script.variables, self.exports
        ends, states = [], {exports}
        self.doubt += 1
        for branch in branches:
            self.script.variables, self.exports = dict(before), exports
            for part in branch:
                try:
                    self.statement(part)
                except Enough as stop:
                    if str(stop):
                        raise
                    break
            ends.append(self.script.variables)
            states.add(self.exports)
        self.doubt -= 1
        if not whole:
            ends.append(before)
        self.script.variables, self.exports = _merged(ends), exports
        if len(states) > 1:
            self._exports_change()

    def on_for_statement(self, node: Node, background: bool) -> None:
        name = node.field("variable")
        body = node.field("body")
        values = [word for child in node.fields("value") for word in self.words(child)]
        if name is None or body is None:
            return
        if not values or not all(word.known for word in values) or len(values) > MOST_TURNS:
            self._once(body, name.text)
            return
        for word in values:
            self._store(name.text, Variable(word.text, word.line))
            self.block(body)

    def on_c_style_for_statement(self, node: Node, background: bool) -> None:
        body = node.field("body")
        head = re.search(
            r"\(\(\s*(\w+)\s*=\s*([^;]+);\s*\1\s*(<=?)\s*([^;]+);\s*(?:\1\s*\+\+|"
            r"\+\+\s*\1)\s*\)\)",
            node.text,
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

    def _condition(self, node: Node) -> None:
        """Read the condition of an if, while or until, which runs in any case."""
        self.doubt += 1
        self.statement(node)
        self.doubt -= 1

    def on_while_statement(self, node: Node, background: bool) -> None:
        body = node.field("body")
        for child in node.fields("condition"):
            if child.is_named:
                self._condition(child)
        if body is not None:
            self._once(body, "")

    def _once(self, body: Node, name: str) -> None:
        """Read the body of a loop whose turns are not known, once, as something that may run."""
        if name:
            self._store(name, Variable(None, self.line))
        self.doubt += 1
        self.block(body)
        self.doubt -= 1

    def on_list(self, node: Node, background: bool) -> None:
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

    def on_test_command(self, node: Node, background: bool) -> None:
        pass


def _merged(ends: list[dict[str, Variable]]) -> dict[str, Variable]:
    """Return the variables after alternatives; what differs between them is not known."""
    first, *others = ends
    names = list(first)
    if all(list(end) == names for end in others):  # none sets a new one: the usual case
        merged = dict(first)
        changed: Iterable[str] = dict.fromkeys(
            name
            for end in others
            for name in itertools.compress(
                names, map(operator.is_not, end.values(), first.values())
            )
        )
    else:
        merged = {}
        changed = dict.fromkeys(key for end in ends for key in end)
    for name in changed:
        found = [end[name] for end in ends if name in end]
        if all(var is found[0] for var in found):
            merged[name] = found[0]
            continue
        texts = {var.text for var in found}
        one = found[0]
        if len(texts) > 1 or len({var.items for var in found}) > 1:
            one = _grown(found)
        merged[name] = replace(one, exported=any(var.exported for var in found))
    return merged


def _grown(found: Sequence[Variable]) -> Variable:
    """Return a variable of which alternatives add to the end: what all share is known."""
    least = min(found, key=lambda var: (len(var.items or ()), len(var.text or "")))
    line, text = least.line, least.text
    if least.items and all((var.items or ())[: len(least.items)] == least.items for var in found):
        return Variable(text, line, items=(*least.items, Word(HIDDEN, line, False)))
    plain = all(var.items is None for var in found)
    if (
        text
        and " " in text
        and plain
        and all(f"{var.text} ".startswith(f"{text} ") for var in found)
    ):
        return Variable(text if text.endswith(HIDDEN) else f"{text} {HIDDEN}", line)
    return Variable(None, line)


@functools.cache
def _handlers() -> dict[str, Callable[[_Reader, Node, bool], None]]:
    """Return what reads each kind of statement."""
    return {
        name.removeprefix("on_"): getattr(_Reader, name)
        for name in dir(_Reader)
        if name.startswith("on_")
    }


def _joined(before: Word, more: Sequence[Word]) -> list[Word]:
    """Return words of which the first one goes on with one that stands before."""
    if not more:
        return [before]
    text, known = before.text + more[0].text, before.known and more[0].known
    return [Word(text, before.line, known, before.raw), *more[1:]]
