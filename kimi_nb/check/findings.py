"""The findings of a check, as values that display themselves.

>>> from kimi_nb.check import judge
>>> from kimi_nb.plan import build
>>> found = judge.plan(build.plan("k2.5", "a3", "pd"))
>>> found.errors  # judge.passed(found) raises CheckError if there is one
()
>>> found.as_dict()["title"]  # what --json prints
'k2.5-a3-pd'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kimi_nb.i18n import translate
from kimi_nb.plan.memory import GIB, Fit
from kimi_nb.show import Table, visible

ERROR, WARNING, NOTE = "error", "warning", "note"
_LINES = 8  # shown of those that say the same
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True)
class Finding:
    """One thing that a rule reports: where it applies, what was found, and what to do about it.

    ``line`` counts from 1. It is 0, and ``file`` empty, if the place is not known. ``also`` are the
    other lines of the same file of which the same is said.
    """

    rule: str
    severity: str
    where: str
    message: str
    fix: str
    source: str
    file: str = ""
    line: int = 0
    also: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        """The message, with the other lines of which it is true; without a full stop."""
        more = ", ".join(map(str, self.also[:_LINES])) + ", ..." * (len(self.also) > _LINES)
        also = f" (also line{'s' * (len(self.also) > 1)} {more})" if more else ""
        return f"{self.message}{also}"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file or self.where
        told, severity = translate(self.told), translate(self.severity)
        said = visible(f"{place}: {severity}: {told} [{self.rule}]", lines=False)
        return f"{said}\n    {visible(translate(self.fix), lines=False)}"


@dataclass(frozen=True)
class Bar:
    """The memory that one kind of engine needs of a device, estimated."""

    role: str
    engine: str
    fit: Fit

    def __str__(self) -> str:
        return f"{self.engine} ({self.role}), one device, {self.fit.mark}:\n{self.fit}"

    def as_dict(self) -> dict[str, Any]:
        """Return the bar as plain values.

        Sizes are in GiB, those of the cache in bytes per token and in tokens.
        """
        fit = self.fit
        return {
            "engine": self.engine,
            "role": self.role,
            "figures": fit.mark,
            "parts_gib": {name: round(size / GIB, 3) for name, size in fit.parts.items()},
            **fit.memory(),
            "headroom_gib": round(fit.headroom / GIB, 2),
            "cache_bytes_per_token": fit.per_token,
            "cache_tokens": fit.tokens,
            "cache_tokens_low": fit.low,
            "cache_tokens_high": fit.high,
            "max_num_seqs": fit.shape.seqs,
            "longest_context": fit.longest,
            "max_model_len": fit.shape.model_len,
            "requests_at_max_model_len": fit.requests(fit.shape.model_len)
            if fit.shape.model_len
            else None,
        }


@dataclass(frozen=True)
class Findings:
    """All findings of a deployment, errors first.

    ``rules`` is the number of rules, ``skipped`` maps those that could not be applied to the
    reason. ``unread`` lists the parts of the files that were not read, and why. ``seen`` counts the
    engines, proxies, clients, containers, launchers and jobs that were found, and ``read`` how much
    of the files was understood: ``commands`` that were judged, those that were ``not understood``
    although they name vLLM, and ``fill-ins`` that are left to the reader. ``paths`` maps the files,
    as findings name them, to where they lie. ``left_out`` are the findings of rules that were not
    chosen, ``ignored`` those that a comment in the script ignores, with its reason.
    """

    title: str
    engine: str
    findings: tuple[Finding, ...]
    rules: int
    skipped: Mapping[str, str]
    unread: tuple[Mapping[str, Any], ...] = ()
    seen: Mapping[str, int] | None = None
    read: Mapping[str, int] | None = None
    memory: tuple[Bar, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[Finding, ...] = ()
    ignored: tuple[tuple[Finding, str], ...] = ()

    def of(self, severity: str) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(found for found in self.findings if found.severity == severity)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that prevent a start."""
        return self.of(ERROR)

    @property
    def ok(self) -> bool:
        """Whether nothing prevents a start."""
        return not self.errors

    @property
    def verdict(self) -> str:
        """One sentence: how many findings of each severity, and how many rules were applied."""
        asked = self.rules - len(self.skipped)
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        # What was not read may start one.
        what = "that was read" if self.unread else "here"
        nothing = (
            f" Nothing {what} starts an engine."
            if self.seen is not None
            and not (self.seen["servers"] or self.seen["boxes"] or self.seen["launchers"])
            else ""
        )
        count = f"{self.title}: {_count(self.findings)}."
        rules = f"{asked} rules asked of {self.engine}{skipped}."
        return f"{count} {rules}{self._set_aside}{nothing}{self._understood}"

    @property
    def _set_aside(self) -> str:
        """How much was found that is not told."""
        aside = {
            "Left out by --select or --ignore": self.left_out,
            "Ignored by comments": [found for found, _ in self.ignored],
        }
        return "".join(f" {how}: {_count(found)}." for how, found in aside.items() if found)

    @property
    def _understood(self) -> str:
        """How much of the files was read, so that no error is never silence."""
        if self.read is None:
            return ""
        done, left, holes = (self.read[key] for key in ("commands", "not understood", "fill-ins"))
        return (
            f" Read: {done} command{'s' * (done != 1)}, {left} not understood, "
            f"{holes} fill-in{'s' * (holes != 1)}."
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of errors, warnings and notes."""
        return {f"{kind}s": len(self.of(kind)) for kind in SEVERITIES}

    def table(self) -> Table:
        """Return the findings as a table, errors first."""
        rows = tuple(
            (found.severity, found.where, found.message, found.fix, found.rule)
            for found in self.findings
        )
        return Table(self.verdict, ("severity", "where", "found", "do", "rule"), rows)

    def __str__(self) -> str:
        lines = [str(found) for found in self.findings if found.severity != NOTE]
        lines += [str(found).partition("\n")[0] for found in self.of(NOTE)]
        lines += [
            visible(translate(f"{place(spot)}: not read: {spot['reason']}"), lines=False)
            for spot in self.unread
        ]
        return "\n".join([*lines, visible(translate(self.verdict), lines=False)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def as_dict(self) -> dict[str, Any]:
        """Return the findings as plain values."""
        return {
            "title": self.title,
            "ok": self.ok,
            "engine": self.engine,
            "counts": self.counts,
            "rules": self.rules,
            "findings": [asdict(found) for found in self.findings],
            "skipped": dict(self.skipped),
            "unread": list(self.unread),
            "seen": dict(self.seen or {}),
            "read": dict(self.read or {}),
            "left_out": [asdict(found) for found in self.left_out],
            "ignored": [{**asdict(found), "reason": why} for found, why in self.ignored],
            "memory": [bar.as_dict() for bar in self.memory],
        }


def _count(findings: Sequence[Finding]) -> str:
    """Return how many findings of each severity there are."""
    kinds = Counter(found.severity for found in findings)
    return ", ".join(f"{kinds[kind]} {kind}{'s' * (kinds[kind] != 1)}" for kind in SEVERITIES)


def place(spot: Mapping[str, Any]) -> str:
    """Return ``file:line`` for an entry of ``unread``, or the file alone if no line is known."""
    return f"{spot['file']}:{spot['line']}" if spot.get("line") else str(spot["file"])
