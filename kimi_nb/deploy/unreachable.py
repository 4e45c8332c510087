"""Say why a node cannot be reached, and what to do about it.

>>> why("Could not connect (timed out)")
'timed out'
"""

from __future__ import annotations

from kimi_nb.diagnose import remedies


def why(error: str) -> str:
    """Return the reason in an error of pyinfra, which is in its last parentheses."""
    return error.rpartition("(")[2].rstrip(")") or error


def way_out(error: str, others: bool) -> str:
    """Return what to do about an unreachable node; ``others`` is whether any other one answered."""
    for words, cause in (
        ("does not match", "host-key-changed"),
        ("found in known_hosts", "host-key-unknown"),
        ("Authentication", "key-refused"),
        ("key", "key-file"),
    ):
        if words in error:
            return remedies.of(f"reach/{cause}")
    return remedies.of("reach/one-node" if others else "reach/every-node")
