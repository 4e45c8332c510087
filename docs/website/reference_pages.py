"""Write the reference of the parameter files, of the command line and of the package's own face."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, TypeAlias

from pydantic import BaseModel

from kimi_nb.cli.main import COMMANDS
from kimi_nb.params import schema
from website.markup import block, code, prose, table, text, toctree

# The classes that a whole file is read into, with what the file is.
FILES: dict[str, tuple[type[BaseModel], str]] = {
    "site": (schema.Site, "Your own cluster: the file that `kimi-nb site new` writes."),
    "hardware": (schema.Hardware, "One kind of node: a file in `params/hardware/`."),
    "model": (schema.Model, "Weights, architecture and recipes: a file in `params/models/`."),
    "calibration": (schema.Calibration, "What `kimi-nb calibrate --out` writes."),
}
_Group: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_NUMBERS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def parameters() -> dict[str, str]:
    """Return the pages of the parameter files by path: an overview, and one for each kind of file."""
    pages = {f"reference/{name}-file": _file(name) for name in FILES}
    rows = [[f"[{name}]({name}-file.md)", about] for name, (_, about) in FILES.items()]
    overview = (
        "# Parameter files\n\nThree files, of hardware, model and site, become one plan. An unknown "
        "key is refused, and the message says which ones there are.\n\n"
        + table(("file", "is"), rows)
    )
    return {
        "reference/parameters": overview + toctree("", (f"{name}-file" for name in FILES))
    } | pages


def _file(name: str) -> str:
    kind, about = FILES[name]
    found = kind.model_json_schema()
    defined = found.get("$defs", {})
    parts = [f"# The {name} file\n\n{about}\n\n", _table_of(found)]
    parts += [
        f"## {entry['title']}\n\n{_table_of(entry)}"
        for _, entry in sorted(defined.items())
        if "properties" in entry
    ]
    return "\n".join(parts)


def _table_of(entry: dict[str, Any]) -> str:
    """Return what a class is, and a row for each of its keys."""
    summary, meanings = _docstring(entry.get("description", ""))
    rows = []
    for key, value in entry["properties"].items():
        meaning = prose(value.get("description") or meanings.get(key, ""))
        if examples := ", ".join(code(json.dumps(one)) for one in value.get("examples", ())):
            meaning += f", such as {examples}"
        default = "required" if key in entry.get("required", ()) else _default(value)
        rows.append([code(key), _type(value), default, meaning])
    return f"{summary}\n\n" + table(("key", "type", "without it", "meaning"), rows)


def _default(value: dict[str, Any]) -> str:
    """Return what holds where a key is not there; a table of defaults stands in its own section."""
    given = value.get("default")
    if given in (None, "", [], {}):
        return "nothing"
    return "its defaults" if isinstance(given, dict) else code(json.dumps(given))


def _docstring(words: str) -> tuple[str, dict[str, str]]:
    """Return the prose of a docstring as Markdown, and what its section Attributes says by name."""
    about, _, attributes = words.partition("\nAttributes:\n")
    named: dict[str, str] = {}
    at = ""
    for line in attributes.splitlines():
        if found := re.fullmatch(r" {4}(\w+): (.*)", line):
            at, named[at] = found[1], found[2]
        elif at:
            named[at] += f" {line.strip()}"
    return "\n\n".join(prose(part) for part in about.split("\n\n")), named


def _type(value: dict[str, Any]) -> str:
    """Return the type of a key in words, with the limits that its schema has."""
    if reference := value.get("$ref"):
        name = reference.rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(one) for one in value["anyOf"]))
    if "enum" in value:
        return ", ".join(code(one) for one in value["enum"])
    if "const" in value:
        return code(value["const"])
    kind = value.get("type", "any")
    if kind == "array":
        return f"list of {_type(value.get('items', {}))}"
    if kind == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {_type(inner)}" if isinstance(inner, dict) and inner else "mapping"
    limits = [f"{sign} {value[name]:g}" for name, sign in _NUMBERS.items() if name in value]
    return " ".join(
        [{"string": "text", "integer": "whole number"}.get(kind, kind), *map(text, limits)]
    )


# The command line ---------------------------------------------------------------------------


def commands() -> str:
    """Return the page of every command, with its arguments, as its own parser knows them."""
    parser = argparse.ArgumentParser(prog="kimi-nb")
    parsers = parser.add_subparsers(metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"kimi_nb.cli.{name}").add(parsers)
    parts = [
        "# Commands\n\n`kimi-nb COMMAND --help` prints the same. [Command line]"
        "(../docs/command-line.md) says what they are for.\n"
    ]
    return "\n".join([*parts, *_commands(parsers, "kimi-nb", 2)])


def _commands(group: _Group, title: str, level: int) -> Iterator[str]:
    # argparse has no public name for the lines that --help prints for commands.
    helps = {one.dest: one.help or "" for one in group._choices_actions}
    for name, parser in group.choices.items():
        yield from _command(parser, f"{title} {name}", helps.get(name, ""), level)


def _command(parser: argparse.ArgumentParser, title: str, about: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {title}\n\n{prose(_sentence(parser.description or about))}\n"
    yield block(parser.format_usage().removeprefix("usage: "), "bash")
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    rows = [
        [_argument(action), prose((action.help or "") % vars(action))]
        for action in parser._actions
        if action not in inner and action.help != argparse.SUPPRESS and action.dest != "help"
    ]
    if rows:
        yield table(("argument", "meaning"), rows)
    for group in inner:
        yield from _commands(group, title, level + 1)


def _argument(action: argparse.Action) -> str:
    if not action.option_strings:
        return code(action.metavar or action.dest)
    takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(code(f"{name}{takes}") for name in action.option_strings)


def _sentence(words: str) -> str:
    words = words.strip()
    return f"{words[:1].upper()}{words[1:].rstrip('.')}." if words else ""


# The package --------------------------------------------------------------------------------


def api(public: Iterable[str] = ("start", "Run", "Plan", "KimiError")) -> str:
    """Return the page of what ``import kimi_nb`` gives; Sphinx fills it from the docstrings."""
    import kimi_nb

    parts = [
        "# Python\n\n"
        + block(
            _example(kimi_nb.__doc__ or ""),
            "python",
        )
    ]
    for name in public:
        kind = "autoclass" if inspect.isclass(getattr(kimi_nb, name)) else "autofunction"
        members = "   :members:\n" if kind == "autoclass" else ""
        # What a class is made from is no part of the face: calls return its values.
        made = "()" if members else ""
        shown = f".. {kind}:: kimi_nb.{name}{made}\n{members}"
        parts.append(f"## {name}\n\n```{{eval-rst}}\n{shown}```\n")
    return "\n".join(parts)


def _example(docstring: str) -> str:
    """Return the first indented block of a docstring."""
    found = re.search(r"(?:^ {4}.*\n)+", inspect.cleandoc(docstring), re.MULTILINE)
    return inspect.cleandoc(found[0]) if found else ""
