r"""Make one text that a regular expression or a grammar allows, always the same.

>>> of_regex(r"\d{3}-[A-F]{2}"), of_grammar('root ::= "ab" | "cd"')
('000-AA', 'ab')
"""

from __future__ import annotations

import re
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_DEEP, _MOST = 24, 4096  # levels of rules, and characters
_PRINTABLE = "".join(chr(one) for one in (*range(97, 123), *range(48, 58), *range(32, 127)))
_CATEGORIES = {
    op.CATEGORY_DIGIT: "0",
    op.CATEGORY_NOT_DIGIT: "a",
    op.CATEGORY_WORD: "a",
    op.CATEGORY_NOT_WORD: "-",
    op.CATEGORY_SPACE: " ",
    op.CATEGORY_NOT_SPACE: "a",
}
_PIECE = re.compile(
    r'\s+|#[^\n]*|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|/(?:\\.|[^/\\])+/'
    r"|::=|:|[A-Za-z_][\w-]*|\{\d+(?:,\d*)?\}|[()|*+?]"
)


def of_regex(pattern: str) -> str:
    """Return a short text that the whole pattern matches.

    Raises:
        ValueError: The pattern is not valid, looks around, refers back, or is too large.
    """
    try:
        parsed = _parser.parse(pattern)
        text = _regex(parsed)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if re.compile(pattern).search(text) is None:
        raise ValueError("no text was found that it matches")
    return text


def _regex(parts: Any) -> str:
    out = "".join(_part(name, value) for name, value in parts)
    if len(out) > _MOST:
        raise ValueError("its texts are too long")
    return out


def _part(name: Any, value: Any) -> str:
    if name is op.LITERAL:
        return chr(value)
    if name is op.ANY:
        return "a"
    if name is op.NOT_LITERAL:
        return next(one for one in _PRINTABLE if ord(one) != value)
    if name is op.IN:
        return _in(value)
    if name is op.AT:
        return ""
    if name is op.BRANCH:
        return _regex(value[1][0])
    if name is op.SUBPATTERN:
        return _regex(value[-1])
    if name in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return _regex(value[2]) * min(value[0], _MOST)
    raise ValueError("look-around, including look-ahead and look-behind, is not supported")


def _in(items: list[tuple[Any, Any]]) -> str:
    first, value = items[0]
    if first is op.NEGATE:
        return next(one for one in _PRINTABLE if not any(_among(one, item) for item in items[1:]))
    if first is op.RANGE:
        return chr(value[0])
    return _CATEGORIES[value] if first is op.CATEGORY else chr(value)


def _among(one: str, item: tuple[Any, Any]) -> bool:
    name, value = item
    if name is op.RANGE:
        return bool(value[0] <= ord(one) <= value[1])
    if name is op.LITERAL:
        return bool(ord(one) == value)
    return {
        op.CATEGORY_DIGIT: one.isdigit(),
        op.CATEGORY_NOT_DIGIT: not one.isdigit(),
        op.CATEGORY_WORD: one.isalnum() or one == "_",
        op.CATEGORY_NOT_WORD: not (one.isalnum() or one == "_"),
        op.CATEGORY_SPACE: one.isspace(),
        op.CATEGORY_NOT_SPACE: not one.isspace(),
    }[value]


def of_grammar(text: str) -> str:
    """Return a text of a grammar in GBNF (``root ::= ...``) or Lark (``start: ...``).

    Raises:
        ValueError: It is no such grammar, a rule is missing, or no text of it is short.
    """
    rules = _rules(text)
    first = next((name for name in ("root", "start") if name in rules), None)
    if first is None:
        raise ValueError("no rule is named root or start")
    return _Sampler(rules).rule(first, 0)


def _rules(text: str) -> dict[str, list[str]]:
    pieces, at = [], 0
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            raise ValueError(f"unexpected {text[at : at + 10]!r}")
        at = found.end()
        if found[0].strip() and not found[0].startswith("#"):
            pieces.append(found[0])
    rules: dict[str, list[str]] = {}
    for place, piece in enumerate(pieces):
        if place + 1 < len(pieces) and pieces[place + 1] in ("::=", ":"):
            rules[piece] = name = []
        elif piece in ("::=", ":"):
            continue
        elif not rules:
            raise ValueError(f"Expected ::= after {piece!r}")
        else:
            name.append(piece)
    return rules


class _Sampler:
    """Walks the rules; of alternatives the first with a short text is taken."""

    def __init__(self, rules: dict[str, list[str]]) -> None:
        self._rules = rules

    def rule(self, name: str, depth: int) -> str:
        if name not in self._rules:
            raise ValueError(f"the rule {name!r} is missing")
        if depth > _DEEP:
            raise ValueError(f"the rule {name!r} does not end")
        return self._alternatives(self._rules[name], depth)

    def _alternatives(self, pieces: list[str], depth: int) -> str:
        level, found, why = 0, [[]], ValueError("a rule is empty")  # type: ignore[var-annotated]
        for piece in pieces:
            level += (piece == "(") - (piece == ")")
            if piece == "|" and not level:
                found.append([])
            else:
                found[-1].append(piece)
        if level:
            raise ValueError("a bracket is not closed")
        for sequence in found:
            if not sequence:
                continue
            try:
                return self._sequence(sequence, depth)
            except ValueError as error:
                why = error
        raise why

    def _sequence(self, pieces: list[str], depth: int) -> str:
        out, at = "", 0
        while at < len(pieces):
            end = at + 1
            if pieces[at] == "(":
                level = 1
                while level:
                    level += (pieces[end] == "(") - (pieces[end] == ")")
                    end += 1
            times, after = 1, pieces[end] if end < len(pieces) else ""
            if after in ("*", "?"):
                times = 0
            elif after.startswith("{"):
                times = min(int(re.findall(r"\d+", after)[0]), _MOST)
            made = self._one(pieces[at:end], depth) if times else ""
            out += made * times
            if len(out) > _MOST:
                raise ValueError("its texts are too long")
            at = end + bool(after and (after in "*?+" or after.startswith("{")))
        return out

    def _one(self, pieces: list[str], depth: int) -> str:
        first = pieces[0]
        if first == "(":
            return self._alternatives(pieces[1:-1], depth + 1)
        if first.startswith('"'):
            return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), first[1:-1])
        if first.startswith("["):
            return of_regex(first)
        if first.startswith("/"):
            return of_regex(first[1:-1])
        if re.match(r"[A-Za-z_]", first):
            return self.rule(first, depth + 1)
        raise ValueError(f"unexpected {first!r}")
