"""``kimi-nb bench``: keep measurements as a site's baseline, and tell when later ones are slower."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import plain_json, say

if TYPE_CHECKING:
    from kimi_nb.prove.bench.results import BenchResult


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "bench", help="whether the results of notebook 08 are slower than a baseline of the site"
    )
    parser.add_argument(
        "results", metavar="FOLDER", help="the folder bench of a run's plan, with its results"
    )
    parser.add_argument("--site", default="", help="your own site file, beside which baselines lie")
    parser.add_argument("--keep", default="", metavar="NAME", help="keep them as a baseline")
    parser.add_argument(
        "--against", metavar="NAME|FILE", help="compare them; exit code 1 if they are slower"
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Keep results as a baseline, or compare them with one; return 1 for a regression."""
    from kimi_nb.params import load
    from kimi_nb.prove.bench import baseline, results
    from kimi_nb.show import visible

    if bool(args.keep) == (args.against is not None):
        raise ParameterError("bench: name --keep NAME or --against NAME, one of them.")
    folder = load.user_path(args.results, "FOLDER")
    found = results.load(folder)
    if not found.files:
        raise ParameterError(
            f"{folder}: no results of a benchmark are there. Name the folder bench that notebook 08 "
            "writes (runs/MODEL-HW/PLAN/bench)."
        )
    if args.keep:
        path = baseline.keep(found, _place(args, args.keep, found))
        say(f"kept: {path}")
        return 0
    named = Path(args.against)
    path = named if named.is_file() else _place(args, args.against, found)
    told = baseline.against(found, path)
    if args.json:
        print(plain_json(told.as_dict()))
    else:
        print(visible(str(told)))
        for sentence in told.regressions:
            say(f"slower: {sentence}")
    return 1 if told.regressions else 0


def _place(args: argparse.Namespace, name: str, found: BenchResult) -> Path:
    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.params import load
    from kimi_nb.prove.bench import baseline

    site = load.site(args.site or found.hardware).name  # without one, the example as in a plan
    return baseline.place(name, site, args.site, runs_folder())
