"""The sections of a report, one for each cell of notebook 11; each shows itself.

sections.Sections(collect(folder)).verdict
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kimi_nb.report.collect import Report
from kimi_nb.report.plan_section import Planned, Script
from kimi_nb.report.service_section import Attempt
from kimi_nb.report.stage_section import Figures
from kimi_nb.show import Table
from kimi_nb.show.fixed_width import Preformatted
from kimi_nb.show.parts import Box, Folded, Image, Line, Link, Mark, Part, Parts

_Pictures = tuple[tuple[str, str, str], ...]
_NO_PLAN = "No plan was written in this run."


@dataclass(frozen=True)
class Sections:
    """``links`` leads from the page to the run's folder, where the page stands elsewhere."""

    found: Report
    links: str = ""

    # Of the run -------------------------------------------------------------------------

    @property
    def verdict(self) -> Parts:
        """How the run ended, why, what to do, and what it does not show."""
        verdict = self.found.verdict
        help_ = (f"next: {verdict.next}",) if verdict.next else ()
        out = [Box(verdict.status, Line(Mark(verdict.status), verdict.text), *help_)]
        if verdict.limits:
            out.append(Box("rehearsal" if verdict.mark else "limits", *verdict.limits))
        about = f"{self.found.title}: {self.found.folder}, written {self.found.written}."
        known = (
            "Figures say how they are known: measured, published (with the source) or estimated."
        )
        return Parts(*out, f"{about} {known}")

    @property
    def notebooks(self) -> Any:
        """How each notebook ended, with links to what was executed."""
        if not self.found.notebooks:
            return Parts("No notebook was executed into this folder.")
        rows = tuple(
            (
                one.name,
                Mark(one.status),
                one.seconds,
                one.fault,
                Line(*(self._link(file, file.rpartition(".")[2]) for file in one.files)),
            )
            for one in self.found.notebooks
        )
        return Table("", ("notebook", "status", "time", "what it says", "executed"), rows)

    @property
    def overview(self) -> Any:
        """A line for each plan: how far it came."""
        if not self.found.plans:
            return Parts(_NO_PLAN)
        rows = tuple(
            (
                Link(plan.name, anchor=plan.name),
                _errors(plan) if plan.rules else "not recorded",
                f"{plan.files} files" if plan.files else "none",
                _served(plan),
                *(
                    Line(Mark(one.status), one.title.partition(";")[0]) if one else "not run"
                    for one in (plan.contract, plan.accuracy, plan.performance)
                ),
            )
            for plan in self.found.plans
        )
        heads = ("plan", "check", "bundle", "service", "contract", "accuracy", "performance")
        return Table("", heads, rows)

    @property
    def fingerprint(self) -> Any:
        """What ran where, and the evidence."""
        if not self.found.about:
            return Parts("No fingerprint is recorded.")
        lines = Line(self._link("evidence.jsonl", "evidence.jsonl"), f"{self.found.events} lines")
        return Table("", ("what", "is"), (*self.found.about, ("evidence", lines)))

    @property
    def missing(self) -> Parts:
        """What could not be read, a sentence for each."""
        return Parts(*(self.found.gaps or ("Nothing: every file could be read.",)))

    # Of each plan -----------------------------------------------------------------------

    @property
    def plans(self) -> Parts:
        """What was planned: facts, engines, settings with their sources, topology."""
        return self._each(_planned, anchor=True)

    @property
    def findings(self) -> Parts:
        """What the rules say of each plan; notes are folded."""
        return self._each(_findings)

    @property
    def memory(self) -> Parts:
        """What one device of each kind of engine holds, estimated."""
        return self._each(_memory)

    @property
    def services(self) -> Parts:
        """Every start of a service, the newest first, with what went wrong."""
        return self._each(_starts)

    @property
    def contract(self) -> Parts:
        """The checks of a service."""
        nothing = "The service was not verified in this run (notebook 06)."
        return self._figures(lambda plan: plan.contract, nothing)

    @property
    def accuracy(self) -> Parts:
        """The scores, and how they compare with what was published."""
        nothing = "No accuracy was measured in this run (notebook 07)."
        return self._figures(lambda plan: plan.accuracy, nothing)

    @property
    def performance(self) -> Parts:
        """The measurements under load, and the physical limit under each."""
        nothing = "No performance was measured in this run (notebook 08)."

        def of(plan: Planned) -> tuple[Any, ...]:
            if plan.performance is None:
                return (nothing,)
            return (*_shown(plan.performance), *(_shown(plan.limits) if plan.limits else ()))

        return self._each(of)

    @property
    def sweeps(self) -> Parts:
        """The last sweep around each plan."""
        return self._figures(
            lambda plan: plan.sweep, "Nothing was swept in this run (notebook 09)."
        )

    @property
    def scripts(self) -> Parts:
        """The scripts of each bundle, each text once, folded."""

        def of(plan: Planned) -> tuple[Any, ...]:
            if not plan.scripts:
                return ("No bundle was written in this run.",)
            said = f"{plan.files} files in the bundle; these are its scripts, each text once."
            return (said, *map(self._script, plan.scripts))

        return self._each(of)

    @property
    def errata(self) -> Parts:
        """Where each plan differs from the documents, and why."""
        return self._each(_errata)

    @property
    def versions(self) -> Parts:
        """The versions of each plan, and the hashes of what was written."""
        return self._each(_versions)

    # ------------------------------------------------------------------------------------

    def _link(self, path: str, text: str) -> Link:
        return Link(text, f"{self.links}/{path}" if self.links else path)

    def _each(self, of: Callable[[Planned], tuple[Any, ...]], anchor: bool = False) -> Parts:
        parts = (
            Part(plan.name, *of(plan), anchor=plan.name if anchor else "")
            for plan in self.found.plans
        )
        return Parts(*parts) if self.found.plans else Parts(_NO_PLAN)

    def _figures(self, of: Callable[[Planned], Figures | None], nothing: str) -> Parts:
        return self._each(lambda plan: _shown(found) if (found := of(plan)) else (nothing,))

    def _script(self, script: Script) -> Any:
        also = f"the same: {', '.join(script.also)}" if script.also else ""
        link = self._link(script.path, script.path)
        if not script.text:
            return Line(link, f"{script.size:,} bytes, not shown here", also)
        return Folded(Line(link, also), Preformatted(script.text))


def _count(many: int, word: str) -> str:
    return f"{many} {word}{'s' * (many != 1)}"


def _images(pictures: _Pictures) -> list[Image]:
    return [Image(*one) for one in pictures]


def _errors(plan: Planned) -> Line:
    many = plan.counts.get("errors", 0)
    return Line(Mark("failed" if many else "ok"), _count(many, "error"))


def _served(plan: Planned) -> Line | str:
    if plan.last:
        return Line(Mark(plan.last.status), plan.last.text)
    return f"asked at {plan.attached[-1]}" if plan.attached else "not started"


def _planned(plan: Planned) -> tuple[Any, ...]:
    if not plan.facts:
        return ("No plan is kept here.",)
    shown: list[Any] = [Table("", ("fact", "value"), plan.facts)]
    heads: tuple[str, ...] = ("role", "group", "engines", "nodes", "dp", "tp", "devices each")
    shown.append(Table("Engines", heads, plan.parts))
    if plan.settings:
        heads = ("role", "kind", "name", "value", "layer", "source")
        many = _count(len(plan.settings), "setting")
        title = f"{many}, each with the layer and the source of its value"
        shown.append(Folded(title, Table("", heads, plan.settings)))
    return (*shown, *_images(plan.pictures["plan"]))


def _memory(plan: Planned) -> tuple[Any, ...]:
    sizes = ("device GiB", "budget GiB", "parts GiB", "headroom GiB")
    heads = ("role", "engine", *sizes, "tokens of cache", "how known")
    return (Table("", heads, plan.memory) if plan.memory else "No estimate is recorded.",)


def _versions(plan: Planned) -> tuple[Any, ...]:
    hashes = ((f"hash of the {what}", value) for what, value in plan.hashes)
    rows = (*plan.versions, *hashes)
    return (Table("", ("what", "is"), rows) if rows else "No versions are recorded.",)


def _findings(plan: Planned) -> tuple[Any, ...]:
    if not plan.rules:
        return ("The findings were not recorded in this run.",)
    many = ", ".join(
        _count(plan.counts.get(f"{word}s", 0), word) for word in ("error", "warning", "note")
    )
    shown: list[Any] = [f"{many} of {plan.rules}."]
    loud = [one for one in plan.findings if one["severity"] != "note"]
    notes = [one for one in plan.findings if one["severity"] == "note"]
    if loud:
        rows = tuple(
            (Mark(one["severity"]), one["where"], one["message"], one["fix"], one["rule"])
            for one in loud
        )
        shown.append(Table("", ("severity", "where", "found", "do", "rule"), rows))
    if notes:
        noted = tuple((one["where"], one["message"], one["rule"]) for one in notes)
        folded = Table("", ("where", "noted", "rule"), noted)
        shown.append(Folded(_count(len(notes), "note"), folded))
    return tuple(shown)


def _starts(plan: Planned) -> tuple[Any, ...]:
    shown = [_start(one, one is plan.last) for one in reversed(plan.attempts)]
    if not shown and plan.attached:
        return (f"A service that was there already was asked: {', '.join(plan.attached)}.",)
    return (*(shown or ("No service was started.",)), *_images(plan.pictures["service"]))


def _start(one: Attempt, newest: bool) -> Folded:
    shown: list[Any] = []
    if one.diagnosis:
        say = one.diagnosis.get
        rank = "" if say("rank") is None else f", rank {say('rank')}"
        shown.append(
            Box(
                "failed",
                f"{say('node', '')}{rank}: {say('cause', '')}",
                f"seen: {say('evidence', '')}",
                f"next: {say('help', '')}",
            )
        )
    shown.append(Table("", ("what", "is", "how known"), one.facts))
    if one.steps:
        shown.append(Table("", ("time", "step", "took", "what"), one.steps))
    title = Line(Mark(one.status), f"{one.name}: {one.text}", Mark(one.mark))
    return Folded(title, *shown, unfolded=newest)


def _shown(found: Figures) -> tuple[Any, ...]:
    known = f"Figures: {found.known}." if found.known else ""
    shown: list[Any] = [Line(f"{found.title}.", known, Mark(found.mark))]
    if found.rows:
        rows = tuple(
            (Line(row[0], Mark("failed")), *row[1:]) if at in found.bad and row else row
            for at, row in enumerate(found.rows)
        )
        shown.append(Table("", found.headings, rows))
    return (*shown, *_images(found.pictures))


def _errata(plan: Planned) -> tuple[Any, ...]:
    if not plan.errata:
        return ("None is recorded.",)
    heads = ("id", "document", "says", "uses", "why", "evidence")
    rows = tuple(tuple(one[head] for head in heads) for one in plan.errata)
    title = f"{_count(len(rows), 'difference')} from the documents"
    return (Folded(title, Table("", heads, rows)),)
