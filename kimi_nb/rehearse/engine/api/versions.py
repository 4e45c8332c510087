"""Tell which changes of vLLM's API a version has; ``data/rehearse/api.yaml`` lists them.

>>> "output_is_clamped" in changes("0.20.2"), "output_is_clamped" in changes("0.32.0")
(False, True)
"""

from __future__ import annotations

import functools

from packaging.version import Version

from kimi_nb.core import data_files


@functools.cache
def changes(version: str) -> frozenset[str]:
    """Return the names of the changes that a version of vLLM has."""
    found = data_files.facts("rehearse/api")["first"]
    return frozenset(
        name for name, first in found.items() if Version(str(first)) <= Version(version)
    )
