"""Bad links of a test host: cut, slow or lossy, by tc netem where the kernel has it.

link = Link(host, bridge)
link.spoil("slow")
link.mend()
"""

from __future__ import annotations

import subprocess
from typing import Any

# netem says both in one; a kernel without it has a bucket of tokens and the statistics of iptables.
_NETEM = {
    "slow": ["delay", "300ms", "150ms", "rate", "256kbit"],
    "lossy": ["loss", "12%", "delay", "20ms"],
}
_SLOW = ["tbf", "rate", "192kbit", "burst", "16kb", "latency", "2s"]
_LOSSY = ["-m", "statistic", "--mode", "random", "--probability", "0.12", "-j", "DROP"]


class Link:
    """The link between a test host and its bridge, both ways."""

    def __init__(self, host: Any, bridge: str) -> None:
        self._ends = [(host.netns, "eth0"), (bridge, f"v{host.number}")]
        self._host = host
        self._undo: list[list[str]] = []
        self.how = ""  # which program did it

    def spoil(self, what: str) -> None:
        """Make it bad. Raises RuntimeError where nothing here can."""
        if what in ("cut for seconds", "gone"):
            netns, name = self._ends[1]
            self._do(["ip", "-n", netns, "link", "set", name, "down"])
            self._undo.append(["ip", "-n", netns, "link", "set", name, "up"])
            self.how = "ip link"
            return
        if self._all("netem", *_NETEM[what]):
            return
        if what == "slow":
            if not self._all(*_SLOW):
                raise RuntimeError("this kernel has neither tc netem nor tc tbf")
            return
        inside = ["nsenter", f"--net=/run/netns/{self._host.netns}", "iptables"]
        for chain in ("INPUT", "OUTPUT"):
            self._do([*inside, "-A", chain, *_LOSSY])
            self._undo.append([*inside, "-D", chain, *_LOSSY])
        self.how = "iptables"

    def mend(self) -> None:
        """Make it good again."""
        while self._undo:
            subprocess.run(self._undo.pop(), check=False, capture_output=True)

    def _all(self, *discipline: str) -> bool:
        """Queue both ways by a discipline of tc; return whether the kernel has it."""
        for netns, name in self._ends:
            tc, place = ["tc", "-n", netns, "qdisc"], ["dev", name, "root"]
            argv = [*tc, "replace", *place, *discipline]
            if subprocess.run(argv, check=False, capture_output=True).returncode:
                return False
            self._undo.append([*tc, "del", *place])
            self.how = f"tc {discipline[0]}"
        return True

    @staticmethod
    def _do(argv: list[str]) -> None:
        try:
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise RuntimeError(f"there is no {error.filename} here") from None
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
