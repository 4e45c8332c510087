"""Run a sweep: each load and repetition is saved to its own file before the next one begins.

Usage::

    result = measurements.measure(service, loads, folder, repetitions=3)

Each round goes over all loads, so that a slow drift affects all of them alike and every load has a
result after the first round. Results that exist are kept: if the process is killed, at most one
measurement is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_nb import show
from kimi_nb.core import evidence, known_secrets, scratch
from kimi_nb.core.errors import BenchError, ParameterError, WriteError, choice
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import (
    bench_commands,
    definitions,
    device_use,
    identity,
    load_client,
    load_programs,
    metrics,
    request_faults,
    workload,
)
from kimi_nb.prove.bench.results import BenchResult
from kimi_nb.prove.bench.workload import Load, Loads
from kimi_nb.service import probe, reply_mark

if TYPE_CHECKING:
    from kimi_nb.service.handle import Service

_TELL = 10.0  # seconds between two progress lines of one measurement
_WIDE = 20  # characters of the bar
Say = Callable[[str], None]


def measure(
    served: Service,
    loads: Loads,
    folder: Path,
    *,
    repetitions: int = 3,
    tool: str = "auto",
    resume: bool = True,
    say: Say = show.say,
) -> BenchResult:
    """Measure every load ``repetitions`` times and return what the files then hold.

    With ``resume``, files with the same identity and without failed requests are kept; otherwise
    everything is measured again.

    Raises:
        BenchError: If all requests of a measurement failed or the tool gave no result. Existing
            files stay.
        ParameterError: If the repetitions or the tool are not valid.
        WriteError: If a result cannot be written.
    """
    check_repetitions(repetitions)
    if not served.up:
        say(f"Nothing serves (action {served.run.action}): nothing is measured.")
        return BenchResult(folder, ())
    mark = served.mark
    chosen = load_programs.choose(tool, served.plan, mark)
    say(f"{chosen.name} {chosen.version} sends the load: {chosen.why}.")
    say(definitions.said(chosen.name))
    paths, job = [], _Job(served, chosen, mark, folder, len(loads) * repetitions, say)
    try:
        for repetition in range(1, repetitions + 1):
            for load in loads.cells:
                paths.append(job.cell(load.seeded(repetition), repetition, resume))
    except KeyboardInterrupt:
        say(f"Interrupted. {job.left()}")
        raise
    say(f"{reply_mark.title(job.mark)}{job.measured} measured, {job.kept} kept, in {folder}")
    return BenchResult(folder, tuple(paths))


def loads(
    plan: Plan,
    concurrency: str,
    *,
    input_len: int = 1024,
    output_len: int = 1024,
    prompts: int = 0,
    dataset: str = "",
    repetitions: int = 3,
    tool: str = "auto",
) -> Loads:
    """Return a load for each concurrency, or the loads of a document's benchmark by its name.

    Prompts are random, or those of a ``dataset`` on the Hugging Face hub, such as
    lmarena-ai/VisionArena-Chat, which has pictures. Without ``prompts``, there are four for each
    request in flight.

    Raises:
        ParameterError: If a value is not valid.
    """
    load_programs.check_name(tool)
    check_repetitions(repetitions)
    if isinstance(concurrency, str) and concurrency[:1].isalpha():
        client = bench_commands.documents(plan).get(concurrency)
        if client is None:
            raise ParameterError(choice("benchmark", concurrency, bench_commands.documents(plan)))
        found = workload.of_command(client.argv, bench_commands.engine(plan), client.sweep)
    else:
        found = workload.sweep(
            concurrency,
            input_len=input_len,
            output_len=output_len,
            prompts=prompts,
            dataset="hf" if dataset else "random",
            path=dataset,
        )
    return replace(found, repetitions=repetitions, tool=tool)


def check_repetitions(repetitions: int) -> None:
    """Check a number of repetitions.

    Raises:
        ParameterError: If it is not a whole number from 1 to 100.
    """
    if type(repetitions) is not int or not 1 <= repetitions <= 100:
        raise ParameterError(
            f"repetitions: a whole number from 1 to 100 is wanted, found {repetitions!r}."
        )


@dataclass
class _Job:
    served: Service
    tool: load_programs.Tool
    mark: str
    folder: Path
    total: int
    say: Say
    measured: int = 0
    kept: int = 0
    spent: float = 0.0
    at: bench_commands.Target = field(init=False)
    version: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.at = bench_commands.target(self.served.serving, self.served.url)

    def cell(self, load: Load, repetition: int, resume: bool) -> Path:
        """Measure one load, unless there is a result to keep, and return its file."""
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
            say = reply_mark.said(self.say, self.mark)
            result = self._send(load, about, Progress(say, bar, load.prompts))
        if not result["completed"]:
            errors = result.get("errors") or []
            raise BenchError(
                f"{name}: all {result['failed']} requests failed at {self.at.url}.\n"
                f"{request_faults.told(request_faults.counts(errors), next(filter(None, errors), ''))}\n"
                f"{self.left()}"
            )
        path = self.folder / file_name(result["kimi_nb"]["identity"])
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
        watch = device_use.watch(served.serving, self.mark, served.elsewhere)
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
        heard = raw.pop("mark", "") or reply_mark.of_texts(raw.get("generated_texts") or ())
        self.mark = self.mark or heard
        return {
            **raw,
            "kimi_nb": {
                # One of several engines may be a stand-in, which only its answers tell.
                "identity": {**about, "mark": self.mark},
                "settings": identity.settings(served.plan),
                "time": evidence.now(),
                "engine_says": self.version,
                "command": argv,
                "definitions": definitions.of(self.tool.name),
                "errors": request_faults.counts(raw.get("errors") or ()),
                "metrics": seen.result(),
            },
        }

    def _probe(self) -> None:
        """Send one small request first, so that a wrong address is reported at once."""
        error = load_client.probe(self.at.url, self.at.model, self.served.key)
        if error:
            raise BenchError(
                f"The service at {self.at.url} does not answer as model "
                f"{self.at.model}.\n{request_faults.told(request_faults.counts([error]), error)}\n"
                f"{self.left()}"
            )
        first = next((one.url for one in self.served.endpoints), self.served.url)
        self.version = probe.version(first, 5.0)

    def left(self) -> str:
        """Return what an interrupted sweep leaves behind, and how to continue."""
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
            f"{reply_mark.title(self.mark)}[{'#' * full}{'.' * (_WIDE - full)}] {done}/{self.total} {text}"
            + (f"; some {rest:.0f} s left" if rest >= 1 else "")
        )


class Progress:
    """Progress of the requests: a bar in a terminal, and a line every ten seconds anywhere."""

    def __init__(self, say: Say, bar: Any, total: int) -> None:
        self._say, self._bar, self._total = say, bar, total
        self._begun = self._last = time.monotonic()

    def __call__(self, done: int, failed: int) -> None:
        """Note how many requests are done and how many of them failed."""
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
    from tqdm import tqdm  # start-up: only for a run

    with tqdm(
        total=load.prompts, desc=name, unit="request", leave=False, file=sys.stderr, disable=None
    ) as bar:  # disable=None: no bar unless stderr is a terminal
        yield bar


def file_name(about: Mapping[str, Any]) -> str:
    """Return a file name that shows the load and repetition, and stands for the whole identity.

    >>> about = {"concurrency": 8, "input_len": 1024, "output_len": 1024, "repetition": 2}
    >>> file_name(about)
    'c8-i1024-o1024-r2-4b171e8a8510.json'
    """
    return (
        f"c{about['concurrency']}-i{about['input_len']}-o{about['output_len']}-"
        f"r{about['repetition']}-{identity.key(about)}.json"
    )


def there(path: Path, about: Mapping[str, Any]) -> bool:
    """Tell whether a file holds this measurement, complete and without failed requests."""
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
    """Write a result to a file without secrets, completely or not at all.

    Raises:
        WriteError: If the file cannot be written.
    """
    new = scratch.beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The errors and texts are those of a service, which was sent its key.
        scratch.write(new, json.dumps(known_secrets.value(result)), sync=True)
        os.replace(new, path)
    except OSError as error:
        scratch.remove(new)
        raise WriteError(f"{path}: cannot be written ({error.strerror}).") from None
