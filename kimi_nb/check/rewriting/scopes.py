"""Tell which commands an export reaches, by where both stand in the tree.

>>> from kimi_nb.check.reading import syntax
>>> from kimi_nb.check.rewriting import scopes
>>> root = syntax.tree("export A=1; vllm serve m").root_node
>>> scopes.reach(*syntax.nodes(root, "declaration_command", "command"))
'sets'
"""

from __future__ import annotations

from typing import Any

SETS, APART, UNSURE = "sets", "apart", "unsure"

_BODIES = {
    "program",
    "do_group",
    "compound_statement",
    "subshell",
    "if_statement",
    "elif_clause",
    "else_clause",
    "case_item",
}
_PROCESS = {"subshell", "command_substitution", "process_substitution", "pipeline"}
_LATER = {"do_group", "function_definition"}


def _scopes(node: Any) -> dict[int, tuple[str, int]]:
    """Return what a node runs in that may not run, or more than once: (kind, branch) by its id."""
    out: dict[int, tuple[str, int]] = {}
    child, up = node, node.parent
    while up is not None:
        if up.type in _PROCESS or up.type in _LATER:
            out[up.id] = (up.type, 0)
        elif up.type == "if_statement":
            out[up.id] = (up.type, child.id if child.type.endswith("_clause") else 0)
        elif up.type == "case_item" and up.parent is not None:
            out[up.parent.id] = (up.type, up.id)
        elif (
            up.type == "compound_statement"
            and up.next_sibling is not None
            and up.next_sibling.type == "&"
        ):
            out[up.id] = ("subshell", 0)
        elif up.type == "list" and child != up.named_children[0]:
            top, either = up, False
            while True:
                either = either or any(part.type == "||" for part in top.children)
                if top.parent is None or top.parent.type != "list":
                    break
                top = top.parent
            out[top.id] = ("list", node.id if either else 0)
        child, up = up, up.parent
    return out


def reach(export: Any, run: Any) -> str:
    """Return SETS if a command sees an export, APART if it does not, else UNSURE."""
    mine, its = _scopes(export), _scopes(run)
    again = any(
        kind in _LATER and mine.get(key) == (kind, branch) for key, (kind, branch) in its.items()
    )
    later = any(kind == "function_definition" for kind, _ in its.values())
    before = export.start_byte < run.start_byte
    missing = dict(mine.items() - its.items())
    if not missing:
        return SETS if before else UNSURE if again or later else APART
    kinds = {kind for kind, _ in missing.values()}
    if kinds & _PROCESS:
        return APART
    if again or "function_definition" in kinds:
        return UNSURE
    other_branch = any(key in its for key in missing)
    return APART if other_branch or not (before or later) else UNSURE


def body(statement: Any) -> list[Any]:
    """Return the statements of the block in which one stands, empty if it is a part of another."""
    up, out = statement.parent, []
    if up is None or up.type not in _BODIES:
        return []
    inside = up.type not in ("if_statement", "elif_clause", "case_item")
    for child in up.children:
        if child.type in ("then", ")"):
            inside = True
        elif child.type in ("elif_clause", "else_clause"):
            inside = False
        elif inside and child.is_named and child.type != "comment":
            out.append(child)
    return out if statement in out else []
