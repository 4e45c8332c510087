"""``kimi-nb doctor``: find the first cause of a failure in the logs."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import plain_json, say, visible


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "doctor", help="why it failed: the first cause in the logs of all ranks"
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="logs, folders of logs, .gz too; - is stdin (default: the newest run below runs/)",
    )
    parser.add_argument(
        "--plan",
        default="",
        metavar="PATH",
        help="a bundle, its plan.json or a run's folder: names node and devices",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Examine the logs and print the diagnosis; return 1 if something failed."""
    from kimi_nb.diagnose import prefilter

    prefilter.prepare()
    from kimi_nb.diagnose import doctor  # takes as long as the patterns

    paths, plan = args.paths, args.plan
    if not paths and _piped():
        paths = ["-"]
    elif not paths:
        newest = _newest_run()
        say(f"no log was named: the newest run, {newest}", file=sys.stderr)
        paths, plan = [str(newest)], plan or _plan_of(newest)
    found = doctor.examine(paths, plan or None)
    print(plain_json(found.as_dict()) if args.json else visible(str(found)))
    return 0 if found.ok else 1


def _piped() -> bool:
    """Return whether somebody sends a log to stdin: a pipe, a file or a socket, but no terminal."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, or a program replaced it
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _newest_run() -> Path:
    """Return the newest run below runs/. Raises ParameterError if there is none."""
    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.report.collect import newest

    runs = runs_folder()
    try:
        return newest(runs)
    except ParameterError:
        raise ParameterError(
            f"doctor: no log is named, nothing is sent to stdin, and {runs} holds no run. Name logs "
            "or folders of logs (kimi-nb doctor PATH...), also .gz, or send a log: "
            "kubectl logs POD | kimi-nb doctor."
        ) from None


def _plan_of(run: Path) -> str:
    """Return the run if it holds one plan, which names nodes and devices, else ""."""
    plans = [*run.glob("plan.json"), *run.glob("bundle/plan.json"), *run.glob("*/bundle/plan.json")]
    return str(run) if len(plans) == 1 else ""
