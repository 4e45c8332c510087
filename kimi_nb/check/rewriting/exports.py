"""Rewrite variables that moved, and remove those that nothing reads.

>>> from kimi_nb import catalog
>>> from kimi_nb.check.rewriting import exports
>>> bool(exports.dead(catalog.engine("vllm-ascend", "0.22.1rc1"), "VLLM_RPC_TIMEOUT"))
True

A rewrite adds keys to the slots of the engines that see a variable::

    exports.rewrite(script, changes, engine_commands.find(script))
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog.language import plain
from kimi_nb.check.reading import syntax
from kimi_nb.check.rewriting import json_keys, scopes
from kimi_nb.check.rewriting.edits import Changes, Edit
from kimi_nb.check.rewriting.engine_commands import Serve
from kimi_nb.check.rewriting.parsed import Parsed
from kimi_nb.core import data_files

_SERVES = re.compile(rb"\bvllm[\"',\s]+serve\b|\bvllm\.entrypoints\.[\w.]*(?:api_server|main)\b")
_STARTS = re.compile(
    r"(?:(?:\S*/)?(?:bash|sh|exec|nohup|srun|sbatch|setsid|env|time)\s+"
    r"(?:\S+\s+){0,3}?)?[^\s=]+\.(?:sh|bash|sbatch)\b|.*launch_(?:online_)?dp\S*\.py"
    r"|.*\bvllm\s+(?:run-batch|bench\s+(?:latency|throughput))\b"
)
_DUMPS = re.compile(r"(?:export|declare|typeset)(?:\s+-[a-z]*[px])?|printenv|env|envsubst\b.*")
_PLAIN = re.compile(r"'([^']*)'|\"([^\"$`\\']*)\"|([\w.:,/+@%-]+)")


@dataclass(frozen=True)
class _Set:
    """An assignment of a variable.

    ``statement`` is what goes with it when it is removed. ``kind`` is how it acts: ``export``,
    ``prefix`` of a command, ``shell`` (not exported) or ``several`` (on one line with others).
    ``value`` is None if it is not plain.
    """

    name: str
    node: Any
    statement: Any
    kind: str
    value: str | None


def rewrite(script: Parsed, changes: Changes, serves: list[Serve]) -> None:
    """Turn variables that moved into keys of the engines that see them, and remove dead ones."""
    by_name: dict[str, list[_Set]] = {}
    for node in syntax.nodes(script.root, "variable_assignment"):
        one = _assignment(script, node)
        if one is not None:
            by_name.setdefault(one.name, []).append(one)
    dropped: list[Any] = []
    for name, sets in by_name.items():
        dropped += _variable(script, changes, serves, name, sets)
    _drop(script, changes, dropped)


def _assignment(script: Parsed, node: Any) -> _Set | None:
    """Read one ``NAME=value``; return None for another kind of assignment."""
    named, value, up = (
        node.child_by_field_name("name"),
        node.child_by_field_name("value"),
        node.parent,
    )
    if (
        named is None
        or named.type != "variable_name"
        or up is None
        or up.type == "c_style_for_statement"
    ):
        return None
    kind, statement = "shell", node
    if up.type == "declaration_command":
        options = [script.said(part) for part in up.named_children if part != node]
        exports = up.children[0].type == "export"
        kind = "export" if options == ([] if exports else ["-x"]) else "shell"
        kind = (
            "several"
            if any(part.type != "word" for part in up.named_children if part != node)
            else kind
        )
        statement = up
    elif up.type == "command":
        # The grammar takes A=1 B=2 on a line of their own for a prefix of the next line.
        program = up.child_by_field_name("name")
        between = script.source[node.start_byte : program.start_byte] if program else b"\n"
        kind = "several" if re.search(rb"(?<!\\)\n", between) else "prefix"
    elif up.type == "variable_assignments":
        kind = "several"
    held = _PLAIN.fullmatch(script.said(value)) if value is not None else None
    plus = any(part.type == "+=" for part in node.children)
    return _Set(
        script.said(named),
        node,
        statement,
        kind,
        None if held is None or plus else next(part for part in held.groups() if part is not None),
    )


def _variable(
    script: Parsed, changes: Changes, serves: list[Serve], name: str, sets: list[_Set]
) -> list[Any]:
    """Move a variable, remove it, or record why it stays; return the statements to remove."""
    key, why_dead = catalog.moved(script.engine, name), dead(script.engine, name)
    if key is None and not why_dead:
        return []
    elsewhere = _elsewhere(script, name, sets)
    if key is not None:
        why = elsewhere or _move(script, changes, serves, name, key, sets)
        for one in sets if why else ():
            value = plain(one.value, catalog.takes_number(name)) if one.value else None
            table = json_keys.nested(key, value) if one.value else {}
            add = f"add {json_keys.quoted(table)} to" if one.value else f"set {key} in"
            changes.left[one.node.start_byte] = (
                f"{name} stays: {why}; {add} --additional-config by hand"
            )
        return [] if why else [one.statement for one in sets]
    dropped: list[Any] = []
    for one in sets:
        why = elsewhere or (
            "several variables are set on one line"
            if one.kind == "several"
            else "its value runs a command"
            if re.search(r"\$\(|`|\{\w+:?=", script.said(one.node))
            else ""
        )
        if why:
            changes.left[one.node.start_byte] = f"{name} stays: {why}; it does nothing ({why_dead})"
        else:
            changes.done.append(f"{name} is taken out: {why_dead}")
            dropped.append(one.statement)
    return dropped


def _move(
    script: Parsed, changes: Changes, serves: list[Serve], name: str, key: str, sets: list[_Set]
) -> str:
    """Move a variable to the engines that see it; return why that is not possible, else ""."""
    exports = [one for one in sets if one.kind == "export"]
    targets: dict[int, str] = {}
    if any(one.kind == "several" for one in sets):
        return "several variables are set on one line"
    if any(one.kind == "shell" for one in sets):
        return "it is not exported where it is set"
    if not all(one.value for one in sets):
        return "its value is not plain"
    if exports and len({one.value for one in sets}) > 1:
        return "it has several values here"
    seen: set[int] = set()
    for index, serve in enumerate(serves):
        for one in sets:
            if one.kind == "prefix" and serve.here and serve.runs == [one.node.parent]:
                targets[index] = str(one.value)
                seen.add(one.node.id)
        reached = {
            (one.node.id, scopes.reach(one.statement, run))
            for one in exports
            for run in serve.runs
            if serve.here
        }
        hows = {how for _, how in reached}
        if scopes.UNSURE in hows or (len(hows) > 1 and len(serve.runs) > 1):
            return "whether a vllm serve sees it depends on how the script runs"
        seen |= {node for node, how in reached if how == scopes.SETS}
        if scopes.SETS in hows:
            targets[index] = str(exports[0].value)
    if any(one.node.id not in seen for one in sets):
        return "it is set for what is no vllm serve of this script"
    if exports and (other := _other_reader(script, serves)):
        return other
    for index in targets:
        serve = serves[index]
        sharing = [at for at, one in enumerate(serves) if one.slot is serve.slot]
        if serve.why or len({targets.get(at) for at in sharing}) > 1:
            return serve.why or "vllm serves with and without it share --additional-config"
    there = all(json_keys.has(serves[index].slot.table, key) for index in targets)
    for index, value in targets.items():
        serves[index].slot.keys[key] = plain(value, catalog.takes_number(name))
    changes.done.append(
        f"{name} is taken out: --additional-config {key} is there"
        if there
        else f"{name} is now --additional-config {key}"
    )
    return ""


def _elsewhere(script: Parsed, name: str, sets: list[_Set]) -> str:
    """Return where else a script uses a variable, "" if nowhere."""
    for match in re.finditer(
        rb"(?<![A-Za-z0-9_])%b(?![A-Za-z0-9_])" % name.encode(), script.source
    ):
        at = match.start()
        if not any(one.node.start_byte <= at < one.node.end_byte for one in sets) and not any(
            start <= at < end for start, end in script.comments
        ):
            return f"it is used elsewhere ({script.line(at)})"
    for node in [*script.commands, *syntax.nodes(script.root, "declaration_command")]:
        if _DUMPS.fullmatch(script.said(node)):
            return f"all variables are handed on ({script.line(node.start_byte)})"
    return ""


def _other_reader(script: Parsed, serves: list[Serve]) -> str:
    """Return what else may start an engine that sees exports, "" if nothing does."""
    own = [(serve.node.start_byte, serve.node.end_byte) for serve in serves]
    for match in _SERVES.finditer(script.source):
        at = match.start()
        if not any(start <= at < end for start, end in own) and not script.quiet(at):
            return f"another vllm serve may read it ({script.line(at)})"
    for node in script.commands:
        started = " ".join(script.said(word) for word in script.words(node))
        if _STARTS.match(started) and all(serve.node != node for serve in serves):
            return f"what is started here may read it ({script.line(node.start_byte)})"
    return ""


def dead(engine: catalog.Engine, name: str) -> str:
    """Return why a variable of the engine does nothing at this version, "" if it may."""
    for table in ("never_read", "gone"):
        if name in data_files.facts("catalog/versions")[table]:
            return str(data_files.facts("catalog/versions")[table][name])
    if (
        not name.startswith("VLLM_")
        or name not in catalog.ever_read()
        or catalog.variable(engine, name)
    ):
        return ""
    row = engine.version if name in catalog.tables("vllm-ascend")["env"] else engine.known
    last = catalog.ever_read()[name][1]
    return f"{last} was the last listed version that read it" if catalog.earlier(last, row) else ""


def _drop(script: Parsed, changes: Changes, dropped: list[Any]) -> None:
    """Remove statements, with their line if nothing else stands on it.

    A ``:`` stays where a statement is needed.
    """
    gone = {statement.id for statement in dropped}
    for one in dropped:
        body, start, end = scopes.body(one), one.start_byte, one.end_byte
        if one.parent.type == "command":
            changes.edits.add(Edit(start, one.next_sibling.start_byte, b""))
            continue
        empty = one.parent.type != "program" and all(its.id in gone for its in body)
        if not body or (empty and one == body[-1]):
            changes.edits.add(Edit(start, end, b":"))
            continue
        first = script.source.rfind(b"\n", 0, start) + 1
        last = script.source.find(b"\n", end) + 1 or len(script.source)
        rest = script.source[first:last]
        for its in body:
            if its.id in gone and not (empty and its == body[-1]):
                rest = rest.replace(script.source[its.start_byte : its.end_byte], b"", 1)
        at = body.index(one)
        after = body[at + 1].start_byte if at + 1 < len(body) else end
        before = body[at - 1].end_byte if at and body[at - 1].id not in gone else start
        if re.fullmatch(rb"[\s;]*", rest):
            changes.edits.add(Edit(first, last, b""))
        elif re.fullmatch(rb"[ \t]*;[ \t]*", script.source[end:after]):
            changes.edits.add(Edit(start, after, b""))
        elif re.fullmatch(rb"[ \t]*;[ \t]*", script.source[before:start]):
            changes.edits.add(Edit(before, end, b""))
        elif re.fullmatch(rb"\s*#.*\s*", rest):  # the comment stays
            spaces = re.compile(rb"[ \t]*").match(script.source, end)
            changes.edits.add(Edit(start, spaces.end() if spaces else end, b""))
        else:
            changes.edits.add(Edit(start, end, b":"))
