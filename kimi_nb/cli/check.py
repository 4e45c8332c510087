"""``kimi-nb check``: apply the rules to a plan, a document or any scripts."""

from __future__ import annotations

import argparse
import json

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import visible


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("check", help="ask the rules: of a plan, a document, any scripts")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="scripts, compose files, documents; a folder is one deployment",
    )
    options.target(parser, required=False)
    options.choices(parser)
    parser.add_argument(
        "--as-documented",
        action="store_true",
        help="check the documents' commands as they were published",
    )
    parser.add_argument("--engine", default="", metavar="NAME", help="vllm or vllm-ascend (files)")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="rewrite what the catalog knows: shows the diff, keeps FILE.orig",
    )
    parser.add_argument("--dry-run", action="store_true", help="with --fix: only the diff")
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if one is an error."""
    from kimi_nb.check import judge, rewriting

    _refuse_mixtures(args)
    if args.fix:
        for path in args.files:
            rewritten = rewriting.file(path, args.engine, args.engine_version, dry=args.dry_run)
            print(visible(str(rewritten)))
        if args.dry_run:
            return 0
    if args.files:
        found = judge.files(
            args.files, engine=args.engine, version=args.engine_version, hardware=args.hw
        )
    elif args.as_documented:
        found = judge.documents(
            args.model, args.hw, args.layout or "", args.variant, args.engine_version
        )
    else:
        found = judge.plan(options.plan(args))
    if args.json:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        for bar in found.memory if not args.files or args.hw else ():
            print(f"{bar}\n")
        print(found)
    return 0 if found.ok else 1


def _refuse_mixtures(args: argparse.Namespace) -> None:
    """Refuse options that do not belong together, before anything is read."""
    if not (args.files or args.as_documented or (args.model and args.hw)):
        raise ParameterError(
            "check: name FILES or a folder, or --model and --hw of a plan, or --as-documented."
        )
    of_documents = {
        "--model": args.model,
        "--layout": args.layout,
        "--variant": args.variant,
        "--as-documented": args.as_documented,
    }
    of_files = {"--engine": args.engine, "--fix": args.fix}
    if args.files:
        what, wrong = "files", [*options.given_for_plans(args), *_given(of_documents)]
    elif args.as_documented:
        what, wrong = "documents", [*options.given_for_plans(args), *_given(of_files)]
    else:
        what, wrong = "a plan", _given(of_files)
    if args.dry_run and not args.fix:
        wrong.append("--dry-run (without --fix)")
    if wrong:
        raise ParameterError(f"check: {', '.join(wrong)} says nothing about {what}.")
    if args.fix and args.json:
        raise ParameterError("check: --fix shows a diff; run --json afterwards.")


def _given(values: dict[str, object]) -> list[str]:
    return [name for name, value in values.items() if value]
