"""Record on the local disk what is needed to resume, inspect and end a deployment.

Example::

    journal = Journal.open(folder, plan)  # the deployment that has not ended, or a new one
    journal.done("push")
    journal.set("failed", stopped_at="weights")

The folder of a deployment is runs/RUN/PLAN/deployments/001/. It holds state.json, the deployed
bundle, the parameter files as they were, and copies of the nodes' logs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kimi_nb.core import evidence, fingerprint, scratch, shapes
from kimi_nb.core.errors import KimiError, ParameterError, WriteError
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

_FILE = "state.json"


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Asked(_Shape):
    """What `Journal.keep` records of the request, beside the parameter files."""

    layout: str
    variant: str
    scenario: str
    chosen: list[str]
    dropped: list[str]
    pairs: list[str]
    engine_version: str
    erratum: list[str]


class _More(_Shape):
    model_config = ConfigDict(extra="allow")

    asked: _Asked | None = None


_Name = Annotated[str, Field(max_length=300)]  # messages show it whole


class _State(_Shape):
    """What state.json holds: the attributes of a `Journal`."""

    run: _Name
    plan: _Name
    site: _Name
    by: _Name
    begun: _Name
    state: _Name = "new"
    steps: list[_Name] = []
    begun_steps: list[_Name] = []
    stopped_at: _Name = ""
    more: _More = _More()


def holder() -> str:
    """Return who runs this process, as user@host."""
    return f"{fingerprint.user()}@{socket.gethostname()}"


def _unwritable(folder: Path, error: OSError) -> WriteError:
    return WriteError(
        f"{folder}: cannot be written: {error.strerror}. Choose another run_dir "
        "(--run-dir), or mend its permissions."
    )


@contextlib.contextmanager
def alone(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a folder against other processes; it ends with the process at the latest.

    Raises KimiError if another process holds it and ``wait`` is false.
    """
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
        said = f"process {os.getpid()}, {holder()}, since {evidence.now()}"
        with contextlib.suppress(OSError):  # on a full disk nobody is named; the lock holds
            os.pwrite(handle, said.encode(), 0)
        yield
    finally:
        os.close(handle)


@dataclass
class Journal:
    """The state of one deployment.

    Attributes:
        run: The identifier by which the nodes know this deployment.
        by: Who started it.
        begun: When it was started.
        state: new, starting, up, failed or down.
        steps: The steps that are done.
        begun_steps: The steps that may have changed something on the site.
        stopped_at: The step that failed, or "".
        more: Further values, such as the request from which the plan was made.
    """

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
        """Return the deployment of this plan that has not ended, or a new one."""
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
        """Return the deployment in a folder. Raises ParameterError if there is none."""
        try:
            values = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            _State.model_validate(values)
            return cls(folder=folder, **values)
        except FileNotFoundError:
            raise ParameterError(f"{folder}: holds no deployment ({_FILE}).") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ParameterError(
                f"{folder / _FILE}: is damaged ({shapes.fault(error)}). What was done stands in evidence.jsonl "
                "beside it, with the word of the run, which is also the first line of 'claim' in "
                "the site's paths.work on each node: by hand, RUN=<that word> ./node.sh stop "
                "release in the node's folder there."
            ) from None

    def write(self) -> None:
        """Write the journal to disk atomically."""
        values = {name: value for name, value in vars(self).items() if name != "folder"}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = self.folder / f"{_FILE}.new"
            scratch.write(new, json.dumps(values, indent=1) + "\n")
            new.replace(self.folder / _FILE)
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def keep(self, plan: Plan) -> None:
        """Save the parameters as they are now.

        A later `lifecycle.down` must not depend on files that may have been changed since.
        """
        request = plan.request
        model = request.model
        if plan.derived:  # what is derived another day may be something else
            model = model.model_copy(update={"recipes": (*model.recipes, request.recipe)})
        for name, table in (
            ("hardware", request.hardware),
            ("model", model),
            ("site", request.site),
        ):
            # JSON is valid YAML. Calibrations change what a plan promises, not what it deploys, and
            # their files may be gone by the time it is to be stopped.
            text = table.model_dump_json(indent=1, exclude_unset=True, exclude={"calibration"})
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
            "erratum": list(request.errata),
        }
        self.write()

    def kept_plan(self) -> Plan:
        """Return the plan that was deployed, made from the saved parameters."""
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
        """Record that a step is about to change something."""
        if step not in self.begun_steps:
            self.begun_steps.append(step)
            self.write()

    def done(self, step: str) -> None:
        """Record that a step is done."""
        if step not in self.steps:
            self.steps.append(step)
        self.write()

    def set(self, state: str, stopped_at: str = "") -> None:
        """Set the state, and the step at which the deployment stopped."""
        self.state, self.stopped_at = state, stopped_at
        if state == "down":
            self.steps.clear()
            self.begun_steps.clear()
        self.write()


def newest(folder: Path) -> Journal | None:
    """Return the latest deployment below the folder of a plan in a run, or None."""
    found = [one for one in _numbered(folder / "deployments") if (one / _FILE).is_file()]
    return Journal.read(found[0]) if found else None


def beside(folder: Path) -> list[Path]:
    """Return the folders of all deployments of the plan of ``folder``, the newest first."""
    return _numbered(folder.parent)


def _numbered(folder: Path) -> list[Path]:
    """Return what has a number for a name, the highest first; a copy such as 001.old has none."""
    found = [path for path in folder.glob("[0-9]*") if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def up_on(site: str, runs: Path) -> list[Journal]:
    """Return the deployments below ``runs`` that are up on a site, the newest first."""
    found = [path.parent for path in runs.glob(f"*/*/deployments/*/{_FILE}")]
    journals = [Journal.read(folder) for folder in found if _is_whole(folder)]
    there = [one for one in journals if (one.site, one.state) == (site, "up")]
    return sorted(there, key=lambda one: one.begun, reverse=True)


def find(run_dir: str, runs: Path) -> Journal:
    """Return the deployment that the user means, in a run's folder or in all of ``runs``.

    It is the only one that is not down or, if all are down, the latest. Raises ParameterError if
    there is no deployment, or with the list of candidates if there are several.
    """
    if run_dir:
        base = load.user_path(run_dir, "RUN").absolute()
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
    if len(found) > 1:  # a damaged journal must not hide the others
        found = [path for path in found if _is_whole(path)] or found[:1]
    journals = sorted(map(Journal.read, found), key=lambda one: one.begun)
    there = [one for one in journals if one.state != "down"]
    if len(there) > 1:
        listed = "\n".join(
            f"  {one.folder}  {one.plan} on {one.site}, {one.state}" for one in there
        )
        raise ParameterError(
            f"{len(there)} deployments are not down; name one, as in kimi-nb status FOLDER:\n{listed}"
        )
    return there[0] if there else journals[-1]


def _is_whole(folder: Path) -> bool:
    try:
        Journal.read(folder)
    except ParameterError:
        return False
    return True
