"""REHEARSAL: start a command on every node of a job, and end all with the first that fails.

    python srun_tasks.py FOLDER VARIABLE NODE,NODE all|any COMMAND...

VARIABLE tells a stand-in its node. With `any` all end with the first that ends at all, as with
srun's --wait. The first task has the output of the job; what the others say
goes into the log of their node. The exit code is that of the first task that fails.
"""

import os
import signal
import subprocess
import sys
import time

_KILL = 5.0  # seconds after which a task that was asked to end is killed


def main(folder: str, variable: str, nodes: list[str], until: str, command: list[str]) -> int:
    """Start the tasks, wait for them, and return the exit code."""
    tasks: list[subprocess.Popen[bytes]] = []
    for number, node in enumerate(nodes):
        own = {variable: node, "SLURMD_NODENAME": node, "HOSTNAME": node}
        numbers = dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID"), str(number))
        tasks.append(_start({**os.environ, **own, **numbers}, command, folder, node, number))
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: sys.exit(128 + number))
    try:
        while None in (codes := [task.poll() for task in tasks]) and not any(codes):
            if until == "any" and any(code is not None for code in codes):
                break
            time.sleep(0.05)
        failed = next((code for code in codes if code), 0)
        return failed if failed >= 0 else 128 - failed
    finally:
        _end(tasks)


def _start(
    env: dict[str, str], command: list[str], folder: str, node: str, number: int
) -> "subprocess.Popen[bytes]":
    if number == 0:
        return subprocess.Popen(command, env=env)
    path = os.path.join(folder, "logs", node, "engines.log")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def _end(tasks: "list[subprocess.Popen[bytes]]") -> None:
    for task in tasks:
        if task.poll() is None:
            task.terminate()
    end = time.monotonic() + _KILL
    for task in tasks:
        try:
            task.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            task.kill()
            task.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3].split(","), sys.argv[4], sys.argv[5:]))
