"""The figures of a run from the times of its requests, under the keys of ``vllm bench serve``.

>>> result = of([Timed(8, ttft=0.1, itl=[0.02, 0.02], latency=0.14, output_len=3)], duration=1.0)
>>> result["completed"], round(result["mean_ttft_ms"], 3), round(result["mean_tpot_ms"], 3)
(1, 100.0, 20.0)
>>> goodput(result, ttft_ms=500), goodput(result, ttft_ms=50)
(1.0, 0.0)

The definitions are vLLM's. The time per output token is (latency - TTFT) / (tokens - 1), and
requests of one token have none. Throughput counts completed requests over the whole duration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kimi_nb.prove.bench.timed_stream import Timed

PERCENTILES = (50, 90, 99)


def of(timed: Sequence[Timed], duration: float) -> dict[str, Any]:
    """Return the figures of a run and the times of every request.

    The times are kept as by ``--save-detailed``. Figures are in ms, the lists of times in seconds.
    """
    done = [one for one in timed if one.ok]
    lens = [one.output_len if one.ok else 0 for one in timed]
    tokens_in, tokens_out = sum(one.prompt_len for one in done), sum(lens)
    peak, at_once = _peaks(done)
    out: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(timed) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / duration,
        "request_goodput": None,
        "output_throughput": tokens_out / duration,
        "total_token_throughput": (tokens_in + tokens_out) / duration,
        "max_output_tokens_per_s": peak,
        "max_concurrent_requests": at_once,
        "input_lens": [one.prompt_len for one in timed],
        "output_lens": lens,
        "ttfts": [one.ttft for one in timed],
        "itls": [one.itl for one in timed],
        "latencies": [one.latency for one in timed],
        "start_times": [one.start for one in timed],
        "generated_texts": [one.text for one in timed],
        "errors": [one.error for one in timed],
    }
    for name, values in (
        ("ttft", [one.ttft for one in done]),
        (
            "tpot",
            [(one.latency - one.ttft) / (one.output_len - 1) for one in done if one.output_len > 1],
        ),
        ("itl", [gap for one in done for gap in one.itl]),
        ("e2el", [one.latency for one in done]),
    ):
        out |= _statistics(name, values)
    return out


def _statistics(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = np.asarray(seconds or [0.0]) * 1000
    return {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
        **{f"p{at}_{name}_ms": float(np.percentile(values, at)) for at in PERCENTILES},
    }


def _peaks(done: Sequence[Timed]) -> tuple[float, int]:
    """Return (most chunks in one second, most requests active in one second).

    Both are counted in whole seconds from the start of the first request.
    """
    if not done:
        return 0.0, 0
    first = min(one.start for one in done)
    span = math.ceil(max(one.start + one.latency for one in done) - first) + 1
    tokens, active = np.zeros(span), np.zeros(span)
    for one in done:
        at = np.cumsum([one.start - first + one.ttft, *one.itl]).astype(int)
        np.add.at(tokens, at[at < span], 1)
        active[int(one.start - first) : int(one.start - first + one.latency) + 1] += 1
    return float(tokens.max()), int(active.max())


def goodput(
    result: Mapping[str, Any], ttft_ms: float = math.inf, tpot_ms: float = math.inf
) -> float | None:
    """Return the requests a second within both limits.

    They are counted as by vLLM's ``--goodput ttft:A tpot:B``. The result is None if ``result``
    lacks the times of its requests.
    """
    if result.get("ttfts") is None or result.get("output_lens") is None:
        return None
    good = 0
    for ttft, itl, tokens, error in zip(
        result["ttfts"], result["itls"], result["output_lens"], result["errors"], strict=True
    ):
        if error or not tokens:
            continue
        tpot = sum(itl) / (tokens - 1) if tokens > 1 else 0.0
        good += ttft * 1000 <= ttft_ms and tpot * 1000 <= tpot_ms
    return good / result["duration"]
