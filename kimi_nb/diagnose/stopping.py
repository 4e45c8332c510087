"""Tell what only followed from an order to stop: `kimi-nb down`, SIGTERM, a job that was cancelled.

Example::

    stopping.forgiven(event_order.ordered(candidates), sights)  # events that are no failures

Engines that are told to stop one after the other lose each other, and say so as they do when one has
failed. They have not failed if the order came first, and if nobody ended without a word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol

from kimi_nb.diagnose import followers, matching
from kimi_nb.diagnose.event import Event
from kimi_nb.diagnose.event_roles import Candidate, Role
from kimi_nb.diagnose.matching import Line

_RECEIVED = "received: stopping all ranks"  # by a launcher (data/bundle/launch_online_dp.py)
_NOTE = re.compile(r"kimi-nb down: job (\d+)")
_CANCELLED = "job-cancelled"  # the signature of what scancel leaves
_JOB = re.compile(r"\b(?:JOB |JobId=|STEP )(\d+)")
_FILE = re.compile(r"\.(\d+)\.(?:[\w-]+\.)?(?:out|err)\b")  # NAME.JOB.err, NAME.JOB.TASK.err
_TERMINATED = ("signal SIGTERM", "exit code 143")


class Seen(Protocol):
    """What is read of one log here (`log_summary.Sight`)."""

    serves: Line | None
    stop: Line | None

    @property
    def events(self) -> Sequence[Event]:
        """The events that are no harmless ones."""

    @property
    def stopped(self) -> Sequence[Event]:
        """The events that only followed from an order to stop."""


def forgiven(
    order: Sequence[Candidate], seen: Sequence[Seen], deployed: bool = True
) -> list[Candidate]:
    """Return the events of ``order`` that followed from an order to stop, in the logs ``seen``.

    `scancel` is one where an engine has served: whose job failed has errors before it. Of a
    deployment (``deployed``) it is none: that is to serve until `kimi-nb down` ends it.
    """
    served = not deployed and any(one.serves for one in seen)
    by_hand = [one for one in order if served and _is_cancelled(one)]
    jobs = _asked(seen) | {_job(one) for one in by_hand}
    files = {one.line.file for one in by_hand}
    told = [_job(one) in jobs or (_of_slurm(one) and one.line.file in files) for one in order]
    cancelled = [one for one, mine in zip(order, told, strict=True) if mine]
    rest = [one for one, mine in zip(order, told, strict=True) if not mine]
    given = [*_orders(rest, seen), *(one.line for one in by_hand)]
    lost = {followers.who(one) for one in rest if one.role is Role.CASCADE}
    if not rest or not given or not all(_follows(one, lost) for one in rest):
        return cancelled
    times = matching.times([given_at.time for given_at in given] + [_time(one) for one in rest])
    late = min(times[len(given) :]) >= min(times[: len(given)])
    return [*order] if late and not _silent(rest, seen) else cancelled


def notes(seen: Sequence[Seen]) -> tuple[str, ...]:
    """Return a note for each job that somebody cancelled once its engine had served."""
    asked = _asked(seen)
    jobs: dict[str, None] = {}
    for event in (event for one in seen for event in one.stopped):
        if any(match.signature.id == _CANCELLED for match in event.matches):
            found = _JOB.search(event.first.text)
            if not found or found[1] not in asked:
                jobs.setdefault(f"job {found[1]}" if found else "a job")
    return tuple(
        f"{job} was cancelled (scancel) after its engine had served: no failure. If it was not you, "
        "ask the cluster's administrators"
        for job in jobs
    )


def _asked(seen: Sequence[Seen]) -> set[str]:
    """Return the jobs that `kimi-nb down` has cancelled."""
    stops = [one.stop for one in seen if one.stop is not None]
    return {found[1] for stop in stops if (found := _NOTE.search(stop.text))}


def _of_slurm(one: Candidate) -> bool:
    return one.event.said.grammar == "slurm"


def _is_cancelled(one: Candidate) -> bool:
    return one.match is not None and one.match.signature.id == _CANCELLED


def _job(one: Candidate) -> str:
    """Return the number of the job that SLURM tells to have ended, or ""."""
    if not (_of_slurm(one) or _is_cancelled(one)):
        return ""
    found = _JOB.search(one.event.first.text) or _FILE.search(one.event.first.file)
    return found[1] if found else ""


def _orders(order: Sequence[Candidate], seen: Sequence[Seen]) -> list[Line]:
    """Return the lines by which somebody outside had an engine stopped.

    A launcher that stops its ranks because one has failed, and an engine that ends after an error of
    its own, were not told to.
    """
    failing = {one.node for one in order if followers.ends(one)}
    out = []
    for sight in seen:
        stop = sight.stop
        if stop is None:
            continue
        before = [one for one in sight.events if one.first.number < stop.number]
        from_outside = _RECEIVED in stop.text or _NOTE.search(stop.text)
        if from_outside or not (before or stop.node in failing):
            out.append(stop)
    return out


def _follows(one: Candidate, lost: Collection[tuple[str, int | None]]) -> bool:
    """Return whether an event may be due to an order to stop; ``lost`` are who had lost others."""
    if one.role >= Role.CASCADE:
        return True
    if not followers.ends(one) or one.match is None:
        return False
    return one.match.found["key"] in _TERMINATED or followers.who(one) in lost


def _time(one: Candidate) -> str:
    return one.event.first.time


def _silent(order: Sequence[Candidate], seen: Sequence[Seen]) -> bool:
    """Return whether an engine that served ended without a word: nobody had told it to stop."""
    told = {followers.who(one) for one in order}
    received = set()
    for sight in seen:
        if sight.stop is not None:
            told.add((sight.stop.node, sight.stop.rank))
            if _RECEIVED in sight.stop.text:
                received.add(sight.stop.node)
    serving = [sight.serves for sight in seen if sight.serves is not None]
    return any(line.node not in received and (line.node, line.rank) not in told for line in serving)
