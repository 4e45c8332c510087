"""The figures of a run by vLLM's own arithmetic, from the times of its requests.

    .engine/bin/python vllm_figures.py RESULT.json

The file is a result under the keys of ``vllm bench serve --save-detailed``. Needs the engine's
environment and none of ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics

PERCENTILES = (50, 90, 99)


def main(path: str) -> None:
    result = json.loads(Path(path).read_text())
    outputs = [
        RequestFuncOutput(
            success=not error,
            latency=ttft + sum(itl),
            output_tokens=tokens,
            ttft=ttft,
            itl=itl,
            prompt_len=words,
            error=error,
            start_time=start,
        )
        for ttft, itl, tokens, words, error, start in zip(
            *(
                result[name]
                for name in ("ttfts", "itls", "output_lens", "input_lens", "errors", "start_times")
            ),
            strict=True,
        )
    ]
    metrics, lens = calculate_metrics([], outputs, result["duration"], None, [*PERCENTILES], {})
    found = {
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
        "output_lens": lens,
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        for kind in ("mean", "median", "std"):
            found[f"{kind}_{name}_ms"] = float(getattr(metrics, f"{kind}_{name}_ms"))
        for at, value in getattr(metrics, f"percentiles_{name}_ms"):
            found[f"p{at}_{name}_ms"] = float(value)
    print(json.dumps(found, default=float))


if __name__ == "__main__":
    main(sys.argv[1])
