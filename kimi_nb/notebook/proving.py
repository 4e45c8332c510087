"""What proves and tunes a service: the later notebooks' part of a run.

    run.verify(service); run.accuracy(service); run.bench(service, run.load(plan, "1,4,8"))
    run.sweep(run.design(plan, "max-num-seqs: [8, 16]"))

Each stage is a package of its own, imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kimi_nb.core import evidence
from kimi_nb.core.errors import BenchError, KimiError, ParameterError, choice
from kimi_nb.notebook import inputs as given
from kimi_nb.params import schema
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.service.handle import Service
from kimi_nb.show import values as show

if TYPE_CHECKING:
    from kimi_nb.notebook.run import Run
    from kimi_nb.prove.accuracy.scores import Score
    from kimi_nb.prove.bench.published_tables import Published
    from kimi_nb.prove.bench.results import BenchResult
    from kimi_nb.prove.bench.workload import Loads
    from kimi_nb.prove.tune.advice import Advices
    from kimi_nb.prove.tune.design import Design
    from kimi_nb.prove.tune.limits import Limits
    from kimi_nb.prove.tune.sweep import Sweep
    from kimi_nb.prove.verify import Contract
    from kimi_nb.prove.verify.curl import Curl
    from kimi_nb.show.picture import Picture


PUBLISHED = "published.json"  # beside a score: what it is against the published ones


class Stages:
    """The half of `run.Run` that asks a service; see the module."""

    model: str
    hw: str
    site: str
    folder: Path

    def record(self, stage: str, **facts: Any) -> None:
        """Add a line to the run's evidence."""
        raise NotImplementedError

    @property
    def _named(self) -> schema.Model:
        raise NotImplementedError

    @property
    def _hardware(self) -> schema.Hardware:
        raise NotImplementedError

    @property
    def _run(self) -> Run:
        return cast("Run", self)

    # Verification ---------------------------------------------------------------------

    def curl(self, service: Service) -> Curl:
        """The documents' request, sent by bash and curl to the service."""
        from kimi_nb.prove.verify import curl

        found = curl.run(service.plan, service.url if service.up else "", service.key)
        self.record("curl", plan=service.plan.name, status=found.status, got=found.got)
        return found

    def checks(self, only: Iterable[str] = (), max_context: int | None = None) -> list[str]:
        """The names of the checks that `verify` will make. Raises ParameterError."""
        from kimi_nb.prove.verify import runner

        return list(
            runner.chosen(
                given.words(only), runner.MAX_CONTEXT if max_context is None else max_context
            )
        )

    def verify(
        self,
        service: Service,
        *,
        resume: bool = False,
        only: Iterable[str] = (),
        max_context: int | None = None,
        random_weights: bool = False,
    ) -> Contract:
        """Check whether a service keeps its contract: see `kimi_nb.prove.verify`. Results are kept as
        they come in verify.jsonl of the plan's folder; ``resume`` asks again only what is not
        there, or failed. Never raises for what the service does."""
        from kimi_nb.prove import verify
        from kimi_nb.prove.verify import runner, target

        found = verify.verify(
            target.of(service, random_weights=random_weights),
            resume=resume,
            only=given.words(only),
            folder=self.folder / service.plan.name,
            say=print,
            max_context=runner.MAX_CONTEXT if max_context is None else max_context,
        )
        if not found.ok and service.live is not None:
            found = replace(found, logs=_first_failure(service))
        self.record(
            "verify",
            plan=service.plan.name,
            mark=found.mark,
            url=found.url,
            model=found.model,
            ok=found.ok,
            **{name.replace(" ", "_"): count for name, count in found.counts.items()},
            failed=[one.name for one in found.failed],
            logs=found.logs,
        )
        return found

    # Accuracy ---------------------------------------------------------------------------

    def published(self) -> show.Table:
        """The scores that the documents print of this model."""
        from kimi_nb.prove.accuracy import published_scores as published

        return published.table(published.of(self._named.name))

    def accuracy_commands(self, plan: Plan, service: Service | None = None) -> show.Text:
        """What a person runs to measure what the documents publish: their own line, ours, and
        AISBench's with its configurations, which are written to the run's folder."""
        from kimi_nb.prove.accuracy import evaluation_commands as commands

        return commands.write(self._run, plan, service)

    def evaluations(
        self, tool: str, *, task: str = "kimi_nb_arithmetic", limit: int = 0
    ) -> list[str]:
        """The tools of a parameter, each able to ask the task. Raises ParameterError."""
        from kimi_nb.prove.accuracy import measure as stage

        named = given.words(tool)
        if not named:
            raise ParameterError(choice("tool", tool, stage.TOOLS))
        for one in named:
            stage.checked(one, task, limit)
        return list(named)

    def accuracy(
        self,
        service: Service,
        *,
        tool: str = "lm-eval",
        task: str = "kimi_nb_arithmetic",
        limit: int = 0,
        resume: bool = False,
    ) -> Score:
        """Ask the questions of a task (the first ``limit``; 0: all) and count right answers.
        ``resume`` keeps the answers of the last call that was cut off. Raises AccuracyError with
        what is wrong; nothing is asked where the tool is not installed, and the score says so."""
        from kimi_nb.prove.accuracy import measure as stage

        return stage.measure(self._run, service, tool, task, limit, resume, say=print)

    def compare(self, score: Score) -> show.Table:
        """A score against what was published of the model: a verdict, or why there is none."""
        from kimi_nb.prove.accuracy import published_scores as published
        from kimi_nb.prove.accuracy import score_settings as settings

        table = settings.compare(score, published.of(self._named.name))
        if score.folder:
            evidence.write_json(
                Path(score.folder) / PUBLISHED,
                {"verdicts": [dict(zip(table.headings, row, strict=True)) for row in table.rows]},
            )
        self.record(
            "compare",
            mark=score.mark,
            task=score.task,
            verdicts={row[0]: row[1] for row in table.rows},
        )
        return table

    def scores(self, plan: Plan, *scores: Score | None) -> Picture:
        """The scores with their intervals as a picture, kept beside those of the plan; None is
        a tool that was not asked."""
        from kimi_nb.notebook.pictures import score_intervals as accuracy
        from kimi_nb.prove.accuracy import published_scores as published
        from kimi_nb.prove.accuracy import score_settings as settings

        found = accuracy.picture(
            settings.drawn(
                [one for one in scores if one is not None], published.of(self._named.name)
            )
        )
        found.save(self.folder / plan.name / "pictures")
        return found

    # Performance ------------------------------------------------------------------------

    def load(
        self,
        plan: Plan,
        concurrency: str,
        *,
        input_len: int = 1024,
        output_len: int = 1024,
        prompts: int = 0,
        dataset: str = "",
    ) -> Loads:
        """A load for each concurrency, as fast as that lets it: random prompts, or those of a
        ``dataset`` on the hub (lmarena-ai/VisionArena-Chat has pictures). ``prompts`` 0 takes
        four for each request in flight. In place of numbers the name of a document's benchmark
        (bench, bench-sweep, visionarena) takes that one's load whole. Raises ParameterError."""
        from kimi_nb.prove.bench import bench_commands as commands
        from kimi_nb.prove.bench import workload as load

        if isinstance(concurrency, str) and concurrency[:1].isalpha():
            client = commands.documents(plan).get(concurrency)
            if client is None:
                raise ParameterError(choice("benchmark", concurrency, commands.documents(plan)))
            return load.of_command(client.argv, commands.engine(plan), client.sweep)
        return load.sweep(
            concurrency,
            input_len=input_len,
            output_len=output_len,
            prompts=prompts,
            dataset="hf" if dataset else "random",
            path=dataset,
        )

    def bench_commands(
        self, plan: Plan, loads: Loads, *, repetitions: int = 3, tool: str = "auto"
    ) -> show.Text:
        """What a person runs where the engine is: the documents' benchmarks corrected, the loads,
        the offline benchmarks, AISBench's performance mode. Raises ParameterError for what `bench`
        could not do with these."""
        from kimi_nb.prove.bench import bench_commands as commands
        from kimi_nb.prove.bench import load_programs as tools
        from kimi_nb.prove.bench import measurements as runner

        runner.check_repetitions(repetitions)
        tools.check_name(tool)
        return commands.all_of(plan, loads)

    def bench(
        self,
        service: Service,
        loads: Loads,
        *,
        repetitions: int = 3,
        tool: str = "auto",
        resume: bool = True,
    ) -> BenchResult:
        """Measure a service, each load ``repetitions`` times; files of an earlier call with the
        same identity are kept with ``resume``. Raises BenchError with what is wrong."""
        from kimi_nb.prove.bench import measurements as runner

        folder = self.folder / service.plan.name / "bench"
        try:
            result = runner.measure(
                service, loads, folder, repetitions=repetitions, tool=tool, resume=resume
            )
        except BenchError as error:
            self.record("bench", plan=service.plan.name, ok=False, fault=str(error))
            raise
        self.record(
            "bench",
            plan=service.plan.name,
            ok=not result.failed,
            mark=result.mark,
            results=folder,
            measurements=len(result.files),
            failed=result.failed,
            errors=result.errors,
        )
        return result

    # Tuning -----------------------------------------------------------------------------

    def smallest(self) -> str:
        """The layout with the fewest devices. Raises NoRecipeError where none is described."""
        from kimi_nb.prove.tune import scenarios

        return scenarios.smallest(self._named, self._hardware)

    def scenarios(self, layout: str = "") -> show.Table:
        """The recommended configurations of the documents, and the notebook that takes each."""
        from kimi_nb.prove.tune import scenarios

        return scenarios.listing(self._named, self._hardware, layout)

    def compare_scenarios(
        self, layout: str, names: Iterable[str] = (), *, variant: str = ""
    ) -> show.Table:
        """Scenarios of a layout side by side (all without ``names``): what differs, memory,
        cache, limits. Raises NoRecipeError."""
        from kimi_nb.prove.tune import scenarios

        there = scenarios.names(self._named, self._hardware, layout, variant)
        wanted = scenarios.wanted(given.words(names), there)
        return scenarios.compare(
            {
                name: build.plan(
                    self.model, self.hw, layout, scenario=name, variant=variant, site=self.site
                )
                for name in wanted
            }
        )

    def limits(
        self, plan: Plan, *, input_len: int = 1024, output_len: int = 1024, concurrency: int = 0
    ) -> Limits:
        """What the plan cannot exceed under such a load, estimated (concurrency 0: full
        batches)."""
        from kimi_nb.prove.tune import limits

        return limits.of_plan(
            plan, input_len=input_len, output_len=output_len, concurrency=concurrency
        )

    def advice(self, plan: Plan, results: BenchResult | Published) -> Advices:
        """What the measurements of a plan say to try next, and their share of the limits."""
        from kimi_nb.prove.tune import advice

        found = advice.of(plan, results)
        self.record("advice", plan=plan.name, **found.as_dict())
        return found

    def documented(self) -> tuple[Plan, Published]:
        """A document's own concurrency sweep, and the plan that it was measured with."""
        from kimi_nb.prove.tune import advice

        return advice.documented()

    def design(
        self, plan: Plan, sweep: str, *, input_len: int = 1024, output_len: int = 1024
    ) -> Design:
        """The settings and loads of a sweep around a plan, each checked; nothing is started.
        Raises ParameterError for an axis that is none."""
        from kimi_nb.prove.tune import design

        return design.of(plan, sweep, input_len=input_len, output_len=output_len)

    def sweep(self, design: Design, **more: Any) -> Sweep:
        """Measure a design by the run's action; `tune.sweep.run` has the further arguments:
        repetitions, slo_ttft_ms, slo_tpot_ms, url, tool, resume."""
        from kimi_nb.prove.tune import sweep

        return sweep.run(self._run, design, **more)


def _first_failure(service: Service) -> str:
    """What the doctor says of the service's logs; "" where they show nothing."""
    from kimi_nb.diagnose import doctor

    assert service.live is not None
    try:
        report = doctor.examine(service.live.result.folder, service.serving)
    except KimiError:  # no logs are at hand
        return ""
    return str(report.first) if report.first else ""
