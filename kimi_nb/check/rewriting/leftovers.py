"""What a script says where nothing is rewritten: told of, once the edits are collected.

leftovers.tell(script, changes)                            # more of changes.left
"""

from __future__ import annotations

import re

from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.check.rewriting import exports as variables
from kimi_nb.check.rewriting import flags
from kimi_nb.check.rewriting.edits import Changes
from kimi_nb.check.rewriting.parsed import Parsed

_TOLD = re.compile(rb"(?<![\w{$-])([A-Z][A-Z0-9_]{3,})\+?=(?!=)|(?<![\w-])--[A-Za-z][\w-]*")


def tell(script: Parsed, changes: Changes) -> None:
    """Say what stands where nothing is rewritten: strings, heredocs, docker run -e."""
    for match in _TOLD.finditer(script.source):
        at = match.start()
        name, flag = (match[1] or b"").decode(), match[0].decode()
        key = catalog.moved(script.engine, name) if name else None
        dead = variables.dead(script.engine, name) if name else ""
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
    """Whether a place was edited, told of, or says nothing to an engine."""
    return (
        at in changes.left
        or script.quiet(at)
        or any(edit.start <= at < edit.end for edit in changes.edits)
    )
