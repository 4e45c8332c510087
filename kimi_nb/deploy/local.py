"""Run the nodes of a plan on this machine, as folders and addresses of its own."""

from __future__ import annotations

import os
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
    try:
        # Programs beside this Python (vllm-router) are found even if the environment is not
        # activated. A session of its own: what is started survives the end of the terminal.
        path = f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
        done = subprocess.run(
            node_call.READER,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",  # a login may print anything
            env={**os.environ, "PATH": path},
            timeout=seconds,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer((), str(error))
    found = tuple(node_call.lines(done.stdout.splitlines()))
    wrong = done.returncode and not any(line.kind == "fail" for line in found)
    return Answer(
        found, done.stderr.strip()[-300:] or f"exit code {done.returncode}" if wrong else ""
    )
