"""Logs of launchers and ranks, as a deployment lays them, for the doctor."""

from __future__ import annotations

from pathlib import Path

from kimi_nb.diagnose import doctor
from kimi_nb.diagnose.doctor_report import Report


def ended(rank: int, time: str, how: str) -> str:
    """The line in which a launcher tells of a rank's end."""
    return f"ERROR 11-22 {time} [launch_online_dp.py:288] rank {rank} failed: {how}; last lines:"


def examined(folder: Path, **logs: tuple[str, ...]) -> Report:
    """The report on logs by name: ``n1`` of a launcher, ``n1_7`` of rank 7 on that node."""
    for name, lines in logs.items():
        node, _, rank = name.partition("_")
        file = folder / node / "logs" / (f"rank_{rank}.log" if rank else "engines.log")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))
    return doctor.examine(folder)
