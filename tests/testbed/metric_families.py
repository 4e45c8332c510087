"""The families of a /metrics text: what a dashboard can ask for, without the values."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? \S+$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
# Labels whose values say what there is to ask for; of others only the name counts.
_NAMED = ("reason", "source", "finished_reason", "sleep_state", "mode", "outcome", "generation")


def of(text: str) -> dict[str, dict]:
    """Type, help, names of labels, values of some labels and edges of buckets, by family.

    A family without samples has no labels: some come with the first request.
    """
    found: dict[str, dict] = {}
    one: dict = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, said = line.split(" ", 3)
            one = found[name] = {"help": said.strip(), "labels": [], "values": {}, "edges": []}
        elif line.startswith("# TYPE "):
            assert line.split()[2] == name, line
            one["type"] = line.split()[3]
        elif match := _SAMPLE.match(line):
            assert match["name"].startswith(name), (name, line)
            for label, value in _LABEL.findall(match["labels"] or ""):
                if label == "le":
                    _add(one["edges"], value)
                    continue
                _add(one["labels"], label)
                if label in _NAMED:
                    _add(one["values"].setdefault(label, []), value)
    for one in found.values():
        one["labels"].sort()
    return found


def _add(to: list[str], value: str) -> None:
    if value not in to:
        to.append(value)
