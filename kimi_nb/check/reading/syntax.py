"""The syntax tree of a bash script (tree-sitter-bash, which recovers from errors).

>>> from kimi_nb.check.reading import syntax
>>> tree = syntax.tree("vllm serve m")
>>> [syntax.text_of(node) for node in syntax.nodes(tree.root_node, "command")]
['vllm serve m']
>>> [node.text for node in tree.top().below("word")]
['vllm', 'serve', 'm']
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

from kimi_nb.core.errors import ParameterError

_MOST_SECONDS = 4.0
_CHUNK = 512  # bytes that the grammar, and the text of each node, are given at once
# What a word of these kinds becomes depends on variables and arguments; the others are joined.
_DYNAMIC = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
_JOINED = {"string", "concatenation", "translated_string", "command_name"}


@functools.cache
def _parser() -> Any:
    import tree_sitter  # start-up: only for scripts
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class Unparsed(ParameterError):
    """A text on which the grammar takes too long; no person wrote it."""


class Tree:
    """The syntax tree of a script: ``root_node`` is the grammar's, ``source`` the text in UTF-8."""

    def __init__(self, root_node: Any, source: bytes) -> None:
        self.root_node = root_node
        self.source = source

    def top(self) -> Node:
        """Return the root as a node that keeps what is asked of it, for as long as it is held."""
        return Node(self.root_node, self.source)


class Node:
    """A node of a tree that keeps its text and its children.

    The body of a function or a loop is read once for each call and each turn, and asking the grammar
    takes ten times as long as a slot. ``row`` is the line, which counts from 0, and ``inside`` whether
    the node is part of a ``$(...)``. ``words``, ``joined`` and ``parts`` are kept by
    `kimi_nb.check.reading.words`.
    """

    __slots__ = (
        "_children",
        "_fields",
        "_fixed",
        "_named",
        "_raw",
        "_substitutions",
        "_text",
        "end_byte",
        "inside",
        "is_named",
        "joined",
        "parts",
        "row",
        "source",
        "start_byte",
        "type",
        "words",
    )

    def __init__(self, raw: Any, source: bytes, inside: bool = False) -> None:
        self._raw = raw
        self.source = source
        self.inside = inside
        self.type: str = raw.type
        self.is_named: bool = raw.is_named
        self.start_byte: int = raw.start_byte
        self.end_byte: int = raw.end_byte
        self.row: int = raw.start_point[0]
        self._text: str | None = None
        self._children: list[Node] | None = None
        self._named: list[Node] | None = None
        self._fields: dict[str, list[Node]] | None = None
        self._fixed: bool | None = None
        self._substitutions: list[Node] | None = None
        self.words: Any = None
        self.joined: Any = None
        self.parts: Any = None

    @property
    def text(self) -> str:
        """The text of the node."""
        if self._text is None:
            self._text = self.source[self.start_byte : self.end_byte].decode("utf-8", "replace")
        return self._text

    @property
    def children(self) -> list[Node]:
        """The nodes below, in order."""
        if self._children is None:
            inside = self.inside or self.type == "command_substitution"
            self._children = [Node(raw, self.source, inside) for raw in self._raw.children]
        return self._children

    @property
    def named_children(self) -> list[Node]:
        """The nodes below that are more than punctuation."""
        if self._named is None:
            self._named = [child for child in self.children if child.is_named]
        return self._named

    def fields(self, name: str) -> list[Node]:
        """Return the nodes below that the grammar calls by a name."""
        if self._fields is None:
            self._fields = {}
        found = self._fields.get(name)
        if found is None:
            there = {raw.id for raw in self._raw.children_by_field_name(name)}
            found = [child for child in self.children if child._raw.id in there] if there else []
            self._fields[name] = found
        return found

    def field(self, name: str) -> Node | None:
        """Return the first node below that the grammar calls by a name, None without one."""
        found = self.fields(name)
        return found[0] if found else None

    def below(self, *kinds: str) -> list[Node]:
        """Return this node and those below it that are of these kinds, in the order of the text."""
        found: list[Node] = []
        left = [self]
        while left:
            node = left.pop()
            if node.type in kinds:
                found.append(node)
            left += reversed(node.children)
        return found

    @property
    def fixed(self) -> bool:
        """Whether the word that this node becomes depends on nothing but its text."""
        if self._fixed is None:
            self._fixed = self.type not in _DYNAMIC and (
                self.type not in _JOINED or all(child.fixed for child in self.named_children)
            )
        return self._fixed

    @property
    def substitutions(self) -> list[Node]:
        """The outermost ``$(...)`` of this node; one that is inside another is read with it."""
        if self._substitutions is None:
            there = self.source[self.start_byte : self.end_byte]
            self._substitutions = list(self._outermost()) if b"$(" in there or b"`" in there else []
        return self._substitutions

    def _outermost(self) -> Iterator[Node]:
        if self.type == "command_substitution" and not self.inside:
            yield self
        left = self.children[::-1]
        while left:
            node = left.pop()
            if node.type == "command_substitution":
                yield node
            else:
                left += reversed(node.children)


def tree(text: str) -> Tree:
    """Return the syntax tree of a script.

    The grammar's error recovery is quadratic on some texts (a minute for 180 KB of redirects), so
    it gets a few seconds only; a real script takes milliseconds. Raises Unparsed when the time is
    up.
    """
    raw = text.encode("utf-8", "replace")
    until = time.thread_time() + _MOST_SECONDS
    try:
        parsed = _parser().parse(
            lambda at, _: raw[at : at + _CHUNK],
            progress_callback=lambda *_: time.thread_time() > until,
        )
    except ValueError:
        _parser().reset()
        raise Unparsed("the grammar takes too long for it") from None
    return Tree(parsed.root_node, raw)


def text_of(node: Any) -> str:
    """Return the text of a node."""
    return node.text.decode("utf-8", "replace")


def nodes(root: Any, *kinds: str) -> list[Any]:
    """Return every node of these kinds below a node, in the order of the text."""
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
