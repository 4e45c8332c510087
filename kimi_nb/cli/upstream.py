"""``kimi-nb upstream``: which of our recipes differ from what checkouts of their publishers say."""

from __future__ import annotations

import argparse
import errno
import json
import os
import tempfile
from pathlib import Path

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError, WriteError
from kimi_nb.show import say


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "upstream",
        help="which recipes differ from a checkout of vllm-project/recipes or vllm-ascend",
    )
    parser.add_argument(
        "dir", nargs="+", metavar="DIR", help="a checkout; nothing in it is executed"
    )
    parser.add_argument(
        "--model",
        default="kimi",
        metavar="M",
        help="a part of a model's name on the hub, such as k2.6; '' for all (default: kimi)",
    )
    parser.add_argument(
        "--list", action="store_true", help="list what is published, without our recipes"
    )
    parser.add_argument(
        "--out",
        default="",
        metavar="DIR",
        help="write what is changed or new as a model file of its own for each model",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print what differs from our recipes; 1 if anything does.

    Raises ParameterError for a folder that is no checkout.
    """
    from kimi_nb import upstream
    from kimi_nb.core import known_secrets
    from kimi_nb.show import visible
    from kimi_nb.upstream import watch

    if args.list and args.out:
        raise ParameterError(
            "upstream: --list compares nothing, so that --out has nothing to write."
        )
    found = upstream.read([Path(one) for one in args.dir], args.model)
    shown = found if args.list else watch.compare(found)
    if args.json:
        print(
            json.dumps(
                found.as_dict() if args.list else found.as_dict() | shown.as_dict(), indent=1
            )
        )
    else:
        unread = [] if args.list else [f"left out: {said}" for said in found.unread[:20]]
        print(visible("\n".join([str(shown.table()), "", *shown.notes(), *unread])))
    if isinstance(shown, upstream.Found):
        return 0
    if args.out:
        texts = {name: known_secrets.text(text) for name, text in shown.patches().items()}
        _write(Path(args.out), texts)
    return int(any(one.state in (watch.CHANGED, watch.NEW, watch.GONE) for one in shown.entries))


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a new folder, all or none.

    Raises WriteError where it is there or cannot be made.
    """
    refused = f"{folder}: cannot be written: {{}}. Name a new folder."
    if os.path.lexists(folder):
        raise WriteError(refused.format(os.strerror(errno.EEXIST)))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".kimi-nb-", dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            for name, text in files.items():
                (made / name).write_text(text, encoding="utf-8")
            made.rename(folder)
    except OSError as error:
        raise WriteError(refused.format(error.strerror)) from None
    say(f"{len(files)} model file{'s' * (len(files) != 1)} in {folder}.")
