"""Rules on the words of a container that no shell reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, of_reading, rule
from kimi_nb.check.view import container_start
from kimi_nb.check.view.deployment import Box, Deployment

_PAIR = re.compile(r"(--[a-z][\w.-]*)[ \t]+\S")
_DOLLAR = re.compile(r"(?:--[\w.-]+=)?\$\{?([A-Z_][A-Z0-9_]*)\}?(?![\w(])")
_QUOTED = re.compile(
    r"(?:(--[a-z][\w.-]*)=)?(?P<mark>[\"'])(?P<value>(?:(?!(?P=mark)).)*)(?P=mark)", re.DOTALL
)
_UNSURE = re.compile(rf"[$<>{{}}\s]|^$|{fill_ins.MARK[0]}")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|k|z|a)?sh|.*\.sh")


def _engines(d: Deployment) -> Iterator[tuple[Box, bool]]:
    """Yield containers that start an engine without a shell, and whether that is certain.

    An image of somebody else may have a script as its entry point, and a controller may join words.
    """
    for box in d.boxes:
        words = box.argv[:4]
        if not box.runs_engine or any(map(_SHELL.fullmatch, words)) or "-c" in words:
            continue
        own = container_start.serves(box.argv) or (
            container_start.serves_by_itself(box.image) and not box.options.get("--entrypoint")
        )
        yield box, own and box.pod


@rule(
    "containers/option-item",
    WARNING,
    "An option and its value are two items of a list of words, or one with an equals sign.",
    "Write two items, or --NAME=VALUE.",
    "Kubernetes and docker hand each item over as one word; argparse takes a word with a blank for "
    "no option",
)
def option_item(d: Deployment) -> Iterator[Problem]:
    """'unrecognized arguments: --max-model-len 4096': the engine ends at once."""
    for box, certain in _engines(d):
        for word in box.argv:
            if _PAIR.match(word):
                severity = ERROR if certain and not fill_ins.holds(word) else ""
                yield Problem(
                    box.spot, f"one item holds an option and its value: {word[:60]}", "", severity
                )


@rule(
    "containers/unexpanded",
    WARNING,
    "Words that no shell reads hold no $NAME.",
    "Write $(NAME), which Kubernetes fills in from env, or start the engine by a shell.",
    "API reference of Kubernetes 1.34: command and args expand $(NAME) alone",
)
def unexpanded(d: Deployment) -> Iterator[Problem]:
    """The engine is handed the text $NAME: 'invalid int value', or a model that does not exist."""
    for fault in d.faults:  # of templates
        if fault.rule == "containers/unexpanded":
            yield Problem(fault.spot, fault.message, "", fault.severity)
    for box, certain in _engines(d):
        for word in box.argv if box.pod else ():
            if match := _DOLLAR.match(word):
                known = match[1] in box.env or match[1] in box.passes
                yield Problem(
                    box.spot,
                    f"{word[:60]} stays as it is written: no shell reads it",
                    "",
                    ERROR if certain and known else "",
                )


@rule(
    "containers/quoted-word",
    WARNING,
    "Words that no shell reads need no quotes of their own.",
    "Leave the inner quotes out.",
    "YAML 1.2: quotes inside a plain value belong to it; nobody takes them off",
)
def quoted_word(d: Deployment) -> Iterator[Problem]:
    """The quotes become a part of the value: a model that does not exist, or 'not valid JSON'."""
    for box, certain in _engines(d):
        for word in box.argv if box.pod else ():
            match = _QUOTED.fullmatch(word)
            if match and match["value"][:1] not in ("{", "["):  # those are no JSON, which is told
                refused = certain and match["value"].isdecimal()
                yield Problem(
                    box.spot,
                    f"the quotes are a part of the word: {word[:60]}",
                    "",
                    ERROR if refused else "",
                )


rule(
    "containers/compose-variable",
    WARNING,
    "A variable that a service's environment sets has two dollar signs in its command.",
    "Write $$NAME, or set NAME where compose is started (in .env).",
    "Compose specification: interpolation",
    needs=("scripts",),
)(
    of_reading(
        "containers/compose-variable",
        "compose warns 'The NAME variable is not set. Defaulting to a blank string', and the command "
        "lacks the value.",
        __name__,
    )
)


@rule(
    "containers/docker-name",
    ERROR,
    "A container has a name that docker takes.",
    "Give --name letters, digits, _, . and - only; the image stands behind the options.",
    "docker run --name: [a-zA-Z0-9][a-zA-Z0-9_.-]+",
)
def docker_name(d: Deployment) -> Iterator[Problem]:
    """'Invalid container name': docker ends before anything starts."""
    for box in d.boxes:
        for name in box.options.get("--name", ()):
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]+", name) and not _UNSURE.search(name):
                yield Problem(box.spot, f"docker refuses the name {name[:60]}")
