"""A sweep on a service: each cell and repetition is a file, on the disk before the next one begins.

    result = run.measure(service, loads, folder, repetitions=3)

Rounds go over all cells, so that a slow drift meets all of them, and so that after one round every
cell has a figure. What is measured already is kept: a kill loses one measurement at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_nb.core import evidence
from kimi_nb.core.errors import BenchError, ParameterError, WriteError
from kimi_nb.prove.bench import bench_commands as commands
from kimi_nb.prove.bench import device_use as devices
from kimi_nb.prove.bench import identity, metrics
from kimi_nb.prove.bench import load_client as client
from kimi_nb.prove.bench import load_programs as tools
from kimi_nb.prove.bench import request_faults as faults
from kimi_nb.prove.bench.results import BenchResult
from kimi_nb.prove.bench.workload import Load, Loads
from kimi_nb.service import probe as service

if TYPE_CHECKING:
    from kimi_nb.service.handle import Service

_TELL = 10.0  # seconds between two lines about one measurement
_WIDE = 20  # signs of the bar
Say = Callable[[str], None]


def measure(
    served: Service,
    loads: Loads,
    folder: Path,
    *,
    repetitions: int = 3,
    tool: str = "auto",
    resume: bool = True,
    say: Say = print,
) -> BenchResult:
    """Measure every cell ``repetitions`` times and return what is in the files then.

    With ``resume`` a file with the same identity and without a failed request is kept, else all
    is measured anew. Raises BenchError where every request of a measurement failed or the tool
    gave no result: files that are there stay.
    """
    check_repetitions(repetitions)
    if not served.up:
        say(f"Nothing serves (action {served.run.action}): nothing is measured.")
        return BenchResult(folder, ())
    mark = served.mark
    chosen = tools.choose(tool, served.plan, mark)
    say(f"{chosen.name} {chosen.version} sends the load: {chosen.why}.")
    paths, job = [], _Job(served, chosen, mark, folder, len(loads) * repetitions, say)
    try:
        for repetition in range(1, repetitions + 1):
            for load in loads.cells:
                paths.append(job.cell(load.seeded(repetition), repetition, resume))
    except KeyboardInterrupt:
        say(f"Interrupted. {job.left()}")
        raise
    say(f"{job.measured} measured, {job.kept} kept, in {folder}")
    return BenchResult(folder, tuple(paths))


def check_repetitions(repetitions: int) -> None:
    """Raises ParameterError for what is no number of repetitions."""
    if type(repetitions) is not int or not 1 <= repetitions <= 100:
        raise ParameterError(
            f"repetitions: a whole number from 1 to 100 is wanted, found {repetitions!r}."
        )


@dataclass
class _Job:
    served: Service
    tool: tools.Tool
    mark: str
    folder: Path
    total: int
    say: Say
    measured: int = 0
    kept: int = 0
    spent: float = 0.0
    at: commands.Target = field(init=False)
    version: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.at = commands.target(self.served.serving, self.served.url)

    def cell(self, load: Load, repetition: int, resume: bool) -> Path:
        about = identity.of(
            self.served.plan,
            load,
            repetition,
            tool=self.tool.name,
            tool_version=self.tool.version,
            mark=self.mark,
            attached=self.served.elsewhere,
        )
        path = self.folder / file_name(about)
        name = f"{load.title}, repetition {repetition}"
        if resume and there(path, about):
            self.kept += 1
            self._tell(f"{name}: kept")
            return path
        if not self.measured:
            self._probe()
        begun = time.monotonic()
        with _bar(load, name) as bar:
            result = self._send(load, about, Progress(self.say, bar, load.prompts))
        if not result["completed"]:
            errors = result.get("errors") or []
            raise BenchError(
                f"{name}: all {result['failed']} requests failed at {self.at.url}.\n"
                f"{faults.told(faults.counts(errors), next(filter(None, errors), ''))}\n"
                f"{self.left()}"
            )
        write(path, result)
        self.measured += 1
        self.spent += time.monotonic() - begun
        wrong = result["kimi_nb"]["errors"]
        self._tell(
            f"{name}: {result['output_throughput']:.1f} tokens/s, TTFT "
            f"{result['median_ttft_ms']:.0f} ms, TPOT {result['median_tpot_ms']:.1f} ms"
            + (f"; {result['failed']} failed: {wrong}" if result["failed"] else "")
        )
        return path

    def _send(self, load: Load, about: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        served = self.served
        urls = [one.url for one in served.endpoints] or [served.url]
        watch = devices.watch(served.serving, self.mark, served.elsewhere)
        with metrics.Sampler(urls, watch) as seen:
            try:
                raw, argv = self.tool.run(
                    load,
                    self.at,
                    served.key,
                    progress,
                    {
                        name: str(about[name])
                        for name in ("hardware", "layout", "flags", "repetition")
                    },
                )
            except BenchError as error:
                raise BenchError(f"{error}\n{self.left()}") from None
        return {
            **raw,
            "kimi_nb": {
                "identity": dict(about),
                "time": evidence.now(),
                "engine_says": self.version,
                "command": argv,
                "errors": faults.counts(raw.get("errors") or ()),
                "metrics": seen.result(),
            },
        }

    def _probe(self) -> None:
        """One small request first: a wrong address is told in a second, not after a sweep."""
        error = client.probe(self.at.url, self.at.model, self.served.key)
        if error:
            raise BenchError(
                f"The service at {self.at.url} does not answer as model "
                f"{self.at.model}.\n{faults.told(faults.counts([error]), error)}\n"
                f"{self.left()}"
            )
        first = next((one.url for one in self.served.endpoints), self.served.url)
        self.version = service.version(first, 5.0)

    def left(self) -> str:
        """What an end before the end leaves behind, and how to go on."""
        done = self.measured + self.kept
        if not done:
            return "Nothing was measured."
        return (
            f"{done} of {self.total} measurements are there and stay in {self.folder}; the "
            "same call with resume goes on after them."
        )

    def _tell(self, text: str) -> None:
        done = self.measured + self.kept
        full = _WIDE * done // self.total
        rest = self.spent / self.measured * (self.total - done) if self.measured else 0
        self.say(
            f"[{'#' * full}{'.' * (_WIDE - full)}] {done}/{self.total} {text}"
            + (f"; some {rest:.0f} s left" if rest >= 1 else "")
        )


class Progress:
    """Told of every request: a bar in a terminal, and a line every ten seconds everywhere."""

    def __init__(self, say: Say, bar: Any, total: int) -> None:
        self._say, self._bar, self._total = say, bar, total
        self._begun = self._last = time.monotonic()

    def __call__(self, done: int, failed: int) -> None:
        self._bar.update(done - self._bar.n)
        now = time.monotonic()
        if now - self._last >= _TELL and done < self._total:
            self._last = now
            self._say(
                f"  {done}/{self._total} requests after {now - self._begun:.0f} s"
                + (f", {failed} failed" if failed else "")
            )


@contextlib.contextmanager
def _bar(load: Load, name: str) -> Iterator[Any]:
    from tqdm import tqdm

    with tqdm(
        total=load.prompts, desc=name, unit="request", leave=False, file=sys.stderr, disable=None
    ) as bar:  # none where nobody watches
        yield bar


def file_name(about: Mapping[str, Any]) -> str:
    """c8-i1024-o1024-r2-1f2e3d4c5b6a.json: what a person looks for, and the whole identity."""
    return (
        f"c{about['concurrency']}-i{about['input_len']}-o{about['output_len']}-"
        f"r{about['repetition']}-{identity.key(about)}.json"
    )


def there(path: Path, about: Mapping[str, Any]) -> bool:
    """Whether a file holds this measurement, whole."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return (
            found["kimi_nb"]["identity"] == json.loads(json.dumps(about))
            and found["completed"] > 0
            and found["failed"] == 0
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write(path: Path, result: Mapping[str, Any]) -> None:
    """The file appears whole or not at all. Raises WriteError."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("w", encoding="utf-8") as file:
            json.dump(result, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise WriteError(f"{path}: cannot be written ({error.strerror}).") from None
