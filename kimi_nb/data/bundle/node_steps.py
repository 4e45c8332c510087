"""What pyinfra does on a node: a fact that looks, an operation that changes.

    pyinfra inventory.py up.py --dry       # what would change
    pyinfra inventory.py up.py             # do it; a second time nothing changes
"""

import getpass
import os
import socket
from pathlib import Path

import node_call
from pyinfra import host
from pyinfra.api import FactBase, OperationError, StringCommand, operation

TITLES = {
    "claim": "Take the node for this run", "prepare": "Settings of the host",
    "engine": "The engine's image", "weights": "The weights are complete",
    "push": "The scripts", "start": "Start the engines", "open": "Start the front door",
    "stop": "Stop what this run has started", "release": "Give the node back"}


def _user():
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())


class Script(str):
    """What bash reads on a node. It holds secrets, and pyinfra prints the arguments of facts and
    operations: in their place stands this. It ends with a newline, or pyinfra would print it into
    another text to add one."""

    def __new__(cls, text):
        return super().__new__(cls, text + ("" if text.endswith("\n") else "\n"))

    def __str__(self):
        return "(a script)"

    __repr__ = __str__


class Looked(FactBase):
    """What a verb would change: the lines that the node answers, the last with the exit code.

    A command that fails is no fact to pyinfra, and what it has found would be lost."""

    shell_executable = "bash"

    def command(self, verb):
        return f"({node_call.READ}); printf 'fact\\texit\\t%s\\n' $?; : {verb}"

    def process(self, output):
        return node_call.lines(output)


@operation()
def step(verb, text="", run=""):
    """One verb of node.sh. With a ``text`` it is run as it is; without one the node is looked at
    first, and left alone where nothing is to be done."""
    if not text:
        folder = Path(__file__).resolve().parent.parent / host.name
        secrets = {name: os.environ[name] for name in host.data.get("secrets", ())
                   if name in os.environ}
        more = {"run": run or f"by-hand-{_user()}", "secrets": secrets,
                "holder": f"{_user()}@{socket.gethostname()}"}
        look = Script(node_call.text(folder, [verb], dry=True, **more))
        seen = host.get_fact(Looked, verb, _stdin=look)
        for line in seen or ():
            host.log(f"{line.kind} {line.thing}: {line.text}")
        wrong = [f"{line.thing}: {line.text}" for line in seen or () if line.kind == "fail"]
        if wrong:
            raise OperationError("; ".join(wrong))
        if not any(line.kind == "change" for line in seen or ()):
            host.noop(f"{verb}: nothing to change")
            return
        text = Script(node_call.text(folder, [verb], **more))
    yield StringCommand(node_call.READ, _stdin=text, _shell_executable="bash")
