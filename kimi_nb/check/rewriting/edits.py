"""The edits that a rewrite collects, and what it says of them.

changes = Changes()
changes.edits.add(Edit(start, end, b"--new-flag"))
changes.made(script.source)                                # the text with the edits made
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Edit:
    """Bytes of the old text, and what takes their place."""

    start: int
    end: int
    text: bytes


@dataclass
class Changes:
    """What is collected while a script is read: edits, what they do, and by the byte that it is
    said of what is left."""

    edits: set[Edit] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)

    def made(self, source: bytes) -> str:
        """The text with the edits made."""
        out = source
        for edit in sorted(self.edits, key=lambda one: (one.start, one.end), reverse=True):
            out = out[: edit.start] + edit.text + out[edit.end :]
        return out.decode()

    def told(self, source: bytes) -> tuple[str, ...]:
        """What is left, with its lines in the new text."""
        out = []
        for at, said in sorted(self.left.items()):
            line = 1 + source.count(b"\n", 0, at)
            for edit in self.edits:
                if edit.start <= at:
                    line += edit.text.count(b"\n") - source.count(b"\n", edit.start, edit.end)
            out.append(f"line {line}: {said}")
        return tuple(dict.fromkeys(out))
