"""``kimi-nb``: the package from a terminal. Thin: arguments in, one call, text or JSON out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from kimi_nb import __version__
from kimi_nb.errors import KimiError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 ok, 1 a run that failed, 2 a mistake in what was asked."""
    args = _parser().parse_args(argv)
    try:
        return args.call(args)
    except KimiError as error:
        print(f"kimi-nb: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("kimi-nb: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kimi-nb", allow_abbrev=False,
        description="Serve Moonshot Kimi with vLLM: plans, scripts and notebooks.")
    parser.add_argument("--version", action="version", version=f"kimi-nb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="what there is: model x hardware x layout",
                                  allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="one JSON document on stdout")
    listing.set_defaults(call=_list)

    plan = commands.add_parser("plan", help="one deployment: engines, router, scripts",
                               allow_abbrev=False)
    _target(plan)
    plan.add_argument("--layout", help="single, dp or pd (default: the only one there is)")
    plan.add_argument("--scenario", default="", help="a row of a tuning table (kimi-nb list)")
    plan.add_argument("--variant", default="", help="docker, pip, slurm, ... (kimi-nb list)")
    plan.add_argument("--with", dest="chosen", metavar="FEATURE", action="append", default=[],
                      help="switch a feature on")
    plan.add_argument("--without", dest="dropped", metavar="FEATURE", action="append", default=[],
                      help="switch a feature off")
    plan.add_argument("--set", dest="pairs", metavar="KEY=VALUE", action="append", default=[],
                      help="max-num-seqs=32, decode.dp=16, env.NAME=VALUE, router=vllm-router")
    plan.add_argument("--engine-version", default="", metavar="V",
                      help="speak the language of this version")
    plan.add_argument("--out", metavar="DIR", help="write the bundle to DIR")
    plan.add_argument("--explain", action="store_true",
                      help="show every setting with its layer, source and meaning")
    plan.add_argument("--json", action="store_true", help="one JSON document on stdout")
    plan.set_defaults(call=_plan)

    run = commands.add_parser("run", help="execute the notebooks that apply", allow_abbrev=False)
    _target(run)
    run.add_argument("--only", metavar="03,05", help="these notebooks only")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="N notebooks at a time")
    run.add_argument("--run-dir", default="", metavar="DIR",
                     help="where results go (default: runs/<utc>-<model>-<hw>)")
    run.set_defaults(call=_run)
    return parser


def _target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a name (k2.5), or your own file")
    parser.add_argument("--hw", required=True, help="a name (a3), or your own file")
    parser.add_argument("--site", default="", help="your own site file (default: the example)")


def _list(args: argparse.Namespace) -> int:
    from kimi_nb import recipes, tables

    rows, missing = recipes.listing(), recipes.missing()
    if args.json:
        print(json.dumps({"recipes": rows, "missing": missing}, indent=2))
        return 0
    print(tables.recipes(rows))
    print()
    print(tables.matrix(rows, missing, recipes.container_only()))
    return 0


def _plan(args: argparse.Namespace) -> int:
    from kimi_nb import build, bundle, params, scripts, tables

    plan = build.plan(args.model, args.hw, args.layout, scenario=args.scenario,
                      variant=args.variant, site=args.site, chosen=args.chosen,
                      dropped=args.dropped, pairs=args.pairs, engine_version=args.engine_version)
    files = scripts.files(plan) if args.json or args.out is not None else {}
    if args.out is not None:
        changes = bundle.write(files, params.user_path(args.out, "--out"))
    if args.json:
        print(plan.as_json(files))
        return 0
    print(tables.topology(plan))
    print(f"\n{plan.title}. {plan.engine} {plan.engine_version}, front door {plan.url}, "
          f"model name {plan.served_name}.")
    if args.explain:
        print(f"\n{tables.settings(plan)}\n\n{tables.errata(plan)}")
    for note in plan.notes:
        print(f"note: {note}")
    print(f"{len(plan.errata)} differences from the documents"
          + ("." if args.explain else ": --explain shows each, with every setting."))
    if args.out is not None:
        print(f"{len(files)} files in {args.out}"
              + (f", {len(changes)} new or changed." if changes else ": no change."))
    else:
        print("--out DIR writes the scripts.")
    return 0


def _run(args: argparse.Namespace) -> int:
    import signal

    from kimi_nb import runbook

    # A scheduler's SIGTERM ends a run as Ctrl-C does: kernels stopped, evidence closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = runbook.run(args.model, args.hw, only=args.only, jobs=args.jobs,
                          site=args.site, run_dir=args.run_dir)
    print(outcome)
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
