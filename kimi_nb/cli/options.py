"""Declare the arguments that several commands share, and resolve them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kimi_nb.deploy.journal import Journal
    from kimi_nb.plan.spec import Plan

# The type of `add`'s parameter; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def target(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Declare the options that name the model, the hardware and the site."""
    parser.add_argument(
        "--model",
        required=required,
        default="",
        help="a name (k2.5, moonshotai/Kimi-K2.5), or your own file",
    )
    parser.add_argument("--hw", required=required, default="", help="a name (a3), or your own file")
    parser.add_argument("--site", default="", help="your own site file (default: the example)")


def choices(parser: argparse.ArgumentParser) -> None:
    """Declare the options that select and adjust a plan."""
    parser.add_argument("--layout", help="single, dp or pd (default: the only one there is)")
    parser.add_argument("--scenario", default="", help="a row of a tuning table (kimi-nb list)")
    parser.add_argument("--variant", default="", help="docker, pip, slurm, ... (kimi-nb list)")
    parser.add_argument(
        "--with",
        dest="chosen",
        metavar="FEATURE,..",
        type=names,
        action="extend",
        default=[],
        help="switch features on",
    )
    parser.add_argument(
        "--without",
        dest="dropped",
        metavar="FEATURE,..",
        type=names,
        action="extend",
        default=[],
        help="switch features off",
    )
    parser.add_argument(
        "--set",
        dest="pairs",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="max-num-seqs=32, decode.dp=16, env.NAME=VALUE, router=vllm-router",
    )
    parser.add_argument(
        "--erratum",
        metavar="ID=on|off,..",
        type=names,
        action="extend",
        default=[],
        help="switch corrections of the documents (plan --explain lists them)",
    )
    parser.add_argument(
        "--calibration",
        dest="calibrations",
        metavar="FILE",
        action="append",
        default=[],
        help="account for memory as measured (kimi-nb calibrate); one for each role",
    )
    parser.add_argument(
        "--engine-version", default="", metavar="V", help="speak the language of this version"
    )
    derive(parser)


def derive(parser: argparse.ArgumentParser) -> None:
    """Declare ``--derive``."""
    parser.add_argument(
        "--derive",
        action="store_true",
        help="where nothing is documented, derive a recipe from the nearest one (kimi-nb list --why)",
    )


def as_documented(parser: argparse.ArgumentParser) -> None:
    """Declare ``--as-documented`` for a command that plans."""
    parser.add_argument(
        "--as-documented",
        action="store_true",
        help="the documents' own settings: every correction off that can be, as all=off",
    )


def names(text: str) -> list[str]:
    """Return names that stand between commas; the text itself if there is none."""
    return [word.strip() for word in text.split(",") if word.strip()] or [text]


def json_output(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def deployment(parser: argparse.ArgumentParser) -> None:
    """Declare the positional argument RUN, which names a deployment."""
    parser.add_argument(
        "run",
        nargs="?",
        default="",
        metavar="RUN",
        help="a run's folder (default: the deployment that is not down)",
    )


def plan(args: argparse.Namespace) -> Plan:
    """Build the plan from the options of `target` and `choices`."""
    from kimi_nb.plan import build

    return build.plan(
        args.model,
        args.hw,
        args.layout,
        scenario=args.scenario,
        variant=args.variant,
        site=args.site,
        chosen=args.chosen,
        dropped=args.dropped,
        pairs=args.pairs,
        engine_version=args.engine_version,
        calibrations=args.calibrations,
        derive=args.derive,
        erratum=[*(["all=off"] if args.as_documented else []), *args.erratum],
    )


def given_for_plans(args: argparse.Namespace) -> list[str]:
    """Return the given options that apply only to a generated plan."""
    values = {
        "--scenario": args.scenario,
        "--site": args.site,
        "--with": args.chosen,
        "--without": args.dropped,
        "--set": args.pairs,
        "--erratum": args.erratum,
        "--calibration": args.calibrations,
        "--derive": args.derive,
    }
    return [name for name, value in values.items() if value]


def run_folder(args: argparse.Namespace, plan: Plan) -> Path:
    """Return the folder of a plan's results, below ``--run-dir`` or ``runs/``."""
    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.params import load

    base = (
        load.user_path(args.run_dir, "--run-dir")
        if args.run_dir
        else runs_folder() / f"{plan.model}-{plan.hardware}"
    )
    return base.absolute() / plan.name


def journal(args: argparse.Namespace) -> Journal:
    """Return the journal of the deployment named by RUN."""
    from kimi_nb.deploy import journal
    from kimi_nb.notebook.start import runs_folder

    return journal.find(args.run, runs_folder())
