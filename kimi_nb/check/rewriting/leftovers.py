"""Report what stands where nothing is rewritten, once the edits are collected.

>>> from kimi_nb import catalog
>>> from kimi_nb.check import rewriting
>>> engine = catalog.engine("vllm-ascend", "0.22.1rc1")
>>> print(*rewriting.text("docker run -e VLLM_ASCEND_ENABLE_MLAPO=1 image", engine).left)
line 1: VLLM_ASCEND_ENABLE_MLAPO is now --additional-config enable_mlapo: it is not rewritten here
"""

from __future__ import annotations

import re

from kimi_nb import catalog
from kimi_nb.check.rewriting import exports, flags
from kimi_nb.check.rewriting.edits import Changes
from kimi_nb.check.rewriting.parsed import Parsed

_TOLD = re.compile(rb"(?<![\w{$-])([A-Z][A-Z0-9_]{3,})\+?=(?!=)|(?<![\w-])--[A-Za-z][\w-]*")


def tell(script: Parsed, changes: Changes) -> None:
    """Report what stands where nothing is rewritten: in strings, heredocs, docker run -e."""
    for match in _TOLD.finditer(script.source):
        at = match.start()
        name, flag = (match[1] or b"").decode(), match[0].decode()
        key = catalog.moved(script.engine, name) if name else None
        dead = exports.dead(script.engine, name) if name else ""
        new = None if name else flags.gone(script.engine, flag)
        if (key is None and not dead and new is None) or _handled(script, changes, at):
            continue
        if key is not None:
            said = f"{name} is now --additional-config {key}: it is not rewritten here"
        elif dead:
            said = f"{name} does nothing ({dead}): it is not taken out here"
        else:
            said = (
                f"{flag} "
                + (f"is now {new}" if new else "may go")
                + ": it is not rewritten here, change it if vLLM gets it"
            )
        changes.left[at] = said
    for key in catalog.tables("vllm-ascend")["additional_config"]:
        home = catalog.additional_key(script.engine, key)
        if home == key or home.partition(".")[0].encode() in script.source:
            continue
        for match in re.finditer(rb"[\".]%b\b" % re.escape(key).encode(), script.source):
            if not _handled(script, changes, match.start()):
                changes.left[match.start()] = f"{key} is now {home}: it is not rewritten here"


def _handled(script: Parsed, changes: Changes, at: int) -> bool:
    """Return whether a place was edited or reported, or means nothing to an engine."""
    return (
        at in changes.left
        or script.quiet(at)
        or any(edit.start <= at < edit.end for edit in changes.edits)
    )
