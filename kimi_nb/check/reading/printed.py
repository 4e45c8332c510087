"""Find options of the engine that a script prints for its user, or holds for another program.

>>> from kimi_nb.check.reading import bash, printed
>>> from kimi_nb.check.reading.sources import Source
>>> text = "echo vllm serve m --port 8000"
>>> source = Source("run.sh", "", text, 1, False)
>>> [one.words for one in printed.words(source, bash.interpret(text, "run.sh", 1))]
[(('--port', 1), ('8000', 1))]
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from kimi_nb.check.reading.script import Script
from kimi_nb.check.reading.sources import Source, Words

_SERVES = re.compile(r"\bvllm serve +[^\s-]\S* +(--?[a-z].{1,2000})", re.DOTALL)
_DEFAULT = re.compile(r"\$\{(\w{0,60}ARGS\w{0,20}):?[-=][\"']?(--[a-z][^{}\"'\n]{1,1000})[\"']?\}")
# VLLM_ARGS=--max-model-len 4096, as an env file has it, quoted or not.
_HELD = re.compile(
    r"^[ \t]*(?:export[ \t]+|-[ \t]+)?(\w{0,60}(?:ARGS|FLAGS|OPTIONS)\w{0,20})="
    r"(?:\"(--[a-z][^\"]{1,1000})\"|'(--[a-z][^']{1,1000})'|(--[a-z][^\n\"'|;&]{1,1000})$)",
    re.MULTILINE,
)
_HOLDS = re.compile(r"(?:ARGS|FLAGS|OPTIONS)\w{0,20}=[\"']?--")
# An element that is added to the words of a command: cmd+=(--enforce-eager).
_ADDED = re.compile(r"^[ \t]*(\w{1,60})\+=\([ \t]*(--[a-z][^\n()`]{1,400})\)[ \t]*$", re.MULTILINE)
_OPTION = re.compile(r"--?[A-Za-z]")


def words(source: Source, script: Script) -> Iterator[Words]:
    """Yield the options of printed commands, of defaults, and of variables held for others."""
    for command in script.commands:
        if command.argv[0] not in ("echo", "printf"):
            continue
        match = _SERVES.search(" ".join(command.argv[1:]))
        # A sentence that goes on behind the command is none of it.
        told = _split(match[1]) if match else []
        if told:
            yield Words(source.file, tuple((word, command.line) for word in told), True)
    if "vllm" not in source.text.lower():
        return
    for match in _DEFAULT.finditer(source.text):
        line = source.line + source.text.count("\n", 0, match.start())
        told = _split(match[2])
        if told:
            certain = "vllm" in match[1].lower()
            yield Words(source.file, tuple((word, line) for word in told), certain)
    read = {word.line for command in script.commands for word in command.words}
    for match in _ADDED.finditer(source.text) if "+=(" in source.text else ():
        line = source.line + source.text.count("\n", 0, match.start())
        starts = rf"\b{match[1]}=\([^()]{{0,400}}vllm|vllm[^\n]{{0,400}}\$\{{{match[1]}\["
        # In a branch the interpreter gives the array up.
        if line not in read and re.search(starts, source.text):
            yield Words(source.file, tuple((word, line) for word in _split(match[2])), True)
    for match in _HELD.finditer(source.text) if _HOLDS.search(source.text) else ():
        if re.search(rf"\$\{{?{match[1]}\b", source.text):
            continue  # read where it is used
        line = source.line + source.text.count("\n", 0, match.start())
        told = _split(match[2] or match[3] or match[4])
        if told:
            certain = "vllm" in match[1].lower()
            yield Words(source.file, tuple((word, line) for word in told), certain)


def _split(text: str) -> list[str]:
    """Return the options and their values; of what follows them, nothing."""
    try:
        found = shlex.split(text.replace("\\\n", " "))
    except ValueError:
        found = text.split()
    out: list[str] = []
    for place, word in enumerate(found):
        # Of two words in a row that are no options, the second is a sentence's.
        if not _OPTION.match(word) and place and not _OPTION.match(found[place - 1]):
            break
        out.append(word)
    return out
