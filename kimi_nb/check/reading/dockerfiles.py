r"""Find what a Dockerfile starts: its image, its variables, and the words of ENTRYPOINT and CMD.

>>> from kimi_nb.check.reading import dockerfiles
>>> text = 'FROM vllm/vllm-openai:v0.19.1\nENV A=1\nCMD ["--model", "m"]'
>>> made = dockerfiles.container(text)
>>> made.image, made.env, [word for word, _ in made.command]
('vllm/vllm-openai:v0.19.1', {'A': '1'}, ['--model', 'm'])
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping

from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading.compose import Container


def container(text: str) -> Container:
    """Return the container that an image of a Dockerfile would run; of several stages, the last."""
    out = Container("", 1, "")
    arguments: dict[str, str] = {}
    for name, rest, line in instructions(fill_ins.masked(text)):
        rest = _filled(rest, {**arguments, **out.env})
        if name == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            out = Container("", line, words[0] if words else "")
        elif name == "ARG" and "=" in rest:
            key, _, value = rest.partition("=")
            arguments[key.strip()] = value.strip().strip("\"'")
        elif name == "ENV":
            for key, value in _variables(rest):
                out.env[key], out.env_lines[key] = value, line
        elif name in ("ENTRYPOINT", "CMD"):
            found = [(word, line) for word in _words(rest)]
            if name == "CMD":
                out.command = found
            else:
                out.entrypoint, out.command = found, []
            out.line = line
    return out


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], match[0]), text)


def instructions(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (instruction, the rest of it, line); continued lines are joined."""
    whole, first = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.lstrip().startswith("#") or (whole and not line.strip()):
            continue
        whole, first = whole + line.rstrip(), first or number
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        name, _, rest = whole.strip().partition(" ")
        if name:
            yield name.upper(), rest.strip(), first
        whole, first = "", 0


def _words(rest: str) -> list[str]:
    """Return the words of the JSON form, or those of the shell form as ``sh -c`` gets them."""
    if rest.startswith("["):
        try:
            found = json.loads(rest)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, list):
            return [str(word) for word in found]
    return ["sh", "-c", rest]


def _variables(rest: str) -> Iterator[tuple[str, str]]:
    """Yield the variables of ``ENV A=1 B=2`` and of the old ``ENV A 1``."""
    if "=" not in rest.split(" ", 1)[0]:
        name, _, value = rest.partition(" ")
        yield name, value.strip()
        return
    try:
        words = shlex.split(rest)
    except ValueError:
        words = rest.split()
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
