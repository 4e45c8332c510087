"""What is known of one deployment on this machine's disk: enough to go on, look, and end it.

    journal = Journal.open(folder, plan)     # the one that is up, or half-way; else a new one
    journal.done("push"); journal.failed("weights", "a3-2")

runs/RUN/PLAN/deployments/001/: state.json, the bundle that was deployed, the parameter files as
they were, and copies of the nodes' logs.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_nb.core import evidence
from kimi_nb.core.errors import KimiError, ParameterError, WriteError
from kimi_nb.params import load as params
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

_FILE = "state.json"


def holder() -> str:
    """Who does this: user@host."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _unwritable(folder: Path, error: OSError) -> WriteError:
    return WriteError(
        f"{folder}: cannot be written: {error.strerror}. Choose another run_dir "
        "(--run-dir), or mend its permissions."
    )


@contextlib.contextmanager
def alone(folder: Path, wait: bool = True) -> Iterator[None]:
    """One process at a time in a folder; the lock goes with the process. Raises KimiError at once
    where another one has it and ``wait`` is off."""
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            who = os.pread(handle, 200, 0).decode(errors="replace").strip()
            raise KimiError(
                f"{folder}: another process is at work on this deployment ({who}). "
                "Wait for its end, or stop it."
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}, {holder()}, since {evidence.now()}".encode(), 0)
        yield
    finally:
        os.close(handle)


@dataclass
class Journal:
    """See the module. ``run`` is the word by which the nodes know this deployment; ``steps`` those
    that are done, ``begun_steps`` those that may have changed something on the site."""

    folder: Path
    run: str
    plan: str
    site: str
    by: str
    begun: str
    state: str = "new"
    steps: list[str] = field(default_factory=list)
    begun_steps: list[str] = field(default_factory=list)
    stopped_at: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, plan: Plan) -> Journal:
        """The deployment of this plan that is not ended yet, or a new one."""
        last = newest(folder)
        if last is not None and last.state != "down":
            return last
        number = 1 if last is None else int(last.folder.name) + 1
        begun = evidence.now()
        return cls(
            folder / "deployments" / f"{number:03}",
            f"{begun}-{os.urandom(3).hex()}",
            plan.name,
            plan.site,
            holder(),
            begun,
        )

    @classmethod
    def read(cls, folder: Path) -> Journal:
        """The deployment in a folder. Raises ParameterError where there is none."""
        try:
            values = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            return cls(folder=folder, **values)
        except FileNotFoundError:
            raise ParameterError(f"{folder}: holds no deployment ({_FILE}).") from None
        except (OSError, ValueError, TypeError) as error:
            raise ParameterError(
                f"{folder / _FILE}: is damaged ({error}). What was done stands in evidence.jsonl "
                "beside it, with the word of the run, which is also the first line of 'claim' in "
                "the site's paths.work on each node: by hand, RUN=<that word> ./node.sh stop "
                "release in the node's folder there."
            ) from None

    def write(self) -> None:
        """Keep it, whole or not at all."""
        values = {name: value for name, value in vars(self).items() if name != "folder"}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = self.folder / f"{_FILE}.new"
            new.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
            new.replace(self.folder / _FILE)
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def keep(self, plan: Plan) -> None:
        """The parameters as they are now: a later `down` must not depend on files that somebody
        has changed since."""
        request = plan.request
        for name, table in (
            ("hardware", request.hardware),
            ("model", request.model),
            ("site", request.site),
        ):
            text = table.model_dump_json(indent=1, exclude_unset=True)  # JSON is YAML
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / f"{name}.yaml").write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise _unwritable(self.folder, error) from None
        self.more["asked"] = {
            "layout": plan.layout,
            "variant": plan.variant,
            "scenario": plan.scenario if request.scenario else "",
            "chosen": list(request.chosen),
            "dropped": list(request.dropped),
            "pairs": list(request.pairs),
            "engine_version": request.engine.version,
        }
        self.write()

    def kept_plan(self) -> Plan:
        """The plan that was deployed, from the parameters that were kept."""
        asked = self.more.get("asked")
        if asked is None:
            raise ParameterError(
                f"{self.folder}: nothing was started from here: its parameters were not kept."
            )
        return build.plan(
            str(self.folder / "model.yaml"),
            str(self.folder / "hardware.yaml"),
            asked["layout"],
            site=str(self.folder / "site.yaml"),
            **{key: value for key, value in asked.items() if key != "layout"},
        )

    def begin(self, step: str) -> None:
        """A step is about to change something."""
        if step not in self.begun_steps:
            self.begun_steps.append(step)
            self.write()

    def done(self, step: str) -> None:
        """A step is done, and stays so."""
        if step not in self.steps:
            self.steps.append(step)
        self.write()

    def set(self, state: str, stopped_at: str = "") -> None:
        """What it is now."""
        self.state, self.stopped_at = state, stopped_at
        if state == "down":
            self.steps.clear()
            self.begun_steps.clear()
        self.write()


def newest(folder: Path) -> Journal | None:
    """The last deployment below a plan's folder of a run."""
    found = sorted(
        (folder / "deployments").glob(f"[0-9]*/{_FILE}"), key=lambda path: int(path.parent.name)
    )
    return Journal.read(found[-1].parent) if found else None


def find(run_dir: str, runs: Path) -> Journal:
    """The deployment of a run's folder; without one the only one that is not down, else the last
    of all. Raises ParameterError with the list where that is not one."""
    if run_dir:
        base = params.user_path(run_dir, "RUN").absolute()
        if not base.is_dir():
            raise ParameterError(
                f"{run_dir}: no such folder. Name the folder of a run, such as "
                f"{runs / 'NAME'}; without one it is looked for in {runs}."
            )
        found = [
            path.parent
            for pattern in (_FILE, f"deployments/*/{_FILE}", f"*/deployments/*/{_FILE}")
            for path in base.glob(pattern)
        ]
    else:
        found = [path.parent for path in runs.glob(f"*/*/deployments/*/{_FILE}")]
    if not found:
        raise ParameterError(
            f"{run_dir or runs}: no deployment was started from here. kimi-nb up "
            "starts one; name the folder of a run."
        )
    if len(found) > 1:  # a damaged one is not to hide the others
        found = [path for path in found if _is_whole(path)] or found[:1]
    journals = sorted(map(Journal.read, found), key=lambda one: one.begun)
    there = [one for one in journals if one.state != "down"]
    if len(there) > 1:
        listed = "\n".join(
            f"  {one.folder}  {one.plan} on {one.site}, {one.state}" for one in there
        )
        raise ParameterError(f"{len(there)} deployments are not down; name one:\n{listed}")
    return there[0] if there else journals[-1]


def _is_whole(folder: Path) -> bool:
    try:
        Journal.read(folder)
    except ParameterError:
        return False
    return True
