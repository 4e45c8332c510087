"""The program that generates the load: ``vllm bench serve`` if available, else our own client.

Usage::

    tool = load_programs.choose("auto", plan, mark="")  # Tool(name="vllm", program=...)
    raw, argv = tool.run(load, at, key, tick, metadata)  # the JSON of vllm bench, from either
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kimi_nb import __version__, catalog
from kimi_nb.core.errors import BenchError, ParameterError, choice
from kimi_nb.core.processes import Programs
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import bench_commands, load_client
from kimi_nb.prove.bench.workload import Load

NAMES = {
    "auto": "vllm where it is on this machine and an engine serves, else kimi_nb",
    "vllm": "vllm bench serve of the engine's environment",
    "kimi_nb": "our own client",
}
_LOOK = 2.0  # seconds between two looks at vllm's output
_TAIL = 12  # lines of its output to show in an error
Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Tool:
    """A program that generates load.

    Attributes:
        name: vllm or kimi_nb.
        program: Its path.
        version: Its version.
        why: Why it was chosen.
        engine: The catalog of the engine whose flags it takes.
    """

    name: str
    program: str
    version: str
    why: str
    engine: catalog.Engine

    def run(
        self,
        load: Load,
        at: bench_commands.Target,
        key: str,
        tick: Tick,
        metadata: Mapping[str, str],
    ) -> tuple[dict[str, Any], list[str]]:
        """Send a load and return (result, command).

        The result has vLLM's keys, with the times of every request. The command is [] for our own
        client.

        Raises:
            BenchError: If there is no result.
        """
        if self.name == "kimi_nb":
            return load_client.run(load, at.url, at.model, key=key, tick=tick), []
        with tempfile.TemporaryDirectory(prefix="kimi-nb-bench-") as scratch:
            folder = Path(scratch)
            # The service has just answered a probe; vllm's own check would wait ten minutes for it.
            argv = [
                *bench_commands.bench_serve(
                    load, at, self.engine, scratch, "result.json", metadata
                ),
                "--ready-check-timeout-sec",
                "0",
            ]
            code, printed = self._watched(
                [self.program, *argv[1:]], folder, at.url, key, load, tick
            )
            try:
                raw = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                raise BenchError(
                    f"vllm bench serve ended with {code} and wrote no result. Its "
                    f"last lines:\n{_last(printed)}"
                ) from None
            return raw, argv

    def _watched(
        self, argv: list[str], folder: Path, url: str, key: str, load: Load, tick: Tick
    ) -> tuple[int, str]:
        log, seen = folder / "vllm.log", -1
        with Programs(folder / "supervisor.log") as programs:
            programs.start("vllm", argv, folder, environment(os.environ, url, key), log)
            while (code := programs.wait("vllm", _LOOK)) is None:
                if "vllm" not in programs.ended() and (done := _progress(log, load)) != seen:
                    seen = done
                    tick(done, 0)
        return code, log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def check_name(asked: str) -> None:
    """Check the name of a tool.

    Raises:
        ParameterError: If there is no such tool.
    """
    if asked not in NAMES:
        raise ParameterError(choice("tool", asked, NAMES))


def choose(asked: str, plan: Plan, mark: str) -> Tool:
    """Return the tool with a given name; "auto" chooses one and says why.

    Raises:
        ParameterError: If there is no such tool.
        BenchError: If vllm is asked for and is not installed.
    """
    check_name(asked)
    served = bench_commands.engine(plan)
    own = Tool("kimi_nb", sys.executable, __version__, "", served)
    if asked == "kimi_nb":
        return _because(own, "it was asked for")
    if asked == "auto" and mark:
        return _because(own, "it starts at once, and in a rehearsal there is nothing to measure")
    program = _vllm(plan)
    if program is None:
        where = plan.engine_folder or "PATH"
        if asked == "vllm":
            raise BenchError(
                f"tool vllm: no vllm in {where}. Install it (hardware cpu: make "
                "engine), run the written commands where the engine is, or take "
                "tool kimi_nb, which sends the same load."
            )
        return _because(
            own,
            f"no vllm on this machine ({where}); the written commands run it where the engine is",
        )
    version = _version(program)
    known = re.match(r"[\d.]+\d((rc|\.post)\d+)?", version)
    try:
        engine = catalog.engine("vllm", known[0] if known else "")
    except ParameterError:
        engine = served
    return Tool("vllm", str(program), version, f"it is at hand: {program}", engine)


def _because(tool: Tool, why: str) -> Tool:
    return Tool(tool.name, tool.program, tool.version, why, tool.engine)


def _vllm(plan: Plan) -> Path | None:
    """Return the vllm of the plan's engine if it is on this machine, or one on PATH, or None."""
    if plan.engine_folder and plan.transport == "local":
        own = Path(plan.engine_folder) / "bin" / "vllm"
        return own if os.access(own, os.X_OK) else None
    found = shutil.which("vllm")
    return Path(found) if found else None


def _version(program: Path) -> str:
    """Return vllm's version from its metadata: starting the program takes many seconds."""
    for place in sorted(
        program.resolve().parent.parent.glob("lib/python*/site-packages/vllm-*.dist-info")
    ):
        return place.name.removeprefix("vllm-").removesuffix(".dist-info")
    return "unknown"


def environment(given: Mapping[str, str], url: str, key: str) -> dict[str, str]:
    """Return the environment for vllm.

    Nothing of this Python's environment is passed on and no proxy is used for the service. The key
    is in the variable that vllm reads, and usage reports are off.
    """
    out = {
        name: value
        for name, value in given.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OPENAI_API_KEY")
    }
    direct = ",".join(
        filter(
            None, [given.get("no_proxy") or given.get("NO_PROXY", ""), urlsplit(url).hostname or ""]
        )
    )
    out |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "NO_PROXY": direct, "no_proxy": direct}
    return out | ({"OPENAI_API_KEY": key} if key else {})


def _progress(log: Path, load: Load) -> int:
    """Return how many requests are done, according to the last progress bar in the log."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    if "Starting main benchmark run" not in text:
        return 0
    found = re.findall(rf"(\d+)/{load.prompts} ", text.rpartition("Starting main")[2])
    return int(found[-1]) if found else 0


def _last(text: str) -> str:
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    return (
        "\n".join(f"  {line[:160]}" for line in [line for line in lines if line][-_TAIL:])
        or "  (it printed nothing)"
    )
