"""Compare an answer with what was made to go wrong, and let the doctor give its reasons.

The reasons are read from the logs by the doctor, which is not told of the fault: the line, whose it
is, why it is the root, and which lines of others only follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kimi_nb import show
from kimi_nb.core import evidence
from kimi_nb.core.marks import MARK
from kimi_nb.diagnose import doctor, first_failure, matching
from kimi_nb.diagnose.doctor_report import Finding, Report
from kimi_nb.drill import answer
from kimi_nb.drill.answer import WHOLE, Answer
from kimi_nb.drill.record import CLIENT, VERDICT, Drill, Truth, is_inside, lines_of
from kimi_nb.rehearse import faults
from kimi_nb.rehearse.fault_names import FaultName

RIGHT, NEAR, WRONG, UNSAID = "right", "near", "wrong", "not said"
# Where the way out of what no log says is told and tried.
_SEE = "06_verification#Verify"
_FOLLOWED = 4  # kinds of consequences that are told


@dataclass(frozen=True)
class Part:
    """One part of an answer: what was said, what is right, and how near they are."""

    name: str
    said: str
    right: str
    judged: str


@dataclass(frozen=True, repr=False)
class Verdict(show.Shown):
    """What the doctor says of a drill, and how right the answer was.

    Attributes:
        parts: The judged parts of the answer, () where none was given.
        says: What the fault simulates, as a sentence.
        line: The file, number and text of the line that shows it.
        reasons: Why that line is the root, and what the others are.
        help: The way out; ``see`` is the notebook and heading to go to.
        in_logs: Whether the doctor found it in the logs; else it was found by asking the service.
    """

    fault: str
    says: str
    node: str
    rank: str
    parts: tuple[Part, ...]
    cause: str
    line: str
    reasons: tuple[str, ...]
    help: str
    see: str
    in_logs: bool
    mark: str = MARK

    @property
    def ok(self) -> bool:
        """Whether every part of the answer is right; an answer that was not given is not."""
        return bool(self.parts) and all(part.judged == RIGHT for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return asdict(self) | {"ok": self.ok}

    def table(self) -> show.Table:
        """Return a table: the judged answer, then what it was, why, and the way out."""
        rows: list[tuple[str, str]] = []
        for part in self.parts:
            more = "" if part.judged == RIGHT else f"; it is {part.right}"
            said = f": {part.said}" if part.said else ""
            rows.append((f"your {part.name}", f"{part.judged}{said}{more}"))
        rows += [
            ("it was", f"{self.fault}: {self.says}"),
            ("where", self.node + (f", rank {self.rank}" if self.rank != WHOLE else "")),
            ("the doctor says" if self.in_logs else "asking shows", self.cause),
            ("seen", self.line),
        ]
        rows += [("why" if not at else "", text) for at, text in enumerate(self.reasons)]
        rows += [("next", self.help), ("go to", self.see.replace("#", ", "))]
        title = f"{MARK}: " + (
            f"{sum(part.judged == RIGHT for part in self.parts)} of {len(self.parts)} right"
            if self.parts
            else "no answer was given"
        )
        return show.Table(title, ("what", "is"), tuple(rows))


def judge(drill: Drill, text: str = "") -> Verdict:
    """Return what the doctor says, and how right an answer is; "" asks for the doctor only.

    It is kept in the drill's folder. Raises ParameterError for an answer that cannot be understood.
    """
    engines = {one.name: (one.node, one.rank) for one in drill.places.engines}
    said = answer.parse(text, drill.nodes, engines) if text.strip() else None
    found = of(drill, said)
    evidence.write_json(drill.folder / VERDICT, {"said": text, **found.as_dict()})
    return found


def of(drill: Drill, said: Answer | None) -> Verdict:
    """Return the verdict on an answer; None for no answer, where only the doctor speaks."""
    truth, report = drill.truth, doctor.examine(drill.folder / "logs", drill.places)
    parts = _parts(truth, said) if said is not None else ()
    kind = faults.FAULTS[FaultName(truth.fault)]
    if truth.in_logs and report.first is not None:
        first = report.first
        cause, line = first.cause, _place(first, drill.folder)
        known = first.confidence == "known"
        way_out, see = (first.help, first.see) if known else (truth.help, _SEE)
        reasons = tuple(_reasons(first, report))
    else:
        cause, line = truth.cause, _seen(truth, drill.folder)
        way_out, see = truth.help, _SEE
        reasons = tuple(_asked(truth, drill))
    rank = ", ".join(map(str, truth.ranks[:1])) or WHOLE
    if truth.in_logs and report.first is not None and report.first.rank is not None:
        rank = str(report.first.rank)
    return Verdict(
        fault=truth.fault,
        says=kind.says,
        node=truth.node,
        rank=rank,
        parts=parts,
        cause=cause,
        line=line,
        reasons=reasons,
        help=way_out,
        see=see,
        in_logs=truth.in_logs,
    )


# The answer -------------------------------------------------------------------------------


def _parts(truth: Truth, said: Answer) -> tuple[Part, ...]:
    node = _judged(said.node is None, said.node == truth.node)
    rank = _judged(
        said.rank is None,
        said.rank in truth.ranks or (truth.whole and said.rank == WHOLE),
    )
    if rank == WRONG and truth.whole and not truth.ranks and node == RIGHT:
        rank = NEAR  # a rank of the node that is at fault as a whole
    if rank == RIGHT and said.rank != WHOLE and node == WRONG:
        rank = WRONG  # another rank of that number: each group counts from 0
    cause = _judged(not said.causes, truth.fault in said.causes)
    family = answer.family(truth.fault)
    if cause == WRONG and family in map(answer.family, said.causes):
        cause = NEAR
    right_rank = show.spans(truth.ranks) or f"{WHOLE}: the node or front door as a whole"
    return (
        Part("node", said.node or "", truth.node, node),
        Part("rank", "" if said.rank is None else str(said.rank), right_rank, rank),
        Part("cause", " or ".join(said.causes), truth.fault, cause),
    )


def _judged(unsaid: bool, right: bool) -> str:
    return UNSAID if unsaid else RIGHT if right else WRONG


# The reasons ------------------------------------------------------------------------------


def _reasons(first: Finding, report: Report) -> Iterator[str]:
    """Yield why the doctor's first failure is the root."""
    yield _whose(first)
    others = [one for one in (*report.also, *report.cascade) if _key(one) != _key(first)]
    # What has no rank on the same node is its launcher, which quotes.
    own = [one for one in others if one.node == first.node and one.rank in (first.rank, None)]
    same = [one for one in others if one.node == first.node and one.signature == first.signature]
    rest = [one for one in others if one not in own and one not in same]
    if first.time and (when := _earliest(first, rest)):
        yield when
    if own:
        told = "; ".join(dict.fromkeys(one.cause for one in own))
        yield f"the same rank, or its launcher, also says: {told}. That is the same, or its end."
    if ranks := sorted({str(one.rank) for one in same if one not in own}):
        yield f"the same strikes rank {', '.join(ranks)} there: it is a matter of the node."
    # A process that ended is no cause of its own; what else stands beside the first one is.
    apart = [one for one in rest if one in report.also and one.signature != "rank-died"]
    for one in apart[:_FOLLOWED]:
        yield f"apart from it, {one.who} says: {one.cause}."
    rest = [one for one in rest if one not in apart]
    if not rest:
        if not apart:
            yield "nothing else in the logs tells of a failure."
        return
    counts = Counter(one.cause.split(":")[0] for one in rest)
    places = len({(one.node, one.rank) for one in rest})
    who = f"{places} others say" if places > 1 else "1 other says"
    kinds = "; ".join(f"{count} x {cause}" for cause, count in counts.most_common(_FOLLOWED))
    yield (
        f"what {who} follows from it ({kinds}): that a rank lost or "
        "missed another one, or that it ended; none names a cause of its own."
    )


def _whose(first: Finding) -> str:
    """Return whose line it is, and whom it accuses."""
    path = Path(first.file)
    writer = f"{path.parent.name}/{path.stem}"
    own = path.parent.name == first.node and path.stem in (f"rank_{first.rank}", "engines")
    if first.signature == "rank-died":
        out = f"{writer} is the launcher's log: it saw the process end."
        log = path.parent / f"rank_{first.rank}.log"
        if not log.exists() or any(map(first_failure.error_line, lines_of(log))):
            return out
        return (
            f"{out} The rank's own log breaks off without an error, so that something from outside "
            "ended it."
        )
    if first.signature == "engine-killed":
        return (
            f"{writer} ends with a line of whoever started the engine and saw it end. The engine's own "
            "lines break off without an error, so that something from outside ended it."
        )
    if first.rank is None:
        return f"{writer} is the output of a step on the node itself: no engine of it had started."
    if own:
        return f"{writer} says of itself what it could not do: that is a cause, not a consequence."
    return (
        f"{writer} wrote the line, and it accuses {first.who}: who meets a failure writes, who is at "
        "fault may be silent."
    )


def _earliest(first: Finding, others: list[Finding]) -> str:
    timed = [one for one in others if one.time and one.file != first.file]
    if not timed:
        return ""
    times = matching.times([first.time, *(one.time for one in timed)])
    at = min(range(len(timed)), key=lambda i: times[i + 1])
    next_one = timed[at]
    who = f"{next_one.who} ({next_one.time})"
    if times[0] < times[at + 1]:
        return f"it is the earliest: {first.time}; the next is {who}."
    if times[0] == times[at + 1]:
        return (
            f"by the clock alone it cannot be told: {who} has the same second; by what the lines say "
            "it can."
        )
    return (
        f"the clock misleads here: {who} wrote before {first.time}, but only that it waits or has "
        "lost somebody. What a line says goes before when it was said."
    )


def _asked(truth: Truth, drill: Drill) -> Iterator[str]:
    """Yield why a failure that no log tells was found all the same."""
    line = _seen(truth, drill.folder)
    if not line.startswith(CLIENT):
        yield (
            "no log has an error: this rank is the one that goes on loading while others are ready, and "
            f"{CLIENT} has no completion of it."
        )
        return
    yield (
        "no log names it: no engine wrote an error, and /health says 200. Only those who ask for a "
        f"completion see it, which {CLIENT} shows."
    )
    good = sum("POST" in line and ": 200 in" in line for line in _client(drill.folder))
    yield (
        f"{good} completions came back with status 200, so that a status proves nothing: compare the "
        "answer of this one with those of its neighbours."
    )


def _key(one: Finding) -> tuple[Any, ...]:
    return (one.node, one.rank, one.signature)


def _place(first: Finding, folder: Path) -> str:
    file = Path(first.file)
    inside = file.relative_to(folder) if file.is_relative_to(folder) else file
    return f"{inside}:{first.line}: {first.text}"


def _seen(truth: Truth, folder: Path) -> str:
    """Return the line that shows it: of the client's log, or else what the rehearsal has seen."""
    where = f"({truth.node}, rank {truth.ranks[0]})" if truth.ranks else "front door"
    lines = [f"{CLIENT}:{at}: {line}" for at, line in enumerate(_client(folder), 1)]
    asked = [line for line in lines if where in line and "POST" in line]
    if asked:
        return asked[-1]
    file, _, line = truth.evidence.partition(": ")
    log = lines_of(folder / file) if is_inside(folder / file, folder) else []
    return f"{file}:{log.index(line) + 1}: {line}" if line in log else truth.evidence


def _client(folder: Path) -> list[str]:
    return lines_of(folder / CLIENT)
