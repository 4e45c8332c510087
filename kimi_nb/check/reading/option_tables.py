"""Find options of an engine in YAML of any kind: in lists, and in mappings by their names.

>>> import yaml
>>> from kimi_nb.check.reading import option_tables
>>> text = "serve: {max-model-len: 1, max-num-seqs: 8, tensor-parallel-size: 8, enforce-eagr: 1}"
>>> list(option_tables.find([yaml.compose(text)]))
[(('--enforce-eagr', 1),)]

What such a file is for is not known. So a list or a mapping counts where at least three options are
a vLLM's that have a hyphen, one is a size that hardly another program has, and every other name is
nearly that of an option: a typing error.
"""

from __future__ import annotations

import difflib
import functools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

import yaml

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading import pods

Option = tuple[str, int]  # a word, and its line from 1
_LEAST = 3
_NEAR = 0.9
_SIZES = {
    "tensor-parallel-size",
    "max-model-len",
    "gpu-memory-utilization",
    "max-num-seqs",
    "max-num-batched-tokens",
}
# Containers are read as such, and variables and labels are no options.
_RUNS = {"command", "args", "entrypoint"}
_HOLDS = re.compile(r"\w*VLLM\w*(?:ARGS|ARGUMENTS|FLAGS|OPTIONS)")
_OTHERS = re.compile(r"(?i)env|environment|metadata|labels|annotations")


def find(roots: Sequence[yaml.Node | None]) -> Iterator[tuple[Option, ...]]:
    """Yield the words of each list or mapping of options, as they would stand in a command."""
    waiting: list[yaml.Node] = [root for root in roots if root is not None]
    seen: set[int] = set()
    for node in waiting:  # grows as it goes
        if id(node) in seen or len(seen) > pods.MOST:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            if words := _of_list(node):
                yield words
            else:
                waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = pods.keys(node)
            if "image" in keys and _RUNS & set(keys):
                continue
            if words := _of_mapping(keys):
                yield words
            waiting += [value for key, (_, value) in keys.items() if not _OTHERS.fullmatch(key)]


def of_variables(roots: Sequence[yaml.Node | None]) -> Iterator[tuple[Option, ...]]:
    """Yield the options in variables of containers of which an image's own script makes a command.

    >>> text = "env: [{name: VLLM_ADDITIONAL_ARGS, value: --max-model-len 8}]"
    >>> list(of_variables([yaml.compose(text)]))
    [(('--max-model-len', 1), ('8', 1))]
    """
    for node in pods.mappings(roots):
        there = pods.keys(node)
        if _RUNS & set(there):  # what runs there reads its variables itself
            continue
        for one in pods.items(pods.below(node, "env")):
            value = pods.below(one, "value")
            if (
                isinstance(value, yaml.ScalarNode)
                and _HOLDS.fullmatch(pods.plain(one, "name"))
                and value.value.lstrip().startswith("--")
            ):
                line = value.start_mark.line + 1
                yield tuple((word, line) for word in _words(fill_ins.masked(value.value)))


def _words(text: str) -> list[str]:
    """Return the words of a text as a shell splits them, or at blanks if a quote stays open."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _of_list(node: yaml.SequenceNode) -> tuple[Option, ...]:
    """Return the items of a list that begins with an option, if they are an engine's."""
    if not all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return ()
    words = [(item.value, item.start_mark.line + 1) for item in node.value]
    if not words or not words[0][0].startswith("--"):
        return ()
    names = [word[2:].partition("=")[0].partition(" ")[0] for word, _ in words if word[:2] == "--"]
    masked = tuple((fill_ins.masked(word), line) for word, line in words)
    return masked if _an_engine_s(names) else ()


def _of_mapping(keys: dict[str, tuple[yaml.Node, yaml.Node]]) -> tuple[Option, ...]:
    """Return the misspelt names of a mapping from an engine's options to their values.

    For which version such a table is written is not known, so its other names are not judged.
    """
    if len(keys) < _LEAST or not _an_engine_s(keys):
        return ()
    return tuple(
        (f"--{name.lstrip('-').replace('_', '-')}", key.start_mark.line + 1)
        for name, (key, _) in keys.items()
        if name != "<<" and _plain(name) not in _options()
    )


def _an_engine_s(names: Iterable[str]) -> bool:
    """Return whether names are those of a vLLM's options, or nearly so."""
    plain = [_plain(name) for name in names if name != "<<"]
    known = {name for name in plain if name in _options()}
    if sum("-" in name for name in known) < _LEAST or not known & _SIZES:
        return False
    return all(
        difflib.get_close_matches(name, _options(), n=1, cutoff=_NEAR)
        for name in plain
        if name not in known
    )


def _plain(name: str) -> str:
    """Return an option without dashes, the way into its JSON, and the no- of a switch."""
    plain = name.lstrip("-").replace("_", "-").partition(".")[0]
    return plain if plain in _options() else plain.removeprefix("no-")


@functools.cache
def _options() -> frozenset[str]:
    """Return the options of every listed vLLM, without their dashes."""
    return frozenset(
        name.removeprefix("--")
        for long, runs in catalog.tables("vllm")["serve"].items()
        for name in (long, *(one for run in runs for one in run.get("aliases", ())))
    )
