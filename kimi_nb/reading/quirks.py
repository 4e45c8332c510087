"""What the shell does to a text before a command sees it, found in the syntax tree.

    quirks.find(text, bash.tree(text), "run.sh", 1)      # [Fault('shell/continuation-lost', ...)]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kimi_nb.deployment import Fault, Spot
from kimi_nb.reading.bash import nodes

_FLAG = re.compile(r"-{1,2}[A-Za-z][\w.-]*(=|$)")
_JSON_FLAG = re.compile(r"--[\w.-]*config$|--limit-mm-per-prompt$|--hf-overrides$|"
                        r"--[\w-]*kwargs$")
_DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}"
_QUOTES = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}" \
          "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
# <node0_ip>, <your model>, <PORT>: what documents write where a value belongs.
ANGLED = re.compile(r"(?<![<>&\d])<([A-Za-z](?:[\w -]{0,40}\w)?)>(?![(&>])")
MARK = ("\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
        "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}")


def masked(text: str) -> str:
    """A script in which placeholders are words: <ip> is no redirect, |version| no pipe."""
    def word(match: re.Match[str]) -> str:
        return f"{MARK[0]}{match[1].replace(' ', '_')}{MARK[1]}"

    return re.sub(r"\|([a-z][a-z_]*_version)\|", word, ANGLED.sub(word, text))


def find(text: str, tree: Any, file: str, first_line: int, document: bool = False
         ) -> Iterator[Fault]:
    """The faults of a script; ``document`` is a fence of a document, whose placeholders are
    meant."""
    def fault(rule: str, line: int, message: str) -> Fault:
        return Fault(rule, Spot(f"{file}:{line + first_line}", file, line + first_line), message)

    if "\r\n" in text:
        yield fault("shell/line-ends", 0, "lines end in CR LF")
        return
    lines = text.split("\n")
    root = tree.root_node
    seen = nodes(root, "raw_string", "heredoc_body", "string", "comment", "command")
    hidden = _hidden(seen)
    yield from _continuations(lines, hidden, fault)
    for node in seen:
        if node.type == "command":
            yield from _command(node, lines, fault)
    if not document:
        for number, line in enumerate(lines):
            for match in ANGLED.finditer(line):
                if number not in hidden and not _quoted(line, match.start()):
                    yield fault("shell/redirect", number, f"<{match[1]}> is read as a redirect")
    if root.has_error and not document:
        yield from _broken(root, text, fault)


def _broken(root: Any, text: str, fault: Any) -> Iterator[Fault]:
    """A quote or bracket that is never closed; other errors may be the grammar's own."""
    last = text.count("\n")
    for node in nodes(root, "ERROR"):
        first = node.text.decode("utf-8", "replace").strip().split("\n")[0]
        lines = node.end_point[0] - node.start_point[0]
        if first[:1] in ("'", '"', "`") or (lines > 3 and node.end_point[0] >= last - 1):
            yield fault("shell/syntax", node.start_point[0],
                        f"a quote or bracket that opens here is not closed: {first[:60]}")
            return


def unreadable(root: Any) -> Iterator[tuple[int, str]]:
    """(line, text) of what the grammar could not read."""
    if not root.has_error:
        return
    for node in nodes(root, "ERROR"):
        first = node.text.decode("utf-8", "replace").strip().split("\n")[0]
        if first not in ("", "\\"):
            yield node.start_point[0], first[:60]


def _hidden(seen: Iterable[Any]) -> set[int]:
    """Lines inside quotes, comments and heredocs, where a backslash means nothing."""
    out: set[int] = set()
    for node in seen:
        first, last = node.start_point[0], node.end_point[0]
        if node.type == "comment":
            out.add(first)
        elif node.type == "heredoc_body":
            out.update(range(first, last + 1))
        elif node.type != "command":
            out.update(range(first, last))
    return out


def _quoted(line: str, at: int) -> bool:
    """Whether a place of a line stands in quotes, as far as the line alone tells."""
    before = line[:at]
    return before.count("'") % 2 == 1 or before.count('"') % 2 == 1


def _continuations(lines: list[str], hidden: set[int], fault: Any) -> Iterator[Fault]:
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if number in hidden:
            continue
        if re.search(r"\S\s*\\[ \t]+$", line) and not line.lstrip().startswith("#"):
            if following.strip():
                yield fault("shell/continuation-spaced", number,
                            "spaces stand after the backslash: the command ends here")
            continue
        if re.search(r"\s\\[ \t]+#", line) and following.strip():
            yield fault("shell/continuation-comment", number,
                        "a comment stands after the backslash: the command ends here")
            continue
        if not line.rstrip().endswith("\\") or line.rstrip().endswith("\\\\") \
                or line.lstrip().startswith("#"):
            continue
        if following.lstrip().startswith("#"):
            rest = next((after for after in lines[number + 2:]
                         if not after.lstrip().startswith("#")), "")
            if _FLAG.match(rest.lstrip()):
                yield fault("shell/continuation-comment", number + 1,
                            f"a comment inside the command: {rest.strip()[:40]} and what follows "
                            "are cut off")
        elif not following.strip():
            yield fault("shell/continuation-end", number, "a backslash at the end of a command")


def _command(node: Any, lines: list[str], fault: Any) -> Iterator[Fault]:
    named = next((child for child in node.children if child.type == "command_name"), None)
    if named is None:
        return
    name = named.text.decode("utf-8", "replace")
    line = named.start_point[0]
    if _FLAG.match(name) and line > 0:
        before = lines[line - 1].rstrip()
        if before and not before.endswith("\\") and not before.lstrip().startswith("#") \
                and not re.search(r"\\[ \t]+#", before):
            yield fault("shell/continuation-lost", line - 1,
                        f"the line ends without a backslash, and the next begins with {name[:40]}")
    previous = ""
    for child in node.children[1:]:
        word = child.text.decode("utf-8", "replace")
        if word[:1] in _DASHES:
            yield fault("shell/dash", child.start_point[0],
                        f"{word[:30]} begins with a typographic dash")
        elif word[:1] in _QUOTES:
            yield fault("shell/dash", child.start_point[0],
                        f"{word[:30]} begins with a typographic quote")
        if _JSON_FLAG.match(previous) and word.startswith("{") and '"' in word:
            yield fault("shell/json-unquoted", child.start_point[0],
                        f"the JSON of {previous} has no quotes around it")
        previous = word
