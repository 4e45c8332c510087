"""The groups of engines that a role may be made of: sizes, limits and cache, as memory allows.

A unit is one group of one role. What it can do does not depend on how many there are of it, so that
each is looked at once, however many nodes there are.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb.core.errors import NoLinkFigureError
from kimi_nb.plan import memory, step_tokens
from kimi_nb.plan.memory import device
from kimi_nb.sizing import factors, rank_splits, steady_state, step_time
from kimi_nb.sizing.base_recipes import Base, Part
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.request_load import Workload
from kimi_nb.sizing.roofline import Spread
from kimi_nb.sizing.steady_state import Prompt
from kimi_nb.sizing.step_time import Kind, Time

_STEP = 1024  # contexts are multiples of it
NO_LINK = "speed of the links not published"  # why a unit is refused


@dataclass(frozen=True, eq=False)
class Unit:
    """One group of a role.

    Attributes:
        nodes: The nodes of the group.
        least_batched: --max-num-batched-tokens, where full steps do not need more.
        kind: Its shape and what it serves.
        cache: The value of --kv-cache-dtype, "" as the recipe has it.
        seqs: The limits of sequences (--max-num-seqs) that the memory allows, rising.
        buffers: HCCL_BUFFSIZE in MB by limit of sequences; empty where there is none.
        length: The value of --max-model-len.
    """

    base: Base
    part: Part
    nodes: int
    kind: Kind
    least_batched: int
    cache: str
    seqs: tuple[int, ...]
    buffers: Mapping[int, int]
    length: int
    load: Workload
    table: Factors

    def batched(self, seqs: int) -> int:
        """Return --max-num-batched-tokens for a limit of sequences: every draft fits in a step."""
        if self.part.role == "prefill":
            return self.kind.shape.batched_tokens
        method = self.part.method if self.kind.drafts else ""
        need = step_tokens.needed(self.base.engine, method, self.kind.drafts, seqs)
        return max(self.least_batched, need)

    @functools.cached_property
    def prompt(self) -> Prompt:
        """What the prefill of a prompt takes."""
        return steady_state.prompt(self.kind, self.table, self.load)

    @functools.cached_property
    def _steps(self) -> dict[int, Time]:
        return {}

    def step(self, seqs: int) -> Time:
        """Return the time of a decode step with ``seqs`` sequences on each rank."""
        if seqs not in self._steps:
            context = self.load.input_len + self.load.output_len / 2
            self._steps[seqs] = step_time.decode(self.kind, self.table, seqs=seqs, context=context)
        return self._steps[seqs]

    @property
    def timed(self) -> bool:
        """Whether its times can be estimated; not where the speed of a link is not known."""
        try:
            self.step(self.seqs[0])
            return bool(self.prompt)
        except NoLinkFigureError:
            return False

    @functools.cached_property
    def accepted(self) -> tuple[float, float, float]:
        """Tokens that a step gives a sequence: expected, least, most."""
        return step_time.accepted(self.kind, self.table)


def of(
    base: Base, role: str, most_nodes: int, load: Workload, table: Factors, refused: Counter[str]
) -> Iterator[Unit]:
    """Yield the units of a role within ``most_nodes`` nodes; count those that memory refuses."""
    part = base.parts[role]
    for nodes in rank_splits.nodes(base, part, most_nodes):
        for tp, pp, pcp in rank_splits.of(base, part, nodes, refused):
            for shape in _shapes(base, part, nodes, (tp, pp, pcp)):
                if shape.expert_parallel and base.arch["experts"] % shape.expert_ranks:
                    refused["experts divided evenly over ranks"] += 1
                    continue
                for drafts in _drafts(part):
                    for cache in _caches(base, part):
                        for split in _splits(base, part, shape, drafts):
                            yield from _limited(
                                base, part, replace(shape, dcp=split), nodes, drafts, cache, load,
                                table, refused,
                            )  # fmt: skip


def _shapes(
    base: Base, part: Part, nodes: int, split: tuple[int, int, int]
) -> Iterator[memory.Shape]:
    """Yield the shapes of a split: over all devices, and as documented where that is fewer."""
    tp, pp, pcp = split
    known = part.shape
    sizes = {nodes * base.hardware.devices.count // (tp * pp * pcp)}
    if (nodes, *split) == (part.nodes, known.tp, known.pp, known.pcp):
        sizes.add(known.dp)
    for dp in sorted(sizes):
        shape = replace(known, tp=tp, dp=dp, pp=pp, dcp=1, pcp=pcp)
        spread = dp * pcp > 1 or known.expert_parallel
        yield replace(shape, expert_parallel=spread)


def _drafts(part: Part) -> list[int]:
    """Return the numbers of drafts to consider: those of the recipe, fewer, and none."""
    if part.role == "prefill" or not part.drafts:
        return [part.drafts]
    return sorted({0, 1, part.drafts})


def _caches(base: Base, part: Part) -> list[str]:
    known = factors.facts()["cache_precisions"].get(base.hardware.vendor, [])
    return ["", *(one for one in known if part.shape.cache_bytes > 1)]


def _splits(base: Base, part: Part, shape: memory.Shape, drafts: int) -> list[int]:
    """Return the sizes of decode context parallelism: none, or over all of tp, without drafts."""
    flat = shape.pp == shape.pcp == 1
    able = base.hardware.vendor == "nvidia" and base.layout != "pd" and not drafts and flat
    whole = (
        shape.tp if able and shape.dp == 1 and 1 < shape.tp <= base.hardware.devices.count else 1
    )
    return sorted({1, part.shape.dcp if shape.tp % part.shape.dcp == 0 and able else 1, whole})


def _limited(
    base: Base,
    part: Part,
    shape: memory.Shape,
    nodes: int,
    drafts: int,
    cache: str,
    load: Workload,
    table: Factors,
    refused: Counter[str],
) -> Iterator[Unit]:
    """Yield a unit for each --max-num-batched-tokens, with the sequences that its cache holds."""
    length = _length(base, part, load)
    shape = replace(
        shape,
        cache_bytes=1 if cache.startswith("fp8") else shape.cache_bytes,
        draft_layers=part.shape.draft_layers if drafts else 0,
        draft_tokens=drafts,
        model_len=length,
    )
    draft_parameters = part.draft_parameters if drafts else 0
    seen: set[tuple[int, ...]] = set()
    for batched in _batched(part):
        able: list[int] = []
        buffers: dict[int, int] = {}
        for seqs in _sequences(part):
            limited, buffer = _at(base, part, shape, seqs, batched, drafts)
            found = _fit(limited, base, draft_parameters)
            if found.headroom <= 0 or found.tokens < length:
                refused["capacity/memory"] += 1
            elif part.role != "prefill" and found.requests(load.longest) < seqs:
                refused["capacity/cache"] += 1
            else:
                able.append(seqs)
                buffers[seqs] = buffer
                final = limited
        if not able or (part.role == "decode" and (*able, *buffers.values()) in seen):
            continue
        seen.add((*able, *buffers.values()))
        kind = Kind(
            final,
            base.arch,
            base.precision,
            base.hardware,
            draft_parameters,
            drafts,
            part.method,
            Spread(base.hardware.devices.count, nodes),
        )
        told = buffers if any(buffers.values()) else {}
        unit = Unit(base, part, nodes, kind, batched, cache, tuple(able), told, length, load, table)
        if unit.timed:
            yield unit
        else:
            refused[NO_LINK] += 1


def _length(base: Base, part: Part, load: Workload) -> int:
    """Return the context that a request needs, or the recipe's where that is longer."""
    need = min(-(-load.longest // _STEP) * _STEP, base.request.model.context_length)
    return max(need, part.shape.model_len or 0)


def _sequences(part: Part) -> list[int]:
    if part.role == "prefill":
        return [part.shape.seqs]
    return list(factors.facts()["sequences"])


def _batched(part: Part) -> list[int]:
    if part.role == "decode" or not part.shape.chunked:  # a step has to hold the longest prompt
        return [part.shape.batched_tokens]
    return sorted({*factors.facts()["batched_tokens"], part.shape.batched_tokens})


def _at(
    base: Base, part: Part, shape: memory.Shape, seqs: int, batched: int, drafts: int
) -> tuple[memory.Shape, int]:
    """Return the shape with these limits, and the HCCL_BUFFSIZE that it needs (0: as it is)."""
    if part.role != "prefill":
        need = step_tokens.needed(base.engine, part.method if drafts else "", drafts, seqs)
        batched = max(batched, need)
    buffer = 0
    if shape.buffer_mib and part.role != "prefill" and shape.expert_parallel and shape.dp > 1:
        buffer = max(_buffer(base, shape, seqs * (1 + drafts)), shape.buffer_mib)
        shape = replace(shape, buffer_mib=buffer)
    return replace(shape, seqs=seqs, batched_tokens=batched), buffer


def _buffer(base: Base, shape: memory.Shape, tokens: int) -> int:
    """Return HCCL_BUFFSIZE for a full step, as the rule capacity/hccl-buffer works it out."""
    arch, each = base.arch, -(-tokens // shape.tp)
    hidden, experts = arch.get("latent_moe_size", arch["hidden_size"]), arch["experts"]
    if base.hardware.dispatch == "a2":
        need = memory.buffer_need_a2(each, hidden, experts, arch["experts_per_token"])[0]
    else:
        local = -(-experts // shape.expert_ranks)
        need = memory.buffer_need_a3(
            each, hidden, shape.expert_ranks, local, arch["experts_per_token"]
        )[0]
    return -(-need // 100) * 100


def account(base: Base, part: Part, shape: memory.Shape) -> memory.Fit:
    """Return what a role of a recipe needs of a device in this shape."""
    return _fit(shape, base, part.draft_parameters)


def _fit(shape: memory.Shape, base: Base, draft_parameters: int) -> memory.Fit:
    size = device.usable(base.hardware)
    return _account(shape, tuple(base.arch.items()), base.precision, size, draft_parameters)


@functools.lru_cache(maxsize=50_000)
def _account(
    shape: memory.Shape,
    arch: tuple[tuple[str, int], ...],
    precision: str,
    size: memory.Term,
    draft_parameters: int,
) -> memory.Fit:
    return memory.fit(shape, dict(arch), precision, size, draft_parameters)


def graph_sizes(base: Base, unit: Unit, seqs: int) -> list[int]:
    """Return the sizes of graphs up to a full step; [] where the recipe leaves them to the engine."""
    given: Any = unit.part.flags.get("compilation-config.cudagraph_capture_sizes")
    if not isinstance(given, list):
        return []
    each = 1 + unit.kind.drafts
    counts = [one for one in factors.facts()["sequences"] if one <= seqs]
    return [count * each for count in counts]
