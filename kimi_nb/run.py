"""One walk through a notebook: what it is about, what it made, what it saw.

    run = kimi_nb.start(hw="a3", model="k2.5", site="", action="plan", confirm="", run_dir="")
    plan = run.plan("pd")
    bundle = run.write(plan)
    run.close()

Every method shows what it did, in a notebook as a table, elsewhere as text, and leaves a line
of evidence in the run's folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb import (
    build,
    bundle,
    catalog,
    evidence,
    params,
    prerequisites,
    recipes,
    schema,
    scripts,
    shell,
    show,
    weights,
)
from kimi_nb.errors import NoRecipeError
from kimi_nb.plan import Plan


@dataclass(frozen=True)
class Run:
    """What `start` returns; see the module."""

    model: str
    hw: str
    site: str
    action: str
    confirm: str
    folder: Path

    def record(self, stage: str, **facts: Any) -> None:
        """Add a line to the run's evidence."""
        evidence.record(self.folder, stage, **facts)

    def recipes(self) -> show.Table:
        """The deployments of this model and hardware."""
        chip = params.hardware(self.hw).recipes_of
        served = params.model(self.model).name
        return show.recipes([row for row in recipes.listing()
                             if (row["model"], row["hardware"]) == (served, chip)])

    def all_recipes(self) -> show.Table:
        """Which model, hardware and layout exist."""
        only = [(params.model(name).name, chip) for name in params.names("models")
                for chip in params.model(name).container_versions]
        return show.matrix(recipes.listing(), recipes.missing(), only)

    def features(self) -> show.Table:
        """The choices that can be switched on this hardware and for this model."""
        chip, served = params.hardware(self.hw), params.model(self.model)
        rows = tuple((name, feature.reason, feature.price, ", ".join(feature.excludes))
                     for name, feature in params.features().items()
                     if chip.vendor in feature.vendors
                     and (not feature.models or served.name in feature.models)
                     and (not feature.draft or feature.draft in served.drafts
                          and chip.vendor in served.drafts[feature.draft].vendors))
        return show.Table("Features: --with NAME, --without NAME",
                          ("feature", "reason", "price", "excludes"), rows)

    def plan(self, layout: str | None = None, *, scenario: str = "", variant: str = "",
             features: Iterable[str] = (), without: Iterable[str] = (), set: Iterable[str] = (),
             engine_version: str = "") -> Plan:
        """Plan a layout and show where its engines stand. Raises KimiErrors."""
        plan = build.plan(self.model, self.hw, layout, scenario=scenario, variant=variant,
                          site=self.site, chosen=_words(features), dropped=_words(without),
                          pairs=_words(set, ";"), engine_version=str(engine_version))
        self.record("plan", plan=plan.name, site=plan.site, engines=len(plan.engines),
                    engine=f"{plan.engine} {plan.engine_version}", variant=plan.variant,
                    scenario=plan.scenario, errata=[entry["id"] for entry in plan.errata])
        show.show(show.topology(plan))
        return plan

    def explain(self, plan: Plan, role: str | None = None) -> show.Table:
        """Every flag and variable with value, layer, source and meaning."""
        return show.settings(plan, role)

    def errata(self, plan: Plan) -> show.Table:
        """What the plan does differently from its documents."""
        return show.errata(plan)

    def notes(self, plan: Plan) -> show.Table:
        """What the engine's version changed in the wording."""
        return show.Table(f"In the words of {plan.engine} {plan.engine_version}", ("note",),
                          tuple((note,) for note in plan.notes))

    def write(self, plan: Plan) -> bundle.Bundle:
        """Write the plan's scripts; what changed against the last bundle of this name."""
        files = scripts.files(plan)
        folder = self.folder / plan.name / "bundle"
        before = self._last(plan.name) or {}
        bundle.write(files, folder)
        changes = bundle.diff(before, files)
        self.record("write", plan=plan.name, bundle=folder, files=len(files),
                    changed=len(changes))
        return bundle.Bundle(folder, files, changes)

    def _last(self, name: str) -> dict[str, str] | None:
        """The last bundle of this plan: in this run's folder, else in the newest run beside
        it that has one."""
        here = bundle.read(self.folder / name / "bundle")
        if here is not None or not self.folder.parent.is_dir():
            return here
        beside = sorted(self.folder.parent.glob(f"*/{name}/bundle"),
                        key=lambda path: path.stat().st_mtime, reverse=True)
        return bundle.read(beside[0]) if beside else None

    def diff(self, plan: Plan) -> show.Text:
        """The lines that writing this plan would change."""
        text = bundle.unified(self._last(plan.name) or {}, scripts.files(plan))
        return show.Text("Against the last bundle of this name", text or "no change")

    def chat(self, plan: Plan) -> show.Text:
        """The request with which the documents try the service."""
        return show.Text("client/chat.sh", scripts.files(plan)["client/chat.sh"])

    def weights(self) -> show.Table:
        """The checkpoints of this model and how large they are."""
        rows = [(name, item.id, item.precision, item.hub,
                 f"{item.size_gb} GB ({item.size_is})" if item.size_gb else "not published")
                for name, item in params.model(self.model).weights.items()]
        rows += [(name, draft.id, f"draft, {draft.method}", "huggingface", "not published")
                 for name, draft in params.model(self.model).drafts.items()]
        return show.Table("Weights", ("name", "id", "precision", "hub", "size on disk"),
                          tuple(rows))

    def check_weights(self, folder: str) -> list[str]:
        """What is missing of a checkpoint in a folder of this machine; [] is good."""
        served = params.model(self.model)
        needed = {name for item in served.weights.values() for name in item.files}
        found = weights.faults(Path(folder).expanduser(), sorted(needed))
        self.record("weights", folder=folder, faults=found)
        return found

    def prerequisites(self, layout: str | None = None) -> show.Table:
        """Look at this machine as a node of the site; each look passes, fails or is skipped
        with the reason and the command it would have run."""
        chip, served = params.hardware(self.hw), params.model(self.model)
        recipe = self._recipe(layout)
        cluster = self._site(recipe)
        name = recipe.weights if recipe else next(iter(served.weights))
        here = prerequisites.is_node(cluster)
        seen = [prerequisites.look(item, cluster, here) for item in prerequisites.looks(
            chip, cluster, served.weights[name], recipe.layout if recipe else "dp")]
        self.record("prerequisites", **prerequisites.counts(seen),
                    failed=[one.look.name for one in seen if one.status == "fail"])
        return prerequisites.table(seen)

    def _recipe(self, layout: str | None = None) -> schema.Recipe | None:
        """The recipe of a layout, or the first there is; None where there is the container only."""
        chip, served = params.hardware(self.hw), params.model(self.model)
        there = recipes.of(served, chip)
        if layout is None and there:
            return there[-1] if all(recipe.layout != "pd" for recipe in there) else next(
                recipe for recipe in there if recipe.layout == "pd")
        if not there and chip.recipes_of in served.container_versions:
            return None
        return recipes.find(served, chip, layout)

    def _site(self, recipe: schema.Recipe | None = None) -> schema.Site:
        return (params.site(self.site) if self.site
                else build.example_site(params.hardware(self.hw), recipe))

    def installs(self) -> list[str]:
        """The ways to install the engine on this hardware."""
        return list(params.hardware(self.hw).installs)

    def install(self, method: str, engine_version: str = "") -> show.Text:
        """The commands of one way to install, each with what it does."""
        chip = params.hardware(self.hw)
        steps = build.install_steps(chip, self._site(), self._engine(engine_version), method)
        lines = []
        for step in steps:
            where = f"  [in {step.directory}]" if step.directory else ""
            lines += [f"# {step.says}{where}", *shell.command(
                [*(f"{name}={value}" for name, value in step.env.items()), *step.argv])]
        self.record("install", method=method, steps=len(steps))
        return show.Text(f"{chip.engine} by {method}", "\n".join(lines))

    def container(self, engine_version: str = "") -> show.Text:
        """The container of the site's first node."""
        from kimi_nb.containers import container

        chip, cluster = params.hardware(self.hw), self._site()
        made = container(chip, cluster, cluster.nodes[0], self._engine(engine_version))
        return show.Text(f"Container on {made.node}", "\n".join(shell.command(made.argv)))

    def versions(self, engine_version: str = "") -> show.Table:
        """The versions that belong together."""
        engine = self._engine(engine_version)
        row = params.data("versions")["vllm-ascend"].get(engine.version, {})
        rows = [(engine.package, engine.version), ("vllm", engine.vllm),
                *((name, value) for name, value in row.items() if name != "vllm")]
        return show.Table("Versions that belong together", ("part", "version"), tuple(rows))

    def _engine(self, engine_version: str) -> catalog.Engine:
        chip, served = params.hardware(self.hw), params.model(self.model)
        there = recipes.of(served, chip)
        default = (there[0].engine_version if there
                   else served.container_versions.get(chip.recipes_of))
        if default is None:
            raise NoRecipeError(f"No document describes {served.title} on {chip.name}, not even "
                                "its container: kimi-nb list shows what there is.")
        return catalog.engine(chip.engine, engine_version or default)

    def jobs(self, plan: Plan) -> show.Table:
        """The SLURM jobs of a plan, in the order in which they are submitted."""
        return show.Table(f"{len(plan.jobs)} jobs", ("file", "after", "command"),
                          tuple((job.file, job.after, " ".join(job.argv[:4])) for job in plan.jobs))

    def close(self) -> show.Table:
        """The end: nothing was started by action plan, and what was recorded."""
        self.record("close", started=0)
        lines = evidence.read(self.folder)
        return show.Table(f"Evidence: {self.folder / evidence.FILE}", ("time", "stage", "facts"),
                          tuple((line["time"], line["stage"], {
                              key: value for key, value in line.items()
                              if key not in ("time", "stage")}) for line in lines[-12:]))


def _words(given: Iterable[str] | str, sign: str = ",") -> list[str]:
    """A list, or a text with commas (papermill passes texts; ``;`` between key=value pairs,
    whose values may hold commas)."""
    if isinstance(given, str):
        return [word.strip() for word in given.split(sign) if word.strip()]
    return list(given)
