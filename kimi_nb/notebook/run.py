"""Define the methods that the cells of a notebook call, in the order of a deployment.

Example::

    run = kimi_nb.start(hw="a3", model="k2.5", action="rehearse")
    choice = run.choose("pd", scenario="throughput")
    plan = run.plan(choice)
    run.check(plan)
    run.write(plan)
    service = run.serve(plan)
    run.verify(service)
    service.stop()
    run.close()

Results display themselves: in a notebook as a table or a picture, elsewhere as text. Methods that
plan, check, write, start or measure also add a line of evidence to the run's folder.

Modules that are slow to import are imported inside the methods that need them, so that the first
cell of a notebook takes less than a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_nb import show
from kimi_nb.bundle import scripts, writer
from kimi_nb.check import judge
from kimi_nb.check.findings import Findings
from kimi_nb.core import errors, evidence, fingerprint
from kimi_nb.core.errors import (
    BenchError,
    CheckError,
    KimiError,
    ParameterError,
    ServiceError,
    short,
)
from kimi_nb.notebook import inputs, listing, serving
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.installing import Installs, installs
from kimi_nb.notebook.pictures import device_memory, topology_picture
from kimi_nb.notebook.subject import LARGEST, Subject
from kimi_nb.params import load
from kimi_nb.plan import checkpoints, tables
from kimi_nb.plan.spec import Plan
from kimi_nb.service import prerequisites, weights
from kimi_nb.service.handle import Running, Service, attach
from kimi_nb.show.picture import Picture

if TYPE_CHECKING:
    from kimi_nb.deploy.node_looks import NodeLooks
    from kimi_nb.diagnose.doctor_report import Report
    from kimi_nb.drill.record import Drill
    from kimi_nb.drill.verdict import Verdict
    from kimi_nb.notebook.drilling import Form
    from kimi_nb.notebook.panel.panel import Panel
    from kimi_nb.notebook.size_proposal import Calibrated, Proposed
    from kimi_nb.prove.accuracy.measure import Evaluations
    from kimi_nb.prove.accuracy.score_settings import Verdicts
    from kimi_nb.prove.accuracy.scores import Score
    from kimi_nb.prove.bench.bench_pictures import Pictures
    from kimi_nb.prove.bench.compare import Comparison
    from kimi_nb.prove.bench.results import BenchResult
    from kimi_nb.prove.bench.workload import Loads
    from kimi_nb.prove.tune.advice import Advices
    from kimi_nb.prove.tune.design import Design
    from kimi_nb.prove.tune.limits import Limits
    from kimi_nb.prove.tune.scenarios import SideBySide
    from kimi_nb.prove.tune.sweep import Sweep
    from kimi_nb.prove.verify.contract import Contract
    from kimi_nb.prove.verify.curl import Curl
    from kimi_nb.prove.verify.runner import Checks

_EXPLAINED = ("settings", "derivation", "sources", "language", "connector", "steps")


@dataclass(frozen=True)
class Run:
    """The session of a notebook, returned by `kimi_nb.start`; the module shows its use."""

    model: str
    hw: str
    site: str
    action: str
    confirm: str
    folder: Path
    subject: Subject = field(repr=False)
    _running: list[Running] = field(default_factory=list, repr=False)
    _panels: list[Panel] = field(default_factory=list, repr=False)
    _judged: list[tuple[Plan, Findings]] = field(default_factory=list, repr=False)
    _recorded: list[dict[str, Any]] = field(default_factory=list, repr=False)

    # Choose and look ------------------------------------------------------------------

    def list(self, topic: str, choice: Choice | None = None) -> show.Table:
        """List a topic: matrix, recipes, features, weights, nodes, notebooks and others.

        Raises ParameterError with all topics for an unknown one.
        """
        return listing.table(topic, self.subject, choice or self.choose())

    def choose(
        self,
        layout: str = "",
        *,
        scenario: str = "",
        variant: str = "",
        features: Iterable[str] = (),
        without: Iterable[str] = (),
        overrides: Iterable[str] = (),
        engine_version: str = "",
        errata: Iterable[str] = (),
        as_documented: bool = False,
    ) -> Choice:
        """Choose what to serve; `panel`, `plan` and others take the choice.

        ``layout`` is single, dp or pd; "largest" has the most nodes, "smallest" the fewest devices,
        "" is the first one described. ``as_documented`` takes the documents' own settings, and
        ``errata`` switches single corrections of them, as ``k2.5-host=off``. With action deploy and
        "largest" it is the service that is up on the site, with all that it was deployed with,
        unless something else than that is chosen. Raises NoRecipeError.
        """
        chosen = Choice(
            self.model,
            self.hw,
            self.subject.layout(layout),
            scenario,
            variant,
            self.site,
            inputs.text(engine_version),
            ",".join(inputs.words(features)),
            ",".join(inputs.words(without)),
            ";".join(inputs.words(overrides, ";")),
            ",".join([*(["all=off"] if as_documented else []), *inputs.words(errata)]),
            "yes" if self.subject.derive else "",
        )
        if self.action == "deploy" and layout == LARGEST:
            from kimi_nb.notebook import running  # start-up: only for a deployment

            deployed = running.choice(self, self.subject.site(self.subject.recipe()).name)
            if deployed and chosen.within(deployed):
                return deployed
        return chosen

    def example(self, name: str) -> Picture:
        """Draw the described deployment with the most nodes, before anything is chosen.

        ``name`` is one of `notebook.pictures.NAMES`. Where there is none, or the site has too few
        nodes for it, the picture says so. Nothing is recorded.
        """
        from kimi_nb.notebook import pictures
        from kimi_nb.notebook.pictures import nothing

        try:
            recipe = self.subject.recipe()
            plan = self.choose(recipe.layout if recipe else "").plan()
        except KimiError as error:
            return nothing.picture(name, "No deployment to look at", short(str(error)).rstrip("."))
        return pictures.draw(plan, name)

    def panel(self, choice: Choice | None = None) -> Panel:
        """Return the panel, to explore and rehearse choices: as widgets, or as a table."""
        from kimi_nb.notebook.panel.panel import Panel

        for before in self._panels:  # a cell that is run again
            before.stop()
        self._panels.append(Panel(self, choice or self.choose()))
        return self._panels[-1]

    def prerequisites(
        self, choice: Choice | None = None, *, every_node: bool = False
    ) -> prerequisites.Looks | NodeLooks:
        """Check this machine as a node of the site; without a choice, for the largest layout.

        Each check passes, fails, or is skipped with the reason and the command. With ``every_node``
        and action deploy it is every node of the site, over its transport, and the links between
        them; nothing is changed there.
        """
        subject, layout = self.subject, choice.layout if choice else ""
        recipe = subject.recipe(layout)
        site = subject.site(recipe)
        what = (
            subject.hardware,
            site,
            subject.weights(recipe),
            recipe.layout if recipe else "dp",
            recipe.install if recipe else "docker",
            subject.engine(
                (choice.engine_version if choice else "")
                or (recipe.engine_version if recipe else "")
            ),
        )
        found: prerequisites.Looks | NodeLooks
        if every_node and self.action == "deploy":
            from kimi_nb.deploy import node_looks  # pyinfra and others: only for a deployment

            if site.transport == "slurm":
                found = node_looks.of_cluster((choice or self.choose()).plan())
            else:
                found = node_looks.of_site(*what)
        else:
            here = prerequisites.is_node(site)
            looks = prerequisites.looks(*what)
            found = (
                prerequisites.elsewhere(site)
                if self.action == "deploy" and not here
                else prerequisites.Looks(
                    tuple(prerequisites.look(item, site, here) for item in looks)
                )
            )
        self.record("prerequisites", **found.counts, failed=found.failed)
        return found

    def install(self, choice: Choice | None = None) -> Installs:
        """Return the commands of every way to install the engine, and those of its container."""
        recipe = self.subject.recipe(choice.layout if choice else "")
        layout = recipe.layout if recipe else "single"
        found = installs(self.subject, layout, choice.engine_version if choice else "")
        self.record("install", methods=found.names)
        return found

    def downloads(self, gbit_s: float) -> show.Table:
        """List the model's checkpoints: page, size, and minutes of a download at ``gbit_s`` Gbit/s."""
        if not gbit_s > 0:
            raise ParameterError(f"gbit_s: {gbit_s} found, a bandwidth above 0 Gbit/s is allowed.")
        return tables.weights(self.subject.model, gbit_s)

    def check_weights(self, folder: str) -> tuple[str, ...]:
        """Return the faults of a checkpoint in a folder of this machine; () if it has none.

        The folder is the checkpoint's own, or a cache of a hub that holds one of this model.
        """
        root = load.user_path(folder, "weights_folder")
        items = self.subject.model.weights.values()
        if not (root / "config.json").is_file():
            places = [place for item in items for place in checkpoints.cached(str(root), item.id)]
            root = weights.find([*places, f"{root}/snapshots/*"]) or root
        needed = {name for item in items for name in item.files}
        found = weights.faults(root, sorted(needed))
        self.record("weights", where=str(root), faults=found)
        return tuple(found)

    # Plan, check, write -----------------------------------------------------------------

    def plan(self, choice: Choice | None = None) -> Plan:
        """Plan a choice and show the placement of its engines. Raises KimiErrors."""
        plan = (choice or self.choose()).plan()
        serving.record_plan(self, plan, self._findings(plan))
        serving.draw(self, plan, topology_picture.picture(plan))
        show.show(tables.topology(plan))
        return plan

    def explain(self, plan: Plan, topic: str = "settings") -> show.Table:
        """Explain a plan by a topic.

        Topics are settings, derivation (from what and by which rules), sources, the engine's
        language, the connector, and the steps.
        """
        if topic not in _EXPLAINED:
            raise ParameterError(errors.choice("topic", topic, _EXPLAINED))
        if topic == "settings":
            return tables.settings(plan)
        if topic == "derivation":
            return tables.derivation(plan)
        if topic == "sources":
            return tables.sources(plan)
        if topic == "connector":
            return tables.connector(plan)
        if topic == "steps":
            steps = tuple(scripts.steps(plan))
            return show.Table("By hand, in this order", ("where", "run", "what it does"), steps)
        title = f"In the words of {plan.engine} {plan.engine_version}"
        return show.Table(title, ("note",), tuple((note,) for note in plan.notes))

    def check(self, plan: Plan) -> Findings:
        """Check a plan by every rule. Raises CheckError with the errors, where there are any."""
        found = judge.passed(self._findings(plan))
        self.record("check", **found.counts)
        return found

    def _findings(self, plan: Plan) -> Findings:
        """Return what the rules find in a plan; they are asked once, by whoever is first."""
        for known, found in self._judged:
            if known is plan:
                return found
        self._judged.append((plan, judge.plan(plan)))
        return self._judged[-1][1]

    def memory(self, findings: Findings) -> Picture:
        """Draw the estimated memory of one device for each kind of engine."""
        return device_memory.picture(findings.memory)

    def memory_logged(self, service: Service) -> show.Table:
        """Return the estimated memory of one device beside what the engines' logs say they took."""
        from kimi_nb.notebook import engine_memory

        folder = service.live.result.folder if service.live else None
        return engine_memory.table(service.plan, folder, service.mark)

    def memory_evidence(self) -> show.Table:
        """Return what public logs said of memory, beside what the account of it says."""
        from kimi_nb.check import memory_evidence

        return memory_evidence.table()

    def diff(self, plan: Plan) -> show.Text:
        """Return the difference between the last bundle of this name and the plan's."""
        title, before = "Against the last bundle of this name", self._last(plan.name)
        if before is None:
            return show.Text(title, "there is none: all is new")
        return show.Text(title, writer.unified(before, scripts.files(plan)) or "no change")

    def write(self, plan: Plan, *, force: bool = False) -> writer.Bundle:
        """Write the plan's scripts; return them and the changes from the last such bundle.

        Raises CheckError where a rule finds an error. With ``force`` the scripts are written all
        the same, and the errors are shown.
        """
        self._check_writable(plan, force)
        files, folder = scripts.files(plan), self.folder / plan.name / "bundle"
        before = self._last(plan.name) or {}
        writer.write(files, folder)
        changes = writer.diff(before, files)
        self.record(
            "write",
            plan=plan.name,
            bundle=folder,
            files=len(files),
            changed=len(changes),
            hash=fingerprint.of_texts(files),
        )
        return writer.Bundle(folder, files, changes)

    def _check_writable(self, plan: Plan, force: bool) -> None:
        try:
            judge.passed(self._findings(plan))
        except CheckError as error:
            if not force:
                raise CheckError(
                    f"{error}\nSo nothing is written. Change the plan, or write it in spite of "
                    "that: run.write(plan, force=True)."
                ) from None
            show.show(show.Text("Written in spite of these errors", str(error)))

    def _last(self, name: str) -> dict[str, str] | None:
        """Return the last bundle of this plan: of this run, else of the newest run beside it."""
        here = writer.read(self.folder / name / "bundle")
        if here is not None or not self.folder.parent.is_dir():
            return here
        beside = sorted(
            self.folder.parent.glob(f"*/{name}/bundle"),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )
        return writer.read(beside[0]) if beside else None

    # Serve ------------------------------------------------------------------------------

    def gate(self, plan: Plan) -> show.Table:
        """Say what the action may touch; for deploy, list what would change on the site.

        Raises ParameterError where a deployment is not confirmed by the site's name.
        """
        return serving.gate(self, plan, self.confirm)

    def service(
        self,
        choice: Choice | None = None,
        *,
        url: str = "",
        fault: str = "",
        resume: bool = False,
    ) -> Service:
        """Return the service of a choice, planned, checked and written where that was not done yet.

        With a ``url`` it is the one there, and nothing is started. With action deploy it is the one
        that is up on the site; with action rehearse the one that `kimi-nb run` keeps for its
        notebooks. Where there is none it is started, as `serve` does. Raises CheckError,
        ParameterError and ServiceError.
        """
        plan = (choice or self.choose(LARGEST)).plan()
        self.check(plan)
        if not serving.is_recorded(self, plan):
            serving.record_plan(self, plan, self._findings(plan))
            topology_picture.picture(plan).save(self.folder / plan.name / "pictures")
            self.write(plan)
        if self.action == "deploy" and not url:
            show.show(self.gate(plan))
        return self.serve(plan, url=url, fault=fault, resume=resume)

    def serve(self, plan: Plan, *, url: str = "", fault: str = "", resume: bool = False) -> Service:
        """Start the service as the action says, and prove it up to a short load on its front door.

        Action plan starts nothing. Action rehearse runs the bundle's scripts here with stand-ins
        for the engines, unless `kimi-nb run` has done that for all of its notebooks; ``fault`` makes
        a named failure happen (`kimi-nb list --faults`). Action
        deploy runs them on the site; ``resume`` skips the steps that an earlier call has completed.
        With a ``url`` nothing is started: the plan describes the service there. Raises ServiceError
        with the diagnosis.
        """
        if url:
            return attach(self, plan, url)
        if fault and self.action != "rehearse":
            raise ParameterError(
                f"fault {fault!r}: action {self.action} starts nothing that is "
                "made to go wrong; choose action rehearse."
            )
        if self.action == "deploy":
            return Service(self, plan, serving.deploy(self, plan, self.confirm, resume))
        if self.action == "plan":
            return Service(self, plan, None)
        if not fault and (taken := serving.shared(self, plan)):
            return Service(self, plan, taken, shared=True)
        for before in self._running:  # a cell that is run again
            before.stop()
        live = serving.rehearse(self, plan, fault)
        self._running.append(live)
        if not live.result.ok:
            raise ServiceError(f"{live.result.diagnosis}\n  logs: {live.result.folder}")
        return Service(self, plan, live)

    # Practise ---------------------------------------------------------------------------

    def drill(self, plan: Plan, fault: str = "", *, seed: int = 0) -> Drill:
        """Rehearse a plan with a fault, of chance if "", and keep its logs to be read.

        Chance also chooses the engine, unless it is NAME@ENGINE; a ``seed`` above 0 repeats it.
        """
        from kimi_nb.notebook import drilling

        return drilling.make(self, plan, inputs.text(fault), seed)

    def ask(self, drill: Drill) -> Form:
        """Return the form that asks what a drill was."""
        from kimi_nb.notebook import drilling

        return drilling.Form(drill)

    def verdict(
        self, drill: Drill, answer: str = "", *, reveal: bool = False
    ) -> Verdict | show.Text:
        """Compare an answer, or that of the form, with what the doctor says of a drill."""
        from kimi_nb.notebook import drilling

        return drilling.verdict(self, drill, answer, reveal)

    # Verify -----------------------------------------------------------------------------

    def chat(self, plan: Plan, *, picture: bool = False) -> show.Text:
        """Return the request with which the documents try the service; with ``picture`` a picture's."""
        if not picture:
            return show.Text("client/chat.sh", scripts.files(plan)["client/chat.sh"])
        text = scripts.files(plan).get(scripts.PICTURE, "there is none: the model takes text only")
        return show.Text(scripts.PICTURE, text)

    def curl(self, service: Service) -> Curl:
        """Send the documents' request to the service with bash and curl."""
        from kimi_nb.prove.verify import curl

        found = curl.run(service.plan, service.url if service.up else "", service.key)
        facts = {"mark": found.mark, "status": found.status, "got": found.got}
        self.record("curl", plan=service.plan.name, **facts)
        return found

    def checks(self, only: Iterable[str] = (), max_context: int | None = None) -> Checks:
        """Choose the checks of a verification by name or family. Raises ParameterError."""
        from kimi_nb.prove.verify import runner

        most = runner.MAX_CONTEXT if max_context is None else max_context
        return runner.Checks(tuple(inputs.words(only)), most)

    def verify(
        self,
        service: Service,
        checks: Checks | None = None,
        *,
        resume: bool = False,
        random_weights: bool = False,
    ) -> Contract:
        """Check whether a service keeps its contract; failures of the service do not raise.

        Each result is written at once to verify.jsonl in the plan's folder; ``resume`` repeats only
        checks that failed or are missing there.
        """
        from kimi_nb.notebook import proving

        return proving.verify(self, service, checks, resume=resume, random_weights=random_weights)

    # Accuracy ---------------------------------------------------------------------------

    def evaluations(
        self, tool: str, *, task: str = "kimi_nb_arithmetic", limit: int = 0
    ) -> Evaluations:
        """Choose tools, a task and how many of its questions (0: all). Raises ParameterError."""
        from kimi_nb.prove.accuracy import measure

        return measure.Evaluations(tuple(inputs.words(tool)), task, limit)

    def accuracy(
        self,
        service: Service,
        evaluations: Evaluations,
        tool: str = "lm-eval",
        *,
        resume: bool = False,
    ) -> Score | None:
        """Ask a task's questions with a tool and score the answers; None for a tool not chosen.

        ``resume`` keeps the answers of an interrupted call. Where the tool is not installed nothing
        is asked, and the score says so. Raises AccuracyError with the cause.
        """
        from kimi_nb.prove.accuracy import measure

        if tool not in evaluations.tools:
            return None
        task, limit = evaluations.task, evaluations.limit
        return measure.measure(self, service, tool, task, limit, resume, say=show.say)

    # Performance ------------------------------------------------------------------------

    def load(self, plan: Plan, concurrency: str, **sizes: Any) -> Loads:
        """Choose one load for each concurrency; `prove.bench.measurements.loads` has the arguments.

        They are input_len, output_len, prompts, dataset, repetitions and tool. In place of
        concurrencies, the name of a document's benchmark selects that benchmark's load. Raises
        ParameterError.
        """
        from kimi_nb.prove.bench import measurements

        return measurements.loads(plan, concurrency, **sizes)

    def bench(self, service: Service, loads: Loads, *, resume: bool = True) -> BenchResult:
        """Measure a service under loads; ``resume`` keeps the results of an earlier call.

        Raises BenchError with the cause.
        """
        from kimi_nb.prove.bench import measurements

        folder = self.folder / service.plan.name / "bench"
        try:
            result = measurements.measure(
                service,
                loads,
                folder,
                repetitions=loads.repetitions,
                tool=loads.tool,
                resume=resume,
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

    # Accuracy and performance -----------------------------------------------------------

    def commands(self, plan: Plan, asked: Loads | Evaluations) -> show.Text:
        """Return the commands that measure the same by hand, for loads or evaluations."""
        from kimi_nb.prove.accuracy import evaluation_commands, measure
        from kimi_nb.prove.bench import bench_commands

        if isinstance(asked, measure.Evaluations):
            return evaluation_commands.write(self.folder, self.subject.named.name, plan)
        return bench_commands.all_of(plan, asked)

    def compare(self, measured: Score | BenchResult) -> Verdicts | Comparison:
        """Compare a measurement with published figures: a verdict, or why there is none."""
        from kimi_nb.prove.accuracy import published_scores, score_settings
        from kimi_nb.prove.bench import compare
        from kimi_nb.prove.bench.results import BenchResult

        if isinstance(measured, BenchResult):
            return compare.with_published(measured)
        published = published_scores.of(self.subject.named.name)
        found = score_settings.compare(measured, published)
        if measured.folder:
            place = Path(measured.folder) / score_settings.PUBLISHED
            evidence.write_json(place, found.as_dict())
        self.record("compare", mark=measured.mark, task=measured.task, verdicts=found.words)
        return found

    def baseline(self, plan: Plan, result: BenchResult, name: str = "") -> show.Table:
        """Compare a benchmark with a baseline of the site, or keep it as one if there is none.

        Raises BenchError for results that cannot be compared.
        """
        from kimi_nb.prove.bench import baseline

        runs = self.folder.parent
        path = baseline.place(name, plan.site, self.site, runs) if name else None
        found = baseline.held(result, path)
        self.record("baseline", plan=plan.name, mark=result.mark, name=name, found=found.title)
        return found

    def draw(
        self,
        plan: Plan,
        *drawn: str | Score | BenchResult | None,
        ttft_ms: float = 0,
        tpot_ms: float = 0,
    ) -> Picture | Pictures:
        """Draw a plan or measurements, and keep the picture in the plan's folder.

        A name, such as "request" or "ranks", is one of `notebook.pictures.NAMES`: it explains the
        plan. None is a measurement that was not made.

        The goodput of a benchmark counts requests within ``ttft_ms`` and ``tpot_ms`` (0: no bound).
        """
        from kimi_nb.notebook import pictures

        for one in drawn:
            if isinstance(one, str):
                return _kept(pictures.draw(plan, one), self.folder / plan.name)
        from kimi_nb.notebook.pictures import score_intervals
        from kimi_nb.prove.accuracy import published_scores, score_settings
        from kimi_nb.prove.accuracy.scores import Score
        from kimi_nb.prove.bench import bench_pictures
        from kimi_nb.prove.bench.results import BenchResult

        for one in drawn:
            if isinstance(one, BenchResult):
                return bench_pictures.draw(one, ttft_ms, tpot_ms)
        published = published_scores.of(self.subject.named.name)
        scores = [one for one in drawn if isinstance(one, Score)]
        picture = score_intervals.picture(score_settings.drawn(scores, published))
        return _kept(picture, self.folder / plan.name)

    # Tuning -----------------------------------------------------------------------------

    def scenarios(self, choice: Choice, names: Iterable[str] = ()) -> SideBySide:
        """List the documents' configurations, and compare those of the choice's layout.

        Without ``names`` all of them are compared. Raises NoRecipeError.
        """
        from kimi_nb.prove.tune import scenarios

        return scenarios.side_by_side(
            self.model,
            self.hw,
            choice.layout,
            choice.variant,
            self.site,
            inputs.words(names),
            derive=bool(choice.derive),
        )

    def calibrate(self, choice: Choice, measured: str | Sweep = "") -> Calibrated:
        """Calibrate the model of time by results of notebook 08 (a folder) or by a sweep.

        Without either it is what notebook 08 left in this run. Raises ParameterError.
        """
        from kimi_nb.notebook import size_proposal

        return size_proposal.calibrate(self, choice, measured)

    def size(
        self, choice: Choice, calibrated: Calibrated | None = None, **workload: Any
    ) -> Proposed:
        """Search the sizes that keep bounds of latency; `size_proposal.propose` has the workload.

        It is input_len and output_len, or lengths, or trace; ttft_ms, tpot_ms and nodes. Raises
        ParameterError.
        """
        from kimi_nb.notebook import size_proposal

        return size_proposal.propose(self, choice, calibrated, **workload)

    def limits(
        self,
        plan: Plan,
        *,
        input_len: int = 1024,
        output_len: int = 1024,
        concurrency: int = 0,
    ) -> Limits:
        """Return estimated upper bounds for the plan under such a load (0: full batches)."""
        from kimi_nb.prove.tune import limits

        return limits.of_plan(
            plan, input_len=input_len, output_len=output_len, concurrency=concurrency
        )

    def shares(self, plan: Plan, result: BenchResult) -> show.Table:
        """Return the estimated limit under each measurement, and keep it for the report."""
        from kimi_nb.prove.tune import advice
        from kimi_nb.report.run_files import LIMITS

        found = advice.under_limits(plan, result)
        kept = {"title": found.title, "headings": found.headings, "rows": found.rows}
        evidence.write_json(self.folder / plan.name / LIMITS, kept)
        return found

    def advice(self, plan: Plan | None = None, result: BenchResult | None = None) -> Advices:
        """Return what measurements suggest to try next, and how near they are to the limits.

        Without arguments the measurements are a document's own concurrency sweep.
        """
        from kimi_nb.prove.tune import advice

        about, measured = (plan, result) if plan and result else advice.documented()
        found = advice.of(about, measured)
        self.record("advice", plan=about.name, **found.as_dict())
        return found

    def design(
        self, plan: Plan, sweep: str, *, input_len: int = 1024, output_len: int = 1024
    ) -> Design:
        """Design a sweep around a plan: settings and loads, each checked; nothing is started.

        Raises ParameterError for an unknown axis.
        """
        from kimi_nb.prove.tune import design

        return design.of(plan, sweep, input_len=input_len, output_len=output_len)

    def sweep(self, design: Design, **more: Any) -> Sweep:
        """Measure a design as the run's action says; `prove.tune.sweep.run` has the arguments.

        They are repetitions, slo_ttft_ms, slo_tpot_ms, url, tool and resume.
        """
        from kimi_nb.prove.tune import sweep

        return sweep.run(self, design, **more)

    # Diagnose, record, end --------------------------------------------------------------

    def doctor(self, logs: str) -> Report | None:
        """Find what failed first in a folder of logs, None without one. Raises ParameterError."""
        from kimi_nb.diagnose import doctor

        report = doctor.examine(logs) if logs else None
        self.record(
            "doctor",
            logs=logs,
            files=report.files if report else 0,
            first=str(report.first) if report and report.first else "",
        )
        return report

    def record(self, stage: str, **facts: Any) -> None:
        """Add a line to the run's evidence."""
        self._recorded.append(evidence.record(self.folder, stage, **facts))

    def close(self) -> show.Table:
        """Stop everything that still runs, and return the lines of evidence of this session."""
        for panel in self._panels:
            panel.stop()
        for live in self._running:
            live.stop()
        self.record("close", started=len(self._running))
        return listing.last_evidence(self.folder, self._recorded)


def _kept(picture: Picture, folder: Path) -> Picture:
    """Save a picture with its numbers in a plan's folder, and return it."""
    picture.save(folder / "pictures")
    return picture
