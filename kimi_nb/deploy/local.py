"""The transport of a laptop: the nodes are folders and addresses of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kimi_nb.deploy import node_call
from kimi_nb.deploy.node_answers import Answer

_SECONDS = 600.0  # for one verb; the longest is a check of every byte of the weights


class LocalNodes:
    """The same scripts, started here."""

    def __init__(self) -> None:
        self.unreachable: dict[str, str] = {}

    def look(self, texts: Mapping[str, str]) -> dict[str, Answer]:
        """Ask nodes by name; nothing is changed."""
        # One after another: nodes that share a machine share its claim and its settings.
        return {node: _run(text) for node, text in texts.items()}

    def change(self, texts: Mapping[str, str], verb: str) -> dict[str, Answer]:
        """Carry out a verb on nodes by name."""
        return self.look(texts)

    def close(self) -> None:
        """There is nothing to let go of."""


def _run(text: str) -> Answer:
    try:
        # What stands beside this Python (vllm-router) is found, also where the environment was not
        # activated. A session of its own: what is started does not end with this terminal.
        path = f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
        done = subprocess.run(
            node_call.READER,
            input=text,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
            timeout=_SECONDS,
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
