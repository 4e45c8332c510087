r"""Find what bash takes otherwise than it looks: assignments, quotes, blanks and ends of heredocs.

>>> from kimi_nb.check.reading import slips, syntax
>>> root = syntax.tree("PORT = 8000\n").root_node
>>> [(slip.rule, slip.row) for slip in slips.of_command(syntax.nodes(root, "command")[0])]
[('shell/assignment', 0)]
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.reading.syntax import nodes, text_of

_NAME = re.compile(r"[A-Za-z_]\w*")
_CONSTANT = re.compile(r"[A-Z_][A-Z0-9_]*")  # as the variables of a program for bash are named
_NUMBER = re.compile(r"[0-9][0-9.:]*")  # no name of a program
_VALUE = re.compile(r"[0-9][\w.:]*|[\"'/].*", re.DOTALL)  # no name of a variable
_DOLLAR = re.compile(r"\$\{?[A-Za-z_]\w*\}?=")
# "$ref" is a key of a JSON schema, and no variable of a script.
_EXPANSION = re.compile(r"\$\{[A-Za-z_]\w*\}|\$[A-Z_][A-Z0-9_]*")
_TILDE = re.compile(r"(--[a-z][\w-]*=~/\S*)")
_QUOTED_TILDE = re.compile(r"(?:-v|--volume|--model|--download-dir)[ =](~/\S+?)[\s:\"]")
_FLAG = re.compile(r"--[\w.-]+")
_LITERAL = {"--api-key", "--env", "--health-cmd", "--entrypoint"}  # a dollar sign may be meant
_RUNNERS = {"echo", "eval", "printf", "ssh", "sed", "awk", "cat"}  # the words go through them first
# Blanks to a reader, letters to bash: no-break, typographic, zero width, ideographic.
_BLANKS = re.compile("[\u00a0\u2000-\u200b\u202f\u205f\u3000\ufeff]")
_PROGRAM = re.compile(rf"{_BLANKS.pattern}|[A-Za-z0-9_./~$\"'{{-]")
# What begins a line of a script, and hardly one of a text.
_BEGINS = re.compile(
    r"\s*(vllm|python3?|docker|podman|srun|nohup|curl|export|echo|cd|source|set) [\w./$\"'-]"
)
_SETS = re.compile(rb"=|vllm|\s--?\w")


class Slip(NamedTuple):
    """A fault in a line of the script (``row`` counts from 0); "" is the severity of its rule."""

    rule: str
    row: int
    message: str
    severity: str = ""


def of_command(node: Any, document: bool = False) -> Iterator[Slip]:
    """Yield the slips of a command. ``document`` marks a fence, where Python may stand as well."""
    children = node.children
    at = next((i for i, child in enumerate(children) if child.type == "command_name"), None)
    if at is None:
        return
    name, arguments = text_of(children[at]), children[at + 1 :]
    row = children[at].start_point[0]
    names = _CONSTANT if document else _NAME
    if arguments and names.fullmatch(name) and text_of(arguments[0]).startswith("="):
        rest = text_of(arguments[0])
        if rest == "=" or not rest.startswith("=="):
            yield Slip("shell/assignment", row, f"{name} is run as a command with the word {rest}")
    elif at and text_of(children[at - 1]).endswith("=") and _NUMBER.fullmatch(name):
        yield Slip(
            "shell/assignment",
            row,
            f"{text_of(children[at - 1])} stays empty, and {name[:40]} is run as a command",
        )
    elif _DOLLAR.match(name):
        yield Slip(
            "shell/assignment",
            row,
            f"{name[:40]} sets nothing: what it becomes is run as a command",
        )
    yield from _blanks(children[at:], name)
    yield from _unexpanded(name, arguments)
    if name == "sed":
        yield from _letters(arguments)
    if name in ("source", ".") and _is_piped(node):
        said = f"{name} {text_of(arguments[0])[:40]}" if arguments else name
        yield Slip("shell/source-piped", row, f"{said} is part of a pipe: what it sets is lost")


def _is_piped(node: Any) -> bool:
    """Return whether another command of a pipe reads what a command prints."""
    outer = node.parent
    if outer is not None and outer.type == "redirected_statement":
        node, outer = outer, outer.parent
    return outer is not None and outer.type == "pipeline" and outer.named_children[-1] != node


def _letters(arguments: Sequence[Any]) -> Iterator[Slip]:
    """Yield a word that sed is to look for at the beginning of lines, and that is in brackets."""
    for child in arguments:
        match = re.search(r"/\^\[([a-z]{4,})\]/d", text_of(child))
        if match and "".join(sorted(match[1])) != match[1] and not {*match[1]} <= {*"aeiouy"}:
            said = f"[{match[1]}] stands for one of its letters, not for the word"
            yield Slip("shell/letters", child.start_point[0], said)


def of_declaration(node: Any) -> Iterator[Slip]:
    """Yield ``export A = x`` and ``export A= 1``."""
    words = node.children[1:]
    for child in words:
        name, twice, said = text_of(child).partition("==")
        if child.type == "variable_assignment" and twice and _NAME.fullmatch(name) and said:
            yield Slip(
                "shell/assignment",
                child.start_point[0],
                f"the value of {name} begins with an equals sign: ={said[:40]}",
                WARNING,
            )
    yield from _not_names(node)
    for before, child in itertools.pairwise(words):
        said, name = text_of(child), text_of(before)
        if child.start_point[0] != before.end_point[0]:
            continue
        if said == "=" or (
            before.type == "variable_assignment" and name.endswith("=") and _VALUE.fullmatch(said)
        ):
            name = name.removesuffix("=")
            yield Slip(
                "shell/assignment", child.start_point[0], f"{name} gets no value: {said[:40]}"
            )


def _not_names(node: Any) -> Iterator[Slip]:
    """Yield ``export A=x program --option``: the program is not run."""
    words = [text_of(child) for child in node.children]
    if words[0] != "export" or len(words) < 4 or node.children[1].type != "variable_assignment":
        return
    row = node.start_point[0]
    option = next((word for word in words[2:] if re.match(r"--?[a-z]", word)), None)
    if option and not words[1].endswith("=") and node.end_point[0] == row and "=" not in words[2]:
        yield Slip(
            "shell/assignment-split",
            row,
            f"{words[2][:40]} is not run: export takes it, and {option[:40]}, for names",
        )


def of_tilde(node: Any) -> Iterator[Slip]:
    """Yield a home folder that stays a tilde: ``--model=~/m``, and ``-v ~/m`` inside of quotes."""
    text = text_of(node)
    match = _TILDE.match(text) if node.type == "word" else _QUOTED_TILDE.search(text)
    if match:
        said = match[1][:40]
        yield Slip("shell/tilde", node.start_point[0], f"{said} stays as it is written: a tilde")


def of_heredoc(node: Any, lines: Sequence[str]) -> Iterator[Slip]:
    """Yield a heredoc whose last line is its word and blanks: to bash it goes on."""
    start = next((child for child in node.children if child.type == "heredoc_start"), None)
    end = next((child for child in node.children if child.type == "heredoc_end"), None)
    if start is None:
        return
    word = re.sub(r"[\"'\\]", "", text_of(start))
    if end is None or not text_of(end):
        below = any(line.strip() for line in lines[start.start_point[0] + 1 :])
        if word and below and not any(line.strip() == word for line in lines):
            row = start.start_point[0]
            yield Slip(
                "shell/heredoc", row, f"no line {word} ends the heredoc that begins here", WARNING
            )
        return
    row = end.start_point[0]
    line = lines[row]
    if any(child.type == "<<-" for child in node.children):
        line = line.lstrip("\t")
    inner = rf"<<-?\s*[\"'\\]?{re.escape(word)}\b"  # in the text: this is the end of that one
    body = lines[start.start_point[0] + 1 : row]
    if line != word and line.strip() == word and not re.search(inner, "\n".join(body)):
        below = any(after.strip() for after in lines[row + 1 :])
        yield Slip(
            "shell/heredoc",
            row,
            f"blanks stand beside {word}: to bash the text goes on to the end of the script",
            "" if below else WARNING,
        )


_ENGINE = re.compile(r"vllm serve\b|vllm\.entrypoints\.")


def of_quotes(word: Any, lines: Sequence[str]) -> Iterator[Slip]:
    """Yield a quote that ends in the next one below: a letter follows it, and it holds commands."""
    for quoted, after in itertools.pairwise(word.children):
        if quoted.type in ("string", "raw_string") and text_of(after)[:1].isalnum():
            row, column = quoted.start_point
            before = lines[row].encode()[:column]
            # Inside other quotes the grammar is wrong, and in prose it is an apostrophe.
            if before.count(b'"') % 2 or before.count(b"'") % 2 or not _SETS.search(before):
                continue
            below = text_of(quoted).split("\n")[1:]
            held = next((line.strip() for line in below if _BEGINS.match(line)), "")
            if held:
                yield Slip(
                    "shell/syntax",
                    row,
                    f"a quote that opens here is not closed on its line: it holds {held[:60]}",
                    ERROR if _ENGINE.search(held) else WARNING,  # else it may be meant so
                )
                return


def _blanks(children: Sequence[Any], name: str) -> Iterator[Slip]:
    """Yield words outside of quotes that hold a blank which parts no words."""
    if not _PROGRAM.match(name):  # the lines of a drawing
        return
    for child in children:
        if not _BLANKS.search(text_of(child)):
            continue
        for word in nodes(child, "word"):
            found = _BLANKS.search(text_of(word))
            if found:
                yield Slip(
                    "shell/blank",
                    word.start_point[0],
                    f"U+{ord(found[0]):04X} in {text_of(word)[:40]!r} is a letter to the shell, "
                    "not a blank",
                    # At the end of a number Python takes it away.
                    "" if _BLANKS.search(text_of(word).rstrip()) else WARNING,
                )
                return


def _unexpanded(name: str, arguments: Sequence[Any]) -> Iterator[Slip]:
    """Yield variables in single quotes, in the values of an engine's flags."""
    words = [text_of(child) for child in arguments]
    if name == "curl":
        yield from _unexpanded_body(arguments, words)
    if name in _RUNNERS or not any("vllm" in word for word in (name, *words)):
        return
    previous = ""
    for child, word in zip(arguments, words, strict=True):
        flag, equals, value = word.partition("=")
        if child.type != "concatenation" or not equals or not _FLAG.fullmatch(flag):
            flag, value = previous, word
        previous = word
        if (
            not (_FLAG.fullmatch(flag) and flag not in _LITERAL and value[:1] == "'" == value[-1:])
            or value.count("'") != 2
        ):
            continue
        found = _EXPANSION.search(value)
        if found and (value[1] in "{[" or not re.search(r"\s", value)):
            yield Slip(
                "shell/unexpanded",
                child.start_point[0],
                f"{flag} is given the letters {found[0]}: nothing is put in between single quotes",
            )


_BODY = {"-d", "--data", "--data-raw", "--data-binary", "--json"}
_BRACED = re.compile(r"(?<!\\)\$\{[A-Za-z_]\w*\}|\"\$[A-Z_][A-Z0-9_]*\"")


def _unexpanded_body(arguments: Sequence[Any], words: Sequence[str]) -> Iterator[Slip]:
    """Yield variables in the JSON that curl sends, between single quotes."""
    for before, child, word in zip(["", *words], arguments, words, strict=False):
        if before not in _BODY or word[:2] != "'{" or word[-1:] != "'" or word.count("'") != 2:
            continue
        found = _BRACED.search(word)
        if found:
            row = child.start_point[0] + word[: found.start()].count("\n")
            yield Slip(
                "shell/unexpanded",
                row,
                f"{found[0]} is sent as it stands: nothing is put in between single quotes",
                WARNING,
            )
