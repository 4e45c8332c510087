"""Queues by simulation: against sums by hand, against theory, and against stand-in clusters."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import replace

import aiohttp
import pytest

from kimi_nb.plan import build
from kimi_nb.rehearse import launch, rehearsal
from kimi_nb.sizing import factors, prefix_cache, queues, request_load, steady_state
from kimi_nb.sizing.queues import Readers, Writers
from kimi_nb.sizing.request_load import Request
from kimi_nb.sizing.step_time import Term, Time

STEP = 0.02


def decoding(**more):
    return Writers(**{"groups": 1, "ranks": 1, "seqs": 4, "step": lambda busy: STEP} | more)


def test_a_request_alone_takes_a_step_for_each_token():
    found = queues.simulate([Request(10, 50)], decoding())
    assert found.ttft[0] == pytest.approx(STEP) and found.tpot[0] == pytest.approx(STEP)
    assert found.tokens_per_s == pytest.approx(1 / STEP)


def test_those_above_the_limit_wait_for_a_place():
    found = queues.simulate([Request(10, 50)] * 8, decoding())
    assert sorted(found.ttft) == pytest.approx([STEP] * 4 + [51 * STEP] * 4)


def test_drafts_give_several_tokens_a_step():
    found = queues.simulate([Request(10, 100)], decoding(accepted=2.5))
    assert found.seconds == pytest.approx(40 * STEP)


def test_a_prompt_delays_the_others_of_its_group_only():
    writers = decoding(read=lambda tokens: 0.1, budget=1000)
    early, late = Request(1000, 100), Request(4000, 10, arrival=1.0)
    found = queues.simulate([early, late], writers)
    alone = queues.simulate([early, late], replace(writers, groups=2))
    assert found.tpot[0] == pytest.approx((95 * STEP + 4 * 0.1) / 99, rel=0.05)
    assert alone.tpot[0] == pytest.approx(STEP)


def test_short_prompts_are_read_in_one_step_as_far_as_they_fit():
    """Of five prompts of 300 tokens three and a third fit into a step of 1,000, then the rest."""
    writers = decoding(seqs=8, read=lambda tokens: tokens / 1e4, budget=1000)
    found = queues.simulate([Request(300, 10)] * 5, writers)
    # The second step has the three that decode beside 600 tokens: all of them fit.
    assert sorted(found.ttft) == pytest.approx([0.1] * 3 + [0.15] * 2)
    apart = queues.simulate(
        [Request(300, 10)] * 5, decoding(), Readers(1, lambda tokens: tokens / 1e4, 1000)
    )
    assert sorted(apart.ttft)[:3] == pytest.approx([0.09 + STEP] * 3), "three whole prompts"
    assert sorted(apart.ttft)[3] > 0.15


def test_what_the_prefix_cache_holds_is_not_read():
    writers = decoding(read=lambda tokens: tokens / 1e4, budget=1000)
    found = queues.simulate(
        [Request(1000, 1, cached=900), Request(1000, 1, 1, cached=1000)], writers
    )
    assert found.ttft == pytest.approx((STEP, STEP)), "100 tokens, and the last one, in a step"


@pytest.mark.parametrize("seqs", [4, 32, 128])
def test_the_steady_state_of_short_prompts_is_that_of_the_simulation(seqs):
    """What arrives while a step runs is read in the next one, as far as it fits."""
    draw = random.Random(5)
    requests = [Request(100, draw.randint(21, 61)) for _ in range(60 * seqs)]
    writers = decoding(
        seqs=seqs, step=lambda _: 0.01, read=lambda tokens: 0.029 + tokens * 1e-5, budget=1600
    )
    seen = queues.simulate(requests, writers)
    packs = tuple(
        steady_state.Pack(count, *[_time(0.029 + count * 1e-3)] * 2) for count in (1, 2, 4, 8, 16)
    )
    found = steady_state.mixed(
        request_load.fixed(100, 41),
        factors.of("cpu"),
        seqs,
        _time(0.01),
        steady_state.Prompt(1, packs),
        1,
        1.0,
        lambda time: time.seconds,
    )
    assert found.rate * 41 == pytest.approx(seen.tokens_per_s, rel=0.15)


def _time(seconds):
    return Time((Term("all of it", seconds, seconds, seconds, "estimated", "given"),))


def test_a_prefill_side_reads_several_prompts_in_a_step_where_they_are_short():
    """One prompt takes 30 ms and sixteen 45: full, sixteen in 45 ms; nearly empty, one in 30."""
    packs = (steady_state.Pack(1, *[_time(0.03)] * 2), steady_state.Pack(16, *[_time(0.045)] * 2))
    side = steady_state.prefill_side(steady_state.Prompt(1, packs), 1, lambda time: time.seconds)
    assert side.rate == pytest.approx(16 / 0.045) and side.seconds == 0.03
    assert side.step(0.0) == pytest.approx(0.03) and side.step(1.0) == pytest.approx(0.045)
    # Half full: n prompts come in a step of 30 + (n - 1) ms: n = 1 / (2 * 45 / 16) (29 + n)
    count = (8 / 45 * 29) / (1 - 8 / 45)
    assert side.step(0.5) == pytest.approx(0.029 + count * 1e-3)
    requests = queues.poisson([Request(100, 1)], side.rate / 2, 4000, seed=3)
    seen = queues.simulate(
        requests,
        decoding(seqs=10**6, step=lambda _: 1e-9),
        Readers(1, lambda tokens: 0.029 + tokens * 1e-5, 1600),
    )
    assert steady_state.read_in(side, 1, 0.5, 0.0) == pytest.approx(seen.mean("ttft"), rel=0.25)


def test_prefill_apart_is_a_queue_before_decode():
    found = queues.simulate(
        [Request(1000, 10)] * 3,
        decoding(),
        Readers(1, lambda tokens: tokens / 1000),
        front=0.5,
        transfer=lambda tokens: 0.25,
    )
    assert found.ttft == pytest.approx([1.77, 2.77, 3.77])


@pytest.mark.parametrize(("busy", "servers"), [(0.5, 1), (0.8, 1), (0.7, 4), (0.9, 8)])
def test_the_wait_agrees_with_queueing_theory(busy, servers):
    rate = busy * servers
    requests = queues.poisson([Request(1, 1)], rate, 20000, seed=7)
    found = queues.simulate(
        requests, decoding(seqs=10**6, step=lambda _: 1e-9), Readers(servers, lambda _: 1.0)
    )
    expected = 1 + steady_state.waiting(busy, servers, 1.0, 0.0)
    assert found.mean("ttft") == pytest.approx(expected, rel=0.15)


def test_the_same_seed_gives_the_same_arrivals():
    sizes = [Request(10, 10), Request(20, 20)]
    assert queues.poisson(sizes, 3.0, 50, 1) == queues.poisson(sizes, 3.0, 50, 1)
    assert queues.poisson(sizes, 3.0, 50, 1) != queues.poisson(sizes, 3.0, 50, 2)


async def _ask(session, url, model, tokens, at, begun):
    """Send one streaming request at a time; return (seconds to the first token, to the last)."""
    await asyncio.sleep(max(begun + at - time.perf_counter(), 0))
    sent, first, last = time.perf_counter(), 0.0, 0.0
    body = {"model": model, "prompt": "one two", "max_tokens": tokens, "ignore_eos": True}
    async with session.post(f"{url}/v1/completions", json=body | {"stream": True}) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                last = time.perf_counter()
                first = first or last
    return first - sent, last - sent


async def _load(plan, url, requests):
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        begun = time.perf_counter() + 0.2
        every = [
            _ask(session, url, plan.served_name, one.output_len, one.arrival, begun)
            for one in requests
        ]
        seen = await asyncio.gather(*every)
        return seen, time.perf_counter() - begun


# Layout, what it is given, and the same as queues. A stand-in prefills in one step.
CLUSTERS = {
    "one engine": ("single", ["max-num-seqs=4"], decoding(), None),
    "replicas behind the router": (
        "single",
        ["max-num-seqs=4", "groups=2", "router=vllm-router"],
        decoding(groups=2),
        None,
    ),
    "prefill apart": ("pd", ["decode.max-num-seqs=4"], decoding(), Readers(1, lambda _: STEP)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CLUSTERS)
def test_the_stand_in_cluster_behaves_as_simulated(name, tmp_path, monkeypatch):
    """TTFT, TPOT and throughput within 5 % of a rehearsed cluster whose steps take 20 ms.

    The nearest of a few rounds counts: what else runs on this machine only makes it slower.
    """
    of, tokens = launch.SimulatedSite.of, 60
    monkeypatch.setattr(
        launch.SimulatedSite,
        "of",
        staticmethod(lambda plan: replace(of(plan), seconds_per_token=STEP)),
    )
    layout, pairs, writers, readers = CLUSTERS[name]
    plan = build.plan("k2.5", "cpu", layout, pairs=pairs)
    requests = [Request(2, tokens)] * 16
    expected = queues.simulate(requests, writers, readers)
    rounds: list[float] = []
    with rehearsal.start(plan, tmp_path) as live:
        assert live.result.ok, live.result
        while len(rounds) < 6 and (not rounds or min(rounds) >= 0.05):
            seen, seconds = asyncio.run(_load(plan, live.url, requests))
            ttft = statistics.mean(first for first, _ in seen)
            tpot = statistics.mean((last - first) / (tokens - 1) for first, last in seen)
            off = [
                ttft / expected.mean("ttft"),
                tpot / expected.mean("tpot"),
                tokens * len(seen) / seconds / expected.tokens_per_s,
            ]
            rounds.append(max(abs(one - 1) for one in off))
    assert min(rounds) < 0.05, rounds


def test_a_prefix_cache_holds_what_is_used_again():
    again = [Request(1024, 1, float(at), (1, 2)) for at in range(10)]
    assert prefix_cache.hits(again, 2) == pytest.approx(0.9)
    assert prefix_cache.hits(again, 1) == pytest.approx(0.45)  # the beginning stays
    assert prefix_cache.hits(again, 0) == 0
    apart = [Request(1024, 1, float(at), (2 * at, 2 * at + 1)) for at in range(10)]
    assert prefix_cache.hits(apart, 100) == 0


def test_a_larger_cache_never_holds_less():
    trace = [Request(2048, 1, float(at), (0, at % 3, at % 7, at % 11)) for at in range(200)]
    found = prefix_cache.curve(trace, 1024, 70272.0)
    assert [one.hit for one in found] == sorted(one.hit for one in found)
    assert found[-1].bytes == found[-1].tokens * 70272.0 > found[0].bytes


def test_a_trace_is_read_and_its_faults_are_named():
    line = '{"timestamp": %d, "input_length": 1000, "output_length": 10, "hash_ids": [1, 2]}'
    found = request_load.trace([line % 0, "", line % 2000])
    assert (found.input_len, found.output_len, found.rate) == (1000, 10, 0.5)
    for bad, says in (
        ("{", "line 1: not JSON"),
        ("[]", "an object is wanted"),
        ('{"input_length": "a", "output_length": 1}', "input_length"),
        ('{"input_length": 1, "output_length": 0}', "output_length"),
        ('{"input_length": 1, "output_length": 1, "timestamp": NaN}', "timestamp"),
        (f'{{"input_length": 1, "output_length": 1, "timestamp": 1{"0" * 400}}}', "timestamp"),
        ('{"input_length": 1, "output_length": 1, "timestamp": -1e300}', "timestamp"),
        ('{"input_length": 1, "output_length": 1, "timestamp": -1}', "timestamp"),
        ('{"input_length": 1, "output_length": 1, "timestamp": true}', "timestamp"),
        ('{"input_length": 1, "output_length": 1, "hash_ids": 5}', "hash_ids"),
        ('{"input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}', "prompt is wanted, 2"),
        ("[" * 100000, "not JSON"),
    ):
        with pytest.raises(request_load.ParameterError, match=says):
            request_load.trace([bad])
    with pytest.raises(request_load.ParameterError, match="no request"):
        request_load.trace([])


def test_a_trace_at_another_rate_arrives_faster():
    line = '{"timestamp": %d, "input_length": 1000, "output_length": 10}'
    found = request_load.trace([line % at for at in (500, 1500, 4500)])
    assert found.arrivals and found.rate == 0.5
    faster = found.at(2.0)
    assert faster.rate == 2.0
    assert [one.arrival - 0.125 for one in faster.requests] == pytest.approx([0.0, 0.25, 1.0])
    at_once = request_load.trace([line % 5] * 3)
    assert not at_once.arrivals and at_once.rate == 0 and at_once.at(3.0).rate == 3.0


def test_a_distribution_is_read_and_its_faults_are_named():
    found = request_load.lengths("1000:200:9, 60000:800:1")
    assert (found.input_len, found.output_len, found.longest) == (6900, 260, 60800)
    assert found.spread == pytest.approx((0.9 * 5900**2 + 0.1 * 53100**2) / 6900**2)
    for bad in (
        "",
        "1000:200",
        "1000:200:0",
        "1:2:-1",
        "1:2:nan",
        "a:b:c",
        "1:2:1,",
        "0:2:1",
        "1:200000000:1",
    ):
        with pytest.raises(request_load.ParameterError, match="--lengths: IN:OUT:WEIGHT"):
            request_load.lengths(bad)
    with pytest.raises(request_load.ParameterError, match="at most 1000"):
        request_load.lengths("1:1:1," * 5000)
