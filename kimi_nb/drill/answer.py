"""Read what a person says of a drill: the node, the rank and the cause, as fields or in free words.

>>> told = parse("a3-1 rank 1: out of memory at load", ["a3-0", "a3-1"])
>>> told.node, told.rank, told.causes
('a3-1', 1, ('out-of-memory-at-load',))
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kimi_nb import show
from kimi_nb.core import data_files, numbers
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.diagnose import faq
from kimi_nb.rehearse import faults

WHOLE = "none"  # the answer to "which rank", where it is the node or the front door as a whole
_LEAST = 1.0  # what the words that a cause shares with a person's must weigh: one of them is rare
_KEYS = ("node", "rank", "cause")
_KEY = re.compile(rf"\b({'|'.join(_KEYS)})\s*[=:]\s*", re.IGNORECASE)
_RANK = re.compile(r"\b(?:rank|dp|worker)[\s#_=:]*(\d+|none|all)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What a person has said; None, or () for causes, where nothing was said.

    Attributes:
        rank: The number of a rank, or `WHOLE` for none of them.
        causes: The names of the faults that are meant. They are several, of one family, where the
            words do not tell them apart.
    """

    node: str | None
    rank: int | str | None
    causes: tuple[str, ...]


def parse(
    text: str, nodes: Sequence[str], engines: Mapping[str, tuple[str, int]] | None = None
) -> Answer:
    """Return what a text says: ``node=a3-1 rank=3 cause=port-taken``, or the same in free words.

    ``nodes`` are those of the plan; ``engines`` are node and rank of each engine by its name, which
    may be said in place of them. A cause is a name, its number in `causes`, or words for it. Raises
    ParameterError for what names nothing.
    """
    fields, rest = _fields(text)
    if at := next((name for name in engines or {} if _whole_word(name, rest)), ""):
        node, rank = (engines or {})[at]
        fields = {"node": node, "rank": str(rank), **fields}
        rest = _without(at, rest)
    if "node" not in fields:
        named = [node for node in sorted(nodes, key=len, reverse=True) if _whole_word(node, rest)]
        if named:
            fields["node"] = named[0]
            rest = _without(named[0], rest)
    if "rank" not in fields and (match := _RANK.search(rest)):
        fields["rank"] = match[1]
        rest = rest[: match.start()] + " " + rest[match.end() :]
    said = fields.get("cause", rest).strip(" ,.;:\n")
    found = Answer(
        _node(fields.get("node", ""), nodes), _rank(fields.get("rank", "")), _causes(said)
    )
    if found == Answer(None, None, ()):
        raise ParameterError(
            f"answer {text!r}: says neither node nor rank nor cause; such as "
            f"'{nodes[-1]} rank 1 out of memory', or 'node={nodes[-1]} rank=1 cause=port-taken'."
        )
    return found


def causes() -> show.Table:
    """Return a table of all causes with their numbers."""
    rows = tuple((at, name, kind.says) for at, (name, kind) in enumerate(faults.FAULTS.items(), 1))
    return show.Table("What a drill may be", ("number", "cause", "what goes wrong"), rows)


def family(name: str) -> str:
    """Return the family of a fault; its own name where it has none."""
    return str(_facts().get(name, {}).get("family", name))


def _facts() -> Mapping[str, Mapping[str, object]]:
    return data_files.facts("drill/causes")


def _fields(text: str) -> tuple[dict[str, str], str]:
    """Return the fields of a text by their keys, and the rest of it.

    A cause goes on to the next key, a node or a rank is one word.
    """
    marks = list(_KEY.finditer(text))
    ends = [mark.start() for mark in marks] + [len(text)]
    found, rest = {}, [text[: ends[0]]]
    for mark, end in zip(marks, ends[1:], strict=True):
        key, words = mark[1].lower(), text[mark.end() : end].strip(" ,;\n")
        if key != "cause":
            words, _, more = words.partition(" ")
            rest.append(more)
        if words := words.strip(" ,;"):
            found[key] = words
    return found, " ".join(filter(None, rest))


def _whole_word(word: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) is not None


def _without(word: str, text: str) -> str:
    return re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", " ", text)


def _node(said: str, nodes: Sequence[str]) -> str | None:
    if not said:
        return None
    at = numbers.whole(said)
    if at is not None and 1 <= at <= len(nodes) and said not in nodes:
        return nodes[at - 1]
    if said not in nodes:
        raise ParameterError(choice("node", said, nodes))
    return said


def _rank(said: str) -> int | str | None:
    if not said:
        return None
    if (rank := numbers.whole(said)) is not None:
        return rank
    if said.casefold() in (WHOLE, "all", "-"):
        return WHOLE
    raise ParameterError(
        f"rank {said!r}: a number is wanted, or {WHOLE} where it is the node as a whole."
    )


def _causes(said: str) -> tuple[str, ...]:
    """Return the faults that are meant. Raises ParameterError where words name none, or several."""
    if not said:
        return ()
    names = tuple(faults.FAULTS)
    at = numbers.whole(said)
    if at is not None and 1 <= at <= len(names):
        return (names[at - 1],)
    plain = re.sub(r"[\s_]+", "-", said.casefold())
    whole = [
        str(name) for name, kind in faults.FAULTS.items() if name in plain or said == kind.says
    ]
    best = tuple(whole) or _best(said)
    if not best:
        raise ParameterError(
            choice("cause", said, names, "kimi-nb drill --list says what each of them is.")
        )
    if len({family(name) for name in best}) > 1:
        raise ParameterError(
            f"cause {said!r}: may be {', '.join(best)}; say which of them (a name, or its number in "
            "kimi-nb drill --list)."
        )
    return best


def _best(said: str) -> tuple[str, ...]:
    """Return the faults that share most with some words, rare words counting more; () for none."""
    wanted, known = faq.words_of(said), _vocabulary()
    rarity = {
        word: math.log(
            (1 + len(known)) / (0.5 + sum(faq.has(words, word) for words in known.values()))
        )
        for word in wanted
    }
    scores = {
        name: sum(rarity[word] for word in wanted if faq.has(words, word))
        for name, words in known.items()
    }
    most = max(scores.values())
    if most < _LEAST:
        return ()
    return tuple(name for name, score in scores.items() if score > most - 1e-9)


@functools.cache
def _vocabulary() -> dict[str, frozenset[str]]:
    out = {}
    for name, kind in faults.FAULTS.items():
        more = _facts().get(name, {}).get("words", ())
        words = more if isinstance(more, list) else ()
        out[str(name)] = faq.words_of(" ".join((name, name.replace("-", " "), kind.says, *words)))
    return out
