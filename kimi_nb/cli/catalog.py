"""``kimi-nb catalog``: show what a version of an engine supports."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from kimi_nb.cli import options


def add(commands: options.Commands) -> None:
    """Declare the command, its subcommands and their arguments."""
    parts = commands.add_parser("catalog", help="what an engine's version knows").add_subparsers(
        dest="part", required=True, metavar="WHAT"
    )
    diff = parts.add_parser("diff", help="what changed between two versions")
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    diff.add_argument(
        "--engine", default="vllm", metavar="NAME", help="vllm (default) or vllm-ascend"
    )
    options.json_output(diff)
    dump = parts.add_parser("dump", help="the same tables from an installed vLLM, as JSON")
    dump.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the interpreter that has vLLM (default: this one)",
    )
    dump.add_argument(
        "--compare", action="store_true", help="list what differs from the shipped catalog instead"
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    return _diff(args) if args.part == "diff" else _dump(args)


def _diff(args: argparse.Namespace) -> int:
    from kimi_nb.catalog import differences

    changes = differences.difference(args.engine, args.old, args.new)
    notes = differences.notes(args.engine, args.old, args.new)
    if args.json:
        print(
            json.dumps(
                {"changes": [asdict(change) for change in changes], "notes": notes}, indent=2
            )
        )
        return 0
    print(differences.table(changes))
    for note in notes:
        print(f"note: {note}")
    return 0


def _dump(args: argparse.Namespace) -> int:
    from kimi_nb.service import installed_engine

    found = installed_engine.dump(args.python)
    if not args.compare:
        print(json.dumps(found, indent=1, sort_keys=True))
        return 0
    lines = installed_engine.compare(found)
    summary = f"vLLM {found['version']}: {len(lines)} differences from the catalog."
    print("\n".join([*lines, summary]))
    return 1 if lines else 0
