"""Start what a plan describes as the run's action says, and record and draw the start."""

from __future__ import annotations

from kimi_nb import show
from kimi_nb.check.findings import Findings
from kimi_nb.core import evidence, fingerprint
from kimi_nb.core.errors import ServiceError
from kimi_nb.notebook.pictures import device_memory
from kimi_nb.plan.spec import Plan
from kimi_nb.service import confirmation
from kimi_nb.service.handle import Running, Started
from kimi_nb.service.session import Session
from kimi_nb.show.picture import Picture

FINDINGS = "findings.json"  # the rules' findings, beside the plan's bundle
# What each action may touch.
ACTIONS = {
    "plan": "files are written to the run's folder, nothing else is touched",
    "rehearse": "the scripts run on this machine, on stand-ins; no node is touched",
    "deploy": "the scripts run on the site, once it is confirmed by its name; the service stays up",
}
_REHEARSED = (
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
_DEPLOYED = (
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


def record_plan(session: Session, plan: Plan, found: Findings) -> None:
    """Keep a plan's findings and the picture of its memory, and record it as evidence."""
    evidence.write_json(session.folder / plan.name / FINDINGS, found.as_dict())
    if found.memory:
        device_memory.picture(found.memory).save(session.folder / plan.name / "pictures")
    session.record(
        "plan",
        plan=plan.name,
        site=plan.site,
        engines=len(plan.engines),
        hash=_hash(plan),
        engine=f"{plan.engine} {plan.engine_version}",
        variant=plan.variant,
        scenario=plan.scenario,
        errata=[entry["id"] for entry in plan.errata],
        errata_off=plan.errata_off,
    )


def is_recorded(session: Session, plan: Plan) -> bool:
    """Return whether the last plan of this name in the run's folder is this one, and written."""
    kept = [one for one in evidence.read(session.folder) if one.get("plan") == plan.name]
    at = max((n for n, one in enumerate(kept) if one.get("stage") == "plan"), default=len(kept))
    written = any(one.get("stage") == "write" for one in kept[at:])
    return written and kept[at].get("hash") == _hash(plan)


def _hash(plan: Plan) -> str:
    return fingerprint.of_texts({"plan.json": plan.as_json()})


def shared(session: Session, plan: Plan) -> Running | None:
    """Return the rehearsal of a plan that the run keeps for its notebooks; None without one."""
    if session.action != "rehearse":
        return None
    from kimi_nb.rehearse import sharing  # the stand-ins: not for the other actions

    taken = sharing.take(session.folder, plan)
    if taken is not None:
        session.record("share", plan=plan.name, mark=taken.result.mark, url=taken.url)
        _draw_start(session, plan, taken.result)
    return taken


def gate(session: Session, plan: Plan, confirm: str) -> show.Table:
    """Say what the action may touch; for deploy, inspect every node and list what would change.

    Raises ParameterError where a deployment is not confirmed by the site's name, and StepFailed
    with what is wrong on the site.
    """
    if session.action != "deploy":
        return show.Table(f"Action {session.action}", ("what",), ((ACTIONS[session.action],),))
    from kimi_nb.deploy import lifecycle  # pyinfra and others: only for a deployment
    from kimi_nb.deploy.steps import together
    from kimi_nb.notebook import running

    changes, diff = lifecycle.preview(plan, running.folder(session, plan))
    if diff:
        show.show(show.Text("The scripts that are there, and the new ones", diff))
    lines = tuple((line,) for line in together(changes))
    title = f"{len(changes)} changes on {plan.site}; afterwards the service stays up"
    table = show.Table(title, ("change",), lines)
    confirmed = confirmation.is_confirmed(plan.site, confirm)
    session.record(
        "gate", plan=plan.name, site=plan.site, changes=len(changes), confirmed=confirmed
    )
    if not confirmed:
        show.show(table)
        lifecycle.check_confirmed(plan, confirm)
    return table


def rehearse(session: Session, plan: Plan, fault: str) -> Running:
    """Start the plan's scripts here, with stand-ins; the caller must stop it in every case."""
    from kimi_nb.rehearse import rehearsal  # the stand-ins: not for the other actions

    live = rehearsal.start(plan, session.folder / plan.name, fault=fault, say=show.say)
    facts = live.result.as_dict()
    session.record("rehearse", **{key: facts[key] for key in _REHEARSED}, logs=live.result.folder)
    _draw_start(session, plan, live.result)
    return live


def deploy(session: Session, plan: Plan, confirm: str, resume: bool) -> Running:
    """Run the plan's scripts on its site. Raises ServiceError with what failed."""
    from kimi_nb.deploy import lifecycle  # pyinfra and others: only for a deployment
    from kimi_nb.notebook import running

    folder = running.folder(session, plan)
    up = lifecycle.up(plan, folder, confirm=confirm, resume=resume, say=show.say)
    facts = up.result.as_dict()
    session.record("deploy", **{key: facts[key] for key in _DEPLOYED}, logs=up.result.folder)
    if up.result.times or up.result.events:
        _draw_start(session, plan, up.result)
    if not up.result.ok:
        raise ServiceError(
            "\n".join(map(str, up.result.failed)) + f"\n  logs: {up.result.folder}\n  What was "
            "started is left as it is: kimi-nb logs, kimi-nb up --resume, kimi-nb down."
        )
    return up


def draw(session: Session, plan: Plan, picture: Picture) -> None:
    """Show a picture (in a terminal, its description) and save it with its numbers."""
    picture.save(session.folder / plan.name / "pictures")
    show.show(picture if show.in_notebook() else picture.alt)


def _draw_start(session: Session, plan: Plan, result: Started) -> None:
    """Draw when each rank was ready and, where one has failed, which one failed first."""
    # Imported inside: a notebook that only plans draws no start.
    from kimi_nb.notebook.pictures import failure_order, readiness_times

    mark = "" if result.mark == "measured" else result.mark
    draw(session, plan, readiness_times.picture(plan, result.times, mark=mark))
    if result.events:
        draw(session, plan, failure_order.picture(plan, result.events, mark=mark))
