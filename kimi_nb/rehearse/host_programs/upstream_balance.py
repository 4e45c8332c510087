"""Choose engines as vllm-ascend's example proxy does: the least loaded, the first of equals.

    balance = Balance(clients, prefill=True, shared=True)
    at = balance.take(score)

Idle engines are equal: requests that come one after the other all go to the first engine. A load is
what was taken and not yet given back. An engine that is gone gives back at once, so that it is the
least loaded one.
"""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb.rehearse.host_programs.engine_client import EngineClient

_OF_CACHE = 0.3  # what held KV cache counts against work that is being computed


def prefill_score(length: int) -> float:
    """Return the load of a request body of so many bytes on a prefill engine."""
    return length / 4.0 * 0.0345 + 120.0745


class Balance:
    """The loads of the engines of one role.

    ``shared`` is the form from v0.21.0rc1 on: a prefill engine counts only the KV cache that it
    holds. Before, it counted the request too, until it had answered.
    """

    def __init__(self, clients: Sequence[EngineClient], prefill: bool, shared: bool) -> None:
        self.clients = tuple(clients)
        self._prefill, self._shared = prefill, shared
        self._tokens = [0.0] * len(self.clients)
        self._cache = [0.0] * len(self.clients)

    def take(self, score: float) -> int:
        """Return the number of the engine for a request, and count the request's load."""
        at = min(
            range(len(self.clients)),
            key=lambda at: (self._tokens[at] + _OF_CACHE * self._cache[at], at),
        )
        if self._prefill:
            self._cache[at] += score
        if not (self._prefill and self._shared):
            self._tokens[at] += score
        return at

    def computed(self, at: int, score: float) -> None:
        """Give back what a request counted while it was computed."""
        if not (self._prefill and self._shared):
            self._tokens[at] -= score

    def fetched(self, at: int, score: float) -> None:
        """Give back what the KV cache of a request counted."""
        if self._shared:
            self._cache[at] = max(0.0, self._cache[at] - score)
        elif self._cache[at] > 0:
            self._cache[at] -= score
