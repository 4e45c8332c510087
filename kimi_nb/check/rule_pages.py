"""The page of a rule: what must hold, what breaks, what to do, an example of each kind, the source.

``kimi-nb explain RULE`` prints it, and ``make readme`` writes it into ``docs/rules/``.

>>> from kimi_nb.check import rule_pages
>>> from kimi_nb.check.rules import registry
>>> print(rule_pages.page(registry.all_rules()["shell/dash"]).splitlines()[0])
# shell/dash
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from kimi_nb.check import examples
from kimi_nb.check.rules import registry
from kimi_nb.check.rules.registry import Rule
from kimi_nb.core import shell
from kimi_nb.show import visible

# What `build.plan` takes, as options of the command line.
_OPTIONS = {
    "model": "--model",
    "hardware": "--hw",
    "layout": "--layout",
    "site": "--site",
    "variant": "--variant",
    "scenario": "--scenario",
    "engine_version": "--engine-version",
    "chosen": "--with",
    "dropped": "--without",
    "pairs": "--set",
    "derive": "--derive",
}
_LANGUAGES = {"md": "markdown", "yaml": "yaml", "yml": "yaml", "json": "json"}


def path(identity: str) -> str:
    """Return where the page of a rule stands below ``docs/rules/``."""
    return f"{identity}.md"


def page(rule: Rule) -> str:
    """Return the page of a rule as markdown."""
    needed = registry.needed(rule)
    parts = [
        f"# {rule.id}",
        _prose(rule.says),
        "| | |\n| --- | --- |\n"
        + "\n".join(
            f"| {name} | {_prose(text).replace('|', chr(92) + '|')} |"
            for name, text in (
                ("severity", rule.severity),
                *([("asked of", needed)] if needed else []),
                ("what breaks", rule.why),
                ("what to do", rule.fix),
                ("source", rule.source),
            )
        ),
        *(f"## {side.capitalize()}\n\n{_example(rule.id, side)}" for side in examples.SIDES),
    ]
    return "\n\n".join(parts) + "\n"


def as_dict(rule: Rule) -> dict[str, object]:
    """Return what is known of a rule, with its examples, as plain values."""
    return {
        **registry.as_dict(rule),
        **{side: dict(examples.example(rule.id, side)) for side in examples.SIDES},
    }


def index(rules: Iterable[Rule]) -> str:
    """Return the table of all rules, family after family, each with a link to its page."""
    rows = [
        f"| [{rule.id}]({path(rule.id)}) | {rule.severity} | {_prose(rule.says)} |"
        for rule in rules
    ]
    return "\n".join(["| rule | severity | what must hold |", "| --- | --- | --- |", *rows])


_UNSEEN = {
    "\r": r", where `\r` is a carriage return",
    "\u00a0": r", where `\xa0` is a no-break blank",
}


def _example(identity: str, side: str) -> str:
    case = examples.example(identity, side)
    parts = []
    for name, text in case.get("files", {}).items():
        # What cannot be seen is escaped.
        shown = visible(text.expandtabs().rstrip("\n"))
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
        language = _LANGUAGES.get(name.rpartition(".")[2], "bash")
        unseen = "".join(says for letter, says in _UNSEEN.items() if letter in text)
        parts.append(f"`{name}`{unseen}:\n\n{fence}{language}\n{shown}\n{fence}")
    for claim in case.get("claims", ()):
        parts.append(f"The document claims:\n\n```json\n{json.dumps(claim, indent=2)}\n```")
    if side == "passes":
        return "\n\n".join([*parts, f"{_asked(case)} says nothing of this rule."])
    if "says" not in case:
        return "\n\n".join([*parts, f"{_asked(case)} reports this rule."])
    where = f" of line {case['line']}" if "line" in case else ""
    return "\n\n".join(
        [*parts, f"{_asked(case)} says{where}:", f"> ... {_prose(case['says'])} ..."]
    )


def _asked(case: examples.Case) -> str:
    """Return how a case is checked, as the beginning of a sentence."""
    command = f"`{' '.join(map(shell.quote, _command(case)))}`"
    if "claims" in case:
        return f"`kimi-nb check --as-documented`, of a document with the commands of {command},"
    changed = [f"`{key}: {json.dumps(value)}`" for key, value in case.get("replace", {}).items()]
    return f"{command}, with {', '.join(changed)} in the plan," if changed else command


def _command(case: examples.Case) -> list[str]:
    """Return the command line that checks a case."""
    # Only of a whole folder it is known what it lacks.
    words = ["kimi-nb", "check", *(["."] if "tree" in case else case.get("files", ()))]
    for option, key in (("--engine", "engine"), ("--engine-version", "version"), ("--hw", "hw")):
        words += [option, str(case[key])] if key in case else []
    for key, value in case.get("plan", {}).items():
        for one in value if isinstance(value, list) else [value]:
            words += [_OPTIONS[key]] if one is True else [_OPTIONS[key], str(one)]
    return words


def _prose(text: str) -> str:
    """Return a text in which markdown takes no ``<word>`` for a tag."""
    return re.sub(r"[^\s,;`]*<[^<>`]*>[^\s,;.:`]*", r"`\g<0>`", text)
