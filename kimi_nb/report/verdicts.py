"""The verdict of a run, and how each notebook ended. Pure but for asking which files are there.

verdicts.of(entries, notebooks, plans).text      # "ok: 5 notebooks, 36 of 36 engines ready ..."
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb.report.plan_section import Planned
from kimi_nb.report.run_files import FILE, NOTEBOOK, is_file, number
from kimi_nb.report.service_section import Attempt
from kimi_nb.report.stage_section import REHEARSAL

OK, FAILED, UNFINISHED, NOTHING = "ok", "failed", "unfinished", "nothing"


@dataclass(frozen=True)
class Notebook:
    """One notebook of a run: ``status`` ok, failed, "not finished", or "not recorded"."""

    name: str
    status: str
    seconds: str
    fault: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What a run has shown, in one word and a sentence.

    Attributes:
        status: ok, failed, unfinished or nothing.
        text: Why, in a sentence.
        next: What to do about it.
        limits: Sentences on what the run does not show.
        mark: REHEARSAL where stand-ins took part.
    """

    status: str
    text: str
    next: str
    mark: str
    limits: tuple[str, ...]


def notebooks(folder: Path, entries: Sequence[Mapping[str, Any]]) -> tuple[Notebook, ...]:
    """How each notebook of the run ended, in its order."""
    run = next((one for one in entries if one.get("stage") == "run"), {})
    ended = {str(one.get("notebook")): one for one in entries if one.get("stage") == "notebook"}
    listed = run.get("notebooks")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    # Executed by hand into this folder; the report does not count itself.
    there = sorted({path.stem for path in folder.glob("*.ipynb")} - {Path(FILE).stem, NOTEBOOK})
    out = []
    for name in dict.fromkeys([*names, *ended, *there]):
        entry = ended.get(name)
        files = tuple(
            f"{name}.{kind}" for kind in ("html", "ipynb") if is_file(folder / f"{name}.{kind}")
        )
        took = number(entry.get("seconds")) if entry else None
        status = (
            str(entry.get("status", ""))
            if entry
            else "not finished"
            if name in names
            else "not recorded"
        )
        out.append(
            Notebook(
                name,
                status,
                "" if took is None else f"{took:.1f} s",
                str(entry.get("fault") or "") if entry else "",
                files,
            )
        )
    return tuple(out)


def of(
    entries: Sequence[Mapping[str, Any]], ran: Sequence[Notebook], plans: Sequence[Planned]
) -> Verdict:
    """Return the verdict on a run."""
    mark = REHEARSAL if any(plan.rehearsed for plan in plans) else ""
    status, text, help_ = _found(entries, ran, plans)
    return Verdict(status, text, help_, mark, _limits(plans, mark))


def _found(
    entries: Sequence[Mapping[str, Any]], ran: Sequence[Notebook], plans: Sequence[Planned]
) -> tuple[str, str, str]:
    failed = _failures(ran, plans)
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return FAILED, failed[0][0] + more, failed[0][1]
    end = next((one for one in reversed(entries) if one.get("stage") == "end"), None)
    if end is not None and end.get("interrupted"):
        return UNFINISHED, "interrupted before its end", "Start it again."
    if end is None and any(one.get("stage") == "run" for one in entries):
        return UNFINISHED, "has no end: it still runs, or was killed", "Look for its process."
    open_ = [
        f"{plan.last.name} of {plan.name}: {plan.last.text}"
        for plan in plans
        if plan.last is not None and plan.last.status == UNFINISHED
    ]
    if open_:
        return UNFINISHED, open_[0], "Wait for its end, or start it again."
    if end is not None and end.get("ok") is not True:
        return FAILED, "the run says that it failed, and not where", ""
    done = [one for one in ran if one.status == OK]
    said = [f"{len(done)} notebook{'s' * (len(done) != 1)}"] if done else []
    said += [f"{plan.name}: {plan.last.text}" for plan in plans if plan.last is not None]
    said += [
        f"{plan.name}: {plan.contract.title.partition(';')[0]}"
        for plan in plans
        if plan.contract is not None
    ]
    said += [
        f"{plan.name}: planned and written" for plan in plans if plan.last is None and plan.files
    ]
    if not said:
        return NOTHING, "nothing was run", "kimi-nb run executes the notebooks."
    return OK, "; ".join(said), ""


def _failures(ran: Sequence[Notebook], plans: Sequence[Planned]) -> list[tuple[str, str]]:
    """Return (what failed and why, what to do next), causes before what followed from them."""
    out = []
    for plan in plans:
        last = plan.last
        if last is not None and last.status == FAILED:
            out.append(
                (
                    f"{last.name} of {plan.name}: {_cause(last)}",
                    str(last.diagnosis.get("help") or ""),
                )
            )
        errors = [one for one in plan.findings if one["severity"] == "error"]
        if errors:
            out.append(
                (
                    f"check of {plan.name}: {errors[0]['where']}: {errors[0]['message']}",
                    errors[0]["fix"],
                )
            )
        for name, figures in (("verification", plan.contract), ("accuracy", plan.accuracy)):
            wrong = sorted({*figures.bad} - {*figures.by_door}) if figures is not None else []
            if figures is not None and wrong:
                row = figures.rows[wrong[0]]
                what = row[0 if name == "verification" else 2]
                out.append((f"{name} of {plan.name}: {what}", row[4]))
    stopped = [
        (f"{one.name} failed: {one.fault.partition(chr(10))[0]}", "Its page has the rest.")
        for one in ran
        if one.status == FAILED
    ]
    if out and stopped:  # the cause, and where it showed
        return [
            (f"{stopped[0][0].partition(' ')[0]}: {out[0][0]}", out[0][1]),
            *out[1:],
            *stopped[1:],
        ]
    return out + stopped


def _cause(attempt: Attempt) -> str:
    found = attempt.diagnosis
    if not found:
        return attempt.text
    rank = found.get("rank")
    where = str(found.get("node", "")) + ("" if rank is None else f", rank {rank}")
    made = "; the fault was made on purpose" if "made on purpose" in attempt.text else ""
    return f"{where}: {found.get('cause', '')}{made}"


def _limits(plans: Sequence[Planned], mark: str) -> tuple[str, ...]:
    """Return what a reader must not take from this run."""
    real = [
        plan
        for plan in plans
        if any(
            one.kind == "deploy" and one.status == OK and one.mark != REHEARSAL
            for one in plan.attempts
        )
    ]
    on_accelerators = [plan for plan in real if plan.hardware != "cpu"] + [
        plan for plan in plans if plan.asked_engines and plan.hardware != "cpu"
    ]
    out = []
    if mark:
        out.append(
            "REHEARSAL: stand-ins took the place of engines and accelerators. Their "
            "seconds and megabytes say nothing about any hardware."
        )
    if any(plan.hardware == "cpu" for plan in real):
        out.append(
            "The real engine ran on a CPU, with a tiny model of random weights: its "
            "figures are those of no accelerator and no Kimi."
        )
    if not on_accelerators:
        out.append("Nothing here was measured on accelerators.")
    for plan in plans:
        if plan.contract is not None and plan.contract.by_door:
            names = ", ".join(plan.contract.rows[at][0] for at in plan.contract.by_door)
            out.append(
                f"{plan.name} fails {names}: its front door, vllm-ascend's example proxy, causes "
                "it, and no engine mends it; --set router=vllm-router plans another."
            )
    if not any(plan.attempts or plan.attached for plan in plans):
        out.append("No engine was started: files were written and checked.")
    return tuple(out)
