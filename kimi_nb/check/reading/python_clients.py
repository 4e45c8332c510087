r"""Find requests to a service in Python that a document shows: the openai package and requests.

>>> from kimi_nb.check.reading import python_clients
>>> text = "c = OpenAI(base_url='http://localhost:8000/v1')\nc.completions.create(model='m')"
>>> [(one.url, one.model) for one in python_clients.requests(text)]
[('http://localhost:8000/v1/completions', 'm')]

Nothing is executed: values are followed as far as names stand for plain texts.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LARGEST = 100_000  # characters of a text
_MAKERS = {"OpenAI", "AsyncOpenAI", "ChatOpenAI", "OpenAIChat", "OpenAILike"}
_BASES = ("base_url", "openai_api_base", "api_base")
_PATHS = {
    "chat.completions": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
    "responses": "/responses",
}
_CALLERS = {"requests", "httpx", "session", "client"}
_WORTH = re.compile(r"OpenAI|requests\.|httpx|api_base")


class Request(NamedTuple):
    """A request: the URL that is asked, the model that is named ("" if none is), and the line.

    ``library`` is what sends it: openai or requests.
    """

    library: str
    url: str
    model: str
    line: int


def requests(text: str) -> list[Request]:
    """Return the requests whose URL is known, with lines that count from 1; none of no Python."""
    tree = _parsed(text) if _WORTH.search(text) else None
    return [] if tree is None else list(_Reader(tree).found())


def _parsed(text: str) -> ast.Module | None:
    """Return the tree of a text, None if it is too long or no Python."""
    if len(text) > _LARGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strings with odd escapes
            return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# What a block holds that shows code in parts, or a session, or what is filled in by a generator.
_PARTS = re.compile(
    r"^\s*(?:>>>|\.\.\.|[!%$@?]|-{2,}8<|\+\+|--|pip3? |python3? |export |curl |vllm |\{[!%])"
    r"|\{\{|<[A-Za-z][\w .-]*>|\N{HORIZONTAL ELLIPSIS}|^\s*\.{3}|[(,] ?\.\.\. ?[,)]",
    re.MULTILINE,
)
_CALLS = re.compile(r"\b(?:Async)?OpenAI\(|\bLLM\(|\brequests\.post\(|\bcompletions\.create\(")


def broken(text: str) -> tuple[int, str] | None:
    r"""Return the line and the words of what Python does not take in a block; None for none.

    Only a whole program is asked: it imports what it calls.

    >>> broken("from vllm import LLM\nllm = LLM('m'\nllm.chat()\n")[0]
    2
    """
    if len(text) > _LARGEST or not _CALLS.search(text) or _PARTS.search(text):
        return None
    if not re.search(r"^\s*(?:import|from) \w", text, re.MULTILINE):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(textwrap.dedent(text.expandtabs(4)))
    except SyntaxError as wrong:
        return wrong.lineno or 1, wrong.msg
    except (ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Set) and any(
            isinstance(one, ast.Dict | ast.List) for one in node.elts
        ):
            return node.lineno, "a key is missing before a value in braces"
    return None


def imports(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the module, the name and the line of each name that is imported out of vLLM."""
    tree = _parsed(text) if "vllm" in text else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for one in node.names:
                yield node.module or "", one.name, node.lineno


def engines(text: str) -> Iterator[list[tuple[str, int]]]:
    """Yield the flags that the arguments of each ``LLM(...)`` stand for, with their lines.

    >>> next(engines("LLM('m', max_model_len=4096, enforce_eager=True)"))
    [('--max-model-len=4096', 1), ('--enforce-eager', 1)]
    """
    tree = _parsed(text) if "LLM(" in text else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and _name(node.func) == "LLM":
            words = [
                (word, one.value.lineno)
                for one in node.keywords
                if one.arg and (word := _flag(one.arg, one.value))
            ]
            if words:
                yield words


def _flag(name: str, value: ast.expr) -> str:
    """Return an argument of Python as a flag, "" for a value that is not written out."""
    try:
        said = ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return ""
    flag = f"--{name.replace('_', '-')}"
    if said is True:
        return flag
    if isinstance(said, dict):
        with contextlib.suppress(TypeError, ValueError):
            return f"{flag}={json.dumps(said)}"
    return f"{flag}={said}" if isinstance(said, str | int | float) and said is not False else ""


def unbound(blocks: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the makers of clients that are called and that nothing above binds, with their lines.

    ``blocks`` are the texts of a document in their order, each with its first line. Blocks that import nothing are
    parts of a program, and are left aside.
    """
    bound: set[str] = set()
    out = []
    for text, first in blocks:
        tree = _parsed(text)
        if tree is None:
            continue
        bound |= _bound(tree)
        if not any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)):
            continue
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in _MAKERS - bound
                and "*" not in bound
            ):
                out.append((node.func.id, first + node.lineno - 1))
    return out


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a text imports or defines; ``*`` stands for those of a whole module."""
    out: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            out |= {(one.asname or one.name) for one in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            out.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            out.add(node.id)
    return out


class _Reader:
    """A reader of one text: names that stand for texts, and the clients that it makes."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(ast.walk(tree))
        self.texts: dict[str, str | None] = {}
        self.dicts: dict[str, ast.Dict] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.assign(node.targets[0], node.value)
        self.bases = {
            base
            for node in self.nodes
            if isinstance(node, ast.Call) and _name(node.func) in _MAKERS
            for base in [self.base(node)]
        }

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Keep what a name stands for; one that is set to two texts stands for none."""
        name = ast.unparse(target)
        if isinstance(value, ast.Dict):
            self.dicts[name] = value
        text = self.text(value)
        self.texts[name] = text if self.texts.get(name, text) == text else None

    def text(self, node: ast.expr | None) -> str | None:
        """Return the text that an expression is, None if it is not known."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name | ast.Attribute):
            return self.texts.get(ast.unparse(node))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.text(node.left), self.text(node.right)
            return None if left is None or right is None else left + right
        if isinstance(node, ast.JoinedStr):
            parts = [
                self.text(part.value if isinstance(part, ast.FormattedValue) else part)
                for part in node.values
            ]
            return None if None in parts else "".join(part or "" for part in parts)
        return None

    def base(self, call: ast.Call) -> str:
        """Return the URL that a client is made for, "" if it is not known."""
        for keyword in call.keywords:
            if keyword.arg in _BASES:
                return self.text(keyword.value) or ""
        return ""

    def found(self) -> Iterator[Request]:
        """Yield the requests."""
        for node in self.nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = ast.unparse(node.func)
            owner, _, verb = name.rpartition(".")
            if verb in ("create", "parse"):
                yield from self.created(node, owner)
            elif verb in ("get", "post") and owner.rpartition(".")[2] in _CALLERS and node.args:
                url = self.text(node.args[0])
                if url and "://" in url:
                    yield Request("requests", url, self.sent(node), node.lineno)

    def created(self, call: ast.Call, owner: str) -> Iterator[Request]:
        """Yield the request of ``client.chat.completions.create``, if there is one client."""
        path = next((_PATHS[tail] for tail in _PATHS if owner.endswith(f".{tail}")), "")
        if path and len(self.bases) == 1 and (base := next(iter(self.bases))):
            yield Request("openai", base.rstrip("/") + path, self.model(call), call.lineno)

    def model(self, call: ast.Call) -> str:
        """Return the model that a call names."""
        return next((self.text(one.value) or "" for one in call.keywords if one.arg == "model"), "")

    def sent(self, call: ast.Call) -> str:
        """Return the model in the JSON that a call sends."""
        for one in call.keywords:
            if one.arg in ("json", "data"):
                body = one.value
                if isinstance(body, ast.Call) and _name(body.func) == "dumps" and body.args:
                    body = body.args[0]
                if isinstance(body, ast.Name):
                    body = self.dicts.get(body.id, body)
                if isinstance(body, ast.Dict):
                    for key, value in zip(body.keys, body.values, strict=True):
                        if isinstance(key, ast.Constant) and key.value == "model":
                            return self.text(value) or ""
        return ""


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return (
        ast.unparse(node).rpartition(".")[2] if isinstance(node, ast.Name | ast.Attribute) else ""
    )
