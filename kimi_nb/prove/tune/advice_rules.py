"""The rules of `advice`. Thresholds are at the top; each is our own unless it names a source."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from kimi_nb.prove.tune.advice_registry import Advice, Cell, Facts, rule

LOSS = 0.03  # loss of throughput that counts, if it also exceeds the spread
SLOWER = 2.0  # growth of the TTFT that a growing load alone does not explain, as a factor
FULL = 0.95  # fraction of the cache
MOST_MEMORY = 0.95  # of a device; above it graphs and buffers lack room (capacity/headroom)
KNEE_GAIN, KNEE_COST = 0.10, 1.6  # fraction of throughput gained, factor of the TPOT
RARELY = 0.2  # fraction of the steps that accept the last draft token


@rule("failures")
def failures(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report failed requests: the others were measured under less load than stated."""
    for cell in cells:
        if cell.failed:
            lower = [
                one.concurrency
                for one in cells
                if one.concurrency < cell.concurrency and not one.failed
            ]
            yield Advice(
                "failures",
                "concurrency",
                cell.concurrency,
                lower[-1] if lower else 1,
                "figures that can be compared; look at the engines' logs first",
                f"{cell.failed} requests failed at concurrency {cell.concurrency}",
            )
            return


@rule("best-concurrency")
def best_concurrency(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report a concurrency beyond the best one: slower answers and fewer tokens."""
    best, last = max(cells, key=lambda cell: cell.throughput), cells[-1]
    lost = 1 - last.throughput / best.throughput
    if best is not last and lost > max(LOSS, best.spread, last.spread):
        yield Advice(
            "best-concurrency",
            "concurrency",
            last.concurrency,
            best.concurrency,
            f"{best.throughput / last.throughput - 1:+.0%} output tokens/s, TTFT "
            f"{best.ttft_ms:.0f} in place of {last.ttft_ms:.0f} ms",
            f"{_all(cells)}: the best is not the highest",
        )


@rule("measure-higher")
def measure_higher(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report that the best concurrency was not reached.

    Throughput still grows at the highest one, and the engines could run more requests at once.
    """
    if len(cells) < 2:
        return
    before, last = cells[-2], cells[-1]
    gain = last.throughput / before.throughput - 1
    if last.concurrency <= facts.places and gain > max(KNEE_GAIN, before.spread, last.spread):
        yield Advice(
            "measure-higher",
            "concurrency",
            last.concurrency,
            2 * last.concurrency,
            "more output tokens/s, until places, cache or devices are full",
            f"{before.throughput:.1f} tokens/s at {before.concurrency}, "
            f"{last.throughput:.1f} at {last.concurrency}: still {gain:+.0%}",
        )


@rule("queueing")
def queueing(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report requests that queue because there are more than max-num-seqs x ranks.

    Each of them waits for another one to end, and so does its first token.
    """
    within = [cell for cell in cells if cell.concurrency <= facts.places]
    for cell in cells:
        late = within and cell.ttft_ms > SLOWER * within[-1].ttft_ms * max(
            1.0, cell.concurrency / within[-1].concurrency
        )
        if cell.concurrency <= facts.places or not (late or cell.waiting):
            continue
        seen = (
            f"concurrency {cell.concurrency} > max-num-seqs {facts.seqs} x {facts.ranks} "
            f"ranks = {facts.places}; TTFT {cell.ttft_ms:.0f} ms"
            + (f", {within[-1].ttft_ms:.0f} at {within[-1].concurrency}" if within else "")
            + (f"; {cell.waiting:.0f} waiting" if cell.waiting else "")
        )
        wanted = math.ceil(cell.concurrency / facts.ranks)
        room = _room(facts, cell)
        if room is None or room > facts.seqs:
            held = min(wanted, room or wanted)
            yield Advice(
                "queueing",
                f"{facts.decode}max-num-seqs",
                facts.seqs,
                held,
                f"{held * facts.ranks} requests at once and none of them waits"
                if held == wanted
                else f"{held * facts.ranks} at once; the cache holds no more",
                seen,
            )
        yield Advice(
            "queueing",
            "concurrency",
            cell.concurrency,
            facts.places,
            "no request waits for a place",
            seen,
        )
        return


@rule("prefill-chunk")
def prefill_chunk(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report prompts that arrive together and hold more than max-num-batched-tokens.

    A step takes no more prompt tokens than that. The prompts are processed in several steps, each
    of which delays the first tokens of the rest.
    """
    for before, cell in pairwise(cells):
        arriving = math.ceil(cell.concurrency / facts.prefill_ranks) * cell.input_len
        more = cell.concurrency / before.concurrency
        if (
            arriving > facts.batched_tokens
            and cell.ttft_ms > SLOWER * before.ttft_ms
            and cell.ttft_ms > 1.2 * more * before.ttft_ms
        ):
            steps = math.ceil(arriving / facts.batched_tokens)
            yield Advice(
                "prefill-chunk",
                f"{facts.prefill}max-num-batched-tokens",
                facts.batched_tokens,
                2 * facts.batched_tokens,
                f"prompts that arrive together are read in {math.ceil(steps / 2)} in "
                f"place of {steps} steps; larger activations, longer pauses between "
                "tokens",
                f"{arriving} prompt tokens a rank at concurrency {cell.concurrency} > "
                f"{facts.batched_tokens}; TTFT {before.ttft_ms:.0f} ms at "
                f"{before.concurrency}, {cell.ttft_ms:.0f} at {cell.concurrency}",
            )
            return


@rule("batch-too-large")
def batch_too_large(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report a batch that slows down each token without raising the throughput."""
    for before, cell in pairwise(cells):
        gain = cell.throughput / before.throughput - 1
        if (
            cell.concurrency <= facts.places
            and before.tpot_ms > 0
            and gain < KNEE_GAIN
            and cell.tpot_ms > KNEE_COST * before.tpot_ms
        ):
            yield Advice(
                "batch-too-large",
                f"{facts.decode}max-num-seqs",
                facts.seqs,
                max(1, math.ceil(before.concurrency / facts.ranks)),
                f"TPOT {before.tpot_ms:.1f} in place of {cell.tpot_ms:.1f} ms at "
                "nearly the same throughput",
                f"{before.throughput:.1f} tokens/s at {before.concurrency}, "
                f"{cell.throughput:.1f} ({gain:+.0%}) at {cell.concurrency}; TPOT x "
                f"{cell.tpot_ms / before.tpot_ms:.1f}",
            )
            return


@rule("preemptions")
def preemptions(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report preemptions: the cache ran out while requests were running.

    Some of them lost their cache and are computed again.
    """
    for cell in cells:
        if cell.preemptions:
            room = _room(facts, cell)
            held = room if room is not None and room < facts.seqs else max(1, facts.seqs * 3 // 4)
            yield Advice(
                "preemptions",
                f"{facts.decode}max-num-seqs",
                facts.seqs,
                held,
                "no request is computed twice; fewer at once",
                f"{cell.preemptions:.0f} preemptions at concurrency {cell.concurrency}"
                + (
                    f"; the cache is estimated to hold {room} of {facts.seqs} requests"
                    if room is not None
                    else ""
                ),
            )
            return


@rule("cache-full")
def cache_full(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report a full cache: no request is admitted then, whatever max-num-seqs allows."""
    for cell in cells:
        share = facts.utilization
        if (
            cell.cache is not None
            and cell.cache >= FULL
            and share is not None
            and share < MOST_MEMORY
        ):
            yield Advice(
                "cache-full",
                f"{facts.decode}gpu-memory-utilization",
                share,
                round(min(share + 0.02, MOST_MEMORY), 2),
                "more cache, so that more requests are admitted; less room for graphs and buffers",
                f"cache {cell.cache:.0%} full at concurrency {cell.concurrency}",
            )
            return


@rule("drafts-too-long")
def drafts_too_long(cells: tuple[Cell, ...], facts: Facts) -> Iterator[Advice]:
    """Report drafts so long that their last tokens are nearly always rejected.

    Checking them takes time. If each draft token is accepted with probability a, n of them give (1
    - a^(n+1)) / (1 - a) tokens a step (Leviathan et al. 2023).
    """
    known = [cell.acceptance for cell in cells if cell.acceptance is not None]
    if not known or facts.drafts < 2:
        return
    rate = sorted(known)[len(known) // 2]
    chance = _chance(rate, facts.drafts)
    if chance**facts.drafts >= RARELY:
        return
    fewer = max([n for n in range(1, facts.drafts) if chance**n >= RARELY], default=1)
    now, then = _tokens(chance, facts.drafts), _tokens(chance, fewer)
    yield Advice(
        "drafts-too-long",
        f"{facts.decode}speculative-config.num_speculative_tokens",
        facts.drafts,
        fewer,
        f"{then:.2f} in place of {now:.2f} tokens a step, {facts.drafts - fewer} fewer to check",
        f"{rate:.0%} of {facts.drafts} drafts accepted: the last one in "
        f"{chance**facts.drafts:.0%} of the steps",
    )


def _chance(rate: float, drafts: int) -> float:
    """Return the probability that a draft token is accepted, from the rate over all drafts.

    It solves (a + a^2 + ... + a^n) / n = rate for a.

    >>> round(_chance(0.42, 2), 3)
    0.544
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**n for n in range(1, drafts + 1)) / drafts < rate:
            low = middle
        else:
            high = middle
    return low


def _tokens(chance: float, drafts: int) -> float:
    return sum(chance**n for n in range(drafts + 1))


def _room(facts: Facts, cell: Cell) -> int | None:
    """Return how many whole requests a rank's cache holds, estimated; None if not known."""
    if facts.cache_tokens is None:
        return None
    return max(1, facts.cache_tokens // (cell.input_len + cell.output_len))


def _all(cells: tuple[Cell, ...]) -> str:
    return ", ".join(f"{cell.throughput:.1f} tokens/s at {cell.concurrency}" for cell in cells)
