r"""Find in the syntax tree what the shell does to a text before a command sees it.

>>> from kimi_nb.check.reading import quirks, syntax
>>> text = "vllm serve m\n  --port 8000\n"
>>> [fault.rule for fault in quirks.find(text, syntax.tree(text), "run.sh", 1)]
['shell/continuation-lost']

shellcheck is not asked. On 6,242 public scripts and fences it took 103 s of CPU where reading them
takes 30 s, saw 13 of 19 lost continuations and none that was glued, and cannot read a placeholder;
aarch64 has no wheel of it. What it found beyond this, and what changes what an engine is given,
is in `slips`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading import slips, text_slips
from kimi_nb.check.reading.syntax import nodes
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

# Not what ls -l prints: -rwxr-xr-x.
_FLAG = re.compile(r"(?!-(?:[r-][w-][xsS-]){3})-{1,2}[A-Za-z][\w.-]*(=|\s|$)")
_OPTION = re.compile(r"\s*-{1,2}[A-Za-z]")
_USAGE = re.compile(r"[Uu]sage: ")  # the first line of what a program prints about itself
_JSON_FLAG = re.compile(
    r"--[\w.-]*config$|--limit-mm-per-prompt$|--hf-overrides$|"
    r"--[\w-]*kwargs$"
)
_NO_EXPANSION = re.compile(r"(?<!\\)\$\{[A-Za-z_]\w*[ \t]+[^\s}=?:][^}\n]*\}")
_DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}"
_DASHED = re.compile(rf"[{_DASHES}-]+\w")
_QUOTES = (
    "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
    "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
)


# export LIBRARY_PATH=/usr/lib:LIBRARY_PATH
_UNDOLLARED = re.compile(
    r"\s*(?:export\s+)?([A-Z][A-Z0-9_]{3,})=(?:\S*:)?\1(?::\S*)?\s*(?:[;&#].*)?$"
)


def find(
    text: str, tree: Any, file: str, first_line: int, document: bool = False
) -> Iterator[Fault]:
    """Yield the faults of a script.

    ``first_line`` is the line of the file at which the text begins. ``document`` marks a code fence
    of a document, in which placeholders are intended.
    """

    def fault(rule: str, line: int, message: str, severity: str = "") -> Fault:
        return Fault(
            rule, Spot(f"{file}:{line + first_line}", file, line + first_line), message, severity
        )

    if "\r\n" in text:
        yield fault("shell/line-ends", 0, "lines end in CR LF")
        return
    lines = text.split("\n")
    root = tree.root_node
    seen = nodes(
        root,
        "raw_string",
        "heredoc_body",
        "string",
        "comment",
        "command",
        "array",
        "declaration_command",
        "heredoc_redirect",
        "concatenation",
        "variable_assignment",
    )
    hidden = _hidden(seen)
    lost = _Lost(lines)
    yield from _continuations(lines, hidden, fault)
    yield from _substitutions(root, lines, seen, fault)
    yield from (fault(*slip) for slip in text_slips.of_messages(text))
    if not file.endswith((".yaml", ".yml")):  # another step may have made the environment
        yield from (fault(*slip) for slip in text_slips.of_installers(lines))
    closed = True
    for node in seen:
        if node.type == "command":
            yield from _command(node, lines, lost, fault)
            yield from (fault(*slip) for slip in slips.of_command(node, document))
            for word in node.children:
                yield from (fault(*slip) for slip in slips.of_tilde(word) if word.type == "word")
        elif node.type == "string":
            yield from (fault(*slip) for slip in slips.of_tilde(node))
        elif node.type == "variable_assignment":
            yield from (fault(*slip) for slip in text_slips.of_assignment(node))
        elif node.type == "array":
            yield from _typography(node.named_children, fault)
        elif node.type == "declaration_command":
            yield from _declared(node, fault)
            yield from (fault(*slip) for slip in slips.of_declaration(node))
        elif node.type == "concatenation":
            unclosed = [fault(*slip) for slip in slips.of_quotes(node, lines)]
            yield from unclosed
            closed = closed and not unclosed
        elif node.type == "heredoc_redirect":
            yield from (fault(*slip) for slip in slips.of_heredoc(node, lines))
    for number, line in enumerate(lines):
        if number not in hidden and (match := _UNDOLLARED.match(line)):
            yield fault("shell/dollar-lost", number, f"{match[1]} gets its own name as a value")
        if "`<" in line and not line.lstrip().startswith("#"):
            for match in fill_ins.TICKED.finditer(line):
                yield fault(
                    "shell/backticks",
                    number,
                    f"{match[0]} is run as a command: what it prints stands here",
                )
    if root.has_error and closed:
        yield from _open_quote(lines, fault) if document else _broken(root, text, fault)


def _broken(root: Any, text: str, fault: Any) -> Iterator[Fault]:
    """Yield a quote or a bracket that is never closed.

    Other errors in the tree are ignored, because they may be the grammar's own.
    """
    missing = next(
        (
            node
            for node in nodes(root, ")", "}", '"', "'", "fi", "done", "esac", "]]")
            if node.is_missing
        ),
        None,
    )
    if missing is not None:
        yield fault(
            "shell/syntax",
            missing.parent.start_point[0],
            f"what opens here is not closed: {missing.type} is missing",
            "error" if missing.type in ("'", '"') else "",
        )
        return
    for node in nodes(root, "ERROR"):
        first = node.text.decode("utf-8", "replace").strip().split("\n")[0]
        if first[:1] in ("'", '"', "`"):
            yield fault(
                "shell/syntax",
                node.start_point[0],
                f"a quote that opens here is not closed: {first[:60]}",
                "error",
            )
            return


_PROGRAM = re.compile(r"\s*(pip3?|uv|vllm|python3?|docker|curl|export|hf|git|helm|kubectl) \S")


def _open_quote(lines: list[str], fault: Any) -> Iterator[Fault]:
    """Yield the quote of a fence that is never closed: one line of a command has an odd number."""
    odd = [n for n, line in enumerate(lines) if len(re.findall(r'(?<!\\)"', line)) % 2]
    if len(odd) == 1 and "'" not in lines[odd[0]] and _PROGRAM.match(lines[odd[0]]):
        said = lines[odd[0]].rpartition('"')[2][:40]
        yield fault("shell/syntax", odd[0], f'a quote that opens here is not closed: "{said}')


def unreadable(root: Any) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what the grammar could not read; lines count from 0."""
    if not root.has_error:
        return
    for node in nodes(root, "ERROR"):
        first = node.text.decode("utf-8", "replace").strip().split("\n")[0]
        if first not in ("", "\\"):
            yield node.start_point[0], first[:60]


def _hidden(seen: Iterable[Any]) -> set[int]:
    """Return the lines inside quotes and heredocs, where a backslash continues nothing."""
    out: set[int] = set()
    for node in seen:
        first, last = node.start_point[0], node.end_point[0]
        if node.type == "comment":
            continue
        if node.type == "heredoc_body":
            out.update(range(first, last + 1))
        elif node.type not in ("command", "array", "heredoc_redirect", "concatenation"):
            out.update(range(first, last))
    return out


def _continuations(lines: list[str], hidden: set[int], fault: Any) -> Iterator[Fault]:
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if number in hidden:
            continue
        if _after_backslash(line) and following.strip():
            yield fault(
                "shell/continuation-comment",
                number,
                "a comment stands after the backslash: the command ends here",
            )
            continue
        if _swallowed(line) and _FLAG.match(following.lstrip()):
            yield fault(
                "shell/continuation-comment",
                number,
                "the comment swallows the backslash: the command ends here",
            )
            continue
        if re.search(r"\S\s*\\[ \t]+$", line) and not line.lstrip().startswith("#"):
            if following.strip():
                yield fault(
                    "shell/continuation-spaced",
                    number,
                    "spaces stand after the backslash: the command ends here",
                )
            elif re.search(r"\s\\[ \t]+$", line):
                yield fault("shell/continuation-end", number, "a backslash at the end of a command")
            continue
        if re.search(r"\s\\\\$", line) and _FLAG.match(following.lstrip()):
            yield fault(
                "shell/continuation-lost",
                number,
                "two backslashes are a letter: the command ends here",
            )
        if (
            not line.rstrip().endswith("\\")
            or line.rstrip().endswith("\\\\")
            or line.lstrip().startswith("#")
        ):
            continue
        if re.search(r"""[\w"'],\\$""", line) and re.match(r"""[ \t]+["'\w]""", following):
            yield fault(
                "shell/continuation-list",
                number,
                f"the list ends at this comma: {following.strip()[:40]} is a word of its own",
            )
        elif re.search(r"[^\s\\]\\$", line) and _FLAG.match(following):
            yield fault(
                "shell/continuation-glued",
                number,
                f"no blank stands before the backslash: the line is glued to {following.split()[0][:40]}",
            )
        elif following.lstrip().startswith("#"):
            rest = next(
                (after for after in lines[number + 2 :] if not after.lstrip().startswith("#")), ""
            )
            if _FLAG.match(rest.lstrip()):
                yield fault(
                    "shell/continuation-comment",
                    number + 1,
                    f"a comment inside the command: {rest.strip()[:40]} and what follows "
                    "are cut off",
                )
        elif (
            number > 0 and _stopped(lines[number - 1], line, following) and number - 1 not in hidden
        ):
            yield fault(
                "shell/continuation-lost",
                number - 1,
                f"the line ends without a backslash, and the next goes on with {line.split()[0][:40]}",
                WARNING,
            )
        elif not following.strip():
            yield fault("shell/continuation-end", number, "a backslash at the end of a command")


# What begins a command of its own, or opens a block whose lines are indented.
_OWN = re.compile(
    r"(sudo|vllm|python[\d.]*|docker|podman|kubectl|helm|curl|export|echo|cd|source|set|if|for|while|do|"
    r"then|else|case|exec|srun|nohup|torchrun|bash|sh|pip3?|uv|git|mkdir|wget|env|ssh|local|return|"
    r"[\w./-]+\.(sh|py)|[A-Za-z_]\w*=.*|[\[({].*|[#&|;].*)$"
)
_CLOSED = re.compile(r"[\w/\"'}]\s*$")
_OPENS = re.compile(r"\b(do|then|else|in)\s*$|^\s*(#|if|for|while|case|function|until)\b|[=\"']")


def _stopped(before: str, line: str, following: str) -> bool:
    """Return whether a command ends at a line below which its words go on, indented.

    ``line`` continues into ``following``, which begins with an option: only the line before it has
    lost its backslash.
    """
    first = line.split()[0]
    return (
        len(line) - len(line.lstrip()) > len(before) - len(before.lstrip())
        and _CLOSED.search(before) is not None
        and _OPENS.search(before) is None
        and re.fullmatch(r"[a-z][\w./-]*", before.split()[0]) is not None
        and len(before.split()) <= 3
        and re.fullmatch(r"[a-z][\w-]*", first) is not None
        and not _OWN.match(first)
        and _FLAG.match(following.lstrip()) is not None
    )


def _substitutions(root: Any, lines: list[str], seen: Iterable[Any], fault: Any) -> Iterator[Fault]:
    """Yield ``$(NAME)``, which runs NAME, and ``${name -x}``, which is no expansion."""
    text = "\n".join(lines)
    if "$(" in text:
        for node in nodes(root, "command_substitution"):
            match = re.fullmatch(
                r"\$\(([A-Z][A-Z0-9_]{2,})\)", node.text.decode("utf-8", "replace")
            )
            if match:
                yield fault(
                    "shell/substitution",
                    node.start_point[0],
                    f"{match[0]} runs {match[1]} as a command; its value is ${{{match[1]}}}",
                )
    if not _NO_EXPANSION.search(text):
        return
    literal = [
        (node.start_point, node.end_point)
        for node in seen
        if node.type in ("raw_string", "comment")
    ]
    for number, line in enumerate(lines):
        for match in _NO_EXPANSION.finditer(line):
            at = number, len(line[: match.start()].encode())
            if not any(start <= at < end for start, end in literal):
                yield fault(
                    "shell/substitution",
                    number,
                    f"{match[0][:40]} is no expansion; a command runs in $( )",
                )


def breaks(faults: Iterable[Fault]) -> bool:
    """Return whether a command ends, because of one of the faults, before its last line."""
    return any(
        fault.rule.startswith("shell/continuation-") and not fault.rule.endswith("-end")
        for fault in faults
    )


def mended(text: str, faults: Iterable[Fault], first_line: int) -> str:
    """Return the text with broken continuations repaired, line for line.

    This way the same reading also finds what else is wrong with the command.
    """
    lines = text.split("\n")
    for fault in faults:
        number = fault.spot.line - first_line
        if not 0 <= number < len(lines):
            continue
        line = lines[number]
        if fault.rule == "shell/continuation-spaced":
            lines[number] = line.rstrip()
        elif fault.rule == "shell/continuation-glued":
            lines[number] = f"{line[:-1]} \\"
        elif fault.rule == "shell/continuation-lost":
            lines[number] = f"{line.rstrip()} \\"
        elif fault.rule == "shell/continuation-comment":
            before = re.split(r"(?:^|\s)\\?[ \t]*#", line, maxsplit=1)[0]
            lines[number] = f"{before} \\"
            for after in range(number + 1, len(lines)):  # comments that stand together
                if not lines[after].lstrip().startswith("#"):
                    break
                lines[after] = "\\"
    return "\n".join(lines)


def _after_backslash(line: str) -> bool:
    """Return whether a comment follows the backslash that should continue the line."""
    return not line.lstrip().startswith("#") and re.search(r"\s\\[ \t]+#", line) is not None


def _swallowed(line: str) -> bool:
    """Return whether the backslash at the end of a line is part of its comment."""
    return (
        line.rstrip().endswith("\\")
        and not line.lstrip().startswith("#")
        and re.search(r"\s#\s", line) is not None
        and line.count("'") % 2 == 0
        and line.count('"') % 2 == 0
    )


def _command(node: Any, lines: list[str], lost: _Lost, fault: Any) -> Iterator[Fault]:
    named = next((child for child in node.children if child.type == "command_name"), None)
    if named is None:
        return
    name = named.text.decode("utf-8", "replace")
    line = named.start_point[0]
    inside = node.parent is not None and node.parent.type == "command_substitution"
    while line > 1 and lines[line - 1].strip() == "\\":  # continues nothing
        line -= 1
    if _FLAG.match(name) and line > 0 and not inside:  # in prose, backticks mark a flag
        before = lines[line - 1].rstrip()
        if (
            before
            and not before.endswith(("\\", "`", "^"))  # of PowerShell and cmd
            and not before.lstrip().startswith("#")
            and not re.search(r"\\[ \t]+#", before)
            and (first := lost.first(node.start_point[0]))
        ):
            yield fault(
                "shell/continuation-lost",
                line - 1,
                f"the line ends without a backslash, and the next begins with {first[:40]}",
            )
    words = node.children[1:]
    # Without an option it may be prose, which a document shows as the output of a program.
    if any(child.text[:1] == b"-" or _DASHED.match(_text(child)) for child in words):
        yield from _typography(words, fault)
    if any(
        one.text.endswith(b":") and two.text == b"vllm"
        for one, two in itertools.pairwise(node.children)
    ):
        return  # a line of a log, which tells what was started
    previous = ""
    for child in node.children[1:]:
        word = child.text.decode("utf-8", "replace")
        flag, equals, value = word.partition("=")
        if _JSON_FLAG.match(previous) and word.startswith("{") and '"' in word:
            yield fault(
                "shell/json-unquoted",
                child.start_point[0],
                f"the JSON of {previous} has no quotes around it",
            )
        elif equals and _JSON_FLAG.match(flag) and value.startswith("{") and '"' in value:
            yield fault(
                "shell/json-unquoted",
                child.start_point[0],
                f"the JSON of {flag} has no quotes around it",
            )
        previous = word


class _Lost:
    """The flags that commands lose where lines begin with flags."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.found: dict[int, str] = {}  # by line: what is the same for all lines of a run
        usage = (number for number, one in enumerate(lines) if _USAGE.match(one))
        self.usage = next(usage, len(lines))

    def first(self, line: int) -> str:
        """Return the first flag that the command around a line loses.

        The result is "" for flags that belong to no command, such as a list of them, or what a
        program prints about itself; a part of a command is one, if its other lines have backslashes.
        """
        if line > self.usage:
            return ""
        if line not in self.found:
            start = end = line
            while start > 0 and _OPTION.match(self.lines[start - 1]):
                start -= 1
            while end < len(self.lines) and _OPTION.match(self.lines[end]):
                end += 1
            self.found |= dict.fromkeys(range(start, end), self._of_run(start, end))
        return self.found.get(line, "")  # a flag after something else on its line is none

    def _of_run(self, start: int, end: int) -> str:
        above = self.lines[start - 1].strip() if start else ""
        run = [one.strip() for one in self.lines[start:end]]
        if not above or above.endswith(":") or above.startswith("#"):
            if not any(one.endswith("\\") for one in run):
                return ""
        else:
            run.insert(0, above)
        lost = next((n for n, one in enumerate(run) if not one.endswith("\\")), len(run))
        return run[min(lost + 1, len(run) - 1)].split()[0]


def _text(node: Any) -> str:
    text: str = node.text.decode("utf-8", "replace")
    return text


def _declared(node: Any, fault: Any) -> Iterator[Fault]:
    """Yield ``export A=x $B``, where the second word is meant for the value of the first."""
    before = None
    for child in node.named_children:
        if (
            child.type in ("simple_expansion", "expansion")
            and before is not None
            and before.type == "variable_assignment"
            and node.children[0].type == "export"
        ):
            word = child.text.decode("utf-8", "replace")
            said = before.text.decode("utf-8", "replace").partition("=")[0]
            yield fault(
                "shell/assignment-split",
                child.start_point[0],
                f"{word[:40]} is no part of {said[:40]}: a blank stands before it",
            )
        before = child


def _typography(words: Iterable[Any], fault: Any) -> Iterator[Fault]:
    """Yield words that begin with a dash or a quote of a word processor."""
    for child in words:
        word = child.text.decode("utf-8", "replace")
        if word[:1] in _DASHES:
            yield fault(
                "shell/dash", child.start_point[0], f"{word[:30]} begins with a typographic dash"
            )
        elif word[:1] in _QUOTES:
            yield fault(
                "shell/dash", child.start_point[0], f"{word[:30]} begins with a typographic quote"
            )
