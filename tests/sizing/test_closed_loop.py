"""A benchmark that keeps requests in flight, against sums by hand and against the other simulation."""

from __future__ import annotations

import pytest

from kimi_nb.sizing import closed_loop, request_load
from kimi_nb.sizing.closed_loop import Engine


def engine(**changes):
    """An engine of 512 tokens a step that reads a step in 0.1 s and writes one in 0.01 s."""
    given = {
        "budget": 512,
        "seqs": 8,
        "read": lambda tokens, busy: 0.1,
        "write": lambda busy: 0.01,
    }
    return Engine(**given | changes)


def test_one_request_after_the_other():
    found = closed_loop.simulate(engine(front=0.02), request_load.fixed(1000, 11), 1, 4)
    assert found.ttft == pytest.approx((0.22,) * 4), "the way to the engine, and two steps"
    assert found.tpot == pytest.approx((0.01,) * 4)
    assert found.seconds == pytest.approx(4 * 0.32)
    assert found.tokens_per_s == pytest.approx(44 / 1.28)


def test_short_prompts_share_a_step():
    found = closed_loop.simulate(engine(), request_load.fixed(64, 11), 8, 8)
    assert found.ttft == pytest.approx((0.1,) * 8)
    longer = closed_loop.simulate(engine(), request_load.fixed(256, 11), 4, 4)
    assert longer.ttft == pytest.approx((0.1, 0.1, 0.21, 0.21), abs=0.11)
    assert longer.ttft[2] > longer.ttft[0]


def test_those_that_decode_go_on_while_others_are_read():
    found = closed_loop.simulate(engine(), request_load.fixed(500, 11), 2, 2)
    assert found.ttft == pytest.approx((0.1, 0.2))
    assert found.tpot[0] == pytest.approx((0.1 + 9 * 0.01) / 10), "its second token: a long step"
    assert found.tpot[1] == pytest.approx(0.01)


def test_no_more_than_the_limit_of_sequences_at_once():
    busy: list[int] = []
    limited = engine(seqs=2, write=lambda count: busy.append(count) or 0.01)
    found = closed_loop.simulate(limited, request_load.fixed(10, 11), 6, 6)
    assert max(busy) == 2 and len(found.ttft) == 6
    assert found.quantile("ttft", 1.0) > 0.4, "the last ones wait for two rounds"


def test_drafts_take_fewer_steps():
    plain, drafts = (
        closed_loop.simulate(engine(accepted=rate), request_load.fixed(10, 21), 1, 1)
        for rate in (1.0, 2.0)
    )
    assert drafts.tpot[0] == pytest.approx(plain.tpot[0] / 2)


def test_prompts_that_come_at_once_reach_the_engine_one_after_the_other():
    """Tokenized at 20, 40, 60 and 80 ms: the first alone in a step, the others in the next one."""
    found = closed_loop.simulate(engine(tokenize=0.02), request_load.fixed(64, 11), 4, 4)
    assert found.ttft == pytest.approx((0.12, 0.22, 0.22, 0.22))
    alone = closed_loop.simulate(engine(tokenize=0.02), request_load.fixed(64, 11), 1, 2)
    assert alone.ttft == pytest.approx((0.12, 0.12))


def test_a_prompt_that_is_read_whole_waits_for_a_step_with_room():
    chunked, whole = (
        closed_loop.simulate(engine(chunked=each), request_load.fixed(300, 11), 3, 3)
        for each in (True, False)
    )
    # 512 tokens a step: 300 and 212 of the second, its rest and the third, or one in each step.
    assert chunked.ttft == pytest.approx((0.1, 0.2, 0.2))
    assert whole.ttft == pytest.approx((0.1, 0.2, 0.3))


def test_a_prompt_that_is_longer_than_a_step_is_read_all_the_same():
    found = closed_loop.simulate(engine(chunked=False), request_load.fixed(600, 11), 2, 2)
    assert len(found.ttft) == 2 and found.ttft[1] > found.ttft[0]
