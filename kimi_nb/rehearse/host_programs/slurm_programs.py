"""Stand in for the programs that a SLURM job calls to find its nodes and to start on each.

A rehearsal starts a job's script on the first node, as SLURM does, with the variables of `job`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.host_programs import image_programs
from kimi_nb.rehearse.simulated_site import NODE
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

_TASKS = Path(__file__).with_name("srun_tasks.py")
_OPTIONS = (
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--cpus-per-task",
    "--kill-on-bad-exit",
    "--wait",
    "--output",
    "--error",
    "--container-image",
    "--container-mounts",
)
_SWITCHES = (
    "--overlap",
    "--no-container-entrypoint",
    "--no-container-mount-home",
    "--container-remap-root",
    "--container-writable",
)


def job(nodes: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the variables that SLURM gives a job on these nodes, submitted in ``folder``.

    >>> job(["dgx-01", "dgx-02"], Path("jobs"))["SLURM_JOB_NODELIST"]
    'dgx-01,dgx-02'
    """
    names = list(nodes)
    return {
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": ",".join(names),
        "SLURM_NNODES": str(len(names)),
        "SLURM_SUBMIT_DIR": str(folder),
    }


def srun(call: Call) -> int:
    """Run ``srun``: become what starts the command on each node of the job.

    What the tasks say goes where a rehearsal keeps the log of their node, not where --output says.
    """
    options, command = _parsed(call.words)
    nodes = call.env.get("SLURM_JOB_NODELIST", "").split(",")
    asked = options.get("--nodes", str(len(nodes)))
    if "SLURM_JOB_ID" not in call.env:
        raise Refused(f"{MARK}: srun outside of a job is not part of a rehearsal", 1)
    if asked == "1":
        told = options.get("-w", nodes[0])
        if told not in nodes:
            raise Refused(f"srun: error: Requested nodes are not in the allocation: {told}", 1)
        done = image_programs.in_step(call, options, command)
        if done is not None:
            return done
        raise Replace(command, {**call.env, NODE: told})
    if asked != str(len(nodes)):
        raise Refused(
            f"srun: error: Unable to create step for job 1: asked for {asked} nodes, the job has "
            f"{len(nodes)}",
            1,
        )
    call.say(f"starts a task on {', '.join(nodes)}")
    env = dict(call.env)
    if "--container-image" in options:
        folders = image_programs.look(call, options, command)
        env = image_programs.environment(call, options["--container-image"], folders)
    until = "any" if "--wait" in options else "all"
    words = (sys.executable, "-I", "-S", str(_TASKS), str(call.root), NODE, ",".join(nodes), until)
    raise Replace((*words, *command), env)


def _parsed(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the options of srun and the command behind them. Raises Refused."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return options, words[at:]
        name, equals, value = word.partition("=")
        if word == "-w":
            options[word], at = words[at + 1], at + 1
        elif word in _SWITCHES:
            options[word] = ""
        elif name in _OPTIONS and equals:
            options[name] = value
        else:
            raise Refused(f"{MARK}: srun {word} is not part of a rehearsal", 1)
        at += 1
    raise Refused("srun: fatal: No command given to execute.", 1)


def scontrol(call: Call) -> int:
    """Run ``scontrol show hostnames LIST`` for a list without brackets."""
    if call.words[:2] != ("show", "hostnames") or len(call.words) != 3:
        raise Refused(f"{MARK}: scontrol {' '.join(call.words)} is not part of a rehearsal", 1)
    print("\n".join(call.words[2].split(",")))
    return 0


def getent(call: Call) -> int:
    """Run ``getent ahostsv4 NODE`` for a simulated node; the real program answers the rest."""
    name = call.words[-1] if call.words else ""
    if call.words[:1] == ("ahostsv4",) and name in call.site.nodes:
        print(f"{call.site.nodes[name]:<15} STREAM {name}")
        return 0
    real = call.real()
    if real is None:
        raise Refused("bash: line 1: getent: command not found", 127)
    raise Replace((real, *call.words), call.env)


TOOLS: dict[str, Callable[[Call], int]] = {"srun": srun, "scontrol": scontrol, "getent": getent}
