"""The command ``kimi-nb report``: what a run came to, as one page or as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to a parser's."""
    report = commands.add_parser(
        "report", help="a run as one HTML page that opens anywhere", allow_abbrev=False
    )
    report.add_argument(
        "run",
        nargs="?",
        default="",
        metavar="RUN",
        help="a run's folder (default: the newest below runs/)",
    )
    report.add_argument(
        "--out",
        default="",
        metavar="FILE",
        help="where the page goes (default: report.html in the run's folder)",
    )
    report.add_argument(
        "--json", action="store_true", help="one JSON document on stdout; a page only with --out"
    )
    report.set_defaults(call=_report)


def _report(args: argparse.Namespace) -> int:
    from kimi_nb import report
    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.params import load as params
    from kimi_nb.report.collect import newest

    folder = (params.user_path(args.run, "RUN") if args.run else newest(runs_folder())).absolute()
    out: Path | None = params.user_path(args.out, "--out").absolute() if args.out else None
    if args.json:
        print(json.dumps(report.collect(folder).as_dict(), indent=2, ensure_ascii=False))
        if out is None:
            return 0
    written = report.write(folder, out)
    if not args.json:
        found = report.collect(folder).verdict
        print(f"{found.status}: {found.text}")
        for line in found.limits:
            print(line)
        print(f"report: {written}")
    return 0
