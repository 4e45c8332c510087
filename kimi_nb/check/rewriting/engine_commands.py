r"""Find the engines that a script starts, and the ``--additional-config`` of each.

>>> from kimi_nb import catalog
>>> from kimi_nb.check.rewriting import edits, engine_commands, parsed
>>> script = parsed.Parsed.of("vllm serve m", catalog.engine("vllm-ascend", "0.22.1rc1"))
>>> slot = engine_commands.find(script)[0].slot
>>> slot.keys["enable_mlapo"] = True
>>> changes = edits.Changes()
>>> engine_commands.fill(script, changes, slot)
>>> print(changes.made(script.source))
vllm serve m \
    --additional-config '{"enable_mlapo": true}'
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from kimi_nb import catalog
from kimi_nb.check.rewriting import json_keys, scopes
from kimi_nb.check.rewriting.edits import Changes, Edit
from kimi_nb.check.rewriting.parsed import TALK, Parsed
from kimi_nb.check.view import commands

_AWAY = {"docker", "podman", "nerdctl", "ssh", "pdsh", "kubectl"}  # nothing exported gets there
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]")
_CONFIG = re.compile(r"[\"']?--additional[\w-]*")


@dataclass
class Slot:
    """The JSON of an ``--additional-config``, or the place of a new one.

    ``lead`` is what stands before a new flag, "" if the flag is there already. ``table`` is what
    the JSON holds, and ``keys`` are the dotted keys to add.
    """

    start: int
    end: int
    lead: str = ""
    table: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)


@dataclass
class Serve:
    """What starts an engine: a command, or an array that commands use.

    ``runs`` are the commands that start it, ``parts`` its words. ``here`` is whether it sees
    exports, ``why`` the reason that its configuration cannot be edited.
    """

    node: Any
    runs: list[Any]
    parts: list[list[Any]]
    here: bool
    slot: Slot
    why: str = ""


def find(script: Parsed) -> list[Serve]:
    """Return every command, or array of words, that starts an engine."""
    serves: list[Serve] = []
    known: set[int] = set()
    for node in script.commands:
        _engine_at(script, serves, node, "", known)
    for name, several in script.arrays.items():
        for node in several:
            _engine_at(script, serves, node, name, known)
    strange = any(
        match.start() not in known and not script.quiet(match.start())
        for match in re.finditer(rb"--additional[-_]config", script.source)
    )
    for serve in serves:
        if strange and serve.slot.lead and not serve.why:
            serve.why = "an --additional-config stands where its engine is not plain"
    return serves


def _engine_at(script: Parsed, serves: list[Serve], node: Any, name: str, known: set[int]) -> None:
    """Add an engine to ``serves`` if a command, or the array of a name, starts one.

    ``known`` collects the places of its ``--additional-config``.
    """
    words = script.words(node)
    texts = [script.said(word) for word in words]
    at = commands.serve_at(texts)
    if at is None:
        return
    before, runs, parts = texts[:at], [node], [words[at:]]
    if name:
        runs = []
        for one in script.commands:
            its = script.words(one)
            its_texts = [script.said(word) for word in its]
            place = next(
                (index for index, word in enumerate(its_texts) if name in _ARRAY.findall(word)),
                None,
            )
            if place is not None and its_texts[0] not in TALK:
                runs.append(one)
                before = before + its_texts[:place]
                parts.append(its[place + 1 :])
        parts += [script.words(one) for one in script.arrays[name] if one != node]
    seen, unknown = {name}, False
    for part in parts:  # grows while it is read
        for word in part:
            unknown = unknown or script.said(word).strip('"') in ("$@", "$*", "${@}", "${*}")
            for used in _ARRAY.findall(script.said(word)):
                unknown = unknown or used not in script.arrays
                if used not in seen:
                    seen.add(used)
                    parts += [script.words(one) for one in script.arrays.get(used, ())]
    here = not any(commands.base(word) in _AWAY for word in before)
    lead = " " if name and b"\n" not in node.text else "\n    " if name else " \\\n    "
    end = words[-1].end_byte
    serve = Serve(node, runs or [node], parts, here, Slot(end, end, lead))
    found = [
        (part, index)
        for part in parts
        for index, word in enumerate(part)
        if _CONFIG.match(script.said(word).replace("_", "-"))
    ]
    known |= {part[index].start_byte + quote for part, index in found for quote in (0, 1)}
    if node.has_error:
        serve.parts, serve.why = [], "the grammar stops in its vllm serve"
    elif len(found) == 1:
        serve.why = _configured(script, serves, serve, *found[0])
    elif found:
        serve.why = "there is more than one --additional-config"
    elif unknown:
        serve.why = "its vllm serve takes words that are not known here"
    elif any(script.said(word).partition("=")[0] == "--config" for part in parts for word in part):
        serve.why = "its vllm serve reads a file of flags (--config)"
    serves.append(serve)


def _configured(
    script: Parsed, serves: list[Serve], serve: Serve, words: list[Any], index: int
) -> str:
    """Use the slot that an engine has; return why it cannot be edited, else ""."""
    flag = words[index]
    if flag.parent.type == "array":
        same = script.arrays[script.said(flag.parent.parent.child_by_field_name("name"))]
        fresh = [one for one in same if all(part.type != "+=" for part in one.parent.children)]
        if len(fresh) > 1 or any(
            scopes.reach(flag.parent, run) != scopes.SETS
            for run in serve.runs
            if run != flag.parent
        ):
            return "--additional-config is in an array that branches fill"
    spelt, equals, _ = script.said(flag).partition("=")
    start, end = flag.start_byte + len(spelt.encode()) + 1, flag.end_byte
    if not equals and index + 1 < len(words):
        start, end = words[index + 1].start_byte, words[index + 1].end_byte
    raw = script.source[start:end].decode()
    table: Any = None
    if re.fullmatch(r"'[^']*'", raw) and spelt.replace("_", "-") == "--additional-config":
        try:
            table = json.loads(raw[1:-1])
        except (ValueError, RecursionError):
            table = None
    if not isinstance(table, dict):
        return "--additional-config is not plain JSON in single quotes"
    serve.slot = next(
        (one.slot for one in serves if one.slot.start == start and not one.slot.lead),
        Slot(start, end, "", table),
    )
    return ""


def fill(script: Parsed, changes: Changes, slot: Slot) -> None:
    """Add the keys of a slot to its JSON, and move old keys under their new tables."""
    wanted = json.loads(json.dumps(slot.table))
    for key in list(slot.table):
        home = catalog.additional_key(script.engine, key)
        parent, _, rest = home.partition(".")
        under = wanted.get(parent, {})
        if home != key and isinstance(under, dict) and rest not in under:
            json_keys.put(wanted, home, wanted.pop(key))
            changes.done.append(f"--additional-config {key} is now {home}")
    for path, value in slot.keys.items():
        more: dict[str, Any] = {}
        json_keys.put(more, path, value)
        json_keys.merge(wanted, more)
    if wanted == slot.table:
        return
    added = {key: value for key, value in wanted.items() if key not in slot.table}
    if slot.table and wanted == {**slot.table, **added}:  # as it was written, and more
        close = script.source.rindex(b"}", slot.start, slot.end)
        close = len(script.source[:close].rstrip())
        changes.edits.add(Edit(close, close, f", {json_keys.quoted(added)[1:-1]}".encode()))
    elif slot.lead:
        fresh = f"{slot.lead}--additional-config '{json_keys.quoted(wanted)}'"
        changes.edits.add(Edit(slot.start, slot.end, fresh.encode()))
    else:
        changes.edits.add(Edit(slot.start, slot.end, f"'{json_keys.quoted(wanted)}'".encode()))
