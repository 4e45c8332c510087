"""The syntax tree of a bash script (tree-sitter-bash, which recovers from errors).

>>> from kimi_nb.check.reading import syntax
>>> root = syntax.tree("vllm serve m").root_node
>>> [syntax.text_of(node) for node in syntax.nodes(root, "command")]
['vllm serve m']
"""

from __future__ import annotations

import functools
import time
from typing import Any

from kimi_nb.core.errors import ParameterError

_MOST_SECONDS = 4.0
_CHUNK = 512  # bytes that the grammar, and the text of each node, are given at once


@functools.cache
def _parser() -> Any:
    import tree_sitter  # start-up: only for scripts
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class Unparsed(ParameterError):
    """A text on which the grammar takes too long; no person wrote it."""


def tree(text: str) -> Any:
    """Return the syntax tree of a script.

    The grammar's error recovery is quadratic on some texts (a minute for 180 KB of redirects), so
    it gets a few seconds only; a real script takes milliseconds. Raises Unparsed when the time is
    up.
    """
    raw = text.encode("utf-8", "replace")
    until = time.thread_time() + _MOST_SECONDS
    try:
        return _parser().parse(
            lambda at, _: raw[at : at + _CHUNK],
            progress_callback=lambda *_: time.thread_time() > until,
        )
    except ValueError:
        _parser().reset()
        raise Unparsed("the grammar takes too long for it") from None


def text_of(node: Any) -> str:
    """Return the text of a node."""
    return node.text.decode("utf-8", "replace")


def above(node: Any, top: Any) -> list[Any]:
    """Return the nodes between a node and one above it."""
    out = []
    parent = node.parent
    while parent is not None and parent.id != top.id:
        out.append(parent)
        parent = parent.parent
    return out


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
