"""A sweep from its design to its winner: start, measure and stop, one setting after the other.

Usage::

    found = sweep.run(session, design, repetitions=3, slo_ttft_ms=1000)
    found.best(), found.pareto(), found.write()

The service is started once for each setting of its flags, and not at all if all results of that
setting exist. Existing results are kept, so a sweep that was killed continues where it ended. If a
setting does not start or does not serve, that is reported and the sweep goes on with the others.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kimi_nb import show
from kimi_nb.core import evidence
from kimi_nb.core.errors import BenchError, KimiError, ParameterError, WriteError
from kimi_nb.core.marks import MARK
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import identity, load_programs
from kimi_nb.prove.bench import measurements as bench
from kimi_nb.prove.bench import results as bench_results
from kimi_nb.prove.tune import advice, tune_pictures, winner
from kimi_nb.prove.tune.design import Design, Group
from kimi_nb.service.handle import Service
from kimi_nb.service.session import Session
from kimi_nb.show.picture import Picture

if TYPE_CHECKING:
    import pandas as pd

Say = Callable[[str], None]


class Serving(Session, Protocol):
    """A session that can start services, as its action says."""

    def serve(self, plan: Plan, *, url: str = "") -> Service:
        """Start the plan's service, or attach to the one at ``url``."""


@dataclass(frozen=True)
class Best:
    """The setting and load that won.

    Attributes:
        group: The setting.
        cell: The row of the load, with medians over the repetitions.
        slo: The limits that it had to keep, in words.
        mark: REHEARSAL or "".
    """

    group: Group
    cell: Mapping[str, Any]
    slo: str
    mark: str

    @property
    def title(self) -> str:
        """One line for people and for the winner's file."""
        prefix = f"{self.mark}: " if self.mark else ""
        return (
            f"{prefix}best of a sweep{self.slo}: {self.group.title}, concurrency "
            f"{int(self.cell['concurrency'])}, "
            f"{self.cell['output_throughput']:.1f} output tokens/s"
        )


@dataclass(frozen=True, repr=False)
class Sweep(show.Shown):
    """The results of a sweep; `run` returns one.

    Attributes:
        failed: Settings that gave no result, each with the reason.
        slo_ttft_ms: The limit on the p99 of TTFT; 0 for none.
        slo_tpot_ms: The limit on the p99 of TPOT; 0 for none.
        seconds: Time spent on starting and stopping (service), measuring (load), and in total
            (all).
    """

    design: Design
    result: bench_results.BenchResult
    failed: Mapping[str, str]
    slo_ttft_ms: float
    slo_tpot_ms: float
    session: Serving
    seconds: Mapping[str, float] = field(default_factory=dict)

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """One row for each setting and load, with medians over the repetitions.

        The column ``setting`` is the setting's title; ``within`` is whether the limits were kept.
        """
        if not self.result.files:
            return self.result.frame
        by_hash = {group.flags: group.title for group in self.design.groups}
        rows = self.result.summary()
        return rows.assign(
            setting=rows["flags"].map(by_hash),
            within=[self._kept(row) for row in rows.to_dict("records")],
        )

    @property
    def slo(self) -> str:
        """The limits in words; "" if there are none."""
        bounds = [
            f"{name} p99 {value:g} ms"
            for name, value in (("TTFT", self.slo_ttft_ms), ("TPOT", self.slo_tpot_ms))
            if value
        ]
        return f" within {' and '.join(bounds)}" if bounds else ""

    def _kept(self, row: Mapping[str, Any]) -> bool:
        return not row["failed"] and all(
            not bound or row[name] <= bound
            for name, bound in (
                ("p99_ttft_ms", self.slo_ttft_ms),
                ("p99_tpot_ms", self.slo_tpot_ms),
            )
        )

    def best(self) -> Best | None:
        """Return the row with the most output tokens/s that kept the limits; None if there is none.

        Rows with failed requests do not count.
        """
        if not self.result.files or not self.cells["within"].any():
            return None
        within = self.cells[self.cells["within"]]
        row = within.loc[within["output_throughput"].idxmax()].to_dict()
        group = next(one for one in self.design.groups if one.flags == row["flags"])
        return Best(group, row, self.slo, self.result.mark)

    def table(self) -> show.Table:
        """Return a table of every setting and load, best first, then the failed and the refused."""
        mark = f"{self.result.mark}: " if self.result.mark else ""
        rows: list[tuple[Any, ...]] = []
        if self.result.files:
            ordered = self.cells.sort_values(["within", "output_throughput"], ascending=False)
            best = self.best()
            for row in ordered.to_dict("records"):
                won = best is not None and all(
                    row[name] == best.cell[name]
                    for name in ("flags", "concurrency", "input_len", "output_len", "prompts")
                )
                rows.append(
                    (
                        row["setting"],
                        int(row["concurrency"]),
                        f"{row['input_len']}/{row['output_len']}",
                        f"{row['output_throughput']:.1f}",
                        f"{row['p99_ttft_ms']:.0f}",
                        f"{row['p99_tpot_ms']:.1f}",
                        int(row["failed"]),
                        "best" if won else "yes" if row["within"] else "no",
                    )
                )
        rows += [
            (name, "", "", "", "", "", "", f"failed: {why}") for name, why in self.failed.items()
        ]
        rows += [
            (", ".join(one.pairs), "", "", "", "", "", "", f"refused: {one.reason}")
            for one in self.design.refused
        ]
        return show.Table(
            f"{mark}{self.design.plan.name}, {len(self.design.groups)} settings{self.slo}",
            (
                "serve flags",
                "concurrency",
                "tokens",
                "tokens/s",
                "TTFT p99 ms",
                "TPOT p99 ms",
                "failed",
                "within",
            ),
            tuple(rows),
        )

    def pareto(self) -> Picture | show.Text:
        """Draw throughput per device over tokens/s per user, or say that nothing was measured."""
        if not self.result.files:
            return show.Text("Pareto front", "nothing was measured")
        return tune_pictures.front(self.result, self.cells)

    def advice(self) -> advice.Advices:
        """Return advice from the measurements of the best setting.

        If nothing kept the limits, it is from those of the first setting.
        """
        best = self.best()
        group = best.group if best else self.design.groups[0]
        return advice.of(group.plan, self.result)

    def write(self) -> show.Text:
        """Write the winner as a model file of its own, and return how to use it.

        Nothing is written if there is no winner.

        Raises:
            PlanError: If the file does not give the plan that won.
            WriteError: If the file cannot be written.
        """
        best = self.best()
        if best is None:
            return show.Text(
                "No winner, and no file",
                "nothing was measured"
                if not self.result.files
                else f"nothing ran{self.slo} without a failed request",
            )
        path = winner.write(
            best.group.plan,
            self.result.folder / "tuned.yaml",
            title=best.title,
            figures="rehearsal" if best.mark else "measured",
        )
        plan = best.group.plan
        where = [
            "--hw",
            self.session.hw,
            *(["--site", self.session.site] if self.session.site else []),
        ]
        words = [
            "--model",
            str(path),
            *where,
            "--layout",
            plan.layout,
            "--variant",
            plan.variant,
            "--scenario",
            winner.SCENARIO,
            *(word for pair in plan.request.errata for word in ("--erratum", pair)),
        ]
        errata = ",".join(plan.request.errata)
        changes = [word for pair in best.group.pairs for word in ("--set", pair)]
        return show.Text(
            best.title,
            "\n".join(
                [
                    f"# The file: {path}",
                    "# In a terminal:",
                    shlex.join(["kimi-nb", "plan", *words]),
                    "# In notebook 03, 04 or 05:",
                    f"model = {str(path)!r}",
                    f"scenario = {winner.SCENARIO!r}",
                    f"variant = {plan.variant!r}",
                    *([f"errata = {errata!r}"] if errata else []),
                    "# Without the file, beside what the plan was made from:",
                    shlex.join(changes) or "# nothing: the plan as it was has won",
                ]
            ),
        )

    def clean_up(self) -> show.Table:
        """Return a table of what the sweep started and stopped."""
        return show.Table(
            "Nothing of the sweep runs",
            ("what", "is"),
            (
                ("started", "each setting that was measured, and stopped after its loads"),
                (
                    "time",
                    ", ".join(
                        f"{name} {show.seconds(value)}" for name, value in self.seconds.items()
                    )
                    or "none",
                ),
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        best = self.best()
        return {
            **self.result.as_dict(),
            "plan": self.design.plan.name,
            "slo": self.slo.strip(),
            "failed": dict(self.failed),
            "best": best.title if best else "",
            "refused": {", ".join(one.pairs): one.reason for one in self.design.refused},
            "seconds": dict(self.seconds),
        }


def run(
    session: Serving,
    design: Design,
    *,
    repetitions: int = 3,
    slo_ttft_ms: float = 0,
    slo_tpot_ms: float = 0,
    url: str = "",
    tool: str = "auto",
    resume: bool = True,
    say: Say = show.say,
) -> Sweep:
    """Measure every setting of a design with the run's action, into the run's folder.

    ``url`` names a service that is already running; then only the load can be swept. What fails
    once the sweep has begun is in the result's ``failed``.

    Raises:
        ParameterError: If a value is not valid, before anything starts.
        WriteError: If a result cannot be written.
    """
    for name, value in (("slo_ttft_ms", slo_ttft_ms), ("slo_tpot_ms", slo_tpot_ms)):
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ParameterError(
                f"{name}: milliseconds of 0 (no bound) or more are wanted, found {value!r}."
            )
    if url and design.axes.serve:
        raise ParameterError(
            f"sweep: a service that is there keeps its flags; at url {url} only "
            f"the load can be swept, not {', '.join(design.axes.serve)}."
        )
    folder = session.folder / design.plan.name / "sweep"
    job = _Job(session, folder, repetitions, url, tool, resume, say)
    begun = time.monotonic()
    if session.action == "plan" and not url:
        say("Action plan starts nothing: the settings above are planned and checked only.")
    else:
        for number, group in enumerate(design.groups, 1):
            say(f"Setting {number} of {len(design.groups)}: {group.title}")
            job.group(group)
    spent = {**job.seconds, "all": time.monotonic() - begun}
    found = Sweep(
        design,
        bench_results.BenchResult(folder, tuple(job.files)),
        job.failed,
        slo_ttft_ms,
        slo_tpot_ms,
        session,
        spent,
    )
    best = found.best()
    session.record(
        "sweep",
        plan=design.plan.name,
        mark=found.result.mark,
        axes={**design.axes.serve, **design.axes.load},
        settings=len(design.groups),
        refused=len(design.refused),
        failed=dict(job.failed),
        measured=len(job.files),
        best=best.title if best else "",
        results=folder,
        headings=found.table().headings,
        rows=found.table().rows,
        seconds={name: round(value, 2) for name, value in spent.items()},
    )
    return found


@dataclass
class _Job:
    session: Serving
    folder: Path
    repetitions: int
    url: str
    tool: str
    resume: bool
    say: Say
    files: list[Path] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"service": 0.0, "load": 0.0})

    def group(self, group: Group) -> None:
        kept = self._kept(group)
        if kept:
            mark = bench_results.BenchResult(self.folder, tuple(kept)).mark
            title = f"{mark}: " if mark else ""
            self.say(f"  {title}all {len(kept)} results are there already: nothing is started")
            self.files += kept
            return
        begun = time.monotonic()
        try:
            served = self.session.serve(group.plan, url=self.url)
        except (ParameterError, WriteError):
            raise  # the next setting would fail in the same way
        except KimiError as error:
            self.seconds["service"] += time.monotonic() - begun
            self._fail(group, error)
            return
        self.seconds["service"] += time.monotonic() - begun
        begun = time.monotonic()
        try:
            found = bench.measure(
                served,
                group.loads,
                self.folder,
                tool=self.tool,
                repetitions=self.repetitions,
                resume=self.resume,
                say=self.say,
            )
            self.files += found.files
        except BenchError as error:
            wanted = self._wanted(group, served.elsewhere, served.mark)
            self.files += [path for path, about in wanted if bench.there(path, about)]
            self._fail(group, error)
        finally:
            self.seconds["load"] += time.monotonic() - begun
            begun = time.monotonic()
            served.stop()
            self.seconds["service"] += time.monotonic() - begun

    def _fail(self, group: Group, error: KimiError) -> None:
        # The first line says what failed. The whole message is in the evidence.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        self.failed[group.title] = lines[0] if lines else type(error).__name__
        self.session.record("sweep-failed", setting=group.title, error=str(error))
        self.say(f"  failed: {self.failed[group.title]}")

    def _kept(self, group: Group) -> list[Path]:
        """Return the results of a group if all of them exist, else none.

        A service at a given URL may have changed, so it is measured again.
        """
        if not self.resume or self.url:
            return []
        wanted = list(self._wanted(group, "", self._last_mark(group)))
        return (
            [path for path, _ in wanted]
            if all(bench.there(path, about) for path, about in wanted)
            else []
        )

    def _last_mark(self, group: Group) -> str:
        """Return REHEARSAL where stand-ins answer: in a rehearsal, and as last deployed by this run.

        Before anything was deployed, nothing of a rehearsal counts for a deployment.
        """
        if self.session.action == "rehearse":
            return MARK
        marks = (
            one.get("mark")
            for one in reversed(evidence.read(self.session.folder))
            if one.get("stage") == "deploy" and one.get("plan") == group.plan.name
        )
        return MARK if next(marks, "") == MARK else ""

    def _wanted(
        self, group: Group, attached: str, mark: str
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield (file, identity) of every result of a group."""
        chosen = load_programs.choose(self.tool, group.plan, mark)
        for repetition in range(1, self.repetitions + 1):
            for load in group.loads.cells:
                about = identity.of(
                    group.plan,
                    load.seeded(repetition),
                    repetition,
                    tool=chosen.name,
                    tool_version=chosen.version,
                    mark=mark,
                    attached=attached,
                )
                yield self.folder / bench.file_name(about), about
