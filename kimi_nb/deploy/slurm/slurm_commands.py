"""SLURM's own commands and what they print.

    slurm = Slurm(env)
    number = slurm.submit(script, folder, "kimi_nb:run-1", after=12)
    slurm.queue()                     # (Row(13, "vllm_kimi", "PENDING", "Resources", ...), ...)

The upper half is pure: text in, values out. Accounting (sacct) is not asked: many clusters have
none. What has ended is in squeue and scontrol for MinJobAge, as a rule 300 seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.core.errors import KimiError

TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
_WAIT = 90.0  # seconds for one command; SLURM's own clients give up after some 60
_ROW = "%i|%T|%r|%N|%M|%Z|%j|%k"  # the comment last: it is anybody's text
# A job in one of these has ended; COMPLETING is one whose processes are still being ended.
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
        "SPECIAL_EXIT",
    }
)
# Why a pending job will never run, however long it waits.
NEVER = frozenset(
    {
        "AccountNotAllowed",
        "BadConstraints",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSNotAllowed",
    }
)
_PREFIX = re.compile(
    r"^(?:(?:sbatch|squeue|scancel|scontrol|sinfo): )?(?:slurm_load_\w+ )?"
    r"(?:(?:error|fatal): )?"
)
# What SLURM does to a job when its exit code says nothing: the signal that its processes got.
_SIGNALS = {
    "TIMEOUT": -15,
    "CANCELLED": -15,
    "PREEMPTED": -15,
    "DEADLINE": -15,
    "OUT_OF_MEMORY": -9,
    "NODE_FAIL": -9,
}
# Variables that the commands read in place of options: those of a shell inside another job, or
# of somebody's habits, would change what is asked and submitted.
_READ = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_")
_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CONF_SERVER")


class SlurmError(KimiError):
    """A command of SLURM that failed, in its own words."""


# What they print ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One job as squeue shows it. ``nodes`` is a host list ("dgx-[01-02]") and empty before it
    runs; ``elapsed`` as SLURM writes it (days-hours:minutes:seconds); ``folder`` is where it was
    submitted, and works."""

    id: int
    name: str
    state: str
    reason: str
    nodes: str
    elapsed: str
    folder: str
    comment: str


def rows(text: str) -> tuple[Row, ...]:
    """The jobs of ``squeue --format`` with `_ROW`; parts of job arrays, which are none of ours,
    are left out."""
    out = []
    for line in text.splitlines():
        parts = line.split("|", 7)
        if len(parts) == 8 and parts[0].isdecimal():
            number, state, reason, nodes, elapsed, folder, name, comment = (
                "" if part in ("(null)", "None", "N/A") else part for part in parts
            )
            out.append(Row(int(number), name, state, reason, nodes, elapsed, folder, comment))
    return tuple(out)


def record(text: str) -> dict[str, str]:
    """The fields of one line of ``scontrol -o show``; values may hold spaces and '='.

    >>> record("JobId=7 JobName=my job JobState=FAILED ExitCode=3:0")["JobName"]
    'my job'
    """
    found = re.split(r"(?:^|\s+)([A-Z][\w/:]*)=", text.strip())
    return {key: value.strip() for key, value in zip(found[1::2], found[2::2], strict=True)}


def exit_code(text: str, state: str) -> int:
    """The exit code of a job's ``ExitCode`` ("3:0", "0:15"): negative for a signal. Where SLURM
    ended the job and has no code of it, the signal that it sends."""
    code, _, number = text.partition(":")
    if number.isdecimal() and int(number):
        return -int(number)
    if code.isdecimal() and int(code):
        return int(code)
    return 0 if state == "COMPLETED" else _SIGNALS.get(state, 1)


def submitted(text: str) -> int:
    """The number of ``sbatch --parsable``: "12", or "12;cluster". Raises SlurmError."""
    last = text.strip().splitlines()[-1] if text.strip() else ""
    number = last.partition(";")[0]
    if not number.isdecimal():
        raise SlurmError(
            f"sbatch says {text.strip()[:200]!r} where the number of the job is expected."
        )
    return int(number)


def partitions(text: str) -> dict[str, str]:
    """Partition to whether it takes jobs ("up", "down", "drain", "inact"), of sinfo's
    ``%R|%a``."""
    return {
        name: state
        for name, _, state in (line.strip().partition("|") for line in text.splitlines())
        if name
    }


def words(text: str) -> str:
    """What a command complains of, on one line and without the command's name."""
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "nothing was said"


# (what sbatch says, key of the site file for a job with GPUs, and for one without)
_ADVICE = (
    (r"partition name|invalid partition", "slurm.partition", "slurm.cpu_partition"),
    (r"account", "slurm.account", "slurm.account"),
    (r"qos", "slurm.qos", "slurm.cpu_qos"),
    (r"time limit", "slurm.time (or slurm.partition)", "slurm.cpu_partition"),
    (
        r"node configuration|generic resource|gres|memory|cpu|more processors",
        "slurm.memory, slurm.cpus or slurm.partition (sinfo -o '%P %G %m %c' shows the GPUs, MB and "
        "cores of a node)",
        "slurm.cpu_partition (sinfo -o '%P %m %c' shows the MB and cores of a node)",
    ),
)


def advice(refusal: str, gpu: bool) -> str:
    """What to change after a refusal of sbatch."""
    for pattern, with_gpu, without in _ADVICE:
        if re.search(pattern, refusal, re.IGNORECASE):
            return f"Change {with_gpu if gpu else without} in the site file."
    return (
        "Change slurm.partition, slurm.account or slurm.qos in the site file, or ask the "
        "cluster's administrators with these words."
    )


# The commands -------------------------------------------------------------------------------


class Slurm:
    """The commands, with the variables of ``env``. Every call raises SlurmError where one fails
    or does not answer."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = {
            name: value
            for name, value in env.items()
            if name in _KEPT or not name.startswith(_READ)
        }

    def missing(self) -> tuple[str, ...]:
        """The commands that are not on this machine."""
        return tuple(
            name for name in TOOLS if shutil.which(name, path=self.env.get("PATH")) is None
        )

    def ping(self) -> str:
        """What ``scontrol ping`` says of the controllers; one that is up is enough."""
        text = self._run("scontrol", "ping")
        if not re.search(r"\bUP\b", text):
            raise SlurmError(words(text))
        return text.strip()

    def partitions(self) -> dict[str, str]:
        """Every partition and whether it takes jobs."""
        return partitions(self._run("sinfo", "--noheader", "--all", "--format=%R|%a"))

    def queue(self) -> tuple[Row, ...]:
        """This user's jobs: pending, running, and those that ended lately."""
        return rows(
            self._run("squeue", "--noheader", "--me", "--all", "--states=all", f"--format={_ROW}")
        )

    def record(self, number: int) -> dict[str, str]:
        """What scontrol knows of a job; empty where it has forgotten it."""
        try:
            return record(self._run("scontrol", "-o", "show", "job", str(number)))
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return {}
            raise

    def hosts(self, nodes: str) -> tuple[str, ...]:
        """The names of a host list, one by one."""
        return tuple(self._run("scontrol", "show", "hostnames", nodes).split())

    def address(self, host: str) -> str:
        """NodeAddr of a node: how SLURM itself reaches it."""
        return record(self._run("scontrol", "-o", "show", "node", host)).get("NodeAddr") or host

    def refusal(self, script: str) -> str:
        """Why ``sbatch --test-only`` does not take a script; empty where it does."""
        try:
            self._run("sbatch", "--test-only", given=script)
        except SlurmError as error:
            return str(error)
        return ""

    def submit(
        self,
        file: str,
        folder: Path,
        comment: str,
        after: int | None = None,
        kind: str = "afterok",
        keep: Sequence[int] = (),
    ) -> int:
        """Submit a script of ``folder``, which is where it runs and writes; its number. ``after``
        is the job that it waits for; ``keep`` are handles that sbatch holds while it runs."""
        dependency = (
            [] if after is None else [f"--dependency={kind}:{after}", "--kill-on-invalid-dep=yes"]
        )
        # Requeued, a serving job would come back on another node without anybody being told.
        return submitted(
            self._run(
                "sbatch",
                "--parsable",
                "--export=ALL",
                "--no-requeue",
                f"--comment={comment}",
                *dependency,
                file,
                folder=folder,
                keep=keep,
            )
        )

    def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel jobs; one that has ended meanwhile is no error."""
        self._run("scancel", "--quiet", *map(str, numbers))

    def _run(
        self, *argv: str, folder: Path | None = None, given: str = "", keep: Sequence[int] = ()
    ) -> str:
        try:
            done = subprocess.run(
                argv,
                input=given,
                capture_output=True,
                text=True,
                check=False,
                env=self.env,
                cwd=folder,
                timeout=_WAIT,
                pass_fds=keep,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{argv[0]} gave no answer in {_WAIT:.0f} s") from None
        except OSError as error:
            raise SlurmError(f"{argv[0]} cannot be run: {error.strerror}") from None
        if done.returncode:
            raise SlurmError(words(done.stderr or done.stdout))
        return done.stdout


def here() -> Slurm:
    """The commands of this machine."""
    return Slurm(os.environ)
