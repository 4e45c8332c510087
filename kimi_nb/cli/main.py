"""``kimi-nb``: the package from a terminal. Thin: arguments in, one call, text or JSON out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from kimi_nb import __version__
from kimi_nb.cli import doctor as cli_doctor
from kimi_nb.cli import report as cli_report
from kimi_nb.cli import up as cli_deploy
from kimi_nb.cli import verify as cli_verify
from kimi_nb.core.errors import KimiError, ParameterError
from kimi_nb.show.values import visible


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 ok, 1 a run that failed, 2 a mistake in what was asked."""
    args = _parser().parse_args(argv)
    try:
        return args.call(args)
    except KimiError as error:
        print(f"kimi-nb: {visible(str(error))}", file=sys.stderr)
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
        prog="kimi-nb",
        allow_abbrev=False,
        description="Serve Moonshot Kimi with vLLM: plans, scripts and notebooks.",
    )
    parser.add_argument("--version", action="version", version=f"kimi-nb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser(
        "list", help="what there is: model x hardware x layout", allow_abbrev=False
    )
    listing.add_argument("--rules", action="store_true", help="the rules of kimi-nb check")
    listing.add_argument(
        "--faults", action="store_true", help="what kimi-nb rehearse can make go wrong"
    )
    listing.add_argument("--json", action="store_true", help="one JSON document on stdout")
    listing.set_defaults(call=_list)

    plan = commands.add_parser(
        "plan", help="one deployment: engines, router, scripts", allow_abbrev=False
    )
    _target(plan)
    _choices(plan)
    plan.add_argument("--out", metavar="DIR", help="write the bundle to DIR")
    plan.add_argument(
        "--explain",
        action="store_true",
        help="show every setting with its layer, source and meaning",
    )
    plan.add_argument("--json", action="store_true", help="one JSON document on stdout")
    plan.set_defaults(call=_plan)

    check = commands.add_parser(
        "check", help="ask the rules: of a plan, a document, any scripts", allow_abbrev=False
    )
    check.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="scripts, compose files, documents; a folder is one deployment",
    )
    _target(check, required=False)
    _choices(check)
    check.add_argument(
        "--as-documented",
        action="store_true",
        help="check the documents' commands as they were published",
    )
    check.add_argument("--engine", default="", metavar="NAME", help="vllm or vllm-ascend (files)")
    check.add_argument(
        "--fix",
        action="store_true",
        help="rewrite what the catalog knows: shows the diff, keeps FILE.orig",
    )
    check.add_argument("--dry-run", action="store_true", help="with --fix: only the diff")
    check.add_argument("--json", action="store_true", help="one JSON document on stdout")
    check.set_defaults(call=_check)

    tables = commands.add_parser(
        "catalog", help="what an engine's version knows", allow_abbrev=False
    ).add_subparsers(required=True, metavar="WHAT")
    difference = tables.add_parser(
        "diff", help="what changed between two versions", allow_abbrev=False
    )
    difference.add_argument("old", metavar="OLD")
    difference.add_argument("new", metavar="NEW")
    difference.add_argument(
        "--engine", default="vllm", metavar="NAME", help="vllm (default) or vllm-ascend"
    )
    difference.add_argument("--json", action="store_true", help="one JSON document on stdout")
    difference.set_defaults(call=_catalog_diff)
    dump = tables.add_parser(
        "dump", help="the same tables from an installed vLLM, as JSON", allow_abbrev=False
    )
    dump.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the interpreter that has vLLM (default: this one)",
    )
    dump.add_argument(
        "--compare", action="store_true", help="list what differs from the shipped catalog instead"
    )
    dump.set_defaults(call=_catalog_dump)

    rehearse = commands.add_parser(
        "rehearse",
        help="run the scripts here, on stand-ins for engines and accelerators",
        allow_abbrev=False,
    )
    _target(rehearse)
    _choices(rehearse)
    rehearse.add_argument(
        "--as-documented",
        action="store_true",
        help="rehearse the document's commands as they were published",
    )
    rehearse.add_argument(
        "--fault",
        default="",
        metavar="NAME[@ENGINE]",
        help="make something go wrong (kimi-nb list --faults)",
    )
    rehearse.add_argument(
        "--run-dir",
        default="",
        metavar="DIR",
        help="where logs and results go (default: runs/<model>-<hw>)",
    )
    rehearse.add_argument("--json", action="store_true", help="one JSON document on stdout")
    rehearse.set_defaults(call=_rehearse)

    cli_deploy.add(commands, _target, _choices)
    cli_verify.add(commands)
    cli_doctor.add(commands)

    run = commands.add_parser("run", help="execute the notebooks that apply", allow_abbrev=False)
    _target(run)
    run.add_argument("--only", metavar="03,05", help="these notebooks only")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="N notebooks at a time")
    run.add_argument(
        "--run-dir",
        default="",
        metavar="DIR",
        help="where results go (default: runs/<utc>-<model>-<hw>)",
    )
    run.set_defaults(call=_run)

    cli_report.add(commands)
    return parser


def _target(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument(
        "--model", required=required, default="", help="a name (k2.5), or your own file"
    )
    parser.add_argument("--hw", required=required, default="", help="a name (a3), or your own file")
    parser.add_argument("--site", default="", help="your own site file (default: the example)")


def _choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layout", help="single, dp or pd (default: the only one there is)")
    parser.add_argument("--scenario", default="", help="a row of a tuning table (kimi-nb list)")
    parser.add_argument("--variant", default="", help="docker, pip, slurm, ... (kimi-nb list)")
    parser.add_argument(
        "--with",
        dest="chosen",
        metavar="FEATURE",
        action="append",
        default=[],
        help="switch a feature on",
    )
    parser.add_argument(
        "--without",
        dest="dropped",
        metavar="FEATURE",
        action="append",
        default=[],
        help="switch a feature off",
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
        "--engine-version", default="", metavar="V", help="speak the language of this version"
    )


def _list(args: argparse.Namespace) -> int:
    from kimi_nb.check.rules import registry as rules
    from kimi_nb.params import recipes
    from kimi_nb.plan import tables

    if args.rules and args.faults:
        raise ParameterError("list: --rules and --faults are two lists; ask for one.")
    if args.faults:
        from kimi_nb.rehearse import faults

        if args.json:
            print(json.dumps({name: kind.says for name, kind in faults.FAULTS.items()}, indent=2))
        else:
            print(faults.table())
        return 0
    if args.rules:
        known = list(rules.all_rules().values())
        if args.json:
            print(json.dumps([rules.as_dict(one) for one in known], indent=2))
        else:
            print(rules.table(known))
        return 0
    rows, missing = recipes.listing(), recipes.missing()
    if args.json:
        print(json.dumps({"recipes": rows, "missing": missing}, indent=2))
        return 0
    print(tables.recipes(rows))
    print()
    print(tables.matrix(rows, missing, recipes.container_only()))
    return 0


def _plan(args: argparse.Namespace) -> int:
    from kimi_nb.bundle import scripts
    from kimi_nb.bundle import writer as bundle
    from kimi_nb.params import load as params
    from kimi_nb.plan import build, tables

    plan = build.plan(
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
    )
    files = scripts.files(plan) if args.json or args.out is not None else {}
    if args.out is not None:
        changes = bundle.write(files, params.user_path(args.out, "--out"))
    if args.json:
        print(plan.as_json(files))
        return 0
    print(tables.topology(plan))
    print(
        f"\n{plan.title}. {plan.engine} {plan.engine_version}, front door {plan.url}, "
        f"model name {plan.served_name}."
    )
    if args.explain:
        print(f"\n{tables.settings(plan)}\n\n{tables.errata(plan)}")
    for note in plan.notes:
        print(f"note: {note}")
    print(
        f"{len(plan.errata)} differences from the documents"
        + ("." if args.explain else ": --explain shows each, with every setting.")
    )
    if args.out is not None:
        print(
            f"{len(files)} files in {args.out}"
            + (f", {len(changes)} new or changed." if changes else ": no change.")
        )
    else:
        print("--out DIR writes the scripts.")
    print("kimi-nb check, with the same words, asks the rules of it.")
    return 0


def _check(args: argparse.Namespace) -> int:
    from kimi_nb.check import judge as check
    from kimi_nb.check import rewriting
    from kimi_nb.plan import build

    _check_asked(args)
    if args.fix:
        for path in args.files:
            print(
                visible(
                    str(rewriting.file(path, args.engine, args.engine_version, dry=args.dry_run))
                )
            )
        if args.dry_run:
            return 0
    if args.files:
        found = check.files(
            args.files, engine=args.engine, version=args.engine_version, hardware=args.hw
        )
    elif args.as_documented:
        found = check.documents(
            args.model, args.hw, args.layout or "", args.variant, args.engine_version
        )
    else:
        found = check.plan(
            build.plan(
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
            )
        )
    if args.json:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        for bar in found.memory if not args.files or args.hw else ():
            print(f"{bar}\n")
        print(found)
    return 0 if found.ok else 1


def _check_asked(args: argparse.Namespace) -> None:
    """Refuse what does not belong together, before anything is read."""
    if not (args.files or args.as_documented or (args.model and args.hw)):
        raise ParameterError(
            "check: name FILES or a folder, or --model and --hw of a plan, or --as-documented."
        )
    plans = {
        "--scenario": args.scenario,
        "--site": args.site,
        "--with": args.chosen,
        "--without": args.dropped,
        "--set": args.pairs,
    }
    other = {"--model": args.model, "--layout": args.layout, "--variant": args.variant}
    if args.files:
        wrong = [
            name
            for name, value in {**plans, **other, "--as-documented": args.as_documented}.items()
            if value
        ]
        what = "files"
    elif args.as_documented:
        wrong = [
            name
            for name, value in {**plans, "--engine": args.engine, "--fix": args.fix}.items()
            if value
        ]
        what = "documents"
    else:
        wrong = [
            name for name, value in {"--engine": args.engine, "--fix": args.fix}.items() if value
        ]
        what = "a plan"
    if args.dry_run and not args.fix:
        wrong.append("--dry-run (without --fix)")
    if wrong:
        raise ParameterError(f"check: {', '.join(wrong)} says nothing about {what}.")
    if args.fix and args.json:
        raise ParameterError("check: --fix shows a diff; run --json afterwards.")


def _catalog_diff(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from kimi_nb.catalog import differences as catalog_diff

    changes = catalog_diff.difference(args.engine, args.old, args.new)
    notes = catalog_diff.notes(args.engine, args.old, args.new)
    if args.json:
        print(
            json.dumps(
                {"changes": [asdict(change) for change in changes], "notes": notes}, indent=2
            )
        )
        return 0
    print(catalog_diff.table(changes))
    for note in notes:
        print(f"note: {note}")
    return 0


def _catalog_dump(args: argparse.Namespace) -> int:
    from kimi_nb.service import installed_engine as catalog_dump

    found = catalog_dump.dump(args.python)
    if not args.compare:
        print(json.dumps(found, indent=1, sort_keys=True))
        return 0
    differences = catalog_dump.compare(found)
    print(
        "\n".join(
            [
                *differences,
                f"vLLM {found['version']}: {len(differences)} differences from the catalog.",
            ]
        )
    )
    return 1 if differences else 0


def _rehearse(args: argparse.Namespace) -> int:
    import time

    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.params import load as params
    from kimi_nb.plan import build
    from kimi_nb.rehearse import rehearsal as rehearse

    begun = time.monotonic()
    end_like_ctrl_c()
    make = None
    if args.as_documented:
        from kimi_nb.rehearse import documented

        _only_documented(args)
        published, own = documented.find(
            args.model, args.hw, args.layout or "", args.variant, args.engine_version
        )
        plan, make = documented.named(own), documented.maker(published)
    else:
        plan = build.plan(
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
        )
    folder = (
        params.user_path(args.run_dir, "--run-dir")
        if args.run_dir
        else runs_folder() / f"{plan.model}-{plan.hardware}"
    )
    found = rehearse.rehearse(
        plan,
        folder.absolute() / plan.name,
        fault=args.fault,
        make=make,
        begun=begun,
        say=lambda text: print(
            f"{time.monotonic() - begun:5.1f} s  {visible(text)}", file=sys.stderr
        ),
    )
    if args.json:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        print(visible(str(found)))
    return 0 if found.ok else 1


def _only_documented(args: argparse.Namespace) -> None:
    given = {
        "--scenario": args.scenario,
        "--site": args.site,
        "--with": args.chosen,
        "--without": args.dropped,
        "--set": args.pairs,
        "--fault": args.fault,
    }
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise ParameterError(
            f"rehearse: {', '.join(wrong)} changes nothing of what a document has published."
        )


def end_like_ctrl_c() -> None:
    """A scheduler's SIGTERM, and a closed terminal, end a run as Ctrl-C does: what was started is
    stopped, evidence closed."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup SIGHUP arrives ignored, and is meant to stay so.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _run(args: argparse.Namespace) -> int:
    from kimi_nb.notebook import runbook

    end_like_ctrl_c()
    outcome = runbook.run(
        args.model, args.hw, only=args.only, jobs=args.jobs, site=args.site, run_dir=args.run_dir
    )
    print(outcome)
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
