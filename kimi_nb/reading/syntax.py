"""The syntax tree of a bash script (tree-sitter-bash, which forgives errors).

    tree = syntax.tree("vllm serve m")
    syntax.nodes(tree.root_node, "command")
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def tree(text: str) -> Any:
    """The syntax tree of a script."""
    return _parser().parse(text.encode("utf-8", "replace"))


def text_of(node: Any) -> str:
    return node.text.decode("utf-8", "replace")


def above(node: Any, top: Any) -> list[Any]:
    """The nodes between a node and one above it."""
    out = []
    parent = node.parent
    while parent is not None and parent.id != top.id:
        out.append(parent)
        parent = parent.parent
    return out


def nodes(root: Any, *kinds: str) -> list[Any]:
    """Every node of these kinds below a node, in the order of the text."""
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
