"""One walk through a notebook: what it is about, what it made, what it saw.

    run = kimi_nb.start(hw="a3", model="k2.5", site="", action="plan", confirm="", run_dir="")
    plan = run.plan("pd")
    bundle = run.write(plan)
    run.close()

What a method returns shows itself, in a notebook as a table, elsewhere as text. What plans,
looks, writes or ends also leaves a line of evidence in the run's folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_nb.bundle import scripts
from kimi_nb.bundle import writer as bundle
from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.core import evidence, fingerprint, shell
from kimi_nb.core.errors import ParameterError, ServiceError
from kimi_nb.notebook import inputs as given
from kimi_nb.notebook.proving import Stages
from kimi_nb.params import load as params
from kimi_nb.params import recipes, schema
from kimi_nb.plan import build, containers, tables
from kimi_nb.plan.spec import Plan
from kimi_nb.service import prerequisites, weights
from kimi_nb.service.handle import Service, attach
from kimi_nb.show import values as show

if TYPE_CHECKING:
    from kimi_nb.deploy.lifecycle import Deployed
    from kimi_nb.notebook.panel.panel import Panel
    from kimi_nb.rehearse.rehearsal import Live, Rehearsal
    from kimi_nb.show.picture import Picture

FINDINGS = "findings.json"  # what the rules say of a plan, beside its bundle
# What each may touch.
ACTIONS = {
    "plan": "files are written to the run's folder, nothing else is touched",
    "rehearse": "the scripts run on this machine, on stand-ins; no node is touched",
    "deploy": "the scripts run on the site, once it is confirmed by its name",
}


@dataclass(frozen=True)
class Run(Stages):
    """What `start` returns; see the module."""

    model: str
    hw: str
    site: str
    action: str
    confirm: str
    folder: Path
    _started: list[Live] = field(default_factory=list, repr=False)
    _panels: list[Panel] = field(default_factory=list, repr=False)

    def record(self, stage: str, **facts: Any) -> None:
        """Add a line to the run's evidence."""
        evidence.record(self.folder, stage, **facts)

    def recipes(self) -> show.Table:
        """The deployments of this model and hardware."""
        keys = {
            (
                recipes.served(self._named, self._hardware, recipe.layout).name,
                recipe.hardware,
                recipe.layout,
            )
            for recipe in self._recipes
        }
        return tables.recipes(
            [
                row
                for row in recipes.listing()
                if (row["model"], row["hardware"], row["layout"]) in keys
            ]
        )

    def all_recipes(self) -> show.Table:
        """Which model, hardware and layout exist."""
        return tables.matrix(recipes.listing(), recipes.missing(), recipes.container_only())

    def features(self) -> show.Table:
        """The choices that can be switched on this hardware and for this model."""
        return tables.features(self._model, self._hardware)

    def weights(self) -> show.Table:
        """The checkpoints of this model and how large they are."""
        return tables.weights(self._model)

    def nodes(self) -> show.Table:
        """The nodes of the site."""
        return tables.site(self._site())

    def notebooks(self) -> show.Table:
        """The notebooks, and which of them apply."""
        return tables.notebooks([recipe.layout for recipe in self._recipes])

    def hardware_notes(self) -> show.Table:
        """What is particular about this hardware and this model."""
        return show.Table(
            "Notes",
            ("note",),
            tuple((note,) for note in (*self._hardware.notes, *self._model.notes)),
        )

    def plan(
        self,
        layout: str | None = None,
        *,
        scenario: str = "",
        variant: str = "",
        features: Iterable[str] = (),
        without: Iterable[str] = (),
        overrides: Iterable[str] = (),
        engine_version: str = "",
    ) -> Plan:
        """Plan a layout and show where its engines stand. Raises KimiErrors."""
        plan = build.plan(
            self.model,
            self.hw,
            layout,
            scenario=scenario,
            variant=variant,
            site=self.site,
            chosen=given.words(features),
            dropped=given.words(without),
            pairs=given.words(overrides, ";"),
            engine_version=given.text(engine_version),
        )
        evidence.write_json(self.folder / plan.name / FINDINGS, plan.findings.as_dict())
        if plan.findings.memory:
            plan.findings.bars().picture().save(self.folder / plan.name / "pictures")
        self.record(
            "plan",
            plan=plan.name,
            site=plan.site,
            engines=len(plan.engines),
            hash=fingerprint.of_texts({"plan.json": plan.as_json()}),
            engine=f"{plan.engine} {plan.engine_version}",
            variant=plan.variant,
            scenario=plan.scenario,
            errata=[entry["id"] for entry in plan.errata],
        )
        self._draw(plan, plan.picture())
        show.show(tables.topology(plan))
        return plan

    def largest(self) -> str:
        """The layout with the most nodes. Raises NoRecipeError where none is described."""
        recipe = self._largest(None) or recipes.find(self._named, self._hardware, None)
        return recipe.layout

    def _draw(self, plan: Plan, picture: Picture) -> None:
        """Show a picture (in a terminal: its words) and keep it with its numbers."""
        picture.save(self.folder / plan.name / "pictures")
        show.show(picture if show.in_notebook() else picture.alt)

    def _draw_start(self, plan: Plan, result: Rehearsal | Deployed) -> None:
        """When every rank was ready; and who failed first, where one has failed."""
        from kimi_nb.notebook.pictures import failure_order as faults
        from kimi_nb.notebook.pictures import readiness_times as readiness

        mark = "" if result.mark == "measured" else result.mark
        self._draw(plan, readiness.picture(plan, result.times, mark=mark))
        if result.events:
            self._draw(plan, faults.picture(plan, result.events, mark=mark))

    def panel(
        self,
        layout: str = "",
        *,
        scenario: str = "",
        variant: str = "",
        features: Iterable[str] = (),
        without: Iterable[str] = (),
        overrides: Iterable[str] = (),
        engine_version: str = "",
    ) -> Panel:
        """Choose, look and rehearse, beside the notebook: widgets in front of a person, a table
        elsewhere. What the cells below do, the parameters cell decides. Without a layout: the
        first that there is."""
        from kimi_nb.notebook.panel.choices import Choices
        from kimi_nb.notebook.panel.panel import Panel

        layouts = [recipe.layout for recipe in self._recipes]
        for before in self._panels:  # a cell that is run again
            before.stop()
        made = Panel(
            self,
            Choices(
                self.model,
                self.hw,
                layout or next(iter(layouts), ""),
                scenario,
                variant,
                self.site,
                given.text(engine_version),
                ",".join(given.words(features)),
                ",".join(given.words(without)),
                ";".join(given.words(overrides, ";")),
            ),
        )
        self._panels.append(made)
        return made

    def explain(self, plan: Plan, role: str | None = None) -> show.Table:
        """Every flag and variable with value, layer, source and meaning."""
        return tables.settings(plan, role)

    def notes(self, plan: Plan) -> show.Table:
        """What the engine's version changed in the wording."""
        return show.Table(
            f"In the words of {plan.engine} {plan.engine_version}",
            ("note",),
            tuple((note,) for note in plan.notes),
        )

    def connector(self, plan: Plan) -> show.Table:
        """What each side tells the KV cache connector."""
        return tables.connector(plan)

    def write(self, plan: Plan) -> bundle.Bundle:
        """Write the plan's scripts; what changed against the last bundle of this name."""
        files = scripts.files(plan)
        folder = self.folder / plan.name / "bundle"
        before = self._last(plan.name) or {}
        bundle.write(files, folder)
        changes = bundle.diff(before, files)
        self.record(
            "write",
            plan=plan.name,
            bundle=folder,
            files=len(files),
            changed=len(changes),
            hash=fingerprint.of_texts(files),
        )
        return bundle.Bundle(folder, files, changes)

    def _last(self, name: str) -> dict[str, str] | None:
        """The last bundle of this plan: in this run's folder, else in the newest run beside
        it that has one."""
        here = bundle.read(self.folder / name / "bundle")
        if here is not None or not self.folder.parent.is_dir():
            return here
        beside = sorted(
            self.folder.parent.glob(f"*/{name}/bundle"),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )
        return bundle.read(beside[0]) if beside else None

    def diff(self, plan: Plan) -> show.Text:
        """The lines that writing this plan would change."""
        before = self._last(plan.name)
        if before is None:
            return show.Text("Against the last bundle of this name", "there is none: all is new")
        text = bundle.unified(before, scripts.files(plan))
        return show.Text("Against the last bundle of this name", text or "no change")

    def steps(self, plan: Plan) -> show.Table:
        """What a person runs, in which order, on which node."""
        return show.Table(
            "By hand, in this order", ("where", "run", "what it does"), tuple(scripts.steps(plan))
        )

    def chat(self, plan: Plan) -> show.Text:
        """The request with which the documents try the service."""
        return show.Text("client/chat.sh", scripts.files(plan)["client/chat.sh"])

    def check_weights(self, folder: str) -> list[str]:
        """What is missing of a checkpoint in a folder of this machine; [] is good."""
        needed = {name for item in self._model.weights.values() for name in item.files}
        found = weights.faults(params.user_path(folder, "weights_folder"), sorted(needed))
        self.record("weights", folder=folder, faults=found)
        return found

    def prerequisites(self, layout: str | None = None) -> show.Table:
        """Look at this machine as a node of the site; each look passes, fails or is skipped
        with the reason and the command it would have run. Without a layout: the largest."""
        recipe = self._largest(layout)
        cluster = self._site(recipe)
        served = recipes.served(self._named, self._hardware, recipe.layout if recipe else "")
        name = recipe.weights if recipe else next(iter(served.weights))
        here = prerequisites.is_node(cluster)
        seen = [
            prerequisites.look(item, cluster, here)
            for item in prerequisites.looks(
                self._hardware, cluster, served.weights[name], recipe.layout if recipe else "dp"
            )
        ]
        self.record(
            "prerequisites",
            **prerequisites.counts(seen),
            failed=[one.look.name for one in seen if one.status == "fail"],
        )
        return prerequisites.table(seen)

    def installs(self) -> list[str]:
        """The ways to install the engine on this hardware."""
        return list(self._hardware.installs)

    def install(self, method: str, engine_version: str = "") -> show.Text:
        """The commands of one way to install, each with what it does."""
        steps = build.install_steps(
            self._hardware, self._site(), self._engine(engine_version), method
        )
        lines = []
        for step in steps:
            where = f"  [in {step.directory}]" if step.directory else ""
            lines += [
                f"# {step.says}{where}",
                *shell.command(
                    [*(f"{name}={value}" for name, value in step.env.items()), *step.argv]
                ),
            ]
        self.record("install", method=method, steps=len(steps))
        return show.Text(f"{self._hardware.engine} by {method}", "\n".join(lines))

    def container(self, engine_version: str = "") -> show.Text:
        """The container of the site's first node; nothing where the hardware has none."""
        cluster = self._site()
        if self._hardware.container is None:
            return show.Text(f"{self._hardware.name} has no container", "")
        made = containers.container(
            self._hardware, cluster, cluster.nodes[0], self._engine(engine_version)
        )
        return show.Text(f"Container on {made.node}", "\n".join(shell.command(made.argv)))

    def versions(self, engine_version: str = "") -> show.Table:
        """The versions that belong together."""
        return tables.versions(self._engine(engine_version))

    def edits(self) -> list[str]:
        """The scripts that edit this model's weights before they can be served."""
        return [scripts.EDITS[item.edit] for item in self._model.weights.values() if item.edit]

    def job_files(self) -> show.Table:
        """The SLURM jobs of this model and hardware; empty where none are documented."""
        with_jobs = [recipe for recipe in self._recipes if recipe.jobs]
        if not with_jobs:
            return show.Table("0 jobs", ("file", "after", "command"), ())
        mine = self.site if self.site and self._site().slurm else ""
        return tables.jobs(
            build.plan(
                self.model, self.hw, with_jobs[0].layout, variant=with_jobs[0].variant, site=mine
            )
        )

    @property
    def _named(self) -> schema.Model:
        return params.model(self.model)

    @property
    def _model(self) -> schema.Model:
        """The named one, or the first that stands for it on this hardware."""
        return recipes.served(self._named, self._hardware)

    @property
    def _hardware(self) -> schema.Hardware:
        return params.hardware(self.hw)

    @property
    def _recipes(self) -> list[schema.Recipe]:
        return recipes.of(self._named, self._hardware)

    def _largest(self, layout: str | None) -> schema.Recipe | None:
        """The recipe of a layout; without one that with the most nodes; None where the
        container is all that is documented."""
        if layout is None and self._recipes:
            return max(
                self._recipes,
                key=lambda recipe: sum(role.groups * role.nodes for role in recipe.roles.values()),
            )
        if not self._recipes and self._hardware.recipes_of in self._model.container_versions:
            return None
        return recipes.find(self._named, self._hardware, layout)

    def _site(self, recipe: schema.Recipe | None = None) -> schema.Site:
        return params.site(self.site) if self.site else build.example_site(self._hardware, recipe)

    def _engine(self, engine_version: str) -> catalog.Engine:
        default = (
            self._recipes[0].engine_version
            if self._recipes
            else self._model.container_versions.get(self._hardware.recipes_of)
        )
        if default is None:
            recipes.find(self._named, self._hardware, None)  # raises with what there is
        return catalog.engine(self._hardware.engine, engine_version or default)

    def gate(self, plan: Plan) -> show.Table:
        """What the action may touch; with action deploy every node is looked at, and what would
        change is shown. Raises ParameterError where that is not confirmed by the site's name,
        StepFailed with what is wrong on the site."""
        if self.action != "deploy":
            return show.Table(f"Action {self.action}", ("what",), ((ACTIONS[self.action],),))
        from kimi_nb.deploy import lifecycle as deploy
        from kimi_nb.deploy.steps import together

        changes, diff = deploy.preview(plan, self.folder / plan.name)
        if diff:
            show.show(show.Text("The scripts that are there, and the new ones", diff))
        table = show.Table(
            f"{len(changes)} changes on {plan.site}",
            ("change",),
            tuple((line,) for line in together(changes)),
        )
        self.record(
            "gate",
            plan=plan.name,
            site=plan.site,
            changes=len(changes),
            confirmed=self.confirm == plan.site,
        )
        if self.confirm != plan.site:
            show.show(table)
            deploy.check_confirmed(plan, self.confirm)
        return table

    def serve(self, plan: Plan, *, url: str = "", fault: str = "", resume: bool = False) -> Service:
        """Start the service as the action says, up to a short load on its front door.

        Action plan starts nothing; rehearse runs the bundle's scripts here, on stand-ins
        (``fault`` makes something go wrong, `kimi-nb list --faults`); deploy runs them on the
        site (``resume`` leaves out what an earlier call has done). With a ``url`` nothing is
        started whatever the action: the service there is the plan's. Raises ServiceError with
        the diagnosis.
        """
        if url:
            return attach(self, plan, url)
        if fault and self.action != "rehearse":
            raise ParameterError(
                f"fault {fault!r}: action {self.action} starts nothing that is "
                "made to go wrong; choose action rehearse."
            )
        if self.action == "plan":
            return Service(self, plan, None)
        if self.action == "deploy":
            return self._deploy(plan, resume)
        from kimi_nb.rehearse import (
            rehearsal as rehearse,  # with action plan nothing of it is needed
        )

        for before in self._started:  # a cell that is run again
            before.stop()
        live = rehearse.start(plan, self.folder / plan.name, fault=fault, say=print)
        self._started.append(live)
        self._record(live.result)
        self._draw_start(plan, live.result)
        if not live.result.ok:
            raise ServiceError(f"{live.result.diagnosis}\n  logs: {live.result.folder}")
        return Service(self, plan, live)

    def _deploy(self, plan: Plan, resume: bool) -> Service:
        from kimi_nb.deploy import lifecycle as deploy

        made = deploy.up(
            plan, self.folder / plan.name, confirm=self.confirm, resume=resume, say=print
        )
        facts = made.result.as_dict()
        self.record(
            "deploy",
            **{
                key: facts[key]
                for key in (
                    "mark",
                    "plan",
                    "site",
                    "ok",
                    "engines",
                    "ready",
                    "ready_s",
                    "first_answer_s",
                    "memory_mb",
                    "moved_tokens",
                    "moved_bytes",
                    "changes",
                    "failed",
                    "step",
                )
            },
            logs=made.result.folder,
        )
        if made.result.times or made.result.events:
            self._draw_start(plan, made.result)
        if not made.result.ok:
            raise ServiceError(
                "\n".join(map(str, made.result.failed)) + f"\n  logs: "
                f"{made.result.folder}\n  What was started is left as it is: "
                "kimi-nb logs, kimi-nb up --resume, kimi-nb down."
            )
        return Service(self, plan, made)

    def _record(self, result: Rehearsal) -> None:
        """Evidence of a rehearsal: marked, and never beside figures of hardware."""
        facts = result.as_dict()
        self.record(
            "rehearse",
            **{
                key: facts[key]
                for key in (
                    "mark",
                    "plan",
                    "ok",
                    "engines",
                    "ready",
                    "ready_s",
                    "first_answer_s",
                    "peak_memory_mb",
                    "fault",
                    "diagnosis",
                )
            },
            logs=result.folder,
        )

    def close(self) -> show.Table:
        """The end: whatever still runs is stopped, and what was recorded."""
        ends: tuple[Panel | Live, ...] = (*self._panels, *self._started)
        for one in ends:
            one.stop()
        self.record("close", started=len(self._started))
        lines = evidence.read(self.folder)
        return show.Table(
            f"Evidence: {self.folder / evidence.FILE}",
            ("time", "stage", "facts"),
            tuple(
                (
                    line["time"],
                    line["stage"],
                    {key: value for key, value in line.items() if key not in ("time", "stage")},
                )
                for line in lines[-12:]
            ),
        )
