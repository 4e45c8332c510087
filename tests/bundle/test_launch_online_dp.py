"""The launcher of the bundle, run as its user runs it: real processes, a template in tmp_path.

Every template is a few lines of bash that write down what they were given. Where a test must know
that something has happened, it waits for the file or the line that says so, never for a time.
"""

import ast
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SCRIPT = pathlib.Path(__file__).parents[2] / "kimi_nb" / "data" / "bundle" / "launch_online_dp.py"
ADDRESS = ("--dp-address", "192.0.2.10")
# Begins each line.
TIME = r"(?m:^)(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[launch_online_dp\.py:\d+\] "
# Each server leaves its own number and that of a grandchild, then waits to be stopped.
SERVER = "sleep 300 & echo $$ $! > tmp.$4; mv tmp.$4 up.$4; wait"
# The same examples every time, none stored.
QUICK = settings(derandomize=True, database=None, deadline=None, max_examples=100)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

spec = importlib.util.spec_from_file_location("launch_online_dp", SCRIPT)
launcher = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launcher)


class Run:
    """One launcher; what it says goes to files, which can be read at any time and never block."""

    def __init__(self, node, options, script, **popen):
        self.files = [node.outputs / f"{len(node.runs)}.{stream}" for stream in ("out", "err")]
        with open(self.files[0], "w") as out, open(self.files[1], "w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *map(str, options)],
                cwd=node.folder,
                env=node.environ,
                **{"stdout": out, "stderr": err, **popen},
            )

    def says(self, pattern):
        """Wait until it has said so on stdout; the groups of the match."""
        wait_for(lambda: re.search(pattern, self.files[0].read_text(), re.M))
        return re.search(pattern, self.files[0].read_text(), re.M).groups()

    def warns(self, text):
        wait_for(lambda: text in self.files[1].read_text())

    def send(self, signum):
        self.process.send_signal(signum)

    def end(self):
        """Wait for it: exit code, stdout, stderr."""
        wait_for(lambda: self.process.poll() is not None)
        return self.process.returncode, *(path.read_text() for path in self.files)


class Node:
    """A folder with a template, and the launchers started in it."""

    def __init__(self, place):
        self.folder, self.outputs, self.runs = place / "node", place / "outputs", []
        self.folder.mkdir(parents=True)
        self.outputs.mkdir()
        theirs = ("KIMI_NB_DEVICES", "PYTHONUNBUFFERED")
        self.environ = {k: v for k, v in os.environ.items() if k not in theirs}

    def template(self, body):
        (self.folder / "run_dp_template.sh").write_text(body + "\n")

    def start(self, *options, script=SCRIPT, **popen):
        self.runs.append(Run(self, options, script, **popen))
        return self.runs[-1]

    def run(self, *options, script=SCRIPT):
        return self.start(*options, script=script).end()

    def text(self, name):
        return (self.folder / name).read_text()

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def pids(self, *ranks):
        """The processes of these ranks, servers and grandchildren, once they are up."""
        for rank in ranks:
            wait_for(lambda rank=rank: (self.folder / f"up.{rank}").exists())
        return [int(pid) for rank in ranks for pid in self.text(f"up.{rank}").split()]

    def clear(self):
        for run in self.runs:
            run.process.kill()
            run.process.wait()
        for up in self.folder.glob("up.*"):  # only if a test failed is there anyone left
            for pid in map(int, up.read_text().split()):
                if not is_gone(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def nodes(tmp_path):
    """`nodes(3)` makes three, each in its own folder: runs that only wait can wait together."""

    def make(count):
        nodes.made += [Node(tmp_path / str(i)) for i in range(count)]
        return nodes.made

    nodes = make
    nodes.made = []
    yield nodes
    for node in nodes.made:
        node.clear()


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.clear()


def wait_for(condition, limit=60):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_gone(pid):
    """No such process, or one that has ended and only awaits collection."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def assert_gone(pids):
    assert pids
    assert [pid for pid in pids if not is_gone(pid)] == []


# --- the plan and what the template is given -----------------------------------------------------
def test_the_seven_arguments_reach_the_template_in_order(node):
    node.template('printf "%s|" "$#" "$@" > args.$4')
    code, _, _ = node.run(
        *("--dp-size", 8, "--tp-size", 4, "--dp-size-local", 2, "--dp-rank-start", 4),
        *("--dp-address", "node-1.example.org", "--dp-rpc-port", 13389),
        *("--vllm-start-port", 9100),
    )
    assert code == 0
    assert node.text("args.4") == "7|0,1,2,3|9100|8|4|node-1.example.org|13389|4|"
    assert node.text("args.5") == "7|4,5,6,7|9101|8|5|node-1.example.org|13389|4|"
    assert node.names() == ["args.4", "args.5", "logs", "run_dp_template.sh"]


def test_only_size_and_address_are_needed(node):
    """Left out --dp-rpc-port ended the upstream script with a TypeError."""
    node.template('printf "%s|" "$@" > args.$4')
    code, _, err = node.run("--dp-size", 2, *ADDRESS)
    assert code == 0 and "Traceback" not in err
    assert node.text("args.0") == "0|9000|2|0|192.0.2.10|12345|1|"
    assert node.text("args.1") == "1|9001|2|1|192.0.2.10|12345|1|"


def parsed(**options):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return launcher.parse([*words, *ADDRESS])


@st.composite
def possible(draw):
    """The options of a node that can exist."""
    dp, tp = draw(st.integers(1, 64)), draw(st.integers(1, 16))
    local = draw(st.integers(1, dp))
    port = draw(st.integers(1, 65536 - local))
    rpc = draw(st.integers(1, 65535).filter(lambda rpc: not port <= rpc < port + local))
    return parsed(
        dp_size=dp,
        tp_size=tp,
        dp_size_local=local,
        dp_rank_start=draw(st.integers(0, dp - local)),
        vllm_start_port=port,
        dp_rpc_port=rpc,
        devices=local * tp + draw(st.integers(0, 3)),
    )


@QUICK
@given(possible())
def test_plan_gives_every_rank_its_own(args):
    assert launcher.problems(args) == []
    ranks, local, start = launcher.plan(args), args.dp_size_local, args.dp_rank_start
    assert [rank.rank for rank in ranks] == list(range(start, start + local))
    assert {rank.rank for rank in ranks} <= set(range(args.dp_size))
    devices = [[int(device) for device in rank.devices.split(",")] for rank in ranks]
    assert {len(those) for those in devices} == {args.tp_size}
    used = [device for those in devices for device in those]
    assert len(used) == len(set(used)) and set(used) <= set(range(args.devices))
    ports = [rank.port for rank in ranks]
    assert len(set(ports)) == local and args.dp_rpc_port not in ports
    assert set(ports) <= set(range(1, 65536))


@QUICK
@given(
    dp=st.integers(-1, 4),
    tp=st.integers(-1, 3),
    local=st.integers(-1, 5),
    start=st.integers(-1, 4),
    port=st.integers(-1, 3) | st.integers(65531, 65537),
    rpc=st.integers(-1, 6) | st.integers(65531, 65537),
    devices=st.integers(0, 9),
)
def test_what_cannot_exist_is_refused_and_nothing_else(dp, tp, local, start, port, rpc, devices):
    args = parsed(
        dp_size=dp,
        tp_size=tp,
        dp_size_local=local,
        dp_rank_start=start,
        vllm_start_port=port,
        dp_rpc_port=rpc,
        devices=devices,
    )
    exists = (
        min(dp, tp, local, devices) >= 1
        and start >= 0
        and start + local <= dp
        and local * tp <= devices
        and 1 <= port <= port + local - 1 <= 65535
        and 1 <= rpc <= 65535
        and rpc not in range(port, port + local)
    )
    assert (launcher.problems(args) == []) == exists


@QUICK
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6), tp=st.integers(1, 8))
def test_plans_of_the_nodes_together_are_the_whole(sizes, tp):
    dp, found = sum(sizes), []
    for local in sizes:
        args = parsed(dp_size=dp, dp_size_local=local, dp_rank_start=len(found), tp_size=tp)
        assert launcher.problems(args) == []
        found += [rank.rank for rank in launcher.plan(args)]
    assert found == list(range(dp))


# --- what is refused -----------------------------------------------------------------------------
REFUSED = {
    "dp-size": ("--dp-size 0", ["--dp-size 0", "at least 1"]),
    "dp-size, negative": ("--dp-size -1", ["--dp-size -1", "at least 1"]),
    "tp-size": ("--dp-size 2 --tp-size 0", ["--tp-size 0", "at least 1"]),
    "local, none": ("--dp-size 2 --dp-size-local 0", ["--dp-size-local 0", "1..2"]),
    "local, too many": ("--dp-size 2 --dp-size-local 3", ["--dp-size-local 3", "1..2"]),
    "start, negative": ("--dp-size 2 --dp-rank-start -1", ["--dp-rank-start -1", "at least 0"]),
    "start, past the end": (
        "--dp-size 8 --dp-rank-start 8",
        ["--dp-rank-start 8", "ranks 8..15 do not exist: --dp-size 8 has ranks 0..7"],
    ),
    "start, partly past the end": (
        "--dp-size 8 --dp-size-local 4 --dp-rank-start 6",
        ["--dp-rank-start 6", "ranks 8..9 do not exist", "0..4 is allowed"],
    ),
    "start, one past the end": (
        "--dp-size 8 --dp-size-local 4 --dp-rank-start 5",
        ["--dp-rank-start 5", "ranks 8..8 do not exist", "0..4 is allowed"],
    ),
    "devices": (
        "--dp-size 8 --tp-size 4 --devices 16",
        ["--dp-size-local 8", "8 ranks x tp 4 = 32 devices, this node has 16", "(--devices)"],
    ),
    "devices, one short": (
        "--dp-size 2 --tp-size 2 --devices 3",
        ["2 ranks x tp 2 = 4 devices, this node has 3"],
    ),
    "devices, none": ("--dp-size 1 --devices 0", ["--devices 0", "at least 1"]),
    "ports, past the end": (
        "--dp-size 4 --vllm-start-port 65533",
        ["--vllm-start-port 65533", "65533..65536", "1..65535"],
    ),
    "ports, below": ("--dp-size 1 --vllm-start-port 0", ["--vllm-start-port 0", "1..65535"]),
    "rpc port": ("--dp-size 1 --dp-rpc-port 65536", ["--dp-rpc-port 65536", "1..65535"]),
    "rpc port, below": ("--dp-size 1 --dp-rpc-port 0", ["--dp-rpc-port 0", "1..65535"]),
    "rpc port, among the HTTP ports": (
        "--dp-size 4 --vllm-start-port 9000 --dp-rpc-port 9003",
        ["--dp-rpc-port 9003", "outside 9000..9003"],
    ),
    "not a number": ("--dp-size four", ["--dp-size", "'four'", "whole number"]),
    "not quite a number": ("--dp-size 1_0", ["--dp-size", "'1_0'", "whole number"]),
    "no such number": (f"--dp-size {'9' * 5000}", ["--dp-size", "whole number"]),
    "grace": ("--dp-size 1 --grace soon", ["--grace", "'soon'", "whole number"]),
    "no size": ("", ["--dp-size", "required"]),
    "unknown option": ("--dp-size 1 --dp-sizes 2", ["--dp-sizes"]),
    "abbreviation": ("--dp-size 1 --dp-size-l 1", ["--dp-size-l"]),
    "template, missing": ("--dp-size 1 --template no.sh", ["--template 'no.sh'", "readable file"]),
    "template, a folder": ("--dp-size 1 --template .", ["--template '.'", "readable file"]),
    "log folder": (
        "--dp-size 1 --log-dir run_dp_template.sh/logs",
        ["--log-dir 'run_dp_template.sh/logs'", "writable folder"],
    ),
}


@pytest.mark.parametrize("options, parts", REFUSED.values(), ids=REFUSED)
def test_refused_before_anything_starts(node, options, parts):
    node.template("touch started.$4")
    code, out, err = node.run(*options.split(), *ADDRESS)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and re.match(TIME, err) and err.startswith("ERROR ")
    assert [part for part in parts if part not in err] == []
    assert node.names() == ["run_dp_template.sh"]


def test_each_error_has_its_line(node):
    node.template("touch started.$4")
    code, _, err = node.run("--dp-size", 0, "--tp-size", 0, "--dp-address", "a b")
    assert code == 2
    lines = err.splitlines()
    assert [re.search("--[a-z-]+", line).group() for line in lines] == [
        "--dp-size",
        "--tp-size",
        "--dp-address",
    ]
    assert node.names() == ["run_dp_template.sh"]


BAD_ADDRESSES = ["", " ", "a b", "a;b", "$(id)", "`id`", "a|b", "a&b", "a>b", "h\n", "h\nx", "'h'"]
BAD_ADDRESSES += ['"h"', "h*", "-h", "~", "a/b", "a..b", "10.0.0", "10.0.0.256", "1::2::3", "ж"]
BAD_ADDRESSES += ["fe80::1%eth0", "h:80", "x" * 64, "a." * 127 + "b"]


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_address_refused(address):
    args = launcher.parse(["--dp-size", "1", f"--dp-address={address}"])
    (line,) = launcher.problems(args)
    assert line.startswith(f"--dp-address {address!r}: ") and "\n" not in line
    assert "host name or IP address is allowed" in line


@pytest.mark.parametrize(
    "address", ["192.0.2.10", "::1", "2001:db8::a", "node-1", "my_node", "n1.example.org"]
)
def test_address_accepted(address):
    assert launcher.problems(launcher.parse(["--dp-size", "1", "--dp-address", address])) == []


def test_address_refused_with_exit_code_2(node):
    node.template("touch started.$4")
    code, out, err = node.run("--dp-size", 1, "--dp-address", "$(touch x)")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--dp-address '$(touch x)'" in err
    assert node.names() == ["run_dp_template.sh"]


@QUICK
@given(
    good=st.sampled_from(["node-1.example.org", "192.0.2.10", "2001:db8::a"]),
    at=st.integers(0, 18),
    bad=st.sampled_from(" \t\n;|&$`<>(){}[]*?!~#'\"\\%/\0\x7f\xa0\u2028\u0436\uff18"),
)
def test_no_address_has_a_meaning_for_a_shell(good, at, bad):
    assert not launcher.is_address(good[:at] + bad + good[at:])


def test_the_option_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("KIMI_NB_DEVICES", "4")
    assert launcher.problems(parsed(dp_size=6, devices=6)) == []
    assert len(launcher.problems(parsed(dp_size=6))) == 1
    monkeypatch.setenv("KIMI_NB_DEVICES", "")
    assert launcher.problems(parsed(dp_size=6)) == []
    monkeypatch.delenv("KIMI_NB_DEVICES")
    assert launcher.problems(parsed(dp_size=6)) == []  # nobody said: no upper bound


def test_devices_of_the_node_from_the_environment(node):
    node.template("touch started.$4")
    options = ("--dp-size", 3, "--tp-size", 2, *ADDRESS)
    node.environ["KIMI_NB_DEVICES"] = "4"
    code, _, err = node.run(*options)
    assert code == 2 and node.names() == ["run_dp_template.sh"]
    assert "3 ranks x tp 2 = 6 devices, this node has 4 (KIMI_NB_DEVICES)" in err
    node.environ["KIMI_NB_DEVICES"] = "all"
    code, _, err = node.run(*options)
    assert code == 2 and err.count("\n") == 1
    assert "KIMI_NB_DEVICES: 'all' found, a whole number is allowed" in err


def test_unreadable_template_and_log_folder(node, monkeypatch):
    """Asked of the function: root, who often runs the tests, is allowed everything."""
    node.template("true")
    args = launcher.parse(["--dp-size", "1", *ADDRESS, "--log-dir", str(node.folder)])
    args.template = str(node.folder / "run_dp_template.sh")
    assert launcher.file_problems(args) == []
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    (line,) = launcher.file_problems(args)
    assert "--log-dir" in line and "writable folder" in line
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (line,) = launcher.file_problems(args)
    assert "--template" in line and "readable file" in line


# --- which template ------------------------------------------------------------------------------
def test_template_is_the_one_beside_the_script_then_the_one_in_the_folder(nodes):
    for node, expected in zip(nodes(3), ["folder", "beside", "other"], strict=True):
        bundle = node.folder / "bundle"
        bundle.mkdir()
        node.template("echo folder")
        (node.folder / "other.sh").write_text("echo other\n")
        if expected != "folder":
            (bundle / "run_dp_template.sh").write_text("echo beside\n")
        chosen = ("--template", "other.sh") if expected == "other" else ()
        node.start("--dp-size", 1, *ADDRESS, *chosen, script=shutil.copy(SCRIPT, bundle))
    for node, expected in zip(nodes.made, ["folder", "beside", "other"], strict=True):
        assert node.runs[0].end()[0] == 0
        assert node.text("logs/rank_0.log") == expected + "\n"


# --- logs, start lines, sessions -----------------------------------------------------------------
def test_one_log_a_rank_and_the_last_one_kept(node):
    node.template('echo "out of $4"; echo "err of $4" >&2')
    logs = node.folder / "a" / "b"
    logs.mkdir(parents=True)
    (logs / "rank_2.log").write_text("before\n" * 100)
    (logs / "rank_2.log.1").write_text("long ago\n")
    options = ("--dp-size", 4, "--dp-size-local", 2, "--dp-rank-start", 2, "--log-dir", "a/b")
    assert node.run(*options, *ADDRESS)[0] == 0
    assert {path.name: path.read_text() for path in logs.iterdir()} == {
        "rank_2.log": "out of 2\nerr of 2\n",
        "rank_2.log.1": "before\n" * 100,
        "rank_3.log": "out of 3\nerr of 3\n",
    }


def test_logs_are_echoed_with_their_rank(node):
    """What kubectl logs shows: whole lines, in the order of each rank, also the last half of one."""
    node.template("for i in {1..3}; do echo line $i of $4; done; printf 'half of %s' $4")
    code, out, _ = node.run("--dp-size", 2, "--echo", *ADDRESS)
    assert code == 0
    for rank in (0, 1):
        said = [line for line in out.splitlines() if line.startswith(f"rank_{rank} | ")]
        assert [line.partition(" | ")[2] for line in said] == [
            *(f"line {at} of {rank}" for at in (1, 2, 3)),
            f"half of {rank}",
        ]


def test_start_lines_sessions_and_a_log_that_is_written_at_once(node):
    """One line a rank; each leads a session of its own; a server's print is in the log at once."""
    node.template(f"exec {sys.executable} -c 'import time; print(\"hello\"); time.sleep(300)'")
    run = node.start(
        *("--dp-size", 4, "--dp-size-local", 2, "--dp-rank-start", 2, "--tp-size", 2, *ADDRESS)
    )
    first = run.says(TIME + r"rank 2: devices 0,1 port 9000 pid (\d+) log (.+)$")
    second = run.says(TIME + r"rank 3: devices 2,3 port 9001 pid (\d+) log (.+)$")
    assert [log for _, log in (first, second)] == ["./logs/rank_2.log", "./logs/rank_3.log"]
    for pid, log in (first, second):
        assert os.getpgid(int(pid)) == os.getsid(int(pid)) == int(pid)
        wait_for(lambda log=log: node.text(log) == "hello\n")
    run.send(signal.SIGTERM)
    assert run.end()[1].count("\n") == 2  # these two lines were all
    assert_gone([int(first[0]), int(second[0])])


# --- the end of a rank ---------------------------------------------------------------------------
FAILING = """
if [ $4 != 1 ]; then %s; fi
sleep 300 & echo $! > up.1
until [ -e up.0 ] && [ -e up.2 ]; do sleep 0.02; done
for i in $(seq 30); do echo "line $i"; done
%s
"""


def test_a_failed_rank_stops_the_others(nodes):
    cases = {
        "exit 3": ("exit code 3", 3),
        "exit 125": ("exit code 125", 125),
        "exit 126": ("exit code 126", 1),  # 126 and up mean something else to a shell
        "kill -KILL $$": ("signal SIGKILL", 1),
    }
    for node, last_words in zip(nodes(len(cases)), cases, strict=True):
        node.template(FAILING % (SERVER, last_words))
        node.start("--dp-size", 3, *ADDRESS)
    for node, (said, expected) in zip(nodes.made, cases.values(), strict=True):
        code, _, err = node.runs[0].end()
        assert code == expected
        # servers and grandchildren of the others, and what the failed one had started
        assert_gone(node.pids(0, 1, 2))
        head, _, rest = err.partition("; last lines of ./logs/rank_1.log:\n")
        assert re.fullmatch(TIME + f"rank 1 failed: {said}", head)
        assert rest.splitlines()[:20] == [f"line {i}" for i in range(11, 31)]
        assert "line " not in "".join(rest.splitlines()[20:])
        assert err.count("failed") == 1  # the others were stopped: that is no failure of theirs


def test_a_rank_that_fails_on_its_own_is_told_the_same_way(node):
    node.template("exit 7")
    code, _, err = node.run("--dp-size", 1, *ADDRESS)
    assert code == 7
    assert re.search(TIME + "rank 0 failed: exit code 7; last lines of ./logs/rank_0.log:", err)


def test_all_ended_well_is_exit_0(node):
    node.template("echo bye")
    code, _, err = node.run("--dp-size", 3, *ADDRESS)
    assert code == 0 and "failed" not in err


def test_a_rank_that_ends_well_leaves_the_others_running(node):
    node.template(
        "[ $4 = 0 ] && exit 0; until [ -e enough ]; do sleep 0.02; done; sleep 0.5; echo done"
    )
    run, note = node.start("--dp-size", 2, *ADDRESS), "rank 0 ended with exit code 0; the others "
    run.warns(note)
    (pid,) = run.says(TIME + r"rank 1: .* pid (\d+) ")
    assert not is_gone(int(pid)) and run.process.poll() is None
    (node.folder / "enough").touch()
    code, _, err = run.end()
    # Said once, and not of the last one.
    assert code == 0 and re.fullmatch(TIME + note + "are kept running\n", err)
    assert node.text("logs/rank_1.log") == "done\n"


def test_nothing_is_left_behind_by_a_rank_that_ended(node):
    """A template that puts its server in the background and returns has not got rid of us."""
    node.template("sleep 300 & echo $! > up.$4")
    assert node.run("--dp-size", 2, *ADDRESS)[0] == 0
    assert_gone(node.pids(0, 1))


def test_process_1_need_not_collect_orphans(node):
    """In a container it may be a `sleep infinity`; the dead must not be taken for stubborn."""
    node.template("sleep 300 & echo $! > up.$4; exit 3")
    process_1 = node.outputs / "process_1.py"
    process_1.write_text(
        "import ctypes, subprocess, sys\n"
        "ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1))  # orphans come here, to stay\n"
        f"sys.exit(subprocess.call([sys.executable, {str(SCRIPT)!r}, *sys.argv[1:]]))\n"
    )
    code, _, err = node.run("--dp-size", 1, *ADDRESS, "--grace", 1, script=process_1)
    assert code == 3 and "SIGTERM to" in err and "SIGKILL" not in err
    assert_gone(node.pids(0))


def test_tail_of_odd_logs(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"")
    assert launcher.tail(log) == ""
    log.write_bytes(b"load:  1%\rload: 50%\rload: 99%\r\n\xff end")
    assert launcher.tail(log) == "load: 99%\n\ufffd end"
    log.write_bytes(b"x\n" * 200_000 + b"last\n")
    assert launcher.tail(log).split("\n") == ["x"] * 19 + ["last"]
    log.unlink()
    assert "No such file" in launcher.tail(log)


def test_how_it_ended():
    said = [launcher.how_it_ended(code) for code in (0, 3, -9, -15, -signal.SIGRTMIN - 1)]
    assert said[:4] == ["exit code 0", "exit code 3", "signal SIGKILL", "signal SIGTERM"]
    assert said[4] == f"signal {signal.SIGRTMIN + 1}"


# --- signals -------------------------------------------------------------------------------------
def test_a_signal_stops_every_rank(nodes):
    signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    for node in nodes(len(signals)):
        node.template(SERVER)
        node.start("--dp-size", 3, *ADDRESS)
    for node, signum in zip(nodes.made, signals, strict=True):
        pids = node.pids(0, 1, 2)
        assert not any(map(is_gone, pids)) and len(pids) == 6
        node.runs[0].send(signum)
    for node, signum in zip(nodes.made, signals, strict=True):
        code, _, err = node.runs[0].end()
        assert code == 128 + signum
        assert_gone(node.pids(0, 1, 2))
        assert "Traceback" not in err and "failed" not in err


# An ignored signal stays ignored in what is started: nobody here ends on SIGTERM.
STUBBORN = "trap '' TERM; " + SERVER


def test_the_ranks_are_asked_first_given_time_and_then_killed(nodes):
    polite, stubborn = nodes(2)
    polite.template("trap 'sleep 0.5; echo clean; exit 0' TERM; touch up.$4; sleep 300 & wait")
    stubborn.template(STUBBORN)
    polite.start("--dp-size", 2, *ADDRESS)
    stubborn.start("--dp-size", 2, *ADDRESS, "--grace", 1)
    polite.pids(0, 1)
    pids, asked = stubborn.pids(0, 1), time.monotonic()
    for node in nodes.made:
        node.runs[0].send(signal.SIGTERM)
    code, _, err = polite.runs[0].end()
    assert code == 128 + signal.SIGTERM and "SIGKILL" not in err
    assert [polite.text(f"logs/rank_{rank}.log") for rank in (0, 1)] == ["clean\n", "clean\n"]
    code, _, err = stubborn.runs[0].end()
    assert code == 128 + signal.SIGTERM and time.monotonic() - asked >= 1
    assert "rank 0: SIGKILL to" in err and "rank 1: SIGKILL to" in err
    assert_gone(pids)


def test_a_second_signal_kills_at_once(node):
    node.template(STUBBORN)
    run = node.start("--dp-size", 2, *ADDRESS, "--grace", 300)
    pids = node.pids(0, 1)
    run.send(signal.SIGTERM)
    run.warns("rank 1: SIGTERM to")
    assert not any(map(is_gone, pids))
    run.send(signal.SIGINT)
    assert run.end()[0] == 128 + signal.SIGTERM
    assert_gone(pids)


def test_stubborn_ranks_of_a_failed_run_are_killed_too(node):
    node.template(FAILING % (STUBBORN, "exit 4"))
    code, _, err = node.run("--dp-size", 3, *ADDRESS, "--grace", 0)
    assert code == 4 and "rank 2: SIGKILL to" in err
    assert_gone(node.pids(0, 1, 2))


def test_nohup_is_respected(node):
    node.template(SERVER)
    run = node.start(
        *("--dp-size", 1, *ADDRESS),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    pids = node.pids(0)
    run.send(signal.SIGHUP)
    run.send(signal.SIGTERM)
    assert run.end()[0] == 128 + signal.SIGTERM  # the first that counted
    assert_gone(pids)


def test_the_ranks_end_with_a_launcher_that_is_killed(node):
    node.template("echo $$ > tmp.$4; mv tmp.$4 up.$4; exec sleep 300")
    run = node.start("--dp-size", 2, *ADDRESS)
    pids = node.pids(0, 1)
    run.send(signal.SIGKILL)
    assert run.end()[0] == -signal.SIGKILL
    wait_for(lambda: all(map(is_gone, pids)))


def test_a_closed_terminal_does_not_end_the_ranks(node):
    """`launch_online_dp.py | head -1` is no reason to stop serving, nor to exit with an error."""
    node.template("until [ -e enough ]; do sleep 0.02; done; touch ended.$4")
    reader, writer = os.pipe()
    run = node.start("--dp-size", 2, *ADDRESS, stdout=writer, stderr=writer)
    os.close(writer)
    os.close(reader)
    (node.folder / "enough").touch()
    assert run.end()[0] == 0
    assert {"ended.0", "ended.1"} <= set(node.names())


# --- a start that fails --------------------------------------------------------------------------
def test_a_failed_start_stops_those_already_started(node):
    node.template(SERVER)
    (node.folder / "logs/rank_1.log.1").mkdir(parents=True)  # so rank 1 cannot have its log
    (node.folder / "logs/rank_1.log").touch()
    code, out, err = node.run("--dp-size", 3, *ADDRESS)
    assert code == 1 and "rank 1 could not be started: " in err and "Traceback" not in err
    (pid,) = re.findall(r" pid (\d+) ", out)  # of rank 0; rank 2 was not tried
    assert_gone([int(pid)])


def test_without_bash(node, tmp_path):
    node.template("true")
    (tmp_path / "empty").mkdir()
    node.environ["PATH"] = str(tmp_path / "empty")
    code, out, err = node.run("--dp-size", 2, *ADDRESS)
    assert (code, out) == (1, "")
    assert re.match(TIME + "rank 0 could not be started: ", err) and "bash" in err
    assert err.count("\n") == 1


# --- the file itself -----------------------------------------------------------------------------
def test_runs_in_an_engine_container():
    """Python 3.9, nothing but the standard library, and its executable bit."""
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 9))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names]  # fmt: skip
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(names) <= set(sys.stdlib_module_names)
    assert os.access(SCRIPT, os.X_OK) and SCRIPT.read_text().startswith("#!/usr/bin/env python3\n")
    assert launcher.__doc__.startswith("python3 launch_online_dp.py --dp-size ")
