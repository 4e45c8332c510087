"""Parse YAML strictly: a key that is given twice, or aliases that unfold without end, are faults.

>>> load("a: [1, 2]")
{'a': [1, 2]}
"""

from __future__ import annotations

from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_MERGED = 20_000
_MERGE = "tag:yaml.org,2002:merge"

UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What PyYAML raises on a text that is not YAML or whose tags do not fit their values."""


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
        # Of what is tagged !!map and is none, the loader tells the fault.
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
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


class Fault(Exception):
    """What is wrong with a text, and what to do; ``place`` says where, "" if that is not known."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


def load(text: str) -> Any:
    """Return what a YAML text says. Raises Fault."""
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
        raise Fault(f"{error.problem}.{advice}", where) from None
    except UNREADABLE as error:
        # An invalid date, a number that is too long, or a character that YAML forbids. What PyYAML
        # stumbles over, such as !!int before an empty text, says nothing to a reader.
        said = "" if isinstance(error, IndexError | AttributeError) else str(error)
        raise Fault(
            f"{said[:160] or 'not YAML'}. Put quotes around a text "
            "that looks like a date or a number."
        ) from None
    return data


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
