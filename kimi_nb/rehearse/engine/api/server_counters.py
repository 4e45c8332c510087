"""Count HTTP requests, and describe the process, as vLLM's API server does beside vLLM's own metrics.

The names, texts and buckets are those of prometheus-fastapi-instrumentator and of the collectors of
prometheus_client, as measured with vLLM 0.32.0.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from kimi_nb.rehearse.engine.api.exposition import Family, bucket

# Routes whose path contains one of these are not counted.
_LEFT_OUT = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
_FINE = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)
_COARSE = (0.1, 0.5, 1.0)
_HEADER = "Only value of header is respected. Otherwise ignored. No percentile calculated."


class Requests:
    """The HTTP requests of one server, by handler: the path of a route, or "none"."""

    def __init__(self) -> None:
        self._began = time.time()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._sizes: dict[str, list[int]] = {}  # by handler: requests, their bytes, answers' bytes
        self._fine = [0] * (len(_FINE) + 1)
        self._coarse: dict[tuple[str, str], list[int]] = {}
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)

    def counts(self, handler: str) -> bool:
        """Tell whether requests to a handler are counted."""
        return not any(one in handler for one in _LEFT_OUT)

    def add(
        self, handler: str, method: str, status: int, asked: int, answered: int, seconds: float
    ) -> None:
        """Note a request that has ended, with the sizes that the headers give, in bytes."""
        self._requests[handler, method, f"{status // 100}xx"] += 1
        sizes = self._sizes.setdefault(handler, [0, 0, 0])
        sizes[0], sizes[1], sizes[2] = sizes[0] + 1, sizes[1] + asked, sizes[2] + answered
        self._fine[bucket(_FINE, seconds)] += 1
        counts = self._coarse.setdefault((handler, method), [0] * (len(_COARSE) + 1))
        counts[bucket(_COARSE, seconds)] += 1
        self._seconds[handler, method] += seconds

    def lines(self) -> list[str]:
        """Return the families of these requests."""
        total = Family(
            "http_requests_total",
            "counter",
            "Total number of requests by method, status and handler.",
            self._began,
        )
        for (handler, method, status), count in self._requests.items():
            total.add({"handler": handler, "method": method, "status": status}, count)
        fine = Family(
            "http_request_duration_highr_seconds",
            "histogram",
            "Latency with many buckets but no API specific labels. "
            "Made for more accurate percentile calculations. ",
            self._began,
        )
        fine.histogram({}, _FINE, self._fine, sum(self._seconds.values()))
        coarse = Family(
            "http_request_duration_seconds",
            "histogram",
            "Latency with only few buckets by handler. "
            "Made to be only used if aggregation by handler is important. ",
            self._began,
        )
        for (handler, method), counts in self._coarse.items():
            labels = {"handler": handler, "method": method}
            coarse.histogram(labels, _COARSE, counts, self._seconds[handler, method])
        families = (total, self._bytes("request"), self._bytes("response"), fine, coarse)
        return [line for family in families for line in family.lines()]

    def _bytes(self, kind: str) -> Family:
        way, at = ("incoming", 1) if kind == "request" else ("outgoing", 2)
        out = Family(
            f"http_{kind}_size_bytes",
            "summary",
            f"Content length of {way} {kind}s by handler. {_HEADER} ",
            self._began,
        )
        for handler, sizes in self._sizes.items():
            out.summary({"handler": handler}, sizes[0], sizes[at])
        return out


def process() -> list[str]:
    """Return the families of this Python and of its process; times in seconds, sizes in bytes."""
    out = []
    for name, said, key in (
        ("objects_collected", "Objects collected during gc", "collected"),
        ("objects_uncollectable", "Uncollectable objects found during GC", "uncollectable"),
        ("collections", "Number of times this generation was collected", "collections"),
    ):
        family = Family(f"python_gc_{name}_total", "counter", said)
        for generation, stats in enumerate(gc.get_stats()):
            family.add({"generation": str(generation)}, stats[key])
        out += family.lines()
    major, minor, patch = platform.python_version_tuple()
    info = Family("python_info", "gauge", "Python platform information")
    about = {"implementation": platform.python_implementation(), "major": major, "minor": minor}
    info.add({**about, "patchlevel": patch, "version": platform.python_version()}, 1)
    return [*out, *info.lines(), *_of_process()]


def _of_process() -> Iterable[str]:
    # The fields behind the name, which stands in brackets and can hold blanks; see proc(5).
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    booted = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines()
        if line.startswith("btime")
    )
    for name, kind, said, value in (
        ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", float(fields[20])),
        (
            "resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            int(fields[21]) * resource.getpagesize(),
        ),
        (
            "start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            booted + int(fields[19]) / ticks,
        ),
        (
            "cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            (int(fields[11]) + int(fields[12])) / ticks,
        ),
        ("open_fds", "gauge", "Number of open file descriptors.", len(os.listdir("/proc/self/fd"))),
        (
            "max_fds",
            "gauge",
            "Maximum number of open file descriptors.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
    ):
        family = Family(f"process_{name}", kind, said)
        family.add({}, value)
        yield from family.lines()
