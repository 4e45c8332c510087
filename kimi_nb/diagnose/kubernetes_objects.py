r"""Read what kubectl prints of events and pods as lines of a log, each with the pod that it is about.

>>> text = "apiVersion: v1\nkind: Event\ntype: Warning\nreason: Evicted\n"
>>> text += "involvedObject: {kind: Pod, name: kimi-decode-0}\nmessage: The node was low\n"
>>> lines(text).splitlines()[-1]
'Warning Evicted pod/kimi-decode-0 The node was low'
>>> lines("Name:    a-0\nNamespace: n\nNode: x\nEvents:\n  Warning  BackOff").splitlines()[-1]
'[pod/a-0/describe]   Warning  BackOff'

Objects are YAML or JSON (``kubectl get events -o yaml``, ``kubectl get pods -o json``); a line stands
where its message stands in the file. A description (``kubectl describe pod``) keeps its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

LARGEST = 8 << 20  # characters of objects; more is read line by line
_OBJECTS = re.compile(r'\s*(?:---\s*)?(?:\{|- |"?(?:apiVersion|items|kind)"?:)')
_STATUS = re.compile(r'"?(?:involvedObject|regarding|containerStatuses|phase)"?:')
_DESCRIBED = re.compile(r"^Name:[ \t]+(\S+)[ \t]*\n(?=Namespace:|Priority:)", re.MULTILINE)
_OF_POD = re.compile(r"^(?:Node|Containers|Service Account):", re.MULTILINE)
_TIMES = ("lastTimestamp", "eventTime", "firstTimestamp")
# The scheduler's word in a pod's condition, and in its event.
_REASONS = {"Unschedulable": "FailedScheduling"}
_WELL = ("Completed", "ContainerCreating", "PodInitializing")


def holds(text: str) -> bool:
    """Return whether a file that begins with this is of objects with a status, or a description."""
    told = "apiVersion" in text and _OBJECTS.match(text) and _STATUS.search(text)
    return bool(told or ("Name:" in text and _DESCRIBED.search(text)))


def lines(text: str) -> str:
    """Return the lines; a text that cannot be read stays as it is."""
    if _DESCRIBED.search(text):
        return _described(text)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        roots = list(yaml.compose_all(text, Loader=loader))
        rows = sorted(
            (row for root in roots for one in _objects(root) for row in _rows(one)),
            key=lambda row: row[0],
        )
    except (yaml.YAMLError, ValueError, RecursionError):  # such as the end of a file that is cut
        return text
    out: list[str] = []
    for number, said in rows:
        out += [""] * (number - len(out))
        out.append(" ".join(said.split()))
    return "\n".join(out) + "\n"


def _described(text: str) -> str:
    """Return descriptions with the name of its pod before each line."""
    pieces = _DESCRIBED.split(text)
    begins = [match.start() for match in _DESCRIBED.finditer(text)]
    ends = [*begins[1:], len(text)]
    out = [text[: begins[0]]]
    for name, begin, end in zip(pieces[1::2], begins, ends, strict=True):
        part = text[begin:end]
        mark = f"[pod/{name}/describe] " if _OF_POD.search(part) else ""
        out += [mark + line if line.strip() else line for line in part.splitlines(keepends=True)]
    return "".join(out)


Node = Mapping[str, yaml.Node]


def _keys(node: yaml.Node | None) -> Node:
    """Return the keys of a mapping."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _items(node: yaml.Node | None) -> list[Node]:
    return [_keys(one) for one in node.value] if isinstance(node, yaml.SequenceNode) else []


def _text(keys: Node, name: str) -> str:
    node = keys.get(name)
    return node.value if isinstance(node, yaml.ScalarNode) and node.value != "null" else ""


def _line(keys: Node, *names: str) -> int:
    """Return the line of the first key that is there."""
    found: Any = next((keys[name] for name in names if name in keys), None)
    return int(found.start_mark.line) if found is not None else 0


def _objects(root: yaml.Node | None) -> Iterator[Node]:
    keys = _keys(root)
    if "items" in keys:
        yield from _items(keys["items"])
    elif keys:
        yield keys
    else:
        yield from _items(root)


def _rows(one: Node) -> Iterator[tuple[int, str]]:
    """Yield what an object tells, each with its line."""
    about = _keys(one.get("involvedObject") or one.get("regarding"))
    if about:
        yield _event(one, about)
    elif "status" in one and _text(one, "kind") in ("Pod", ""):
        yield from _pod(_text(_keys(one.get("metadata")), "name"), _keys(one["status"]))


def _event(one: Node, about: Node) -> tuple[int, str]:
    series = _keys(one.get("series"))
    when = next(filter(None, (_text(one, name) for name in _TIMES)), "")
    when = _text(series, "lastObservedTime") or when
    what = f"{_text(about, 'kind').lower()}/{_text(about, 'name')}"
    said = _text(one, "message") or _text(one, "note")
    row = f"{when} {_text(one, 'type')} {_text(one, 'reason')} {what} {said}"
    return _line(one, "message", "note", "reason"), row.strip()


def _pod(name: str, status: Node) -> Iterator[tuple[int, str]]:
    """Yield what the status of a pod tells: why it ended, waits, or is not scheduled."""
    reason, said = _text(status, "reason"), _text(status, "message")
    if reason or said:
        yield _line(status, "message", "reason"), _row(name, "status", reason, said)
    for condition in _items(status.get("conditions")):
        kind, holds_ = _text(condition, "type"), _text(condition, "status")
        if (kind, holds_) in (("PodScheduled", "False"), ("DisruptionTarget", "True")):
            why = _text(condition, "reason")
            row = _row(name, "status", _REASONS.get(why, why), _text(condition, "message"))
            yield _line(condition, "message", "reason"), row
    for group in ("initContainerStatuses", "containerStatuses"):
        for container in _items(status.get(group)):
            for state in ("lastState", "state"):
                who = _text(container, "name")
                yield from _state(name, who, _keys(container.get(state)))


def _row(pod: str, part: str, *words: str) -> str:
    """Return a line with its pod before it, as ``kubectl logs --prefix`` writes it."""
    return " ".join([f"[pod/{pod}/{part}]", *words])


def _state(pod: str, who: str, state: Node) -> Iterator[tuple[int, str]]:
    """Yield why a container waits, or how it ended."""
    waiting, ended = _keys(state.get("waiting")), _keys(state.get("terminated"))
    reason = _text(waiting, "reason")
    if reason and reason not in _WELL:
        row = _row(pod, who, f"{reason}:", _text(waiting, "message"))
        yield _line(waiting, "message", "reason"), row
    reason, code = _text(ended, "reason"), _text(ended, "exitCode")
    if code not in ("", "0"):
        when, said = _text(ended, "finishedAt"), _text(ended, "message")
        row = _row(pod, who, when, "Reason:", reason, "Exit Code:", code, said)
        yield _line(ended, "reason", "exitCode"), row
