"""Write once what the pods of a set say, each in its place: addresses and numbers become variables.

>>> pods = [Pod(0, 0, "a-0.a.n", "a-0.a.n"), Pod(0, 1, "a-0-1.a.n", "a-0.a.n")]
>>> said = Said(pods)
>>> said.word(["--host", "--host"], "vllm"), said.word(["a-0.a.n", "a-0-1.a.n"], "--host")
('--host', '"$POD_IP"')
>>> said.word(["0", "16"], "--data-parallel-start-rank")
'"$((16 * LWS_WORKER_INDEX))"'
>>> said.word(["a-0.a.n", "a-0.a.n"], "--data-parallel-address")
'"$LWS_LEADER_ADDRESS"'

A word that is the same in all stays as it is. The variables are those that the LeaderWorkerSet
controller gives to each container, and POD_IP and GROUP, which the pod's template asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError

OWN = '"$POD_IP"'
LEADER = '"$LWS_LEADER_ADDRESS"'
GROUP = "GROUP"
WORKER = "LWS_WORKER_INDEX"
# Where the ranks of a group meet: of the leader's own addresses only these are the group's.
_MEET = ("--data-parallel-address", "--dp-address", "--master-addr")
_NUMBER = re.compile(r"(\d+)")


class Pod(NamedTuple):
    """A pod of a set: its group, its number there (0: the leader), its address and the leader's."""

    group: int
    worker: int
    address: str
    leader: str


class Said:
    """What the pods of a set say; ``lines`` are tables that a script has to define first."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self.lines: list[str] = []

    def words(self, columns: Sequence[Sequence[str]]) -> list[object] | None:
        """Return the words of all pods as one command; None if they are not of one shape.

        ``columns`` has the words of each pod.
        """
        if len({len(words) for words in columns}) != 1:
            return None
        out: list[object] = []
        for at, first in enumerate(columns[0]):
            said = [words[at] for words in columns]
            if first.startswith("--") and said.count(first) != len(said):
                return None
            out.append(self.word(said, columns[0][at - 1] if at else ""))
        return out

    def variables(self, tables: Sequence[Mapping[str, str]]) -> dict[str, object]:
        """Return the variables of all pods as one table; every pod has the same names."""
        return {name: self.word([one[name] for one in tables], name) for name in tables[0]}

    def word(self, said: Sequence[str], after: str) -> object:
        """Return what each pod says at one place as one word, which may be a `shell.Raw`.

        ``after`` is the word before it. Raises PlanError where no expression gives them all.
        """
        leaders = [pod.leader for pod in self._pods]
        if after in _MEET and [*said] == leaders:
            return shell.Raw(LEADER)
        if all(one == pod.address for one, pod in zip(said, self._pods, strict=True)):
            return shell.Raw(OWN)
        if [*said] == leaders:
            return shell.Raw(LEADER)
        if len(set(said)) == 1:
            return said[0]
        pieces = [_NUMBER.split(one) for one in said]
        fixed = {tuple(one[::2]) for one in pieces}
        if len(fixed) != 1:
            raise PlanError(
                f"Kubernetes: after {after} pods of one set say {said[0][:60]!r} and "
                f"{next(one for one in said if one != said[0])[:60]!r}, which no number of theirs "
                "explains. Give these nodes the same value, or serve with another transport."
            )
        texts, numbers = next(iter(fixed)), list(zip(*(one[1::2] for one in pieces), strict=True))
        out, plain = [], texts[0]
        for column, text in zip(numbers, texts[1:], strict=True):
            if len(set(column)) == 1:
                plain += column[0] + text
                continue
            out += [shell.quote(plain)] * bool(plain) + [f'"{self._number(column)}"']
            plain = text
        return shell.Raw("".join(out + [shell.quote(plain)] * bool(plain)))

    def _number(self, column: Sequence[str]) -> str:
        """Return the expression that gives the number of each pod."""
        values = [int(one) for one in column]
        at = {(pod.group, pod.worker): value for pod, value in zip(self._pods, values, strict=True)}
        group, worker = self._pods[0].group, self._pods[0].worker
        first = at[group, worker]
        by_group = at.get((group + 1, worker), first) - first
        by_worker = at.get((group, worker + 1), first) - first
        start = first - by_group * group - by_worker * worker
        if all(start + by_group * g + by_worker * w == one for (g, w), one in at.items()):
            return _sum(start, ((by_group, GROUP), (by_worker, WORKER)))
        return self._table(at)

    def _table(self, at: Mapping[tuple[int, int], int]) -> str:
        """Define a table by group and worker, and return its entry for the pod that asks."""
        width = 1 + max(worker for _, worker in at)
        name = f"values_{len(self.lines)}"
        entries = " ".join(f"[{g * width + w}]={value}" for (g, w), value in at.items())
        self.lines.append(f"{name}=({entries})")
        return f"${{{name}[{GROUP} * {width} + {WORKER}]}}"


def _sum(start: int, terms: Sequence[tuple[int, str]]) -> str:
    """Return an arithmetic expansion.

    >>> _sum(0, ((1, "GROUP"), (0, "X"))), _sum(36000, ((100, "GROUP"), (1, "X")))
    ('$GROUP', '$((36000 + 100 * GROUP + X))')
    """
    parts = [str(start)] if start else []
    parts += [name if factor == 1 else f"{factor} * {name}" for factor, name in terms if factor]
    if len(parts) == 1 and parts[0].isidentifier():
        return f"${parts[0]}"
    return f"$(({' + '.join(parts)}))"
