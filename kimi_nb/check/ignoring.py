"""Take out the findings that comments in the scripts ignore.

For example::

    told, ignored, marked = ignoring.applied(findings, deployment)
    ignored[0]  # (the finding, the reason that the comment gives)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kimi_nb.check.findings import Finding
from kimi_nb.check.view.deployment import Deployment, Ignore
from kimi_nb.check.view.engine_view import Spot


def applied(
    findings: Sequence[Finding], deployment: Deployment
) -> tuple[list[Finding], tuple[tuple[Finding, str], ...], Deployment]:
    """Return what is told, what is ignored with the reason, and which comments were of use.

    Of a finding on several lines only those are told for which no comment speaks. The last value is
    the deployment, whose comments name the rules of which they ignored a finding.
    """
    named: dict[tuple[str, str], list[Ignore]] = {}
    for one in deployment.ignores:
        for rule in one.rules:
            named.setdefault((one.spot.file, rule), []).append(one)
    told: list[Finding] = []
    ignored: list[tuple[Finding, str]] = []
    used: dict[Spot, set[str]] = {}
    for found in findings:
        left = []
        for line in (found.line, *found.also):
            asked = named.get((found.file, found.rule), ())
            by = [one for one in asked if one.covers(found.rule, found.file, line)]
            for one in by:
                used.setdefault(one.spot, set()).add(found.rule)
            if by:
                ignored.append((replace(found, line=line, also=()), by[0].reason))
            else:
                left.append(line)
        if left:
            where = found.where if left[0] == found.line else f"{found.file}:{left[0]}"
            told.append(replace(found, where=where, line=left[0], also=tuple(left[1:])))
    ignores = tuple(
        replace(one, used=frozenset(used.get(one.spot, ()))) for one in deployment.ignores
    )
    return told, tuple(ignored), replace(deployment, ignores=ignores)
