"""A deployment as a repository publishes it: the commands of each role, and where they stand.

>>> role = Role.of("mixed", ["--tensor_parallel_size=8", "--enable-expert-parallel"], {})
>>> role.argv
(('--tensor-parallel-size', 8), ('--enable-expert-parallel', True))
>>> role.layout.tp, role.layout.ep
(8, True)

Values are as published: a shell variable that the source leaves open stays ``$NAME``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

from kimi_nb import catalog
from kimi_nb.check.view import engine_view

_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")
_SIZES = {
    "tp": "--tensor-parallel-size",
    "dp": "--data-parallel-size",
    "dp_local": "--data-parallel-size-local",
    "pp": "--pipeline-parallel-size",
    "dcp": "--decode-context-parallel-size",
    "pcp": "--prefill-context-parallel-size",
}


@dataclass(frozen=True)
class Source:
    """Where a deployment stands; ``commit`` is "unknown" for a folder without a readable .git."""

    repo: str
    commit: str
    path: str
    line: int

    @property
    def url(self) -> str:
        """The page of the line on GitHub; that of the repository if the commit is not known."""
        if self.commit == "unknown":
            return f"https://github.com/{self.repo}"
        return f"https://github.com/{self.repo}/blob/{self.commit}/{self.path}#L{self.line}"


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel groups; None where the source leaves a number to the reader.

    ``dp_local`` is None too if it is not given: all data parallel ranks are on one node then, or
    each is started by its own command.
    """

    tp: int | None = 1
    dp: int | None = 1
    dp_local: int | None = None
    pp: int | None = 1
    dcp: int | None = 1
    pcp: int | None = 1
    ep: bool = False


@dataclass(frozen=True)
class Role:
    """The command of one role.

    Attributes:
        name: mixed, prefill, decode, head, worker1, instance, ...
        nodes: How many nodes run it; ``argv`` and ``env`` are those of the first of them.
        argv: (flag, value) in order: long names, a bare flag is True, JSON and numbers are parsed,
            and of a flag given twice the last is kept.
        env: The variables that the source sets.
        layout: The sizes that the command gives, or that its KV connector states.
        line: The line of the command in the file; 0 if it is rendered from many.
    """

    name: str
    nodes: int
    argv: tuple[tuple[str, Any], ...]
    env: Mapping[str, str]
    layout: Layout
    line: int = 0

    @classmethod
    def of(
        cls,
        name: str,
        words: Sequence[object],
        env: Mapping[str, object],
        nodes: int = 1,
        line: int = 0,
    ) -> Role:
        """Return the role of the words after ``vllm serve MODEL``."""
        argv = pairs(words)
        return cls(name, nodes, argv, {key: text(env[key]) for key in env}, layout(argv), line)

    @functools.cached_property
    def flags(self) -> dict[str, Any]:
        """The values by flag."""
        return dict(self.argv)


@dataclass(frozen=True)
class Deployment:
    """A deployment that a repository publishes.

    Attributes:
        id: Unique within a checkout, and stable while the source keeps its names.
        source: Where it stands.
        model: The checkpoint on the hub.
        hardware: The name of the hardware in small letters (h200, mi355x, a3); "" if not told.
        strategy: The published name of the layout, of the case or of the section.
        variant: The published name of the weights; "" if there is none.
        engine: vllm or vllm-ascend.
        version: The range of versions as published; "" if none is.
        image: The image as published; "" if none is.
        status: verified, unverified, or what the source says instead.
        nodes: The number of nodes; of each instance if there are several.
        roles: The commands.
        instances: How many equal instances stand behind the router.
        recommended: Whether it is what the source shows first for this hardware.
        notes: What else the source says about it.
    """

    id: str
    source: Source
    model: str
    hardware: str
    strategy: str
    variant: str
    engine: str
    version: str
    image: str
    status: str
    nodes: int
    roles: tuple[Role, ...]
    instances: int = 1
    recommended: bool = False
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as JSON knows it."""
        out = asdict(replace(self, roles=()))
        out["source"]["url"] = self.source.url
        out["roles"] = [
            {**asdict(role), "argv": [list(pair) for pair in role.argv]} for role in self.roles
        ]
        return out


def text(value: object) -> str:
    """Return a scalar of YAML as a command line shows it.

    >>> text(True), text(0.9), text(None)
    ('true', '0.9', 'null')
    """
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def value_of(word: str) -> Any:
    """Return the value of a word: a number, the object of a JSON text, or the word itself.

    >>> value_of("0.90"), value_of('{"a": [1]}'), value_of("$PORT")
    (0.9, {'a': [1]}, '$PORT')
    """
    if _NUMBER.fullmatch(word):
        return float(word) if "." in word else int(word)
    if word[:1] in ("{", "["):
        try:
            return json.loads(word, parse_constant=_no_number)
        except (ValueError, RecursionError):
            return word
    return word


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@functools.cache
def _long() -> dict[str, str]:
    """Return the long name of each short option that any known version of vLLM has."""
    out = {}
    for name, runs in catalog.tables("vllm")["serve"].items():
        for run in runs:
            for alias in run.get("aliases", ()):
                if not alias.startswith("--"):
                    out[alias] = name
    return out


def pairs(words: Sequence[object]) -> tuple[tuple[str, Any], ...]:
    """Return the (flag, value) of the words after ``vllm serve MODEL``, in order.

    Several words after a flag are one value, joined by spaces.
    """
    out: dict[str, Any] = {}
    flag = ""
    for word in map(text, words):
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            spelt, equals, value = word.partition("=")
            dashed = spelt.replace("_", "-") if spelt.startswith("--") else spelt
            flag = _long().get(dashed, dashed)
            out.pop(flag, None)
            out[flag] = value_of(value) if equals else True
        elif flag:
            out[flag] = value_of(word) if out[flag] is True else f"{text(out[flag])} {word}"
    return tuple(out.items())


def layout(argv: Sequence[tuple[str, Any]]) -> Layout:
    """Return the sizes that a command gives.

    A size that is a variable is taken from the command's KV connector, which may state those of
    prefill and decode; else it is None.
    """
    flags = dict(argv)
    stated = _stated(flags.get("--kv-transfer-config"))
    sizes: dict[str, Any] = {}
    for name, flag in _SIZES.items():
        if flag in flags:
            size = flags[flag] if type(flags[flag]) is int else stated.get(f"{name}_size")
            sizes[name] = size if type(size) is int else None
    return Layout(**sizes, ep="--enable-expert-parallel" in flags)


def pool_of(transfer: object) -> str:
    """Return whether a KV connector's engine is for prefill, for decode, or "" for both."""
    role = transfer.get("kv_role") if isinstance(transfer, dict) else None
    return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str(role), "")


def _stated(transfer: object) -> Mapping[str, Any]:
    """Return what a KV connector, or one inside it, states of its own pool."""
    for one in engine_view.transfers(transfer):
        more = one.get("kv_connector_extra_config")
        pool = more.get(pool_of(one)) if isinstance(more, dict) else None
        if isinstance(pool, dict):
            return pool
    return {}
