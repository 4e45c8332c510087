"""Look at one engine of each role as the rules see it: its settings and its shape.

Example::

    for view in role_views.of(plan):
        view.role, view.server.draft, view.shape.seqs
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_nb.check import judge
from kimi_nb.check.rules import capacity
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.plan.memory import Shape
from kimi_nb.plan.spec import Plan


@dataclass(frozen=True)
class RoleView:
    """An engine of a role; ``shape`` is None where a size cannot be read."""

    role: str
    deployment: Deployment
    server: EngineView
    shape: Shape | None


def of(plan: Plan) -> tuple[RoleView, ...]:
    """Return the first engine of each role, in the plan's order."""
    deployment = judge.of_plan(plan)
    found: dict[str, RoleView] = {}
    for server, _ in deployment.profiles():
        if server.role not in found:
            shape = capacity.shape_of(deployment, server)
            found[server.role] = RoleView(server.role, deployment, server, shape)
    return tuple(found[role] for role in plan.flags if role in found)


def decoding(plan: Plan) -> RoleView | None:
    """Return the engine that decodes: of role decode, or of the only role there is."""
    views = of(plan)
    return next((view for view in views if view.role != "prefill"), None)
