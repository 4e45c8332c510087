"""Write a site file for a user's own nodes: every key with its meaning, optional ones turned off.

>>> nodes("10.1.2.11,10.1.2.12", "a3")
[{'name': 'a3-0', 'address': '10.1.2.11'}, {'name': 'a3-1', 'address': '10.1.2.12'}]

The meanings and examples are those of `kimi_nb.params.schema`, so that no key can be left out.
"""

from __future__ import annotations

import ipaddress
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from kimi_nb.core import strict_yaml
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load, schema
from kimi_nb.params.kubernetes_site import Volume

_WIDTH = 98
_AT_ONCE = (schema.Node, schema.Settings, Volume)  # tables that are written as one value
_HEAD = """\
Your site: the only file that you have to edit. Every key is listed with its meaning.
A key behind a '#' is off: remove the '#' to set it, and that of its table.
Name the file with --site."""


def nodes(words: str, prefix: str) -> list[dict[str, str]]:
    """Return the nodes in ``NAME=ADDRESS,...``, or in ``ADDRESS,...`` without names.

    A node without a name is called by the first part of its host name, or, where the address is
    an IP address, by ``prefix`` and its number. Raises ParameterError where there are none.

    >>> nodes("gpu=10.0.0.7,dgx-02.example.org", "h200")
    [{'name': 'gpu', 'address': '10.0.0.7'}, {'name': 'dgx-02', 'address': 'dgx-02.example.org'}]
    """
    out = []
    for number, word in enumerate(one.strip() for one in words.split(",") if one.strip()):
        name, equals, address = word.rpartition("=")
        if not equals:
            name = f"{prefix}-{number}" if _is_ip(address) else address.partition(".")[0]
        out.append({"name": name, "address": address})
    if not out:
        raise ParameterError(
            "--nodes: the nodes are wanted as ADDRESS,... or NAME=ADDRESS,..., such as "
            "10.1.2.11,10.1.2.12."
        )
    return out


def _is_ip(address: str) -> bool:
    try:
        return bool(ipaddress.ip_address(address))
    except ValueError:
        return False


def new(
    example: schema.Site,
    name: str,
    members: Sequence[Mapping[str, str]],
    pairs: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the keys of a site like ``example``, with other nodes and the values of ``pairs``.

    Each pair is ``KEY=VALUE``, such as ``ssh.user=ops`` or ``paths.models=/data/models``. Raises
    ParameterError that names every key that is unknown or has a value of the wrong kind.
    """
    values: dict[str, Any] = example.model_dump(mode="json", exclude_unset=True)
    if "slurm" in values:  # no cluster has the example's
        values["slurm"] = {k: v for k, v in values["slurm"].items() if not k.endswith("qos")}
    values |= {"name": name, "nodes": [dict(node) for node in members]}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ParameterError(f"--set {pair!r}: KEY=VALUE is wanted, such as ssh.user=ops.")
        _put(values, key, value)
    slurm, told = values.get("slurm"), any(pair.startswith("slurm.modules=") for pair in pairs)
    if isinstance(slurm, dict) and "container" in slurm and not told:
        slurm.pop("modules", None)  # the example's is for conda
    try:
        schema.Site.model_validate(values)
    except ValidationError as error:
        raise ParameterError(load.explain_faults(error, "the site", schema.Site)) from None
    return values


def _put(values: dict[str, Any], key: str, value: str) -> None:
    *tables, last = key.split(".")
    for table in tables:
        inner = values.setdefault(table, {})
        if not isinstance(inner, dict):
            raise ParameterError(f"--set {key}: {table} is no table; name nodes with --nodes.")
        values = inner
    try:
        values[last] = strict_yaml.load(value)
    except strict_yaml.Fault:
        raise ParameterError(f"--set {key}: {value!r} is not a value in YAML.") from None


def left(values: Mapping[str, Any], pairs: Iterable[str]) -> list[str]:
    """Return the keys that still have the value of an example and are different at each site.

    >>> left({"nic": "enp67s0f5", "slurm": {"account": "kimi"}}, ["slurm.account=me"])
    ['nic']
    """
    given = {pair.partition("=")[0] for pair in pairs}
    there = [
        *(["nic"] if "nic" in values else []),
        *(f"{name}.{key}" for name in ("slurm", "paths") for key in values.get(name, ())),
    ]
    return [
        key for key in there if not any(one == key or one.startswith(f"{key}.") for one in given)
    ]


def text(values: Mapping[str, Any]) -> str:
    """Return a site file with these values; every other key stands there turned off."""
    out = [f"# {line}" for line in _HEAD.splitlines()]
    for name, field in schema.Site.model_fields.items():
        out += ["", *_entry(name, field, values, "", on=True)]
    return "\n".join(out) + "\n"


def _entry(
    name: str, field: FieldInfo, values: Mapping[str, Any], indent: str, on: bool
) -> Iterator[str]:
    """Yield the lines of a key: what it means, and the key itself."""
    meaning = f"{field.description}{_default(field)}."
    yield from textwrap.wrap(
        meaning[0].upper() + meaning[1:],
        _WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,
    )
    live = on and name in values
    head = indent if live else f"#{indent}"
    if table := _table(field):
        yield f"{head}{name}:"
        for key, inner in table.model_fields.items():
            yield from _entry(key, inner, values.get(name) or {}, indent + "  ", live)
    elif name == "nodes":
        yield f"{indent}{name}:"
        yield from (f"{indent}  - {_yaml(node)}" for node in values[name])
    else:
        example = field.examples[0] if field.examples else field.get_default()
        yield f"{head}{name}: {_yaml(values[name] if live else example)}"


def _default(field: FieldInfo) -> str:
    """Return the value that holds without the key, in parentheses; "" where none is to be told."""
    value = field.default
    words = value if isinstance(value, tuple) else [value]
    told = words and all(isinstance(word, str | int) for word in words)
    return f" ({', '.join(map(str, words))})" if told else ""


def _table(field: FieldInfo) -> type[BaseModel] | None:
    """Return the table that a key holds, if its own keys are written one by one."""
    if get_origin(field.annotation) is tuple:  # a list of tables is written as one value
        return None
    kinds = [field.annotation, *get_args(field.annotation)]
    found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return found[0] if found and found[0] not in _AT_ONCE else None


def _yaml(value: object) -> str:
    written = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return written.removesuffix("\n").removesuffix("\n...")


def meanings() -> list[tuple[str, str]]:
    """Return (key, meaning) of every key of a site file, ``ssh.user`` for one of a table."""
    return list(_meanings(schema.Site, ""))


def _meanings(table: type[BaseModel], head: str) -> Iterator[tuple[str, str]]:
    for name, field in table.model_fields.items():
        inner = schema.Node if name == "nodes" else _table(field)
        if inner is None or inner is schema.Node:
            yield f"{head}{name}", f"{field.description}{_default(field)}"
        if inner is not None:
            yield from _meanings(inner, f"{head}{name}.")
