"""The disasters of a seed. Pure: the same seed and step are always the same disaster.

    disasters.plan(seed=1, count=100)[17]

A hundred in a row have each command and kind as often as `DECK` says, whatever the seed is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

COMMANDS = ("run", "rehearse", "up", "bench", "sweep")
# How often of a hundred, by kind, for the commands in their order.
DECK = {
    "kill": (6, 11, 9, 9, 9),
    "full disk": (3, 4, 4, 3, 3),
    "read-only disk": (2, 2, 3, 2, 2),
    "full output": (1, 2, 1, 1, 1),
    "link": (0, 0, 12, 0, 0),
    "clock": (2, 2, 2, 2, 2),
}
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
VICTIMS = ("program", "child", "engine")
# What is full, read-only or cut off, and from when on. "later" is at the moment of the disaster.
FULL = ("results at once", "results later", "tmp at once", "tmp later")
READ_ONLY = ("results at once", "results later")
ON_NODES = ("node at once", "node later")
OUTPUTS = ("stdout", "stderr")
LINKS = ("cut for seconds", "slow", "lossy", "gone")
JUMPS = ("+1h", "-1h", "+40d", "-40d", "-5y")
ROOM_KB = (0, 4, 64, 400, 1500)  # what a disk that is full at once still takes
LATEST = 0.95  # of the time that the command takes when it is left alone


@dataclass(frozen=True)
class Disaster:
    """One disaster.

    Attributes:
        step: Its number, from 1.
        command: One of `COMMANDS`.
        kind: One of the kinds of `DECK`.
        what: The words of its kind, such as "SIGKILL engine", or "results later".
        moment: When, as a share of the time that the command takes when it is left alone.
        dice: From 0 to 1: which of several processes, nodes or sizes.
    """

    step: int
    command: str
    kind: str
    what: str
    moment: float
    dice: float

    def __str__(self) -> str:
        return f"{self.kind}, {self.what}, at {self.moment:.0%}"


def plan(seed: int, count: int) -> list[Disaster]:
    """Return the first disasters of a seed."""
    out: list[Disaster] = []
    while len(out) < count:
        deck = [
            (command, kind)
            for kind, numbers in DECK.items()
            for command, number in zip(COMMANDS, numbers, strict=True)
            for _ in range(number)
        ]
        random.Random(f"{seed} from {len(out)}").shuffle(deck)
        out += [
            _one(seed, step, command, kind)
            for step, (command, kind) in enumerate(deck, len(out) + 1)
        ]
    return out[:count]


def _one(seed: int, step: int, command: str, kind: str) -> Disaster:
    dice = random.Random(f"{seed}, step {step}")
    nodes = ON_NODES if command == "up" else ()
    if kind == "kill":
        what = f"{dice.choice(SIGNALS)} {dice.choice(VICTIMS)}"
    elif kind == "full disk":
        what = dice.choice((*FULL, *nodes))
    elif kind == "read-only disk":
        what = dice.choice((*READ_ONLY, *nodes))
    elif kind == "full output":
        what = dice.choice(OUTPUTS)
    elif kind == "link":
        # What is gone for good takes minutes to be given up.
        what = dice.choices(LINKS, (5, 5, 5, 1))[0]
    else:
        what = dice.choice(JUMPS)
    moment = 0.0 if what.endswith("at once") or kind == "full output" else dice.random() * LATEST
    return Disaster(step, command, kind, what, round(moment, 3), round(dice.random(), 3))
