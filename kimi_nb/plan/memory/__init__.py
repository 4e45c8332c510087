"""Account for the memory of a device: weights, activations, graphs, buffers, and what is left.

Each thing that takes memory is a `Term` with its formula, source and range. `fit` sums them for
the shape of an engine, `device.usable` is what torch sees of a device, and `calibration` puts what
an engine's own log said in the place of estimates. Everything is pure.

>>> from kimi_nb.params import load
>>> kimi = load.model("k2-thinking").architecture
>>> fit(Shape(tp=8, seqs=1024), kimi, "INT4", 139.8).tokens // 1000  # 715,072 were logged
723
"""

from kimi_nb.plan.memory.account import (
    OTHERS,
    Fit,
    account,
    bar,
    expected,
    fit,
    sentence,
    shares_of,
)
from kimi_nb.plan.memory.buffers import (
    buffer_bytes,
    buffer_need_a2,
    buffer_need_a3,
    buffer_need_hierarchy,
)
from kimi_nb.plan.memory.model_weights import (
    NEEDED,
    PRECISIONS,
    cache_bytes,
    cache_bytes_per_token,
    cached_layers,
    checkpoint_bytes,
    parameters,
    weights_per_rank,
)
from kimi_nb.plan.memory.shape import Shape, defaults
from kimi_nb.plan.memory.states import state_bytes
from kimi_nb.plan.memory.terms import GIB, MIB, Term

__all__ = [
    "GIB",
    "MIB",
    "NEEDED",
    "OTHERS",
    "PRECISIONS",
    "Fit",
    "Shape",
    "Term",
    "account",
    "bar",
    "buffer_bytes",
    "buffer_need_a2",
    "buffer_need_a3",
    "buffer_need_hierarchy",
    "cache_bytes",
    "cache_bytes_per_token",
    "cached_layers",
    "checkpoint_bytes",
    "defaults",
    "expected",
    "fit",
    "parameters",
    "sentence",
    "shares_of",
    "state_bytes",
    "weights_per_rank",
]
