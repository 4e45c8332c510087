"""``kimi-nb published``: what the public has measured, beside the physical limits."""

from __future__ import annotations

import argparse

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.show import plain_json, say


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "published", help="figures that others have published, with their source and our limits"
    )
    parser.add_argument("--model", default="", help="only those of a model (default: all)")
    parser.add_argument("--hw", default="", help="only those of a hardware (default: all)")
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the published figures of a model and hardware."""
    from kimi_nb.prove.tune import published_limits
    from kimi_nb.show import visible

    model = _named("model", "models", args.model)
    hardware = _named("hardware", "hardware", args.hw)
    rows = published_limits.of(model, hardware)
    if args.json:
        print(plain_json([one.as_dict() for one in rows]))
    elif rows:
        print(visible(str(published_limits.table(rows))))
    else:
        asked = " on ".join(filter(None, (model, hardware)))
        say(f"No published figure of {asked} is known here.")
    return 0


def _named(kind: str, folder: str, given: str) -> str:
    """Return the name of a model or hardware, also of one that only sources know.

    Raises ParameterError with what is allowed.
    """
    from kimi_nb.params import load
    from kimi_nb.prove.bench import published_figures

    name = load.canonical(folder, given)
    known = sorted({*load.names(folder), *published_figures.names(kind)})
    if name and name not in known and name.lower() not in known:
        raise ParameterError(f"published: {choice(kind, given, known)}")
    return name if name in known else name.lower()
