"""Find the service that was deployed on the site, so that later notebooks measure that one.

Example::

    choice = running.choice(run, "my-cluster")  # of kimi-nb up, or of notebook 05
"""

from __future__ import annotations

from pathlib import Path

from kimi_nb.deploy import journal
from kimi_nb.notebook.choice import Choice
from kimi_nb.params import load
from kimi_nb.plan.spec import Plan
from kimi_nb.service.session import Session


def choice(session: Session, site: str) -> Choice | None:
    """Return the choice that is deployed on a site, of the session's model; None where none is up.

    Deployments are looked for in the session's folder and in the runs beside it.
    """
    model, hardware = load.model(session.model).name, load.hardware(session.hw).name
    for found in journal.up_on(site, session.folder.parent):
        request = found.kept_plan().request
        if ((request.named or request.model.name), request.hardware.name) == (model, hardware):
            asked = found.more["asked"]
            return Choice(
                session.model,
                session.hw,
                asked["layout"],
                asked["scenario"],
                asked["variant"],
                session.site,
                asked["engine_version"],
                ",".join(asked["chosen"]),
                ",".join(asked["dropped"]),
                ";".join(asked["pairs"]),
                ",".join(asked["erratum"]),
                "yes" if request.recipe.derivation else "",
            )
    return None


def folder(session: Session, plan: Plan) -> Path:
    """Return the folder of a plan's deployment: where it is up, or else in the session's folder."""
    for found in journal.up_on(plan.site, session.folder.parent):
        if found.plan == plan.name:
            return found.folder.parent.parent
    return session.folder / plan.name
