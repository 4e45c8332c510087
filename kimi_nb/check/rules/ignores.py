"""Rules on the comments that ignore a rule: a typing error in one would be silence."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb.check.findings import NOTE, WARNING
from kimi_nb.check.rules import registry
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment

_SOURCE = "kimi_nb: docs/check.md, Leave rules out"
_FORM = "Write: # kimi-nb: ignore[RULE] the reason."


@rule(
    "ignores/form",
    WARNING,
    "A comment that ignores a rule names it and gives a reason.",
    _FORM,
    _SOURCE,
    ("scripts",),
)
def form(d: Deployment) -> Iterator[Problem]:
    """The comment ignores nothing; and who reads it later cannot know whether it still holds."""
    for one in d.ignores:
        if not one.rules:
            yield Problem(one.spot, "a comment for kimi-nb that names no rule in brackets")
        elif not one.reason:
            yield Problem(one.spot, f"ignore[{', '.join(one.rules)}] gives no reason")


@rule(
    "ignores/unknown",
    WARNING,
    "A rule that a comment ignores exists.",
    "Take the rule's name from the finding that is to be ignored.",
    _SOURCE,
    ("scripts",),
)
def unknown(d: Deployment) -> Iterator[Problem]:
    """The comment ignores nothing: the finding that is meant is still told."""
    for one in d.ignores:
        for name in one.rules:
            if name not in registry.all_rules():
                yield Problem(one.spot, registry.unknown(name).removesuffix("."))


@rule(
    registry.UNUSED,
    NOTE,
    "A comment that ignores a rule has a finding to ignore.",
    "Take the comment out, or put it above the command of the finding.",
    _SOURCE,
    ("scripts",),
)
def unused(d: Deployment) -> Iterator[Problem]:
    """A comment that outlives its finding hides the next one."""
    for one in d.ignores:
        for name in one.rules:
            if one.reason and name in registry.all_rules() and name not in one.used:
                yield Problem(one.spot, f"ignore[{name}]: this rule finds nothing here")
