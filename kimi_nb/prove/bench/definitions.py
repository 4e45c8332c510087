"""What the figures of a load client mean, and which of them the other client defines otherwise.

>>> sorted(of("kimi_nb"))[:3]
['e2el', 'failed', 'itl']
>>> said("vllm").partition(":")[0]
'Not to be compared with figures of kimi_nb'
"""

from __future__ import annotations

from kimi_nb.core import data_files

NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "end to end latency",
    "output_throughput": "tokens/s",
    "total_input_tokens": "input tokens",
    "failed": "failed requests",
}


def of(tool: str) -> dict[str, str]:
    """Return the meaning of each figure of a tool, with the reason where the other one's differs."""
    facts = data_files.facts("prove/load_clients")
    other = _other(tool)
    return facts["same"] | {
        name: f"{one[tool]}; {other}: {one[other]}. Reason: {one['why']}"
        for name, one in facts["differs"].items()
    }


def said(tool: str) -> str:
    """Return which figures of a tool cannot be compared with the other tool's, and why."""
    other = _other(tool)
    parts = (
        f"{NAMES[name]} ({one['why']})"
        for name, one in data_files.facts("prove/load_clients")["differs"].items()
    )
    return f"Not to be compared with figures of {other}: {'; '.join(parts)}."


def differing() -> frozenset[str]:
    """Return the figures that the two tools define differently."""
    return frozenset(data_files.facts("prove/load_clients")["differs"])


def _other(tool: str) -> str:
    return "vllm" if tool == "kimi_nb" else "kimi_nb"
