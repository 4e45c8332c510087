"""Which program drives a load: the real ``vllm bench serve`` where it is at hand, else our client.

tool = tools.choose("auto", plan, mark="")     # Tool(name="vllm", program="/.../bin/vllm", ...)
raw = tool.run(load, at, folder, key, tick)    # the JSON of vllm bench, by either
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

from kimi_nb import __version__
from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.core.errors import BenchError, ParameterError, choice
from kimi_nb.core.processes import Programs
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import bench_commands as commands
from kimi_nb.prove.bench import load_client as client
from kimi_nb.prove.bench.workload import Load

NAMES = {
    "auto": "vllm where it is on this machine and an engine serves, else kimi_nb",
    "vllm": "vllm bench serve of the engine's environment",
    "kimi_nb": "our own client",
}
_LOOK = 2.0  # seconds between two looks at what vllm has printed
_TAIL = 12  # lines of its output that an error shows
Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Tool:
    """``name`` vllm or kimi_nb, its ``program`` and ``version``, and ``why`` it was taken."""

    name: str
    program: str
    version: str
    why: str
    engine: catalog.Engine

    def run(
        self, load: Load, at: commands.Target, key: str, tick: Tick, metadata: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str]]:
        """(the result in vllm's keys with every request's times, the command that ran). Raises
        BenchError where there is no result."""
        if self.name == "kimi_nb":
            return client.run(load, at.url, at.model, key=key, tick=tick), []
        with tempfile.TemporaryDirectory(prefix="kimi-nb-bench-") as scratch:
            folder = Path(scratch)
            # The service has just been asked; vllm's own check would wait ten minutes for it.
            argv = [
                *commands.bench_serve(load, at, self.engine, scratch, "result.json", metadata),
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
    """Raises ParameterError for a tool that there is not."""
    if asked not in NAMES:
        raise ParameterError(choice("tool", asked, NAMES))


def choose(asked: str, plan: Plan, mark: str) -> Tool:
    """The tool that is asked for. Raises ParameterError for a name that is none, BenchError where
    vllm is asked for and not at hand."""
    check_name(asked)
    served = commands.engine(plan)
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
    """The engine's own vllm where it is of this machine, else one on PATH."""
    if plan.engine_folder and plan.transport == "local":
        own = Path(plan.engine_folder) / "bin" / "vllm"
        return own if os.access(own, os.X_OK) else None
    found = shutil.which("vllm")
    return Path(found) if found else None


def _version(program: Path) -> str:
    """From the package's metadata: to ask the program takes it many seconds."""
    for place in sorted(
        program.resolve().parent.parent.glob("lib/python*/site-packages/vllm-*.dist-info")
    ):
        return place.name.removeprefix("vllm-").removesuffix(".dist-info")
    return "unknown"


def environment(given: Mapping[str, str], url: str, key: str) -> dict[str, str]:
    """What vllm gets: nothing of this Python's, no proxy on the way to the service, the key by the
    name that it reads, and nothing is reported to anybody."""
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
    """How many requests are done, by the last bar that was printed."""
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
