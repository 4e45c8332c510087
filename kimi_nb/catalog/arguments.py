"""Parse a vLLM command line as its own parser does, without vLLM.

>>> parsed = parse(catalog.engine("vllm", "0.19.1"), ["--max_model_len", "32k"])
>>> parsed.flags["max-model-len"]
32000
>>> parsed.given[0].fault  # "": the parser accepts it
''

The parser's rules: ``_`` equals ``-``; a unique prefix of a flag stands for the flag; there are
``--no-`` forms and short names; ``--flag=value``; a dot leads into a JSON flag
(``--compilation-config.mode 3``); the last of two occurrences wins. Nothing is rejected here:
whatever the real parser would reject is marked, and the rules of `kimi_nb.check` report it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.core import data_files

# Flags whose values differ between the ranks of a group.
OWN = frozenset(
    {
        "host",
        "port",
        "data-parallel-rank",
        "data-parallel-start-rank",
        "data-parallel-size-local",
        "data-parallel-address",
        "node-rank",
        "headless",
        "kv-transfer-config",
        "api-server-count",
    }
)
UNKNOWN, AMBIGUOUS, STRAY, MISSING = "unknown", "ambiguous", "stray value", "missing value"
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([kKmMgGtT])")
_POWERS = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that is not valid for its flag: ``text`` as written, and ``why``."""

    text: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unknown(Unread):
    """A value that is left to the reader (see `kimi_nb.catalog.fill_ins`): it may be valid.

    Two of one text are equal, as the same fill-in is one value.
    """


@dataclass(frozen=True, slots=True)
class Given:
    """One option of a command line.

    Attributes:
        name: Its long name without dashes; as written if the parser does not know it.
        path: The key below the flag, of a dotted option.
        spelt: The option as written.
        text: Its value as written, or None.
        off: Whether it is a ``--no-`` form.
        index: Its position among the words.
        fault: Why the parser would reject it, or "".
        candidates: What an ambiguous prefix could mean.
    """

    name: str
    path: str
    spelt: str
    text: str | None
    off: bool
    index: int
    fault: str = ""
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed command line.

    Attributes:
        words: The words that were parsed.
        given: Every option, in order.
        flags: The values by long name; JSON values as objects.
        positional: (index, word) of the positional arguments.
        stray: (index, word) of the words that belong to nothing.
        shared: The options that all ranks of a group have in common.
    """

    words: Sequence[str]
    given: tuple[Given, ...]
    flags: Mapping[str, Any]
    positional: tuple[tuple[int, str], ...]
    stray: tuple[tuple[int, str], ...]
    shared: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    spec: Mapping[str, Any]
    off: bool


@functools.lru_cache(maxsize=64)
def options(row: str, command: str) -> dict[str, _Option]:
    """Return every spelling that the parser of a catalog version knows."""
    out: dict[str, _Option] = {}
    for long, runs in catalog.tables("vllm")[command].items():
        spec = catalog.active(runs, row)
        if spec is None:
            continue
        out[long] = _Option(long[2:], spec, False)
        for alias in spec.get("aliases", ()):
            out[alias] = _Option(long[2:], spec, alias in spec.get("negations", ()))
    return out


@functools.lru_cache(maxsize=4096)
def _find(row: str, command: str, word: str) -> tuple[_Option | None, str, tuple[str, ...]]:
    """Return (option, path below it, candidates) of one spelling without its value."""
    known = options(row, command)
    if word in known:
        return known[word], "", ()
    if not word.startswith("--"):
        # A short name may also be dotted: -cc.mode, -O.mode.
        short, _, path = word.partition(".")
        last = str(data_files.facts("catalog/versions")["keys_of_optimization"]["last"])
        if short == "-O" and short not in known and not catalog.earlier(last, row):
            short = "-cc"
        return (known[short], path, ()) if path and short in known else (None, "", ())
    top, _, path = word.partition(".")
    dashed = "--" + top[2:].replace("_", "-")
    if dashed in known:
        return known[dashed], path, ()
    near = sorted(name for name in known if name.startswith(dashed) and len(dashed) > 2)
    # A flag and its --no- form count as two candidates, as they do for the real parser.
    if len(near) == 1:
        return known[near[0]], path, ()
    return None, path, tuple(near)


def parse(
    engine: catalog.Engine,
    words: Sequence[str],
    command: str = "serve",
    positionals: int = 1,
    like: Parsed | None = None,
) -> Parsed:
    """Parse the words after ``vllm serve``, or after another command, of an engine version.

    ``like`` is the result for words that probably differ in a few values only; it saves time.
    """
    if like is not None and (found := _again(engine, words, command, like)) is not None:
        return found
    given: list[Given] = []
    flags: dict[str, Any] = {}
    positional: list[tuple[int, str]] = []
    stray: list[tuple[int, str]] = []
    row, at = engine.known, 0
    while at < len(words):
        word = words[at]
        if not _is_option(word):
            after_switch = given and given[-1].index == at - 1 and given[-1].text is None
            if len(positional) < positionals and not (after_switch and positional):
                positional.append((at, word))
            else:
                stray.append((at, word))
            at += 1
            continue
        spelt, equals, text = word.partition("=")
        if re.fullmatch(r"-O[0-9]?", spelt):
            after = words[at + 1] if at + 1 < len(words) else ""
            name = _optimization(options(row, command), spelt, equals, after)
            digit, spelt = spelt[2:], name
            equals, text = ("=", digit) if digit else (equals, text)
        option, path, near = _find(row, command, spelt)
        if option is None:
            value = text if equals else None
            if not equals and at + 1 < len(words) and not _is_option(words[at + 1]):
                value = words[at + 1]
            name = spelt[2:] if spelt.startswith("--") else spelt.lstrip("-")
            given.append(
                Given(
                    name.replace("_", "-"),
                    path,
                    spelt,
                    value,
                    False,
                    at,
                    AMBIGUOUS if near else UNKNOWN,
                    near,
                )
            )
            at += 2 if value is not None and not equals else 1
            continue
        spec = option.spec
        if path:
            at = _dotted(words, at, option, path, spelt, equals, text, given, flags)
            continue
        if not spec["takes_value"]:
            given.append(
                Given(
                    option.name,
                    "",
                    spelt,
                    text if equals else None,
                    option.off,
                    at,
                    STRAY if equals else "",
                )
            )
            flags[option.name] = not option.off
            at += 1
            continue
        values = [text] if equals else []
        start, at = at, at + 1
        many = spec.get("nargs") in ("+", "*")
        while not equals and at < len(words) and not _is_option(words[at]) and (many or not values):
            values.append(words[at])
            at += 1
        if not values and spec.get("nargs") not in ("?", "*"):
            given.append(Given(option.name, "", spelt, None, False, start, MISSING))
            continue
        joined = " ".join(values)
        given.append(Given(option.name, "", spelt, joined, False, start))
        flags[option.name] = (
            [typed(spec, value) for value in values] if many else typed(spec, joined)
        )
    shared = tuple((one.name, one.path, one.text, one.off) for one in given if one.name not in OWN)
    return Parsed(words, tuple(given), flags, tuple(positional), tuple(stray), shared)


def _optimization(known: Mapping[str, _Option], spelt: str, equals: str, after: str) -> str:
    """Return the flag that -O3, -O=3 or -O 3 stands for at a version, before the word ``after``."""
    if "--optimization-level" in known:
        return "--optimization-level"
    if "-O" in known and (spelt != "-O" or equals or re.fullmatch("[0-3]", after)):
        return "-O.mode"
    return spelt


def _again(
    engine: catalog.Engine, words: Sequence[str], command: str, like: Parsed
) -> Parsed | None:
    """Return the result for words that differ from others only in values of per-rank flags.

    The result is None if they differ in more than that.
    """
    if len(words) != len(like.words):
        return None
    changed = [at for at, word in enumerate(words) if word != like.words[at]]
    given, flags = list(like.given), dict(like.flags)
    by_index = {one.index + 1: place for place, one in enumerate(given)}
    for at in changed:
        place = by_index.get(at)
        if place is None:
            return None
        one = given[place]
        if (
            one.name not in OWN
            or one.path
            or one.fault
            or one.text != like.words[at]
            or _is_option(words[at])
            or [other.name for other in given].count(one.name) > 1  # the last one wins
        ):
            return None
        spec = options(engine.known, command).get(f"--{one.name}")
        if spec is None:
            return None
        given[place] = replace(one, text=words[at])
        flags[one.name] = typed(spec.spec, words[at])
    return Parsed(words, tuple(given), flags, like.positional, like.stray, like.shared)


def _dotted(
    words: Sequence[str],
    at: int,
    option: _Option,
    path: str,
    spelt: str,
    equals: str,
    text: str,
    given: list[Given],
    flags: dict[str, Any],
) -> int:
    """Take a key of a JSON flag that is given on its own; its value is the next word.

    Appends to ``given``, updates ``flags`` and returns the index of the next word.
    """
    start = at
    if not equals:
        at += 1
        text = words[at] if at < len(words) and not _is_option(words[at]) else ""
    missing = not equals and not text
    given.append(
        Given(
            option.name,
            path,
            spelt,
            None if missing else text,
            False,
            start,
            MISSING if missing else "",
        )
    )
    if missing:
        return at
    whole = flags.get(option.name)
    whole = _copy(whole) if isinstance(whole, dict) else {}
    flags[option.name] = whole
    *parents, last = path.rstrip("+").split(".")
    for key in parents:
        inner = whole.get(key)
        whole[key] = inner = inner if isinstance(inner, dict) else {}
        whole = inner
    whole[last] = _leaf(text)
    return at + 1


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _leaf(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@functools.lru_cache(maxsize=8192)
def _is_option(word: str) -> bool:
    """Return whether the parser takes a word as an option.

    That is a dash followed by something other than a number.
    """
    return (
        len(word) > 1
        and word[0] == "-"
        and " " not in word.partition("=")[0]
        and not re.fullmatch(r"-[0-9.]+", word)
    )


def typed(spec: Mapping[str, Any], text: str) -> Any:
    """Return a word as the value that its flag takes; Unread if it is not valid."""
    # A configuration that need not be there: arg_utils.py makes its type an optional_type.
    if text in ("", "None") and spec.get("type") == "json" and spec.get("default") is None:
        return None
    return _typed(spec.get("type", "str"), text)


@functools.lru_cache(maxsize=8192)
def _typed(kind: str, text: str) -> Any:
    if kind.startswith("optional_type.<locals>._optional_type("):
        if text in ("", "None"):
            return None
        kind = kind.rpartition("(")[2].rstrip(")")
    holds = "${" in text or text.startswith("$")
    if kind not in ("json", "loads", "union_dict_and_str"):
        holds = holds or text.startswith((fill_ins.MARK[0], "<"))
        # A name may hold dots and x; a number that does is no number yet.
        holds = holds or (kind not in ("", "str") and fill_ins.holds(text))
    if holds:
        return Unknown(text, "its value is not known here")
    if kind == "int":
        return (
            int(text) if _INTEGER.fullmatch(text) else _no_number(text, "a whole number is wanted")
        )
    if kind.startswith("human_readable_int"):
        return _size(text, kind.endswith("auto"))
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            return _no_number(text, "a number is wanted")
    if kind in ("json", "loads") or kind == "union_dict_and_str":
        if re.fullmatch(r"\{?\s*\.{3,}\s*\}?", text):
            return Unknown(text, "its value is not known here")
        return _json(text, kind)
    return text


def _no_number(text: str, why: str) -> Unread:
    if fill_ins.stands_for_number(text):
        return Unknown(text, "its value is not known here")
    return Unread(text, why)


def _size(text: str, auto: bool) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    if auto and text.lower() == "auto":
        return "auto"
    match = _SIZE.fullmatch(text)
    if match is None:
        return _no_number(text, "a whole number or a size such as 32k is wanted")
    value = float(match[1]) * _POWERS[match[2]]
    # The parser refuses 1.5K: a binary unit takes only whole numbers.
    if match[2].isupper() and "." in match[1]:
        return Unread(text, "a binary unit (K, M, G) takes no decimals; use k, m or g")
    return int(value)


def _json(text: str, kind: str) -> Any:
    if kind == "union_dict_and_str" and not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        if fill_ins.holds(text):
            try:
                return json.loads(fill_ins.quoted(text))
            except ValueError:
                pass
        return Unread(text, f"not JSON: {error}")
    except RecursionError:
        return Unread(text[:80], "JSON nested too deep")
