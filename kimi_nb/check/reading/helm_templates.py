r"""Find what is wrong with a Helm template as a text, before anything fills it in.

>>> from kimi_nb.check.reading import helm_templates
>>> text = "spec:\n  {{ - with .Values.tolerations }}\n  {{- end }}\n"
>>> [(fault.message, fault.spot.line) for fault in helm_templates.find(text, "pod.yaml")]
[('a blank parts the dash from its braces', 2)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb.check.findings import WARNING
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

_HELM = re.compile(r"\{\{[^{}]*(?:\.Values\b|\.Release\b|\.Chart\b|\binclude \"|\bdefine \")")
_COMMENT = re.compile(r"\{\{-?\s*/\*.*?\*/\s*-?\}\}", re.DOTALL)
_QUOTED = r'"(?:\\.|[^"\\\n])*"|`[^`]*`'
_STRING = re.compile(_QUOTED)
_ACTION = re.compile(rf"\{{\{{(?:{_QUOTED}|(?!\}}\}}).)*\}}\}}", re.DOTALL)
_WORDS = r"(?:if|else|end|with|range|include|toYaml|tpl|define|template|default|quote|\.|\$)"
_APART = re.compile(rf"\{{\{{\s+-\s*{_WORDS}")
_GLUED = re.compile(rf"\{{\{{-{_WORDS}")
_LOWER = re.compile(r"(?<![\w.)\]])\.values\.\w+")
_OPENS = re.compile(r"\{\{-?\s*(?:if|with|range|define|block)\b")
_ENDS = re.compile(r"\{\{-?\s*end\b")
_KEY = re.compile(r"(?P<indent> *(?:- +)*)(?P<key>[\w./-]+):\s*")
_INDENTED = re.compile(r"\s*\{\{-[^{}]*\|\s*nindent\s+(?P<by>\d+)\s*-?\}\}\s*")
_CONTROL = re.compile(r"\s*\{\{-?\s*(?:if|with|else|range)\b.*\}\}\s*")
# Keys that hold mappings: items of a list may stand as far left as their key.
_MAPPINGS = {
    "affinity",
    "annotations",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "podSecurityContext",
    "requests",
    "resources",
    "securityContext",
    "strategy",
}
_VARIABLE = re.compile(r"\s*- [\"']?(\$\{?[A-Za-z_]\w*\}?)[\"']?\s*")
_OPTION = re.compile(r"\s*- [\"']?--[a-z][\w-]*[\"']?\s*")


def find(text: str, file: str, document: bool = False) -> list[Fault]:
    """Return the faults of a template; ``document`` marks a part of one, such as a fence."""
    if not _HELM.search(text):
        return []
    bare = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    refused = list(_delimiters(bare))
    told = [*refused, *_indents(bare), *_unexpanded(bare)]
    if not document and not refused:  # what is no action opens no block
        told += _blocks(bare)
    return [
        Fault(rule, Spot(f"{file}:{line}", file, line), message, severity)
        for rule, line, message, severity in told
    ]


_Told = tuple[str, int, str, str]


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _delimiters(text: str) -> Iterator[_Told]:
    """Yield actions that the parser of templates refuses."""
    for action in _ACTION.finditer(text):
        line = _line(text, action.start())
        if match := _APART.match(action[0]):
            yield "manifests/template", line, "a blank parts the dash from its braces", ""
        elif match := _GLUED.match(action[0]):
            yield "manifests/template", line, f"{match[0]}: no blank stands behind the dash", ""
        if match := _LOWER.search(_STRING.sub('""', action[0])):
            message = f"{match[0]} is not there: it is called .Values"
            yield "manifests/template", line, message, WARNING  # unless a block brings its own


def _blocks(text: str) -> Iterator[_Told]:
    """Yield whether more or fewer blocks end than begin."""
    bare = "".join(_STRING.sub('""', one[0]) for one in _ACTION.finditer(text))
    begun, ended = len(_OPENS.findall(bare)), len(_ENDS.findall(bare))
    if begun != ended:
        last = text.rstrip().count("\n") + 1
        yield "manifests/template", last, f"{begun} blocks begin, and {ended} end", ""


def _indents(text: str) -> Iterator[_Told]:
    """Yield values that are indented no further than their key."""
    key, indent = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if match := _INDENTED.fullmatch(line):
            by = int(match["by"])
            if key and (by < indent or (by == indent and key in _MAPPINGS)):
                yield (
                    "manifests/template",
                    number,
                    f"nindent {by} puts the value of {key} beside its key, which stands at {indent}",
                    WARNING,
                )
        elif match := _KEY.fullmatch(line):
            key, indent = match["key"], len(match["indent"])
        elif line.strip() and not _CONTROL.fullmatch(line):
            key = ""


def _unexpanded(text: str) -> Iterator[_Told]:
    """Yield variables that are an item of their own behind an option: no shell reads such a list."""
    before = ""
    for number, line in enumerate(text.split("\n"), start=1):
        match = _VARIABLE.fullmatch(line)
        if match and _OPTION.fullmatch(before):
            message = f"{match[1]} stays as it is written: no shell reads it"
            yield "containers/unexpanded", number, message, WARNING
        before = line
