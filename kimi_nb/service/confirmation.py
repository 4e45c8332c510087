"""What confirms that a site may be changed: its name.

>>> is_confirmed("my-cluster", "my-cluster"), is_confirmed("my-cluster", "")
(True, False)
"""

from __future__ import annotations

import shlex

from kimi_nb.core.errors import ParameterError


def is_confirmed(site: str, confirm: str) -> bool:
    """Return whether ``confirm`` is the name of the site."""
    return confirm == site


def check(site: str, confirm: str, nodes: int = 0) -> None:
    """Refuse to change a site that was not named.

    ``nodes`` is how many of its nodes would change; 0 if no plan says so yet. Raises ParameterError
    unless ``confirm`` is the name of the site.
    """
    if not is_confirmed(site, confirm):
        count = f"{nodes} node{'s' * (nodes > 1)} of " if nodes else ""
        raise ParameterError(
            f"confirm {confirm!r}: this changes {count}site {site}; confirm it by its name: "
            f"confirm={site!r}, or kimi-nb up --confirm {shlex.quote(site)}."
        )
