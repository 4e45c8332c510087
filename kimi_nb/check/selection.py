"""Choose the rules of which findings are told; say how many findings were left out.

>>> from kimi_nb.check import judge, selection
>>> from kimi_nb.plan import build
>>> found = judge.plan(build.plan("k2.5", "a3", "pd"))
>>> selection.chosen(found, select=["topology"]).rules < found.rules
True
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from kimi_nb.check.findings import Findings
from kimi_nb.check.rules import registry
from kimi_nb.core.errors import ParameterError


def rules(names: Sequence[str]) -> set[str]:
    """Return the ids of rules by their ids (``topology/ranks``) or families (``topology``).

    Raises ParameterError, with the nearest names, for one that does not exist.
    """
    known = registry.all_rules()
    out: set[str] = set()
    for name in names:
        family = {one for one in known if one.startswith(f"{name}/")}
        if not family and "/" not in name:
            near = difflib.get_close_matches(name.casefold(), registry.families(), n=1)
            if near:
                raise ParameterError(
                    f"family of rules {name!r} is not known; did you mean {near[0]}? kimi-nb list "
                    "--rules lists all rules."
                )
        out |= family or {registry.find(name).id}
    return out


def chosen(findings: Findings, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Findings:
    """Return the findings of the rules in ``select`` (of all, if it is empty) without ``ignore``.

    Raises ParameterError for the name of a rule that does not exist, and if no rule is left.
    """
    if not select and not ignore:
        return findings
    asked = (rules(select) if select else set(registry.all_rules())) - rules(ignore)
    if not asked:
        raise ParameterError("check: --select and --ignore leave no rule to ask.")
    return replace(
        findings,
        findings=tuple(one for one in findings.findings if one.rule in asked),
        left_out=tuple(one for one in findings.findings if one.rule not in asked),
        rules=len(asked),
        skipped={rule: why for rule, why in findings.skipped.items() if rule in asked},
    )
