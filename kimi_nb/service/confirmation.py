"""What confirms that a site may be changed: its name, and nodes that are the user's own.

>>> is_confirmed("my-cluster", "my-cluster"), is_confirmed("my-cluster", "")
(True, False)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import fields


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
            f"confirm={site!r}, or kimi-nb up --confirm {shlex.quote(site)}. "
            "The name stands in the site file (name:)."
        )


def check_transport(site: str, transport: str) -> None:
    """Refuse to deploy from a notebook what a terminal has to hold. Raises ParameterError."""
    if transport == "kubernetes":
        raise ParameterError(
            f"site {site} has transport kubernetes: deploy it from a terminal, kimi-nb up with the same "
            "model, hardware, layout and site. It prints the kubectl port-forward by which notebooks 06 "
            "to 09 reach the service: give them its address as url. Nothing was contacted."
        )


def check_addresses(site: str, addresses: Iterable[str]) -> None:
    """Refuse to contact the addresses of an example site. Raises ParameterError."""
    found = [one for one in dict.fromkeys(addresses) if fields.is_example(one)]
    if found:
        raise ParameterError(
            f"site {site}: {', '.join(found[:4])}{' and more' * (len(found) > 4)}: these are the "
            "example's addresses, so nothing was contacted. Write a site file for your own nodes, "
            "kimi-nb site new --hw HW --nodes ADDRESS,..., and name its path: --site "
            "./my-cluster.yaml, in a notebook site."
        )
