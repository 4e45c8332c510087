"""The documents' own request as a user would send it: client/chat.sh of the bundle, run by bash.

Usage::

    print(curl.run(plan, "http://127.77.0.1:8088", key))
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from kimi_nb import show
from kimi_nb.bundle import scripts
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.verify import answer_bodies, received
from kimi_nb.prove.verify.contract import FAIL, PASS, SKIP, Failed
from kimi_nb.service import reply_mark

SCRIPT = "client/chat.sh"
_TOOLS = ("bash", "curl")


@dataclass(frozen=True, repr=False)
class Curl(show.Shown):
    """A run of the script.

    Attributes:
        script: The text of the script.
        status: pass, fail or not applicable.
        got: What came back, or why the script did not run.
        mark: REHEARSAL if a stand-in answered.
    """

    script: str
    status: str
    got: str
    mark: str = ""

    @property
    def ok(self) -> bool:
        """Whether the script did not fail."""
        return self.status != FAIL

    def table(self) -> show.Table:
        """Return a table of the script and its result."""
        return show.Table(
            f"{reply_mark.title(self.mark)}{SCRIPT}",
            ("what", "is"),
            (
                ("status", self.status),
                ("got", show.visible(self.got, lines=False)),
                *(
                    ("script" if not at else "", line)
                    for at, line in enumerate(self.script.rstrip().splitlines())
                ),
            ),
        )


def script(plan: Plan, url: str) -> str:
    """Return client/chat.sh of a plan, changed only in the service's address."""
    text = scripts.files(plan)[SCRIPT]
    return text.replace(f"{plan.url}/v1/", f"{url}/v1/") if url else text


def run(plan: Plan, url: str, key: str = "", seconds: float = 300.0) -> Curl:
    """Run the script against a service, or with ``url`` "" only show it."""
    text = script(plan, url)
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if not url or missing:
        return Curl(
            text,
            SKIP,
            f"there is no {' and no '.join(missing)} on this machine"
            if missing
            else "nothing is served with action plan",
        )
    env = {**os.environ, "NO_PROXY": "*", "no_proxy": "*"}
    if plan.secrets:
        env[plan.secrets["VLLM_API_KEY"]] = key
    try:
        done = subprocess.run(
            ["bash", "-s"],
            input=text,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Curl(text, FAIL, f"no answer in {seconds:g} s")
    if done.returncode:
        said = " ".join([*done.stderr.split("\n")[-2:], done.stdout]).strip()
        return Curl(text, FAIL, _clean(f"exit code {done.returncode}: {received.short(said)}", key))
    try:
        answer = answer_bodies.parsed(done.stdout)
    except Failed as error:
        return Curl(text, FAIL, _clean(error.got, key))
    if not answer.answered:
        return Curl(text, FAIL, f"200 without words: {answer}")
    return Curl(text, PASS, _clean(str(answer), key), reply_mark.of("", done.stdout))


def _clean(text: str, key: str) -> str:
    return text.replace(key, "(the key)") if key else text
