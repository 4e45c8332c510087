"""Write what the panel shows, as HTML: the head, the pages of the tabs, their titles.

Everything is a function of the choices' consequences or of the work; no widget is involved.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

from kimi_nb.check.findings import Findings
from kimi_nb.i18n import translate
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import choices, panel_style, work
from kimi_nb.notebook.panel.mistakes import Mistake
from kimi_nb.notebook.pictures import (
    device_memory,
    failure_order,
    flag_changes,
    readiness_times,
    topology_picture,
)
from kimi_nb.plan.spec import Plan

TABS = ("Topology", "Findings", "Memory", "Scripts", "Changes", "Parameters", "Size", "Service")
SIZE = "Size"  # the tab that searches sizes
SERVICE = "Service"  # the tab of the rehearsal or deployment


def head(look: choices.Look, wrong: Sequence[Mistake]) -> str:
    """Return the name of the plan, what it is and its size; or that there is none."""
    given, plan = look.choices, look.plan
    if plan is None:
        name = "-".join(filter(None, (given.model, given.hw, given.layout)))
        count = f"{len(wrong)} mistake{'s' * (len(wrong) != 1)}"
        return _head(name, "no plan", f"cannot be planned: {count}, told by the field in red")
    kind = "documented" if plan.documented else "derived" if plan.derived else "undocumented"
    nodes = len(plan.nodes)
    facts = (
        f"{len(plan.engines)} engine{'s' * (len(plan.engines) > 1)} on {nodes} "
        f"node{'s' * (nodes > 1)}",
        f"{plan.engine} {plan.engine_version}",
        f"site {plan.site}",
        plan.url,
    )
    return _head(plan.name, kind, " · ".join(map(translate, facts)))


def _head(name: str, kind: str, facts: str) -> str:
    return (
        f'<span class="kimi-name">{html.escape(name)}</span>'
        f'<span class="kimi-badge">{html.escape(translate(kind))}</span>'
        f'<div class="kimi-soft">{html.escape(translate(facts))}</div>'
    )


def titles(
    look: choices.Look, first: Plan | None, doing: work.Work, sizes: str = ""
) -> tuple[str, ...]:
    """Return the titles of the tabs, with counts: of findings, how many are errors.

    ``sizes`` is the count of the tab that searches sizes.
    """
    counts = {SERVICE: _working(doing), SIZE: sizes}
    if look.findings is not None and look.plan is not None:
        found = look.findings
        counts |= {
            "Findings": f"{len(found.errors)}/{len(found.findings)}",
            "Scripts": str(sum(map(len, look.parts.values()))),
            "Changes": str(len(flag_changes.difference(first or look.plan, look.plan))),
        }
    return tuple(f"{translate(name)} {counts.get(name, '')}".strip() for name in TABS)


def _working(doing: work.Work) -> str:
    """Return how far the work is, for the title of its tab."""
    if doing.checks.running:
        return f"{doing.checks.done}/{doing.checks.total}"
    seen = doing.result or doing.progress
    if doing.state == work.IDLE:
        return ""
    if seen is None or doing.state in (work.FAILED, work.STOPPED):
        return translate(doing.state)
    return f"{seen.ready}/{seen.engines}"


def page(name: str, look: choices.Look, first: Plan | None, wrong: Sequence[Mistake] = ()) -> str:
    """Return the page of a tab, but those of the scripts, the sizes and the service."""
    if name == "Parameters":
        return _parameters(look.choices)
    if look.plan is None or look.findings is None:
        told = "\n".join(mistake.message for mistake in wrong) or look.error
        return (
            f"<p>{translate('There is no plan.')}</p><pre>{panel_style.escaped_lines(told)}</pre>"
        )
    found = look.findings
    drawn: Mapping[str, Callable[[Plan], str]] = {
        "Topology": lambda plan: topology_picture.picture(plan)._repr_html_(),
        "Findings": lambda _: _findings(found),
        "Memory": lambda _: device_memory.picture(found.memory)._repr_html_(),
        "Changes": lambda plan: flag_changes.picture(first or plan, plan)._repr_html_(),
    }
    return drawn[name](look.plan)


def _findings(found: Findings) -> str:
    errors, every = len(found.errors), len(found.findings)
    what = "prevents a start" if errors == 1 else "prevent a start"
    return f"<p>{translate(f'{errors} of {every} {what}.')}</p>{found._repr_html_()}"


def _parameters(given: Choice) -> str:
    told = translate(
        "What the cells below do, the parameters cell decides. Put these lines there, in notebook "
        f'{choices.notebook(given.layout)}, or in one for every layout with layout: str = "{given.layout}", '
        "and run it again:"
    )
    return f"<p>{html.escape(told)}</p>{panel_style.copyable('parameters', given.lines())}"


def scripts(look: choices.Look) -> Mapping[str, str]:
    """Return the files of each folder, each with a button of its own."""
    return {
        folder: "".join(panel_style.copyable(name, text) for name, text in files.items())
        for folder, files in look.parts.items()
    }


# The service -------------------------------------------------------------------------


def status(doing: work.Work, plan: Plan | None) -> str:
    """Return the line below the buttons: which plan the work is about, and how far it is."""
    seen = doing.result or doing.progress
    shown = doing.busy
    ready, engines = (seen.ready, seen.engines) if seen is not None else (0, 1)
    other = (
        f" The choices above are {plan.name}, which does not run."
        if doing.busy and plan is not None and doing.plan is not None and plan != doing.plan
        else ""
    )
    drawn = panel_style.bar("engines ready", ready, engines) if shown else ""
    return f"{drawn}<span role='status'>{panel_style.escaped(doing.said + other)}</span>"


def progress(doing: work.Work, plan: Plan | None) -> str:
    """Return the first part of the service's page, which is there from the first second."""
    if doing.plan is None:
        name = plan.name if plan is not None else "the plan"
        told = (
            f"Nothing runs. Rehearse starts the scripts of {name} on this machine, with stand-ins for "
            "the engines. Deploy starts them on the site."
        )
        return f"<p>{html.escape(translate(told))}</p>"
    how = "Deployment" if doing.deployed else "Rehearsal"
    title = translate(f"{how} of {doing.plan.name}: {_state(doing)}")
    lines = [f"<h4>{html.escape(title)}</h4>"]
    if doing.state == work.STARTING:
        seen = doing.progress
        ready, engines = (seen.ready, seen.engines) if seen else (0, len(doing.plan.engines))
        does = seen.doing if seen else doing.line or "writes the scripts and starts them"
        lines += [
            f"<p>{panel_style.bar('engines ready', ready, engines)}"
            + panel_style.escaped(
                f"{ready} of {engines} engines ready, {doing.seconds:.1f} s: {does}"
            )
            + "</p>"
        ]
        if seen is not None and seen.line:
            lines += [f"<div class='kimi-said'>{panel_style.escaped(seen.line, 200)}</div>"]
    if doing.error:
        lines += [panel_style.alert(doing.error)]
    return "".join(lines)


def _state(doing: work.Work) -> str:
    return "is being stopped" if doing.stopping else doing.state


def checking(doing: work.Work) -> str:
    """Return the checks: their progress, then their result."""
    checks = doing.checks
    if checks.contract is not None:
        return f"<h4>{translate('Verification')}</h4>{checks.contract._repr_html_()}"
    if not checks.said:
        return ""
    drawn = panel_style.bar("checks made", checks.done, checks.total) if checks.running else ""
    return (
        f"<h4>{translate('Verification')}</h4><p>{drawn}{panel_style.escaped(checks.said)}</p>"
        f"<div class='kimi-said'>{panel_style.escaped(checks.line, 200)}</div>"
    )


def result(doing: work.Work) -> str:
    """Return the result of a start with its pictures, which are saved beside its logs."""
    found, plan = doing.result, doing.plan
    if found is None or plan is None:
        return ""
    mark = "" if found.mark == "measured" else found.mark
    pictures = [readiness_times.picture(plan, found.times, mark=mark)]
    if found.events:
        pictures.insert(0, failure_order.picture(plan, found.events, mark=mark))
    for picture in pictures:
        picture.save(found.folder)
    return found._repr_html_() + "".join(picture._repr_html_() for picture in pictures)
