#!/usr/bin/env python3
"""python3 launch_online_dp.py --dp-size 4 --tp-size 4 --dp-address 192.0.2.10 --devices 16

Starts one server per local data-parallel rank, stays until they end and leaves none behind:

    bash run_dp_template.sh DEVICES PORT DP_SIZE RANK DP_ADDRESS RPC_PORT TP_SIZE

The options and the template's seven arguments are those of the vllm-ascend script of this name.
What differs: --dp-rpc-port may be left out; ranks, devices and ports that cannot exist are refused
before anything starts (exit 2); every rank has its own log; a rank that fails stops the others and
the launcher exits non-zero; SIGTERM, SIGINT and SIGHUP stop every rank (exit 128 + signal).
Standard library only, Python 3.9 or later: it runs inside the engine's container.
"""

import argparse
import contextlib
import ipaddress
import os
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

TEMPLATE = "run_dp_template.sh"
TICK = 0.2  # seconds between looks at the ranks; a server takes minutes to start
KILL_WAIT = 5  # a process stuck in a device driver may outlive SIGKILL: do not wait for ever
TAIL_LINES, TAIL_BYTES = 20, 65536
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


class Rank(NamedTuple):
    rank: int
    devices: str
    port: int


def plan(args):
    """The ranks of this node, in order; `args` as `parse` returns them."""
    tp, first, port = args.tp_size, args.dp_rank_start, args.vllm_start_port
    return [
        Rank(first + i, ",".join(map(str, range(i * tp, i * tp + tp))), port + i)
        for i in range(args.dp_size_local)
    ]


def command(rank, args):
    words = (rank.devices, rank.port, args.dp_size, rank.rank)
    words += (args.dp_address, args.dp_rpc_port, args.tp_size)
    return ["bash", os.path.abspath(args.template), *map(str, words)]


def problems(args):
    """What is wrong with the numbers and the address, one line each; empty when all is well."""
    dp, tp, local, start = args.dp_size, args.tp_size, args.dp_size_local, args.dp_rank_start
    rpc, first, last = args.dp_rpc_port, args.vllm_start_port, args.vllm_start_port + local - 1
    have, source = args.devices, args.devices_from
    at_least = (("--dp-size", dp, 1), ("--tp-size", tp, 1), ("--dp-rank-start", start, 0))
    if have is not None:
        at_least += ((source, have, 1),)
    found = [f"{name} {n}: at least {low} is allowed" for name, n, low in at_least if n < low]
    if not is_address(args.dp_address):
        found.append(f"--dp-address {args.dp_address!r}: a host name or IP address is allowed")
    if not 1 <= rpc <= 65535:
        found.append(f"--dp-rpc-port {rpc}: 1..65535 is allowed")
    if dp >= 1 and not 1 <= local <= dp:
        found.append(f"--dp-size-local {local}: 1..{dp} is allowed (--dp-size {dp})")
    if found:  # what follows compares options with each other: noise while one of them is wrong
        return found
    if start + local > dp:
        missing = f"ranks {max(start, dp)}..{start + local - 1} do not exist"
        found.append(
            f"--dp-rank-start {start}: {missing}: --dp-size {dp} has ranks 0..{dp - 1} "
            f"(0..{dp - local} is allowed with --dp-size-local {local})"
        )
    if have is not None and local * tp > have:
        need = f"{local} ranks x tp {tp} = {local * tp} devices"
        found.append(f"--dp-size-local {local}: {need}, this node has {have} ({source})")
    if first < 1 or last > 65535:
        ports = f"{local} ranks take ports {first}..{last}"
        found.append(f"--vllm-start-port {first}: {ports}, 1..65535 is allowed")
    if first <= rpc <= last:
        ports = f"a port outside {first}..{last} is allowed"
        found.append(f"--dp-rpc-port {rpc}: {ports}, those serve HTTP (--vllm-start-port)")
    return found


def is_address(text):
    # The template hands it to a shell: nothing that a careless, unquoted use would expand.
    if not re.fullmatch(r"[0-9.]+|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*", text):
        return len(text) <= 253 and HOST.fullmatch(text) is not None
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def how_it_ended(code):
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {names.get(-code, -code)}"  # real-time signals have no name


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):  # without the usage text: one line an error
        tell("ERROR", message)
        sys.exit(2)


def whole(text):
    if not re.fullmatch(r"-?[0-9]{1,9}", text):  # int() would take "1_0" as well
        raise argparse.ArgumentTypeError(f"{text!r} found, a whole number is allowed")
    return int(text)


def parse(argv=None):
    # No abbreviations: `--dp-size-l 2` must not change meaning when an option is added.
    parser = OneLineParser("launch_online_dp.py", allow_abbrev=False, description=__doc__,
                           formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    for name, default, help_text in (
        ("--dp-size", None, "ranks over all nodes (required)"),
        ("--tp-size", 1, "devices of one rank (default 1)"),
        ("--dp-size-local", None, "ranks on this node (default: --dp-size)"),
        ("--dp-rank-start", 0, "first rank on this node (default 0)"),
        ("--dp-rpc-port", 12345, "RPC port at --dp-address (default 12345)"),
        ("--vllm-start-port", 9000, "HTTP port of the first rank here (default 9000)"),
        ("--devices", None, "devices on this node (default: KIMI_NB_DEVICES, else unchecked)"),
        ("--grace", 20, "seconds from SIGTERM to SIGKILL (default 20)"),
    ):
        required = name == "--dp-size"
        parser.add_argument(name, type=whole, default=default, required=required, help=help_text)
    parser.add_argument("--dp-address", required=True, help="node of rank 0 (required)")
    parser.add_argument("--template", help=f"default: {TEMPLATE} beside this script, else in ./")
    parser.add_argument("--log-dir", default="./logs", help="for rank_<RANK>.log (default ./logs)")
    parser.add_argument("--echo", action="store_true", help="also write every log to stdout, each "
                        "line after `rank_<RANK> | `: kubectl logs shows it")  # fmt: skip
    args = parser.parse_args(argv)
    args.devices_from, from_environ = "--devices", os.environ.get("KIMI_NB_DEVICES")
    if args.devices is None and from_environ:
        args.devices_from = "KIMI_NB_DEVICES"
        try:
            args.devices = whole(from_environ)
        except argparse.ArgumentTypeError as error:
            parser.error(f"KIMI_NB_DEVICES: {error}")
    if args.dp_size_local is None:
        args.dp_size_local = args.dp_size
    if args.template is None:
        beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), TEMPLATE)
        args.template = beside if os.path.exists(beside) else os.path.join(".", TEMPLATE)
    return args


# Above: no effects, but for the parser's own message. Below: files, processes, signals.
def say(fd, text):
    # Straight to the descriptor: a closed terminal or an odd locale must not end the servers.
    with contextlib.suppress(OSError):
        os.write(fd, (text + "\n").encode("utf-8", "backslashreplace"))


def tell(level, text, fd=2):
    """A line in the form and the local time of vLLM's own: beside them it shows what came first."""
    place = f"{os.path.basename(__file__)}:{sys._getframe(1).f_lineno}"
    say(fd, f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] {text}")


def file_problems(args):
    """The template must be there; the log folder is made, so this comes after all other checks."""
    if not (os.path.isfile(args.template) and os.access(args.template, os.R_OK)):
        return [f"--template {args.template!r}: a readable file is allowed"]
    try:
        os.makedirs(args.log_dir, exist_ok=True)
        why = "" if os.access(args.log_dir, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        why = error.strerror
    return [f"--log-dir {args.log_dir!r}: a writable folder is allowed ({why})"] if why else []


def load_prctl():
    """Linux's prctl, or a function that does nothing; looked up before any fork, as is safe."""
    try:
        import ctypes  # some slim Python builds come without it

        function = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda option, value: None
    # unsigned long, said explicitly: aarch64 leaves the upper half of a plain int undefined
    return lambda option, value: function(option, ctypes.c_ulong(value))


class Child:
    def __init__(self, rank, process, log):
        self.rank, self.process, self.log, self.echoed = rank, process, log, 0
        self.gone = False  # leader collected, group empty: its number may be another's by now

    def signal_group(self, signum):
        """Send it; False when the group has nobody left."""
        try:
            os.killpg(self.process.pid, signum)
        except ProcessLookupError:
            return False
        except PermissionError:  # somebody is there, under another user
            pass
        return True


def start(rank, args, prctl):
    launcher, log = os.getpid(), os.path.join(args.log_dir, f"rank_{rank.rank}.log")

    def die_with_launcher():
        # For a launcher that is SIGKILLed and can stop nobody. It reaches the direct child only
        # (bash, or the server when the template ends in `exec vllm serve`), hence SIGTERM and not
        # SIGKILL: the server can then stop its own engine processes.
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it died before the request was made
            os._exit(1)

    if os.path.lexists(log):
        os.replace(log, log + ".1")
    # The child writes to the file itself, and a Python server does so line by line: what it said
    # last is there even when it, or the launcher, is killed.
    environ = {"PYTHONUNBUFFERED": "1", **os.environ}
    with open(log, "w", buffering=1) as file:
        process = subprocess.Popen(
            command(rank, args), env=environ, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_launcher,
        )  # fmt: skip
    said = f"devices {rank.devices} port {rank.port} pid {process.pid} log {log}"
    tell("INFO", f"rank {rank.rank}: {said}", fd=1)
    return Child(rank, process, log)


def settle(children):
    """Collect what has died; return the children whose process group still has somebody in it."""
    by_pid = {child.process.pid: child for child in children}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)  # -1: the adopted orphans too (see `run`)
            if pid == 0:
                break
            if pid in by_pid:
                by_pid[pid].process.returncode = os.waitstatus_to_exitcode(status)
    except ChildProcessError:  # there are none at all
        pass
    for child in children:
        if child.process.returncode is not None and not child.gone:
            child.gone = not child.signal_group(0)
    return [child for child in children if not child.gone]


def stop(children, grace, received):
    """SIGTERM to every group, SIGKILL to those left after `grace` or once another signal comes."""
    # Counted from here: what came before is one request, as `timeout` sends its signal twice.
    heard = len(received)
    for signum, limit in (signal.SIGTERM, grace), (signal.SIGKILL, KILL_WAIT):
        live, deadline = settle(children), time.monotonic() + limit
        for child in live:
            tell("INFO", f"rank {child.rank.rank}: {signum.name} to process group {child.process.pid}")
            child.signal_group(signum)
        while live and time.monotonic() < deadline:
            if signum == signal.SIGTERM and len(received) > heard:
                break
            time.sleep(TICK / 4)  # somebody waits for this
            live = settle(children)
    for child in settle(children):
        tell("WARNING", f"rank {child.rank.rank}: process group {child.process.pid} outlived SIGKILL")


def tail(path):
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").rstrip("\n").split("\n")
    except OSError as error:  # somebody tidied up
        return f"({error})"
    # Of a progress bar, which redraws its line after \r, only what was on the screen last.
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines[-TAIL_LINES:])


def echo(children, everything=False):
    """Write what the logs have had added to stdout: whole lines only, or `everything` at the end."""
    for child in children:
        with contextlib.suppress(OSError), open(child.log, "rb") as file:
            file.seek(child.echoed)
            while text := file.read(TAIL_BYTES):
                whole = len(text) if everything or len(text) == TAIL_BYTES else text.rfind(b"\n") + 1
                child.echoed += whole
                for line in text[:whole].decode("utf-8", "replace").splitlines():
                    say(1, f"rank_{child.rank.rank} | {line}")
                if whole < len(text):
                    break


def watch(children, received, echoes=False):
    """Wait for a signal, a failure or the end of all ranks; return the launcher's exit code."""
    noted = set()
    while True:
        settle(children)
        if echoes:
            echo(children)
        if received:  # before failures: who signals us may have signalled the ranks as well
            tell("INFO", f"{signal.Signals(received[0]).name} received: stopping all ranks")
            return 128 + received[0]
        failed = [child for child in children if child.process.returncode]
        for child in failed:  # said before the others are stopped: that may take all the grace
            end = how_it_ended(child.process.returncode)
            tell("ERROR", f"rank {child.rank.rank} failed: {end}; last lines of {child.log}:")
            say(2, tail(child.log))
        if failed:
            code = failed[0].process.returncode
            return code if 1 <= code <= 125 else 1
        ended = [child for child in children if child.process.returncode == 0]
        if len(ended) == len(children):
            return 0
        for child in set(ended) - noted:
            note = "ended with exit code 0; the others are kept running"
            tell("WARNING", f"rank {child.rank.rank} {note}")
        noted.update(ended)
        time.sleep(TICK)


def run(args):
    received, children, prctl = [], [], load_prctl()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Under nohup SIGHUP arrives ignored, and is meant to stay so.
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda number, frame: received.append(number))
    # Orphans of the ranks come to us, to be collected: in a container whose process 1 collects
    # nobody they would stay as zombies, and a group of zombies looks like one that still runs.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        for rank in plan(args):
            if received:
                break
            try:
                children.append(start(rank, args, prctl))
            except (OSError, subprocess.SubprocessError) as error:
                tell("ERROR", f"rank {rank.rank} could not be started: {error}")
                return 1
        return watch(children, received, args.echo)
    finally:  # whatever the reason, and also what a rank that ended left in its group
        stop(children, args.grace, received)
        if args.echo:
            echo(children, everything=True)


def main(argv=None):
    args = parse(argv)
    found = problems(args) or file_problems(args)
    for line in found:
        tell("ERROR", line)
    return 2 if found else run(args)


if __name__ == "__main__":
    sys.exit(main())
