"""``kimi-nb versions``: which versions of the engine still serve a model on a hardware."""

from __future__ import annotations

import argparse
import json

from kimi_nb.cli import options
from kimi_nb.show import say


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "versions", help="each engine version: known faults, changes, upstream's tests"
    )
    options.target(parser)
    parser.add_argument("--layout", default="", help="single, dp or pd (default: the first)")
    parser.add_argument("--variant", default="", help="docker, pip, slurm, ... (kimi-nb list)")
    parser.add_argument(
        "--explain", action="store_true", help="each known fault: what is seen, way out, source"
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print a row for each version of the engine."""
    from kimi_nb.catalog import known_faults
    from kimi_nb.check import engine_versions
    from kimi_nb.core.errors import ParameterError

    if args.site:
        raise ParameterError("versions: --site says nothing here: faults are of versions.")
    found = engine_versions.of(args.model, args.hw, args.layout, args.variant)
    if args.json:
        here = {one.id for row in found.rows for one in row.faults}
        known = [one.as_dict() for one in known_faults.every() if one.id in here]
        print(json.dumps({**found.as_dict(), "known_faults": known}, indent=2))
        return 0
    print(found)
    if args.explain:
        print(f"\n{engine_versions.faults_table(found)}")
    else:
        say("--explain tells each known fault with its way out and source.")
    return 0
