"""Redaction of logs: ten times the bytes in ten times the time, whatever stands in them.

python benchmarks/redaction.py
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import judging

from kimi_nb.core import redacted_files

MEGABYTES, TIMES = 8, 5
ORDINARY = (
    b"INFO 11-23 05:50:10 [core.py:123] Avg prompt throughput: 1234.5 tokens/s, Running: 8 reqs, "
    b"Waiting: 0 reqs, GPU KV cache usage: 12.3%, Prefix cache hit rate: 45.6%\n"
)
# Lines that a pattern could go back over again and again.
HARD = (
    b"password=" + b" " * 90 + b'password="' + b"-eyJaaaaaaaaa" * 5 + b"://a:" * 9 + b"bearer " * 9
)
SECRETS = ORDINARY * 20 + b"PGPASSWORD=hunter2 curl -u me:hunter2 http://127.0.0.1/\n"
TEXTS = {
    "an ordinary log": ORDINARY,
    "a log with secrets": SECRETS,
    "one line without an end": HARD,
}


def main(judge: judging.Judge) -> None:
    """Each text once, and ten times as long."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in TEXTS.items():
            path = Path(folder) / "x.log"
            small = [seconds(path, text, MEGABYTES) for _ in range(TIMES)]
            large = [seconds(path, text, 10 * MEGABYTES) for _ in range(3)]
            judge.ratio(
                f"{name}, {10 * MEGABYTES} MB",
                large,
                "s",
                most=15.0,
                peer=(f"{MEGABYTES} MB", small),
            )
        path.write_bytes(ORDINARY * (20_000_000 // len(ORDINARY)))
        tracemalloc.start()
        redacted_files.redact(path, ["planted-secret-4711"])
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        judge.figure("memory for 20 MB", [peak], "MB", most=16.0, peer=("a window", [1.1]))


def seconds(path: Path, text: bytes, megabytes: int) -> float:
    """What a file of this size takes, of the processor."""
    path.write_bytes(text * (megabytes * 1_000_000 // len(text)))
    begun = time.process_time()
    redacted_files.redact(path, ["planted-secret-4711"])
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(judging.judged(main))
