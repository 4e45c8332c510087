"""Read YAML strictly, and load the YAML facts that ship in ``kimi_nb/data/``.

The errors of `read_yaml` name the file, the line, the column and the remedy.

>>> sorted(facts("params/errata"))  # kimi_nb/data/params/errata.yaml
['errata']
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml

from kimi_nb.core.errors import ParameterError
from kimi_nb.core.paths import DATA

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LARGEST = 4 << 20
_MOST_MERGED = 20_000
_MERGE = "tag:yaml.org,2002:merge"


class _Strict(_Loader):  # type: ignore[misc,valid-type]
    """YAML loader that rejects duplicate keys, of which YAML would silently keep the last.

    It also rejects merge keys (``<<``) that bring in unreasonably many keys: they are copied for
    each alias while the file is read, so that a few lines could fill the memory.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._merged = 0
        self._merging: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge keys of a mapping by what they bring in."""
        if id(node) in self._merging:
            raise yaml.constructor.ConstructorError(
                None, None, "the mapping merges itself (<<)", node.start_mark
            )
        self._merging.add(id(node))
        for key, value in list(node.value):
            if key.tag != _MERGE:
                continue
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(one, yaml.MappingNode):
                    self.flatten_mapping(one)
                    self._merged += len(one.value)
                if self._merged > _MOST_MERGED:
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        f"its merge keys (<<) bring in more than {_MOST_MERGED} keys",
                        value.start_mark,
                    )
        self._merging.discard(id(node))
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
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


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the contents of a YAML file, which must be a mapping.

    Raises ParameterError, with file, line and column, if the file is missing, unreadable, too
    large, not text, malformed, nested too deeply, or not a mapping.
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
        # An invalid date, a number that is too long, or a character that YAML forbids.
        raise ParameterError(
            f"{path}: {str(error)[:160] or 'not YAML'}. Put quotes around a text "
            "that looks like a date or a number."
        ) from None
    if not isinstance(data, dict):
        raise ParameterError(
            f"{path}: keys and values are wanted (key: value), "
            f"found {'a list' if isinstance(data, list) else shown(data)}."
        )
    return data


def too_deep(text: str) -> str:
    """Return why a text is nested too deeply to be parsed, or "" if it is not.

    The C parser recurses without a limit. Only brackets and indentation are counted, so a text that
    is legal but that nobody would write may be refused.

    >>> too_deep("a: [1, [2]]")
    ''
    >>> too_deep("[" * 65)
    'nested more than 64 levels deep'
    """
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):  # start-up: not each character
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    if deepest > 64 or re.search(r"^ {200}|^ *([-?] ){32}", text, re.MULTILINE):
        return "nested more than 64 levels deep"
    return ""


def _measure(data: Any) -> None:
    """Raise ValueError if aliases expand the data to an unreasonable size or depth.

    This covers aliases of aliases and aliases that contain themselves.
    """
    left, waiting = 100_000, [(data, 0)]
    while waiting:
        item, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > 80:
            raise ValueError("its aliases (&name, *name) unfold into far more than was written")
        if isinstance(item, dict | list):
            inner = item.values() if isinstance(item, dict) else item
            waiting.extend((value, depth + 1) for value in inner)


def shown(value: object) -> str:
    """Return a value as error messages show it, at most 60 characters long.

    >>> shown(None)
    'nothing'
    """
    text = repr(value) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."


def parsed(text: str, name: str) -> dict[str, Any]:
    """Return the keys and values of a part of a file that ships; ``name`` is for its faults.

    Raises ParameterError if it is malformed or no mapping.
    """
    try:
        data = yaml.load(text, Loader=_Strict)
    except yaml.YAMLError as error:
        raise ParameterError(f"{name}: {error}") from None
    if not isinstance(data, dict):
        raise ParameterError(f"{name}: keys and values are wanted, found {shown(data)}.")
    return data


@functools.cache
def facts(name: str) -> Any:
    """Return the contents of ``kimi_nb/data/<name>.yaml``, read once."""
    return read_yaml(DATA / f"{name}.yaml")
