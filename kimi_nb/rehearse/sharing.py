"""Share a rehearsal with other processes: the one that started it offers it, others take it.

    with sharing.offer(folder) as shared:            # in the process that starts it
        shared.give(plan, rehearsal.start(plan, folder))
    taken = sharing.take(folder, plan)               # in others; None where none of this plan is up

The offer is a file of the run's folder that its owner keeps locked. A file that nobody has locked
is left over from an owner that was killed, and its rehearsal has ended with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb.core import fingerprint, known_secrets
from kimi_nb.core.errors import WriteError
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse.launch import WORK, client_key
from kimi_nb.rehearse.loopback import Addresses
from kimi_nb.rehearse.rehearsal import Live, Rehearsal
from kimi_nb.rehearse.simulated_site import rebound

FILE = "shared_rehearsal.json"
_STARTING, _UP, _NONE = "starting", "up", "none"
_WAIT, _STEP = 90.0, 0.1  # seconds for one that is starting, and between two looks at it


@dataclass(frozen=True)
class Offer:
    """The owner's side: says that a rehearsal is starting, is up, or is not to be had."""

    path: Path

    def start(self, plan: Plan) -> None:
        """Say of which plan a rehearsal is starting."""
        self._write(state=_STARTING, hash=_hash(plan))

    def give(self, plan: Plan, live: Live) -> None:
        """Say that the rehearsal of a plan is up, and where."""
        second = int(live.plan.engines[0].address.split(".")[1])
        self._write(state=_UP, hash=_hash(plan), second=second, result=live.result.as_dict())

    def withdraw(self) -> None:
        """Say that there is none: who needs one starts it."""
        self._write(state=_NONE)

    def _write(self, **facts: Any) -> None:
        # In place: the lock is on this very file.
        plain = known_secrets.value(json.loads(json.dumps(facts, default=str)))
        self.path.write_text(json.dumps(plain), encoding="utf-8")


@dataclass(frozen=True)
class Taken:
    """The others' side: a service that somebody else has started and will stop.

    ``plan`` has the addresses of this machine, as that of `Live` has.
    """

    plan: Plan
    result: Rehearsal
    key: str
    path: Path

    @property
    def up(self) -> bool:
        """Whether its owner still offers it."""
        return _offered(self.path).get("state") == _UP

    @property
    def url(self) -> str:
        """The address of the service on this machine."""
        return self.plan.url

    def stop(self) -> Rehearsal:
        """Return its result; its owner stops it."""
        return self.result


@contextlib.contextmanager
def offer(folder: Path) -> Iterator[Offer]:
    """Offer a rehearsal in a folder until the block ends. Raises WriteError."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield Offer(path)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def take(folder: Path, plan: Plan) -> Taken | None:
    """Return the rehearsal of this plan that is offered in a folder; None where there is none.

    One that is starting is waited for.
    """
    path, end, wanted = folder / FILE, time.monotonic() + _WAIT, _hash(plan)
    found = _offered(path)
    while found.get("state") == _STARTING and found.get("hash") in ("", wanted):
        if time.monotonic() > end:
            return None
        time.sleep(_STEP)
        found = _offered(path)
    if found.get("state") != _UP or found.get("hash") != wanted:
        return None
    result = _result(found["result"])
    local = rebound(plan, result.folder / WORK, Addresses(int(found["second"])))
    return Taken(local, result, client_key(local), path)


def _offered(path: Path) -> dict[str, Any]:
    """Return what is offered; {} where nobody keeps the file locked."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return {}
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(ValueError, OSError):
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        return {"state": _STARTING, "hash": ""}  # it is being written
    finally:
        os.close(handle)
    return {}


def _result(facts: dict[str, Any]) -> Rehearsal:
    """Return a result without what only a failure has."""
    plain = {name: facts[name] for name in Rehearsal.__dataclass_fields__ if name in facts}
    of_failures = {"diagnosis": None, "also": (), "events": ()}
    notes = tuple(facts.get("notes") or ())
    return Rehearsal(**plain | of_failures | {"folder": Path(facts["folder"]), "notes": notes})


def _hash(plan: Plan) -> str:
    return fingerprint.of_texts({"plan.json": plan.as_json()})
