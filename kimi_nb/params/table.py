"""The base of every table of a parameter file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A mapping with a fixed set of keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
