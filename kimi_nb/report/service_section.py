"""What was started: rehearsals and deployments of a plan, from their own folders.

services.of(folder, entries, gaps, root)        # [Attempt("rehearsal 001", "ok", ...), ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb.report.run_files import Gaps, items, lines, mapping, number, rows, table
from kimi_nb.report.stage_section import REHEARSAL, measured


@dataclass(frozen=True)
class Attempt:
    """One start of a service.

    Attributes:
        status: ok, failed, or unfinished.
        when: Its last sign of life, for the order.
        facts: (what, value, how known).
        diagnosis: Node, rank, cause, evidence and help of what went wrong first.
    """

    name: str
    kind: str
    status: str
    when: float
    mark: str
    text: str
    facts: tuple[tuple[str, str, str], ...]
    diagnosis: Mapping[str, Any]
    steps: tuple[tuple[str, str, str, str], ...] = ()


def of(folder: Path, entries: Sequence[Mapping[str, Any]], gaps: Gaps, root: Path) -> list[Attempt]:
    """All starts of a plan, the oldest first; ``entries`` are those of the run that name it."""
    out = [
        _rehearsal(path, gaps, root)
        for path in sorted(folder.glob("rehearsals/[0-9]*"))
        if path.is_dir()
    ]
    out += [
        _deployment(path, entries, gaps, root)
        for path in sorted(folder.glob("deployments/[0-9]*"))
        if path.is_dir()
    ]
    return sorted(out, key=lambda one: one.when)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _rehearsal(path: Path, gaps: Gaps, root: Path) -> Attempt:
    name, result = f"rehearsal {path.name}", path / "rehearsal.json"
    found = table(result, gaps, root) if result.is_file() else {}
    if not found:
        return Attempt(
            name,
            "rehearse",
            "unfinished",
            _changed(path),
            REHEARSAL,
            "no result: it was killed, or still runs",
            (),
            {},
        )
    ok, fault = found.get("ok") is True, str(found.get("fault") or "")
    cause = mapping(found.get("diagnosis"))
    facts = [
        (
            "engines ready",
            f"{found.get('ready', '?')} of {found.get('engines', '?')}",
            measured(REHEARSAL),
        )
    ]
    facts += _seconds(found, REHEARSAL)
    peak = number(found.get("peak_memory_mb"))
    if peak is not None:
        facts.append(("memory of the stand-ins", f"{peak:.0f} MB", measured(REHEARSAL)))
    if found.get("moved_tokens"):
        facts.append(
            (
                "prompt tokens moved from prefill to decode",
                str(found["moved_tokens"]),
                measured(REHEARSAL),
            )
        )
    facts += [
        ("answer", str(found.get("answer") or "none"), ""),
        *(("note", str(note), "") for note in items(found.get("notes"))),
    ]
    if found.get("not_tried"):
        facts.append(("not tried", str(found["not_tried"]), ""))
    text = f"{found.get('ready', '?')} of {found.get('engines', '?')} engines ready on stand-ins"
    if fault:
        text += f"; the fault {fault} was made on purpose"
        facts.append(("fault that was made on purpose", fault, ""))
    return Attempt(
        name,
        "rehearse",
        "ok" if ok else "failed",
        _changed(result),
        REHEARSAL,
        text,
        tuple(facts),
        cause,
    )


def _seconds(found: Mapping[str, Any], mark: str) -> list[tuple[str, str, str]]:
    return [
        (title, f"{value:.1f} s", measured(mark))
        for key, title in (("ready_s", "ready after"), ("first_answer_s", "first answer after"))
        if (value := number(found.get(key))) is not None
    ]


def _deployment(
    path: Path, entries: Sequence[Mapping[str, Any]], gaps: Gaps, root: Path
) -> Attempt:
    name = f"deployment {path.name}"
    said = lines(path / "evidence.jsonl", gaps, root)
    state = table(path / "state.json", gaps, root) if (path / "state.json").is_file() else {}
    steps = [one for one in said if one.get("stage") == "deploy"]
    # What an earlier call failed at and a later one has done counts no more.
    failed = rows(steps[-1].get("failed")) if steps else []
    proved = any(one.get("step") == "verify" and not one.get("failed") for one in steps)
    mine: Mapping[str, Any] = next(
        (
            one
            for one in reversed(entries)
            if one.get("stage") == "deploy"
            and str(one.get("logs", "")).endswith(f"deployments/{path.name}")
        ),
        {},
    )
    told = [mapping(one.get("facts")) for one in reversed(steps)]
    # Of what has answered: stand-ins may be deployed, too.
    marked = any(one.get("mark") == REHEARSAL for one in (mine, *told))
    mark = REHEARSAL if marked else ""
    facts: list[tuple[str, str, str]] = []
    if mine:
        facts.append(
            (
                "engines ready",
                f"{mine.get('ready', '?')} of {mine.get('engines', '?')}",
                measured(mark),
            )
        )
    # A call that found every engine running has measured no start; the one before it has.
    timed = (one for one in (mine, *told) if number(one.get("ready_s")) is not None)
    facts += _seconds(next(timed, {}), mark)
    if mine.get("moved_tokens"):
        facts.append(
            (
                "prompt tokens moved from prefill to decode",
                str(mine["moved_tokens"]),
                measured(mark),
            )
        )
    facts += [
        (what, str(state[key]), "")
        for what, key in (
            ("site", "site"),
            ("started by", "by"),
            ("begun", "begun"),
            ("state", "state"),
        )
        if state.get(key)
    ]
    at = str(steps[-1].get("step", "")) if steps else ""
    status = "failed" if failed else "ok" if proved else "unfinished"
    ready = f"{mine['ready']} of {mine['engines']} engines ready" if "ready" in mine else ""
    text = {
        "ok": ready or "every engine has answered",
        "failed": f"failed at step {at}",
        "unfinished": f"no end after step {at or '(none)'}: it was killed, or still runs",
    }
    return Attempt(
        name,
        "deploy",
        status,
        _changed(path / "evidence.jsonl"),
        mark,
        text[status],
        tuple(facts),
        failed[0] if failed else {},
        tuple(
            (
                str(one.get("time", "")),
                str(one.get("step", "")),
                "" if (took := number(one.get("seconds"))) is None else f"{took:.1f} s",
                _did(one),
            )
            for one in steps
        ),
    )


def _did(step: Mapping[str, Any]) -> str:
    failed = rows(step.get("failed"))
    if failed:
        return "; ".join(f"{one.get('node', '')}: {one.get('cause', '')}" for one in failed)
    many = len(items(step.get("changed")))
    return f"{many} change{'s' * (many != 1)}" if many else "no change"
