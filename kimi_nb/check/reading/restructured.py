r"""Write reStructuredText as markdown, line by line, so that one reader finds the code in both.

>>> from kimi_nb.check.reading import restructured
>>> restructured.as_markdown(".. code-block:: bash\n\n   vllm serve m\n\nThen ask it.")
'```bash\n\nvllm serve m\n```\nThen ask it.'
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BLOCK = re.compile(
    r"( *)(?:[-*#] |\d+\. )?\.\. (?:code-block|code|sourcecode|prompt)::[ \t]*(\S*)"
)
_LITERAL = re.compile(r"( *)(?!\.\. ).*::\s*$")
_OPTION = re.compile(r"\s*:[\w-]+:")


def as_markdown(text: str) -> str:
    """Return a document with code fences for its code and literal blocks.

    Each line keeps its number. Prose loses its indentation, which markdown would take for code.
    """
    lines = text.split("\n")
    out: list[str] = []
    while len(out) < len(lines):
        at = len(out)
        match = _BLOCK.match(lines[at]) or _LITERAL.match(lines[at])
        body = _body(lines, at + 1, len(match[1])) if match else range(0)
        if match is None or not body:
            out.append(lines[at].lstrip())
        elif match.re is _BLOCK:
            out += [f"```{match[2]}", *_dedented(lines, at + 1, body)]
        else:  # a paragraph that ends in two colons: the blank line below it opens the block
            out += [lines[at].lstrip(), "```", *_dedented(lines, at + 2, body)]
    return "\n".join(out)


def _body(lines: Sequence[str], first: int, indent: int) -> range:
    """Return the lines of a block that is indented deeper than what opens it.

    A directive's options stand right below it, and are none of them; a blank line is above it.
    """
    start = first
    while start < len(lines) and _OPTION.match(lines[start]):
        start += 1
    if start >= len(lines) or lines[start].strip():
        return range(0)
    end = start
    for number in range(start, len(lines)):
        line = lines[number]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        if line.strip():
            end = number + 1
    # What closes a fence takes the place of a blank line.
    return range(start, end) if end == len(lines) or not lines[end].strip() else range(0)


def _dedented(lines: Sequence[str], first: int, body: range) -> list[str]:
    """Return the lines from ``first`` to the end of a block, and the fence that closes it.

    The closing fence takes the place of the blank line below the block.
    """
    code = [lines[number] for number in body]
    depth = min(len(line) - len(line.lstrip()) for line in code if line.strip())
    below = ["```"] if body.stop < len(lines) else []
    skipped = [""] * (body.start - first)
    inside = [line[depth:] for line in code]
    return [*skipped, *inside[max(first - body.start, 0) :], *below]
