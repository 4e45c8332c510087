r"""Find values in YAML that do not reach their program as they look: folded lines, secrets.

>>> from kimi_nb.check.reading import compose, yaml_values
>>> roots = compose.read("kind: Secret\ndata: {token: $(TOKEN)}").roots
>>> [fault.rule for fault in yaml_values.find(roots, "secret.yaml", 1)]
['manifests/secret']
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence

import yaml

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.reading import near_names, pods
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

_USED = re.compile(r"\$\{?([A-Z][A-Z0-9_]{3,})\b")
_FOLDED = re.compile(r"\\ (?=[\w\"'./-])")
_REFERENCE = re.compile(r"\$\([A-Za-z_]\w*\)")
_FILLED = re.compile(
    r"\$|[<>{}]|^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$|(?i:your|x{4}|base64|secret|token|\.\.\.|encoded|changeme|replace)"
)


def find(
    roots: Sequence[yaml.Node | None], file: str, line: int, template: bool = False
) -> list[Fault]:
    """Return the faults of the values of a YAML text that begins in a file at ``line``."""
    out = []
    for rule, node, message, severity in (
        *_folded(roots),
        *_secrets(roots, template),
        *_tasks(roots),
    ):
        at = line + node.start_mark.line
        out.append(Fault(rule, Spot(f"{file}:{at}", file, at), message, severity))
    return out


_Told = tuple[str, yaml.Node, str, str]


def _folded(roots: Sequence[yaml.Node | None]) -> Iterator[_Told]:
    """Yield plain values of several lines with backslashes: YAML puts a blank for each line end."""
    for mapping in pods.mappings(roots):
        for _, value in mapping.value:
            for node in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                if (
                    isinstance(node, yaml.ScalarNode)
                    and not node.style
                    and node.end_mark.line > node.start_mark.line
                    and _FOLDED.search(node.value)
                ):
                    yield (
                        "shell/yaml-folded",
                        node,
                        f"the lines become one, with backslashes in it: {node.value[:60]}",
                        "",
                    )


def _tasks(roots: Sequence[yaml.Node | None]) -> Iterator[_Told]:
    """Yield variables of a task's commands that its list of variables has under nearly their name.

    Such as those of dstack (``env`` and ``commands``) and of SkyPilot (``envs``, ``setup``, ``run``).
    """
    for mapping in pods.mappings(roots):
        there = pods.keys(mapping)
        given = next((there[name][1] for name in ("env", "envs") if name in there), None)
        names = {one.partition("=")[0] for one in _scalars(given)} | set(pods.keys(given))
        for node in [there[name][1] for name in ("commands", "setup", "run") if name in there]:
            for value in pods.items(node) or [node]:
                text = value.value if isinstance(value, yaml.ScalarNode) else ""
                for name in dict.fromkeys(_USED.findall(text)) if names else ():
                    other = "" if name in names else near_names.nearly(name, names, "")
                    if other and f"{name}=" not in text:
                        said = f"${name} is set nowhere; ${other} is nearly the same name"
                        yield "shell/unset", value, said, WARNING


def _scalars(node: yaml.Node | None) -> list[str]:
    return [one.value for one in pods.items(node) if isinstance(one, yaml.ScalarNode)]


def _secrets(roots: Sequence[yaml.Node | None], template: bool) -> Iterator[_Told]:
    """Yield what stands in a Secret and is no base64, or a reference that nobody fills in."""
    for root in roots:
        for kind, node in pods.objects(root):
            if kind != "Secret" or template:
                continue
            for part in ("data", "stringData"):
                values = pods.below(node, part)
                for _, value in values.value if isinstance(values, yaml.MappingNode) else ():
                    if isinstance(value, yaml.ScalarNode):
                        yield from _secret(value, part)


def _secret(value: yaml.ScalarNode, part: str) -> Iterator[_Told]:
    text = value.value.strip()
    if _REFERENCE.fullmatch(text):
        yield (
            "manifests/secret",
            value,
            f"{text} stays as it is: references in a Secret are not expanded",
            WARNING,
        )
    elif part == "data" and text and not _FILLED.search(text) and not fill_ins.holds(text):
        try:
            base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            yield "manifests/secret", value, "a value under data is not base64", ERROR
