"""Find, read and check parameter files; errors name file, key, value and remedy.

>>> hardware("a3").vendor  # params/hardware/a3.yaml
'ascend'

A path instead of a name loads the user's own file: ``site("/home/me/cluster.yaml")``.

The folder ``params/`` is found relative to the package, never to the working directory: papermill
runs a notebook in the caller's directory, JupyterLab and nbmake in the notebook's.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from kimi_nb.core import data_files, paths
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.params import families, fields, schema

_Table = TypeVar("_Table", bound=BaseModel)


def names(kind: str) -> list[str]:
    """Return the names of a kind (``hardware``, ``models``, ``sites``) that the project ships."""
    files = os.listdir(paths.root() / "params" / kind)
    return sorted(
        name.removesuffix(".yaml")
        for name in files
        if name.endswith(".yaml") and not name.startswith(("_", "."))
    )


def canonical(kind: str, given: str) -> str:
    """Return the name that ships with the project for a spelling of it, and all else as it is.

    >>> canonical("models", "moonshotai/Kimi-K2.5"), canonical("hardware", "A3")
    ('k2.5', 'a3')
    """
    if not isinstance(given, str) or given in names(kind):
        return given
    if "/" in given and os.path.exists(given):  # the user's own file
        return given
    return _spelt(kind).get(_folded(kind, given), given)


def spellings(kind: str, name: str) -> tuple[str, ...]:
    """Return how a name may be written: as it is, and by the title of its file; see `canonical`."""
    if kind == "sites":
        return (_plain(name),)
    title = hardware(name).title if kind == "hardware" else model(name).title
    # A title may end with a remark in parentheses.
    return tuple(dict.fromkeys(map(_plain, (name, title, title.partition(" (")[0]))))


@functools.cache
def _spelt(kind: str) -> dict[str, str]:
    return {text: name for name in names(kind) for text in spellings(kind, name)}


@functools.cache
def _organisations() -> frozenset[str]:
    """Return the organisations whose weights the models name, such as ``moonshotai``."""
    weights = [item.id for name in names("models") for item in model(name).weights.values()]
    return frozenset(_plain(one.partition("/")[0]) for one in weights if "/" in one)


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", "-", text.strip()).casefold()


def _folded(kind: str, text: str) -> str:
    """Return a name in the form of `spellings`; of a model's id on a hub, the part after ``/``."""
    organisation, _, name = text.partition("/")
    on_hub = kind == "models" and name and _plain(organisation) in _organisations()
    return _plain(name if on_hub else text)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` overridden by ``over``: mappings are merged key by key, the rest is replaced.

    >>> merge({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}})
    {'a': 1, 'b': {'c': 2, 'd': 3}}
    """
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merge(out[key], value) if both else value
    return out


def _extended(path: Path, kind: str, depth: int = 0) -> dict[str, Any]:
    """Return a file merged over the one it extends.

    ``extends: a3`` names a file beside it, or one that ships with the project.
    """
    data = data_files.read_yaml(path)
    base = data.pop("extends", None)
    if base is None:
        return data
    if depth > 4:
        raise ParameterError(f"{path}: extends: more than 4 files deep; does it extend itself?")
    if not isinstance(base, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", base):
        raise ParameterError(
            f"{path}: extends: the name of a file beside this one, or of one of "
            f"ours is wanted ({', '.join(names(kind))}), without .yaml."
        )
    parent = path.parent / f"{base}.yaml"
    if parent == path or not parent.exists():
        parent = paths.root() / "params" / kind / f"{base}.yaml"
    if parent == path or not parent.exists():
        raise ParameterError(f"{path}: extends: " + choice("base", base, names(kind)))
    below = _extended(parent, kind, depth + 1)
    if kind == "hardware" and "name" in below and "like" not in data:
        data["like"] = below.get("like") or below["name"]
    return merge(below, data)


def validate(table: type[_Table], data: Any, where: object) -> _Table:
    """Return ``data`` as a ``table``.

    Raises ParameterError with every fault: file, key, value and what is allowed.
    """
    try:
        return table.model_validate(data)
    except ValidationError as error:
        raise ParameterError(explain_faults(error, where, table)) from None


# Pydantic's error types in the terms of YAML rather than of Python.
_KINDS = {
    "tuple_type": "a list is wanted",
    "list_type": "a list is wanted",
    "model_type": "keys with values are wanted",
    "dict_type": "keys with values are wanted",
    "string_type": "a text is wanted",
    "bool_type": "true or false is wanted",
}


def explain_faults(
    error: ValidationError, where: object, table: type[BaseModel] | None = None
) -> str:
    """Return the faults of a pydantic error as lines for the user, at most ten.

    ``table`` is the class that was validated; it supplies the list of known keys.
    """
    lines = []
    faults = error.errors(include_url=False)
    inner = {fault["loc"][:at] for fault in faults for at in range(len(fault["loc"]))}
    for fault in faults:
        loc = fault["loc"]
        if fault["type"] == "too_short" and loc in inner:
            continue  # what was there had faults of its own
        key = ".".join(str(part) for part in loc) or "(whole file)"
        message = _KINDS.get(fault["type"], fault["msg"].removeprefix("Value error, "))
        if fault["type"] == "extra_forbidden":
            known = _keys(table, loc[:-1]) if table else []
            lines.append(
                f"{key}: this key is not known here"
                if not known
                else f"{'.'.join(map(str, loc[:-1]))}{': ' * bool(loc[:-1])}"
                + choice("key", loc[-1], known)
            )
        elif any(str(part).endswith("_env") for part in loc):  # it may be a secret
            lines.append(f"{key}: {message}; what stands there is not shown")
        elif fault["type"] == "missing":
            lines.append(f"{key}: is missing")
        elif isinstance(fault["input"], dict | list | tuple):
            lines.append(f"{key}: {message}")
        else:
            lines.append(f"{key}: found {data_files.shown(fault['input'])}: {message}")
    more = [f"... and {len(lines) - 10} more"] if len(lines) > 10 else []
    return "\n".join(
        [
            f"{where}: {len(lines)} fault{'s' * (len(lines) > 1)}",
            *(f"  {line}" for line in lines[:10]),
            *more,
        ]
    )


def _keys(table: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Return the keys that a table has at a location within it."""
    here = table
    for part in loc:
        if part in here.model_fields:
            here = _table_of(here.model_fields[str(part)].annotation) or here
    return list(here.model_fields)


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """Return the table class in ``dict[str, Table]``, ``tuple[Table, ...]`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _table_of(one))), None)


def user_path(given: str, what: str) -> Path:
    """Return a path that the user gave, with ``~`` expanded.

    Raises ParameterError for shell characters (a script or a message may repeat the path) and for
    the home directory of an unknown user.
    """
    try:
        if not given.strip() or "{" in given:
            raise ValueError("a path is wanted, without braces")
        return Path(fields.safe_text(given)).expanduser()
    except (ValueError, RuntimeError) as error:
        raise ParameterError(f"{what} {given[:80]!r}: {str(error).removesuffix('.')}.") from None


def _load(kind: str, table: type[_Table], given: str) -> _Table:
    """Return the table for a name that the project ships, or for the path of a user's file."""
    if not isinstance(given, str) or not given.strip():
        raise ParameterError(choice(kind.removesuffix("s"), given, names(kind)))
    of_hub = (
        kind == "models" and _folded(kind, given) != _plain(given) and not os.path.exists(given)
    )
    is_path = not of_hub and ("/" in given or given.endswith((".yaml", ".yml")))
    path = (
        user_path(given, kind.removesuffix("s"))
        if is_path
        else (paths.root() / "params" / kind / f"{given}.yaml")
    )
    if not is_path and given not in names(kind):
        raise ParameterError(
            choice(
                kind.removesuffix("s"),
                given,
                names(kind),
                _own_file(given),
                _spelt(kind),
            )
        )
    found = _extended(path, kind)
    if kind == "models":
        found = _with_families(found, path)
    return validate(table, _rooted(_beside(found, path)) if kind == "sites" else found, path)


def _with_families(model: dict[str, Any], where: Path) -> dict[str, Any]:
    """Return a model with the recipes of the file that it names (``families``) after its own.

    ``families: k2.5`` means ``params/recipes/k2.5.json``, which is read from what others publish
    (`kimi_nb.upstream`) and not written by hand; a file that extends ours inherits it, or takes none
    with ``families: null``.
    """
    given = model.get("families")
    if given is None or not isinstance(model.get("recipes"), list):
        return {key: value for key, value in model.items() if key != "families"}
    folder = paths.root() / "params" / "recipes"
    known = sorted(path.stem for path in folder.glob("*.json"))
    if given not in known:
        raise ParameterError(f"{where}: families: " + choice("file", given, known))
    path = folder / f"{given}.json"
    found = validate(families.Families, json.loads(path.read_bytes()), path)
    published = [one for each in found.recipes for one in each.recipes()]
    return {key: value for key, value in model.items() if key != "families"} | {
        "recipes": [*model["recipes"], *published]
    }


def _own_file(given: str) -> str:
    """Return how to name a file of one's own; the very one, if it lies here."""
    try:
        there = re.fullmatch(r"[\w.-]+", given) and Path(f"{given}.yaml").is_file()
    except OSError:
        there = False
    if there:
        return f"There is a file of yours of that name: ./{given}.yaml."
    return "A path to a file of your own works too (./mine.yaml)."


def _beside(site: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a site with the files of its calibrations as paths from the folder of its own.

    Values of a wrong type are left to the validation.
    """
    given = site.get("calibration")
    if not isinstance(given, list):
        return site
    files = [
        os.path.join(path.parent, os.path.expanduser(one)) if isinstance(one, str) else one
        for one in given
    ]
    return site | {"calibration": files}


def _rooted(site: dict[str, Any]) -> dict[str, Any]:
    """Return a site with ``{root}`` at the start of its paths replaced by the project's root.

    One file is thus valid on every machine. Values of a wrong type are left to the validation.
    """
    given = site.get("paths")
    if not isinstance(given, dict):
        return site
    return site | {
        "paths": {
            key: re.sub(r"^\{root\}(?=/|$)", lambda _: str(paths.root()), value)
            if isinstance(value, str)
            else value
            for key, value in given.items()
        }
    }


@functools.cache
def _ours(kind: str, table: type[_Table], name: str) -> _Table:
    return _load(kind, table, name)


def _get(kind: str, table: type[_Table], given: str) -> _Table:
    given = canonical(kind, given)
    # Files that ship with the project do not change while a process runs; the user's may.
    return _ours(kind, table, given) if given in names(kind) else _load(kind, table, given)


def hardware(given: str) -> schema.Hardware:
    """Return a hardware by name or path."""
    return _get("hardware", schema.Hardware, given)


def model(given: str) -> schema.Model:
    """Return a model by name or path."""
    return _get("models", schema.Model, given)


def site(given: str) -> schema.Site:
    """Return a site by name or path."""
    return _get("sites", schema.Site, given)


def calibration(given: str, what: str = "--calibration") -> schema.Calibration:
    """Return the calibration in a user's file, which ``kimi-nb calibrate --out`` has written.

    ``what`` is where the file was named, for the message of an error.
    """
    path = user_path(given, what)
    return validate(schema.Calibration, data_files.read_yaml(path), path)


@functools.cache
def features() -> dict[str, schema.Feature]:
    """Return every feature by name (params/features.yaml)."""
    path = paths.root() / "params" / "features.yaml"
    try:
        return TypeAdapter(dict[str, schema.Feature]).validate_python(data_files.read_yaml(path))
    except ValidationError as error:
        raise ParameterError(explain_faults(error, path)) from None
