"""The search: every candidate is a plan that the rules pass, in order, within its bounds."""

from __future__ import annotations

import json
import re

import pytest

from kimi_nb.check import judge
from kimi_nb.cli.main import main
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.plan import build
from kimi_nb.sizing import request_load, search
from kimi_nb.sizing.points import Bounds

WORDS = ["size", "--model", "k2.5", "--hw", "a3", "--nodes", "4", "--input", "16000"]
WORDS += ["--output", "1000", "--ttft", "2s", "--tpot", "50ms"]


def asked(capsys, *words):
    """Run `kimi-nb size --json`; return its exit code and its document."""
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def planned(one, **more):
    """Plan a candidate as its user would."""
    return build.plan(
        one["model"],
        one["hardware"],
        one["layout"],
        pairs=one["set"],
        site=one["site"],
        derive=one["derive"],
        **more,
    )


def test_every_candidate_is_a_plan_that_checks(capsys):
    code, told = asked(capsys, *WORDS)
    assert code == 0 and len(told["candidates"]) > 3
    for one in told["candidates"] + told["front"]:
        made = planned(one)
        assert judge.plan(made).ok, one["set"]
        assert len(made.nodes) == one["nodes"] <= 4


def test_candidates_keep_the_bounds_best_first_with_interval_and_mark(capsys):
    _, told = asked(capsys, *WORDS)
    figures = [one["tokens_per_s_device"] for one in told["candidates"]]
    assert figures == sorted(figures, reverse=True)
    for one in told["candidates"]:
        assert one["ttft_ms"] <= 2000 and one["tpot_ms"] <= 50
        assert one["low"] <= one["tokens_per_s_device"] <= one["high"]
        assert one["ttft_ms_low"] <= one["ttft_ms"] <= one["ttft_ms_high"]
        assert one["mark"] in ("estimated", "published", "calibrated", "measured")
        counted = sum(term["ms"] for term in one["terms"] if not term["hidden"])
        assert counted > 0 and all(term["source"] for term in one["terms"])
    assert told["considered"] > 100 and sum(told["refused"].values()) > 0
    assert told["says"] == f"best of {told['considered']} considered under this model"


@pytest.mark.parametrize(
    ("model", "hardware", "nodes", "derive"),
    [
        ("k2.5", "h200", 2, False),
        ("k2.6", "b200", 1, False),
        ("k2-thinking", "a2", 2, True),
        ("k2.7-code", "mi300x", 2, False),
        ("k2.5", "gb200", 4, False),
        ("k3", "a3", 4, False),
        ("k3", "b300", 2, False),
    ],
)
def test_other_hardware_too(model, hardware, nodes, derive):
    found = search.answer(
        model, hardware, nodes, request_load.fixed(4000, 500), Bounds(), derive=derive
    )
    assert found.candidates
    for one in found.candidates[:4]:
        assert judge.plan(planned(one.as_dict())).ok
    assert found.candidates[0].tokens.value > 0


def test_the_front_trades_one_for_the_other():
    found = search.answer("k2.5", "a3", 2, request_load.fixed(4000, 500), Bounds(3.0, 0.05))
    front = [(one.tpot.value, one.tokens.value) for one in found.front]
    assert len(front) > 2 and front == sorted(front)
    assert [tokens for _, tokens in front] == sorted(tokens for _, tokens in front)


def test_more_nodes_and_the_fewest(capsys):
    _, told = asked(capsys, *WORDS, "--rate", "1.5")
    assert 1 < told["smallest_nodes"] <= 4
    assert told["one_more_node"]["requests_per_s"] > told["candidates"][0]["requests_per_s"]
    less = search.answer(
        "k2.5",
        "a3",
        told["smallest_nodes"] - 1,
        request_load.fixed(16000, 1000, rate=1.5),
        Bounds(2.0, 0.05),
    )
    assert not less.candidates


def test_bounds_that_nothing_keeps_say_the_nearest_miss(capsys):
    code, told = asked(capsys, *WORDS, "--tpot", "1ms")
    assert code == 1 and not told["candidates"]
    assert told["misses"]["nearest miss"]["tpot_ms"] > 1
    assert told["misses"]["without the bound of TPOT"]["ttft_ms"] <= 2000
    assert told["misses"]["without the bound of TTFT"] is None
    assert main([*WORDS, "--tpot", "1ms"]) == 1
    said = capsys.readouterr()
    assert "none of" in said.out and "nearest miss" in said.out
    assert said.err == "kimi-nb: nothing keeps the promise.\n"


def test_where_neither_bound_can_be_kept_it_says_what_there_is(capsys):
    code, told = asked(capsys, *WORDS, "--tpot", "1us", "--ttft", "1ms")
    assert code == 1
    assert told["misses"]["without the bound of TTFT"] is None
    assert told["misses"]["without any of them"]["tokens_per_s_device"] > 0


def test_a_layout_that_takes_more_nodes_says_of_which_role():
    with pytest.raises(PlanError, match="pd takes 1 node for prefill, 1 node for decode"):
        search.answer("k2.5", "a3", 1, request_load.fixed(1000, 100), Bounds(), layout="pd")


def test_a_load_longer_than_the_context():
    with pytest.raises(ParameterError, match=r"301000 tokens.*262144.*Shorten"):
        search.answer("k2.5", "a3", 4, request_load.fixed(300000, 1000), Bounds())


def test_fewer_nodes_than_the_weights_need_say_the_sum():
    with pytest.raises(PlanError, match=r"GiB of W4A8 weights.*8 devices have \d+ GiB") as error:
        search.answer("k2.5", "a2", 1, request_load.fixed(1000, 100), Bounds())
    assert "--nodes 2" in str(error.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ttft", "2"], "--ttft: a time above 0 with its unit"),
        (["--tpot", "-5ms"], "--tpot"),
        (["--nodes", "-1"], "--nodes"),
        (["--nodes", "0"], "--nodes"),
        (["--lengths", "1000:200:1"], "--lengths has its own lengths"),
        (["--rate", "nan"], "--rate"),
        (["--prefix-hit", "1.5"], "--prefix-hit"),
        (["--trace", "/nowhere.jsonl"], "--trace"),
        (["--input", "0"], "--input"),
        (["--input", "-7"], "--input"),
        (["--hw", "a33"], "did you mean 'a3'"),
        (["--layout", "pq"], "layout"),
        (["--hw", "cpu"], "cpu"),
        (["--hw", "mi350x"], "mi350x"),
    ],
)
def test_bad_input_is_one_sentence(capsys, words, says):
    given = [*WORDS[:9], "--output", "10", *(f"{words[0]}={words[1]}",)]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said and len(said.splitlines()) < 12


def test_the_text_says_best_of_and_at_most_ten_rows(capsys):
    assert main(WORDS) == 0
    out = capsys.readouterr().out
    assert "best of" in out and "considered under this model" in out and "optimal" not in out
    assert "mean TTFT ms" in out and "the table has means at the most that each one carries" in out
    assert re.search(r"simulated with random arrivals, [\d.]+ requests/s \(estimated\)", out)
    assert "limited by: " in out and "kimi-nb plan --model k2.5 --hw a3 --layout" in out


def test_out_writes_a_file_for_each_candidate(tmp_path, capsys):
    assert main([*WORDS, "--out", str(tmp_path / "sizes")]) == 0
    files = sorted((tmp_path / "sizes").glob("plan-*.json"))
    assert files and planned(json.loads(files[0].read_text())).engines


def test_every_point_of_the_front_has_its_file(tmp_path, capsys):
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "answer.json").read_text())
    files = sorted(tmp_path.glob("front-*.json"))
    assert [json.loads(one.read_text()) for one in files] == told["front"] and files


def test_the_interval_of_a_ttft_reaches_beyond_it_also_where_decode_is_slow(capsys):
    """Prefill that is slower than expected waits, however slow decode is."""
    _, told = asked(capsys, *WORDS, "--layout", "pd")
    for one in told["candidates"]:
        assert one["ttft_ms_low"] < one["ttft_ms"] < one["ttft_ms_high"]


def test_what_nobody_has_published_is_named(capsys):
    assert main(WORDS) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if "no public figure" in one)
    assert "scheduler" in line and "weights read" not in line
    _, told = asked(capsys, *WORDS)
    for term in told["candidates"][0]["terms"]:
        assert term["public"] == ("no public figure" not in term["source"])


def test_short_prompts_share_steps():
    """A step of 8,192 tokens reads hundreds of prompts of 10 tokens, not one."""
    found = search.answer("k2.5", "h200", 1, request_load.fixed(10, 10), Bounds(), layout="single")
    best = found.candidates[0]
    assert best.tokens.value > 1000
    assert best.tpot.value < 0.3


def test_an_answer_of_one_token_has_no_time_for_a_further_one():
    found = search.answer(
        "k2.5", "h200", 2, request_load.fixed(2000, 1), Bounds(tpot=0.001), layout="pd"
    )
    assert found.candidates and {one.tpot.value for one in found.candidates} == {0}
    mixed = search.answer("k2.5", "h200", 1, request_load.fixed(2000, 1), Bounds(), layout="single")
    best = mixed.candidates[0]
    places = best.point.groups[0].seqs * best.point.groups[0].unit.kind.shape.dp
    assert best.tpot.value == 0
    assert best.point.rate == pytest.approx(places / best.ttft.value), "every place is taken"


def test_a_distribution_has_percentiles_of_its_own(capsys):
    words = [*WORDS[:5], "--nodes", "2", "--layout", "single"]
    code, told = asked(capsys, *words, "--lengths", "1000:200:0.9,60000:800:0.1")
    assert code == 0 and told["workload"]["mix"] == [[1000, 200, 0.9], [60000, 800, 0.1]]
    found = told["candidates"][0]["percentiles_ms"]
    _, even = asked(capsys, *words, "--input", "6900", "--output", "260")
    alike = even["candidates"][0]["percentiles_ms"]
    assert found["ttft_p99"] / found["ttft_p50"] > 1.5 * alike["ttft_p99"] / alike["ttft_p50"]


def test_a_trace_without_arrivals_is_sent_at_random(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    line = json.dumps({"input_length": 2000, "output_length": 100})
    path.write_text(f"\ufeff{line}\n" * 1 + f"{line}\n" * 40, encoding="utf-8")
    words = [*WORDS[:5], "--nodes", "1", "--layout", "single", "--trace", str(path)]
    code, told = asked(capsys, *words)
    best = told["candidates"][0]
    assert code == 0 and told["workload"]["rate"] == 0 and not told["workload"]["arrivals"]
    rate = best["percentiles_ms"]["requests_per_s"]
    assert rate == pytest.approx(0.8 * best["requests_per_s"], rel=0.01)
    assert main(words) == 0
    assert "simulated with random arrivals" in capsys.readouterr().out


def test_the_same_question_has_the_same_answer(capsys):
    assert asked(capsys, *WORDS) == asked(capsys, *WORDS)


def test_a_trace_gives_lengths_rate_and_what_the_cache_holds(tmp_path, capsys):
    lines = [
        {
            "timestamp": 900 * at,
            "input_length": 8 * 512,
            "output_length": 200,
            "hash_ids": [*range(6), 100 + 2 * at, 101 + 2 * at],
        }
        for at in range(60)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = [*WORDS[:7], "--trace", str(path), "--ttft", "2s"]
    code, told = asked(capsys, *words)
    assert code == 0 and told["workload"]["requests"] == 60
    assert told["workload"]["rate"] == pytest.approx(1 / 0.9)
    assert told["workload"]["prefix_hit"] == pytest.approx(0.75 * 59 / 60, abs=0.01)
    assert told["prefix_cache"][0]["hit"] == told["workload"]["prefix_hit"]
    best = told["candidates"][0]
    assert any("enable-prefix-caching=true" in pair for pair in best["set"])
    assert judge.plan(planned(best)).ok and best["percentiles_ms"]["ttft_p99"] > 0


def test_more_nodes_than_an_example_site_has(capsys):
    code, told = asked(capsys, *WORDS[:5], "--nodes", "20", *WORDS[7:])
    best = told["candidates"][0]
    assert code == 0 and best["needs_site"] == (best["nodes"] > 16)
