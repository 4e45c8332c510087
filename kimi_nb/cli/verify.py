"""``kimi-nb verify``: check the contract of any OpenAI-compatible Kimi endpoint."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_nb.cli import options, output, signals
from kimi_nb.core import known_secrets
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import plain_json, visible

if TYPE_CHECKING:
    from kimi_nb.prove.verify.target import Target


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "verify", help="check what a service answers: text, streams, tools, errors, load"
    )
    parser.add_argument("url", metavar="URL", help="http://HOST:PORT, with or without /v1")
    parser.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="the name it serves (default: the only one of /v1/models)",
    )
    parser.add_argument(
        "--api-key-env",
        default="",
        metavar="NAME",
        help="the environment variable that holds the key",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME,..",
        help="these checks or families only (tool-calls, api/chat, ...)",
    )
    parser.add_argument(
        "--max-context",
        type=int,
        metavar="N",
        help="tokens of the canary's longest prompt (default: 32768, or what the engine holds)",
    )
    parser.add_argument(
        "--requests",
        default="",
        metavar="FILE",
        help="also the K2 Vendor Verifier's measures of these requests (JSONL)",
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="judge nothing that needs a model's sense"
    )
    parser.add_argument(
        "--resume", action="store_true", help="with --run-dir: leave out what passed there before"
    )
    parser.add_argument(
        "--run-dir",
        default="",
        metavar="DIR",
        help="keep results there as they come (default: none are kept)",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the checks and print the results; return 1 if one failed."""
    from kimi_nb.params import load
    from kimi_nb.prove import verify
    from kimi_nb.prove.verify import registry, runner, target, vendor_verifier

    begun = time.monotonic()
    signals.end_like_ctrl_c()
    say = output.progress(begun)
    only = args.only.split(",")
    registry.chosen(only)
    if args.max_context is not None and args.max_context < runner.LEAST:
        raise ParameterError(
            f"--max-context {args.max_context}: {runner.LEAST} tokens or more are wanted."
        )
    if args.resume and not args.run_dir:
        raise ParameterError("verify: --resume needs the --run-dir in which results were kept.")
    requests = load.user_path(args.requests, "--requests") if args.requests else None
    if requests:
        vendor_verifier.read(requests)  # a mistake in it is said before anything is asked
    asked = target.at(args.url, args.model, _key(args.api_key_env))
    asked = target.at(
        args.url, args.model or _only_model(asked), asked.key, sense=not args.random_weights
    )
    folder = load.user_path(args.run_dir, "--run-dir") if args.run_dir else None
    found = verify.verify(
        asked,
        only=only,
        folder=folder,
        resume=args.resume,
        say=say,
        max_context=args.max_context or runner.MAX_CONTEXT,
    )
    score = (
        vendor_verifier.score(
            replace(asked, mark=found.mark), requests, folder, resume=args.resume, say=say
        )
        if requests
        else None
    )
    if args.json:
        print(plain_json(found.as_dict() | ({"vendor": score.as_dict()} if score else {})))
    else:
        print(visible("\n\n".join(map(str, [found, *([score] if score else [])]))))
    return 0 if found.ok else 1


def _key(name: str) -> str:
    """Return the API key from the named environment variable."""
    if not name:
        return ""
    if not name.isidentifier():
        raise ParameterError(
            "--api-key-env: the name of an environment variable is wanted, never the key itself."
        )
    value = os.environ.get(name, "")
    if not value:
        raise ParameterError(f"--api-key-env {name}: the variable is not set.")
    known_secrets.name([name])
    return value


def _only_model(asked: Target) -> str:
    """Return the only served model, or "" if the service lists none, which the checks report."""
    from kimi_nb.prove.verify import http_exchange, received

    names = http_exchange.models(asked)
    if len(names) > 1:
        raise ParameterError(
            f"--model: {asked.url} serves {received.names(names)}; name one of them."
        )
    return names[0] if names else ""
