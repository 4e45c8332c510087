"""How fast logs are examined, beside grep with the same patterns; and false alarms.

    python benchmarks/doctor.py [--megabytes 1024] [--files 64]

Bounds: 0.8 of the time of `grep -E -f` with the same patterns on the same files in the same minute;
memory that does not grow with the logs; no alarm in 100 MB of healthy logs. grep is asked for a
count (-c), so that it prints nothing, in the C locale and in a UTF-8 one: the faster of the two is
compared.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import judging

from kimi_nb.diagnose import doctor as examiner
from kimi_nb.diagnose import prefilter, signatures

LIMIT, GROWTH = 0.8, 40.0  # of grep's time; MB more than for next to nothing
ROUNDS = 3
HEALTHY = Path(__file__).parent.parent / "tests" / "diagnose" / "logs" / "healthy"
FAILED = Path(__file__).parent.parent / "kimi_nb/data/diagnose/sample_logs/a3-3/rank_31.log"


def corpus(folder: Path, megabytes: int, files: int) -> None:
    """Logs of ranks: a healthy start, then hours of service (a start again now and then), and a
    failure at the end of two."""
    start = b"".join(path.read_bytes() for path in sorted(HEALTHY.glob("*.log")))
    sample = start + b"".join(map(served, range(10_000)))
    each = megabytes * 1_000_000 // files
    for rank in range(files):
        path = folder / f"n{rank // 16}" / f"rank_{rank}.log"
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            while file.tell() < each:
                file.write(sample)
            if rank in (17, 40):
                file.write(FAILED.read_bytes())


def served(number: int) -> bytes:
    """What an API server and an engine say of a request."""
    clock = f"{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
    return (
        f'(APIServer pid=77) INFO:     192.0.2.{number % 200}:5{number % 10000:04} - "POST '
        '/v1/chat/completions HTTP/1.1" 200 OK\n'
        f"(APIServer pid=77) INFO 11-22 {clock} [loggers.py:127] Engine 000: Avg prompt "
        f"throughput: {number % 977}.4 tokens/s, Avg generation throughput: 48.{number % 10} "
        f"tokens/s, Running: {number % 16} reqs, Waiting: 0 reqs, GPU KV cache usage: "
        f"{number % 90}.2%, Prefix cache hit rate: 0.0%\n"
    ).encode()


def patterns() -> str:
    """The same patterns in grep's words (POSIX has no lazy repeats, no (?:, no \\d)."""
    known = [entry.pattern.pattern for entry in signatures.of_logs() if entry.pattern]
    lines = []
    for one in [*known, *prefilter.ERRORS]:
        text = re.sub(r"\(\?(?:P<\w+>|:)", "(", one).replace("*?", "*").replace("+?", "+")
        text = re.sub(r"\[([^\]]*)\\d", r"[\g<1>0-9", text).replace(r"\d", "[0-9]")
        text = re.sub(r"\[(\^?[^\]]*)\\s", r"[\g<1>[:space:]", text)
        lines.append(re.sub(r"\[(\^?[^\]]*)\\w", r"[\g<1>[:alnum:]_", text))
    return "\n".join(lines) + "\n"


def main(judge: judging.Judge) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--files", type=int, default=64)
    args = parser.parse_args()
    if shutil.disk_usage(tempfile.gettempdir()).free < args.megabytes * 2_000_000:
        sys.exit(f"{tempfile.gettempdir()}: not enough room for {args.megabytes} MB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "patterns").write_text(patterns())
        (folder / "logs").mkdir()
        corpus(folder / "logs", args.megabytes, args.files)
        plain, unicode, ours = judging.repeated(
            ROUNDS,
            lambda: grep(folder, "C"),
            lambda: grep(folder, "C.UTF-8"),
            lambda: doctor(folder / "logs"),
        )
        peer = min(
            (("grep in C", plain), ("grep in C.UTF-8", unicode)),
            key=lambda one: statistics.median(one[1]),
        )
        seconds, peaks = zip(*ours, strict=True)
        judge.ratio(f"doctor, {args.megabytes} MB of logs", seconds, "s", most=LIMIT, peer=peer)
        shutil.rmtree(folder / "logs")
        (folder / "logs").mkdir()
        small = peak_of(folder, 1)
        judge.figure(
            f"memory for {args.megabytes} MB of logs",
            [max(peaks)],
            "MB",
            most=small + GROWTH,
            peer=("for 1 MB", [small]),
        )
        judge.figure("alarms in 100 MB of healthy logs", [false_alarms(folder)], "alarms", most=0)


def grep(folder: Path, locale: str) -> float:
    """Seconds of grep."""
    argv = ["grep", "-r", "-E", "-c", "-f", str(folder / "patterns"), str(folder / "logs")]
    begun = time.perf_counter()
    done = subprocess.run(
        argv, env={**os.environ, "LC_ALL": locale}, text=True, capture_output=True, check=False
    )
    if done.returncode > 1:
        sys.exit(f"grep: {done.stderr}")
    return time.perf_counter() - begun


def doctor(logs: Path) -> tuple[float, float]:
    """(seconds, peak memory in MB) of the command, start and all."""
    code = (
        "import resource, sys; from kimi_nb.cli import main; main.main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", str(logs)],
        text=True,
        capture_output=True,
        check=True,
    )
    return time.perf_counter() - begun, int(done.stderr.split()[-1]) / 1024


def peak_of(folder: Path, megabytes: int) -> float:
    """The memory that little takes."""
    corpus(folder / "logs", megabytes, 1)
    return doctor(folder / "logs")[1]


def false_alarms(folder: Path) -> int:
    """What is found in 100 MB of healthy logs."""
    sample = b"".join(path.read_bytes() for path in sorted(HEALTHY.glob("*.log")))
    path = folder / "healthy.log"
    path.write_bytes(sample * (100_000_000 // len(sample) + 1))
    found = examiner.examine(path)
    return (not found.ok) + len(found.also) + len(found.cascade) + len(found.unknown)


if __name__ == "__main__":
    sys.exit(judging.judged(main))
