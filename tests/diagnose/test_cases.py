"""Failures and harmless lines after public issues: which line, rank and part the doctor names."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kimi_nb.core import data_files
from kimi_nb.diagnose import components, doctor, signatures

CASES = Path(__file__).parent / "cases"
DRAWS = {
    name: data_files.read_yaml(CASES / f"{name}.yaml")
    for name in (
        "failures",
        "second_draw",
        "third_draw",
        "fourth_draw",
        "fifth_draw",
        "sixth_draw",
        "seventh_draw",
        "eighth_draw",
        "ninth_draw",
        "tenth_draw",
        "eleventh_draw",
        "twelfth_draw",
        "rank_forms",
        "thirteenth_draw",
        "fourteenth_draw",
        "devices_by_number",
        "fifteenth_draw",
        "sixteenth_draw",
        "seventeenth_draw",
        "eighteenth_draw",
        "nineteenth_draw",
        "whole_logs",
        "many_ranks",
    )
}
FAILURES = DRAWS["failures"]
HARMLESS = data_files.read_yaml(CASES / "healthy.yaml")
BOUNDS = {"line": 0.9, "rank": 0.9, "component": 0.8, "cause": 0.9}
BEFORE = (
    "(APIServer pid=77) INFO 11-22 05:49:01 [utils.py:299] version 0.22.1",
    "(EngineCore_DP0 pid=233) INFO 11-22 05:49:08 [core.py:109] Initializing a V1 LLM engine",
)
AFTER = (
    "(EngineCore_DP0 pid=233) INFO 11-22 05:50:01 [core.py:293] init engine took 21.10 seconds",
    "(APIServer pid=77) INFO:     Application startup complete.",
    '(APIServer pid=77) INFO:     192.0.2.7:50120 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "(APIServer pid=77) INFO 11-22 05:51:30 [loggers.py:127] Engine 000: Avg prompt throughput: "
    "41.2 tokens/s, Avg generation throughput: 18.0 tokens/s, Running: 1 reqs",
)


def half_of(row: dict[str, Any]) -> str:
    return "held" if zlib.crc32(row["source"].encode()) % 2 else "tune"


def half(draw: str, name: str) -> dict[str, Any]:
    return {case: row for case, row in DRAWS[draw].items() if half_of(row) == name}


def right(row: dict[str, Any], folder: Path) -> Iterator[tuple[str, bool]]:
    """What of a case is named rightly: (line, rank, component, code; whether)."""
    logs = row.get("logs") or {"serve.log": row["log"]}
    for name, text in logs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    first = doctor.examine(folder).first
    yield "line", first is not None and any(part in first.text for part in row["line"])
    if "rank" in row:
        said = {str(first.rank), first.label, f"ip={first.node}"} if first else set()
        ranks = row["rank"] if isinstance(row["rank"], list) else [row["rank"]]
        yield "rank", bool(said & set(map(str, ranks)))
    if "component" in row:
        yield "component", first is not None and first.component in row["component"]
    if "cause" in row:
        known = first is not None and first.confidence == "known"
        yield "cause", known or (first is not None and bool(re.search(row["cause"], first.cause)))
    if "code" in row:
        yield "code", first is not None and first.code == row["code"]


def measured(rows: dict[str, Any], folder: Path) -> dict[str, float]:
    counts: dict[str, list[bool]] = {}
    for case, row in rows.items():
        for what, good in right(row, folder / case):
            counts.setdefault(what, []).append(good)
    return {what: sum(good) / len(good) for what, good in counts.items()}


def test_the_halves_are_nobodys_choice():
    for case, row in FAILURES.items():
        assert row["half"] == half_of(row), case
    for draw in ("failures", "second_draw"):
        assert min(len(half(draw, "held")), len(half(draw, "tune"))) >= 29, draw


def test_no_source_is_drawn_twice_or_known_to_a_signature():
    drawn = [row["source"] for rows in DRAWS.values() for row in rows.values()]
    assert len(drawn) >= 200 and len(set(drawn)) == len(drawn)
    cited = {ref for one in signatures.entries() for ref in one.refs}
    later = [row["source"] for draw in list(DRAWS)[1:] for row in DRAWS[draw].values()]
    assert [one for one in later if one.partition("/")[2] in cited] == []


@pytest.mark.parametrize("name", ["tune", "held"])
@pytest.mark.parametrize("draw", DRAWS)
def test_failures_that_nobody_has_listed(draw, name, tmp_path):
    found = measured(half(draw, name), tmp_path)
    low = {what: share for what, share in found.items() if share < BOUNDS.get(what, 0)}
    assert low == {} and found.keys() >= {"line", "rank", "component"}, found


@pytest.mark.parametrize(
    "line",
    [
        "/opt/serve.sh: line 7: 233 Killed vllm serve moonshotai/Kimi-K2.5 --port 8001",
        "(EngineCore_DP3 pid=236) ERROR 11-22 05:49:12 [core.py:1136] ValueError: no such backend",
    ],
)
def test_an_engine_that_ended_is_told_though_another_one_serves(line, tmp_path):
    """In one log the second of two engines comes up."""
    path = tmp_path / "serve.log"
    path.write_text("\n".join((*BEFORE, line, *AFTER)) + "\n")
    first = doctor.examine(path).first
    assert first is not None and first.text == line


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_line_is_no_alarm(name, tmp_path):
    path = tmp_path / "serve.log"
    path.write_text("\n".join((*BEFORE, *HARMLESS[name], *AFTER)) + "\n")
    found = doctor.examine(path)
    assert found.ok and not (found.also or found.cascade or found.unknown), found


def test_an_answer_that_is_given_as_text_is_no_alarm_at_the_end_of_a_log(tmp_path):
    path = tmp_path / "serve.log"
    path.write_text("\n".join((*BEFORE, *AFTER, *HARMLESS["tool-call-that-is-no-json"])) + "\n")
    assert doctor.examine(path).ok


def test_there_are_enough_harmless_lines():
    assert len(HARMLESS) >= 60


def test_the_parts_of_cases_are_those_that_are_known():
    known = {one.id for one in components.entries()}
    rows = [row for draw in DRAWS.values() for row in draw.values()]
    assert not {part for row in rows for part in row.get("component", ())} - known


def stamped(digits: int):
    """Times that go on, as CI and containers put them before each line."""
    return lambda at: f"2026-05-22T10:{at // 60 % 60:02}:{at % 60:02}.{at * 1237:0{digits}d}Z "


# What programs and people put before each line of a log.
BEFORE_LINES = {
    "compose": lambda at: "vllm-1  | ",
    "kubectl --prefix": lambda at: "[pod/kimi-decode-0/vllm] ",
    "journal": lambda at: f"May 22 10:00:{at % 60:02} gpu-node7 vllm[1234]: ",
    "CI": stamped(7),
    "docker logs --timestamps": stamped(9),
    "CRI": lambda at: f"{stamped(9)(at).rstrip()} stderr F ",
    "code": lambda at: "    ",
    "quotation": lambda at: "> ",
    "cat -n": lambda at: f"{at + 1:6d}\t",
}
# Left out are those of which the times tell, or that have something before each line already.
TIMED = ("a-crash-that-watchdogs-of-others-follow", "frames-that-a-notebook-leaves-out")
WRAPPED = {
    case: row["log"].splitlines()
    for case, row in DRAWS["many_ranks"].items()
    if "log" in row and len(row["log"].splitlines()) > 4 and "NCCL WARN" not in row["log"]
    if case not in TIMED and not case.startswith("lines-behind-")
}


@pytest.mark.parametrize("how", BEFORE_LINES)
def test_what_stands_before_each_line_changes_nothing(how, tmp_path):
    path, other = tmp_path / "serve.log", []
    for case, lines in WRAPPED.items():
        found = []
        for begin in (lambda at: "", BEFORE_LINES[how]):
            path.write_text("".join(f"{begin(at)}{line}\n" for at, line in enumerate(lines)))
            first = doctor.examine(path).first
            found.append(first and (first.line, first.rank, first.component))
        if found[0] != found[1]:
            other.append((case, *found))
    assert len(WRAPPED) > 20 and other == []
