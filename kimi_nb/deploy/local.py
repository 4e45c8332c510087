"""Run the nodes of a plan on this machine, as folders and addresses of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kimi_nb.deploy import node_call
from kimi_nb.deploy.node_answers import Answer

_SECONDS = 600.0  # for one verb; that which reads or downloads the weights has no limit


class LocalNodes:
    """Nodes whose scripts are run on this machine."""

    def __init__(self) -> None:
        self.unreachable: dict[str, str] = {}

    def look(self, texts: Mapping[str, str]) -> dict[str, Answer]:
        """Run read-only verbs; ``texts`` are the scripts by name of the node."""
        # Not in parallel: nodes on the same machine share its claim and its settings.
        return {node: _run(text, _SECONDS) for node, text in texts.items()}

    def change(self, texts: Mapping[str, str], verb: str) -> dict[str, Answer]:
        """Run a verb that changes nodes; ``texts`` are the scripts by name of the node."""
        seconds = None if verb == "weights" else _SECONDS
        return {node: _run(text, seconds) for node, text in texts.items()}

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


def _run(text: str, seconds: float | None) -> Answer:
    # Programs beside this Python (vllm-router) are found even if the environment is not activated.
    path = f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
    try:
        # A session of its own: what is started survives the end of the terminal.
        process = subprocess.Popen(
            node_call.READER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",  # a login may print anything
            env={**os.environ, "PATH": path},
            start_new_session=True,
        )
        said, errors = _heard(process, text, seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer((), str(error))
    found = tuple(node_call.lines(said.splitlines()))
    wrong = process.returncode and not any(line.kind == "fail" for line in found)
    return Answer(
        found, errors.strip()[-300:] or f"exit code {process.returncode}" if wrong else ""
    )


def _heard(process: subprocess.Popen[str], text: str, seconds: float | None) -> tuple[str, str]:
    """Return what a script prints; where its time or the person's patience ends, so does all of it.

    Engines have sessions of their own and stay.
    """
    with process:
        try:
            return process.communicate(text, timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
