"""Nodes of a test: they answer what they were told to, note what is asked, and refuse the rest."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from kimi_nb.deploy import node_call
from kimi_nb.deploy.node_answers import Answer, Line

RUN, HOLDER = "r1", "me@here"  # the run that the nodes know, and how its holder's name begins
_LOOKS = {"look", "state", "tails"}  # the verbs that change nothing


def bundle(folder: Path, nodes: tuple[str, ...]) -> Path:
    """Write the least that a call of a node carries; its bash is never run."""
    for node in nodes:
        (folder / node).mkdir(parents=True)
        for name in ("node.sh", "node.env", "check_weights.py"):
            (folder / node / name).write_text("")
    return folder


def values(text: str) -> dict[str, str]:
    """The variables of a call, those that are exported among them."""
    words = shlex.split(text.partition("\nset -- ")[0])
    return dict(word.split("=", 1) for word in words if "=" in word)


def log(name: str, begin: int, text: str) -> str:
    """A piece of a log, as `says` has it."""
    return f"fact log {name} {begin} {base64.b64encode(text.encode()).decode()}"


class AnsweringNodes:
    """``says`` has what a node says of a verb, as lines "KIND THING TEXT"; ``silent`` why the
    answer ends before the verb; "" is before the first one. Looks that are no verbs are "interface", "address" and "ping".

    ``asked`` notes each call: "look" or the verb that changes, and the verbs of each node. With
    ``killed`` whoever calls that verb does not live to see the answer.
    """

    def __init__(
        self, unreachable: Mapping[str, str] | None = None, run: str = RUN, killed: str = ""
    ) -> None:
        self.unreachable, self._run, self._killed = dict(unreachable or {}), run, killed
        self.says: dict[tuple[str, str], list[str | Line]] = {}
        self.silent: dict[tuple[str, str], str] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.texts: list[Mapping[str, str]] = []
        self.closed = 0

    def look(self, texts: Mapping[str, str]) -> dict[str, Answer]:
        answers = self._answer("look", texts)
        for verbs in self.asked[-1][1].values():
            doing = set(verbs.partition(f" {node_call.DRY}")[0].split())
            assert doing <= _LOOKS or verbs in ("interface", "address", "ping"), verbs
        return answers

    def change(self, texts: Mapping[str, str], verb: str) -> dict[str, Answer]:
        answers = self._answer(verb, texts)
        for verbs in self.asked[-1][1].values():
            assert verbs.partition(f" {node_call.DRY}")[0].split()[-1] == verb, (verb, verbs)
        if verb == self._killed:
            raise KeyboardInterrupt
        return answers

    def close(self) -> None:
        self.closed += 1

    def _answer(self, how: str, texts: Mapping[str, str]) -> dict[str, Answer]:
        assert texts and not self.closed and not set(texts) & set(self.unreachable)
        said = {node: self._verbs(text) for node, text in texts.items()}
        self.asked.append((how, {node: " ".join(verbs) for node, verbs in said.items()}))
        self.texts.append(texts)
        return {node: self._one(node, verbs, texts[node]) for node, verbs in said.items()}

    def _verbs(self, text: str) -> list[str]:
        words = re.search(r"^set -- (.*)$", text, re.MULTILINE)
        if words is None:
            return ["interface" if "/proc/net/dev" in text else _pings(text)]
        head = values(text.partition("\nDRY=")[0])  # what follows may be long
        assert head["RUN"] == self._run and head["HOLDER"].startswith(HOLDER)
        return shlex.split(words[1])

    def _one(self, node: str, verbs: list[str], text: str) -> Answer:
        lines = [_line(one) for one in self.says.get((node, ""), ())]
        for verb in verbs:
            if verb == node_call.DRY:
                continue
            if error := self.silent.get((node, verb)):
                return Answer(tuple(lines), error)
            lines.append(Line("fact", "verb", verb))
            said = [_line(one) for one in self.says.get((node, verb), ())]
            lines += said or _link_lines(verb, text)
        return Answer(tuple(lines))


def _line(said: str | Line) -> Line:
    return said if isinstance(said, Line) else Line(*said.split(" ", 2))


def _pings(text: str) -> str:
    return "ping" if " -hccs_ping " in text else "address"


def link(number: int, text: str) -> Line:
    """What the command of a link has printed, as `says` has it."""
    return Line("fact", f"look {number}", f"0 {base64.b64encode(text.encode()).decode()}")


def _link_lines(verb: str, text: str) -> list[Line]:
    """What devices say of their addresses and links where nothing is wrong."""
    good = {"address": "vnic ipaddr:192.168.3.4", "ping": "0% packet loss"}
    numbers = re.findall(r"^one (\d+) ", text, re.MULTILINE) if verb in good else []
    return [link(int(number), good[verb]) for number in numbers]
