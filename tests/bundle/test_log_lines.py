"""What a bundle's own programs write into a log on a node: each line has level, time and speaker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from fnmatch import fnmatch

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.core import shell
from kimi_nb.diagnose import line_grammar, log_lines
from kimi_nb.plan import build

# Their output is the log of a node, or of a rank; what else a bundle holds, a person calls.
INTO_LOGS = (
    "*/serve.sh",
    "*/launch.sh",
    "*/run_dp_template.sh",
    "*/docker_run.sh",
    "*/proxy.sh",
    "jobs/*.sbatch",
)
PLANS = (
    ("k2.5", "a3", "pd", {}),
    ("k2.5", "a3", "single", {}),
    ("k2.5", "a2", "dp", {}),
    ("k2.5", "h200", "single", {"variant": "slurm"}),
    ("k2.5", "h200", "single", {"variant": "slurm", "pairs": ("nodes=2", "tp=16")}),
    ("k2.5", "h200", "single", {"scenario": "replicas", "variant": "slurm"}),
)
LIBRARY = "is not here: the engine runs without it, a little slower"


def into_logs(plan) -> dict[str, str]:
    every = scripts.files(plan).items()
    return {name: text for name, text in every if any(fnmatch(name, one) for one in INTO_LOGS)}


def said_by(text: str, *words: str, **variables: str) -> str:
    """What a script writes."""
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-s", "--", *words],
        input=text,
        env={"PATH": os.defpath, "TZ": "Asia/Shanghai", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("of", PLANS, ids=lambda of: "-".join((*of[:3], *of[3])))
def test_no_script_that_writes_into_a_log_does_so_without_a_time(of):
    model, hardware, layout, more = of
    found = into_logs(build.plan(model, hardware, layout, **more))
    assert found
    for name, text in found.items():
        bare = re.sub(r"(?m)^tell\(\) \{.*\}$", "", text)
        assert not re.search(r"(?<!_)\b(?:echo|printf)\b", bare), name
        told = re.findall(r"\btell ([A-Z]+)", bare)
        assert set(told) <= {"INFO", "WARNING", "ERROR"}
        assert ("tell() {" in text) == (bool(told) or name.startswith("jobs/")), name


@pytest.mark.parametrize(
    ("who", "rank", "node"),
    [("rank $rank", 21, ""), ("node ${SLURMD_NODENAME:-x}", None, "dgx-07")],
)
def test_the_doctor_reads_what_a_script_tells(who, rank, node):
    text = f"rank=$4\n{shell.teller(who)}\ntell WARNING 'no room: /dev/shm' >&2\n"
    line = said_by(text, "0", "7100", "32", "21", SLURMD_NODENAME="dgx-07").rstrip("\n")
    said = line_grammar.of(line)
    assert (said.rank, said.node, said.level) == (rank, node, "WARNING")
    assert said.source == "bash:3" and said.text.endswith("no room: /dev/shm")
    assert shell.message(line) == "no room: /dev/shm"
    # The local time, as the engines have it: a day has 24 hours of time zones.
    now = time.time()
    zone = [time.strftime("%m-%d %H:%M", time.gmtime(now + 8 * 3600 - back)) for back in (0, 60)]
    assert log_lines.stamp(line)[:11] in zone


def test_a_rank_says_that_a_library_is_missing():
    plan = build.plan("k2.5", "a3", "pd")
    node = plan.engines[-1].node
    script = into_logs(plan)[f"{node}/run_dp_template.sh"].replace("libjemalloc", "libnowhere")
    text = script.partition("exec vllm")[0]
    lines = said_by(text, "5", "7105", "32", "21", "192.0.2.13", "1", "1").splitlines()
    (line,) = [one for one in lines if LIBRARY in one]
    said = line_grammar.of(line)
    assert (said.rank, said.level) == (21, "WARNING") and log_lines.stamp(line)
