"""Evaluate the words of a script as bash does, as far as they can be known.

>>> from kimi_nb.check.reading import script, syntax, words
>>> node = syntax.tree('vllm "$1"').top().below("string")[0]
>>> words.Words(script.Script("run.sh"), 1, ["first"]).words(node)
[Word(text='first', line=1, known=True, raw='"$1"')]

What cannot be known stays in its word as ``${NAME}``, and ``known`` of the word is False.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from kimi_nb.check.reading.script import Script, Word
from kimi_nb.check.reading.syntax import Node

MOST_TURNS = 64  # of a loop, and a quarter of the numbers that a range may have
HIDDEN = "${UNKNOWN}"  # what a command prints
_ELEMENTS = re.compile(r"\$\{(\w+)\[[@*]\](?:\+\"?\$\{\1\[[@*]\]\}\"?)?\}")
_LEAD = re.compile(r"(?:\\\n|\s)*")
_PARAMETER = re.compile(r"\$\{([A-Za-z_]\w*|[0-9]+)(?:(:?[-=?+])(.*))?\}", re.DOTALL)


class Words:
    """An evaluator of the words of one script.

    A reader of statements extends it, and sets ``arguments`` and the variables of the script.
    ``missing`` collects the variables that are used and not set.
    """

    def __init__(self, script: Script, first_line: int, arguments: Sequence[str] | None) -> None:
        self.script = script
        self.offset = first_line
        self.arguments = tuple(arguments) if arguments is not None else None
        self.missing: list[str] = []

    def words(self, node: Node) -> list[Word]:
        """Return the words that one node becomes: none, one, or several after splitting."""
        if not node.fixed:
            return self._words(node)
        if node.words is None or node.words[0] != self.offset:
            node.words = self.offset, self._words(node)
        kept: list[Word] = node.words[1]
        return kept

    def _words(self, node: Node) -> list[Word]:
        line = node.row + self.offset
        kind = node.type
        if kind in ("simple_expansion", "expansion") or (
            kind == "string" and node.text in ('"$@"', '"${@}"')
        ):
            inner = node if kind != "string" else node.named_children[0]
            several = self._several(inner)
            if several is not None:
                return several
        if (
            kind == "string"
            and len(node.named_children) == 1
            and node.named_children[0].type == "expansion"
            and node.text == f'"{node.named_children[0].text}"'
        ):
            several = self._several(node.named_children[0])
            if several is not None:
                return several
        word = self._joined(node)
        if kind in ("simple_expansion", "expansion") and (
            word.known or word.text.endswith(f" {HIDDEN}")
        ):
            return [
                Word(part, line, "${" not in part, node.text[:60]) for part in word.text.split()
            ]
        if kind in ("concatenation", "brace_expression", "word") and "{" in node.text:
            spread = _braces(node.text) if not re.search(r"[\"'$`]", node.text) else None
            if spread:
                return [Word(part, line, True, node.text[:60]) for part in spread]
        if kind == "command_substitution":
            return [
                Word(part, line, word.known, node.text[:60])
                for part in (word.text.split() if word.known else [word.text])
            ]
        return [word]

    def _several(self, node: Node) -> list[Word] | None:
        """Return each element of ``$@`` or ``${NAME[@]}`` as a word, None for anything else."""
        text, line = node.text, node.row + self.offset
        if text in ("$@", "$*", "${@}", "${*}"):
            if self.arguments is None:
                return [Word("$@", line, False, text)]
            return [Word(word, line, True, text) for word in self.arguments]
        match = _ELEMENTS.fullmatch(text) if "[" in text else None
        if match:
            self.script.used.add(match[1])
            var = self.script.variables.get(match[1])
            if var is not None and var.items is not None:
                return list(var.items)
            if var is not None and var.text == "":
                return []
            return [Word(f"${{{match[1]}[@]}}", line, False, text)]
        return None

    def _joined(self, node: Node) -> Word:
        """Return a node as one word."""
        if not node.fixed:
            return self._evaluated(node)
        if node.joined is None or node.joined[0] != self.offset:
            node.joined = self.offset, self._evaluated(node)
        kept: Word = node.joined[1]
        return kept

    def _evaluated(self, node: Node) -> Word:
        line, raw = node.row + self.offset, node.text
        kind = node.type
        if kind == "raw_string":
            return Word(raw[1:-1], line, True, raw[:60])
        if kind == "ansi_c_string":
            return Word(_ansi(raw[2:-1]), line, True, raw[:60])
        if kind in (
            "word",
            "number",
            "special_variable_name",
            "string_content",
            "extglob_pattern",
            "regex",
            "variable_name",
        ):
            return Word(_unescaped(raw, kind == "string_content"), line, True, raw[:60])
        if kind in ("simple_expansion", "expansion", "command_substitution"):
            # The grammar counts the blank between "$A $B", or a line's end, to the second one.
            bare = raw[_LEAD.match(raw).end() :]  # type: ignore[union-attr]
            if kind == "simple_expansion":
                text, known = self._value(bare[1:].strip("{}"), bare)
            elif kind == "expansion":
                text, known = self._expansion(node)
            else:
                text, known = self._substituted(node)
            lead = raw[: len(raw) - len(bare)].replace("\\\n", "")
            return Word(lead + text, line, known, raw[:60])
        if kind == "arithmetic_expansion":
            number = self._arithmetic(node)
            return Word(
                str(number) if number is not None else raw, line, number is not None, raw[:60]
            )
        if kind in ("string", "concatenation", "translated_string", "command_name"):
            return self._glued(node, line, raw)
        return Word(raw, line, "$" not in raw and "`" not in raw, raw[:60])

    def _glued(self, node: Node, line: int, raw: str) -> Word:
        """Join the parts of a string or concatenation, and the text between them."""
        if node.parts is None:
            node.parts = list(_parts(node))
        parts: list[str] = []
        known = True
        for part in node.parts:
            if isinstance(part, str):
                parts.append(part)
            else:
                word = self._joined(part)
                parts.append(word.text)
                known = known and word.known
        return Word("".join(parts), line, known, raw[:60])

    def _value(self, name: str, raw: str) -> tuple[str, bool]:
        if name.isdecimal():
            index = int(name[:9])  # nobody passes as many arguments
            if index == 0:
                return self.script.file, True
            if self.arguments is not None:
                return (
                    (self.arguments[index - 1], True)
                    if index <= len(self.arguments)
                    else ("", True)
                )
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

    def _expansion(self, node: Node) -> tuple[str, bool]:
        raw = _LEAD.sub("", node.text, count=1)
        match = _PARAMETER.fullmatch(raw)
        if match is None:
            first = re.match(r"\$\{[!#]?([A-Za-z_]\w*)", raw)
            if first:
                self.script.used.add(first[1])
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

    def _default(self, node: Node) -> tuple[str, bool]:
        """Evaluate the word after the operator of an expansion, such as ``:-``."""
        parts, known, behind = [], True, False
        for child in node.children:
            if not child.is_named and child.type.lstrip(":") in ("-", "=", "+", "?"):
                behind = True
            elif behind and child.is_named:
                word = self._joined(child)
                parts.append(word.text)
                known = known and word.known
        return "".join(parts), known

    def _substituted(self, node: Node) -> tuple[str, bool]:
        """Evaluate ``$(seq ...)`` and ``$(echo ...)``; what other commands print is not known."""
        inner = [child for child in node.named_children if child.type == "command"]
        if len(inner) == 1 and len(node.named_children) == 1:
            words = [
                word
                for child in inner[0].named_children
                for word in self.words(
                    child.children[0] if child.type == "command_name" and child.children else child
                )
            ]
            if words and all(word.known for word in words):
                argv = [word.text for word in words]
                if (
                    argv[0] == "seq"
                    and 2 <= len(argv) <= 4
                    and all(re.fullmatch(r"-?[0-9]{1,6}", word) for word in argv[1:])
                ):
                    numbers = list(map(int, argv[1:]))
                    first = numbers[0] if len(numbers) > 1 else 1
                    step = numbers[1] if len(numbers) == 3 else 1
                    if step > 0 and (numbers[-1] - first) // step <= 4 * MOST_TURNS:
                        return " ".join(map(str, range(first, numbers[-1] + 1, step))), True
                if argv[0] == "echo":
                    return " ".join(argv[1:]), True
        return HIDDEN, False

    def _arithmetic(self, node: Node) -> int | None:
        """Evaluate ``$((...))`` of whole numbers and known variables.

        Return None for anything else.
        """
        inner = list(node.named_children)
        return self._sum(inner[0]) if len(inner) == 1 else None

    def _sum(self, node: Node, depth: int = 0) -> int | None:
        if depth > 20:
            return None
        kind, text = node.type, node.text
        if kind == "number" or re.fullmatch(r"[0-9]{1,12}", text):
            return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None
        if kind in ("variable_name", "simple_expansion", "expansion", "word"):
            name = text.strip("${}")
            found, known = self._value(name, text)
            return int(found) if known and re.fullmatch(r"-?[0-9]{1,12}", found) else None
        if kind == "parenthesized_expression" and node.named_children:
            return self._sum(node.named_children[0], depth + 1)
        if kind == "binary_expression":
            left, right = node.field("left"), node.field("right")
            sign = node.field("operator")
            if left is None or right is None or sign is None:
                return None
            one, two = self._sum(left, depth + 1), self._sum(right, depth + 1)
            act = _SIGNS.get(sign.text)
            if one is None or two is None or act is None or (sign.text in "/%" and two == 0):
                return None
            return act(one, two)
        return None

    def _plain(self, node: Node) -> str:
        return self._joined(node).text


_SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def _parts(node: Node) -> Iterator[str | Node]:
    """Yield the parts of a string or concatenation: texts as they are, and nodes to evaluate."""
    quoted = node.type in ("string", "translated_string")
    source = node.source[node.start_byte : node.end_byte]
    start = node.start_byte
    at = start + (source.index(b'"') + 1 if quoted else 0)
    end = node.end_byte - (1 if quoted and source.endswith(b'"') else 0)
    for child in node.children:
        if not child.is_named and child.type == '"':
            continue
        if child.start_byte > at:
            between = source[at - start : child.start_byte - start].decode("utf-8", "replace")
            yield _unescaped(between, quoted)
        yield child if child.is_named else _unescaped(child.text, quoted)
        at = child.end_byte
    if at < end:
        yield _unescaped(source[at - start : end - start].decode("utf-8", "replace"), quoted)


def _unescaped(text: str, quoted: bool) -> str:
    """Remove the backslashes that the shell removes, and join continued lines."""
    if "\\" not in text:
        return text
    text = text.replace("\\\n", "")
    return re.sub(r'\\([$`"\\])' if quoted else r"\\(.)", r"\1", text, flags=re.DOTALL)


def _ansi(text: str) -> str:
    return re.sub(
        r"\\(.)",
        lambda match: {"n": "\n", "t": "\t", "\\": "\\", "'": "'"}.get(match[1], match[0]),
        text,
    )


def _braces(text: str) -> list[str] | None:
    """Expand ``{0..7}`` and ``{a,b}`` as bash does; return None if there is nothing to expand."""
    if len(text) > 500:
        return None
    match = re.search(r"\{(-?[0-9]{1,5})\.\.(-?[0-9]{1,5})\}", text)
    if match:
        first, last = int(match[1]), int(match[2])
        if abs(last - first) > 4 * MOST_TURNS:
            return None
        step = 1 if last >= first else -1
        return [
            text[: match.start()] + str(number) + text[match.end() :]
            for number in range(first, last + step, step)
        ]
    match = re.search(r"\{([^{}\s]*,[^{}\s]*)\}", text)
    if match and not text.startswith(("{", "'{")):
        return [text[: match.start()] + part + text[match.end() :] for part in match[1].split(",")]
    return None
