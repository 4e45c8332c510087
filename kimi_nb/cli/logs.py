"""``kimi-nb logs``: print the logs of all ranks of a deployment."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kimi_nb.cli import options, signals
from kimi_nb.show import say, visible

_LONGEST = 1 << 20  # bytes of a line; what is longer is printed in parts


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("logs", help="the logs of all ranks, each line with its rank")
    options.deployment(parser)
    parser.add_argument("--no-follow", action="store_true", help="what there is, and no more")


def run(args: argparse.Namespace) -> int:
    """Print and follow the logs, each line with its rank."""
    from kimi_nb.deploy import lifecycle

    signals.end_like_ctrl_c()
    journal = options.journal(args)
    if journal.state == "down":
        _print_copies(journal.folder / "logs")
        return 0
    ends = "" if args.no_follow else "; Ctrl-C ends"
    where = visible(f"{journal.plan} on {journal.site}, {journal.state}", lines=False)
    print(f"{where}{ends}.", file=sys.stderr)
    with lifecycle.target(journal.kept_plan(), journal) as site:
        for who, line in site.follow(lambda: args.no_follow):
            print(f"{visible(who)} | {visible(line)}", flush=True)
    return 0


def _print_copies(folder: Path) -> None:
    """Print the kept logs of a deployment that has ended.

    Its nodes may hold the logs of another deployment by now.
    """
    from kimi_nb.deploy import lifecycle

    found = [path for path in sorted(folder.rglob("*")) if path.suffix in lifecycle.LOGS]
    for path in found:
        node = "" if path.parent == folder else f"{path.parent.name} "
        name = path.name.partition(".")[0]  # under SLURM the number of the job follows
        with path.open("rb") as file:
            while piece := file.readline(_LONGEST):
                for line in piece.decode("utf-8", "replace").splitlines():
                    print(f"{visible(node + name)} | {visible(line)}")
    if not found:
        say(f"{folder}: no logs were kept: no engine was started, or none was reached.")
