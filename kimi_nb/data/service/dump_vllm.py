"""Read the parsers, configs and variables of the vLLM installed here; print them as JSON.

    /opt/vllm/bin/python dump_vllm.py > found.json

kimi_nb/catalog_dump.py runs this with the interpreter of a vLLM environment, where kimi_nb is
not installed: the standard library (Python 3.10 on) and vllm only. It needs no accelerator,
loads no plugin, opens no connection. Exit 3: there is no vllm.
"""

import argparse
import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import json
import os
import pathlib
import pkgutil
import sys
import types
import typing

COMMANDS = ("serve", "bench_serve", "bench_latency", "bench_throughput")
# The enumerations whose members people write in a JSON flag.
ENUMS = ("CompilationMode", "CUDAGraphMode", "DynamicShapesType")


def find(place):
    """``find("json:loads")``: the object of that module and name."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def on_cpu():
    """Let vLLM take this for a machine without accelerator, before it looks for one.

    A parser needs no kernels: those that do not load here are left out.
    """
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    class Platform(CpuPlatform):
        @classmethod
        def import_kernels(cls):
            with contextlib.suppress(Exception):
                super().import_kernels()

    vllm.platforms._current_platform = Platform()


def type_name(call):
    """What converts the text of a flag, seen through the wrappers that vLLM puts around it."""
    code = getattr(call, "__code__", None)
    name = getattr(call, "__qualname__", type(call).__name__)
    if code is None or "return_type" not in code.co_freevars:
        return "json" if name.endswith(".parse_dataclass") else name
    inner = call.__closure__[code.co_freevars.index("return_type")].cell_contents
    if name.endswith("._parse_type"):
        return "json" if inner is json.loads else type_name(inner)
    inside = type_name(inner)
    return inside if inside == "json" else f"{name}({inside})"


def plain(value):
    """A default or choices as JSON: a config by its class, an enumeration by its value."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {"__class__": type(value).__name__} if dataclasses.is_dataclass(value) else str(value)


def negates(alias, name):
    """Whether one name of a switch is the opposite of another."""
    forms = [f"--no-{name[2:]}"]
    for on, off in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
        if name.startswith(on):
            forms.append(off + name[len(on):])
    return alias in forms


def flag(action, name, parser):
    """One flag as the parser takes it, without what says nothing."""
    switch = action.nargs == 0
    # From vLLM 0.33 on some names are taken and left out of the help: they come last.
    taken = [other for other, one in parser._option_string_actions.items() if one is action]
    aliases = [other for other in dict.fromkeys([*action.option_strings, *taken])
               if other != name]
    choices = action.choices
    deprecated = (action in getattr(parser, "_deprecated", ())
                  or getattr(action, "deprecated", False)
                  or "deprecated" in str(action.help).lower())
    found = {
        "takes_value": not switch,
        "type": action.type and type_name(action.type),
        "choices": choices and plain(choices if isinstance(choices, (set, frozenset))
                                     else list(choices)),
        "default": None if action.default is argparse.SUPPRESS else plain(action.default),
        "aliases": aliases or None,
        "negations": (switch and [one for one in aliases if negates(one, name)]) or None,
        "nargs": action.nargs if isinstance(action.nargs, str) else None,
        "required": action.required or None,
        "deprecated": deprecated or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def flags(command):
    """The flags of a command, by their first long name."""
    parser = find("vllm.entrypoints.cli.serve:FlexibleArgumentParser")(prog="vllm")
    if command == "serve":
        serve = find("vllm.entrypoints.cli.serve:cmd_init")()[0]
        parser = serve.subparser_init(parser.add_subparsers())
    else:
        find(f"vllm.benchmarks.{command.removeprefix('bench_')}:add_cli_args")(parser)
    found, limits = {}, class_limits()
    for action in parser._actions:
        long = [name for name in action.option_strings if name.startswith("--")]
        if long:
            found[long[0]] = {**flag(action, long[0], parser), **limits.get(action.dest, {})}
    return found


KINDS = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null", dict: "dict",
         pathlib.Path: "str", list: "list", tuple: "list", set: "list", frozenset: "list"}
BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")


def bounds(metadata):
    """The limits of a number among what is annotated to its type."""
    return {key: getattr(one, key) for one in metadata or () for key in BOUNDS
            if isinstance(getattr(one, key, None), (int, float))}


def accepts(kind, named=False):
    """What a type takes: its kinds, choices and limits; None where only the class itself knows.

    ``named``: a validator turns the names of an enumeration into its members.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        if any(type(one).__name__ == "SkipValidation" for one in inside[1:]):
            return None
        found = accepts(inside[0], named)
        return found and {**found, **bounds(inside[1:])}
    if origin is typing.Literal:
        return {"choices": [plain(one) for one in inside if one is not None],
                **({"kinds": ["null"]} if None in inside else {})}
    if origin in (typing.Union, types.UnionType):
        parts = [accepts(one, named) for one in inside]
        if not all(parts):
            return None
        found = {}
        for part in parts:
            for key in ("kinds", "choices"):
                if part.get(key):
                    found[key] = list(dict.fromkeys([*found.get(key, ()), *part[key]]))
            found.update({key: part[key] for key in part if key not in ("kinds", "choices")})
        if "str" in found.get("kinds", ()):
            found.pop("choices", None)
        return found
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        names = list(kind.__members__) if named else []
        values = [one.value for one in kind if isinstance(one.value, (int, str)) and not (
            named and isinstance(one.value, str))]
        return {"choices": [*names, *values], **({"caseless": True} if named else {})}
    if (origin or kind) in KINDS:
        found = {"kinds": [KINDS[origin or kind]]}
        items = accepts(inside[0], named) if inside and found["kinds"] == ["list"] else None
        return {**found, **({"items": items} if items else {})}
    return {"kinds": ["dict"]} if dataclasses.is_dataclass(kind) else None


def field_row(cls, name):
    """One field of a config class: what it takes, and nothing where that is not known."""
    info = getattr(cls, "__pydantic_fields__", {}).get(name)
    if info is None or any("SkipValidation" in repr(one) for one in info.metadata):
        return {}
    validators = getattr(getattr(cls, "__pydantic_decorators__", None), "field_validators", {})
    ours = {function: one.info.mode for function, one in validators.items()
            if name in one.info.fields or "*" in one.info.fields}
    absent = any("skip_none" in function for function in ours)
    modes = {mode for function, mode in ours.items() if "skip_none" not in function}
    found = accepts(info.annotation, bool(modes & {"before", "wrap"})) or {}
    if "plain" in modes or (modes & {"before", "wrap"} and "choices" not in found):
        return {}
    if absent and found:
        found["kinds"] = list(dict.fromkeys([*found.get("kinds", ()), "null"]))
    return {"accepts": {**found, **bounds(info.metadata)}} if found else {}


def takes(cls, field):
    """Whether a field can be given, or is only set by the class itself."""
    info = getattr(cls, "__pydantic_fields__", {}).get(field.name)
    return field.init and (info is None or info.init is not False)


def class_limits():
    """The limits of the plain flags: those of the one config field that has a flag's name."""
    import vllm.config as package

    found = {}
    for cls in vars(package).values():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            for name in getattr(cls, "__pydantic_fields__", {}):
                row = field_row(cls, name).get("accepts", {})
                found.setdefault(name, []).append(
                    {key: row[key] for key in BOUNDS if key in row})
    return {name: rows[0] for name, rows in found.items()
            if rows[0] and all(row == rows[0] for row in rows)}


def refuses(cls):
    """Whether a config class refuses a key that it does not know."""
    settings = getattr(cls, "__pydantic_config__", None) or {}
    return settings.get("extra") == "forbid"


def configs():
    """The fields of every config class, and the members of enumerations as ``enum:NAME``.

    A class that refuses unknown keys has the field ``*`` too.
    """
    import vllm.config as package

    modules = [package] + [importlib.import_module(f"vllm.config.{item.name}")
                           for item in pkgutil.iter_modules(getattr(package, "__path__", []))]
    found = {}
    for name, value in [pair for module in modules for pair in vars(module).items()]:
        if not isinstance(value, type) or not value.__module__.startswith("vllm.config"):
            continue
        if name in ENUMS:
            found[f"enum:{name}"] = {member: {} for member in value.__members__}
        elif dataclasses.is_dataclass(value):
            found[name] = {field.name: field_row(value, field.name) if takes(value, field)
                           else {"accepts": {"kinds": []}} for field in dataclasses.fields(value)}
            if refuses(value):
                found[name]["*"] = {}
    return found


def main():
    """Print one JSON document; whatever vLLM prints meanwhile goes to stderr."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    sys.argv[1:] = []
    spec = importlib.util.find_spec("vllm")
    # A mere folder of that name has no origin.
    if spec is None or spec.origin is None:
        return 3
    out = os.dup(1)
    os.dup2(2, 1)
    on_cpu()
    found = {"version": find("vllm:__version__"),
             **{command: flags(command) for command in COMMANDS},
             "configs": configs(),
             "env": list(find("vllm.envs:environment_variables"))}
    with os.fdopen(out, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
