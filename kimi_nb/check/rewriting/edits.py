"""The edits that a rewrite collects, and what it says about them.

>>> from kimi_nb.check.rewriting.edits import Changes, Edit
>>> changes = Changes()
>>> changes.edits.add(Edit(5, 10, b"--new"))
>>> changes.made(b"vllm --old 1")
'vllm --new 1'
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Edit:
    """A range of bytes in the old text, and what takes its place."""

    start: int
    end: int
    text: bytes


@dataclass
class Changes:
    """What is collected while a script is read.

    ``edits`` are the edits and ``done`` what they do. ``left`` is what stays and why, by the byte
    that it is about.
    """

    edits: set[Edit] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)

    def made(self, source: bytes) -> str:
        """Return the text with the edits made."""
        out = source
        for edit in sorted(self.edits, key=lambda one: (one.start, one.end), reverse=True):
            out = out[: edit.start] + edit.text + out[edit.end :]
        return out.decode()

    def told(self, source: bytes) -> tuple[str, ...]:
        """Return what is left, each with its line in the new text."""
        out = []
        for at, said in sorted(self.left.items()):
            line = 1 + source.count(b"\n", 0, at)
            for edit in self.edits:
                if edit.start <= at:
                    line += edit.text.count(b"\n") - source.count(b"\n", edit.start, edit.end)
            out.append(f"line {line}: {said}")
        return tuple(dict.fromkeys(out))
