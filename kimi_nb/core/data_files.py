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

from kimi_nb.core import yaml_cache
from kimi_nb.core.errors import ParameterError, short
from kimi_nb.core.paths import DATA

_LARGEST = 4 << 20


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the contents of a YAML file, which must be a mapping.

    Raises ParameterError, with file, line and column, if the file is missing, unreadable, too
    large, not text, malformed, nested too deeply, or not a mapping.
    """
    told = short(path, 300)
    try:
        if path.exists() and not path.is_file():
            raise ParameterError(f"{told}: not a file.")
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
        if len(raw) > _LARGEST:
            raise ParameterError(f"{told}: larger than 4 MB; a parameter file is a few KB.")
        if (kept := yaml_cache.read(path, raw)) is not None:
            return kept
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise ParameterError(
            f"{told}: no such file. Write it, or name one that exists "
            "(kimi-nb list shows what ships with the project)."
        ) from None
    except UnicodeDecodeError:
        raise ParameterError(f"{told}: not a text file in UTF-8.") from None
    except OSError as error:
        raise ParameterError(f"{told}: cannot be read: {error.strerror}.") from None
    if fault := too_deep(text):
        raise ParameterError(f"{told}: {fault}.")
    from kimi_nb.core import strict_yaml  # start-up: most files were parsed before

    try:
        data = strict_yaml.load(text)
    except strict_yaml.Fault as wrong:
        raise ParameterError(f"{told}{wrong.place}: {wrong}") from None
    if not isinstance(data, dict):
        raise ParameterError(
            f"{told}: keys and values are wanted (key: value), "
            f"found {'a list' if isinstance(data, list) else shown(data)}."
        )
    yaml_cache.keep(path, raw, data)
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


def shown(value: object) -> str:
    """Return a value as error messages show it, at most 60 characters long.

    >>> shown(None)
    'nothing'
    """
    text = repr(value) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.cache
def facts(name: str) -> Any:
    """Return the contents of ``kimi_nb/data/<name>.yaml``, read once."""
    return read_yaml(DATA / f"{name}.yaml")
