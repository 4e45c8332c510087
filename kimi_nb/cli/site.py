"""``kimi-nb site``: write a site file for your own nodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError, WriteError
from kimi_nb.show import say

if TYPE_CHECKING:
    from kimi_nb.params import schema


def add(commands: options.Commands) -> None:
    """Declare the command, its subcommand and their arguments."""
    parts = commands.add_parser("site", help="write a site file for your nodes").add_subparsers(
        dest="part", required=True, metavar="WHAT"
    )
    new = parts.add_parser("new", help="every key with its meaning, your nodes filled in")
    new.add_argument("--hw", required=True, help="a name (a3), or your own file")
    new.add_argument(
        "--nodes",
        required=True,
        metavar="NODES",
        help="10.1.2.11,10.1.2.12 or a3-0=10.1.2.11,a3-1=10.1.2.12",
    )
    new.add_argument("--name", default="my-cluster", help="its name (default: my-cluster)")
    new.add_argument("--slurm", action="store_true", help="the nodes belong to a SLURM cluster")
    new.add_argument(
        "--set",
        dest="pairs",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="ssh.user=ops, nic=enp67s0f5, paths.models=/data/models, slurm.account=kimi",
    )
    new.add_argument("--out", default="", metavar="FILE", help="default: NAME.yaml, here")
    new.add_argument("--force", action="store_true", help="replace a file that is there")


def run(args: argparse.Namespace) -> int:
    """Write the file, and print what comes next."""
    from kimi_nb.params import load, site_file
    from kimi_nb.plan import build

    chip = load.hardware(args.hw)
    values = site_file.new(
        build.example_site(chip, slurm=args.slurm),
        args.name,
        site_file.nodes(args.nodes, chip.name),
        [f"hardware={chip.name}", *args.pairs],
    )
    text = site_file.text(values)
    named = "--out " if args.out else ""
    out = load.user_path(args.out or f"{args.name}.yaml", "--out")
    try:
        # Not over a file that came in the meantime.
        with out.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ParameterError(
            f"{named}{out}: is there already. Write another file (--name or --out), or replace "
            "this one (--force)."
        ) from None
    except OSError as error:
        raise WriteError(f"{named}{out}: cannot be written: {error.strerror}.") from None
    shown = str(out) if out.is_absolute() else f"./{out}"
    number = len(values["nodes"])
    say(f"{shown}: {number} node{'s' * (number > 1)}.")
    if left := site_file.left(values, args.pairs):
        say(f"These have an example's values, look at them: {', '.join(left)}.")
    named = _example(chip, number, args.slurm)
    words = f"plan {named} --site {shown}" if named else f"list --hw {args.hw}"
    say(f"Then, for example: kimi-nb {words}")
    return 0


def _example(chip: schema.Hardware, number: int, slurm: bool) -> str:
    """Return the words of the largest plan for so many nodes; "" where nobody has published one."""
    from kimi_nb.params import load, recipes

    fitting = [
        (recipes.nodes(one), model.name, one)
        for model in map(load.model, recipes.models())
        for one in recipes.of(model, chip)
        if one.jobs == slurm and recipes.nodes(one) <= number
    ]
    if not fitting:
        return ""
    _, name, recipe = max(fitting, key=lambda found: found[0])
    layout = f"--layout {recipe.layout} --variant {recipe.variant}"
    return f"--model {name} --hw {chip.name} {layout}"
