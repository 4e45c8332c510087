"""Tell which part of a serving system a failure is in (data/diagnose/components.yaml).

>>> of(["Ninja build failed. Ninja output:"], "RuntimeError", [], "").id
'jit'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb.core import data_files

# Code of the engines; that of kernels has packages of its own.
_ENGINES = re.compile(r"\b(?:vllm|vllm_ascend|sglang/srt)/")
# What Python raises where code does not fit its data, and no kernel has run.
_MISTAKES = (
    *("AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "TypeError"),
    *("UnboundLocalError", "ZeroDivisionError"),
)


@dataclass(frozen=True)
class Component:
    """A part of the system; ``help`` is what to look at next, ``see`` is "notebook#heading".

    The words of a part with ``general`` tell what went wrong rather than where: a ``transport`` that
    speaks ("speaker"), or in whose code it was ("frames"), says more. ``python`` is the part that a
    mistake in an engine's Python code is of which its frames tell.
    """

    id: str
    title: str
    help: str
    see: str
    words: tuple[re.Pattern[str], ...] = ()
    raised: tuple[str, ...] = ()
    frames: tuple[re.Pattern[str], ...] = ()
    speaker: tuple[str, ...] = ()
    general: tuple[str, ...] = ()
    python: str = ""
    transport: bool = False

    def way_out(self, node: str) -> str:
        """Return what to look at next when it failed on a node."""
        return self.help.replace("{node}", node or "the node")


@functools.cache
def entries() -> tuple[Component, ...]:
    """Return all parts, in the order of the file."""
    return tuple(_entry(name, row) for name, row in data_files.facts("diagnose/components").items())


def _entry(name: str, row: dict[str, Any]) -> Component:
    return Component(
        name,
        row["title"],
        row["help"],
        row["see"],
        tuple(re.compile(word, re.MULTILINE) for word in row.get("words", ())),
        tuple(row.get("raised", ())),
        tuple(re.compile(frame) for frame in row.get("frames", ())),
        tuple(row.get("speaker", ())),
        tuple(row.get("general", ())),
        row.get("python", ""),
        row.get("transport", False),
    )


@functools.cache
def by_id(name: str) -> Component:
    """Return a part by its id. Raises KeyError for an unknown one."""
    return next(one for one in entries() if one.id == name)


def of(texts: Sequence[str], raised: str, frames: Sequence[str], speaker: str) -> Component | None:
    """Return the part in which something failed, or None if nothing tells it.

    The words of the most telling line count first (``texts`` begins with it), then the exception,
    the program that speaks, the innermost frame, and last the other lines.
    """
    speaks = next((one for one in entries() if speaker and speaker in one.speaker), None)
    framed = _by_frames(frames, raised)
    words = _by_words(texts[:1])
    if words is not None and words.general:
        more = {"speaker": speaks, "frames": framed}
        words = next(
            (one for what in words.general if (one := more[what]) and one.transport), words
        )
    for found in (
        words,
        next((one for one in entries() if raised and raised in one.raised), None),
        speaks,
        framed,
        _by_words(texts[1:]),
    ):
        if found is not None:
            return found
    return None


def _by_words(texts: Sequence[str]) -> Component | None:
    for text in texts:
        for one in entries():
            if any(word.search(text) for word in one.words):
                return one
    return None


def _by_frames(frames: Sequence[str], raised: str) -> Component | None:
    for path in reversed(frames):
        for one in entries():
            if any(frame.search(path) for frame in one.frames):
                mistake = raised in _MISTAKES and bool(_ENGINES.search(path))
                return by_id(one.python) if one.python and mistake else one
    return None
