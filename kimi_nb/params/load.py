"""Parameter files: found, read, checked, with errors that name file, key, value and remedy.

    hardware = params.hardware("a3")              # params/hardware/a3.yaml
    site = params.site("/home/me/cluster.yaml")   # a file of one's own

`params/` is found from where the package is, never from the working directory: papermill runs
a notebook in the caller's directory, JupyterLab and nbmake in the notebook's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.params import fields, schema

PACKAGE = Path(__file__).resolve().parent
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LARGEST = 4 << 20
_Table = TypeVar("_Table", bound=BaseModel)


class _Strict(_Loader):  # type: ignore[misc,valid-type]
    """YAML in which a key given twice is an error: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be a plain word, found {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def root() -> Path:
    """The folder that holds ``params/`` and ``notebooks/``: of the checkout, or the one that a
    wheel carries inside the package."""
    return PACKAGE / "tree" if (PACKAGE / "tree").is_dir() else PACKAGE.parent


def names(kind: str) -> list[str]:
    """The names of a kind (``hardware``, ``models``, ``sites``) that ship with the project."""
    return sorted(path.stem for path in (root() / "params" / kind).glob("[!_]*.yaml"))


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML file as a mapping.

    Raises ParameterError with file, line and column for a file that is missing, unreadable,
    too large, not text, malformed, nested out of all proportion, or not a mapping.
    """
    try:
        if path.exists() and not path.is_file():
            raise ParameterError(f"{path}: not a file.")
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
        if len(raw) > _LARGEST:
            raise ParameterError(f"{path}: larger than 4 MB; a parameter file is a few KB.")
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise ParameterError(
            f"{path}: no such file. Write it, or name one that exists "
            "(kimi-nb list shows what ships with the project)."
        ) from None
    except UnicodeDecodeError:
        raise ParameterError(f"{path}: not a text file in UTF-8.") from None
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error.strerror}.") from None
    if fault := too_deep(text):
        raise ParameterError(f"{path}: {fault}.")
    try:
        data = yaml.load(text, Loader=_Strict)
        _measure(data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        advice = (
            ""
            if isinstance(error, yaml.constructor.ConstructorError)
            else (
                " Indent with spaces, two a level, and put quotes around a value that holds ': ' or "
                "starts with a sign."
            )
        )
        raise ParameterError(f"{path}{where}: {error.problem}.{advice}") from None
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
        # A date that is none, a number that is too long, a character that YAML forbids.
        raise ParameterError(
            f"{path}: {str(error)[:160] or 'not YAML'}. Put quotes around a text "
            "that looks like a date or a number."
        ) from None
    if not isinstance(data, dict):
        raise ParameterError(
            f"{path}: keys and values are wanted (key: value), "
            f"found {'a list' if isinstance(data, list) else _shown(data)}."
        )
    return data


def too_deep(text: str) -> str:
    """Why a text is not handed to the parser, whose C code recurses without a limit; "" where
    it is. Counts brackets and indentation only, so it may refuse what no person writes."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    if deepest > 64 or re.search(r"^ {200}|^ *([-?] ){32}", text, re.MULTILINE):
        return "nested more than 64 levels deep"
    return ""


def _measure(data: Any) -> None:
    """ValueError for what grows when it is read: aliases of aliases, or of themselves."""
    left, waiting = 100_000, [(data, 0)]
    while waiting:
        item, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > 80:
            raise ValueError("its aliases (&name, *name) unfold into far more than was written")
        if isinstance(item, dict | list):
            inner = item.values() if isinstance(item, dict) else item
            waiting.extend((value, depth + 1) for value in inner)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``base``: mappings join key by key, anything else replaces."""
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merge(out[key], value) if both else value
    return out


def _extended(path: Path, kind: str, depth: int = 0) -> dict[str, Any]:
    """A file laid on the one it extends: ``extends: a3`` (ours), or a file beside it."""
    data = read_yaml(path)
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
        parent = root() / "params" / kind / f"{base}.yaml"
    if parent == path or not parent.exists():
        raise ParameterError(f"{path}: extends: " + choice("base", base, names(kind)))
    below = _extended(parent, kind, depth + 1)
    if kind == "hardware" and "name" in below and "like" not in data:
        data["like"] = below.get("like") or below["name"]
    return merge(below, data)


def validate(table: type[_Table], data: Any, where: object) -> _Table:
    """``data`` as a ``table``; ParameterError with every fault: file, key, value, allowed."""
    try:
        return table.model_validate(data)
    except ValidationError as error:
        raise ParameterError(explain_faults(error, where, table)) from None


# In the words of a YAML file, not of Python.
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
    """The faults of a pydantic error as lines for a person, ten at most. ``table`` is what the
    keys are those of."""
    lines = []
    for fault in error.errors(include_url=False):
        loc = fault["loc"]
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
        elif any(str(part).endswith("_env") for part in loc):  # somebody's secret, perhaps
            lines.append(f"{key}: {message}; what stands there is not shown")
        elif fault["type"] == "missing":
            lines.append(f"{key}: is missing")
        elif isinstance(fault["input"], dict | list | tuple):
            lines.append(f"{key}: {message}")
        else:
            lines.append(f"{key}: found {_shown(fault['input'])}: {message}")
    more = [f"... and {len(lines) - 10} more"] if len(lines) > 10 else []
    return "\n".join(
        [
            f"{where}: {len(lines)} fault{'s' * (len(lines) > 1)}",
            *(f"  {line}" for line in lines[:10]),
            *more,
        ]
    )


def _keys(table: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys that a table has at a place within it."""
    here = table
    for part in loc:
        if part in here.model_fields:
            here = _table_of(here.model_fields[str(part)].annotation) or here
    return list(here.model_fields)


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The table in ``dict[str, Table]``, ``tuple[Table, ...]`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _table_of(one))), None)


def user_path(given: str, what: str) -> Path:
    """A path that a person gave, with ``~`` filled in.

    Raises ParameterError for shell characters (a script or a message may repeat the path) and
    for a home that nobody has.
    """
    try:
        if not given.strip() or "{" in given:
            raise ValueError("a path is wanted, without braces")
        return Path(fields.safe_text(given)).expanduser()
    except (ValueError, RuntimeError) as error:
        raise ParameterError(f"{what} {given[:80]!r}: {error}.") from None


def _shown(value: object) -> str:
    text = repr(value) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _load(kind: str, table: type[_Table], given: str) -> _Table:
    """A name of ours, or the path of a file of one's own."""
    if not isinstance(given, str) or not given.strip():
        raise ParameterError(choice(kind.rstrip("s"), given, names(kind)))
    is_path = "/" in given or given.endswith((".yaml", ".yml"))
    path = (
        user_path(given, kind.rstrip("s"))
        if is_path
        else (root() / "params" / kind / f"{given}.yaml")
    )
    if not is_path and given not in names(kind):
        raise ParameterError(
            choice(
                kind.rstrip("s"),
                given,
                names(kind),
                "A path to a file of your own works too (./mine.yaml).",
            )
        )
    found = _extended(path, kind)
    return validate(table, _rooted(found) if kind == "sites" else found, path)


def _rooted(site: dict[str, Any]) -> dict[str, Any]:
    """A site whose paths begin with what ``{root}`` stands for, so that one file is right on
    every machine; anything else is left to the checks."""
    paths = site.get("paths")
    if not isinstance(paths, dict):
        return site
    return site | {
        "paths": {
            key: re.sub(r"^\{root\}(?=/|$)", lambda _: str(root()), value)
            if isinstance(value, str)
            else value
            for key, value in paths.items()
        }
    }


@functools.cache
def _ours(kind: str, table: type[_Table], name: str) -> _Table:
    return _load(kind, table, name)


def _get(kind: str, table: type[_Table], given: str) -> _Table:
    # Files that ship with the project do not change while a process runs; a user's may.
    return _ours(kind, table, given) if given in names(kind) else _load(kind, table, given)


def hardware(given: str) -> schema.Hardware:
    """A hardware by name or path."""
    return _get("hardware", schema.Hardware, given)


def model(given: str) -> schema.Model:
    """A model by name or path."""
    return _get("models", schema.Model, given)


def site(given: str) -> schema.Site:
    """A site by name or path."""
    return _get("sites", schema.Site, given)


@functools.cache
def features() -> dict[str, schema.Feature]:
    """Every feature by name (params/features.yaml)."""
    path = root() / "params" / "features.yaml"
    try:
        return TypeAdapter(dict[str, schema.Feature]).validate_python(read_yaml(path))
    except ValidationError as error:
        raise ParameterError(explain_faults(error, path)) from None


@functools.cache
def data(name: str) -> Any:
    """A YAML file of ``kimi_nb/data`` by its stem."""
    return read_yaml(PACKAGE / "data" / f"{name}.yaml")
