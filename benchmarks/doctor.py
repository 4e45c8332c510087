"""How fast logs are examined, beside grep with the same patterns; and false alarms.

    python benchmarks/doctor.py [--megabytes 1024] [--files 64]

Asked for: at most 0.8 of the time of `grep -E -f` with the same patterns on the same files in the
same minute; memory that does not grow with the logs; no alarm in 100 MB of healthy logs. grep is
asked for a count (-c), so that it prints nothing, in the C locale and in a UTF-8 one: the faster of
the two is compared.
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

from kimi_nb.diagnose import prefilter as scan
from kimi_nb.diagnose import signatures

LIMIT = 0.8
ROUNDS = 3
HEALTHY = Path(__file__).parent.parent / "tests" / "logs" / "healthy"
FAILED = Path(__file__).parent.parent / "kimi_nb/data/sample_logs/a3-3/rank_31.log"


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
    for one in [*known, *scan.ERRORS]:
        text = re.sub(r"\(\?(?:P<\w+>|:)", "(", one).replace("*?", "*").replace("+?", "+")
        text = re.sub(r"\[([^\]]*)\\d", r"[\g<1>0-9", text).replace(r"\d", "[0-9]")
        text = re.sub(r"\[(\^?[^\]]*)\\s", r"[\g<1>[:space:]", text)
        lines.append(re.sub(r"\[(\^?[^\]]*)\\w", r"[\g<1>[:alnum:]_", text))
    return "\n".join(lines) + "\n"


def measured(argv: list[str], **environment: str) -> float:
    """Seconds of a command."""
    begun = time.perf_counter()
    with subprocess.Popen(
        argv,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        _, err = process.communicate()
        if process.returncode > 1:
            sys.exit(f"{argv[0]}: {err}")
    return time.perf_counter() - begun


def main() -> int:
    """Measure, print, and say whether the limits were kept."""
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
        ratio, peak = compared(folder)
        shutil.rmtree(folder / "logs")
        (folder / "logs").mkdir()
        small = peak_of(folder, 1)
        alarms = false_alarms(folder)
    print(
        f"ratio {ratio:.2f} (limit {LIMIT}), memory {peak:.0f} MB for {args.megabytes} MB of "
        f"logs, {small:.0f} MB for 1 MB, false alarms {alarms}"
    )
    return 0 if ratio <= LIMIT and peak < small + 40 and not alarms else 1


def compared(folder: Path) -> tuple[float, float]:
    """(our time over grep's, our peak memory in MB)."""
    grep = ["grep", "-r", "-E", "-c", "-f", str(folder / "patterns"), str(folder / "logs")]
    times: dict[str, list[float]] = {"grep, C": [], "grep, C.UTF-8": [], "doctor": []}
    peak = 0.0
    for _ in range(ROUNDS):
        times["grep, C"].append(measured(grep, LC_ALL="C"))
        times["grep, C.UTF-8"].append(measured(grep, LC_ALL="C.UTF-8"))
        seconds, memory = doctor(folder / "logs")
        times["doctor"].append(seconds)
        peak = max(peak, memory)
    for name, seconds in times.items():
        print(f"{name:15s} {' '.join(f'{one:6.2f}' for one in seconds)} s", flush=True)
    middle = {name: statistics.median(seconds) for name, seconds in times.items()}
    return middle["doctor"] / min(middle["grep, C"], middle["grep, C.UTF-8"]), peak


def doctor(logs: Path) -> tuple[float, float]:
    """(seconds, peak memory in MB) of the command, start and all."""
    code = (
        "import resource, sys; from kimi_nb import cli; cli.main(sys.argv[1:]); "
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
    from kimi_nb.diagnose import doctor as examiner

    sample = b"".join(path.read_bytes() for path in sorted(HEALTHY.glob("*.log")))
    path = folder / "healthy.log"
    path.write_bytes(sample * (100_000_000 // len(sample) + 1))
    found = examiner.examine(path)
    return (not found.ok) + len(found.also) + len(found.cascade) + len(found.unknown)


if __name__ == "__main__":
    sys.exit(main())
