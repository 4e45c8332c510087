"""Recognise commands that start another one elsewhere, and those that end what was started.

>>> from kimi_nb.check.reading import carriers
>>> carriers.remote(["ssh", "-p", "22", "node1", "vllm serve m"])
'node1'
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from kimi_nb.check.reading.script import Command, Word

# Programs that take a script as one word and run it elsewhere.
_CARRIERS = ("ssh", "tmux", "screen", "pdsh", "setsid", "sbatch", "parallel-ssh", "pssh", "clush")
_COMMAND = re.compile(r"(\w+=\S+ +)*vllm serve +\S")
_SSH_VALUES = set("BbcDEeFIiJLlmOoPpQRSWw")
_ENDS = ("kill", "pkill", "killall", "wait", "cleanup")


def remote(argv: Sequence[str]) -> str:
    """Return the host on which ssh runs the rest of a command, "" for other commands."""
    if not argv or os.path.basename(argv[0]) != "ssh":
        return ""
    rest = list(argv[1:])
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0][1:2] in _SSH_VALUES and len(rest[0]) == 2 else 1]
    return rest[0] if len(rest) > 1 and "$" not in rest[0] else ""


def step_node(words: Sequence[Word]) -> str:
    """Return the node on which srun puts a step (-w NODE, --relative=N), "" if it names none."""
    texts = [word.text for word in words]
    if not any(os.path.basename(text) == "srun" for text in texts):
        return ""
    for index, text in enumerate(texts):
        if text in ("-w", "--nodelist") and index + 1 < len(texts):
            return texts[index + 1]
        if text.startswith("--nodelist="):
            return text.partition("=")[2]
        if text.startswith("--relative="):  # the node of the job with this number
            return f"node {text.partition('=')[2]}"
    return ""


def ends(argv: Sequence[str]) -> bool:
    """Return whether a command ends what was started before, or waits for its end."""
    name = os.path.basename(argv[0])
    if name in ("xargs", "sudo", "timeout"):  # pgrep python3 | xargs -r kill -9
        return any(os.path.basename(word) in _ENDS[:3] for word in argv[1:])
    if name in ("docker", "podman"):
        return argv[1:2] in (("rm",), ("stop",), ("kill",))
    return name in _ENDS


def inner(command: Command) -> tuple[str, int] | None:
    """Return the script that a command runs, and its line; return None for other commands.

    It is the script of ``bash -c SCRIPT``, or the one that ssh, tmux, sbatch and the like take as
    one word.
    """
    words = command.words
    for index, word in enumerate(words[:-1]):
        name = os.path.basename(word.text)
        if (
            name in ("bash", "sh")
            and re.fullmatch(r"-[a-z]*c", words[index + 1].text)
            and index + 2 < len(words)
        ):
            rest = [word for word in words[index + 2 : index + 4] if word.text != "--"]
            return (rest[0].text, rest[0].line) if rest else None
    if words and os.path.basename(words[0].text) in ("bash", "sh", "source", "."):
        # A script that is handed the command as a word of its own.
        for word in words[2:]:
            if _COMMAND.match(word.text):
                return word.text, word.line
    if words and os.path.basename(words[0].text) in _CARRIERS:
        for word in reversed(words[1:]):
            text = word.text.removeprefix("--wrap=")
            if "vllm" in text and " " in text:
                return text, word.line
    return None
