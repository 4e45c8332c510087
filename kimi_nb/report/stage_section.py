"""What the stages left on the disk, each read by a small reader of its own.

    stages.contract(folder, gaps, root)       # Shown: title, headings, rows; None where nothing is

A stage that left nothing is None; the page says so in a sentence.
"""

from __future__ import annotations

import base64
import html
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb.plan.router import EXAMPLE_PROXY
from kimi_nb.prove.accuracy import statistics as intervals
from kimi_nb.prove.accuracy.score_settings import PUBLISHED
from kimi_nb.report.run_files import LIMITS, Gaps, items, lines, mapping, number, rows, table

REHEARSAL = "REHEARSAL"
_LARGEST_PICTURE = 1 << 20  # bytes


@dataclass(frozen=True)
class Figures:
    """A table of a stage.

    Attributes:
        status: ok, failed or "".
        mark: REHEARSAL where stand-ins answered.
        known: How its figures are known.
        bad: The numbers of rows that failed, from 0.
        by_door: Those of them that the front door causes: another one mends them, no engine does.
        pictures: (title, words, data URL).
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    status: str = ""
    mark: str = ""
    known: str = ""
    bad: tuple[int, ...] = ()
    pictures: tuple[tuple[str, str, str], ...] = ()
    by_door: tuple[int, ...] = ()


def measured(mark: str) -> str:
    """How a figure is known that was taken here."""
    if mark == REHEARSAL:
        return "measured, REHEARSAL"
    return f"measured ({mark})" if mark and mark != "measured" else "measured"


def contract(folder: Path, gaps: Gaps, root: Path) -> Figures | None:
    """Return the checks of the verification (verify.jsonl): the last result of each."""
    said = [
        one
        for one in lines(folder / "verify.jsonl", gaps, root)
        if one.get("stage") == "verify" and one.get("name")
    ]
    if not said:
        return None
    # Those of the service that was asked last.
    about = ("url", "model", "mark")
    last = [one for one in said if all(one.get(key) == said[-1].get(key) for key in about)]
    found = {str(one["name"]): one for one in last}
    status = [str(one.get("status", "")) for one in found.values()]
    counts = {word: status.count(word) for word in ("pass", "fail", "not applicable")}
    mark = str(said[-1].get("mark") or "")
    return Figures(
        f"{', '.join(f'{many} {word}' for word, many in counts.items())}; "
        f"{said[-1].get('model', '')} at {said[-1].get('url', '')}",
        ("check", "status", "sent", "got", "way out"),
        tuple(
            (
                *(str(one.get(key, "")) for key in ("name", "status", "sent", "got")),
                str(one.get("help", "")) if one.get("status") == "fail" else "",
            )
            for one in found.values()
        ),
        "failed" if counts["fail"] else "ok" if counts["pass"] else "",
        mark,
        measured(mark),
        tuple(at for at, word in enumerate(status) if word == "fail"),
        by_door=tuple(
            at
            for at, one in enumerate(found.values())
            if one.get("status") == "fail" and one.get("cause") == EXAMPLE_PROXY
        ),
    )


def accuracy(
    folder: Path, entries: Sequence[Mapping[str, Any]], gaps: Gaps, root: Path
) -> Figures | None:
    """Return the scores of evaluations (accuracy/NNN/*.json), or why the evidence has none."""
    out: list[Any] = []
    bad: list[Any] = []
    marks: list[Any] = []
    for path in sorted((folder / "accuracy").glob("*/*.json")):
        score = table(path, gaps, root)
        if "task" not in score or "subject" not in score:
            continue  # another's
        mark = str(mapping(score["subject"]).get("mark") or "")
        marks.append(mark)
        parts = rows(score.get("parts"))
        if score.get("fault") or score.get("skipped") or not parts:
            if score.get("fault"):
                bad.append(len(out))
            out.append(
                (
                    path.parent.name,
                    str(score.get("tool", "")),
                    str(score["task"]),
                    "",
                    str(score.get("fault") or score.get("skipped") or "no score"),
                    "",
                    "",
                    "",
                    "no figure",
                )
            )
        published = _published(path.parent, gaps, root)
        for part in parts:
            value = number(part.get("value"))
            out.append(
                (
                    path.parent.name,
                    str(score.get("tool", "")),
                    str(score["task"]),
                    " ".join(
                        filter(None, (str(part.get("metric", "")), str(part.get("filter", ""))))
                    ),
                    "" if value is None else f"{value:.3f}",
                    _interval(part),
                    str(part.get("samples", "")),
                    published,
                    measured(mark),
                )
            )
    if not out:
        why = next(
            (
                str(one["skipped"])
                for one in reversed(entries)
                if one.get("stage") == "accuracy" and one.get("skipped")
            ),
            "",
        )
        return Figures(f"nothing was asked: {why.rstrip('.')}", (), ()) if why else None
    return Figures(
        f"{len(out)} result{'s' * (len(out) > 1)}",
        (
            "run",
            "by",
            "task",
            "metric",
            "score",
            "at 95 %",
            "samples",
            "against the published",
            "how known",
        ),
        tuple(out),
        "failed" if bad else "ok",
        REHEARSAL if REHEARSAL in marks else "",
        "",
        tuple(bad),
        pictures(folder / "pictures", gaps, root, "accuracy"),
    )


def _interval(part: Mapping[str, Any]) -> str:
    """Return the bounds of a share of right answers; "" of anything else."""
    right, of = number(part.get("correct")), number(part.get("samples"))
    if right is None or of is None or not 0 <= right <= of:
        return ""
    return "{:.3f} to {:.3f}".format(*intervals.interval(int(right), int(of)))


def _published(folder: Path, gaps: Gaps, root: Path) -> str:
    """Return what the comparison has said; each reason once."""
    if not (folder / PUBLISHED).is_file():
        return ""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows(table(folder / PUBLISHED, gaps, root).get("verdicts")):
        said = str(row.get("verdict", "")), str(row.get("figures", ""))
        found.setdefault(said, []).append(str(row.get("published", "")))
    return "; ".join(
        f"{', '.join(names)}: {verdict} ({why})" for (verdict, why), names in found.items()
    )


_FIGURES = (
    ("output_throughput", "tokens/s", 1),
    ("median_ttft_ms", "TTFT p50 ms", 1),
    ("p99_ttft_ms", "TTFT p99 ms", 1),
    ("median_tpot_ms", "TPOT p50 ms", 2),
    ("p99_tpot_ms", "TPOT p99 ms", 2),
    ("request_throughput", "requests/s", 2),
)


def performance(folder: Path, gaps: Gaps, root: Path) -> Figures | None:
    """Return the measurements of a benchmark (bench/c*.json): medians over repetitions."""
    cells: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for path in sorted((folder / "bench").glob("*.json")):
        one = table(path, gaps, root)
        about = mapping(mapping(one.get("kimi_nb")).get("identity"))
        if about:
            key = tuple(
                str(about.get(name, ""))
                for name in (
                    "concurrency",
                    "input_len",
                    "output_len",
                    "tool",
                    "tool_version",
                    "mark",
                    "engine_version",
                    "flags",
                )
            )
            cells.setdefault(key, []).append(one)
    if not cells:
        return None
    out = []
    for key, found in sorted(cells.items(), key=lambda pair: [_order(word) for word in pair[0]]):
        out.append(
            (
                *key[:3],
                f"{key[3]} {key[4]}".strip(),
                str(len(found)),
                str(sum(int(number(one.get("failed")) or 0) for one in found)),
                *(_median(found, name, digits) for name, _, digits in _FIGURES),
                measured(key[5]),
            )
        )
    marks = {key[5] for key in cells}
    return Figures(
        f"{sum(map(len, cells.values()))} measurements of {len(cells)} "
        f"load{'s' * (len(cells) > 1)}: medians over repetitions",
        (
            "concurrency",
            "input",
            "output",
            "by",
            "repetitions",
            "failed requests",
            *(title for _, title, _ in _FIGURES),
            "how known",
        ),
        tuple(out),
        "ok",
        REHEARSAL if REHEARSAL in marks else "",
        "",
        pictures=pictures(folder / "bench" / "pictures", gaps, root),
    )


def limits(folder: Path, gaps: Gaps, root: Path) -> Figures | None:
    """Return the physical limit under each measurement, as notebook 08 has kept it."""
    if not (folder / LIMITS).is_file():
        return None
    kept = table(folder / LIMITS, gaps, root)
    headings = tuple(map(str, items(kept.get("headings"))))
    out = tuple(tuple(map(str, row)) for row in items(kept.get("rows")) if isinstance(row, list))
    return Figures(
        str(kept.get("title", "")),
        headings,
        tuple(row for row in out if len(row) == len(headings)),
        known="limits estimated",
    )


def sweep(
    entries: Sequence[Mapping[str, Any]], folder: Path, gaps: Gaps, root: Path
) -> Figures | None:
    """Return the last sweep around the plan, as the evidence has it."""
    said = next((one for one in reversed(entries) if one.get("stage") == "sweep"), None)
    if said is None:
        return None
    out = tuple(
        tuple(str(cell) for cell in row) for row in items(said.get("rows")) if isinstance(row, list)
    )
    headings = tuple(str(one) for one in items(said.get("headings")))
    mark = str(said.get("mark") or "")
    return Figures(
        str(said.get("best") or "nothing has won"),
        headings,
        tuple(row for row in out if len(row) == len(headings)),
        "ok" if said.get("best") else "failed" if said.get("failed") else "",
        mark,
        measured(mark),
        pictures=pictures(folder / "sweep" / "pictures", gaps, root),
    )


def _order(word: str) -> tuple[float, str]:
    return (float(word), "") if word.replace(".", "", 1).isdecimal() else (float("inf"), word)


def _median(found: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    values = [value for one in found if (value := number(one.get(name))) is not None]
    return f"{statistics.median(values):.{digits}f}" if values else ""


def pictures(folder: Path, gaps: Gaps, root: Path, *names: str) -> tuple[tuple[str, str, str], ...]:
    """Return (title, words, data URL) of the drawings of a folder, all or those of these names.

    They stand inside the page, which loads nothing.
    """
    out = []
    for path in [folder / f"{name}.svg" for name in names] or sorted(folder.glob("*.svg")):
        if not path.is_file():
            continue
        try:
            data = path.read_bytes()
        except OSError as error:
            gaps.say(f"{path.relative_to(root)}: could not be read ({error.strerror}).")
            continue
        if len(data) <= _LARGEST_PICTURE:
            url = f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"
            said = [
                html.unescape(found[1])
                if (found := re.search(f"<{tag}>([^<]*)</{tag}>", data.decode("utf-8", "replace")))
                else ""
                for tag in ("title", "desc")
            ]
            name = path.stem.replace("_", " ")
            out.append((said[0] or name, said[1] or name, url))
        else:
            gaps.say(f"{path.relative_to(root)}: is too large to stand in the page.")
    return tuple(out)
