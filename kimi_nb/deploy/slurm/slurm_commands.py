"""Run SLURM's commands and parse what they print.

Example::

    slurm = Slurm(env)
    number = slurm.submit("4_baseline.sbatch", folder, "kimi_nb:run-1", after=12)
    slurm.queue()  # (Row(13, "vllm_kimi", "PENDING", "Resources", ...), ...)

The first half is pure: text in, values out. Accounting (sacct) is not used, because many clusters
have none. squeue and scontrol show ended jobs for MinJobAge, usually 300 seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.core import numbers, secret_forms
from kimi_nb.core.errors import KimiError
from kimi_nb.diagnose import remedies

_HUBS = ("HF_", "HUGGING", "MODELSCOPE_")
TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
_WAIT = 90.0  # seconds for one command; SLURM's own clients give up after some 60
_ROW = "%i|%T|%r|%N|%M|%Z|%j|%k"  # the comment comes last, because it may contain any text
# The states of jobs that have ended; processes of a COMPLETING job are still being ended.
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
# Reasons for which a pending job will never run, however long it waits.
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
# What a command says when its controller does not answer.
_UNREACHED = re.compile(
    r"unable to contact slurm controller|in standby mode|socket timed out|zero bytes were trans",
    re.IGNORECASE,
)
# The signal that SLURM sends to the processes of a job, where its exit code is missing.
_SIGNALS = {
    "TIMEOUT": -15,
    "CANCELLED": -15,
    "PREEMPTED": -15,
    "DEADLINE": -15,
    "OUT_OF_MEMORY": -9,
    "NODE_FAIL": -9,
}
# Variables that the commands read in place of options. Those of a shell inside another job, or
# of the user's profile, would change queries and submissions.
_READ = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_")
_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CONF_SERVER")


class SlurmError(KimiError):
    """A SLURM command failed; the text is its own message."""


class SlurmSilent(SlurmError):
    """SLURM did not answer: what was asked may be allowed, or done, all the same."""


# Parsing the output of the commands ---------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One job as squeue shows it.

    Attributes:
        nodes: A host list ("dgx-[01-02]"); empty before the job runs.
        elapsed: The time it has run, as SLURM writes it (days-hours:minutes:seconds).
        folder: The folder from which it was submitted and in which it works.
    """

    id: int
    name: str
    state: str
    reason: str
    nodes: str
    elapsed: str
    folder: str
    comment: str


def rows(text: str) -> tuple[Row, ...]:
    """Return the jobs in the output of ``squeue --format`` with `_ROW`.

    Elements of job arrays are left out, because this project submits none.
    """
    out = []
    for line in text.splitlines():
        parts = line.split("|", 7)
        job = numbers.whole(parts[0])
        if len(parts) == 8 and job is not None:
            _, state, reason, nodes, elapsed, folder, name, comment = (
                "" if part in ("(null)", "None", "N/A") else part for part in parts
            )
            out.append(Row(job, name, state, reason, nodes, elapsed, folder, comment))
    return tuple(out)


def record(text: str) -> dict[str, str]:
    """Return the fields of one line of ``scontrol -o show``; values may hold spaces and '='.

    >>> record("JobId=7 JobName=my job JobState=FAILED ExitCode=3:0")["JobName"]
    'my job'
    """
    found = re.split(r"(?<!\S)([A-Z][\w/:]*)=", text)
    return {key: value.strip() for key, value in zip(found[1::2], found[2::2], strict=True)}


def exit_code(text: str, state: str) -> int:
    """Return the exit code of a job from its ``ExitCode`` field; negative for a signal.

    If SLURM ended the job and reports no code, that is the signal it sends.

    >>> exit_code("3:0", "FAILED"), exit_code("0:15", "FAILED"), exit_code("", "TIMEOUT")
    (3, -15, -15)
    """
    code, _, number = text.partition(":")
    if signal := numbers.whole(number):
        return -signal
    if said := numbers.whole(code):
        return said
    return 0 if state == "COMPLETED" else _SIGNALS.get(state, 1)


def submitted(text: str) -> int:
    """Return the job number in the output of ``sbatch --parsable``. Raises SlurmError.

    >>> submitted("12"), submitted("13;cluster")
    (12, 13)
    """
    last = text.strip().splitlines()[-1] if text.strip() else ""
    number = numbers.whole(last.partition(";")[0])
    if number is None:
        raise SlurmError(
            f"sbatch says {text.strip()[:200]!r} where the number of the job is expected."
        )
    return number


def partitions(text: str) -> dict[str, str]:
    """Return whether each partition takes jobs, from sinfo's ``%R|%a``.

    The values are "up", "down", "drain" or "inact".

    >>> partitions("gpu|up")
    {'gpu': 'up'}
    """
    return {
        name: state
        for name, _, state in (line.strip().partition("|") for line in text.splitlines())
        if name
    }


def words(text: str) -> str:
    """Return the error message of a command on one line, without the command's name.

    >>> words("sbatch: error: invalid partition specified: gpux")
    'invalid partition specified: gpux'
    """
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "nothing was said"


# (what sbatch says, key of the site file for a job with GPUs, and for a job without)
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
    """Return what to change after a refusal of sbatch."""
    for pattern, with_gpu, without in _ADVICE:
        if re.search(pattern, refusal, re.IGNORECASE):
            return remedies.of("slurm/refused", key=with_gpu if gpu else without)
    return remedies.of("slurm/refused-otherwise")


def exported(env: Mapping[str, str], script: str) -> dict[str, str]:
    """Return the variables that a job gets: all but the secrets that are none of its business.

    SLURM keeps them with the job, where administrators and every program of the job see them. The
    tokens of the hubs stay, as the hubs' tools look for them by themselves.

    >>> exported({"HOME": "/h", "DB_PASSWORD": "x", "KIMI_KEY": "y"}, '"${KIMI_KEY:?set it}"')
    {'HOME': '/h', 'KIMI_KEY': 'y'}
    """
    named = set(re.findall(r"\w+", script))
    return {
        name: value
        for name, value in env.items()
        if name in named or name.startswith(_HUBS) or not secret_forms.is_secret_variable(name)
    }


# The commands -------------------------------------------------------------------------------


class Slurm:
    """SLURM's commands, run with the environment ``env``.

    Every method raises SlurmError if its command fails, as `SlurmSilent` if it does not answer.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = {
            name: value
            for name, value in env.items()
            if name in _KEPT or not name.startswith(_READ)
        }

    def missing(self) -> tuple[str, ...]:
        """Return the commands that this machine does not have."""
        return tuple(
            name for name in TOOLS if shutil.which(name, path=self.env.get("PATH")) is None
        )

    def ping(self) -> str:
        """Return what ``scontrol ping`` says of the controllers; one that is up is enough."""
        text = self._run("scontrol", "ping")
        if not re.search(r"\bUP\b", text):
            raise SlurmError(words(text))
        return text.strip()

    def partitions(self) -> dict[str, str]:
        """Return every partition and whether it takes jobs."""
        return partitions(self._run("sinfo", "--noheader", "--all", "--format=%R|%a"))

    def queue(self) -> tuple[Row, ...]:
        """Return this user's jobs: pending, running, and recently ended."""
        return rows(
            self._run("squeue", "--noheader", "--me", "--all", "--states=all", f"--format={_ROW}")
        )

    def record(self, number: int) -> dict[str, str]:
        """Return what scontrol knows of a job; {} if it has forgotten it."""
        try:
            return record(self._run("scontrol", "-o", "show", "job", str(number)))
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return {}
            raise

    def hosts(self, nodes: str) -> tuple[str, ...]:
        """Return the names in a host list, one by one; raise SlurmError if there is none."""
        names = tuple(self._run("scontrol", "show", "hostnames", nodes).split())
        if not names:
            raise SlurmError(f"scontrol show hostnames {nodes!r}: no node is named")
        return names

    def address(self, host: str) -> str:
        """Return the NodeAddr of a node, the address at which SLURM itself reaches it."""
        return record(self._run("scontrol", "-o", "show", "node", host)).get("NodeAddr") or host

    def refusal(self, script: str) -> str:
        """Return why ``sbatch --test-only`` refuses a script; "" if it does not."""
        try:
            self._run("sbatch", "--test-only", given=script)
        except SlurmSilent:
            raise
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
        """Submit a script of ``folder``, in which it also runs and writes; return the job's number.

        ``after`` is the job that it waits for; ``keep`` are file descriptors that sbatch holds
        while it runs. The job gets the variables of this process, but no secret that the script
        does not name.
        """
        script = (folder / file).read_text(encoding="utf-8", errors="replace")
        dependency = (
            [] if after is None else [f"--dependency={kind}:{after}", "--kill-on-invalid-dep=yes"]
        )
        # A requeued serving job would silently move to another node.
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
                env=exported(self.env, script),
            )
        )

    def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel jobs; one that has ended meanwhile is no error."""
        self._run("scancel", "--quiet", *map(str, numbers))

    def _run(
        self,
        *argv: str,
        folder: Path | None = None,
        given: str = "",
        keep: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> str:
        try:
            done = subprocess.run(
                argv,
                input=given,
                capture_output=True,
                text=True,
                check=False,
                env=self.env if env is None else env,
                cwd=folder,
                timeout=_WAIT,
                pass_fds=keep,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise SlurmSilent(f"{argv[0]} gave no answer in {_WAIT:.0f} s") from None
        except OSError as error:
            raise SlurmSilent(f"{argv[0]} cannot be run: {error.strerror}") from None
        if done.returncode:
            said = words(done.stderr or done.stdout)
            raise SlurmSilent(said) if _UNREACHED.search(said) else SlurmError(said)
        return done.stdout


def here() -> Slurm:
    """Return the commands of this machine."""
    return Slurm(os.environ)
