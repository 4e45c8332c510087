"""Find which template a launcher runs, in each layout that documents and folders use.

>>> from kimi_nb.check.reading import layouts
>>> layouts.label("# Prefill node 1"), layouts.label("run_decode0.sh"), layouts.label("proxy.sh")
(('prefill', 1), ('decode', 0), ('', None))

launch_online_dp.py starts ``run_dp_template.sh`` beside it. People put one on each node (a folder a
node), several beside one launcher (flat), each in a fence of its own under a heading, or show the
launch lines alone. Each way to recognise a pair is a small function; the first that knows wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kimi_nb.check.view.deployment import Launcher

T = TypeVar("T")
_ROLES = {
    "prefill": r"prefill(?:er)?|producer|(?<![a-z])p(?=[ _-]?\d)",
    "decode": r"decoder?|consumer|(?<![a-z])d(?=[ _-]?\d)",
}
_NUMBER = re.compile(
    r"(?:node|prefill(?:er)?|decoder?|(?<![a-z])[pd])[ _-]*(?:node[ _-]*)?(\d{1,3})"
)


@dataclass(frozen=True)
class Call:
    """A launch line: what it starts, and the text that names its node (a comment, a heading)."""

    made: Launcher
    says: str


def label(text: str) -> tuple[str, int | None]:
    """Return the role and the number of the node that a name, comment or heading names."""
    low = text.lower()
    roles = [role for role, pattern in _ROLES.items() if re.search(pattern, low)]
    number = _NUMBER.search(low)
    return roles[0] if len(roles) == 1 else "", int(number[1]) if number else None


def pairs(calls: Sequence[Call], templates: Sequence[tuple[T, str]]) -> list[tuple[T, Call]]:
    """Return which template each launch line runs; a template may have several, or none.

    ``templates`` are (template, the text that names it). The result is empty if nothing tells.
    """
    if not calls or not templates:
        return []
    for way in (_alone, _labelled, _in_turn, _by_group, _by_role):
        found = way(calls, templates)
        if found:
            return found
    return []


def _alone(calls: Sequence[Call], templates: Sequence[tuple[T, str]]) -> list[tuple[T, Call]]:
    return [(templates[0][0], call) for call in calls] if len(templates) == 1 else []


def _labelled(calls: Sequence[Call], templates: Sequence[tuple[T, str]]) -> list[tuple[T, Call]]:
    """Pair by role and number, or by role alone, where each launch line finds one template."""
    shorter: tuple[Callable[[tuple[str, int | None]], object], ...] = (
        lambda found: found if found[0] and found[1] is not None else None,
        lambda found: found[0] or None,
    )
    for key in shorter:
        named: dict[object, list[T]] = {}
        for template, says in templates:
            named.setdefault(key(label(says)), []).append(template)
        keys = [key(label(call.says)) for call in calls]
        if all(one is not None and len(named.get(one, ())) == 1 for one in keys):
            return [(named[one][0], call) for one, call in zip(keys, calls, strict=True)]
    return []


def _in_turn(calls: Sequence[Call], templates: Sequence[tuple[T, str]]) -> list[tuple[T, Call]]:
    """Pair in order; twice as many templates are two variants of the same nodes."""
    if len(templates) % len(calls):
        return []
    return [(one, calls[index % len(calls)]) for index, (one, _) in enumerate(templates)]


def _by_group(calls: Sequence[Call], templates: Sequence[tuple[T, str]]) -> list[tuple[T, Call]]:
    """Pair in the order of the groups, where each group has one template."""
    groups: dict[object, int] = {}
    for call in calls:
        groups.setdefault((call.made.dp, call.made.tp), len(groups))
    if len(groups) != len(templates):
        return []
    return [(templates[groups[call.made.dp, call.made.tp]][0], call) for call in calls]


def _by_role(calls: Sequence[Call], templates: Sequence[tuple[T, str]]) -> list[tuple[T, Call]]:
    """Pair the templates of each role with the launch lines of one group, in turn.

    The first group is that of the role that is told first.
    """
    groups: dict[object, list[Call]] = {}
    for call in calls:
        groups.setdefault((call.made.dp, call.made.tp), []).append(call)
    roles: dict[str, list[T]] = {}
    for template, says in templates:
        roles.setdefault(label(says)[0], []).append(template)
    if "" in roles or len(roles) != len(groups):
        return []
    return [
        (template, group[index % len(group)])
        for group, mine in zip(groups.values(), roles.values(), strict=True)
        for index, template in enumerate(mine)
    ]


def arguments(made: Launcher, most: int) -> list[tuple[str, ...]]:
    """Return what launch_online_dp.py hands to its template, rank by rank."""
    if None in (made.dp, made.tp, made.local, made.first, made.http_port):
        return []
    local, tp = made.local or 0, made.tp or 0
    if local > most:
        return []
    return [
        (
            ",".join(map(str, range(index * tp, (index + 1) * tp))),
            str((made.http_port or 0) + index),
            str(made.dp),
            str((made.first or 0) + index),
            made.address,
            str(made.rpc_port or ""),
            str(made.tp),
        )
        for index in range(local)
    ]


def bare(made: Launcher, most: int) -> list[tuple[tuple[str, ...], Mapping[str, str]]]:
    """Return the words and variables of the engines of a launch line that has no template.

    They are what every template does with what it is given: the rest of an engine is not known.
    """
    flags = (
        "--port",
        "--data-parallel-size",
        "--data-parallel-rank",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--tensor-parallel-size",
    )
    return [
        (
            (
                "vllm",
                "serve",
                *(word for pair in zip(flags, given, strict=True) for word in pair if pair[1]),
            ),
            {"ASCEND_RT_VISIBLE_DEVICES": devices},
        )
        for devices, *given in arguments(made, most)
    ]
