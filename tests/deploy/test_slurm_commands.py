"""SLURM's commands as they are called, by programs that keep what they were given; no SLURM."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from kimi_nb.deploy.slurm import slurm_commands
from kimi_nb.deploy.slurm.slurm_commands import Row, Slurm, SlurmError, SlurmSilent

# Keeps its words, its variables, its folder and its input, and says what a file beside it holds.
PROGRAM = """#!/bin/bash
base=$(dirname "$0")
printf '%s\\n' "${0##*/}" "$@" > "$base/argv"
env > "$base/env"
pwd > "$base/cwd"
cat > "$base/stdin"
[ -f "$base/err" ] && cat "$base/err" >&2
[ -f "$base/out" ] && cat "$base/out"
exit "$(cat "$base/code" 2> /dev/null || echo 0)"
"""


@pytest.fixture
def programs(tmp_path):
    """A folder of SLURM's commands; its files out, err and code say what they answer."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in slurm_commands.TOOLS:
        path = folder / name
        path.write_text(PROGRAM)
        path.chmod(0o755)
    return folder


@pytest.fixture
def slurm(programs):
    # subprocess looks for a program on the PATH of the environment that it passes on.
    return Slurm({"PATH": f"{programs}:{os.environ['PATH']}", "HOME": "/h"})


def asked(programs) -> list[str]:
    return (programs / "argv").read_text().splitlines()


def variables(programs) -> dict[str, str]:
    lines = (programs / "env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def says(programs, text: str, code: int = 0, err: str = "") -> None:
    (programs / "out").write_text(text)
    (programs / "code").write_text(str(code))
    (programs / "err").write_text(err)


# What is asked --------------------------------------------------------------------------


def test_the_queue_is_that_of_this_user_with_all_states(slurm, programs):
    says(
        programs,
        "7|RUNNING|None|dgx-[01-02]|1:02|/work|vllm|kimi_nb:run-1|x\n"
        "8|PENDING|Resources||N/A|/work|next|(null)\n"
        "9_1|PENDING|N/A||0:00|/work|array|\nno row\n",
    )
    assert slurm.queue() == (
        Row(7, "vllm", "RUNNING", "", "dgx-[01-02]", "1:02", "/work", "kimi_nb:run-1|x"),
        Row(8, "next", "PENDING", "Resources", "", "", "/work", ""),
    )
    assert asked(programs) == [
        "squeue", "--noheader", "--me", "--all", "--states=all", "--format=%i|%T|%r|%N|%M|%Z|%j|%k",
    ]  # fmt: skip


def test_partitions(slurm, programs):
    says(programs, "gpu|up\n common|drain \n\n|up\nodd\n")
    assert slurm.partitions() == {"gpu": "up", "common": "drain", "odd": ""}
    assert asked(programs) == ["sinfo", "--noheader", "--all", "--format=%R|%a"]


@pytest.mark.parametrize(
    ("text", "up"),
    [
        ("Slurmctld(primary) at head is UP\n", True),
        ("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n", True),
        ("Slurmctld(primary) at head is DOWN\n", False),
        ("Slurmctld(primary) at UPPER is DOWN\n", False),
        ("", False),
    ],
)
def test_one_controller_that_is_up_is_enough(text, up, slurm, programs):
    says(programs, text)
    if up:
        assert slurm.ping() == text.strip()
    else:
        with pytest.raises(SlurmError, match=re.escape(text.strip()) or "nothing was said"):
            slurm.ping()
    assert asked(programs) == ["scontrol", "ping"]


def test_a_job_that_is_forgotten_is_no_error_and_another_one_is(slurm, programs):
    says(programs, "JobId=7 JobName=my job a=b JobState=FAILED ExitCode=3:0 Comment=x\n")
    assert slurm.record(7) == {
        "JobId": "7",
        "JobName": "my job a=b",
        "JobState": "FAILED",
        "ExitCode": "3:0",
        "Comment": "x",
    }
    assert asked(programs) == ["scontrol", "-o", "show", "job", "7"]
    says(programs, "", 1, "slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.record(7) == {}
    says(programs, "", 1, "slurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(SlurmError, match="^Unable to contact slurm controller$"):
        slurm.record(7)


def test_hosts_and_addresses(slurm, programs):
    says(programs, "dgx-01\ndgx-02\n")
    assert slurm.hosts("dgx-[01-02]") == ("dgx-01", "dgx-02")
    assert asked(programs) == ["scontrol", "show", "hostnames", "dgx-[01-02]"]
    says(programs, "NodeName=dgx-01 NodeAddr=10.0.0.1 CPUTot=4\n")
    assert slurm.address("dgx-01") == "10.0.0.1"
    assert asked(programs) == ["scontrol", "-o", "show", "node", "dgx-01"]
    for text in ("NodeName=dgx-01 CPUTot=4\n", "NodeName=dgx-01 NodeAddr= CPUTot=4\n"):
        says(programs, text)
        assert slurm.address("dgx-01") == "dgx-01"


def test_a_value_of_blanks_is_read_in_one_pass():
    value = "/w" + "\t" * 300_000 + "/a b.err"
    assert slurm_commands.record(f"JobId=1\t StdErr={value} \n") == {"JobId": "1", "StdErr": value}


def test_a_job_that_runs_on_no_host_is_told(slurm, programs):
    says(programs, " \n")
    with pytest.raises(SlurmError) as told:
        slurm.hosts("(null)")
    assert str(told.value) == "scontrol show hostnames '(null)': no node is named"


def test_a_script_is_tried_without_a_job(slurm, programs):
    says(programs, "sbatch: Job 1 to start at 2026-11-01T10:00:00\n")
    assert slurm.refusal("#!/bin/bash\n#SBATCH -p gpu\n") == ""
    assert asked(programs) == ["sbatch", "--test-only"]
    assert (programs / "stdin").read_text() == "#!/bin/bash\n#SBATCH -p gpu\n"
    says(programs, "", 1, "sbatch: error: invalid partition specified: gpux\n")
    assert slurm.refusal("") == "invalid partition specified: gpux"


def test_jobs_are_cancelled_together(slurm, programs):
    slurm.cancel([7, 9])
    assert asked(programs) == ["scancel", "--quiet", "7", "9"]


SCRIPT = '#!/bin/bash\nexport KEY="${KIMI_KEY:?set it}" # \xff\n'


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, []),
        ({"after": 12}, ["--dependency=afterok:12", "--kill-on-invalid-dep=yes"]),
        ({"after": 0}, ["--dependency=afterok:0", "--kill-on-invalid-dep=yes"]),
        (
            {"after": 12, "kind": "afterany"},
            ["--dependency=afterany:12", "--kill-on-invalid-dep=yes"],
        ),
    ],
)
def test_a_job_is_submitted_in_its_folder_and_waits_for_another(
    more, words, slurm, programs, tmp_path
):
    (tmp_path / "4_serve.sbatch").write_text(SCRIPT, encoding="latin-1")
    says(programs, "13;cluster\n")
    assert slurm.submit("4_serve.sbatch", tmp_path, "kimi_nb:run-1", **more) == 13
    assert asked(programs) == [
        "sbatch", "--parsable", "--export=ALL", "--no-requeue", "--comment=kimi_nb:run-1",
        *words, "4_serve.sbatch",
    ]  # fmt: skip
    assert (programs / "cwd").read_text().strip() == str(tmp_path)
    assert (programs / "stdin").read_text() == ""


def test_a_job_gets_no_secret_that_it_does_not_name(programs, tmp_path):
    """Nor what would stand for an option of sbatch; the tokens of the hubs stay."""
    (tmp_path / "a.sbatch").write_text(SCRIPT, encoding="latin-1")
    says(programs, "1\n")
    kept = {"HOME": "/h", "KIMI_KEY": "y", "HF_TOKEN": "t", "MODELSCOPE_API_TOKEN": "m"}
    kept |= {"HUGGING_FACE_HUB_TOKEN": "u", "SLURM_CONF": "c", "SLURM_JWT": "j"}
    lost = {"DB_PASSWORD": "x", "OPENAI_API_KEY": "z", "SBATCH_PARTITION": "p", "SLURM_JOB_ID": "3"}
    lost |= {"SQUEUE_FORMAT": "f", "SINFO_FORMAT": "f", "SCANCEL_USER": "u"}
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    Slurm(path | kept | lost).submit("a.sbatch", tmp_path, "c")
    given = variables(programs)
    # With SLURM_JWT sbatch itself logs in.
    assert {name: given.get(name) for name in kept} == kept
    assert not lost.keys() & given.keys()


def test_a_query_is_asked_with_what_slurm_itself_reads(programs):
    kept = {"SLURM_CONF": "c", "SLURM_JWT": "j", "SLURM_CONF_SERVER": "s", "DB_PASSWORD": "x"}
    lost = {"SQUEUE_FORMAT": "f", "SLURM_CLUSTERS": "other"}
    slurm = Slurm({"PATH": f"{programs}:{os.environ['PATH']}"} | kept | lost)
    slurm.queue()
    given = variables(programs)
    assert {name: given.get(name) for name in kept} == kept and not lost.keys() & given.keys()


def test_a_script_is_read_as_utf8_whatever_the_language_of_the_shell(
    slurm, programs, tmp_path, monkeypatch
):
    (tmp_path / "a.sbatch").write_text("")
    says(programs, "1\n")
    coded, read = [], Path.read_text

    def noted(path, *given, **more):
        coded.append(str(more.get("encoding")).lower())
        return read(path, *given, **more)

    monkeypatch.setattr(Path, "read_text", noted)
    slurm.submit("a.sbatch", tmp_path, "c")
    assert coded == ["utf-8"]


def test_what_sbatch_holds_while_it_runs(slurm, programs, tmp_path):
    (tmp_path / "a.sbatch").write_text("")
    (programs / "sbatch").write_text('#!/bin/bash\necho held >&"$KEPT"\necho 5\n')
    reader, writer = os.pipe()
    try:
        slurm.env["KEPT"] = str(writer)
        assert slurm.submit("a.sbatch", tmp_path, "c", keep=[writer]) == 5
        assert os.read(reader, 99) == b"held\n"
    finally:
        os.close(reader)
        os.close(writer)


# What goes wrong ------------------------------------------------------------------------


def test_commands_that_are_not_there(programs, tmp_path):
    assert Slurm({"PATH": str(tmp_path / "none")}).missing() == slurm_commands.TOOLS
    (programs / "scancel").unlink()
    assert Slurm({"PATH": str(programs)}).missing() == ("scancel",)
    with pytest.raises(SlurmError, match="^squeue cannot be run: No such file or directory$"):
        Slurm({"PATH": str(tmp_path / "none")}).queue()
    with pytest.raises(SlurmSilent, match="^sbatch cannot be run: No such file or directory$"):
        Slurm({"PATH": str(tmp_path / "none")}).refusal("")


def test_a_command_that_fails_says_why(slurm, programs):
    says(programs, "said on stdout\n", 1)
    with pytest.raises(SlurmError, match="^said on stdout$"):
        slurm.queue()
    says(programs, "said on stdout\n", 1, "squeue: error: no such user\n")
    with pytest.raises(SlurmError, match="^no such user$"):
        slurm.queue()
    says(programs, "", 3)
    with pytest.raises(SlurmError, match="^nothing was said$"):
        slurm.queue()
    (programs / "out").write_bytes(b"7|RUNNING|None|\xff|1:02|/work|vllm|c\n")
    (programs / "code").write_text("0")
    assert slurm.queue()[0].nodes == "\ufffd"


def test_a_command_that_gives_no_answer(slurm, programs, monkeypatch):
    waited = []
    ran = subprocess.run

    def run(*given, timeout, **more):
        waited.append(timeout)
        return ran(*given, timeout=0.2, **more)

    (programs / "squeue").write_text("#!/bin/bash\nexec sleep 60\n")
    monkeypatch.setattr(slurm_commands.subprocess, "run", run)
    with pytest.raises(SlurmError, match="^squeue gave no answer in 90 s$"):
        slurm.queue()
    assert waited == [90.0]
    (programs / "sbatch").write_text("#!/bin/bash\nexec sleep 60\n")
    with pytest.raises(SlurmSilent, match="^sbatch gave no answer in 90 s$"):
        slurm.refusal("")


# What the commands of 22.05 say; each begins as that of its command does.
@pytest.mark.parametrize(
    "words",
    [
        "Unable to contact slurm controller (connect failure)",
        "Unable to contact slurm controller (shutdown failure)",
        "Slurm backup controller in standby mode",
        "Controller is in standby mode, try a different controller",
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
    ],
)
def test_a_controller_that_cannot_be_reached_refuses_nothing(slurm, programs, words):
    says(programs, "", 1, f"allocation failure: {words}\n")
    with pytest.raises(SlurmSilent) as told:
        slurm.refusal("")
    assert str(told.value) == f"allocation failure: {words}"
    says(programs, "", 1, f"slurm_load_jobs error: {words}\n")
    with pytest.raises(SlurmSilent, match=f"^{re.escape(words)}$"):
        slurm.queue()


def test_a_refusal_is_no_silence(slurm, programs):
    says(programs, "", 1, "sbatch: error: Invalid qos specification\n")
    with pytest.raises(SlurmError) as told:
        slurm.queue()
    assert type(told.value) is SlurmError


@pytest.mark.parametrize("text", ["", "\n", "Submitted batch job 7\n", "-7\n", "x;7\n"])
def test_a_number_that_is_none(text):
    with pytest.raises(SlurmError) as told:
        slurm_commands.submitted(text)
    assert str(told.value) == (
        f"sbatch says {text.strip()!r} where the number of the job is expected."
    )


def test_a_number_after_other_lines():
    assert slurm_commands.submitted("sbatch: lua: hello\n12\n") == 12
    with pytest.raises(SlurmError) as told:
        slurm_commands.submitted("x" * 500)
    assert str(told.value).startswith(f"sbatch says '{'x' * 200}' where")


@pytest.mark.parametrize(
    ("text", "state", "code"),
    [
        ("0:0", "COMPLETED", 0),
        ("3:0", "FAILED", 3),
        ("3:9", "FAILED", -9),
        ("3", "FAILED", 3),
        ("0:15", "CANCELLED", -15),
        ("0:0", "TIMEOUT", -15),
        ("0:0", "PREEMPTED", -15),
        ("0:0", "DEADLINE", -15),
        ("0:0", "OUT_OF_MEMORY", -9),
        ("0:0", "NODE_FAIL", -9),
        ("", "FAILED", 1),
        ("x:y", "FAILED", 1),
        ("9" * 5000 + ":" + "9" * 5000, "FAILED", 1),
        ("", "COMPLETED", 0),
    ],
)
def test_exit_codes(text, state, code):
    assert slurm_commands.exit_code(text, state) == code


def test_the_number_of_a_job_has_a_bound():
    large = "9" * 5000
    assert slurm_commands.rows(f"{large}|RUNNING||n1|1:00|/x|a|b") == ()
    with pytest.raises(slurm_commands.SlurmError, match="sbatch says"):
        slurm_commands.submitted(large)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sbatch: error: no\nsbatch: error: no\n\nsbatch: fatal: gone\n", "no; gone"),
        ("slurm_load_partitions: x\n", "slurm_load_partitions: x"),
        ("slurm_load_jobs error: y", "y"),
        ("squeue: z", "z"),
        ("other: error: w", "other: error: w"),
        (" \n", "nothing was said"),
    ],
)
def test_words(text, words):
    assert slurm_commands.words(text) == words


@pytest.mark.parametrize(
    ("refusal", "gpu", "key"),
    [
        ("Invalid partition name specified", True, "slurm.partition"),
        ("invalid partition specified: x", False, "slurm.cpu_partition"),
        ("Invalid account or account/partition combination", True, "slurm.account"),
        ("Invalid QOS specification", True, "slurm.qos"),
        ("Invalid qos specification", False, "slurm.cpu_qos"),
        ("Requested time limit is invalid", True, "slurm.time (or slurm.partition)"),
        ("Requested node configuration is not available", True, "slurm.memory, slurm.cpus or"),
        ("Invalid generic resource (gres) specification", True, "sinfo -o '%P %G %m %c'"),
        ("Memory specification can not be satisfied", False, "(sinfo -o '%P %m %c'"),
        ("CPU count per node can not be satisfied", False, "slurm.cpu_partition"),
        ("More processors requested than permitted", True, "slurm.memory, slurm.cpus or"),
    ],
)
def test_what_to_change_after_a_refusal(refusal, gpu, key):
    assert key in slurm_commands.advice(refusal, gpu)
    other = slurm_commands.advice("something else", gpu)
    assert other and other != slurm_commands.advice(refusal, gpu)
    assert other == slurm_commands.advice("something else", not gpu)


def test_the_commands_of_this_machine(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    found = slurm_commands.here().env
    assert found["SLURM_CONF"] == "/etc/slurm.conf" and found["PATH"] == os.environ["PATH"]
    assert "SLURM_JOB_ID" not in found
