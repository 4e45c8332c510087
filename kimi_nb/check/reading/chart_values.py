"""Find values that a chart's templates read under another name than its values file has.

>>> from kimi_nb.check.reading import chart_values
>>> from kimi_nb.check.reading.files import Text
>>> texts = [
...     Text("values.yaml", "", "yaml", "llm: {SERVICE_HOST_IP: a}"),
...     Text("templates/pod.yaml", "templates", "yaml", "host: {{ .Values.llm.SERVER_HOST_IP }}"),
... ]
>>> [fault.message for fault in chart_values.find(texts)]
['.Values.llm.SERVER_HOST_IP is not in values.yaml; SERVICE_HOST_IP is, and nothing reads it']
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading.files import Text
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files, strict_yaml

_PATH = re.compile(r"(?<![\w.)])\.Values((?:\.[A-Za-z]\w*)+)")
_SHORTEST = 8  # of a name that is compared
_NEAR = 0.85


def find(texts: Sequence[Text]) -> Iterator[Fault]:
    """Yield a fault for each such value, of every chart among the texts."""
    for values in texts:
        if posixpath.basename(values.name) != "values.yaml":
            continue
        home = posixpath.join(posixpath.dirname(values.name), "templates", "")
        templates = [one for one in texts if one.name.startswith(home)]
        if templates:
            yield from _chart(values, templates)


def _chart(values: Text, templates: Sequence[Text]) -> Iterator[Fault]:
    try:
        there: Any = None if data_files.too_deep(values.text) else yaml.safe_load(values.text)
    except strict_yaml.UNREADABLE:
        return
    every = "\n".join(one.text for one in templates)
    told: set[str] = set()
    for text in templates:
        for match in _PATH.finditer(text.text):
            path = match[1][1:].split(".")
            other = _other(path, there, values.text, every)
            if other and match[1] not in told:
                told.add(match[1])
                line = text.text.count("\n", 0, match.start()) + 1
                yield Fault(
                    "manifests/template",
                    Spot(f"{text.name}:{line}", text.name, line),
                    f".Values{match[1]} is not in values.yaml; {other} is, and nothing reads it",
                    WARNING,
                )


def _other(path: Sequence[str], there: Any, values: str, templates: str) -> str:
    """Return the key that is meant by a path which ends in no key, "" if there is none."""
    for name in path[:-1]:
        there = there.get(name) if isinstance(there, dict) else None
    name = path[-1]
    if not isinstance(there, dict) or name in there or len(name) < _SHORTEST:
        return ""
    if re.search(rf"#\s*{re.escape(name)}:", values):  # a comment offers it
        return ""
    unread = [
        key for key in there if isinstance(key, str) and not re.search(rf"\.{key}\b", templates)
    ]
    return next(iter(difflib.get_close_matches(name, unread, n=1, cutoff=_NEAR)), "")
