"""Verify a service for a notebook or the panel, explain failures and record the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kimi_nb import show
from kimi_nb.core.errors import KimiError
from kimi_nb.prove.verify import runner, target
from kimi_nb.prove.verify.contract import Contract
from kimi_nb.prove.verify.runner import Checks
from kimi_nb.service.handle import Service
from kimi_nb.service.session import Session


def verify(
    session: Session,
    service: Service,
    checks: Checks | None = None,
    *,
    resume: bool = False,
    random_weights: bool = False,
    say: Callable[[str], None] = show.say,
) -> Contract:
    """Check whether a service keeps its contract, and explain a failure from its logs.

    ``say`` gets a line for each check; an exception from it ends the verification.
    """
    asked = checks or Checks()
    found = runner.verify(
        target.of(service, random_weights=random_weights),
        resume=resume,
        only=asked.only,
        folder=session.folder / service.plan.name,
        say=say,
        max_context=asked.max_context,
    )
    if not (found.ok or found.only_door) and service.live is not None:
        found = replace(found, logs=_first_failure(service))
    session.record(
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


def _first_failure(service: Service) -> str:
    """Return the doctor's diagnosis of the service's logs; "" where they show nothing."""
    from kimi_nb.diagnose import doctor  # loads hyperscan: only after a failure

    assert service.live is not None
    try:
        report = doctor.examine(service.live.result.folder, service.serving)
    except KimiError:  # there are no logs
        return ""
    return str(report.first) if report.first else ""
