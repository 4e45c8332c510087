"""Read what an engine says about memory in its log, whichever version and device it is of.

>>> log = read(
...     [
...         "Initializing a V1 LLM engine (v0.20.2) with config: model='m', x",
...         "(Worker_TP0 pid=1) Available KV cache memory: 46.80 GiB",
...     ],
...     "run.log",
... )
>>> log.version, log.model, log.cache
('0.20.2', 'm', 46.8)

A log is another program's output, so it is read line by line with bounds, and a line that begins as
one of these and does not end so is an error rather than a gap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.core.errors import ParameterError
from kimi_nb.core.marks import MARK

# Longer lines are no lines of an engine's memory report.
LONGEST = 20_000
# The head of each line of a stand-in, also behind what a runtime of containers puts before it.
_STAND_IN = re.compile(rf"(?<![\w'\"]){MARK}:? \(\w+ pid=\d+\)")
MOST_LINES = 2_000_000
_N = r"(-?\d{1,6}(?:\.\d{1,6})?)"
_ENGINE = re.compile(
    r"Initializing a V[01] LLM engine \(v([0-9][^)\s]{0,60})\) with config: model='([^']{1,512})'"
)
# Which core of an engine says so: each has a name of its own, and begins once.
_CORE = re.compile(r"\((EngineCore\w*) pid=\d")
_ARGS = re.compile(r"non-default args: \{")
# What a line begins with, and the whole of it with its figures. Sizes are in GiB (2^30 B); older
# versions and vllm-ascend write GB for the same.
_LINES: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = (
    ("Model loading took", re.compile(rf"Model loading took {_N} Gi?B"), ("weights",)),
    (
        "Loading model weights took",
        re.compile(rf"Loading model weights took {_N} Gi?B"),
        ("weights",),
    ),
    (
        "model weights take",
        re.compile(
            rf"model weights take {_N}\s?GiB; non_torch_memory takes {_N}\s?GiB; PyTorch activation "
            rf"peak memory takes {_N}\s?GiB; the rest of the memory reserved for KV Cache is "
            rf"{_N}\s?GiB"
        ),
        ("weights", "contexts", "activations", "cache"),
    ),
    (
        "Available KV cache memory:",
        re.compile(rf"Available KV cache memory: {_N} GiB"),
        ("cache",),
    ),
    ("KV cache size:", re.compile(r"[A-Z]PU KV cache size: (\d[\d,]{0,15}) tokens"), ("tokens",)),
    (
        "Graph capturing finished",
        re.compile(rf"Graph capturing finished in {_N} secs?, took {_N} GiB"),
        ("", "graphs"),
    ),
    (
        "graph pool memory:",
        re.compile(rf"graph pool memory: {_N} GiB \(actual\), {_N} GiB \(estimated\)"),
        ("graphs", "graphs_estimated"),
    ),
    (
        "Desired GPU memory utilization is",
        re.compile(
            rf"Free memory on device[^(]{{0,40}} ?\({_N}/{_N} GiB\) on startup\. Desired GPU memory "
            rf"utilization is \({_N}, {_N} GiB\)\."
        ),
        ("free", "device", "utilization", "budget"),
    ),
    (
        "Actual usage",
        re.compile(
            rf"Actual usage(?::| is) {_N} GiB for (?:consumed memory \(weights \+ non-torch\)|"
            rf"weights?), {_N} GiB for peak activation,"
        ),
        ("consumed", "activations"),
    ),
    ("for non-torch memory", re.compile(rf"{_N} GiB for non-torch memory"), ("contexts",)),
    (
        "Auto set (",
        re.compile(
            rf"Auto set \({_N}/{_N}\) GiB for KV cache on node \d+, with {_N} GiB requested memory "
            rf"for the worker\. {_N} GiB memory was consumed"
        ),
        ("cache", "device", "budget", "consumed"),
    ),
)
# The settings that decide memory, as the engine lists what differs from its defaults. A value is
# read up to what ends it, so that none is read in part.
_SETTINGS = {
    name: re.compile(
        rf"'{name}': (True|False|'[a-z0-9_]{{1,20}}'|-?\d{{1,12}}(?:\.\d{{1,20}})?)[,}}]"
    )
    for name in (
        "tensor_parallel_size",
        "data_parallel_size",
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "gpu_memory_utilization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "enable_expert_parallel",
        "kv_cache_dtype",
    )
}


_BEGINS = ("Initializing a V", "non-default args: {", *(begins for begins, _, _ in _LINES))


def lines_of(block: bytes) -> list[str]:
    r"""Return the lines of a part of a log that `read` takes something from, in their order.

    >>> lines_of(b"loaded\nModel loading took 71.16 GiB and 1 s\nready\n")
    ['Model loading took 71.16 GiB and 1 s']
    """
    begins = set()
    for words in _BEGINS:
        at = block.find(words.encode())
        while at >= 0:
            begins.add(block.rfind(b"\n", 0, at) + 1)
            after = block.find(b"\n", at)
            at = block.find(words.encode(), after) if after >= 0 else -1
    return [
        block[at : at + LONGEST].partition(b"\n")[0].decode("utf-8", "replace")
        for at in sorted(begins)
    ]


@dataclass(frozen=True)
class Log:
    """What a log says about one engine; sizes in GiB of one device, None where it says nothing.

    Attributes:
        settings: The settings that the engine listed, by their names.
        lines: How many lines of the report were found.
    """

    name: str
    version: str = ""
    model: str = ""
    settings: Mapping[str, float | bool | str] = field(default_factory=dict)
    weights: float | None = None
    activations: float | None = None
    contexts: float | None = None
    graphs: float | None = None
    graphs_estimated: float | None = None
    cache: float | None = None
    tokens: int | None = None
    device: float | None = None
    utilization: float | None = None
    budget: float | None = None
    lines: int = 0


def read(lines: Iterable[str], name: str) -> Log:
    """Read the lines of a log; ``name`` is what errors call it.

    Of several ranks the largest weights and buffers and the smallest cache count, as they do for
    the engine. Raises ParameterError for a log of two engines or of a stand-in, a line that is cut,
    and a log that says nothing about memory.
    """
    found: dict[str, list[float]] = {}
    engines: list[tuple[str, str]] = []
    settings: dict[str, float | bool | str] = {}
    begun: Counter[str] = Counter()
    starts = count = 0
    for number, line in enumerate(lines, 1):
        if number > MOST_LINES:
            raise ParameterError(
                f"{name}: more than {MOST_LINES:,} lines; the report of an engine's start is in its "
                "first thousands. Cut the log after 'Application startup complete'."
            )
        line = line[:LONGEST]
        if _STAND_IN.search(line):
            raise ParameterError(
                f"{name}: line {number}: {MARK}: a stand-in wrote this log, which has no memory of any "
                "device to tell of. Give the log of an engine that has started on your node."
            )
        if match := _ENGINE.search(line):
            engines.append((match[1], match[2]))
            begun.update(_CORE.findall(line, 0, match.start()))
        if _ARGS.search(line):
            starts += 1
            settings = _settings(line)
        count += _figures(line, f"{name}: line {number}", found)
    starts = max([starts, *begun.values()])
    if len(set(engines)) > 1 or starts > 1:
        said = ", ".join(f"{model} by vLLM {version}" for version, model in dict.fromkeys(engines))
        raise ParameterError(
            f"{name}: the log is of more than one start of an engine ({said or starts}). Give the "
            "log of one start; a restart begins where 'non-default args' or 'Initializing' stands again."
        )
    if not count:
        raise ParameterError(
            f"{name}: no line about memory: 'Available KV cache memory', 'GPU KV cache size' or "
            "'Model loading took' is wanted. Give the log of an engine that has started."
        )
    version, model = engines[0] if engines else ("", "")
    return _log(name, version, model, settings, found, count)


def join(logs: Sequence[Log]) -> Log:
    """Return the logs of one engine's ranks, which are of one start each, as one.

    Raises ParameterError if they are of different engines.
    """
    if len(logs) == 1:
        return logs[0]
    for what, of in (
        ("vLLM", lambda log: log.version),
        ("model", lambda log: log.model),
        ("settings", lambda log: dict(log.settings)),
        ("memory of the device", lambda log: log.device),
    ):
        telling = [log for log in logs if of(log)]
        for log in telling[1:]:
            if of(log) != of(telling[0]):
                raise ParameterError(
                    f"{telling[0].name}, {log.name}: logs of two engines: {what} {of(telling[0])} "
                    f"and {of(log)}. Give the logs of one engine's ranks, of one start."
                )

    def told(name: str, choose: Callable[[list[float]], float]) -> Any:
        values = [value for log in logs if (value := getattr(log, name)) is not None]
        return choose(values) if values else None

    return Log(
        name=", ".join(log.name for log in logs),
        version=next((log.version for log in logs if log.version), ""),
        model=next((log.model for log in logs if log.model), ""),
        settings=next((log.settings for log in logs if log.settings), {}),
        **{name: told(name, max) for name in ("weights", "activations", "contexts", "graphs")},
        **{name: told(name, max) for name in ("graphs_estimated", "utilization")},
        **{name: told(name, min) for name in ("cache", "tokens", "device", "budget")},
        lines=sum(log.lines for log in logs),
    )


def _figures(line: str, where: str, found: dict[str, list[float]]) -> int:
    """Add the figures of a line; return how many statements it has."""
    count = 0
    for begins, pattern, names in _LINES:
        if begins not in line:
            continue
        match = pattern.search(line)
        if match is None:
            raise ParameterError(
                f"{where}: begins as '{begins} ...' and is cut, or is of a version that is not known "
                f"here: {line.strip()[-120:]!r}. Give the whole log, as the engine wrote it."
            )
        count += 1
        for name, text in zip(names, match.groups(), strict=True):
            if name:
                found.setdefault(name, []).append(float(text.replace(",", "")))
    return count


def _settings(line: str) -> dict[str, float | bool | str]:
    out: dict[str, float | bool | str] = {}
    for name, pattern in _SETTINGS.items():
        if match := pattern.search(line):
            text = match[1]
            if text in ("True", "False"):
                out[name] = text == "True"
            else:
                out[name] = text.strip("'") if text.startswith("'") else float(text)
    return out


def _log(
    name: str,
    version: str,
    model: str,
    settings: Mapping[str, float | bool | str],
    found: Mapping[str, list[float]],
    count: int,
) -> Log:
    most = {key: max(values) for key, values in found.items()}
    least = {key: min(values) for key, values in found.items()}
    activations = most.get("activations")
    if activations is not None and "graphs_estimated" in most and "contexts" not in most:
        activations -= most["graphs_estimated"]  # since 0.21 it stands in the peak as well
    utilization = most.get("utilization", settings.get("gpu_memory_utilization"))
    return Log(
        name=name,
        version=version,
        model=model,
        settings=settings,
        weights=most.get("weights"),
        activations=activations,
        contexts=most.get("contexts"),
        graphs=most.get("graphs"),
        graphs_estimated=most.get("graphs_estimated"),
        cache=least.get("cache"),
        tokens=int(least["tokens"]) if "tokens" in least else None,
        device=least.get("device"),
        utilization=utilization if isinstance(utilization, float) else None,
        budget=least.get("budget"),
        lines=count,
    )
