"""A kubectl that answers the commands of a table, and no other one.

    kubectl = Answers({"get configmap kimi-run -o json": {"data": {}}})

An answer is what is printed, an object that is printed as JSON, an error, or a list of these for
one call after the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kimi_nb.deploy.kubernetes.kubectl import Kubectl, KubectlError


class Answers(Kubectl):
    """The commands are kept in ``asked``, what was written to each in ``given``."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__("a3-cluster", "kimi")
        self.answers, self.asked, self.given = dict(answers), list[str](), list[str]()

    def run(
        self, *words: str, stdin: str = "", seconds: float = 60.0, codes: Sequence[int] = (0,)
    ) -> str:
        """Return the answer; KeyError for a command that is not in the table."""
        command = " ".join(words)
        self.asked.append(command)
        self.given.append(stdin)
        answer = self.answers[command]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, KubectlError):
            raise answer
        return answer if isinstance(answer, str) else json.dumps(answer)


def error(reason: str, text: str = "what kubectl says") -> KubectlError:
    """Return the error of a command: the API server's word, such as NotFound, and a text."""
    return KubectlError(text, reason)
