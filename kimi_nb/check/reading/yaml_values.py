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
from kimi_nb.check.reading import pods
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

_FOLDED = re.compile(r"\\ (?=[\w\"'./-])")
_REFERENCE = re.compile(r"\$\([A-Za-z_]\w*\)")
_FILLED = re.compile(
    r"\$|[<>{}]|(?i:your|x{4}|base64|secret|token|\.\.\.|encoded|changeme|replace)"
)


def find(
    roots: Sequence[yaml.Node | None], file: str, line: int, template: bool = False
) -> list[Fault]:
    """Return the faults of the values of a YAML text that begins in a file at ``line``."""
    out = []
    for rule, node, message, severity in (*_folded(roots), *_secrets(roots, template)):
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
