"""Simulate a prefix cache on a trace: the share of prompt tokens that it holds, by its size.

>>> from kimi_nb.sizing.request_load import Request
>>> trace = [
...     Request(1024, 1, 0.0, (1, 2)),
...     Request(1024, 1, 1.0, (1, 3)),
...     Request(1024, 1, 2.0, (1, 2)),
... ]
>>> hits(trace, 10), hits(trace, 2)
(0.5, 0.3333333333333333)

Blocks are dropped as vLLM does: the one that was used longest ago first. A block counts only if
all before it of the same prompt are there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kimi_nb.sizing.request_load import BLOCK, Request


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the cache: tokens that it holds, their bytes, and the share of prompts it gives."""

    tokens: int
    bytes: float
    hit: float


def cached(requests: Sequence[Request], blocks: int) -> list[int]:
    """Return the tokens of each prompt that a cache of ``blocks`` blocks holds when it arrives."""
    kept: OrderedDict[int, None] = OrderedDict()
    found = []
    for one in requests:
        there = 0
        for name in one.blocks:
            if name not in kept:
                break
            there += 1
        found.append(min(there * BLOCK, one.input_len))
        for name in reversed(one.blocks):  # the beginning of a prompt is dropped last
            kept[name] = None
            kept.move_to_end(name)
        while len(kept) > max(blocks, 0):
            kept.popitem(last=False)
    return found


def hits(requests: Sequence[Request], blocks: int) -> float:
    """Return the share of all prompt tokens that a cache of ``blocks`` blocks holds, 0 to 1."""
    whole = sum(one.input_len for one in requests)
    return sum(cached(requests, blocks)) / whole if whole else 0.0


def curve(requests: Sequence[Request], device_tokens: int, per_token: float) -> list[Size]:
    """Return the hit rate at the devices' own cache, and at larger ones up to all blocks.

    What is above ``device_tokens`` has to be offloaded, to host memory or a store.
    """
    every = len({name for one in requests for name in one.blocks}) * BLOCK
    steps: list[int] = []
    tokens = max(device_tokens, BLOCK)
    while tokens < every and len(steps) < 8:
        steps.append(tokens)
        tokens *= 2
    steps.append(min(max(tokens, BLOCK), max(every, BLOCK)))
    return [Size(one, one * per_token, hits(requests, one // BLOCK)) for one in steps]
