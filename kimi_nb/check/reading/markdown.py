r"""Find the scripts inside a markdown document: its code fences.

>>> from kimi_nb.check.reading import markdown
>>> markdown.fences("# Serve\n```bash\nvllm serve m\n```\n")
[Fence(text='vllm serve m\n', line=3, kind='bash', label='Serve')]
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog

_SHELL = {"bash", "sh", "shell", "console", "shell-session", "zsh", "bash,norun", ""}
_PYTHON = re.compile(r"\s*\{?\.?(python3?|py)\b", re.IGNORECASE)
_PLAIN = {"txt", "text", "plaintext", "plain", "none"}
_LOOKS = re.compile(
    r"^\s*(\$ |# )?(vllm (serve|bench)|docker run|curl |python3? |"
    r"podman run|sbatch|#SBATCH|nohup|VLLM_\w+=|[A-Z_]+=\S+ .*vllm|bash |"
    r"helm (install|upgrade|uninstall|repo) |kubectl (apply|create|delete|port-forward) |"
    r"cat <<-?['\"]?\w|git clone \S|(uv )?pip3? install \S|ray start |hf download |huggingface-cli |"
    r"sudo (docker|apt|pip|nerdctl)|docker (build|exec|pull|compose) |export \w+=)",
    re.MULTILINE,
)
# What begins a script of a shell, and nothing of Python.
_NO_PYTHON = re.compile(r"\s*(export \w+ ?=|vllm (serve|bench) |docker run |curl -|pip3? install )")
# What a YAML text holds if it is an object of Kubernetes, or if engine arguments stand in it.
_RUNS = re.compile(
    r"^\s*(- )?(services|containers|\w*[aA]rgs|\w+_(ARGS|FLAGS)|vllmConfig|modelSpec):|"
    r"^kind: [A-Z]|\bvllm serve \S|-m vllm\.entrypoints",
    re.MULTILINE,
)
_MANIFEST = re.compile(r"\s*(---\s+)?(#.*\s+)*apiVersion:")
# In backquotes: NAME, NAME=VALUE, export NAME=VALUE.
_NAMED = re.compile(r"(?<!`)`(?:export\s+)?([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`\n]*)?`(?!`)")
_FLAGGED = re.compile(r"(vllm serve \S.*\s)?-{2,3}[A-Za-z][\w.-]*[ =]\S")
# ??? info "Title": what follows is indented, and belongs to it.
_COLLAPSED = re.compile(r"^[ \t]*(?:\?\?\?\+?|!!!|===!?\+?)[ ][^\n]*$", re.MULTILINE)
_FENCED = re.compile(r"^( *)```[ \t]*(?:bash|sh|shell|console)[ \t]*\n", re.MULTILINE)
_TAG_LINE = re.compile(r"^\s*</?[A-Za-z][^`]*>[^`]*$", re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A block of code, and the line at which its text begins; ``kind`` is bash or yaml.

    ``label`` is the heading, the tab or the sentence above it.
    """

    text: str
    line: int
    kind: str = "bash"
    label: str = ""


@functools.cache
def _parser() -> Any:
    from markdown_it import MarkdownIt  # start-up: only for markdown

    return MarkdownIt("commonmark")


def spans(text: str) -> list[tuple[str, int]]:
    """Return the pieces of code inside prose that give a flag a value, with their lines.

    >>> spans("Add `--limit-mm-per-prompt image=2` or `--help`.")
    [('--limit-mm-per-prompt image=2', 1)]
    """
    if "`" not in text or "--" not in text:
        return []
    out = []
    for token in _parser().parse(text):
        if token.type != "inline" or token.map is None:
            continue
        line = token.map[0] + 1
        for child in token.children or ():
            if child.type in ("softbreak", "hardbreak"):
                line += 1
            elif child.type == "code_inline" and (
                _FLAGGED.match(child.content) or _slip(child.content)
            ):
                out.append((child.content, line))
    return out


def variables(text: str) -> list[tuple[str, int]]:
    """Return the names of variables in pieces of code inside prose, with their lines.

    >>> variables("Set `HCCL_BUFFSIZE=1024`, and `export OMP_NUM_THREADS=1`.")
    [('HCCL_BUFFSIZE', 1), ('OMP_NUM_THREADS', 1)]
    """
    return [(found[1], text.count("\n", 0, found.start()) + 1) for found in _NAMED.finditer(text)]


@functools.cache
def _slip(text: str) -> bool:
    """Return whether a piece of code is a flag alone, and one letter off a flag of the engine."""
    if not re.fullmatch(r"--[a-z]+(-[a-z]+)+", text) or catalog.listed(text[2:]):
        return False
    known = catalog.tables("vllm")["serve"]
    return any(
        len(flag) == len(text) and sum(a != b for a, b in zip(flag, text, strict=True)) == 1
        for flag in known
    )


def python(text: str) -> list[tuple[str, int]]:
    """Return the blocks of Python, each with the line at which its text begins."""
    if "```py" not in text and "~~~py" not in text and "``` py" not in text:
        return []
    return list(_python(text, 0))


def _python(text: str, above: int, depth: int = 0) -> Iterator[tuple[str, int]]:
    for token in _parser().parse(_COLLAPSED.sub("", text)):
        if token.map is None:
            continue
        if token.type == "code_block" and "```" in token.content and depth < 4:
            # A fence inside an indented tab of a documentation tool.
            yield from _python(textwrap.dedent(token.content), above + token.map[0], depth + 1)
        elif token.type == "fence" and _PYTHON.match(token.info):
            yield token.content, above + token.map[0] + 2


_DEFINES = re.compile(r"(?<![\w-])-D[A-Z][A-Z0-9_]+==")


def defines(text: str) -> list[tuple[str, int]]:
    """Return the variables of a build that have two equals signs, with their lines.

    >>> defines("Build it with `-DUSE_CUDA==ON`.")
    [('-DUSE_CUDA==', 1)]
    """
    return [(one[0], text.count("\n", 0, one.start()) + 1) for one in _DEFINES.finditer(text)]


def dockerfiles(text: str) -> list[tuple[str, int]]:
    """Return the blocks that are Dockerfiles, each with the line at which its text begins."""
    if "FROM " not in text:
        return []
    return [
        (token.content, token.map[0] + 2)
        for token in _parser().parse(_COLLAPSED.sub("", text))
        if token.type == "fence"
        and token.map is not None
        and re.match(r"\s*(#.*\s+|ARG .*\s+)*FROM \S", token.content)
    ]


def fences(text: str) -> list[Fence]:
    """Return the blocks that hold shell commands or a compose file, without shell prompts."""
    return list(_fences(text, 0))


def _fences(text: str, above: int, depth: int = 0) -> Iterator[Fence]:
    lines = text.split("\n")
    for token in _parser().parse(_COLLAPSED.sub("", text)):
        if token.type == "html_block" and token.map is not None and "```" in token.content:
            # <details> right above a fence: no fence to a renderer, and one to its readers.
            bare = _TAG_LINE.sub("", token.content)
            if depth < 4 and bare != token.content:
                yield from _fences(bare, above + token.map[0], depth + 1)
            continue
        if token.type == "inline" and token.map is not None and depth < 4:
            # A fence that is indented like a paragraph's next line: one to MkDocs and its readers.
            if match := _FENCED.search(token.content):
                bare = re.sub(f"^ {{0,{len(match[1])}}}", "", token.content, flags=re.MULTILINE)
                yield from _fences(bare, above + token.map[0], depth + 1)
            continue
        if token.type not in ("fence", "code_block") or token.map is None:
            continue
        words = [word.lower().strip("{.}") for word in re.split(r"[\s{,]", token.info) if word]
        kind = words[0] if words else ""
        if kind == "code-block" and len(words) > 1:  # the directive of Sphinx
            kind = words[1]
        line = above + token.map[0] + (2 if token.type == "fence" else 1)
        body = token.content
        if token.type == "code_block" and "```" in body and depth < 4:
            # A fence inside an indented tab of a documentation tool.
            yield from _fences(textwrap.dedent(body), line - 1, depth + 1)
            continue
        if (kind in _PLAIN and _LOOKS.match(body)) or (
            kind in ("python", "py") and _NO_PYTHON.match(body)
        ):
            kind = ""  # a command in a fence that a page shows without colours, or with others
        if (kind in ("yaml", "yml") or (kind == "" and _MANIFEST.match(body))) and _RUNS.search(
            body
        ):
            yield Fence(body, line, "yaml")
        elif kind in _SHELL or kind.startswith("code-block"):
            if kind == "" and not _LOOKS.search(body):
                continue
            body = re.sub(r"^ *:[\w-]+:.*$", "", body, flags=re.MULTILINE)
            yield Fence(_unprompted(body), line, "bash", _label(lines, token.map[0]))


def _label(lines: list[str], fence: int) -> str:
    """Return what names a fence: the nearest line of prose above it, of the last few."""
    for line in reversed(lines[max(fence - 4, 0) : fence]):
        text = line.strip().strip("#*:-> ")
        if text.startswith(("```", "~~~")):
            break
        if text:
            return text[:80]
    return ""


def _unprompted(text: str) -> str:
    """Remove the prompts of a shell session, and blank out what the programs printed."""
    lines = text.split("\n")
    if not any(line.lstrip().startswith("$ ") for line in lines):
        return text
    out, inside, mark = [], False, ""
    for line in lines:
        bare = line if mark else line.lstrip()
        if not mark and bare.startswith("$ "):
            bare, inside = bare[2:], True
        out.append(bare if inside else "")
        mark = _open_quote(bare, mark) if inside else ""
        inside = inside and (bool(mark) or bare.rstrip().endswith("\\"))
    return "\n".join(out)


def _open_quote(line: str, mark: str) -> str:
    """Return the quotation mark that is open at the end of a line, which begins behind ``mark``.

    >>> _open_quote("curl localhost -d '{", ""), _open_quote("  }'", "'")
    ("'", '')
    """
    for letter in re.sub(r"\\.", "", line) if mark != "'" else line:
        if letter == mark:
            mark = ""
        elif not mark and letter in "'\"":
            mark = letter
    return mark
