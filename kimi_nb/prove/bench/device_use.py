"""How busy the accelerators are, by nvidia-smi or npu-smi.

Usage::

    watch = device_use.watch(plan, mark)
    watch.look()  # percent, the mean over the devices; None: watch.why says why not

Only devices of this machine can be watched; for others, ``why`` holds the command to run on the
nodes. In a rehearsal nothing is measured, because there are no devices.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field

import psutil

from kimi_nb.params.vendor import Vendor
from kimi_nb.plan.spec import Plan

_SECONDS = 5.0
_NVIDIA = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
_ASCEND = ("npu-smi", "info", "-t", "usages", "-i")
_TOOLS: dict[Vendor, tuple[str, tuple[str, ...]]] = {
    "nvidia": ("GPUs (nvidia-smi)", _NVIDIA),
    "ascend": ("NPUs (npu-smi)", _ASCEND),
}


@dataclass
class Watch:
    """A watch on the devices of a plan.

    Attributes:
        what: What is watched; "" for nothing.
        why: Why nothing is watched.
        commands: The commands that print the utilisation.
    """

    what: str = ""
    why: str = ""
    commands: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    def look(self) -> float | None:
        """Return the mean utilisation of the devices in percent, or None if it is not known."""
        if self.what == "CPU":
            return psutil.cpu_percent()
        found: list[float] = []
        for argv in self.commands:
            try:
                done = subprocess.run(
                    argv,
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                self.why = f"{argv[0]}: {error}"
                continue
            found += percents(argv[0], done.stdout)
        if self.commands and not found:
            self.why = self.why or f"{self.commands[0][0]} told no percentage"
        return sum(found) / len(found) if found else None


def percents(tool: str, text: str) -> list[float]:
    """Return the utilisation of each device, in percent, from the output of a tool.

    >>> percents("nvidia-smi", "97" + chr(10) + "95")
    [97.0, 95.0]
    """
    if tool == "nvidia-smi":
        return [float(line) for line in text.split() if re.fullmatch(r"\d+(\.\d+)?", line)]
    return [
        float(value)
        for value in re.findall(
            r"^\s*Ai ?core Usage Rate\s*\(%\)\s*:\s*(\d+)", text, re.MULTILINE | re.IGNORECASE
        )
    ]


def watch(plan: Plan, mark: str, attached: str = "") -> Watch:
    """Return a watch on the devices of a plan.

    ``mark`` is that of the service, ``attached`` the URL of one that was running already.
    """
    vendor = plan.request.hardware.vendor
    if mark:
        return Watch(why="a rehearsal has no devices")
    if plan.transport != "local":
        tool = " ".join(_TOOLS[vendor][1]) if vendor in _TOOLS else "rocm-smi --showuse"
        return Watch(why=f"the nodes are not this machine; look there with: {tool}")
    if attached:
        return Watch(
            why="the service was there already: whether it runs on this machine is not known"
        )
    if vendor == "cpu":
        psutil.cpu_percent()  # the first call only starts the interval that the next one measures
        return Watch(what="CPU")
    if vendor not in _TOOLS or shutil.which(_TOOLS[vendor][1][0]) is None:
        return Watch(why=f"no tool for {vendor} devices on this machine")
    what, argv = _TOOLS[vendor]
    cards = sorted({device for one in plan.engines for device in one.devices})
    # npu-smi is asked about the card, on which there may be several devices.
    per_card = plan.request.hardware.devices.per_card
    return Watch(
        what,
        commands=(argv,)
        if vendor == "nvidia"
        else tuple((*argv, str(card)) for card in sorted({device // per_card for device in cards})),
    )
