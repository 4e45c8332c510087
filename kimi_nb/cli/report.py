"""``kimi-nb report``: report a run as one HTML page or as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from kimi_nb.cli import options
from kimi_nb.core import extras
from kimi_nb.show import plain_json, say


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("report", help="a run as one HTML page that opens anywhere")
    parser.add_argument(
        "run",
        nargs="?",
        default="",
        metavar="RUN",
        help="a run's folder (default: the newest below runs/)",
    )
    parser.add_argument(
        "--out",
        default="",
        metavar="FILE",
        help="where the page goes (default: report.html in the run's folder)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on stdout; a page only with --out"
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and print the verdict, or print the report as JSON."""
    with extras.imports("report", "" if args.json and not args.out else "notebook"):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from kimi_nb import report
    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.params import load
    from kimi_nb.report.collect import newest, run_of

    given = load.user_path(args.run, "RUN") if args.run else newest(runs_folder())
    folder = run_of(given.absolute())
    out: Path | None = load.user_path(args.out, "--out").absolute() if args.out else None
    if args.json:
        print(plain_json(report.collect(folder).as_dict()))
        if out is None:
            return 0
    from kimi_nb.notebook import runbook  # only for a page

    written = runbook.write_report(folder, out)
    if not args.json:
        found = report.collect(folder).verdict
        print(f"{found.status}: {found.text}")
        for line in found.limits:
            print(line)
        say(f"report: {written}")
    return 0
