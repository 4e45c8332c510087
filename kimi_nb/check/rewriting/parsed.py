"""A script as the grammar reads it: its tree, commands and arrays.

>>> from kimi_nb import catalog
>>> from kimi_nb.check.rewriting.parsed import Parsed
>>> script = Parsed.of("export A=1; vllm serve m", catalog.engine("vllm-ascend", "0.22.1rc1"))
>>> [script.said(word) for word in script.words(script.commands[0])]
['vllm', 'serve', 'm']
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading import syntax

TALK = {"echo", "printf", "grep", "pgrep", "pkill", "killall", "awk", "sed", "log"}
_NO_WORDS = {
    "variable_assignment",
    "comment",
    "file_redirect",
    "herestring_redirect",
    "heredoc_redirect",
}


@dataclass(frozen=True)
class Parsed:
    """A script, and the engine that it is rewritten for.

    ``comments`` are (first, end) in bytes of ``source``, ``arrays`` the arrays of words by the name
    that they are assigned to.
    """

    source: bytes
    engine: catalog.Engine
    root: Any
    comments: list[tuple[int, int]]
    commands: list[Any]
    arrays: dict[str, list[Any]]

    @classmethod
    def of(cls, text: str, engine: catalog.Engine) -> Parsed:
        """Parse a text."""
        root = syntax.tree(_masked(text)).root_node
        made = cls(
            text.encode(),
            engine,
            root,
            [(node.start_byte, node.end_byte) for node in syntax.nodes(root, "comment")],
            syntax.nodes(root, "command"),
            {},
        )
        for node in syntax.nodes(root, "array"):
            named = node.parent.child_by_field_name("name") if node.parent else None
            if named is not None:
                made.arrays.setdefault(made.said(named), []).append(node)
        return made

    def said(self, node: Any) -> str:
        """Return the text of a node as it stands in the file."""
        return self.source[node.start_byte : node.end_byte].decode()

    def words(self, node: Any) -> list[Any]:
        """Return the words of a command or an array."""
        return [child for child in node.children if child.is_named and child.type not in _NO_WORDS]

    def line(self, at: int) -> str:
        """Return the line of a place, cut to 60 characters."""
        first, last = self.source.rfind(b"\n", 0, at) + 1, self.source.find(b"\n", at)
        return self.source[first : last if last >= 0 else None].decode().strip()[:60]

    def quiet(self, at: int) -> bool:
        """Return whether a place is in a comment, or in the words of echo and the like."""
        line = self.source[self.source.rfind(b"\n", 0, at) + 1 : at]
        if line.lstrip().startswith(b"#") or any(start <= at < end for start, end in self.comments):
            return True
        node = self.root.descendant_for_byte_range(at, at + 1)
        while node is not None and node.type != "command":
            node = node.parent
        if node is None or self.said(node).split()[0] not in TALK:
            return False
        up = node.parent  # what echo writes to a file may be read by an engine
        return up is None or up.type != "redirected_statement" or ">&" in self.said(up)


def _masked(script: str) -> str:
    """Replace placeholders such as <ip> by words of the same length, so that none is a redirect."""
    return fill_ins.ANGLED.sub(lambda match: f"@{match[1].replace(' ', '_')}@", script)
