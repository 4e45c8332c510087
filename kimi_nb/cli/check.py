"""``kimi-nb check``: apply the rules to a plan, a document or any scripts."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from kimi_nb import __version__
from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import plain_json, visible

if TYPE_CHECKING:
    from kimi_nb.check.findings import Findings


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "check",
        help="ask the rules: of a plan, a document, any scripts",
        epilog="exit codes: 0 no error, 1 at least one error, 2 a mistake in what was asked, or "
        "nothing that can be read",
    )
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
    for option, says in (("--select", "ask only these"), ("--ignore", "leave these out")):
        parser.add_argument(
            option,
            metavar="RULE,..",
            type=options.names,
            action="extend",
            default=[],
            help=f"{says}: rules (topology/ranks) or families of them (topology)",
        )
    parser.add_argument(
        "--format",
        choices=("text", "json", "sarif", "github"),
        default="text",
        help="text (default), json, SARIF 2.1.0, or annotations of GitHub Actions",
    )
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if one is an error."""
    from kimi_nb.check import judge, rewriting, selection

    _refuse_mixtures(args)
    selection.rules([*args.select, *args.ignore])  # a mistake is told before --fix writes
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
    found = selection.chosen(found, args.select, args.ignore)
    _show(found, args)
    return 0 if found.ok else 1


def _show(found: Findings, args: argparse.Namespace) -> None:
    if args.format == "json":
        print(plain_json(found.as_dict()))
        return
    if args.format == "text":
        for bar in found.memory if not args.files or args.hw else ():
            print(f"{bar}\n")
        print(found)
        return
    from kimi_nb.check import formats

    if args.format == "sarif":
        log = formats.sarif(found, os.getcwd(), _home())
        print(plain_json(log))
    else:
        print(formats.github(found, os.getcwd()))


def _home() -> str:
    """Return the address of the pages of the rules, "" if the package names no repository."""
    from importlib import metadata  # start-up: it loads the parser of e-mail

    try:
        urls = metadata.metadata("kimi_nb").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return ""
    known = dict(url.split(", ", 1) for url in urls)
    repository = known.get("Repository", "").rstrip("/")
    return f"{repository}/blob/v{__version__}/docs/rules" if repository else ""


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
    if args.fix and args.format != "text":
        raise ParameterError(f"check: --fix shows a diff; run --format {args.format} afterwards.")


def _given(values: dict[str, object]) -> list[str]:
    return [name for name, value in values.items() if value]
