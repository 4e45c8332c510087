"""Define what a stage needs of the session that calls it.

The notebooks' session is `kimi_nb.notebook.run.Run`. Stages know only this protocol, so that they
do not depend on notebooks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Session(Protocol):
    """The folder and evidence of a run, and what its action allows."""

    @property
    def model(self) -> str:
        """The model: a name, or the path of a user's own file."""

    @property
    def hw(self) -> str:
        """The hardware: a name, or the path of a user's own file."""

    @property
    def site(self) -> str:
        """The path of the site file; "" for the hardware's example site."""

    @property
    def folder(self) -> Path:
        """The folder for results and evidence."""

    @property
    def action(self) -> str:
        """One of plan, rehearse and deploy."""

    def record(self, stage: str, **facts: Any) -> None:
        """Add a line to the run's evidence."""
