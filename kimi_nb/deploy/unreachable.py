"""Say why a node cannot be reached, and what to do about it.

>>> why("Could not connect (timed out)")
'timed out'
>>> why("Could not connect ([Errno None] Unable to connect to port 22 on 192.0.2.1)")
'nothing takes connections at port 22 of 192.0.2.1, or there is no way to it'
"""

from __future__ import annotations

import re

from kimi_nb.diagnose import remedies

_NUMBER = re.compile(r"\[Errno -?\w+\] ")
# paramiko's words for all addresses of a host that refused, or to which no way leads.
_NONE = re.compile(r"Unable to connect to port (\d+) on (.+)")


def why(error: str) -> str:
    """Return the reason in an error of pyinfra, which is in its last parentheses."""
    said = _NUMBER.sub("", error)
    reason = said.rpartition("(")[2].rstrip(")") or said
    return _NONE.sub(
        r"nothing takes connections at port \1 of \2, or there is no way to it", reason
    )


def way_out(error: str, others: bool) -> str:
    """Return what to do about an unreachable node; ``others`` is whether any other one answered."""
    for words, cause in (
        ("does not match", "host-key-changed"),
        ("found in known_hosts", "host-key-unknown"),
        ("Authentication", "key-refused"),
        (r"(?<![\w-])key(?![\w-])", "key-file"),  # not in the name of a host
    ):
        if re.search(words, error):
            return remedies.of(f"reach/{cause}")
    return remedies.of("reach/one-node" if others else "reach/every-node")
